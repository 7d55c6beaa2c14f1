"""How fast 1,000 due ticks reach the queue, against Celery's own beat in the same run on the same Valkey.

Ours: `Rounds.run` until nothing is due. Each tick goes the whole real way: what is due is asked from the store, the
fire time and the policy are computed, the message is rendered by Celery and kombu and captured, and `commit.lua` checks
fence, version, flags and mark, enqueues and records, in batches of 100. One process, no other beats, no effect store.

Peers: the same 1,000 entries through `apply_entry` of `celery.beat.Scheduler` (what Celery's beat does with a due
entry; it checks and records nothing), and the same messages by `app.send_task`.

Each is measured ROUNDS times, in turn; the fastest counts. The last line is `emit ours peer ratio`: seconds, seconds
of `apply_entry`, and how many times faster than it we are (below 1: slower).
"""

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis
from celery import Celery, beat
from rich.console import Console
from rich.table import Table

from fencebeat.clock import SystemClock
from fencebeat.configuration import Configuration
from fencebeat.entries import read_schedule
from fencebeat.firetimes import SECOND
from fencebeat.recovery import Recovery
from fencebeat.render import Renderer
from fencebeat.rounds import Rounds
from fencebeat.store import Store
from ops.services import Services

COUNT = 1000
ROUNDS = 5
HOUR = 3600
QUEUE = "bench"


def main() -> None:
    """Measure and print."""
    logging.disable(logging.WARNING)  # one line for each message costs both sides the same and says nothing
    with tempfile.TemporaryDirectory(prefix="fencebeat-bench-") as folder:
        services = Services(Path(folder), ("valkey",), durable=False, environ={})
        try:
            url = services.start().redis_url
            assert url is not None
            figures = _measure(url)
        finally:
            services.stop()
    table = Table("emitting", "seconds", "messages a second", title=f"{COUNT:,} due ticks, the fastest of {ROUNDS}")
    for name, seconds in figures.items():
        table.add_row(name, f"{seconds:.3f}", f"{COUNT / seconds:,.0f}")
    Console().print(table)
    ours, peer = figures["fencebeat"], figures["celery beat apply_entry"]
    print(f"emit {ours:.3f} {peer:.3f} {peer / ours:.2f}")


def _measure(url: str) -> dict[str, float]:
    app = Celery("bench", broker=url, set_as_current=False)
    line = {"task": "bench.work", "schedule": float(HOUR), "args": (1, "two"), "options": {"queue": QUEUE}}
    app.conf.update(
        fencebeat_namespace="bench",
        fencebeat_lease=60.0,  # nothing renews it here
        result_expires=None,
        beat_schedule={f"entry-{number:04}": line for number in range(COUNT)},
    )
    app.finalize()
    limits = {"socket_timeout": 10, "socket_connect_timeout": 10}
    app.conf.broker_transport_options = limits
    with redis.Redis.from_url(url, decode_responses=True, **limits) as client, app:
        ways = {
            "fencebeat": _ours(app, client),
            "celery beat apply_entry": _celery_beat(app),
            "app.send_task": _send_task(app),
        }
        figures = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, way in ways.items():
                client.delete(QUEUE)
                figures[name] = min(figures[name], way())
                assert client.llen(QUEUE) == COUNT, f"{name} put {client.llen(QUEUE)} messages on the queue"
    return figures


def _ours(app: Celery, client: redis.Redis) -> Callable[[], float]:
    configuration = Configuration.of(app)
    keys, lock = configuration.keys, configuration.make_lock()
    term = lock.acquire("bench")
    assert term is not None
    ticks = configuration.broker.client(10.0)
    Recovery(ticks, keys, carrier=lock.carrier)(term)
    entries, refused = read_schedule(app.conf.beat_schedule, lease=configuration.timing.lease)
    assert not refused
    rounds = Rounds(
        Store(ticks, keys, carrier=lock.carrier),
        Renderer(app, configuration.namespace, 10.0),
        entries,
        clock=SystemClock(),
        tolerance=configuration.tolerance,
        leading=lambda: term,
        extended=lambda *_: None,
        flags_generation=lambda: None,
    )
    rounds.run(term)  # the first round stores the schedule and opens the connections

    def once() -> float:
        seconds, _ = client.time()
        mark = (seconds - HOUR) * SECOND  # an hourly fire time lies between this mark and now, whatever the minute
        client.hset(keys.last, mapping=dict.fromkeys(entries, mark))
        client.zadd(keys.due, dict.fromkeys(entries, seconds * 1000 - 1))
        began = time.perf_counter()
        while rounds.run(term) == 0:
            pass
        return time.perf_counter() - began

    return once


def _celery_beat(app: Celery) -> Callable[[], float]:
    scheduler = beat.Scheduler(app, schedule={})
    scheduler.install_default_entries = lambda _data: None  # no clean-up task of its own
    scheduler.setup_schedule()
    scheduler.update_from_dict(app.conf.beat_schedule)
    due = list(scheduler.schedule.values())

    def once() -> float:
        began = time.perf_counter()
        for entry in due:
            scheduler.apply_entry(entry, producer=scheduler.producer)
        return time.perf_counter() - began

    return once


def _send_task(app: Celery) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        with app.producer_pool.acquire(block=True) as producer:
            for _ in range(COUNT):
                app.send_task("bench.work", (1, "two"), queue=QUEUE, producer=producer)
        return time.perf_counter() - began

    return once


if __name__ == "__main__":
    main()
