"""The fast path: equal to Celery's own messages field by field, and off wherever it could differ."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from celery import Celery, Task
from celery.app.amqp import AMQP
from celery.beat import BeatLazyFunc
from celery.canvas import Signature
from celery.signals import after_task_publish, before_task_publish, task_sent
from celery.utils.saferepr import saferepr
from kombu import Exchange, Queue
from kombu.common import Broadcast

from fencebeat import templates
from fencebeat.clock import ManualClock
from fencebeat.entries import entry_of
from fencebeat.errors import StoreUnreachable
from fencebeat.message_template import representation
from fencebeat.render import Renderer

FIRE_TIME = 1_796_070_000_000_000


@pytest.fixture
def renderer(make_renderer):
    return lambda app, clock=None: make_renderer(app, fast=clock or ManualClock())


def line(name="e", **more):
    return entry_of(name, {"task": "t.work", "schedule": 60.0, "args": [1], "kwargs": {"a": "b"}, **more})


def fast(renderer, entry, fire_time=FIRE_TIME, token=7):
    return renderer.templates.message(entry, fire_time, token)


class Counted:
    """Counts full renders."""

    def __init__(self, renderer):
        self.count, self._real = 0, renderer.templates._render
        renderer.templates._render = self

    def __call__(self, *tick):
        self.count += 1
        return self._real(*tick)


def comparable(made):
    """What a message says, without what is random, and with moments apart from the rest."""
    identity, captured = made
    moments, messages = [], []
    for command in captured.commands:
        if command.name == "pexpire":
            messages.append((command.name, command.key, command.value))
            continue
        message = json.loads(command.value)
        assert message["properties"].pop("delivery_tag") == captured.message_id
        for field in ("eta", "expires"):
            moment = message["headers"].pop(field)
            moments.append(datetime.fromisoformat(moment) if moment else None)
        messages.append((command.name, command.key, message, list(message["headers"]), list(message["properties"])))
    return identity, captured.queues, messages, moments


def assert_equal(one, other):
    one, other = comparable(one), comparable(other)
    assert one[:3] == other[:3]
    for mine, theirs in zip(one[3], other[3], strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or abs(mine - theirs) < timedelta(seconds=10)
        assert mine is None or mine.utcoffset() == theirs.utcoffset()


MATRIX = {
    "plain": ({}, {}),
    "queue and priority": ({}, {"options": {"queue": "named", "priority": 6}}),
    "priority steps": (
        {"broker_transport_options": {"queue_order_strategy": "priority", "priority_steps": [0, 5]}},
        {"options": {"priority": 5}},
    ),
    "relative expires": ({}, {"options": {"expires": 3600}}),
    "expires in parts of a second": ({}, {"options": {"expires": 0.5}}),
    "countdown": ({}, {"options": {"countdown": 90}}),
    "countdown and expires in a zone": (
        {"timezone": "Europe/Berlin"},
        {"options": {"countdown": 90, "expires": 100}},
    ),
    "local time without utc": ({"timezone": "Europe/Berlin", "enable_utc": False}, {"options": {"expires": 100}}),
    "a fixed eta": ({}, {"options": {"eta": datetime(2030, 1, 1, tzinfo=UTC)}}),
    "headers": ({}, {"options": {"headers": {"mine": '100 % " \\ é', "id2": 7}}}),
    "a route": ({"task_routes": {"t.*": {"queue": "routed", "priority": 3}}}, {}),
    "callbacks": ({}, {"options": {"link": Signature("t.next", args=(1,)), "link_error": Signature("t.failed")}}),
    "a chain": ({}, {"options": {"chain": [Signature("t.last"), Signature("t.next", kwargs={"k": "v"})]}}),
    "unicode": ({}, {"args": ["grüß", "日本", "\u2028 % %s"], "kwargs": {"ключ": {"in": [1, None, 2.5, True]}}}),
    "no arguments": ({}, {"args": [], "kwargs": {}}),
    "times among the arguments": ({}, {"args": [datetime(2030, 1, 1, tzinfo=UTC)]}),
    "a global prefix": ({"broker_transport_options": {"global_keyprefix": "pre:"}}, {}),
    "a queue with a limit": (
        {"task_queues": [Queue("short", queue_arguments={"x-expires": 60_000})]},
        {"options": {"queue": "short"}},
    ),
    "a broadcast": ({"task_queues": [Broadcast("everyone")]}, {"options": {"queue": "everyone"}}),
    "own representations": ({}, {"options": {"argsrepr": "(secret)", "kwargsrepr": "{secret}"}}),
    "a shadow": ({}, {"options": {"shadow": "short name", "time_limit": 9, "ignore_result": True}}),
}


@pytest.mark.parametrize("name", MATRIX)
def test_a_filled_template_is_celerys_own_message_field_by_field(make_app, renderer, name) -> None:
    conf, more = MATRIX[name]
    ours = renderer(make_app(**conf))
    entry = line(**more)
    made = fast(ours, entry)
    assert made is not None, "it is not on the fast path"
    assert_equal(made, ours.render_fully(entry, FIRE_TIME, 7))
    later = (FIRE_TIME + 250_000, 8)
    assert_equal(fast(ours, entry, *later), ours.render_fully(entry, *later))
    assert fast(ours, entry)[1].message_id != fast(ours, entry)[1].message_id


def test_a_registered_task_brings_its_own_options(make_app, renderer) -> None:
    app = make_app()

    @app.task(name="t.work", time_limit=9, expires=60, shared=False)
    def work(number, a):
        """Do nothing."""

    ours = renderer(app)
    assert_equal(fast(ours, line()), ours.render_fully(line(), FIRE_TIME, 7))
    refused = line("other", kwargs={"unknown": 1})
    assert fast(ours, refused) is None
    with pytest.raises(TypeError):
        ours.render(refused, FIRE_TIME, 7)


def test_ten_thousand_entries_of_one_task_need_three_full_renders(make_app, renderer) -> None:
    ours = renderer(make_app())
    counted = Counted(ours)
    entries = [line(f"e{n}", args=[n], kwargs={"a": "x" * n}) for n in range(50)]
    for entry in entries:
        assert_equal(fast(ours, entry), ours.render_fully(entry, FIRE_TIME, 7))
    assert counted.count == 3  # two by the first entry, one by the second


# --- what must stay on Celery's own path


@pytest.mark.parametrize("signal", [before_task_publish, after_task_publish, task_sent])
def test_whoever_listens_to_publishing_gets_celerys_own_path_at_once(make_app, renderer, signal) -> None:
    ours, entry = renderer(make_app()), line()
    assert fast(ours, entry) is not None

    def hear(**_):
        """Anybody's receiver."""

    signal.connect(hear)
    try:
        assert fast(ours, entry) is None
    finally:
        signal.disconnect(hear)
    assert fast(ours, entry) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"task_serializer": "yaml"},
        {"task_protocol": 1},
        {"task_compression": "gzip"},
        {"task_always_eager": True},
        {"task_send_sent_event": True},
    ],
)
def test_a_setting_that_changes_messages_turns_the_fast_path_off(make_app, renderer, change) -> None:
    app, clock = make_app(), ManualClock()
    ours, entry = renderer(app, clock), line()
    assert fast(ours, entry) is not None
    app.conf.update(change)
    clock.advance(templates.LOOK)
    assert fast(ours, entry) is None


class OwnSendTask(Celery):
    """An application that sends in its own way."""

    def send_task(self, *args, **kwargs):
        """Add nothing, but who knows."""
        return super().send_task(*args, **kwargs)


def test_an_application_that_sends_in_its_own_way_keeps_it(redis_url, renderer) -> None:
    with OwnSendTask("own", broker=redis_url, set_as_current=False) as app:
        app.finalize()
        assert fast(renderer(app), line()) is None


class OwnNow(Celery):
    """An application with its own clock."""

    def now(self):
        """The time, but who knows."""
        return super().now()


class OwnAmqp(AMQP):
    """Makes messages in its own way."""


@pytest.mark.parametrize("make", [OwnNow, partial(Celery, amqp=OwnAmqp)])
def test_an_application_with_its_own_clock_or_amqp_keeps_it(redis_url, renderer, make) -> None:
    with make("own", broker=redis_url, set_as_current=False) as app:
        app.finalize()
        assert fast(renderer(app), line()) is None


@pytest.mark.parametrize(
    "routes", [lambda *_args, **_kwargs: None, [{"t.*": {"queue": "a"}}, lambda *_args, **_kwargs: None]]
)
def test_a_router_that_is_a_function_is_asked_each_time(make_app, renderer, routes) -> None:
    assert fast(renderer(make_app(task_routes=routes)), line()) is None


@pytest.mark.parametrize("method", ["apply_async", "shadow_name", "_get_exec_options"])
def test_a_task_that_overrides_how_it_is_sent_is_asked_each_time(make_app, renderer, method) -> None:
    app = make_app()

    def overriding(self, *args, **kwargs):
        return getattr(Task, method)(self, *args, **kwargs)

    base = type("Own", (Task,), {"abstract": True, method: overriding})

    @app.task(name="t.work", base=base, shared=False)
    def work(*_args, **_kwargs):
        """Do nothing."""

    ours = renderer(app)
    assert fast(ours, line()) is None
    assert fast(ours, line("other", task="t.other")) is not None


def test_a_task_whose_arguments_are_models_is_asked_each_time(make_app, renderer) -> None:
    app = make_app()

    @app.task(name="t.work", pydantic=True, shared=False)
    def work(*_args: int, **_kwargs: str):
        """Do nothing."""

    ours = renderer(app)
    assert fast(ours, line()) is None
    assert fast(ours, line("other", task="t.other")) is not None


def test_a_patched_task_class_is_asked_each_time(make_app, renderer, monkeypatch) -> None:
    app = make_app()

    @app.task(name="t.work", shared=False)
    def work(*_args, **_kwargs):
        """Do nothing."""

    original = Task.apply_async

    def wrapped(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Task, "apply_async", wrapped)
    assert fast(renderer(app), line()) is None


@pytest.mark.parametrize("options", [{"serializer": "yaml"}, {"compression": "gzip"}])
def test_an_entry_with_another_serializer_or_compression_is_rendered_fully(make_app, renderer, options) -> None:
    ours = renderer(make_app())
    assert fast(ours, line(options=options)) is None
    assert fast(ours, line("other")) is not None


def test_arguments_that_are_computed_are_computed_each_time(make_app, renderer) -> None:
    ours = renderer(make_app())
    assert fast(ours, line(args=(BeatLazyFunc(lambda: 7),))) is None
    assert fast(ours, line("other", kwargs={"a": BeatLazyFunc(lambda: 7)})) is None


def test_an_absolute_expiry_is_found_by_the_render_an_hour_later(make_app, renderer, monkeypatch) -> None:
    """Its header stands still, but how long the broker may keep the message does not."""

    class Standing(datetime):
        """Both renders come at one moment, so that only the hour between them tells."""

        @classmethod
        def now(cls, tz=None):
            return at.astimezone(tz)

    at = Standing.fromtimestamp(1_796_070_000, UTC)
    monkeypatch.setattr("celery.app.base.datetime", Standing)
    ours = renderer(make_app())
    entry = line(options={"expires": at + timedelta(days=1)})
    assert fast(ours, line("other")) is not None
    assert fast(ours, entry) is None
    assert len(ours.render(entry, FIRE_TIME, 7)[1].commands) == 1


def test_an_exchange_with_bindings_is_the_brokers_to_resolve(make_app, renderer) -> None:
    app = make_app(task_queues=[Queue("topic", Exchange("ex", "topic"), routing_key="a.#")])
    assert fast(renderer(app), line(options={"queue": "topic"})) is None


def test_what_another_entry_disproves_is_not_used_for_it(make_app, renderer) -> None:
    """Whatever makes arguments count beyond their own places: here a task that is sent elsewhere for one of them."""
    ours = renderer(make_app())
    first = line("first")
    assert fast(ours, first) is not None
    real = ours.templates._render

    def crooked(entry, *tick):
        if entry.args == (2,):
            entry = replace(entry, options={"queue": "elsewhere"})
        return real(entry, *tick)

    ours.templates._render = crooked
    assert fast(ours, line("second", args=[2])) is None
    assert fast(ours, line("third", args=[3])) is not None


def test_a_template_that_its_second_render_disproves_is_not_used(make_app, renderer) -> None:
    ours = renderer(make_app())
    real, seen = ours.templates._render, []

    def counting(entry, *tick):
        seen.append(tick)
        return real(replace(entry, options={"headers": {"count": len(seen)}}), *tick)

    ours.templates._render = counting
    entry = line()
    assert fast(ours, entry) is None
    assert len(seen) == 2
    assert seen[0] != seen[1]
    assert fast(ours, entry) is None
    assert len(seen) == 2  # and it is not tried again for each tick


# --- when templates are dropped


def test_a_new_version_of_an_entry_gets_its_own_message(make_app, renderer) -> None:
    ours = renderer(make_app())
    fast(ours, line())
    for changed in (line(args=[2]), line(options={"queue": "other"}), line(task="t.other")):
        assert_equal(fast(ours, changed), ours.render_fully(changed, FIRE_TIME, 7))


def test_a_change_of_the_configuration_drops_all(make_app, renderer) -> None:
    app, clock = make_app(), ManualClock()
    ours = renderer(app, clock)
    fast(ours, line())
    app.conf.task_default_priority = 7
    clock.advance(templates.LOOK)
    counted = Counted(ours)
    assert fast(ours, line()) is not None
    assert counted.count == 2


def test_a_fork_drops_all(make_app, renderer, monkeypatch) -> None:
    ours = renderer(make_app())
    fast(ours, line())
    monkeypatch.setattr(os, "getpid", lambda: 7)
    counted = Counted(ours)
    assert fast(ours, line()) is not None
    assert counted.count == 2


def test_a_template_is_proven_anew_when_it_is_old(make_app, renderer) -> None:
    clock = ManualClock()
    ours = renderer(make_app(), clock)
    fast(ours, line())
    counted = Counted(ours)
    clock.advance(templates.AGE - 1)
    fast(ours, line())
    assert counted.count == 0
    clock.advance(1)
    fast(ours, line())
    assert counted.count == 2


# --- making them beforehand


def test_templates_are_made_in_idle_moments_and_few_while_ticks_wait(make_app, renderer) -> None:
    ours = renderer(make_app())
    entries = [line(f"e{n}", options={"headers": {"n": n}}) for n in range(templates.AT_ONCE + 5)]
    assert [fast(ours, entry) is not None for entry in entries] == [True] * templates.AT_ONCE + [False] * 5
    assert ours.templates.prepare(iter(entries), 60) is True
    counted = Counted(ours)
    assert all(fast(ours, entry) is not None for entry in entries)
    assert counted.count == 0


def test_an_idle_moment_ends_in_time_and_the_next_one_goes_on(make_app, renderer) -> None:
    class Ticking(ManualClock):
        def elapsed(self):
            self.advance(0.001)
            return super().elapsed()

    ours = renderer(make_app(), Ticking())
    rest = iter([line(f"e{n}", options={"headers": {"n": n}}) for n in range(30)])
    assert ours.templates.prepare(rest, 0.02) is False
    turns = 1
    while not ours.templates.prepare(rest, 0.02):
        turns += 1
    assert turns > 1


def test_a_broker_that_does_not_answer_ends_the_preparation(make_app, renderer) -> None:
    ours = renderer(make_app(broker="redis://127.0.0.1:1/0"))
    with pytest.raises(StoreUnreachable):
        ours.templates.prepare(iter([line()]), 60)
    assert ours._app.now.__func__ is Celery.now  # the clock goes on


def test_without_the_setting_every_message_goes_celerys_own_way(make_app) -> None:
    ours = Renderer(make_app(), "ns", 2.0)
    assert ours.templates is None
    assert ours.render(line(), FIRE_TIME, 7)[1].queues == ["celery"]
    ours.close()


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [1, -2, None, "two"],
        (1,),
        ["it's", 'say "x"', "\\", "é", ""],
        [True, 1.5, [1, [2]], {"a": {"b": 1}}],
        {"a": 1, "b": None},
        {1: "x", "k'": 2},
        ["x" * 99],
        ["x" * 5000],
        list(range(5000)),
        [datetime(2030, 1, 1, tzinfo=UTC)],
    ],
)
def test_representations_are_celerys(value) -> None:
    assert json.loads(representation(value, 1024, 3)) == saferepr(value, 1024, maxlevels=3)
