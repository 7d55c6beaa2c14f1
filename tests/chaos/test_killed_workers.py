"""Workers, pool children and the embedder killed at random moments while documents change: the index heals itself."""

import json
import os
import random
import signal
import sys
import threading
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from celery import Celery

from tests.acceptance.test_index_follows import assert_equals_a_fresh_build, page
from tests.support.processes import Process, worker
from tests.support.waiting import until
from tests.support.world import PAGE, write_corpus

KILLS = 30
SEED = int(os.environ.get("FENCEBEAT_SEED", "20261130"))


def embedder(world, socket: Path, name: str) -> Process:
    command = [sys.executable, "-m", "tests.support.fake_embedder", f"unix://{socket}", str(world.call_log)]
    return Process(world, name, command)


def at_work(app, running) -> bool:
    """Whether this worker has begun a document: a kill before that would prove nothing."""
    if not running.said(kind="event"):
        app.send_task("tasks.sweep")  # the one before may have died with the worker that took it
        threading.Event().wait(0.3)
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_kills_leave_the_index_equal_to_a_fresh_build(make_world, tmp_path, monkeypatch, record_property):
    root = tmp_path / "hundred"
    root.mkdir()
    write_corpus(root, 100)
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    world = make_world(root, "opensearch", claim_seconds=2.0, claim_batch=4)
    dice, pause = random.Random(SEED), threading.Event()
    socket = Path(world.settings.embedder_url.removeprefix("unix://")).with_name("killed.sock")
    world.settings = world.settings.model_copy(update={"embedder_url": f"unix://{socket}"})
    app = Celery(broker=world.settings.redis_url)
    app.conf.task_default_queue = world.settings.namespace
    with ExitStack() as stack:
        killed = {"child": 0, "worker": 0, "embedder": 0}
        slow = "index.embed.after=sleep:0.15,index.write.after=sleep:0.1"
        vectors = stack.enter_context(embedder(world, socket, "embedder-0"))
        running = stack.enter_context(worker(world, "worker-0", failpoints=slow))
        world.sync()
        for n in range(KILLS):
            for _ in range(3):
                path = page(root, dice.randrange(100))
                path.write_text(PAGE.format(title=f"Edited at kill {n} in {path.stem} {dice.random()}"))
            world.sync()
            until(partial(at_work, app, running), at_most=90, what=f"{running.name} at work")
            pause.wait(dice.uniform(0.1, 1.2))  # the moment of the kill is random
            victim = dice.choice(["child", "child", "worker", "embedder"])
            if victim == "child":
                children = until(psutil.Process(running.popen.pid).children, what="a pool child")
                os.kill(dice.choice(children).pid, signal.SIGKILL)
            elif victim == "embedder":
                vectors.kill()
                vectors = stack.enter_context(embedder(world, socket, f"embedder-{n + 1}"))
            else:
                running.kill()
                running = stack.enter_context(worker(world, f"worker-{n + 1}", failpoints=slow))
            killed[victim] += 1

        def at_rest():
            app.send_task("tasks.sweep")
            pause.wait(0.3)
            progress = world.ledger.progress(world.services.spec.target_id)
            return progress.dirty == 0 and progress.garbage == 0

        until(at_rest, at_most=180, what="rest after the kills")
        app.close()
    record_property("kills", str(killed))
    record_property("embedded", world.embedded())
    assert sum(killed.values()) == KILLS
    assert all(killed.values()), "a kind of process was never killed: the run proves too little"
    assert world.ledger.dead_letters(world.services.spec.target_id) == []
    world.sync()  # the workers read some files right after they were written, so these are looked at once more
    world.settle()
    assert_equals_a_fresh_build(world, make_world, root, "opensearch")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_message_three_times_and_out_of_order_costs_nothing(make_world, corpus, redis_client):
    world = make_world(corpus, "opensearch")
    world.refresh_world()
    before, live, writes = world.embedded(), world.live(), world.target.write_count()
    for n in range(0, 50, 10):
        os.utime(page(corpus, n))  # five documents are looked at again
    inbox, outbox = f"{world.settings.namespace}-in", world.settings.namespace
    app = Celery(broker=world.settings.redis_url)
    app.conf.task_default_queue = outbox
    pump = Pump(redis_client, outbox, inbox)
    with worker(world, "tripled", queue=inbox), pump:
        for _ in range(3):
            app.send_task("tasks.sync_source", ["docs"])
            app.send_task("tasks.sweep")
            app.send_task("tasks.collect")
        until(lambda: pump.tripled >= 9 and pump.idle(), at_most=90, what="all messages tripled and taken")
        until(lambda: world.ledger.progress(world.services.spec.target_id).dirty == 0, at_most=30, what="nothing dirty")
    app.close()
    assert world.embedded() == before
    assert world.target.write_count() == writes
    assert world.live() == live
    report = world.doctor()
    assert (report.differences, report.at_rest) == (0, True)


class Pump(threading.Thread):
    """Takes each message from one queue and puts three copies of it, shuffled with others, on another."""

    def __init__(self, client, source, sink):
        super().__init__(name="pump", daemon=True)
        self._client, self._source, self._sink = client, source, sink
        self._done = threading.Event()
        self.tripled = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.join(10)

    def idle(self):
        return self._client.llen(self._source) == 0 and self._client.llen(self._sink) == 0

    def run(self):
        dice = random.Random(SEED)
        while not self._done.is_set():
            taken = [raw for _ in range(4) if (raw := self._client.rpop(self._source))]
            copies = []
            for raw in taken:
                for _ in range(3):
                    message = json.loads(raw)
                    message["properties"]["delivery_tag"] = str(uuid.uuid4())  # equal tags would collide unacknowledged
                    copies.append(json.dumps(message))
                self.tripled += 1
            dice.shuffle(copies)
            for copy in copies:
                self._client.lpush(self._sink, copy)
            if not taken:
                self._done.wait(0.02)
