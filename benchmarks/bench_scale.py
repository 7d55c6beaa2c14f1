"""100,000 entries, 1,000 due each second for a minute, one edit a second: is anything late, missed, or too big?

A real `celery beat -S fencebeat` process, with its default lease, and its history off. Each entry fires every 100 s,
the first thousand at second 0, the next at second 1, and so on. Meanwhile this process edits one stored entry a second
(`fencebeat.edits`), as another host would. Afterwards every tick of the measured seconds is looked up in the audit: its
lateness is the time of its record by the server's clock minus its fire time.

There is no peer that can do this; the references are the goals: p99 of the lateness <= 1 s, no tick missed or doubled,
memory of the beat (its largest resident set) <= 300 MB. The last line is `scale ours reference ratio`: p99 of the
lateness in seconds, the goal, and how many times better we are; 0 where a tick was missed or the memory is above it.
"""

import argparse
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import redis
from drives import client, quantile, server
from rich.console import Console
from rich.table import Table

from fencebeat.clock import SystemClock
from fencebeat.edits import Schedule
from fencebeat.firetimes import SECOND
from fencebeat.keys import Keys

GOAL = 1.0
MEMORY = 300
NAMESPACE = "scale"
PROJECT = """
import os
from datetime import datetime, timedelta, timezone
from celery import Celery

app = Celery("scale", broker=os.environ["REDIS_URL"], set_as_current=False)
begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
period = int(os.environ["PERIOD"])
app.conf.update(
    fencebeat_namespace="scale",
    result_expires=None,
    beat_schedule={
        f"entry-{n:06}": {
            "task": "scale.work", "schedule": float(period), "args": (n,), "options": {"queue": "scale"},
            "fencebeat": {"catchup": "all", "start": begin + timedelta(seconds=n % period)},
        }
        for n in range(int(os.environ["ENTRIES"]))
    },
)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=1000, help="due each second")
    parser.add_argument("--seconds", type=int, default=60)
    told = parser.parse_args()
    with server() as (folder, url), client(url) as store:
        (folder / "scale.py").write_text(PROJECT)
        environment = {
            **os.environ,
            "REDIS_URL": url,
            "ENTRIES": str(told.entries),
            "PERIOD": str(told.entries // told.each),
        }
        command = [sys.executable, "-m", "celery", "-q", "-A", "scale", "beat", "-S", "fencebeat", "--pidfile", ""]
        with (folder / "beat.log").open("wb") as log:
            beat = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            late, counted, edits, memory = _measure(store, beat.pid, told)
        finally:
            beat.terminate()
            beat.wait(30)
    expected = told.each * told.seconds
    doubled = sum(count > 1 for count in counted.values())
    p99 = quantile(late, 0.99)
    table = Table(
        "", "measured", "goal", title=f"{told.entries:,} entries, {told.each:,} due a second, {told.seconds} s"
    )
    table.add_row("ticks emitted once", f"{len(counted) - doubled:,}", f"{expected:,}")
    table.add_row("lateness, median", f"{quantile(late, 0.5):.3f} s", "")
    table.add_row("lateness, p99", f"{p99:.3f} s", f"{GOAL:.1f} s")
    table.add_row("lateness, largest", f"{max(late):.3f} s", "")
    table.add_row("edits meanwhile", str(edits), str(told.seconds))
    table.add_row("memory of the beat", f"{memory} MB", f"{MEMORY} MB")
    Console().print(table)
    held = len(counted) == expected and not doubled and memory <= MEMORY
    print(f"scale {p99:.3f} {GOAL:.3f} {GOAL / p99 if held else 0:.2f}")


def _measure(store: redis.Redis, pid: int, told: argparse.Namespace) -> tuple[list[float], Counter[str], int, int]:
    keys, clock, pause = Keys(NAMESPACE), SystemClock(), threading.Event()
    started = clock.elapsed()
    while store.llen(NAMESPACE) < 2 * told.each:  # it leads, the schedule is stored, and it emits
        assert clock.elapsed() - started < 600, "the beat does not emit"
        pause.wait(0.2)
    schedule = Schedule(store, keys)
    schedule.add("edited", {"task": "scale.work", "schedule": 3600.0})
    seconds, _ = store.time()
    first, edits = seconds + 2, 0
    while store.time()[0] < first + told.seconds:
        schedule.edit("edited", args=[edits])
        edits += 1
        pause.wait(1.0)
    while store.zcount(keys.due, "-inf", (first + told.seconds - 1) * 1000):  # what is due from then is emitted, too
        assert store.time()[0] < first + told.seconds + 60, "ticks stay due"
        pause.wait(0.2)
    late: list[float] = []
    counted: Counter[str] = Counter()
    for identity, record in store.xrange(keys.audit, min=f"{first * 1000}-0"):
        at = int(record.get("fire_time", "0"))
        if record["outcome"] == "emitted" and first <= at // SECOND < first + told.seconds:
            counted[record["task_id"]] += 1
            late.append(int(identity.split("-")[0]) / 1000 - at / SECOND)
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return late, counted, edits, memory


if __name__ == "__main__":
    main()
