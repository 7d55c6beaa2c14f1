"""How long nobody emits when the leader goes: from the signal to the successor's first message on the queue.

A tick is due every 25 ms (40 entries, one a second each), so the first message shows when the successor can act; the
wait for the next tick, 12 ms on average, is part of every figure. Times are read from the history file that the beats
write themselves (one host, one clock): the signal just before it is sent, the emission when the commit has returned.

SIGTERM   three beats, one namespace, one takeover after the other; the next beat is started, and stands by, before the
          next signal. Beside it a bare BLPOP wake-up, the floor: one process waits on a list, another pushes.
SIGKILL   two beats each in ten namespaces side by side, with a lease of 5 s and of 2 s. No process starts while a
          takeover is waited for. Side by side is fair: nearly all of the time is the lease running out, which costs
          nothing, and what is left is measured under more load than one cluster would have.

Each kill comes at a random moment of the lease. At the end every tick of every entry has to be on the queue once.

Peer: celery-redbeat with its lock time-out set to the same lease (its default is 1,500 s, of which nothing is waited
for here), two beats, until the standby holds the lock; its first message comes later. Celery's own beat has no
takeover: two of them send everything twice.

Lines at the end: `name ours reference ratio`, in seconds. `takeover-kill-*`: our slowest against the goal of lease +
0.5 s. `takeover`: our median after SIGTERM against RedBeat's.
"""

import argparse
import json
import multiprocessing
import random
import signal
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from drives import RedBeats, client, every_second, quantile, server, settings
from rich.console import Console
from rich.table import Table

from fencebeat.clock import SystemClock
from fencebeat.entries import read_schedule
from fencebeat.keys import Keys
from fencebeat.testing import project
from fencebeat.testing.beats import Cluster
from fencebeat.testing.handover import Handover, Replicas
from fencebeat.testing.tally import tally

ENTRIES = 40
LEASES = (5.0, 2.0)
QUEUE = "takeover"
SLACK = 0.5
CLOCK = SystemClock()
PAUSE = threading.Event()  # never set


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Takeover after SIGTERM and SIGKILL.")
    parser.add_argument("--runs", type=int, default=100, help="takeovers after SIGTERM; half as many after SIGKILL")
    parser.add_argument("--side-by-side", type=int, default=10, help="namespaces of the SIGKILL part")
    parser.add_argument("--peer-runs", type=int, default=10, help="takeovers of RedBeat, each kind")
    asked = parser.parse_args()
    kills = max(1, asked.runs // 2)
    table = Table("after", "runs", "median", "p95", "slowest", "goal", "ticks", "lost or doubled", title="takeover")
    with server() as (folder, url):
        bare = _bare_wake_ups(url, asked.runs)
        _row(table, "a bare BLPOP wake-up", bare, "")
        stories, facts = _sigterm(folder / "term", url, asked.runs)
        steps = {
            "SIGTERM": [story.emitted for story in stories],
            "  signal to resignation": [story.resigned or 0.0 for story in stories],
            "  signal to election": [story.elected for story in stories],
            "  signal to leading": [story.leading for story in stories],
        }
        for name, values in steps.items():
            _row(table, name, values, "0.100 / 0.200" if name == "SIGTERM" else "", facts if name == "SIGTERM" else ())
        killed = {}
        for lease in LEASES:
            killed[lease], facts = _sigkill(folder / f"kill-{lease:g}", url, lease, kills, asked.side_by_side)
            _row(table, f"SIGKILL, lease {lease:g} s", killed[lease], f"<= {lease + SLACK:g}", facts)
        peer = {}
        for kind, lease in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0), (signal.SIGKILL, 2.0)):
            name = f"{kind.name}-{lease:g}"
            peer[name] = _redbeat(folder / f"redbeat-{name}", url, lease, kind, asked.peer_runs)
            _row(table, f"RedBeat, {kind.name}, lock {lease:g} s", peer[name], "")
    Console(width=120).print(table)
    for lease, values in killed.items():
        goal = lease + SLACK
        print(f"takeover-kill-{lease:g}s {max(values):.3f} {goal:.3f} {goal / max(values):.2f}")
    ours, theirs = statistics.median(steps["SIGTERM"]), statistics.median(peer["SIGTERM-5"])
    print(f"takeover {ours:.3f} {theirs:.3f} {theirs / ours:.2f}")


def _row(table: Table, name: str, values: Sequence[float], goal: str, facts: Sequence[str] = ()) -> None:
    figures = (statistics.median(values), quantile(values, 0.95), max(values))
    table.add_row(name, str(len(values)), *(f"{value:.4f}" for value in figures), goal, *(facts or ("", "")))


def _sigterm(folder: Path, url: str, runs: int) -> tuple[list[Handover], tuple[str, str]]:
    with Cluster(folder, url, settings("term", 5.0, every_second(ENTRIES, QUEUE))) as cluster:
        replicas = Replicas(cluster, 3)
        stories = [_one(replicas, kill=False) for _ in range(runs)]
        return stories, _all_once(cluster)


def _one(replicas: Replicas, *, kill: bool) -> Handover:
    replicas.fill()
    replicas.settle()
    PAUSE.wait(random.uniform(0.2, 1.0))
    story = replicas.hand_over(kill=kill)
    leader = replicas.cluster.beat(story.leader)
    assert leader.process.wait(10) == (-signal.SIGKILL if kill else 0), replicas.cluster.logs()
    return story


def _sigkill(folder: Path, url: str, lease: float, runs: int, wide: int) -> tuple[list[float], tuple[str, str]]:
    wide = min(wide, runs)
    took: list[float] = []
    facts: list[tuple[str, str]] = []
    with ExitStack() as stack, ThreadPoolExecutor(wide) as pool:
        clusters = [
            stack.enter_context(Cluster(folder / name, url, settings(name, lease, every_second(ENTRIES // 4, name))))
            for name in (f"kill-{lease:g}-{number}" for number in range(wide))
        ]
        replicas = [Replicas(cluster, 2) for cluster in clusters]
        while len(took) < runs:
            for one in replicas:
                one.fill()
            for one in replicas:
                one.settle()
            ends = pool.map(lambda one: _kill_at_random(one, lease), replicas[: runs - len(took)])
            took.extend(story.emitted for story in ends)
        facts = [_all_once(cluster) for cluster in clusters]
    return took, (f"{sum(int(ticks.replace(',', '')) for ticks, _ in facts):,}", "0")


def _kill_at_random(replicas: Replicas, lease: float) -> Handover:
    PAUSE.wait(random.uniform(0.0, lease / 2))
    return replicas.hand_over(kill=True)


def _all_once(cluster: Cluster) -> tuple[str, str]:
    """Stop the beats; every tick must be on the queue once."""
    for beat in cluster.beats:
        if beat.alive:
            beat.stop()
    conf = project.settings(json.dumps(cluster.settings))
    entries, _ = read_schedule(conf["beat_schedule"], lease=conf["fencebeat_lease"])
    queue = next(iter(entries.values())).options["queue"]
    with client(cluster.redis_url) as reader:
        found = tally(reader, Keys(conf["fencebeat_namespace"]), queue, entries)
    assert not found.problems, found.problems
    assert len(found.by_token) > 1, "no second leader emitted anything"
    return f"{found.ticks:,}", "0"


def _bare_wake_ups(url: str, runs: int) -> list[float]:
    ours, theirs = multiprocessing.Pipe()
    waiter = multiprocessing.get_context("spawn").Process(target=_wait_on_list, args=(url, theirs, runs), daemon=True)
    waiter.start()
    took = []
    with client(url) as pusher:
        for _ in range(runs):
            ours.recv()
            PAUSE.wait(0.02)  # it waits by then
            at = CLOCK.elapsed()
            pusher.lpush("bare", "1")
            took.append(ours.recv() - at)
    waiter.join(10)
    return took


def _wait_on_list(url: str, told: Connection, runs: int) -> None:
    with client(url) as waiting:
        for _ in range(runs):
            told.send("ready")
            waiting.blpop(["bare"], timeout=10)
            told.send(CLOCK.elapsed())


def _redbeat(folder: Path, url: str, lock: float, kind: signal.Signals, runs: int) -> list[float]:
    name = f"redbeat-{kind.name}-{lock:g}"
    schedule = {n: {k: v for k, v in e.items() if k != "fencebeat"} for n, e in every_second(10, name).items()}
    took = []
    with client(url) as reader, RedBeats(folder, url, name, lock, schedule) as beats:
        beats.start()
        _poll(lambda: reader.get(beats.lock_key), "RedBeat took no lock")
        for _ in range(runs):
            leader, standby = beats.processes[-1], beats.start()
            log = folder / "peer.log"
            _poll(lambda: log.read_text().count("beat: Starting...") >= len(beats.processes), "RedBeat did not start")  # noqa: B023
            PAUSE.wait(1.0 + random.uniform(0.0, lock / 5))
            held = reader.get(beats.lock_key)
            at = CLOCK.elapsed()
            leader.send_signal(kind)
            _poll(lambda: reader.get(beats.lock_key) not in (None, held), "RedBeat's standby took no lock")  # noqa: B023
            took.append(CLOCK.elapsed() - at)
            leader.wait(10)
            assert standby.poll() is None
    return took


def _poll(until: Callable[[], object], complaint: str, at_most: float = 60.0) -> None:
    deadline = CLOCK.elapsed() + at_most
    while not until():
        assert CLOCK.elapsed() < deadline, complaint
        PAUSE.wait(0.001)


if __name__ == "__main__":
    main()
