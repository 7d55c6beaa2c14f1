"""The publisher on a real Redis and a real RabbitMQ: under the term, past no stop, once the row is confirmed."""

import json

import pytest
import redis
from kombu import Exchange, Queue

from fencebeat import outbox as outboxes
from fencebeat import outbox_sending
from fencebeat.clock import SystemClock
from fencebeat.edits import Schedule
from fencebeat.entries import entry_of
from fencebeat.errors import Fenced, OutboxFull, StoreUnknown, UnusableRecord
from fencebeat.outbox import look
from fencebeat.requests import Requests
from tests.support.fences import SECOND
from tests.support.outboxes import bench, ticks
from tests.support.waiting import until


@pytest.fixture
def box(redis_url, rabbitmq_url, namespace):
    with bench(redis_url, rabbitmq_url, namespace) as made:
        yield made


@pytest.fixture
def base(box):
    return (box.fence.now() // SECOND - 1000) * SECOND


def fill(box, base, count, name="e", **options):
    """Commit so many ticks of one entry; their names."""
    entry = box.fence.entry(name, mark=base, options=options)
    made = [box.emission(entry, base + number * SECOND) for number in range(1, count + 1)]
    assert box.fence.commit(*made) == ("emitted",) * count
    return [f"{name}@{tick.fire_time // SECOND}" for tick in made]


# --- publishing


def test_rows_are_published_in_order_taken_out_and_recorded(box, base, namespace):
    expected = fill(box, base, 200)
    assert box.rows == 200

    box.publisher.start()
    arrived = box.arrivals.wait_for_queue(namespace, 200)
    box.wait_until_empty()

    assert ticks(arrived) == expected
    assert [m.properties["message_id"] for m in arrived] == [m.properties["correlation_id"] for m in arrived]
    records = [record for record in box.fence.audit() if record["outcome"] == "published"]
    assert [(r["entry"], r["token"], r["holder"]) for r in records] == [("e", "100", "host:1")] * 200
    assert [r["task_id"] for r in records] == [m.properties["message_id"] for m in arrived]


def test_a_new_row_is_published_at_once(box, base, namespace):
    box.publisher.signals.published.listen()
    box.publisher.start()
    fill(box, base, 1)
    box.publisher.wake()
    box.publisher.signals.published.wait(10)
    assert len(box.arrivals.take(namespace)) == 1


# --- the fence


def test_rows_of_a_former_term_are_published_by_the_next_under_the_same_ids(box, base, namespace):
    fill(box, base, 3)
    box.leader.append(box.fence.successor())
    box.publisher.start()
    box.wait_until_empty()
    arrived = box.arrivals.take(namespace)
    assert {m.headers["fencebeat_token"] for m in arrived} == {100}
    assert {r["token"] for r in box.fence.audit() if r["outcome"] == "published"} == {"101"}


@pytest.mark.parametrize("replaced", ["token", "nonce", "lock"])
def test_f01_a_former_leader_publishes_nothing_and_takes_nothing_out(box, base, namespace, replaced):
    fill(box, base, 3)
    match replaced:
        case "lock":
            box.fence.client.set(box.fence.keys.lock, "another nonce")
        case field:
            box.fence.client.hset(box.fence.keys.term, field, "99")
    before = box.fence.everything()
    with pytest.raises(Fenced):
        box.publisher._step(box.fence.term)
    assert box.fence.everything() == before
    assert box.sender.in_flight == 0


def test_f01_the_term_is_asked_before_each_message(box, base, namespace):
    fill(box, base, 3)
    box.arrivals.declare(namespace, exchange=Exchange(namespace, "direct"), routing_key=namespace)
    box.publisher._step(box.fence.term)
    box.fence.successor()
    with pytest.raises(Fenced):
        box.publisher._step(box.fence.term)
    assert len(box.arrivals.wait_for(namespace, 1)) == 1
    assert box.rows == 3, "nor is a row taken out under a term that is over"


def test_a_term_that_ended_by_our_own_clock_publishes_nothing(box, base, namespace):
    fill(box, base, 1)
    box.leader.append(None)
    box.publisher._step(box.fence.term)
    assert box.sender.in_flight == 0


def test_f05_without_the_generation_of_the_flags_nothing_is_published(box, base):
    fill(box, base, 1)
    box.fence.client.hdel(box.fence.keys.flags, "generation")
    with pytest.raises(StoreUnknown):
        box.publisher._step(box.fence.term)
    assert box.rows == 1


def test_flags_that_nobody_renews_are_unknown_to_the_publisher(redis_url, rabbitmq_url, namespace):
    with bench(redis_url, rabbitmq_url, namespace) as box:
        box.publisher._flags_generation = lambda: 1
        for renewed, generation in ((box.fence.now() - 3 * SECOND, 1), (box.fence.now(), 0)):
            box.fence.client.hset(box.fence.keys.flags, mapping={"renewed": renewed, "generation": generation})
            with pytest.raises(StoreUnknown):
                box.publisher._step(box.fence.term)
        box.fence.client.hset(box.fence.keys.flags, mapping={"renewed": box.fence.now(), "generation": 1})
        box.publisher._step(box.fence.term)


def test_a_key_of_another_type_is_refused(box):
    box.fence.client.set(box.fence.keys.outbox, "text")
    with pytest.raises(UnusableRecord):
        box.publisher._step(box.fence.term)


# --- stops


@pytest.mark.parametrize("scope", ["all", "entry:e", "queue:{ns}"])
def test_rows_under_a_stop_stay_in_place_and_others_pass_them(box, base, namespace, scope):
    held = fill(box, base, 150, "e")  # more than one page of the script
    free = [] if scope == "all" else fill(box, base, 2, "free", queue=f"{namespace}.free")
    box.fence.client.hset(box.fence.keys.flags, scope.format(ns=namespace), "a stop")
    box.publisher.start()
    if free:
        assert ticks(box.arrivals.wait_for_queue(f"{namespace}.free", 2)) == free
        until(lambda: box.rows == 150, what="the others' rows to leave")
    box.publisher.stop(10)
    assert box.rows == 150

    box.fence.client.hdel(box.fence.keys.flags, scope.format(ns=namespace))
    box.publisher._stopping, box.publisher._thread = False, None
    box.publisher.start()
    assert ticks(box.arrivals.wait_for_queue(namespace, 150)) == held


def test_a_stop_that_comes_between_two_messages_holds_the_second_back(box, base, namespace):
    fill(box, base, 2)
    box.publisher._step(box.fence.term)
    box.fence.client.hset(box.fence.keys.flags, "entry:e", "a stop")
    for _ in range(5):
        box.publisher._step(box.fence.term)
    assert len(box.arrivals.take(namespace)) == 1
    assert box.rows == 1


def test_a_stop_of_an_entry_holds_the_row_of_its_extra_run_back_too(box, namespace):
    box.fence.entry("x", mark=box.fence.now())
    Schedule(box.fence.client, box.fence.keys, by="a test").run_now("x")
    known = {"x": entry_of("x", {"task": "t", "schedule": 1.0})}
    requests = Requests(
        box.fence.client,
        box.fence.keys,
        box.renderer,
        carrier="lock",
        clock=SystemClock(),
        tolerance=2.0,
        flags_generation=lambda: None,
    )
    requests.serve(box.fence.term, known.get)
    assert box.rows == 1
    box.fence.client.hset(box.fence.keys.flags, "entry:x", "a stop that comes after the commit")
    for _ in range(3):
        box.publisher._step(box.fence.term)
    assert box.rows == 1

    box.fence.client.hdel(box.fence.keys.flags, "entry:x")
    box.publisher.start()
    [message] = box.arrivals.wait_for_queue(namespace, 1)
    assert message.headers["fencebeat_entry"] == "x!now"


# --- what a crash leaves


def test_f03_a_row_that_was_published_and_not_taken_out_is_sent_again_under_the_same_id(box, base, namespace):
    fill(box, base, 1)
    box.publisher._step(box.fence.term)
    (first,) = box.arrivals.wait_for(namespace, 1)
    box.publisher._forget()  # all that a killed process knew
    box.publisher._done.clear()
    box.publisher.start()
    (second,) = box.arrivals.wait_for(namespace, 1)
    box.wait_until_empty()
    assert first.properties == second.properties
    assert box.outcomes().count("published") == 1


def test_what_was_confirmed_is_taken_out_by_a_polite_stop(box, base, namespace):
    fill(box, base, 1)
    box.publisher.start()
    box.arrivals.wait_for_queue(namespace, 1)
    box.publisher.stop(10)
    assert box.rows == 0
    assert box.outcomes()[-1] == "published"


# --- what the broker does not take


def test_a_message_without_a_queue_is_unroutable_and_holds_nobody_up(box, base, namespace):
    box.app.conf.task_queues = [Queue(namespace, Exchange(f"{namespace}.x", "topic"), routing_key="right")]
    box.arrivals.declare("unused" + namespace, exchange=Exchange(f"{namespace}.x", "topic"), routing_key="other")
    fill(box, base, 1, "lost", exchange=f"{namespace}.x", routing_key="wrong")
    good = fill(box, base, 1, "good", queue=f"{namespace}.good")
    box.publisher.start()
    assert ticks(box.arrivals.wait_for_queue(f"{namespace}.good", 1)) == good
    box.wait_until_empty()
    (record,) = [one for one in box.fence.audit() if one["outcome"] == "unroutable"]
    assert (record["entry"], "NO_ROUTE" in record["reason"]) == ("lost", True)


def test_a_queue_that_was_deleted_is_declared_again(box, base, namespace):
    fill(box, base, 1)
    box.publisher.start()
    box.arrivals.wait_for_queue(namespace, 1)
    box.wait_until_empty()
    box.arrivals.delete(namespace)
    fill(box, base + 10 * SECOND, 1)
    box.publisher.wake()
    assert len(box.arrivals.wait_for_queue(namespace, 1)) == 1
    box.wait_until_empty()
    assert box.outcomes().count("published") == 2


@pytest.mark.parametrize("fault", ["no exchange", "another queue", "a full queue", "a header AMQP has no type for"])
def test_a_row_that_the_broker_refuses_stays_and_the_others_pass(box, base, namespace, fault):
    options = {"queue": f"{namespace}.bad"}
    match fault:
        case "no exchange":
            options = {"exchange": f"{namespace}.nowhere", "routing_key": "r"}
        case "another queue":
            box.arrivals.declare(f"{namespace}.bad", durable=False)
        case "a full queue":
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            box.app.amqp.queues.add(Queue(f"{namespace}.bad", queue_arguments=full))
            fill(box, base, 1, "filler", **options)
        case _:
            options = {"headers": {"huge": 2**70}}
    before = fill(box, base, 70, "before")
    fill(box, base, 1, "bad", **options)
    after = fill(box, base, 70, "after")
    box.publisher.signals.refused.listen()
    box.publisher.start()

    box.publisher.signals.refused.wait(20)
    until(lambda: box.rows == 1, at_most=20, what="all rows but one to leave")
    arrived = ticks(box.arrivals.take(namespace))
    assert list(dict.fromkeys(arrived)) == [*before, *after]
    assert "is not published" in box.publisher.trouble
    (row,) = box.fence.client.xrange(box.fence.keys.outbox)
    assert json.loads(row[1]["message"])["entry"] == "bad"


def test_a_refused_row_is_published_once_its_fault_is_mended(box, base, namespace, monkeypatch):
    monkeypatch.setattr(outboxes, "REFUSED_SECONDS", 0.2)
    box.arrivals.declare(f"{namespace}.bad", durable=False)
    bad = fill(box, base, 1, "bad", queue=f"{namespace}.bad")
    box.publisher.signals.refused.listen()
    box.publisher.start()
    box.publisher.signals.refused.wait(20)
    box.arrivals.delete(f"{namespace}.bad")
    box.wait_until_empty()
    assert ticks(box.arrivals.take(f"{namespace}.bad")) == bad
    until(lambda: box.publisher.trouble is None, what="the end of the trouble")


def test_a_row_that_cannot_be_read_stays_and_the_others_pass(box, base, namespace):
    for text in ("rubbish", "[]", '{"version": 2}', '{"version": 1, "base64": true, "body": "%"}'):
        box.fence.client.xadd(box.fence.keys.outbox, {"message": text})
    box.fence.client.xadd(box.fence.keys.outbox, {"other": "field"})
    good = fill(box, base, 1)
    box.publisher.start()
    assert ticks(box.arrivals.wait_for_queue(namespace, 1)) == good
    until(lambda: box.rows == 5, what="the good row to leave")
    assert "cannot be read" in box.publisher.trouble


# --- the broker is away


def test_rows_wait_while_the_broker_is_down(redis_url, rabbitmq_url, namespace):
    with bench(redis_url, rabbitmq_url, namespace, broker_url="amqp://guest:guest@127.0.0.1:1//") as box:
        fill(box, (box.fence.now() // SECOND - 100) * SECOND, 3)
        box.publisher.signals.troubled.listen()
        box.publisher.start()
        assert "does not take messages" in box.publisher.signals.troubled.wait(20)
        assert "guest" not in box.publisher.trouble
        assert box.rows == 3
        box.app.conf.broker_url = rabbitmq_url
        assert len(box.arrivals.wait_for_queue(namespace, 3)) == 3
        box.wait_until_empty()
        until(lambda: box.publisher.trouble is None, what="the end of the trouble")


def test_a_confirm_that_does_not_come_is_given_up(box, base, namespace, monkeypatch):
    monkeypatch.setattr(outbox_sending, "CONFIRM_SECONDS", 0.1)
    monkeypatch.setattr(outbox_sending.Sender, "_on_ack", lambda *_: None)
    fill(box, base, 1)
    box.publisher.signals.troubled.listen()
    box.publisher.start()
    assert "were not confirmed" in box.publisher.signals.troubled.wait(20)
    assert box.rows == 1


def test_a_full_outbox_makes_emission_wait(redis_url, rabbitmq_url, namespace):
    with bench(redis_url, rabbitmq_url, namespace, limit=3) as box:
        base = (box.fence.now() // SECOND - 100) * SECOND
        fill(box, base, 2)
        box.publisher.check_room()
        fill(box, base + 10 * SECOND, 1)
        with pytest.raises(OutboxFull, match="3 messages wait"):
            box.publisher.check_room()
        seen = look(box.fence.client, box.fence.keys)
        assert seen.rows == 3
        assert abs(seen.oldest - box.fence.now() / SECOND) < 60


def test_f15_lost_answers_of_redis_lose_and_double_nothing(box, base, namespace, monkeypatch):
    fill(box, base, 3)
    box.publisher._step(box.fence.term)
    box.publisher._collect(5)
    real, failed = box.publisher._client.execute_command, []

    def broken(*args, **options):
        answer = real(*args, **options)
        if len(failed) < 2:
            failed.append(args)
            raise redis.exceptions.ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(box.publisher._client, "execute_command", broken)
    box.publisher.start()
    box.wait_until_empty()
    assert len(failed) == 2
    assert len(box.arrivals.take(namespace)) == 3, "each once: what was confirmed is remembered"
    assert box.outcomes().count("published") == 3
