"""The kill switch during indexing: no write begins more than two seconds after it, and frozen workers cannot commit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from control.effects import LedgerEffects
from fencebeat.clock import SystemClock
from fencebeat.flags import FlagKeeper
from tests.acceptance.test_index_follows import assert_equals_a_fresh_build
from tests.support.processes import batches, environment, worker
from tests.support.waiting import until
from tests.support.world import write_corpus

T = 2.0  # seconds after which no new effect begins (reliability: I8)
WATCH = 3.0  # seconds for which the counter is watched after that


@pytest.fixture(params=["opensearch", "pgvector"])
def kind(request):
    return request.param


def fencebeat(world, *arguments):
    """Run a command; its answer as JSON and its exit code."""
    done = subprocess.run(
        [Path(sys.executable).with_name("fencebeat"), *arguments, "--json"],
        env=environment(world),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def lead(world, redis_client):
    """What a beat does for workers: keep the copy of the switches fresh. Returns the running keeper."""
    keys = world.services.keys
    redis_client.hset(keys.flags, mapping={"generation": 0, "renewed": 0})
    keeper = FlagKeeper(LedgerEffects(world.services.pool, keys.namespace), world.services.broker.client(2.0), keys)
    keeper.start()
    return keeper


def effects(world):
    """Writes of the target by the store's own counter, and commits in the ledger."""
    with world.ledger.pool.connection() as conn:
        (commits,) = conn.execute("SELECT coalesce(sum(committed_epoch), 0) FROM doc_head").fetchone()
    return world.target.write_count(), int(commits)


def watch_for(seconds, look):
    """What `look` says at the start and at the end of a time."""
    clock = SystemClock()
    end = clock.elapsed() + seconds
    first = look()
    until(lambda: clock.elapsed() >= end, at_most=seconds + 5)
    return first, look()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_written_after_a_stop_and_it_converges_afterwards(make_world, tmp_path, redis_client):
    root = tmp_path / "many"
    root.mkdir()
    write_corpus(root, 60)
    world = make_world(root, "opensearch", claim_seconds=5.0, claim_batch=1)
    keeper = lead(world, redis_client)
    try:
        with worker(world, "stopped", failpoints="index.embed.after=sleep:0.8") as running:
            world.sync()
            from celery import Celery

            app = Celery(broker=world.settings.redis_url)
            app.conf.task_default_queue = world.settings.namespace
            app.send_task("tasks.sweep")
            until(lambda: effects(world)[1] >= 6, at_most=60, what="some commits")

            said, code = fencebeat(
                world, "kill", "on", "--scope", "all", "--level", "write", "--reason", "test of the stop"
            )
            assert code == 0, said
            watch_for(T, lambda: None)
            before, after = watch_for(WATCH, lambda: effects(world))
            assert before == after, "something was written after the stop"
            assert world.ledger.progress(world.services.spec.target_id).dirty > 0, "the stop came too late to matter"
            status, _ = fencebeat(world, "kill", "status")
            assert "test of the stop" in json.dumps(status)

            said, code = fencebeat(world, "kill", "off", "--scope", "all", "--reason", "test over")
            assert code == 0, said

            def at_rest():
                app.send_task("tasks.sweep")
                progress = world.ledger.progress(world.services.spec.target_id)
                return progress.dirty == 0

            until(at_rest, at_most=90, what="an index at rest")
            assert running.popen.poll() is None
            app.close()
    finally:
        keeper.stop()
    changes = world.services.switches.audit()
    assert [(change["before"], change["after"]) for change in changes] == [("write", "run"), ("run", "write")]
    assert [change["reason"] for change in changes] == ["test over", "test of the stop"]
    assert_equals_a_fresh_build(world, make_world, root, "opensearch")


STEPS = {
    "opensearch": ("index.acquire.after", "index.stage.after", "index.write.before", "index.commit.before"),
    "pgvector": ("index.acquire.after", "index.stage.after", "index.write.after", "index.commit.before"),
}


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, steps in STEPS.items() for step in steps])
def test_a_worker_frozen_before_the_stop_writes_nothing_after_it(make_world, tmp_path, kind, step):
    root = tmp_path / "few"
    root.mkdir()
    write_corpus(root, 3)
    world = make_world(root, kind)
    world.sync()
    switches = world.services.switches
    with batches(world, "frozen", failpoints=f"{step}=stop@1") as frozen:
        frozen.wait_until_frozen(step)
        switches.on("all", "write", reason="stop", author="test", origin="here")
        before, _ = watch_for(T, lambda: effects(world))  # what a worker has read may count for so long
        frozen.thaw()
        frozen.wait_until_ended(60)
    writes, commits = effects(world)
    assert commits == before[1]
    if step != "index.write.before":  # there the request had passed the last check: it may land, and cannot commit
        assert writes == before[0]
    assert world.live() == set()
    assert frozen.said(kind="event", event="document.stopped"), frozen.log.read_text()

    switches.off("all", reason="go on", author="test", origin="here")
    world.settle()
    assert_equals_a_fresh_build(world, make_world, root, kind)
