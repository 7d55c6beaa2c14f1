"""The catalogue is public: its rules hold, its page is current, and nothing is emitted that it does not state."""

import ast
import json
from pathlib import Path

import pytest

from config import events, metrics
from config.events import CATALOGUE, Event, EventMismatch, emit
from fencebeat import history

ROOT = Path(__file__).parents[2]


@pytest.fixture
def catalogue(monkeypatch):
    """A catalogue in which a test may define events of its own."""
    monkeypatch.setattr(events, "CATALOGUE", {})


@pytest.fixture(autouse=True)
def strict(monkeypatch, tmp_path):
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    monkeypatch.setattr(metrics, "observe", lambda *_, **__: None)
    monkeypatch.setenv("FENCEBEAT_HISTORY", str(tmp_path / "history.jsonl"))


def test_the_page_in_docs_is_the_one_this_catalogue_makes():
    assert (ROOT / "docs/events.md").read_text() == events.table(), "run: python -m config.events > docs/events.md"


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ({"name": "committed", "when": "x"}, "noun.past"),
        ({"name": "a.done", "when": ""}, "must say when"),
        ({"name": "a.done", "when": "x", "attributes": ("Bad",)}, "lower case"),
        ({"name": "a.done", "when": "x", "attributes": ("a",), "measures": {"a": "m"}}, "named twice"),
        ({"name": "a.done", "when": "x", "attributes": ("level",)}, "log field"),
        ({"name": "a.done", "when": "x", "labels": ("target",)}, "must be an attribute"),
        ({"name": "a.done", "when": "x", "attributes": ("doc_uid",), "labels": ("doc_uid",)}, "few values"),
    ],
)
def test_an_event_that_breaks_a_rule_cannot_be_defined(catalogue, definition, sentence):
    with pytest.raises(ValueError, match=sentence):
        Event(**definition)
    assert events.CATALOGUE == {}


def test_a_name_is_defined_once(catalogue):
    Event("a.done", when="x")
    with pytest.raises(ValueError, match="there already"):
        Event("a.done", when="y")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"target": "t"}, "missing: purged"),
        ({"target": "t", "purged": 1, "extra": 2}, "unknown: extra"),
        ({"target": "t", "purged": "many"}, "not a number: purged"),
    ],
)
def test_other_facts_than_the_stated_ones_raise_in_tests(facts, sentence):
    with pytest.raises(EventMismatch, match=sentence):
        emit(events.TOMBSTONES_PURGED, **facts)


def test_in_production_a_malformed_event_is_counted_and_stops_nothing(monkeypatch):
    monkeypatch.delenv("FENCEBEAT_TESTING")
    counted = []
    monkeypatch.setattr(metrics, "count_malformed", counted.append)

    emit(events.TOMBSTONES_PURGED, target="t")

    assert counted == ["tombstones.purged"]


@pytest.mark.parametrize("event", CATALOGUE.values(), ids=lambda event: event.name)
def test_each_event_reaches_the_history_with_exactly_its_facts(event, tmp_path):
    facts = dict.fromkeys(event.measures, 1) | {name: f"some-{name}" for name in event.attributes}

    emit(event, **facts)

    (line,) = history.read(tmp_path / "history.jsonl")
    assert line["kind"] == "event"
    assert line["event"] == event.name
    assert {name: line[name] for name in event.facts} == facts
    assert json.dumps(line)


def calls(packages, name):
    """Every call of `name` in the source of these packages, as syntax."""
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
                    yield node


def test_the_scheduler_writes_exactly_the_events_that_the_catalogue_states():
    """The library may not import the catalogue, so its calls are read as text."""
    written = {}
    for call in calls(["beat/src"], "record"):
        if isinstance(call.args[0], ast.Constant) and call.args[0].value == "event":
            facts = {word.arg: word.value for word in call.keywords}
            name = facts.pop("event")
            if isinstance(name, ast.Constant):
                written[name.value] = set(facts)
            else:
                every_claim = set(facts) - {None}  # what the guard's own `_say` adds to each of its events
    for call in calls(["beat/src"], "_say"):
        if isinstance(call.args[0], ast.Constant) and str(call.args[0].value).startswith("claim."):
            written[call.args[0].value] = every_claim | {word.arg for word in call.keywords}

    of_the_library = {name: set(event.facts) for name, event in CATALOGUE.items() if event.by in ("beat", "guard")}
    assert written == of_the_library


def test_every_event_of_the_application_is_emitted_somewhere():
    used = {
        getattr(node, "attr", getattr(node, "id", ""))
        for package in ("index", "control", "tasks", "ops")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    defined = {
        name for name, value in vars(events).items() if isinstance(value, Event) and value.by not in ("beat", "guard")
    }

    assert defined - used == set()
