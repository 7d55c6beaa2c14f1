"""The scheduler's messages beside Celery's own, field by field, and a stock worker that runs them.

Everything twice: with the fast path and without it. Apart from the fields named in `RANDOM` and `PASSING` a message of
the scheduler is the one that the same application sends by itself, with the headers that the README documents.
"""

import base64
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.serialization import loads

from fencebeat.scheduler import Scheduler
from fencebeat.templates import Templates
from fencebeat.ticks import traceparent
from tests.support.waiting import until

RANDOM = ("delivery_tag", "expiration")
"""Properties that are made anew for each message; `expiration`, in milliseconds, counts from the moment of sending."""
PASSING = ("expires", "eta")
"""Headers that count from the moment of sending."""
TICKS = 3
"""Messages of each entry that are compared: the fast path begins with the second or third."""

ENTRIES = {
    "plain": {"task": "unknown.here", "args": (1, "two"), "kwargs": {"three": [3, None, 4.5]}},
    "registered": {"task": "compat.known", "args": (1,)},
    "queue-and-priority": {"task": "unknown.here", "options": {"queue": "named", "priority": 6}},
    "routed": {"task": "routed.somewhere"},
    "expires": {"task": "unknown.here", "options": {"expires": 3600}},
    "expires-then": {"task": "unknown.here", "options": {"expires": datetime(2199, 1, 1, tzinfo=UTC)}},
    "limits": {"task": "unknown.here", "options": {"time_limit": 9, "soft_time_limit": 7, "ignore_result": True}},
    "headers": {"task": "unknown.here", "options": {"headers": {"mine": "1"}, "shadow": "another name"}},
    "topic": {"task": "unknown.here", "options": {"queue": "topics", "routing_key": "a.b.c"}},
    "everyone": {"task": "unknown.here", "options": {"queue": "everyone"}},
}
CONF = {
    "task_routes": {"routed.*": {"queue": "routed", "routing_key": "routed"}},
    "task_queues": [
        Queue("celery", Exchange("celery"), routing_key="celery"),
        Queue("topics", Exchange("topics", "topic"), routing_key="a.#"),
        Broadcast("everyone"),
    ],
}
SETTINGS = {
    "stock": {},
    "msgpack": {"task_serializer": "msgpack", "accept_content": ["json", "msgpack"]},
    "global_keyprefix": {"broker_transport_options": {"global_keyprefix": "pre:"}},
    "a result backend": {"result_backend": "redis"},
    "compression": {"task_compression": "gzip"},
    "priority steps": {
        "broker_transport_options": {"priority_steps": [0, 5], "queue_order_strategy": "priority", "sep": ":"},
        "task_default_priority": 5,
    },
}


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def fast_path(request):
    return request.param


@pytest.fixture
def app(redis_url, namespace, fast_path, settings):
    made = Celery("compat", broker=redis_url, set_as_current=False)
    own = SETTINGS[settings]
    made.conf.update(CONF)
    made.conf.update({**own, **({"result_backend": redis_url} if "result_backend" in own else {})})
    made.conf.update(
        fencebeat_namespace=namespace,
        fencebeat_fast_path=fast_path,
        result_expires=None,
        beat_schedule={
            name: {"schedule": 0.3, "fencebeat": {"catchup": "all"}, **line} for name, line in ENTRIES.items()
        },
    )

    @made.task(name="compat.known", shared=False, time_limit=11, serializer="json")
    def known(*_args):
        """Do nothing."""

    yield made
    made.close()


@contextmanager
def wire(client):
    """What reaches the broker: a function that gives the messages since its last call, as (key, message)."""
    with client.pubsub() as published:
        published.psubscribe("*")
        assert published.get_message(timeout=5)["type"] == "psubscribe"

        def new():
            found = []
            client.publish("that is all", "")  # whatever was published before has been received when this is
            while (one := published.get_message(timeout=5))["channel"] != "that is all":
                found.append((one["channel"], json.loads(one["data"])))
            lists = (key for key in client.scan_iter(_type="list") if "lock-signal" not in key)
            for key in lists:
                found.extend((key, json.loads(raw)) for raw in reversed(client.lrange(key, 0, -1)))
                client.delete(key)
            return found

        yield new


def of_the_scheduler(app, new):
    """Let the scheduler emit each entry TICKS times at least; its messages as (key, message) by entry."""
    scheduler = Scheduler(app)
    found = {name: [] for name in ENTRIES}
    try:

        def enough():
            scheduler.tick()
            for key, message in new():
                found[message["headers"]["fencebeat_entry"]].append((key, message))
            return all(len(messages) >= TICKS for messages in found.values())

        until(enough, at_most=30, what="every entry emitted three times")
    finally:
        scheduler.close()
    return found


def of_celery(app, new, line, headers):
    """The same task sent by the application itself; the message as (key, message)."""
    options = line.get("options", {})
    ours = {name: value for name, value in headers.items() if name.startswith("fencebeat_")}
    ours |= {name: headers[name] for name in ("celery_beat_task", "traceparent")}
    options = {**options, "headers": {**options.get("headers", {}), **ours}, "task_id": headers["id"]}
    args, kwargs = list(line.get("args", ())), line.get("kwargs")  # a list, as Celery's beat sends them
    with app.producer_pool.acquire(block=True) as producer:
        # Celery does not declare a Broadcast queue: where no worker shares the connection, kombu drops the message.
        app.amqp.queues["everyone"].exchange(producer.channel).declare()
        task = app.tasks.get(line["task"])
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            app.send_task(line["task"], args, kwargs, producer=producer, **options)
    (one,) = new()
    return one


def comparable(key, message):
    """A message without what is random or passing, and with its body unpacked."""
    properties = {name: value for name, value in message["properties"].items() if name not in RANDOM}
    headers = {name: value for name, value in message["headers"].items() if name not in PASSING}
    body = base64.b64decode(message["body"])
    kind = message["content-type"]
    if "compression" not in headers:
        body = loads(body, kind, message["content-encoding"], accept=[kind])
    return {**message, "key": key, "properties": properties, "headers": headers, "body": body}


def seconds_left(message, name):
    """Seconds from now to a passing header; for `expiration`, of the message. None where it has none."""
    if name == "expiration":
        left = message["properties"].get(name)
        return None if left is None else float(left) / 1000
    text = message["headers"][name]
    return None if text is None else (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()


SLOW_SETTINGS = {"msgpack", "compression"}
"""Settings under which every message goes Celery's own way."""


@pytest.fixture
def templated(monkeypatch):
    """Names of the entries whose messages came from templates."""
    names = set()
    theirs = Templates.message

    def message(self, entry, fire_time, token):
        made = theirs(self, entry, fire_time, token)
        if made is not None and token:  # without a token it only makes the template
            names.add(entry.name)
        return made

    monkeypatch.setattr(Templates, "message", message)
    return names


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_field_is_the_one_that_celery_would_have_sent(app, client, fast_path, settings, templated) -> None:
    with wire(client) as new:
        found = of_the_scheduler(app, new)
        for name, messages in found.items():
            for key, message in messages:
                own_key, own = of_celery(app, new, ENTRIES[name], message["headers"])
                assert comparable(key, message) == comparable(own_key, own), name
                for passing in (*PASSING, "expiration"):
                    left, own_left = seconds_left(message, passing), seconds_left(own, passing)
                    assert (left is None) == (own_left is None), name
                    assert left is None or abs(left - own_left) < 60, name  # it was sent a moment earlier
    fast = fast_path and settings not in SLOW_SETTINGS
    assert templated >= {"plain", "expires", "queue-and-priority", "routed"} if fast else not templated
    tags = [message["properties"]["delivery_tag"] for messages in found.values() for _, message in messages]
    assert len(tags) == len(set(tags)), "equal tags collide among unacknowledged messages"


PROJECT = """
import json, os
import redis
from celery import Celery, chord
from celery.signals import worker_process_init
from kombu import Queue
from kombu.common import Broadcast

told = json.loads(os.environ["COMPAT"])
url = os.environ["REDIS_URL"]
app = Celery("proj", broker=url, backend=url)
app.conf.update(
    worker_enable_remote_control=False,
    task_queues=[Queue("celery"), Queue("prio"), Queue("routed"), Broadcast("everyone")],
    task_routes={"proj.routed": {"queue": "routed"}},
    beat_schedule={
        "added": {"task": "proj.added", "schedule": 0.5, "args": (1, 2)},
        "urgent": {"task": "proj.urgent", "schedule": 0.5, "options": {"queue": "prio", "priority": 6}},
        "routed": {"task": "proj.routed", "schedule": 0.5},
        "expiring": {"task": "proj.expiring", "schedule": 0.5, "options": {"expires": 60}},
        "chorded": {"task": "proj.chorded", "schedule": 0.5},
        "announced": {"task": "proj.announced", "schedule": 0.5, "options": {"queue": "everyone"}},
    },
)
app.conf.update(told["conf"])
seen = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)



@worker_process_init.connect(weak=False)
def instrument(**_):
    if not told["spans"]:
        return
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    out = open(told["spans"], "a")
    one_line = lambda span: span.to_json(indent=None) + "\\n"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=one_line)))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def tell(name, identity, value):
    seen.rpush("seen:" + name, json.dumps([identity, value]))
    return value


@app.task(name="proj.added", bind=True)
def added(self, x, y):
    return tell("added", self.request.id, x + y)


@app.task(name="proj.urgent", bind=True)
def urgent(self):
    return tell("urgent", self.request.id, self.request.delivery_info["priority"])


@app.task(name="proj.routed", bind=True)
def routed(self):
    return tell("routed", self.request.id, self.request.delivery_info["routing_key"])


@app.task(name="proj.expiring", bind=True)
def expiring(self):
    return tell("expiring", self.request.id, self.request.expires is not None)


@app.task(name="proj.announced", bind=True)
def announced(self):
    return tell("announced", self.request.id, "heard")


@app.task(name="proj.part")
def part(x):
    return x


@app.task(name="proj.collected")
def collected(parts, identity):
    return tell("chorded", identity, sum(parts))


@app.task(name="proj.chorded", bind=True)
def chorded(self):
    chord([part.s(1), part.s(2), part.s(3)])(collected.s(self.request.id))
    return 6
"""
EXPECTED = {"added": 3, "urgent": 6, "routed": "routed", "expiring": True, "chorded": 6, "announced": "heard"}
PREFIX = {"global_keyprefix": "pre:"}
VARIANTS = {
    "stock": {},
    "msgpack, prefix, telemetry": {
        "task_serializer": "msgpack",
        "result_serializer": "msgpack",
        "accept_content": ["json", "msgpack"],
        "broker_transport_options": PREFIX,
        "result_backend_transport_options": PREFIX,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stock_worker_runs_what_the_scheduler_emits(tmp_path, redis_url, client, fast_path, variant) -> None:
    (tmp_path / "proj.py").write_text(PROJECT)
    conf, spans = VARIANTS[variant], tmp_path / "spans.jsonl" if "telemetry" in variant else None
    told = {"conf": {**conf, "fencebeat_fast_path": fast_path}, "spans": str(spans) if spans else ""}
    beat = ["beat", "-S", "fencebeat", "--pidfile", ""]
    worker = ["worker", "--pool", "solo", "--without-gossip", "--without-mingle"]
    with celery(tmp_path, redis_url, told, worker), celery(tmp_path, redis_url, told, beat):
        for name in EXPECTED:
            until(lambda: client.llen(f"seen:{name}") >= TICKS, at_most=60, what=f"{name} ran, see {tmp_path}")  # noqa: B023
    ran = {name: [json.loads(raw) for raw in client.lrange(f"seen:{name}", 0, -1)] for name in EXPECTED}
    emitted = {fields["task_id"] for _, fields in client.xrange(audit_key(conf)) if fields["outcome"] == "emitted"}
    with Celery("reader", broker=redis_url, backend=redis_url, set_as_current=False) as reader:
        reader.conf.update(conf)
        for name, value in EXPECTED.items():
            identities = [identity for identity, _ in ran[name]]
            assert {returned for _, returned in ran[name]} == {value}
            assert len(identities) == len(set(identities)), f"{name} ran a tick twice"
            assert set(identities) <= emitted
            meta = until(lambda: reader.backend.get_task_meta(identities[0]), what="a result")  # noqa: B023
            assert (meta["status"], meta["result"]) == ("SUCCESS", value)
    if spans:
        traces = {json.loads(line)["context"]["trace_id"] for line in spans.read_text().splitlines()}
        assert f"0x{traceparent(ran['added'][0][0]).split('-')[1]}" in traces


def audit_key(conf):
    return f"{conf.get('broker_transport_options', {}).get('global_keyprefix', '')}fencebeat:audit"


@contextmanager
def celery(folder, redis_url, told, arguments):
    """One process of the foreign project; ended by SIGTERM, which it must obey."""
    env = {**os.environ, "REDIS_URL": redis_url, "COMPAT": json.dumps(told)}
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "proj", *arguments], cwd=folder, env=env, stdout=log, stderr=log
        )
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
