"""Servers and processes of one smoke run, in a folder of its own. Everything ends with the process that made it."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import redis

from config.settings import Settings
from fencebeat import history
from fencebeat.clock import SystemClock
from fencebeat.keys import Keys
from fencebeat.scripts import asking
from index.ledger.migrate import upgrade
from ops import beats
from ops.errors import SmokeFailed
from ops.processes import environment
from ops.services import Addresses, Child, Services, postgres
from ops.status import ask_embedder
from tasks.wiring import Services as Application

T = TypeVar("T")

CALL_SECONDS: Final = 2.0  # of every control call of a run
LOOK_SECONDS: Final = 0.05
TENANT: Final = "smoke"
SOURCE: Final = "docs"

DOCUMENTS: Final = {
    "lease.md": "# The lease\n\nA lease is permission to act that ends by itself unless it is renewed.\n",
    "fence.md": "# The fence\n\nA store that has seen a higher fencing token refuses a lower one.\n",
    "stop.md": "# Stopping\n\nThe kill switch stops every new effect in a scope within two seconds.\n",
}


@dataclass(frozen=True)
class Request:
    """Something asked of the application: for whom, under which key, and how long the caller waits (s).

    Two requests with one key are one request: its key names the message, and a message names at most one effect.
    """

    tenant_id: str
    idempotency_key: str
    timeout: float = CALL_SECONDS

    @property
    def task_id(self) -> str:
        """The message's id: the same for every repeat of this request."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.tenant_id}/{self.idempotency_key}"))

    @property
    def headers(self) -> dict[str, str]:
        """What travels with its message."""
        return {"tenant_id": self.tenant_id, "idempotency_key": self.idempotency_key}


@dataclass(frozen=True)
class Result:
    """What a run that passed has seen."""

    name: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Stage:
    """A context manager; see the module. `facts` collects what the run has seen, `env` what its processes get."""

    def __init__(self, name: str, folder: Path | None, say: Callable[[str], None]) -> None:
        self.name = name
        self._kept = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fencebeat-smoke-"))
        self._say = say
        self.facts: dict[str, Any] = {}
        self.clock = SystemClock()
        self._began = self.clock.elapsed()
        self.env: dict[str, str] = {}
        self._services: Services | None = None
        self._failed = False

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._services is not None:
            self._services.stop()
        postgres.remove(self.folder)
        if kind is None and not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def result(self) -> Result:
        """What the run has seen so far."""
        return Result(self.name, round(self.clock.elapsed() - self._began, 1), dict(self.facts))

    def say(self, line: str) -> None:
        """Tell whoever watches."""
        self._say(f"{self.clock.elapsed() - self._began:6.1f} s  {line}")

    # servers

    def open(self, *servers: str, documents: Mapping[str, str] = DOCUMENTS) -> Addresses:
        """Start servers and the embedder, set up the ledger, and write the documents. Returns the addresses.

        OpenSearch is the target where it can run here, else pgvector. Raises ServerMissing for any other server.
        """
        self.say(f"starting {', '.join(servers)} and the embedder")
        given = {name: value for name, value in os.environ.items() if not name.startswith("FENCEBEAT_")}
        for address in ("REDIS_URL", "POSTGRES_URL", "OPENSEARCH_URL", "ETCD_URL", "EMBEDDER_URL"):
            given.pop(address, None)  # a smoke run flushes and kills: never servers of somebody else
        self._services = Services(self.folder, servers, durable=False, environ=given)
        corpus = self.folder / "corpus"
        corpus.mkdir(exist_ok=True)
        for name, text in documents.items():
            (corpus / name).write_text(text)
        self.env = environment(self.folder, given) | {
            "FENCEBEAT_HISTORY": str(self.folder / "history.jsonl"),
            "FENCEBEAT_SOURCES": json.dumps({SOURCE: {"tenant": TENANT, "path": str(corpus)}}),
            "FENCEBEAT_LOG_JSON": "1",
            "FENCEBEAT_TESTING": "1",
        }
        self.spawn("embedder", self.program("fencebeat"), "embedder")
        addresses = self._services.start()
        for server, why in addresses.missing.items():
            if server != "opensearch":
                raise why
            self.say(f"{why} The target is pgvector.")
        self.env |= addresses.environ()
        self.env["FENCEBEAT_TARGET"] = "opensearch" if addresses.opensearch_url else "pgvector"
        upgrade(self.env["POSTGRES_URL"])
        self.facts["target"] = self.env["FENCEBEAT_TARGET"]
        self.say(f"the servers are ready; the target is {self.facts['target']}")
        return addresses

    def wait_for_embedder(self) -> None:
        """Return once the model is loaded."""
        address = self.settings().embedder_address
        self.wait("loading the model", lambda: ask_embedder(address, CALL_SECONDS) == "ready", at_most=120)
        self.say("the model is loaded")

    def settings(self, **changes: str) -> Settings:
        """The settings that a process of this run with these changes has."""
        env = self.env | changes
        values: dict[str, Any] = {}
        for name, about in Settings.model_fields.items():
            alias = str(about.validation_alias or "")
            variable = alias or f"FENCEBEAT_{name.upper()}"
            if variable in env:
                values[alias or name] = env[variable] if name != "sources" else json.loads(env[variable])
        return Settings(**values)

    def application(self, **changes: str) -> Application:
        """The application's stores and steps in this process; close it."""
        return Application(self.settings(**changes))

    def redis(self, **changes: str) -> tuple[redis.Redis, Keys]:
        """A client with a time-out, and the names of the scheduler's records."""
        return beats.client(self.settings(**changes))

    # processes

    @staticmethod
    def program(name: str) -> str:
        """A program of the environment that runs this."""
        return str(Path(sys.executable).with_name(name))

    def spawn(self, name: str, *argv: str, rank: int = 1, **env: str) -> Child:
        """Start a process of this run; its output is in logs/<name>.log, its name in the history."""
        if self._services is None:
            raise RuntimeError("open() comes first")
        logs = self.folder / "logs"
        return self._services.keeper.start(
            name,
            argv,
            log=logs / f"{name}.log",
            env=self.env | {"FENCEBEAT_PROC": name} | env,
            cwd=self.folder,
            rank=rank,
        )

    def beat(self, name: str, **env: str) -> Child:
        """Start a beat."""
        schedule = self.folder / f"{name}.schedule"  # not used by our scheduler; Celery wants a place all the same
        argv = ("-A", "ops.smoke.app", "beat", "-S", "fencebeat", "--schedule", str(schedule), "--pidfile", "")
        return self.spawn(name, self.program("celery"), *argv, rank=3, **env)

    def worker(self, name: str, concurrency: int = 2, **env: str) -> Child:
        """Start a worker; `ready` waits for it."""
        argv = ("-A", "ops.smoke.app", "worker", "--concurrency", str(concurrency), "--hostname", f"{name}@%h")
        return self.spawn(name, self.program("celery"), *argv, rank=2, **env)

    def ready(self, *workers: Child) -> None:
        """Return once these workers take messages."""
        for child in workers:
            self.wait(f"starting {child.name}", lambda log=child.log: " ready." in _text(log), at_most=120)  # type: ignore[misc]  # the default binds the loop's value
            self.say(f"{child.name} is ready")

    def signal(self, child: Child | int, what: signal.Signals) -> None:
        """Send a signal to one process of this run, and say so in the history."""
        pid = child if isinstance(child, int) else child.pid
        os.kill(pid, what)
        self.say(f"{what.name} to process {pid}")

    def stop(self, child: Child) -> None:
        """Ask one process to end and wait for it; one that is gone already is fine."""
        if self._services is not None:
            self._services.keeper.stop(child)

    # waiting and judging

    def wait(self, step: str, look: Callable[[], T | None], *, at_most: float = 30.0) -> T:
        """The first true answer of `look`. Raises SmokeFailed after `at_most` seconds."""
        deadline = self.clock.elapsed() + at_most
        while True:
            seen = look()
            if seen:
                return seen
            if self.clock.elapsed() > deadline:
                raise self.failure(step, f"{seen!r} after {at_most:g} s")
            time.sleep(LOOK_SECONDS)

    def expect(self, step: str, holds: bool, seen: object) -> None:
        """Raise SmokeFailed unless it holds."""
        if not holds:
            raise self.failure(step, seen)

    def failure(self, step: str, seen: object) -> SmokeFailed:
        """What went wrong, with the place of the files, which are kept."""
        self._kept = True
        return SmokeFailed(name=self.name, step=step, seen=seen, folder=self.folder)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name that all processes have written so far."""
        lines = history.read(self.folder / "history.jsonl")
        return [line for line in lines if line["kind"] == "event" and line.get("event") == name]

    def runs(self, entry: str) -> list[int]:
        """Fire times of this entry's ticks in the order in which workers ran them, in microseconds."""
        lines = history.read(self.folder / "history.jsonl")
        return [line["fire_time"] for line in lines if line["kind"] == "ran" and line["entry"] == entry]

    def audit(self, entry: str, **changes: str) -> list[dict[str, str]]:
        """The scheduler's decisions about one entry, oldest first."""
        connected, keys = self.redis(**changes)
        with connected, asking(connected):
            records: Any = connected.xrange(keys.audit)
        return [fields for _, fields in records if fields.get("entry") == entry]

    def leader(self, **changes: str) -> beats.Leader | None:
        """The term in force, as Redis shows it."""
        settings = self.settings(**changes)
        connected, keys = beats.client(settings)
        with connected:
            return beats.look(connected, keys, lock_in_redis=settings.lock == "redis").leader


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
