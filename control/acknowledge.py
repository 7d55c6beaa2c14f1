"""Who acts on which change of the switches: every worker reports the generation it has read, four times a second.

A report is a convenience, not a proof: a worker that is frozen does not report, and cannot commit either, because the
ledger checks the switch in the commit itself. So a command can say "in force on 4 of 4 workers", or name the silent.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

import redis

from control.switches import SwitchReader
from fencebeat.clock import Clock
from fencebeat.errors import Retryable
from fencebeat.keys import Keys
from fencebeat.scripts import asking

EVERY = 0.25  # seconds between reports
FORGET = 60.0  # seconds after which it is taken off the list


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker said last. age_seconds: since then, by the store's clock. generation -1: it could not tell."""

    worker: str
    generation: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Who acts on a change after waiting `seconds` for it."""

    change: int
    workers: tuple[str, ...]
    silent: tuple[str, ...]
    seconds: float


def _key(keys: Keys) -> str:
    return f"{keys.prefix}{keys.namespace}:workers"


class Reporter:
    """A thread of the worker's parent process. `reader` and `client` are its own."""

    def __init__(self, worker: str, reader: SwitchReader, client: redis.Redis, keys: Keys) -> None:
        self._worker, self._reader, self._client, self._keys = worker, reader, client, keys
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="switch-report", daemon=True)

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and take this worker off the list."""
        self._stopping.set()
        self._thread.join(timeout=EVERY + 3.0)
        try:
            with asking(self._client):
                self._client.hdel(_key(self._keys), self._worker)
        except Retryable:
            return  # it is forgotten after FORGET seconds

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            known = self._reader.known()
            try:
                with asking(self._client):
                    seconds, micros = self._client.time()
                    report = {"generation": -1 if known is None else known.generation, "at": seconds + micros / 1e6}
                    self._client.hset(_key(self._keys), self._worker, json.dumps(report))
            except Retryable:
                continue  # silence is what a reader of the list then sees


def reports(client: redis.Redis, keys: Keys) -> list[WorkerReport]:
    """What every worker said last, those forgotten left out. Raises StoreUnreachable."""
    with asking(client):
        seconds, micros = client.time()
        record = client.hgetall(_key(keys))
    now = seconds + micros / 1e6
    found = []
    for worker, text in sorted(record.items()):
        said = json.loads(text)
        report = WorkerReport(str(worker), int(said["generation"]), now - float(said["at"]))
        if report.age_seconds < FORGET:
            found.append(report)
    return found


def wait_until_acknowledged(
    client: redis.Redis, keys: Keys, change: int, *, clock: Clock, pause: Callable[[float], None], at_most: float = 5.0
) -> Acknowledged:
    """Wait until every worker acts on `change`, for at most `at_most` seconds; silent ones are named.

    pause: sleeps that many seconds. Raises StoreUnreachable.
    """
    began = clock.elapsed()
    while True:
        known = reports(client, keys)
        acting = tuple(report.worker for report in known if report.generation >= change)
        silent = tuple(report.worker for report in known if report.generation < change)
        passed = clock.elapsed() - began
        if not silent or passed >= at_most:
            return Acknowledged(change, acting, silent, passed)
        pause(0.05)
