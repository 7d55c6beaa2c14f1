"""Extra runs: asked for as data, emitted once by whoever leads, in one step with the removal of the request."""

import json
from itertools import count

import pytest
from celery import Celery

from fencebeat.clock import SystemClock
from fencebeat.entries import Entry
from fencebeat.errors import ClockRefused, Fenced, StoreUnknown, TooMany, UnknownEntry, UnusableRecord
from fencebeat.guard import GuardedTask
from fencebeat.render import Renderer
from fencebeat.requests import BATCH, Request, Requests
from fencebeat.schedules import read_schedule_text
from fencebeat.ticks import task_id
from tests.support.fences import SECOND


class LookingClock(SystemClock):
    """The host's wall clock; an hour passes between two looks at the elapsed time."""

    def __init__(self):
        self.hours = count()
        self.ahead = 0.0

    def elapsed(self):
        return next(self.hours) * 3600.0

    def wall(self):
        return super().wall() + self.ahead


def work():
    """Does nothing."""


@pytest.fixture
def app(redis_url):
    with Celery("requests", broker=redis_url, set_as_current=False) as made:
        made.task(name="guarded.work", base=GuardedTask, shared=False)(work)
        made.finalize()
        yield made


@pytest.fixture
def clock():
    return LookingClock()


class Desk:
    """The leader's side with the entry `e`, whose queue is named like the namespace."""

    def __init__(self, requests, fence, flags):
        self.requests, self.fence, self.flags = requests, fence, flags

    def serve(self, known=None):
        return self.requests.serve(self.fence.term, known or self.known)

    def known(self, name):
        """The leader's memory: what the store has."""
        text = self.fence.client.hget(self.fence.keys.entries, name)
        return Entry.of_definition(name, text) if text else None


@pytest.fixture
def desk(app, fence, schedule, clock):
    queue = fence.keys.namespace
    line = {"task": "t", "schedule": read_schedule_text("every 3600 s"), "args": [1], "options": {"queue": queue}}
    schedule.add("e", line)
    renderer = Renderer(app, queue, 2.0)
    flags = {"generation": None}
    requests = Requests(
        fence.client,
        fence.keys,
        renderer,
        carrier="lock",
        clock=clock,
        tolerance=2.0,
        flags_generation=lambda: flags["generation"],
    )
    yield Desk(requests, fence, flags)
    renderer.close()


def messages(fence):
    return [json.loads(text) for text in reversed(fence.client.lrange(fence.keys.namespace, 0, -1))]


def waiting(fence):
    return fence.client.hgetall(fence.keys.requests)


def test_an_entry_run_now_is_emitted_once_beside_its_schedule(fence, schedule, desk) -> None:
    mark, due = fence.mark(), fence.client.zscore(fence.keys.due, "e")
    request = schedule.run_now("e")
    assert messages(fence) == [], "asking runs nothing"
    assert desk.serve() is False
    desk.serve()
    (message,) = messages(fence)
    headers = message["headers"]
    assert headers["fencebeat_tick"] == request.id
    assert headers["fencebeat_tick"].startswith("e!now@")
    assert headers["fencebeat_token"] == fence.term.token
    assert headers["id"] == task_id(fence.keys.namespace, "e!now", request.fire_time)
    assert (fence.mark(), fence.client.zscore(fence.keys.due, "e")) == (mark, due)
    assert waiting(fence) == {}
    record = fence.audit()[-1]
    assert (record["outcome"], record["entry"], record["token"]) == ("extra", "e", "100")
    assert (record["task_id"], record["reason"]) == (headers["id"], "asked for by a test")
    assert "fire_time" not in record, "it is no fire time of the schedule: recovery must not take it for a mark"


def test_a_paused_entry_may_be_run_by_hand(fence, schedule, desk) -> None:
    schedule.pause("e")
    schedule.run_now("e")
    desk.serve()
    assert len(messages(fence)) == 1
    assert fence.client.zscore(fence.keys.due, "e") is None


def test_a_backfill_emits_the_ticks_own_identities_up_to_the_mark(fence, schedule, desk) -> None:
    hour = 3600 * SECOND
    base = fence.now() // hour * hour
    fence.client.hset(fence.keys.last, "e", base - hour)
    times = [base - n * hour for n in (4, 3, 2, 1)]
    assert schedule.past("e", times[0], base + 10 * hour) == times
    assert [request.fire_time for request in schedule.backfill("e", times[0], base + 10 * hour)] == times
    schedule.backfill("e", times[0], times[1])  # asked twice it is one
    desk.serve()
    assert [m["headers"]["fencebeat_fire_time"] for m in messages(fence)] == times
    assert [m["headers"]["id"] for m in messages(fence)] == [task_id(fence.keys.namespace, "e", at) for at in times]
    assert fence.mark() == base - hour
    records = fence.audit()[-4:]
    assert {(r["outcome"], r["reason"]) for r in records} == {("emitted", "backfill by a test")}
    assert [int(r["fire_time"]) for r in records] == times


def test_a_backfill_is_bounded(fence, schedule, desk) -> None:
    fence.client.hset(fence.keys.last, "e", fence.now())
    before = fence.everything()
    with pytest.raises(TooMany, match="more than 10"):
        schedule.backfill("e", 0, fence.now(), limit=10)
    with pytest.raises(TooMany):
        schedule.past("e", 0, fence.now())
    assert fence.everything() == before


@pytest.mark.parametrize("ask", ["run_now", "past", "backfill"])
def test_nothing_is_asked_for_an_unknown_entry(fence, schedule, ask) -> None:
    before = fence.everything()
    with pytest.raises(UnknownEntry):
        getattr(schedule, ask)("nothing", *(() if ask == "run_now" else (0, 1)))
    assert fence.everything() == before


def test_a_large_backfill_goes_out_in_batches_in_order(fence, schedule, desk) -> None:
    hour = 3600 * SECOND
    mark = fence.now() // hour * hour
    fence.client.hset(fence.keys.last, "e", mark)
    schedule.backfill("e", mark - BATCH * hour, mark)
    assert desk.serve() is True
    assert len(messages(fence)) == BATCH
    assert desk.serve() is False
    fire_times = [m["headers"]["fencebeat_fire_time"] for m in messages(fence)]
    assert fire_times == list(range(mark - BATCH * hour, mark + 1, hour))


def test_a_lost_reply_emits_it_once(fence, schedule, desk, monkeypatch) -> None:
    schedule.run_now("e")
    kept = waiting(fence)
    desk.serve()
    monkeypatch.setattr(fence.client, "hgetall", lambda _: kept)  # what a leader had read before it heard of that
    monkeypatch.setattr(fence.client, "hlen", lambda _: 1)
    desk.serve()
    assert len(messages(fence)) == 1
    assert [r["outcome"] for r in fence.audit()].count("extra") == 1


def nothing_happened(fence, before):
    assert messages(fence) == []
    now = {key: value for key, value in fence.everything().items() if not key.startswith("_kombu")}
    assert now == before


@pytest.mark.parametrize("what", ["token", "nonce", "lock"])
def test_s4_a_former_leader_answers_no_request(fence, schedule, desk, what) -> None:
    schedule.run_now("e")
    if what == "lock":
        fence.client.set(fence.keys.lock, "somebody else")
    else:
        fence.client.hset(fence.keys.term, what, "101")
    before = fence.everything()
    with pytest.raises(Fenced):
        desk.serve()
    nothing_happened(fence, before)


@pytest.mark.parametrize("record", ["entries", "last", "flags"])
def test_nothing_is_answered_by_a_store_that_lost_its_past(fence, schedule, desk, record) -> None:
    schedule.run_now("e")
    fence.client.hdel(getattr(fence.keys, record), "generation")
    before = fence.everything()
    with pytest.raises(StoreUnknown):
        desk.serve()
    nothing_happened(fence, before)


@pytest.mark.parametrize(
    ("seen", "renewed"),
    [(2, 0), (1, -3), (1, 3), (1, None)],  # generation below the sender's; old; ahead; none
)
def test_nothing_is_answered_under_flags_that_nobody_renews(fence, schedule, desk, seen, renewed) -> None:
    schedule.run_now("e")
    if renewed is not None:
        fence.client.hset(fence.keys.flags, "renewed", fence.now() + renewed * SECOND)
    desk.flags["generation"] = seen
    before = fence.everything()
    with pytest.raises(StoreUnknown):
        desk.serve()
    nothing_happened(fence, before)


def test_fresh_flags_let_a_request_through(fence, schedule, desk) -> None:
    schedule.run_now("e")
    fence.client.hset(fence.keys.flags, "renewed", fence.now())
    desk.flags["generation"] = 1
    desk.serve()
    assert len(messages(fence)) == 1


def test_a_leader_whose_clock_is_ahead_answers_no_request(fence, schedule, desk, clock) -> None:
    schedule.run_now("e")
    clock.ahead = 5.0
    before = fence.everything()
    with pytest.raises(ClockRefused):
        desk.serve()
    nothing_happened(fence, before)


@pytest.mark.parametrize("scope", ["all", "entry:e", "queue"])
def test_a_stop_drops_the_request_and_says_so(fence, schedule, desk, scope) -> None:
    scope = f"queue:{fence.keys.namespace}" if scope == "queue" else scope
    fence.client.hset(fence.keys.flags, scope, "rubbish is no permission")
    schedule.run_now("e")
    desk.serve()
    assert messages(fence) == []
    assert waiting(fence) == {}
    record = fence.audit()[-1]
    assert record["outcome"] == "paused"
    assert record["reason"].startswith(scope)


def test_a_request_waits_until_the_leader_knows_the_version_that_is_stored(fence, schedule, desk) -> None:
    old = desk.known("e")
    schedule.run_now("e")
    schedule.edit("e", args=[2])
    desk.serve(lambda _: old)  # a memory that lags
    assert messages(fence) == []
    assert len(waiting(fence)) == 1
    desk.serve()
    assert len(messages(fence)) == 1


def test_a_request_for_an_entry_that_is_gone_is_dropped_after_a_while(fence, schedule, desk, clock) -> None:
    schedule.run_now("e")
    schedule.remove("e")
    desk.serve()
    assert len(waiting(fence)) == 1, "the leader may not know it yet"
    (identity, text), *_ = waiting(fence).items()
    old = {**json.loads(text), "at": fence.now() - 11 * SECOND}
    fence.client.hset(fence.keys.requests, identity, json.dumps(old))
    desk.serve()
    assert waiting(fence) == {}
    assert (fence.audit()[-1]["outcome"], fence.audit()[-1]["reason"]) == ("failed", "the leader knows no such entry")


@pytest.mark.parametrize(
    "rubbish", ["rubbish", "[]", '{"entry": "e"}', '{"entry":"e","kind":"x","fire_time":1,"by":"","at":1}']
)
def test_a_request_that_cannot_be_read_is_dropped_and_the_others_go_on(fence, schedule, desk, rubbish) -> None:
    fence.client.hset(fence.keys.requests, "bad", rubbish)
    schedule.run_now("e")
    desk.serve()
    assert len(messages(fence)) == 1
    assert waiting(fence) == {}
    assert "failed" in [r["outcome"] for r in fence.audit()]


def test_a_request_whose_message_cannot_be_made_is_dropped_and_the_others_go_on(fence, schedule, desk) -> None:
    schedule.add("bad", {"task": "t", "schedule": 60, "options": {"serializer": "nowhere"}})
    schedule.run_now("bad")
    schedule.run_now("e")
    desk.serve()
    assert len(messages(fence)) == 1
    assert waiting(fence) == {}
    assert "cannot be emitted" in next(r["reason"] for r in fence.audit() if r["outcome"] == "failed")


def test_a_queue_that_is_no_list_refuses_the_request(fence, schedule, desk) -> None:
    schedule.run_now("e")
    desk.serve()
    fence.client.delete(fence.keys.namespace)
    fence.client.set(fence.keys.namespace, "rubbish")
    schedule.run_now("e")
    desk.serve()
    assert fence.client.get(fence.keys.namespace) == "rubbish"
    assert fence.audit()[-1]["outcome"] == "refused"
    assert waiting(fence) == {}


def test_a_request_that_the_broker_does_not_take_waits_behind_the_others_and_not_for_ever(
    fence, schedule, desk, clock
) -> None:
    schedule.add("bad", {"task": "t", "schedule": 60, "options": {"queue": f"{fence.keys.namespace}-bad"}})
    fence.client.set(f"{fence.keys.namespace}-bad", "rubbish")
    schedule.run_now("bad")
    schedule.backfill("e", 1, 3600 * SECOND)
    desk.serve()
    assert len(messages(fence)) == 1
    assert [json.loads(text)["entry"] for text in waiting(fence).values()] == ["bad"]
    clock.ahead = -3700.0  # so that the script does not refuse us first
    desk.serve()
    assert waiting(fence) == {}
    assert "no broker took it" in fence.audit()[-1]["reason"]


def test_requests_that_no_broker_takes_do_not_hold_up_the_others(fence, schedule, desk) -> None:
    schedule.add("bad", {"task": "t", "schedule": 60, "options": {"queue": f"{fence.keys.namespace}-bad"}})
    fence.client.set(f"{fence.keys.namespace}-bad", "rubbish")
    schedule.backfill("bad", 60 * SECOND, BATCH * 60 * SECOND)  # as many as one look answers
    desk.serve()
    schedule.run_now("e")
    desk.serve()
    assert len(messages(fence)) == 1
    assert len(waiting(fence)) == BATCH


def test_a_record_of_another_type_is_named(fence, schedule, desk) -> None:
    schedule.run_now("e")
    fence.client.delete(fence.keys.audit)
    fence.client.set(fence.keys.audit, "rubbish")
    with pytest.raises(UnusableRecord, match="audit"):
        desk.serve()
    assert messages(fence) == []


def test_a_guarded_task_is_recorded_as_such(fence, schedule, desk) -> None:
    schedule.add("g", {"task": "guarded.work", "schedule": 60, "options": {"queue": fence.keys.namespace}})
    schedule.run_now("g")
    desk.serve()
    assert fence.audit()[-1]["guarded"] == "1"


def test_the_leader_looks_once_a_second(fence, schedule, desk, clock, monkeypatch) -> None:
    monkeypatch.setattr(clock, "elapsed", lambda: 10.0)
    desk.serve()
    schedule.run_now("e")
    desk.serve()
    assert messages(fence) == []
    monkeypatch.setattr(clock, "elapsed", lambda: 11.0)
    desk.serve()
    assert len(messages(fence)) == 1


def test_a_request_is_read_back_as_it_was_stored() -> None:
    request = Request("e", "backfill", 60 * SECOND, "me", 7)
    assert Request.of(request.text) == request
    assert request.id == "e@60"
