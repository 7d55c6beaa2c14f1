"""Rows of the outbox from templates are those of Celery's own path, byte for byte but for moments after now."""

import json
from dataclasses import replace

import pytest
from celery import Celery
from kombu import Exchange, Queue

from fencebeat.clock import ManualClock
from fencebeat.entries import EXTRA, entry_of
from fencebeat.outbox_capture import OutboxRenderer

FIRE_TIME = 1_796_070_000_000_000


@pytest.fixture
def make():
    """An application for RabbitMQ, which is never asked, and its renderer."""
    made = []

    def of(**conf):
        app = Celery("outbox", broker="amqp://nobody:5672//", set_as_current=False)
        app.conf.update(task_default_queue="q", **conf)
        app.finalize()
        made.append((app, OutboxRenderer(app, "ns", 2.0, key="box", fast=ManualClock())))
        return made[-1]

    yield of
    for app, renderer in made:
        renderer.close()
        app.close()


def line(name="e", task="t.work", **more):
    return entry_of(name, {"task": task, "schedule": 60.0, "args": [1, 'ü"%'], "kwargs": {"a": "b\\%s"}, **more})


def both(renderer, entry, fire_time=FIRE_TIME, token=7):
    """The tick's message from a template (None: there is none) and by Celery's own path."""
    return renderer.templates.message(entry, fire_time, token), renderer.render_fully(entry, fire_time, token)


def without_moments(made):
    """Identity, row and the rest; the moments that a message names are only there or not."""
    identity, captured = made
    ((name, key, text),) = captured.commands
    row = json.loads(text)
    for field in ("eta", "expires"):
        row["headers"][field] = row["headers"][field] is not None
    return identity, name, key, json.dumps(row), captured.queues, captured.message_id


FAST = {
    "plain": ({}, {}),
    "queue and priority": ({}, {"options": {"queue": "named", "priority": 6}}),
    "priority queue": ({"task_queues": [Queue("q", queue_arguments={"x-max-priority": 9})]}, {}),
    "routed": ({"task_routes": {"t.*": {"queue": "routed"}}}, {}),
    "expires": ({}, {"options": {"expires": 3600, "headers": {"mine": [1, "two", None, True]}}}),
    "countdown": ({}, {"options": {"countdown": 30}}),
    "quorum": ({"task_default_queue_type": "quorum"}, {}),
    "queue with limits": ({"task_queues": [Queue("q", expires=60, message_ttl=30, max_length=10)]}, {}),
    "given properties": ({}, {"options": {"message_id": "mine", "app_id": "theirs"}}),
    "rpc results": ({"result_backend": "rpc://"}, {}),
    "name that needs escaping": ({}, {"name": 'n"ü\\%s'}),
    "no arguments": ({}, {"args": [], "kwargs": {}}),
}


@pytest.mark.parametrize("name", FAST)
def test_a_row_from_a_template_is_the_row_of_celerys_own_path(make, name):
    conf, more = FAST[name]
    _, renderer = make(**conf)
    entry = line(**more)
    for fire_time, token in ((FIRE_TIME, 7), (FIRE_TIME + 60_000_000, 8)):
        fast, full = both(renderer, entry, fire_time, token)
        assert fast is not None
        assert without_moments(fast) == without_moments(full)
        if entry.options.keys().isdisjoint(("expires", "countdown")):
            assert fast == full


SLOW = {
    "an exchange": ({}, {"options": {"exchange": "x", "routing_key": "a.b"}}),
    "a queue of a topic": ({"task_queues": [Queue("q", Exchange("q", "topic"), routing_key="a.#")]}, {}),
    "yaml": ({"task_serializer": "yaml"}, {}),
    "compressed": ({"task_compression": "gzip"}, {}),
    "protocol 1": ({"task_protocol": 1}, {}),
    "another serializer": ({}, {"options": {"serializer": "pickle"}}),
}


@pytest.mark.parametrize("name", SLOW)
def test_where_a_row_could_differ_celerys_own_path_is_taken(make, name):
    conf, more = SLOW[name]
    _, renderer = make(**conf)
    assert renderer.templates.message(line(**more), FIRE_TIME, 7) is None


def test_entries_of_one_task_share_a_template_and_keep_their_own_names_and_scopes(make):
    _, renderer = make()
    made = [renderer.render(line(f"e{number}"), FIRE_TIME, 7) for number in range(20)]
    assert (len(renderer.templates._templates), renderer.templates._unfit) == (1, {})
    for number, (identity, captured) in enumerate(made):
        row = json.loads(captured.commands[0].value)
        assert row["scopes"] == ["all", f"entry:e{number}", "queue:q"]
        assert (row["entry"], row["task_id"], row["properties"]["message_id"]) == (f"e{number}", identity, identity)
        assert captured.message_id == identity


def test_the_row_of_an_extra_run_is_held_back_by_a_stop_of_its_entry_on_both_paths(make):
    _, renderer = make()
    fast, full = both(renderer, replace(line("x"), name=f"x{EXTRA}"))
    assert fast == full
    for _, captured in (fast, full):
        row = json.loads(captured.commands[0].value)
        assert (row["entry"], row["scopes"]) == (f"x{EXTRA}", ["all", "entry:x", "queue:q"])
