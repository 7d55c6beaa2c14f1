"""10,000 of 100,000 entries fall due at once: how long until all messages are queued, and who else has to wait?

Ours: a leader's `Rounds` with a real term, as the scheduler runs them: each tick goes the whole way (what is due is
asked from the store, fire time and policy, message, fence, version, flags and mark in `commit.lua`, audit), in batches
of 100, with the log of the real process and a trace in every message. Warm: it leads already. Cold: it has just been
elected in a new process: nothing read from the store, no template, no connection. Both start from the entries of its
configuration. `--slow` measures without templates.

Meanwhile another process sends GET and SET to the same server, one every 2 ms, as a client does that has more to do;
its 99th percentile is printed. (One that never waits would take a processor, where server and beat have two.)

Peer: celery-redbeat's own `tick`, 10,000 entries due among the same 100,000, same server, same run, same task and
arguments. Each is measured ROUNDS times, in turn; the median counts. The last line is `drain ours peer ratio`: seconds
of the warm drain, seconds of RedBeat, how many times faster we are.
"""

import argparse
import gc
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.schedules import schedule
from drives import client, quantile, server
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.schedulers import ensure_conf
from rich.console import Console
from rich.table import Table

from fencebeat.clock import SystemClock
from fencebeat.configuration import Configuration
from fencebeat.entries import read_schedule
from fencebeat.firetimes import SECOND
from fencebeat.lease import Term
from fencebeat.recovery import Recovery
from fencebeat.render import Renderer
from fencebeat.rounds import Rounds
from fencebeat.store import Store

HOUR = 3600
QUEUE = "bench"
OTHER_CLIENT = """
import json, sys, time, redis
PAUSE = 0.002
seen = []
client = redis.Redis.from_url(sys.argv[1], socket_timeout=30)
client.set("bench-other", "x" * 100)
print("ready", flush=True)
client.blpop("bench-begin", timeout=600)
while client.exists("bench-go"):
    for call in (lambda: client.get("bench-other"), lambda: client.set("bench-other", "y" * 100)):
        began = time.perf_counter()
        call()
        seen.append(time.perf_counter() - began)
        time.sleep(PAUSE)
print(json.dumps(seen))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow", action="store_true", help="without templates")
    told = parser.parse_args()
    with server() as (folder, url):
        logging.basicConfig(filename=folder / "beat.log", level=logging.INFO, force=True)
        drain = Drain(url, told.entries, told.due, fast=not told.slow)
        peer = RedBeat(url, told.entries, told.due)
        ways: dict[str, Callable[[], float]] = {
            "fencebeat, cold": drain.cold,
            "fencebeat, warm": drain.warm,
            "celery-redbeat": peer.drain,
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        others: dict[str, list[float]] = {name: [] for name in ways}
        idle = _idle(url)
        for _ in range(told.rounds):
            for name, way in ways.items():
                drain.client.delete(QUEUE)
                gc.collect()  # what the others have left, they have to clear away
                gc.freeze()  # as our process does at its start
                with _beside(url) as waits:
                    seconds[name].append(way())
                others[name].extend(waits)
                queued = drain.client.llen(QUEUE)
                assert queued == told.due, f"{name} put {queued} messages on the queue"
    title = f"{told.due:,} of {told.entries:,} entries due at once, the median of {told.rounds}"
    table = Table("drain", "seconds", "messages a second", "second client p99", title=title)
    for name, took in seconds.items():
        median = statistics.median(took)
        table.add_row(
            name, f"{median:.3f}", f"{told.due / median:,.0f}", f"{quantile(others[name], 0.99) * 1000:.1f} ms"
        )
    table.add_row("nobody", "", "", f"{quantile(idle, 0.99) * 1000:.1f} ms")
    Console().print(table)
    ours, theirs = (statistics.median(seconds[name]) for name in ("fencebeat, warm", "celery-redbeat"))
    print(f"drain {ours:.3f} {theirs:.3f} {theirs / ours:.2f}")


class Drain:
    """Our side: one application, its entries, one term."""

    def __init__(self, url: str, entries: int, due: int, *, fast: bool) -> None:
        self.client, self._due, self._fast = client(url), due, fast
        self._turn, self._turns = 0, entries // due
        line = {"task": "bench.work", "schedule": float(HOUR), "options": {"queue": QUEUE}}
        self._app = _application(url)
        self._app.conf.beat_schedule = {
            f"entry-{number:06}": {**line, "args": (number, "two")} for number in range(entries)
        }
        self._configuration = Configuration.of(self._app)
        self._entries, refused = read_schedule(self._app.conf.beat_schedule, lease=self._configuration.timing.lease)
        assert not refused
        self._lock = self._configuration.make_lock()
        self._term = self._elected()
        self._rounds, self._renderer = self._leader()
        while self._rounds.run(self._term) == 0:  # the first round stores the schedule
            pass
        if self._renderer.templates is not None:
            assert self._renderer.templates.prepare(iter(self._entries.values()), 60)

    def warm(self) -> float:
        """Drain by the leader that leads already: in its term it has compared its schedule with the stored one."""
        while self._rounds.run(self._term) == 0:
            pass
        return self._drain(self._rounds)

    def cold(self) -> float:
        """Drain by one that was just elected."""
        assert self._lock.resign(self._term)
        self._term = self._elected()
        rounds, renderer = self._leader()
        try:
            return self._drain(rounds)
        finally:
            renderer.close()

    def _drain(self, rounds: Rounds) -> float:
        begin = self._turn * self._due  # others each time: a mark that falls again and again looks like a fault
        self._turn = (self._turn + 1) % self._turns
        keys, names = self._configuration.keys, [f"entry-{begin + number:06}" for number in range(self._due)]
        seconds, _ = self.client.time()
        mark = (seconds - HOUR) * SECOND  # an hourly fire time lies between this mark and now, whatever the minute
        self.client.hset(keys.last, mapping=dict.fromkeys(names, mark))
        self.client.zadd(keys.due, dict.fromkeys(names, seconds * 1000 - 1))
        began = time.perf_counter()
        while rounds.run(self._term) == 0:
            pass
        return time.perf_counter() - began

    def _elected(self) -> Term:
        term = self._lock.acquire("bench")
        assert isinstance(term, Term)
        recovering = self._configuration.broker.client(10.0)
        Recovery(recovering, self._configuration.keys, carrier=self._lock.carrier)(term)
        return term

    def _leader(self) -> tuple[Rounds, Renderer]:
        clock = SystemClock()
        renderer = Renderer(self._app, self._configuration.namespace, 10.0, fast=clock if self._fast else None)
        rounds = Rounds(
            Store(self._configuration.broker.client(10.0), self._configuration.keys, carrier=self._lock.carrier),
            renderer,
            self._entries,
            clock=clock,
            tolerance=self._configuration.tolerance,
            leading=lambda: self._term,
            extended=lambda *_: None,
            flags_generation=lambda: None,
        )
        return rounds, renderer


class RedBeat:
    """The peer: the same entries in RedBeat's own records, its own `tick`."""

    def __init__(self, url: str, entries: int, due: int) -> None:
        self._client, self._due = client(url), due
        self._app = _application(url)
        self._app.conf.update(redbeat_redis_url=url, redbeat_lock_key=None, redbeat_key_prefix="bench-redbeat:")
        ensure_conf(self._app)
        self._later = datetime.now(UTC)
        with self._client.pipeline(transaction=False) as pipe:
            for number in range(entries):
                entry = RedBeatSchedulerEntry(
                    f"entry-{number:06}",
                    "bench.work",
                    schedule(timedelta(seconds=HOUR), app=self._app),
                    args=(number, "two"),
                    options={"queue": QUEUE},
                    app=self._app,
                )
                definition = {
                    name: getattr(entry, name)
                    for name in ("name", "task", "args", "kwargs", "options", "schedule", "enabled")
                }
                pipe.hset(entry.key, "definition", json.dumps(definition, cls=RedBeatJSONEncoder))
                pipe.hset(entry.key, "meta", json.dumps({"last_run_at": self._later}, cls=RedBeatJSONEncoder))
                pipe.zadd(self._app.redbeat_conf.schedule_key, {entry.key: self._later.timestamp() + HOUR})
            pipe.execute()
        self._scheduler = RedBeatScheduler(self._app)

    def drain(self) -> float:
        """One `tick` in which the due entries are sent."""
        ago = datetime.now(UTC) - timedelta(hours=2)
        meta = json.dumps({"last_run_at": ago, "total_run_count": 1}, cls=RedBeatJSONEncoder)
        with self._client.pipeline(transaction=False) as pipe:
            for number in range(self._due):
                key = RedBeatSchedulerEntry.generate_key(self._app, f"entry-{number:06}")
                pipe.hset(key, "meta", meta)
                pipe.zadd(self._app.redbeat_conf.schedule_key, {key: ago.timestamp()})
            pipe.execute()
        began = time.perf_counter()
        self._scheduler.tick()
        return time.perf_counter() - began


def _application(url: str) -> Celery:
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(
        fencebeat_namespace="bench",
        fencebeat_lease=600.0,  # nothing renews it here
        result_expires=None,
        broker_transport_options={"socket_timeout": 30, "socket_connect_timeout": 5},
    )
    app.finalize()
    return app


@contextmanager
def _beside(url: str) -> Iterator[list[float]]:
    """Another process sends GET and SET while the block runs; gives how long each took, in seconds."""
    waits: list[float] = []
    with client(url) as control:
        control.delete("bench-go")
        command = [sys.executable, "-c", OTHER_CLIENT, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            control.set("bench-go", 1)
            control.rpush("bench-begin", 1)
            try:
                yield waits
            finally:
                control.delete("bench-go")
                answer: list[Any] = json.loads(process.stdout.read())
                waits.extend(answer)


def _idle(url: str) -> list[float]:
    with _beside(url) as waits, redis.Redis.from_url(url, socket_timeout=5) as control:
        control.blpop(["bench-nothing"], timeout=1)
    return waits


if __name__ == "__main__":
    main()
