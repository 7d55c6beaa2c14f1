"""Real workers of `tests.support.guarded`, the ticks they get, and copies of the messages."""

import json
import os
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis
from celery import Celery
from celery.states import READY_STATES

from fencebeat import history
from fencebeat.claims import Tick
from fencebeat.claims.postgres import PostgresClaims
from tests.support.claims import tick
from tests.support.processes import Group
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 60  # a worker on a loaded machine


class Worker(Group):
    """One worker process and its pool."""

    def __init__(self, place: "Place", name: str, *options: str, failpoints: str = "", **env: str) -> None:
        self._place = place
        command = [sys.executable, "-m", "celery", "-A", "tests.support.guarded", "worker", "--hostname"]
        command += [f"{name}@test", "--without-gossip", "--without-mingle", "--loglevel", "INFO", *options]
        told = {"FENCEBEAT_PROC": name, "FENCEBEAT_TESTING": "1", "FENCEBEAT_FAILPOINTS": failpoints, **env}
        super().__init__(name, command, {**os.environ, **place.environment, **told}, place.folder / f"{name}.log")

    def said(self, event, **facts):
        """This worker's history lines about an event."""
        return [line for line in self._place.said(event, **facts) if line["proc"] == self.name]

    def wait_for(self, event, *, times=1, at_most=START_SECONDS, **facts):
        """Its lines about an event, once there are so many."""
        return until(
            lambda: seen if len(seen := self.said(event, **facts)) >= times else None,
            at_most=at_most,
            what=f"{self.name}: {times} x {event} {facts}; see {self.log}",
        )


@dataclass
class Place:
    """One broker database and one store of claims, shared by the workers of a test."""

    folder: Path
    redis_url: str
    database_url: str
    lease: float = 2.0
    claims_url: str = ""
    _open: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.claims_url = self.claims_url or self.database_url
        self.history = self.folder / "history.jsonl"
        self.client = redis.Redis.from_url(self.redis_url, socket_timeout=5, socket_connect_timeout=5)
        self.claims = PostgresClaims(self.database_url, "guarded")
        self.claims.install()
        self.app = Celery("sender", broker=self.redis_url, set_as_current=False)
        self._results = Celery(
            "reader", backend=self.redis_url, set_as_current=False
        )  # a sender would subscribe to each
        with psycopg.connect(self.database_url) as connection:
            connection.execute("CREATE TABLE effect (task_id uuid, attempt int)")
        self._open.callback(self.app.close)
        self._open.callback(self._results.close)
        self._open.callback(self.client.close)
        self._open.callback(self.claims.disconnect)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "REDIS_URL": self.redis_url,
            "EFFECTS_URL": self.database_url,
            "FENCEBEAT_CLAIMS": self.claims_url,
            "CLAIM_LEASE": str(self.lease),
            "FENCEBEAT_HISTORY": str(self.history),
        }

    def worker(self, name: str, *options: str, **more: str) -> Worker:
        """A worker; it ends with the test."""
        return self._open.enter_context(Worker(self, name, *options, **more))

    def send(self, task: str, *, of: Tick | None = None, headers=None, **options) -> Tick:
        """Put a tick's message on the queue, as the scheduler would; kwargs go to the task."""
        one = of or tick()
        named = {"fencebeat_entry": one.entry, "fencebeat_fire_time": one.fire_time, "fencebeat_token": one.token}
        named["fencebeat_tick"] = f"{one.entry}@{one.fire_time // 1_000_000}"
        self.app.send_task(task, task_id=one.task_id, headers={**named, **(headers or {})}, **options)
        return one

    def raw(self, queue="celery") -> list[bytes]:
        """The messages that wait on the queue."""
        return self.client.lrange(queue, 0, -1)

    def take(self, queue="celery") -> list[bytes]:
        """Take the waiting messages off the queue; only while no worker listens."""
        raw = self.raw(queue)
        self.client.delete(queue)
        return raw

    def copy(self, raw: bytes, queue="celery") -> None:
        """Deliver the same message once more; its delivery tag is the broker's own matter."""
        message = json.loads(raw)
        message["properties"]["delivery_tag"] = str(uuid.uuid4())
        self.client.lpush(queue, json.dumps(message))

    def held(self, task_id: str) -> int:
        """How many messages of a task the broker holds, waiting or not yet acknowledged."""
        waiting = [
            raw for key in self.client.keys("celery*") if self.client.type(key) == b"list" for raw in self.raw(key)
        ]
        unacknowledged = list(self.client.hgetall("unacked").values())
        return sum(task_id.encode() in raw for raw in [*waiting, *unacknowledged])

    def open(self, gate: str) -> None:
        """Let the tasks that wait for this gate go on."""
        self.client.set(gate, "open")

    def effects(self, task_id: str | None = None) -> list[dict]:
        """The effects that tasks have had, oldest first."""
        seen = [json.loads(raw) for raw in self.client.lrange("effects", 0, -1)]
        return [one for one in seen if task_id in (None, one["task_id"])]

    def rows(self) -> list[tuple[str, int]]:
        """The effects in Postgres: task id and attempt."""
        with psycopg.connect(self.database_url) as connection:
            return connection.execute("SELECT task_id::text, attempt FROM effect").fetchall()

    def said(self, event, **facts):
        """History lines of all workers about an event."""
        return [
            line
            for line in history.read(self.history)
            if (line.get("event") or line.get("name")) == event
            and all(line.get(key) == value for key, value in facts.items())
        ]

    def wait_for(self, event, *, times=1, at_most=START_SECONDS, **facts):
        """Lines of any worker about an event, once there are so many."""
        return until(
            lambda: seen if len(seen := self.said(event, **facts)) >= times else None,
            at_most=at_most,
            what=f"{times} x {event} {facts}; see {self.folder}",
        )

    def result(self, task_id: str) -> tuple[str, object]:
        """State and result of a task, once Celery has recorded its end."""
        meta = self._results.backend.get_task_meta
        until(lambda: meta(task_id, cache=False)["status"] in READY_STATES, at_most=START_SECONDS, what="a result")
        seen = meta(task_id, cache=False)
        return seen["status"], seen["result"]

    def outcome(self, one: Tick) -> str | None:
        """How a tick ended; None while it has not."""
        state = self.claims.look([one.task_id]).get(one.task_id)
        return state.outcome if state else None

    def wait_until_closed(self, one: Tick, at_most=START_SECONDS) -> str:
        return until(lambda: self.outcome(one), at_most=at_most, what=f"{one.entry} closed; see {self.folder}")

    def wait_until_idle(self) -> None:
        """Until the broker holds nothing any more."""
        until(lambda: not self.raw() and not self.client.hlen("unacked"), at_most=START_SECONDS, what="an empty broker")
