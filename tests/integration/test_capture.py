"""Messages are Celery's own, byte for byte where nothing is random, and none reaches the broker before the commit."""

import base64
import contextlib
import json
import warnings

import pytest
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport.virtual.base import UndeliverableWarning

from fencebeat.capture import Sink, capturing
from fencebeat.entries import entry_of
from fencebeat.errors import ImpossibleConfiguration, StoreUnreachable, UncapturedWrite
from fencebeat.ticks import task_id

FIRE_TIME = 1_796_070_000_000_000


@pytest.fixture
def renderer(make_renderer):
    return make_renderer


def line(**more):
    return {"task": "t.work", "schedule": 60.0, "args": [1], "kwargs": {"a": "b"}, **more}


def commands(captured):
    return [(command.name, command.key) for command in captured.commands]


def test_a_message_is_collected_and_nothing_is_sent(make_app, renderer, client) -> None:
    identity, captured = renderer(make_app()).render(entry_of("e", line()), FIRE_TIME, 7)
    assert identity == task_id("ns", "e", FIRE_TIME)
    assert commands(captured) == [("lpush", "celery")]
    assert captured.queues == ["celery"]
    message = json.loads(captured.commands[0].value)
    assert captured.message_id == message["properties"]["delivery_tag"]
    assert message["properties"]["correlation_id"] == identity
    headers = message["headers"]
    assert headers["fencebeat_tick"] == "e@1796070000"
    assert (headers["fencebeat_entry"], headers["fencebeat_fire_time"], headers["fencebeat_token"]) == (
        "e",
        FIRE_TIME,
        7,
    )
    assert headers["traceparent"].startswith("00-")
    assert client.exists("celery") == 0


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ({}, {}),
        ({"task_default_queue": "other"}, {}),
        ({}, {"queue": "named", "priority": 6}),
        ({"broker_transport_options": {"queue_order_strategy": "priority", "priority_steps": [0, 5]}}, {"priority": 5}),
        ({"broker_transport_options": {"global_keyprefix": "pre:"}}, {}),
        ({"task_queues": [Queue("short", queue_arguments={"x-expires": 60_000})]}, {"queue": "short"}),
        ({"task_routes": {"t.*": {"queue": "routed"}}}, {}),
        ({"task_queues": [Queue("topic", Exchange("ex", "topic"), routing_key="a.#")]}, {"queue": "topic"}),
        ({"task_compression": "gzip"}, {"headers": {"mine": "1"}, "expires": 3600}),
        ({"task_serializer": "yaml"}, {}),
    ],
)
def test_the_message_is_the_one_that_celery_would_have_sent(make_app, renderer, client, conf, options) -> None:
    app = make_app(**conf)
    entry = entry_of("e", line(options=options))
    _, captured = renderer(app).render(entry, FIRE_TIME, 7)
    headers = json.loads(captured.commands[0].value)["headers"]
    ours = {name: value for name, value in headers.items() if name.startswith(("fencebeat_", "celery_beat", "trace"))}
    app.send_task(
        "t.work",
        [1],
        {"a": "b"},
        task_id=headers["id"],
        **{**options, "headers": {**options.get("headers", {}), **ours}},
    )
    pushes = [command for command in captured.commands if command.name == "lpush"]
    for push in pushes:
        (sent,) = client.lrange(push.key, 0, -1)
        assert comparable(sent) == comparable(push.value)
    assert len(pushes) == 1
    limits = {command.key: command.value for command in captured.commands if command.name == "pexpire"}
    assert (client.pttl(pushes[0].key) > 0) == (pushes[0].key in limits)


def comparable(text):
    message = json.loads(text)
    del message["properties"]["delivery_tag"]  # random
    message["headers"]["expires"] = message["headers"]["expires"] is not None  # a moment after now
    return message


def test_a_broadcast_is_collected_as_the_publications_that_kombu_would_make(make_app, renderer, client) -> None:
    app = make_app(task_queues=[Broadcast("everyone")])
    _, captured = renderer(app).render(entry_of("e", line(options={"queue": "everyone"})), FIRE_TIME, 7)
    (command,) = captured.commands
    assert command.name == "publish"
    assert captured.queues == ["everyone"]
    with app.connection_for_read() as connection:
        received = []
        queue = app.amqp.queues["everyone"]
        with connection.Consumer([queue], callbacks=[lambda body, _message: received.append(body)], no_ack=True):
            while client.publish(command.key, command.value) == 0:  # kombu subscribes while it waits
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)
            while not received:
                connection.drain_events(timeout=5)
    assert received[0][0] == [1]


def test_a_message_that_no_binding_matches_is_collected_as_none(make_app, renderer, client) -> None:
    queue = Queue("bound", Exchange("ex", "direct"), routing_key="right")
    app = make_app(task_queues=[queue])
    options = {"exchange": "ex", "routing_key": "wrong"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndeliverableWarning)
        _, captured = renderer(app).render(entry_of("e", line(options=options)), FIRE_TIME, 7)
    assert captured.commands == []
    assert client.exists("ae.undeliver") == 0


def test_any_other_write_is_refused(make_app, client) -> None:
    app = make_app()
    sink = Sink()
    with capturing(app.connection_for_write(), sink, 2.0) as connection:
        channel = connection.default_channel
        with pytest.raises(UncapturedWrite, match="LPUSH"), channel.conn_or_acquire() as raw:
            raw.lpush("celery", "smuggled")
        with channel.conn_or_acquire() as raw, raw.pipeline() as pipe, pytest.raises(UncapturedWrite, match="PUBLISH"):
            pipe.publish("celery", "smuggled")
        with pytest.raises(UncapturedWrite):
            app.amqp.Producer(connection).publish({}, routing_key="celery", retry=False)
    assert client.keys("celery*") == []


def test_what_was_collected_survives_a_channel_that_kombu_replaces(make_app, client) -> None:
    """`ensure` closes the channel after an error and goes on with another one, in the middle of a publish."""
    app = make_app()
    sink = Sink()
    with capturing(app.connection_for_write(), sink, 2.0) as connection, sink.collecting() as captured:
        producer = app.amqp.Producer(connection, auto_declare=False)
        failed = []

        def fail_once(*_args, **_options):
            if not failed:
                failed.append(True)
                raise ConnectionResetError("cut")

        producer.channel.prepare_message = fail_once
        producer.publish({}, routing_key="celery", retry=True, retry_policy={"max_retries": 2, "interval_start": 0})
        assert failed
    assert commands(captured) == [("lpush", "celery")]


def test_a_result_backend_is_not_asked_about_results_nobody_waits_for(make_app, renderer, redis_url, client) -> None:
    app = make_app(result_backend=redis_url)
    with client.monitor() as monitor:
        renderer(app).render(entry_of("e", line()), FIRE_TIME, 7)
        client.echo("rendered")
        seen = []
        for one in monitor.listen():
            if "rendered" in one["command"]:
                break
            seen.append(one["command"])
    assert any("SADD" in command for command in seen)
    assert not any("SUBSCRIBE" in command for command in seen)


def test_the_event_of_a_sent_task_is_published_after_the_commit_only(make_app, renderer, client) -> None:
    app = make_app(task_send_sent_event=True)
    ours = renderer(app)
    with client.pubsub() as subscriber:
        subscriber.psubscribe("*celeryev*")
        assert subscriber.get_message(timeout=5)["type"] == "psubscribe"
        identity, captured = ours.render(entry_of("e", line()), FIRE_TIME, 7)
        assert commands(captured) == [("lpush", "celery")]
        client.publish("celeryev-probe", "rendered")  # whatever rendering published would come before this
        assert subscriber.get_message(timeout=5)["data"] == "rendered"
        ours.sent([identity])
        event = json.loads(base64.b64decode(json.loads(subscriber.get_message(timeout=5)["data"])["body"]))
    assert (event["type"], event["uuid"]) == ("task-sent", identity)


def test_signals_of_publishing_are_celerys(make_app, renderer) -> None:
    heard = []

    def hear(sender=None, **_):
        heard.append(sender)

    before_task_publish.connect(hear)
    after_task_publish.connect(hear)
    try:
        renderer(make_app()).render(entry_of("e", line()), FIRE_TIME, 7)
    finally:
        before_task_publish.disconnect(hear)
        after_task_publish.disconnect(hear)
    assert heard == ["t.work", "t.work"]


def test_a_registered_task_keeps_its_own_options(make_app, renderer) -> None:
    app = make_app()

    @app.task(name="t.work", time_limit=9, shared=False)
    def work(*_args, **_kwargs):
        """Do nothing."""

    _, captured = renderer(app).render(entry_of("e", line()), FIRE_TIME, 7)
    assert json.loads(captured.commands[0].value)["headers"]["timelimit"] == [9, None]


def test_a_broker_that_does_not_answer_is_told_from_a_bad_entry(make_app, renderer) -> None:
    with pytest.raises(StoreUnreachable):
        renderer(make_app(broker="redis://127.0.0.1:1/0")).render(entry_of("e", line()), FIRE_TIME, 7)
    app = make_app()
    ours = renderer(app)
    with pytest.raises(Exception, match="nowhere"):
        ours.render(entry_of("e", line(options={"serializer": "nowhere"})), FIRE_TIME, 7)
    assert ours.render(entry_of("e", line()), FIRE_TIME, 7)[1].queues == ["celery"]


def test_a_broker_without_a_compare_is_refused(make_app) -> None:
    with pytest.raises(ImpossibleConfiguration, match="Redis"):
        capturing(make_app(broker="memory://").connection_for_write(), Sink(), 2.0)
