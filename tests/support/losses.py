"""A scheduler, its workers and its ledger around a Redis of their own, which is to be taken from them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict

from fencebeat.edits import Schedule
from fencebeat.firetimes import SECOND
from fencebeat.keys import Keys
from fencebeat.testing.beats import Cluster, NotSeen, committed
from tests.support import ticking
from tests.support.ledgers import execute, ledger_at
from tests.support.proxy import Proxy
from tests.support.redis_servers import Valkey
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LEASE = 2.0
PATIENCE = 60.0

ENTRIES = {
    name: {"task": task, "schedule": 1.0, "options": {"queue": name}, "fencebeat": {"catchup": "all"}}
    for name, task in (
        ("guarded", "ticking.guarded"),
        ("bare", "ticking.bare"),
        ("paused", "ticking.bare"),
        ("stopped", "ticking.bare"),
    )
}
STORED = {"task": "ticking.guarded", "schedule": 2.0, "options": {"queue": "guarded"}, "fencebeat": {"catchup": "all"}}


@contextmanager
def outage(server_url: str, database_url: str):
    """Postgres down for everybody: no connection to the database lives, and none can be made."""
    name = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(server_url, autocommit=True, connect_timeout=10) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@dataclass
class Scene:
    """Two beats and their workers, reached through a proxy, so that they may be led to another Redis."""

    folder: Path
    valkey: Valkey
    database_url: str
    namespace: str
    interval: float = 1.0  # of the entry `guarded`
    failpoints: str = ""  # of the first beat
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.ledger = self._open.enter_context(ledger_at(self.database_url))
        with psycopg.connect(self.database_url, connect_timeout=10) as owner:
            owner.execute(ticking.TABLE)
            owner.execute("GRANT SELECT ON effect TO fencebeat_app")
        self.proxy = self._open.enter_context(Proxy.before(self.valkey.url))
        self.keys = Keys(self.namespace)
        entries = {name: dict(line) for name, line in ENTRIES.items()}
        entries["guarded"]["schedule"] = self.interval
        settings = {
            "fencebeat_namespace": self.namespace,
            "fencebeat_lease": LEASE,
            "fencebeat_effect_store": "tasks.wiring:effect_store",
            "beat_schedule": entries,
        }
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = {
            "PYTHONPATH": path, "POSTGRES_URL": self.database_url, "EFFECTS_URL": self.database_url,
        }  # fmt: skip
        self.cluster = self._open.enter_context(
            Cluster(self.folder / "beats", self.proxy.url, settings, self.environment, project="tests.support.ticking")
        )
        self.cluster.start_beat(failpoints=self.failpoints).wait_for(committed, PATIENCE)
        self.cluster.start_beat()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)

    @contextmanager
    def client(self):
        with self.valkey.client() as client:
            yield client

    def edit(self) -> None:
        """What lives in Redis alone: a stored entry, a pause; and a stop, whose truth is the ledger's."""
        with self.client() as client:
            schedule = Schedule(client, self.keys, lease=LEASE, by="ana")
            schedule.add("stored", STORED)
            schedule.pause("paused", "night")
        execute(self.ledger, "SELECT apply_switch('entry:stopped', 'emit', 'bad parser', 'ana', 'test')")

    def worker(self, name: str, *queues: str, failpoints: str = "") -> subprocess.Popen:
        """A worker of these queues; it ends with the scene."""
        log = self._open.enter_context((self.folder / f"{name}.log").open("ab"))
        command = [sys.executable, "-m", "celery", "-A", "tests.support.ticking", "worker", "-c", "1", "-n", name]
        process = subprocess.Popen(
            [*command, "-Q", ",".join(queues), "--without-gossip", "--without-mingle", "--loglevel", "INFO"],
            cwd=ROOT,
            env={
                **os.environ, **self.environment, "REDIS_URL": self.proxy.url, "FENCEBEAT_TESTING": "1",
                "FENCEBEAT_DRIVE": json.dumps(self.cluster.settings), "FENCEBEAT_FAILPOINTS": failpoints,
                "FENCEBEAT_HISTORY": str(self.cluster.history), "FENCEBEAT_PROC": name,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._open.callback(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen) -> None:
        """SIGKILL to the worker and its pool."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def effects(self, entry: str) -> Counter[int]:
        """Fire time -> how often its task left a row."""
        rows = execute(self.ledger, "SELECT fire_time, count(*) FROM effect WHERE entry = %s GROUP BY 1", entry)
        return Counter(dict(rows))

    def copied(self, entry: str, outcome: str = "emitted") -> list[int]:
        """Fire times of which the ledger has the copied record, in order."""
        return [
            at
            for (at,) in execute(
                self.ledger,
                "SELECT fire_time FROM tick_audit WHERE entry = %s AND outcome = %s ORDER BY position",
                entry,
                outcome,
            )
        ]

    def audit(self) -> list[dict[str, str]]:
        """The audit of the Redis that answers now, oldest first."""
        with self.client() as client:
            return [fields for _, fields in client.xrange(self.keys.audit)]

    def decided(self, entry: str, outcome: str) -> list[int]:
        return [int(r["fire_time"]) for r in self.audit() if r.get("entry") == entry and r["outcome"] == outcome]

    def until(self, look, what: str, at_most: float = PATIENCE):
        """Wait, with the end of the beats' logs where it does not come true."""
        try:
            return until(look, at_most=at_most, what=what)
        except AssertionError as error:
            raise NotSeen(f"{error}\n{self.cluster.logs(40)}") from None

    def recovered(self) -> list[dict[str, str]]:
        """The audit, once the store has its generation again and something was emitted since."""

        def look():
            try:
                audit = self.audit()
            except redis.RedisError:
                return None
            return audit if any(record["outcome"] == "emitted" for record in audit) else None

        return self.until(look, "an emission after the loss")


def seconds(first: int, last: int, every: float = 1.0) -> list[int]:
    """Every fire time of an interval from `first` to `last`, in microseconds: the oracle."""
    return list(range(first, last + 1, round(every * SECOND)))
