"""A Celery project with guarded tasks, told by the environment; imported by workers and by the test that sends to them.

REDIS_URL is the broker and the result backend, FENCEBEAT_CLAIMS the store of claims, EFFECTS_URL a Postgres with the
table `effect`, CLAIM_LEASE the lease in seconds. Tasks with a `gate` run until the broker's key of that name exists.
"""

import json
import os
import threading

import psycopg
import redis
from celery import Celery, Task, chord, shared_task, signals
from kombu.common import Broadcast

from fencebeat.guard import GuardedTask, current_tick, guard
from fencebeat.history import record

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:1/0")
app = Celery("guarded", broker=URL, backend=URL)
app.conf.update(
    fencebeat_claims=os.environ.get("FENCEBEAT_CLAIMS", ""),
    fencebeat_claim_lease=float(os.environ.get("CLAIM_LEASE", "2")),
    fencebeat_namespace="guarded",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_annotations={"theirs.two": {"max_retries": 11}},
)
if os.environ.get("WITH_BROADCAST"):
    app.conf.task_queues = (Broadcast("everyone", queue=f"everyone.{os.environ['FENCEBEAT_PROC']}"),)
    app.conf.task_default_queue = "everyone"


@signals.worker_ready.connect
def _ready(**_):
    record("event", event="ready")


guard(app, ["theirs.two"])


def _client():
    return redis.Redis.from_url(URL, socket_timeout=5, socket_connect_timeout=5)


def _effect(task: Task, **facts):
    tick = current_tick()
    request = task.request
    seen = {
        "task_id": request.id,
        "entry": tick.entry if tick else None,
        "attempt": tick.attempt if tick else None,
        "token": tick.token if tick else None,
        "retries": request.retries,
        "headers": request.headers,
        "delivery": request.delivery_info,
        "limits": request.timelimit,
        **facts,
    }
    record("event", event="effect", task=request.id, attempt=seen["attempt"])
    with _client() as client:
        client.rpush("effects", json.dumps(seen))


def _wait(task: Task, gate: str | None):
    tick = current_tick()
    record("event", event="started", task=task.request.id, attempt=tick.attempt if tick else None)
    if gate:
        with _client() as client:
            while not client.exists(gate):
                threading.Event().wait(0.02)


@app.task(name="effect", base=GuardedTask, bind=True, shared=False)
def effect(self, gate=None):
    _wait(self, gate)
    _effect(self)
    return "done"


@app.task(name="unguarded", bind=True, shared=False)
def unguarded(self):
    _effect(self)


@app.task(name="in_transaction", base=GuardedTask, bind=True, shared=False)
def in_transaction(self, gate=None):
    with psycopg.connect(os.environ["EFFECTS_URL"], connect_timeout=5) as connection:
        connection.execute("INSERT INTO effect VALUES (%s, %s)", (self.request.id, current_tick().attempt))
        _wait(self, gate)
        current_tick().close(connection)


@app.task(name="retrying", base=GuardedTask, bind=True, max_retries=2, shared=False)
def retrying(self, times, throw=True):
    if self.request.retries < times:
        # Not at once: this run's RETRY would be written over the result of the next one.
        raise_ = self.retry(countdown=0.5, exc=ArithmeticError("not yet"), throw=throw)
        return f"again: {raise_}"
    _effect(self)
    return "done"


@app.task(name="failing", base=GuardedTask, bind=True, shared=False)
def failing(self):
    _effect(self)
    raise ArithmeticError("on purpose")


@app.task(name="hard", base=GuardedTask, bind=True, time_limit=1, shared=False)
def hard(self):
    _wait(self, "never")


@app.task(name="soft", base=GuardedTask, bind=True, soft_time_limit=1, shared=False)
def soft(self):
    _wait(self, "never")


@app.task(name="add", shared=False)
def add(one, other):
    return one + other


@app.task(name="total", shared=False)
def total(numbers):
    return sum(numbers)


@app.task(name="chording", base=GuardedTask, bind=True, shared=False)
def chording(self):
    return chord([add.s(n, n) for n in range(4)])(total.s()).id


@shared_task(name="theirs.one", bind=True)
def theirs_one(self):
    _effect(self, guarded=isinstance(self, GuardedTask))


@shared_task(name="theirs.two", bind=True)
def theirs_two(self):
    _effect(self, guarded=isinstance(self, GuardedTask), max_retries=self.max_retries)
