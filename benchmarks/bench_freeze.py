"""Leaders frozen in the middle of a tick of 300 entries: does anything stale come out when they wake?

Two beats each in ten namespaces side by side, a lease of 2 s, 300 entries that fire together every 8 s, catch-up `all`.
Around each fire time the leader is frozen with SIGSTOP at a random moment, for twice the lease. Meanwhile the standby
takes over and finishes the tick; then the old leader wakes and goes on with whatever it had in hand. A freeze counts if
part of the 300 was not on the queue when the process stood still; others are thawed at once and tried again. The first
two freezes of each namespace are made by the beats themselves (failpoint) between their last check of the lease and the
write: the place where only the store can refuse.

Stale is a message under an older term that was queued after one of a newer term; lost is a tick that is missing at the
end. Both are counted over every message of the run, by the rules of the entries and the marks of the store.

Peer: celery-redbeat with a lock time-out of 2 s and the same 300 entries, two beats, frozen in the same way. It knows
no terms, so stale are the messages that the frozen process still sent after the standby's first one.

The last line is `freeze ours peer ratio`: stale messages for each freeze. The ratio counts one stale message of ours
where there is none: how many times fewer at least.
"""

import argparse
import json
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
from drives import RedBeats, Schedule, client, server, settings
from rich.console import Console
from rich.table import Table

from fencebeat.clock import SystemClock
from fencebeat.entries import read_schedule
from fencebeat.firetimes import SECOND
from fencebeat.keys import Keys
from fencebeat.testing import project
from fencebeat.testing.beats import Beat, Cluster
from fencebeat.testing.handover import Replicas
from fencebeat.testing.tally import tally

COUNT = 300
LEASE = 2.0
FROZEN = 2 * LEASE
PERIOD = 8.0
WINDOW = (-0.02, 0.15)
"""Where around a fire time freezes fall, in seconds: from just before it is due to after a slow tick of 300."""
CLOCK = SystemClock()
PAUSE = threading.Event()  # never set


@dataclass
class Seen:
    """What one namespace saw."""

    freezes: int = 0  # in the middle of a tick
    by_failpoint: int = 0  # of these, between the last check and the write
    missed: int = 0  # freezes that hit no tick and do not count
    left: int = 0  # ticks not yet queued when the leaders stood still
    refused: int = 0  # stale commits that the store refused
    ticks: int = 0
    stale: int = 0
    lost: int = 0
    doubled: int = 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Freezes in the middle of a tick.")
    parser.add_argument("--runs", type=int, default=100, help="freezes of ours in the middle of a tick")
    parser.add_argument("--side-by-side", type=int, default=10, help="namespaces")
    parser.add_argument("--peer-runs", type=int, default=10, help="freezes of RedBeat")
    asked = parser.parse_args()
    wide = min(asked.side_by_side, asked.runs)
    with server() as (folder, url), ThreadPoolExecutor(wide) as pool:
        shares = [asked.runs // wide + (number < asked.runs % wide) for number in range(wide)]
        ours = list(
            pool.map(
                lambda number: _ours(folder, url, f"freeze-{number}", PERIOD * number / wide, shares[number]),
                range(wide),
            )
        )
        theirs: list[Seen] = []
        for number in range(2 * asked.peer_runs):
            if len(theirs) < asked.peer_runs and (seen := _redbeat(folder / f"redbeat-{number}", url, number)):
                theirs.append(seen)
    table = Table(
        *("", "freezes", "in the commit", "unsent then", "refused", "messages", "stale", "lost", "doubled"),
        title=f"{COUNT} entries, frozen for {FROZEN:g} s, lease {LEASE:g} s",
    )
    for name, seen in (("fencebeat", ours), ("RedBeat", theirs)):
        sums = {fact: sum(getattr(one, fact) for one in seen) for fact in Seen.__dataclass_fields__}
        facts = ("freezes", "by_failpoint", "left", "refused", "ticks", "stale", "lost", "doubled")
        shown = [f"{sums[fact]:,}" for fact in facts]
        table.add_row(name, *(shown if name == "fencebeat" else [*shown[:1], "-", shown[2], "-", *shown[4:]]))
    Console(width=120).print(table)
    print(f"{sum(one.missed for one in ours)} freezes of ours fell beside a tick and do not count")
    per = [sum(one.stale for one in seen) / sum(one.freezes for one in seen) for seen in (ours, theirs)]
    least = 1 / sum(one.freezes for one in ours)
    print(f"freeze {per[0]:.2f} {per[1]:.2f} {per[1] / max(per[0], least):.2f}")
    assert sum(one.lost + one.doubled + one.stale for one in ours) == 0, "fencebeat broke its promise"


def together(queue: str, offset: float) -> Schedule:
    """300 entries that fire in the same instant every PERIOD seconds, `offset` seconds after a multiple of it."""
    start = datetime.fromtimestamp(offset, UTC).isoformat()
    line = {"task": "drive.work", "schedule": PERIOD, "options": {"queue": queue}}
    return {f"entry-{number:03}": {**line, "fencebeat": {"catchup": "all", "start": start}} for number in range(COUNT)}


class Drive:
    """The freezes of one namespace."""

    def __init__(self, cluster: Cluster, reader: redis.Redis, name: str, offset: float) -> None:
        self.seen = Seen()
        self._cluster, self._reader, self._name, self._offset = cluster, reader, name, offset
        self._replicas = Replicas(cluster, 2)

    def run(self, runs: int) -> None:
        """Freeze `runs` leaders in the middle of a tick; at the end count what is on the queue."""
        for place in range(2):  # in one of the first batches that it commits
            armed = f"beat.commit.before=stop@{random.randint(2, 5)}" if place < runs else ""
            self._cluster.start_beat(failpoints=armed)
        for _ in range(min(2, runs)):
            self._outlive_failpoint()
        while self.seen.freezes < runs:
            self._freeze(self._replicas.settle())
        self._replicas.settle()
        for beat in self._cluster.beats:
            assert beat.stop() == 0, self._cluster.logs()
        self._count()

    def _outlive_failpoint(self) -> None:
        """Wait until a beat freezes itself between its last check and the write; thaw it after its time."""
        known = self.seen.freezes
        froze = [line for line in self._cluster.lines() if line["kind"] == "failpoint"]
        while len(froze) == known:
            PAUSE.wait(0.02)
            froze = [line for line in self._cluster.lines() if line["kind"] == "failpoint"]
        line = froze[known]
        beat = self._cluster.beat(line["proc"])
        beat.wait_until_frozen()
        self.seen.left += -self._reader.llen(self._name) % COUNT
        PAUSE.wait(max(0.0, line["t"] + FROZEN - CLOCK.elapsed()))
        beat.thaw()
        self.seen.freezes += 1
        self.seen.by_failpoint += 1

    def _freeze(self, leader: Beat) -> None:
        """Freeze the leader at a random moment around the next fire time; it counts if the tick was not through."""
        now = CLOCK.wall()
        tick = now - (now - self._offset) % PERIOD + PERIOD
        PAUSE.wait(tick - now + random.uniform(*WINDOW))
        leader.freeze()
        leader.wait_until_frozen()
        PAUSE.wait(max(0.0, tick - CLOCK.wall()))
        left = COUNT - _of_tick(self._reader, self._name, round(tick * SECOND))
        if left == 0:
            self.seen.missed += 1
            leader.thaw()
            return
        PAUSE.wait(FROZEN)
        leader.thaw()
        self.seen.freezes += 1
        self.seen.left += left

    def _count(self) -> None:
        conf = project.settings(json.dumps(self._cluster.settings))
        entries, _ = read_schedule(conf["beat_schedule"], lease=LEASE)
        keys, seen = Keys(self._name), self.seen
        found = tally(self._reader, keys, self._name, entries)
        seen.ticks, seen.stale, seen.lost = found.ticks, len(found.stale), len(found.missing)
        seen.doubled = len(found.doubled) + len(found.unknown)
        seen.refused = sum(fields["outcome"] == "fenced" for _, fields in self._reader.xrange(keys.audit))


def _ours(folder: Path, url: str, name: str, offset: float, runs: int) -> Seen:
    conf = settings(name, LEASE, together(name, offset))
    with client(url) as reader, Cluster(folder / name, url, conf) as cluster:
        drive = Drive(cluster, reader, name, offset)
        drive.run(runs)
        return drive.seen


def _of_tick(reader: redis.Redis, queue: str, fire_time: int) -> int:
    """How many of the newest 300 messages are of this fire time."""
    newest: Any = reader.lrange(queue, 0, COUNT - 1)
    return sum(json.loads(raw)["headers"]["fencebeat_fire_time"] == fire_time for raw in newest)


def _redbeat(folder: Path, url: str, number: int) -> Seen | None:
    """One freeze of RedBeat. None where its leader has ended by itself: it does, where it comes late to its lock."""
    name = f"redbeat-{number}"
    schedule = {entry: {k: v for k, v in line.items() if k != "fencebeat"} for entry, line in together(name, 0).items()}
    seen = Seen(freezes=1)
    with client(url) as reader, RedBeats(folder, url, name, LEASE, schedule) as beats:
        leader = beats.start()
        _until(lambda: reader.llen(name) >= COUNT or leader.poll() is not None)  # at once: nobody has run yet
        beats.start()
        size = reader.llen(name)
        _until(lambda: reader.llen(name) > size or leader.poll() is not None)
        PAUSE.wait(random.uniform(0.0, 0.1))
        if leader.poll() is not None:
            return None
        leader.send_signal(signal.SIGSTOP)
        _until(lambda: _stopped(leader.pid))
        seen.left = -reader.llen(name) % COUNT
        PAUSE.wait(FROZEN)
        leader.send_signal(signal.SIGCONT)
        PAUSE.wait(1.0)
        senders = list(_senders(reader, name))
    others = [at for at, pid in enumerate(senders) if pid != leader.pid]
    assert others, "RedBeat's standby did not take over"
    seen.ticks = len(senders)
    seen.stale = sum(pid == leader.pid for pid in senders[others[0] :])
    seen.doubled = max(0, len(senders) - 2 * COUNT)
    return seen


def _senders(reader: redis.Redis, queue: str) -> Iterator[int]:
    """The process that sent each message, oldest first; Celery writes it into `origin` as gen<pid>@<host>."""
    raws: Any = reader.lrange(queue, 0, -1)
    for raw in reversed(raws):
        yield int(json.loads(raw)["headers"]["origin"].partition("@")[0].removeprefix("gen"))


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _until(true: Any, at_most: float = 60.0) -> None:
    deadline = CLOCK.elapsed() + at_most
    while not true():
        assert CLOCK.elapsed() < deadline, "RedBeat did not come so far"
        PAUSE.wait(0.002)


if __name__ == "__main__":
    main()
