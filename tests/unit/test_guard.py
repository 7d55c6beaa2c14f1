"""The guard by itself: what it does when its store fails, and what it refuses."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from queue import Queue

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore
from celery.signals import worker_ready

from fencebeat.claims import Claimed
from fencebeat.claims.heartbeat import Heartbeat
from fencebeat.claims.memory import MemoryClaims
from fencebeat.claims.opening import ClaimSettings, claims_of
from fencebeat.claims.postgres import PostgresClaims
from fencebeat.claims.redis import RedisClaims
from fencebeat.clock import ManualClock
from fencebeat.errors import ClaimLost, ImpossibleConfiguration, NotInPostgres, StoreUnreachable
from fencebeat.guard import CurrentTick, GuardedTask, _Run, current_tick, tick_of
from tests.support.claims import tick

DOWN = StoreUnreachable(store="a store", seconds=1, why="test", address="nowhere")


class Flaky(MemoryClaims):
    """A store whose next calls of `close` fail."""

    def __init__(self, clock, failures, error=DOWN):
        super().__init__(clock)
        self.clock, self.failures, self.error, self.asked = clock, failures, error, 0

    def close(self, *facts):
        self.asked += 1
        self.clock.advance(1.0)
        if self.asked <= self.failures:
            raise self.error
        return super().close(*facts)


def run_of(store, one, clock):
    run = _Run(GuardedTask(), one, store, ClaimSettings("a store", "test", 10.0), clock=clock)
    run.heartbeat.lost.wait = lambda _seconds: None
    return run


def claimed(failures, error=DOWN):
    clock = ManualClock()
    store, one = Flaky(clock, failures, error), tick()
    assert store.claim(one, "here", 10.0) == Claimed(1)
    return store, run_of(store, replace(one, attempt=1), clock)


def test_closing_is_tried_again_while_the_store_does_not_answer():
    store, run = claimed(failures=3)

    run.close("succeeded")

    assert store.asked == 4
    assert store.look([run.tick.task_id])[run.tick.task_id].outcome == "succeeded"


def test_closing_is_given_up_after_a_lease_and_the_effect_stands(caplog):
    store, run = claimed(failures=1_000)

    run.close("succeeded")  # no error: what the task did is done

    assert store.asked == 11
    assert "its claim was not closed" in caplog.text
    assert store.look([run.tick.task_id])[run.tick.task_id].outcome is None, "a further copy would run again"


def test_a_refusal_of_the_store_is_not_asked_again():
    store, run = claimed(failures=1_000, error=ImpossibleConfiguration(rules="test"))

    run.close("succeeded")

    assert store.asked == 1


def test_a_refused_close_puts_the_message_back_and_drops_the_result(monkeypatch):
    store, run = claimed(failures=0)
    store._clock.advance(11.0)
    assert store.claim(run.tick, "there", 10.0) == Claimed(2)
    back = []

    def put_back(_task, one, seconds):
        back.append((one.task_id, seconds))
        raise Ignore

    monkeypatch.setattr("fencebeat.guard._put_back", put_back)
    with pytest.raises(Ignore):
        run.close("succeeded")

    assert back == [(run.tick.task_id, 9.0)], "for as long as the other attempt may take"
    assert store.look([run.tick.task_id])[run.tick.task_id].outcome is None


def test_a_heartbeat_goes_on_after_a_failed_call_and_ends_when_the_claim_is_lost():
    answers, asked = Queue(), Queue()

    def extend():
        asked.put(None)
        answer = answers.get(timeout=10)
        if isinstance(answer, Exception):
            raise answer
        return answer

    for answer in (True, DOWN, True, False):
        answers.put(answer)
    with Heartbeat(extend, every=0.01) as heart:
        assert heart.lost.wait(10)
        heart._thread.join(10)

    assert asked.qsize() == 4
    assert not heart._thread.is_alive()


def test_a_stopped_heartbeat_extends_no_more_and_waits_for_the_call_under_way():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def extend():
        begun.set()
        go_on.wait(10)
        done.append("extended")
        return True

    heart = Heartbeat(extend, every=0.01)
    with heart:
        assert begun.wait(10)
        threading.Timer(0.05, go_on.set).start()
        heart.stop()
        assert done == ["extended"], "a late extension must not come after what follows"
        heart._thread.join(10)

    assert done == ["extended"]


def test_outside_of_a_task_there_is_no_tick():
    assert current_tick() is None


@pytest.mark.parametrize("wrong", [{"fencebeat_entry": None}, {"fencebeat_fire_time": "1"}, {"fencebeat_token": None}])
def test_headers_that_name_no_tick_are_no_tick(wrong):
    headers = {"id": "x", "fencebeat_entry": "nightly", "fencebeat_fire_time": 1, "fencebeat_token": 2}
    assert tick_of(headers).entry == "nightly"

    assert tick_of({**headers, **wrong}) is None


def test_closing_in_a_transaction_needs_claims_in_postgres():
    _, run = claimed(failures=0)

    with pytest.raises(NotInPostgres):
        CurrentTick(**vars(run.tick), claim=run).close(object())
    with pytest.raises(NotInPostgres):
        CurrentTick(**vars(run.tick)).close(object())


def test_closing_in_a_transaction_is_refused_where_another_attempt_has_the_claim():
    store, run = claimed(failures=0)
    asked = []
    store.close_in = lambda *facts: asked.append(facts)  # answers None: no row of this attempt

    with pytest.raises(ClaimLost):
        CurrentTick(**vars(run.tick), claim=run).close("a connection")

    assert asked == [("a connection", run.tick.task_id, 1, "succeeded")]


def test_the_setting_names_the_store_which_is_made_once(monkeypatch):
    kinds = {"postgresql://h/db": PostgresClaims, "redis://h/0": RedisClaims, f"{__name__}:made": MemoryClaims}
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(made=made))
    app = Celery(broker="memory://", set_as_current=False)
    for url, kind in kinds.items():
        app.conf.update(fencebeat_claims=url, fencebeat_namespace="mine")
        settings, store = claims_of(app)
        assert type(store) is kind
        assert settings.namespace == "mine"
        assert claims_of(app)[1] is store


def made(namespace):
    assert namespace == "mine"
    return MemoryClaims()


class Consumer:
    """What sends `worker_ready`."""

    def __init__(self, app):
        self.app = app


def test_a_worker_says_at_its_start_that_its_guarded_tasks_have_no_store(caplog):
    app = Celery(broker="memory://", set_as_current=False)

    def said_at_the_start():
        caplog.clear()
        worker_ready.send(sender=Consumer(app))
        return [record.getMessage() for record in caplog.records if record.name == "fencebeat.guard"]

    assert said_at_the_start() == []

    @app.task(name="charge", base=GuardedTask, shared=False)
    def charge():
        pass

    (message,) = said_at_the_start()
    assert "guarded tasks cannot run here, their ticks are put back: charge" in message
    assert "fencebeat_claims must name a store" in message
    app.conf.fencebeat_claims = "redis://h/0"
    assert said_at_the_start() == []


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({}, "fencebeat_claims must name a store"),
        ({"fencebeat_claims": "mysql://me:s3cret@h/db"}, "no store of kind mysql://"),
        ({"fencebeat_claims": "no.such:thing"}, "no.such:thing"),
        ({"fencebeat_claims": "redis://h/0", "fencebeat_claim_lease": 0.5}, "1 or more"),
        ({"fencebeat_claims": "redis://h/0", "fencebeat_claim_lease": True}, "1 or more"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_without_its_secrets(conf, sentence):
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.update(conf)

    with pytest.raises(ImpossibleConfiguration, match=sentence) as refusal:
        claims_of(app)

    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(("seconds", "begins"), [(-1, False), (3600, True), (None, True)])
def test_a_message_that_expired_while_a_worker_kept_it_is_not_begun(monkeypatch, seconds, begins):
    store, one, ran = MemoryClaims(ManualClock()), tick(), []
    monkeypatch.setattr("fencebeat.guard.claims_of", lambda _app: (ClaimSettings("a store", "test", 10.0), store))
    at = datetime.now(UTC) + timedelta(seconds=seconds) if seconds is not None else None
    headers = {"id": one.task_id, "expires": at and at.isoformat(), "is_eager": False}
    named = {f"fencebeat_{name}": getattr(one, name) for name in ("entry", "fire_time", "token")}
    with Celery("expiring", broker="memory://", set_as_current=False) as app:

        def work():
            ran.append(1)

        task = app.task(name="t", base=GuardedTask, shared=False, ignore_result=True)(work)
        app.finalize()
        build_tracer("t", task, app=app)(one.task_id, (), {}, headers | named)
    assert bool(ran) is begins
    assert bool(store.look([one.task_id])) is begins, "a backfill may still run what has expired"
