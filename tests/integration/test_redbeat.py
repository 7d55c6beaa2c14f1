"""RedBeat's entries, as celery-redbeat 2.4.2 wrote them, become stored entries; its own records stay as they are."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fencebeat.cli import main
from fencebeat.edits import Schedule
from fencebeat.redbeat import read
from tests.support.fences import SECOND

RECORDED = json.loads((Path(__file__).parents[1] / "unit" / "recorded" / "redbeat_2_4_2.json").read_text())

PROJECT = """
from celery import Celery
app = Celery("moved", broker={url!r}, set_as_current=False)
app.conf.update(fencebeat_namespace={namespace!r}, timezone="Europe/Berlin", redbeat_key_prefix={prefix!r})
app.conf.beat_schedule = {{"lists": {{"task": "t", "schedule": 60.0}}}}
"""


def us(*moment):
    return round(datetime(*moment, tzinfo=UTC).timestamp()) * SECOND


@pytest.fixture
def prefix(fence):
    """RedBeat's records under a prefix of this test's own."""
    prefix = f"{fence.keys.namespace}-rb:"
    for key, content in RECORDED.items():
        mine = key.replace("redbeat:", prefix, 1)
        if isinstance(content, list):
            fence.client.sadd(mine, *content)
        elif key == "redbeat::schedule":
            fence.client.zadd(mine, {name.replace("redbeat:", prefix, 1): score for name, score in content.items()})
        else:
            fence.client.hset(mine, mapping=content)
    return prefix


@pytest.fixture
def fencebeat(tmp_path, monkeypatch, capsys, redis_url, fence, prefix):  # noqa: PLR0917 - fixtures, by name
    namespace = fence.keys.namespace
    module = f"moved_{namespace.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(PROJECT.format(url=redis_url, namespace=namespace, prefix=prefix))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FENCEBEAT_APP", module)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments):
        code = main(["schedule", "import-redbeat", *arguments])
        said = capsys.readouterr()
        return code, {row["entry"]: row for row in json.loads(said.out)} if "--json" in arguments else said.out

    yield run
    sys.modules.pop(module, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def theirs(fence, prefix):
    return {key: fence.client.dump(key) for key in fence.client.scan_iter(f"{prefix}*")}


def test_what_would_be_added_is_shown_first_and_nothing_changes(fencebeat, fence) -> None:
    before = fence.everything()
    code, rows = fencebeat("--json")
    assert code == 3, "some cannot be represented"
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "nightly": "would be added",
        "lists": "kept",  # beat_schedule has it
        "often": "would be added",
        "relative": "would be added",
        "disabled": "would be added",
        "future": "would be added",
        "never": "would be added",
        "rule": "refused",
    }
    assert "rrule" in rows["rule"]["why"]
    assert fence.everything() == before
    assert "--yes does it" in fencebeat()[1]


def test_entries_move_with_their_last_run_and_redbeats_records_stay(fencebeat, fence, prefix) -> None:
    before = theirs(fence, prefix)
    began = fence.now()
    fencebeat("--yes")
    assert theirs(fence, prefix) == before
    schedule = Schedule(fence.client, fence.keys)
    nightly = schedule.find("nightly")
    entry = nightly.entry
    assert (entry.shown, entry.zone.key, entry.task) == ("30 2 * * mon-fri", "Europe/Berlin", "reports.nightly")
    assert (entry.args, entry.kwargs, entry.options) == ((1,), {"a": 2}, {"queue": "slow", "priority": 3})
    assert nightly.mark == us(2026, 11, 27, 1, 30)
    assert entry.next_after(nightly.mark) == us(2026, 11, 30, 1, 30)
    often = schedule.find("often")
    assert often.mark == us(2026, 11, 26, 23, 30, 7)
    assert often.entry.next_after(often.mark) == often.mark + 90 * SECOND, "it goes on from its last run"
    assert schedule.find("relative").entry.start is None
    disabled = schedule.find("disabled")
    assert disabled.paused["reason"] == "it was disabled in RedBeat"
    assert fence.client.zscore(fence.keys.due, "disabled") is None
    for name in ("future", "never", "disabled"):
        assert began <= schedule.find(name).mark <= fence.now(), f"{name} begins now"
    assert schedule.find("rule").text is schedule.find("static").text is schedule.find("celery.backend_cleanup").text
    assert schedule.find("rule").text is None


def test_moved_twice_it_is_moved_once(fencebeat, fence) -> None:
    fencebeat("--yes")
    fence.client.hset(fence.keys.last, "nightly", fence.now())
    before = fence.everything()
    _, rows = fencebeat("--yes", "--json")
    assert {row["outcome"] for row in rows.values()} == {"kept", "refused"}
    assert fence.everything() == before


def test_a_redis_and_a_prefix_may_be_named(fencebeat, fence, redis_url) -> None:
    assert fencebeat("--url", redis_url, "--prefix", "nothing:", "--json") == (0, {})


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (None, "missing"),
        ("rubbish", "Expecting"),
        ('{"name": "x"}', "schedule"),
        ('{"name": "x", "task": "t", "schedule": 5}', "neither a crontab nor"),
        ('{"name": "x", "task": "t", "schedule": {"__type__": "interval", "every": 5}, "colour": 1}', "colour"),
        ('{"name": "x", "task": "t", "schedule": {"__type__": "crontab", "minute": "99"}}', "99"),
    ],
)
def test_a_damaged_record_is_refused_by_name(fence, prefix, definition, said) -> None:
    key = f"{prefix}nightly"
    fence.client.delete(key)
    if definition is not None:
        fence.client.hset(key, "definition", definition)
    found = next(f for f in read(fence.client, prefix, page=3) if f.name == "nightly")
    assert found.line is None
    assert said in found.refused
    assert len(list(read(fence.client, prefix, page=3))) == 8
