"""Rows of the outbox, the queues that are known of a message, and settings that cannot work."""

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Exchange, Queue, binding

from fencebeat.configuration import Configuration
from fencebeat.errors import ImpossibleConfiguration, UnreadableRow
from fencebeat.outbox_capture import queues_of
from fencebeat.outbox_record import Message, described, entity

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    body=st.text() | st.binary(),
    headers=st.dictionaries(st.text(), JSON, max_size=4),
    priority=st.none() | st.integers(0, 9),
)
def test_a_row_gives_back_what_was_written(body, headers, priority):
    message = Message(
        entry="e",
        fire_time=1_796_070_000_000_000,
        task_id="id",
        scopes=("all", "entry:e"),
        body=body,
        content_type="application/json",
        content_encoding="utf-8",
        priority=priority,
        headers=headers,
        properties={"delivery_mode": 2},
        exchange="",
        routing_key="q",
        declare=described([Queue("q", Exchange("x", "topic"), routing_key="a.#")]),
    )
    assert Message.from_json("1-1", message.to_json()) == message


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"version": 1}', '{"version": 7, "base64": false}'])
def test_a_row_that_is_none_is_called_unreadable(text):
    with pytest.raises(UnreadableRow, match="Row 1-1 of the outbox cannot be read"):
        Message.from_json("1-1", text)


@pytest.mark.parametrize(
    "one",
    [
        Exchange("x", "fanout", durable=False, auto_delete=True, arguments={"alternate-exchange": "y"}),
        Queue("q"),
        Queue("q", Exchange("x", "topic", delivery_mode=1), routing_key="a.*", queue_arguments={"x-max-priority": 9}),
        Queue("q", expires=60.5, message_ttl=30, max_length=10, max_length_bytes=100, max_priority=3, exclusive=True),
        Queue(
            "q", bindings=[binding(Exchange("x", "headers"), "k", arguments={"x-match": "all"}), binding(Exchange("z"))]
        ),
        Queue("q", Exchange("x"), no_declare=True, auto_delete=True, durable=False),
    ],
    ids=["exchange", "plain", "topic", "limits", "bindings", "not declared"],
)
def test_what_is_declared_survives_the_row(one):
    again = entity(dict(described([one])[0]))
    assert type(again) is type(one)
    assert described([again]) == described([one])
    assert again.can_cache_declaration == one.can_cache_declaration


QUEUES = [
    Queue("direct", Exchange("d", "direct"), routing_key="key"),
    Queue("all words", Exchange("t", "topic"), routing_key="a.#"),
    Queue("one word", Exchange("t", "topic"), routing_key="a.*"),
    Queue("middle", Exchange("t", "topic"), routing_key="#.b.#"),
    Queue("fan", Exchange("f", "fanout")),
    Queue("by headers", Exchange("h", "headers")),
    Queue("second", Exchange("elsewhere"), bindings=[binding(Exchange("d", "direct"), "other")]),
]


@pytest.mark.parametrize(
    ("exchange", "key", "expected"),
    [
        ("", "any", ["any"]),
        ("d", "key", ["direct"]),
        ("d", "other", ["second"]),
        ("d", "nothing", []),
        ("t", "a", ["all words"]),
        ("t", "a.b", ["all words", "one word", "middle"]),
        ("t", "b", ["middle"]),
        ("t", "a.b.c", ["all words", "middle"]),
        ("f", "whatever", ["fan", "f"]),
        ("h", "", ["by headers"]),
        ("unknown", "x", []),
    ],
)
def test_the_queues_of_a_message_are_known_as_far_as_the_configuration_says(exchange, key, expected):
    app = Celery("queues", broker="amqp://", set_as_current=False)
    app.conf.task_queues = QUEUES
    assert queues_of(app.amqp, exchange, key, ()) == expected
    declared = [Queue("given", Exchange("unknown"))]
    assert queues_of(app.amqp, "unknown", "x", declared) == ["given"]


def configured(**conf):
    app = Celery("conf", set_as_current=False)
    app.conf.update(conf)
    return Configuration.of(app)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"broker_url": "amqp://host//"}, "fencebeat_redis_url must say which Redis"),
        ({"broker_url": "amqp://host//", "fencebeat_redis_url": "amqp://other//"}, "must be the address of a Redis"),
        ({"broker_url": "redis://a/0", "fencebeat_redis_url": "redis://b/0"}, "remove fencebeat_redis_url"),
        (
            {"broker_url": "amqp://h//", "fencebeat_redis_url": "redis://b/0", "fencebeat_outbox_limit": 0},
            "fencebeat_outbox_limit must be a number of rows above 0",
        ),
        ({"broker_url": "nonsense://h//"}, "transport cannot be loaded"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(conf, sentence):
    with pytest.raises(ImpossibleConfiguration, match=sentence):
        configured(**conf)


def test_the_broker_decides_whether_there_is_an_outbox():
    through = configured(broker_url="pyamqp://host//", fencebeat_redis_url="redis://records/3")
    assert (through.outbox, through.broker.url, through.outbox_limit) == (True, "redis://records/3", 10_000)
    direct = configured(broker_url="redis://broker/1", broker_transport_options={"global_keyprefix": "p:"})
    assert (direct.outbox, direct.broker.url, direct.keys.outbox) == (False, "redis://broker/1", "p:fencebeat:outbox")
    same = configured(broker_url="redis://broker/1", fencebeat_redis_url="redis://broker/1")
    assert same.outbox is False
