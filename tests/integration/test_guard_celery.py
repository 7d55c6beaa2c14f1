"""A guarded task is a Celery task: results, retries, limits, chords, queues, and tasks of somebody else."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from kombu.common import Broadcast

from tests.support.claims import tick
from tests.support.guarding import ROOT, Place
from tests.support.servers import database, running
from tests.support.waiting import until


@pytest.fixture(scope="module")
def place(tmp_path_factory, postgres_url):
    """A broker of its own, and one worker for all tests here: each has its own ticks."""
    folder = tmp_path_factory.mktemp("guarded")
    with (
        running("valkey", tmp_path_factory.mktemp("guarded-valkey")) as addresses,
        database(postgres_url) as url,
        Place(folder, addresses.redis_url, url) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def worker(place):
    made = place.worker("worker", "-c", "2", "--queues", "celery,other")
    made.wait_for("ready")
    return made


def hold_until_postponed(place, worker, one, times):
    """Somebody else's claim, extended until messages of this worker have met it so often; then it is over."""

    def met():
        assert place.claims.extend(one.task_id, 1, 1.0), "the claim ended under the test's hands"
        return len(worker.said("claim.postponed", task=one.task_id)) >= times

    until(met, at_most=60, what=f"{times} x claim.postponed; see {worker.log}")
    place.claims.extend(one.task_id, 1, 0.0)


def test_a_guarded_task_has_its_result(place, worker):
    one = place.send("effect")

    assert place.result(one.task_id) == ("SUCCESS", "done")

    assert place.outcome(one) == "succeeded"
    [seen] = place.effects(one.task_id)
    assert (seen["entry"], seen["token"], seen["attempt"]) == (one.entry, one.token, 1)


def test_a_message_without_a_tick_runs_unguarded(place, worker):
    sent = place.app.send_task("effect")

    assert place.result(sent.id) == ("SUCCESS", "done")

    [seen] = place.effects(sent.id)
    assert (seen["entry"], seen["attempt"]) == (None, None)
    assert place.claims.look([sent.id]) == {}


def test_an_unguarded_task_knows_its_tick_too(place, worker):
    one = place.send("unguarded")

    assert place.result(one.task_id) == ("SUCCESS", None)
    [seen] = place.effects(one.task_id)
    assert (seen["entry"], seen["token"], seen["attempt"]) == (one.entry, one.token, 0)
    assert place.outcome(one) is None


@pytest.mark.parametrize("throw", [True, False])
def test_a_retry_is_the_same_tick_as_its_next_attempt(place, worker, throw):
    one = place.send("retrying", kwargs={"times": 2, "throw": throw})

    assert place.wait_until_closed(one) == "succeeded"

    [seen] = place.effects(one.task_id)
    assert (seen["retries"], seen["attempt"], seen["entry"]) == (2, 3, one.entry)
    if throw:
        assert place.said("claim.postponed", task=one.task_id) == [], "each retry found the claim free"


def test_a_tick_fails_when_its_retries_are_used_up(place, worker):
    one = place.send("retrying", kwargs={"times": 9})

    assert place.wait_until_closed(one) == "failed"

    assert place.result(one.task_id)[0] == "FAILURE"
    assert place.effects(one.task_id) == []
    assert len(place.said("claim.taken", task=one.task_id)) == 3


def test_a_failure_closes_the_tick_and_a_copy_leaves_the_result_alone(place, worker):
    one = place.send("failing")
    status, error = place.result(one.task_id)
    assert (status, type(error)) == ("FAILURE", ArithmeticError)

    place.send("failing", of=one)

    worker.wait_for("claim.duplicate", task=one.task_id)
    assert place.outcome(one) == "failed"
    assert place.result(one.task_id)[0] == "FAILURE"
    assert len(place.effects(one.task_id)) == 1


@pytest.mark.parametrize("task", ["hard", "soft"])
def test_a_time_limit_ends_the_tick_as_failed(place, worker, task):
    one = place.send(task)

    assert place.wait_until_closed(one) == "failed"

    assert place.result(one.task_id)[0] == "FAILURE"
    assert place.claims.look([one.task_id])[one.task_id].attempt == 1


def test_a_chord_in_a_guarded_task_ends(place, worker):
    one = place.send("chording")

    _, identity = place.result(one.task_id)

    assert place.result(identity) == ("SUCCESS", 12)
    assert place.outcome(one) == "succeeded"


def test_a_message_that_is_put_back_is_the_same_message(place, worker):
    one = tick()
    place.claims.claim(one, "somebody else", 2.0)
    expires = datetime.now(UTC) + timedelta(hours=1)

    place.send("effect", of=one, queue="other", priority=6, expires=expires, time_limit=33, headers={"theirs": "kept"})

    hold_until_postponed(place, worker, one, times=1)
    assert place.wait_until_closed(one) == "succeeded"
    [seen] = place.effects(one.task_id)
    assert seen["attempt"] == 2
    assert (seen["delivery"]["routing_key"], seen["delivery"]["priority"]) == ("other", 6)
    assert seen["headers"]["theirs"] == "kept"
    assert seen["headers"]["fencebeat_tick"] == f"{one.entry}@{one.fire_time // 1_000_000}"
    assert (seen["limits"][0], seen["retries"]) == (33, 0), "waiting for a claim is none of the task's retries"


def test_waiting_for_a_claim_has_no_end_of_its_own(place, worker):
    one = tick()
    place.claims.claim(one, "somebody else", 2.0)
    place.send("retrying", of=one, kwargs={"times": 0})  # two retries; more than that are waited for

    hold_until_postponed(place, worker, one, times=4)

    assert place.wait_until_closed(one) == "succeeded"
    assert len(place.effects(one.task_id)) == 1


def test_tasks_of_somebody_else_are_guarded_by_name(place, worker):
    plain, guarded = place.send("theirs.one"), place.send("theirs.two")

    assert place.wait_until_closed(guarded) == "succeeded"
    [seen] = until(lambda: place.effects(plain.task_id), at_most=60)

    assert seen["guarded"] is False
    assert place.outcome(plain) is None
    [seen] = place.effects(guarded.task_id)
    assert seen["guarded"] is True
    assert seen["max_retries"] == 11, "its other annotations hold"


@pytest.mark.slow
def test_a_broadcast_runs_on_each_worker(place):
    for name in ("left", "right"):
        place.worker(name, "-c", "1", "--queues", "everyone", WITH_BROADCAST="1").wait_for("ready", at_most=60)

    everyone = Broadcast("everyone")
    with place.app.connection() as connection:  # a connection that has not declared it publishes to nobody
        everyone.exchange(connection.default_channel).declare()
        producer = place.app.amqp.Producer(connection, auto_declare=False)
        one = place.send("effect", queue=everyone, routing_key="everyone", producer=producer)

    until(lambda: len(place.effects(one.task_id)) == 2, at_most=60, what="both have run it")
    assert place.outcome(one) is None


def test_a_task_registered_before_is_guarded_at_once_and_acknowledges_late():
    code = """
from celery import Celery
from fencebeat.guard import GuardedTask, guard
app = Celery("a", broker="memory://")
@app.task(name="before")
def before(): return "ran"
@app.task(name="other")
def other(): pass
app.finalize()
guard(app, ["before", "after"])
@app.task(name="after")
def after(): pass
import json
tasks = (before, other, after)
print(json.dumps({t.name: [isinstance(t, GuardedTask), t.acks_late, t.reject_on_worker_lost] for t in tasks}))
assert before() == "ran" and before.apply().get() == "ran"
"""
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert json.loads(run.stdout) == {"before": [True] * 3, "after": [True] * 3, "other": [False, False, None]}
