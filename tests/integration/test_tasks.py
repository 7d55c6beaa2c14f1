"""The tasks themselves: refused while stopped, quiet about passing faults, few wake-ups."""

import pytest
from celery import Celery

from tests.support.claims import tick
from tests.support.processes import worker
from tests.support.waiting import until
from tests.support.world import write_corpus


@pytest.fixture
def world(make_world, tmp_path):
    root = tmp_path / "few"
    root.mkdir()
    write_corpus(root, 12)
    made = make_world(root, "pgvector", claim_batch=2)
    made.root = root
    return made


@pytest.fixture
def app(world):
    app = Celery(broker=world.settings.redis_url)
    app.conf.task_default_queue = world.settings.namespace
    yield app
    app.close()


def stop(world, scope):
    world.services.switches.on(scope, "start", reason="test", author="test", origin="here")


def test_a_sync_wakes_workers_and_the_index_follows(world, app):
    with worker(world, "plain"):
        app.send_task("tasks.sync_source", ["docs"])
        until(lambda: world.ledger.progress(world.services.spec.target_id).indexed == 12, at_most=60)
    assert world.doctor().differences == 0


def test_a_stopped_queue_starts_no_task_and_its_messages_are_not_kept(world, app, redis_client):
    stop(world, f"queue:{world.settings.namespace}")
    with worker(world, "refusing") as running:
        app.send_task("tasks.sync_source", ["docs"])
        line = running.wait_for(kind="event", event="task.refused", at_most=60)
    assert line["task"] == "tasks.sync_source"
    assert world.ledger.progress(world.services.spec.target_id).documents == 0


def test_the_daily_purge_is_claimed_in_the_ledger_and_a_copy_of_it_is_dropped(world, app):
    one = tick("purge")
    headers = {"fencebeat_entry": one.entry, "fencebeat_fire_time": one.fire_time, "fencebeat_token": one.token}
    with worker(world, "purging") as running:
        for event in ("claim.closed", "claim.duplicate"):
            app.send_task("tasks.purge", task_id=one.task_id, headers=headers)
            running.wait_for(kind="event", event=event, at_most=60)
    assert len(running.said(event="claim.taken")) == 1
    with world.ledger.pool.connection() as connection:
        rows = connection.execute("SELECT tick_id::text, outcome, namespace FROM tick_claim").fetchall()
    assert rows == [(one.task_id, "succeeded", world.settings.namespace)]


def test_a_stopped_source_is_not_listed(world, app):
    stop(world, "source:acme/docs")
    with worker(world, "refusing") as running:
        app.send_task("tasks.sync_source", ["docs"])
        until(lambda: "'stopped': True" in running.log.read_text(), at_most=60, what="a refused sync")
    assert world.ledger.progress(world.services.spec.target_id).documents == 0


def test_an_unknown_source_is_one_clear_line_and_no_traceback(world, app):
    with worker(world, "refusing") as running:
        app.send_task("tasks.sync_source", ["nowhere"])
        until(lambda: "There is no source 'nowhere'" in running.log.read_text(), at_most=60, what="the refusal")
    assert "Traceback" not in running.log.read_text()


def test_sweeps_do_not_pile_up_wake_ups(world, app, redis_client):
    """Nobody takes from the queue that wake-ups go to: however often a sweep runs, it stays short."""
    world.sync()
    sweeps = f"{world.settings.namespace}-sweeps"
    with worker(world, "sweeping", queue=sweeps):
        for _ in range(20):
            app.send_task("tasks.sweep", queue=sweeps)
        until(lambda: redis_client.llen(sweeps) == 0, at_most=60, what="all sweeps taken")
        until(lambda: redis_client.hlen("unacked") == 0, at_most=30, what="all sweeps done")
    assert 1 <= redis_client.llen(world.settings.namespace) <= 16  # two pool children may look at the same moment
