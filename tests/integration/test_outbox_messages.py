"""What the outbox publishes is what `send_task` would have sent to the same RabbitMQ, field by field."""

import pytest
from celery.exceptions import Ignore
from kombu import Exchange, Queue
from kombu.common import Broadcast

from fencebeat.clock import SystemClock
from fencebeat.entries import entry_of
from fencebeat.outbox_capture import OutboxRenderer
from fencebeat.outbox_record import Message
from fencebeat.outbox_sending import Sender
from fencebeat.ticks import task_id
from tests.support.outboxes import Arrivals, application
from tests.support.waiting import until

FIRE_TIME = 1_796_070_000_000_000


@pytest.fixture
def arrivals(rabbitmq_url):
    made = Arrivals(rabbitmq_url)
    yield made
    made.close()


@pytest.fixture
def make(rabbitmq_url, namespace):
    """An application, its renderer and its sender."""
    made = []

    def of(**conf):
        app = application(rabbitmq_url, namespace, **conf)
        made.append((app, OutboxRenderer(app, namespace, 5.0, key="box"), Sender(app, SystemClock(), 5.0)))
        return made[-1]

    yield of
    for app, renderer, sender in made:
        sender.close()
        renderer.close()
        app.close()


def published(sender, text):
    """Publish one row and wait for what became of it."""
    sender.send("1-1", Message.from_json("1-1", text))
    (settled,) = until(lambda: sender.settled(1.0), what="a confirm")
    return settled


CASES = {
    "plain": ({}, {}, "{ns}"),
    "priority": ({}, {"queue": "{ns}", "priority": 6}, "{ns}"),
    "with a priority queue": (
        {"task_queues": [Queue("{ns}", queue_arguments={"x-max-priority": 9})]},
        {"priority": 6},
        "{ns}",
    ),
    "routed": ({"task_routes": {"t.*": {"queue": "{ns}.routed"}}}, {}, "{ns}.routed"),
    "transient": ({"task_default_delivery_mode": "transient"}, {}, "{ns}"),
    "transient exchange": (
        {"task_queues": [Queue("{ns}", Exchange("{ns}", "topic", delivery_mode=1), routing_key="a.#")]},
        {"queue": "{ns}", "routing_key": "a.b"},
        "{ns}",
    ),
    "expiration": ({}, {"expiration": 300.5}, "{ns}"),
    "expires": ({}, {"expires": 3600, "headers": {"mine": [1, "two", None, True]}}, "{ns}"),
    "quorum": ({"task_default_queue_type": "quorum"}, {}, "{ns}"),
    "queue with options": (
        {"task_queues": [Queue("{ns}", expires=60, message_ttl=30, max_length=10)]},
        {},
        "{ns}",
    ),
    "compressed": ({"task_compression": "gzip"}, {}, "{ns}"),
    "yaml": ({"task_serializer": "yaml"}, {}, "{ns}"),
    "msgpack": ({"task_serializer": "msgpack"}, {}, "{ns}"),
    "pickle": ({"task_serializer": "pickle", "accept_content": ["pickle"]}, {}, "{ns}"),
    "protocol 1": ({"task_protocol": 1}, {}, "{ns}"),
    "rpc results": ({"result_backend": "rpc://"}, {}, "{ns}"),
    "given properties": ({}, {"message_id": "mine", "app_id": "theirs", "content_encoding": None}, "{ns}"),
    "two bindings": (
        {
            "task_queues": [
                Queue(
                    "{ns}",
                    Exchange("{ns}.one", "topic"),
                    routing_key="x.*",
                    binding_arguments={"why": "because"},
                    durable=False,
                )
            ]
        },
        {"queue": "{ns}", "exchange": "{ns}.one", "routing_key": "x.y"},
        "{ns}",
    ),
}


def named(value, namespace):
    """The case with the test's own names in it."""
    if isinstance(value, str):
        return value.replace("{ns}", namespace)
    if isinstance(value, dict):
        return {key: named(one, namespace) for key, one in value.items()}
    if isinstance(value, list):
        return [named(one, namespace) for one in value]
    if isinstance(value, Queue):
        facts = value.as_dict()
        facts["exchange"] = named(value.exchange, namespace)
        return Queue(**{**facts, "name": named(value.name, namespace)})
    if isinstance(value, Exchange):
        return Exchange(**{**value.as_dict(), "name": named(value.name, namespace)})
    return value


@pytest.mark.parametrize("name", CASES)
def test_the_message_is_the_one_that_celery_would_have_sent(make, arrivals, namespace, name):
    conf, options, queue = (named(part, namespace) for part in CASES[name])
    app, renderer, sender = make(**conf)
    line = {"task": "t.work", "schedule": 60.0, "args": [1, "ü"], "kwargs": {"a": "b"}, "options": options}

    identity, captured = renderer.render(entry_of("e", line), FIRE_TIME, 7)
    (row,) = captured.commands
    assert (row.name, row.key) == ("xadd", "box")
    assert published(sender, row.value).fate == "published"
    (ours,) = arrivals.wait_for(queue, 1)
    told = {key: value for key, value in ours.headers.items() if key.startswith(("fencebeat_", "celery_beat", "trace"))}
    headers = {**options.get("headers", {}), **told}
    app.send_task("t.work", [1, "ü"], {"a": "b"}, task_id=identity, **{**options, "headers": headers})
    (theirs,) = arrivals.wait_for(queue, 1)

    assert identity == task_id(namespace, "e", FIRE_TIME)
    assert comparable(ours) == comparable(theirs)
    assert ours.properties["message_id"] == options.get("message_id", identity)
    assert set(ours.properties) - set(theirs.properties) <= {"message_id"}
    assert captured.message_id == ours.properties["message_id"]


def comparable(message):
    headers = dict(message.headers)
    headers["expires"] = headers.get("expires") is not None  # a moment after now
    properties = {key: value for key, value in message.properties.items() if key != "application_headers"}
    properties["message_id"] = None  # ours has one always, Celery's where the program gives it
    where = {key: message.delivery_info[key] for key in ("exchange", "routing_key")}
    body = message.body
    return headers, properties, where, body, message.content_type, message.content_encoding


def test_a_broadcast_reaches_every_queue_of_its_exchange(make, arrivals, namespace):
    _, renderer, sender = make(task_queues=[Broadcast(f"{namespace}.all")])
    for queue in (f"{namespace}.1", f"{namespace}.2"):
        arrivals.declare(queue, exchange=Exchange(f"{namespace}.all", "fanout"), auto_delete=False)
    line = {"task": "t.work", "schedule": 60.0, "options": {"queue": f"{namespace}.all"}}

    _, captured = renderer.render(entry_of("e", line), FIRE_TIME, 7)

    assert captured.queues == [f"{namespace}.all"]
    assert published(sender, captured.commands[0].value).fate == "published"
    for queue in (f"{namespace}.1", f"{namespace}.2"):
        assert len(arrivals.wait_for(queue, 1)) == 1


def test_a_broadcast_that_nobody_hears_is_unroutable(make, namespace):
    _, renderer, sender = make(task_queues=[Broadcast(f"{namespace}.all")])
    line = {"task": "t.work", "schedule": 60.0, "options": {"queue": f"{namespace}.all"}}

    settled = published(sender, renderer.render(entry_of("e", line), FIRE_TIME, 7)[1].commands[0].value)

    assert (settled.fate, "312" in settled.reason) == ("unroutable", True)


def test_messages_are_made_while_the_broker_is_down(make):
    _, renderer, _ = make(broker_url="amqp://guest:guest@127.0.0.1:1//")
    _, captured = renderer.render(entry_of("e", {"task": "t.work", "schedule": 60.0}), FIRE_TIME, 7)
    assert [command.name for command in captured.commands] == ["xadd"]


def test_an_entry_whose_header_has_no_json_is_refused_before_it_is_committed(make):
    _, renderer, _ = make()
    line = {"task": "t.work", "schedule": 60.0, "options": {"headers": {"odd": Ignore}}}
    with pytest.raises(Exception, match="JSON"):
        renderer.render(entry_of("e", line), FIRE_TIME, 7)
