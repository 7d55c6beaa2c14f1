"""An entry that must not overlap, with a real worker, its claims in Postgres, and rounds as time goes by."""

import pytest
import redis
from celery import Celery

from fencebeat.entries import read_schedule
from fencebeat.guard import GuardedTask
from fencebeat.overlap import Overlap
from tests.support.fences import Fence
from tests.support.guarding import Place
from tests.support.leading import drain, leader
from tests.support.waiting import until

NAMESPACE = "guarded"  # of `tests.support.guarded`


def effect(gate):
    """Only the worker runs it."""


@pytest.fixture
def place(tmp_path, redis_url, database_url):
    with Place(tmp_path, redis_url, database_url) as made:
        yield made


@pytest.fixture
def fence(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=10, socket_connect_timeout=5) as client:
        made = Fence.sealed(client, NAMESPACE)
        client.pexpire(made.keys.lock, 600_000)
        yield made


@pytest.fixture
def rounds(place, fence):
    """Of one entry, each second, whose task runs until its gate opens."""
    line = {"task": "effect", "schedule": 1.0, "kwargs": {"gate": "gate"}, "fencebeat": {"overlap": "skip"}}
    entries, _ = read_schedule({"one": line})
    with Celery("beat", broker=place.redis_url, set_as_current=False) as app:
        app.conf.update(fencebeat_namespace=NAMESPACE, fencebeat_claims=place.claims_url)
        app.task(name="effect", base=GuardedTask, shared=False)(effect)
        app.finalize()
        with leader(app, fence, entries, overlap=Overlap(app, fence.client, fence.keys)) as made:
            yield made


def records(rounds, fence, outcome):
    """Audit records of this outcome, after a round."""
    drain(rounds, fence.term)
    return [record for record in fence.audit() if record["outcome"] == outcome]


@pytest.mark.slow
def test_while_a_worker_runs_the_last_tick_none_is_sent_and_after_its_end_the_next_one_is(place, fence, rounds) -> None:
    [first] = until(lambda: records(rounds, fence, "emitted"), what="the first tick")
    until(lambda: records(rounds, fence, "skipped"), what="a tick that comes while it waits")
    assert "waits for a worker" in records(rounds, fence, "skipped")[0]["reason"]

    worker = place.worker("worker", "-c", "2")
    worker.wait_for("started")
    running = until(
        lambda: [r for r in records(rounds, fence, "skipped") if "is run by" in r["reason"]],
        what="a tick that comes while it runs",
    )
    assert running
    assert len(records(rounds, fence, "emitted")) == 1

    place.open("gate")
    until(lambda: len(records(rounds, fence, "emitted")) > 1, what="the next tick")
    place.wait_for("claim.closed", task=first["task_id"])
    ids = [record["task_id"] for record in records(rounds, fence, "emitted")]
    worker.wait_for("effect", times=2)
    assert [one["task_id"] for one in place.effects()][:2] == ids[:2]
    assert [record for record in records(rounds, fence, "emitted") if "reason" in record] == []
