"""The schedule, the leader and the stops on the command line, against a real store: answers, exit codes, errors."""

import json
import re
from datetime import UTC, datetime

import pytest

from fencebeat.edits import Schedule
from fencebeat.entries import entry_of
from fencebeat.requests import Request
from fencebeat.schedules import read_schedule_text
from tests.support.fences import SECOND

PROJECT = """
from celery import Celery
app = Celery("cli", broker={url!r}, set_as_current=False)
app.conf.update(
    fencebeat_namespace={namespace!r},
    timezone="Europe/Berlin",
    beat_schedule={{
        "e": {{"task": "t", "schedule": 3600.0, "args": [1]}},
        "broken": {{"task": "t", "schedule": "daily"}},
    }},
)
"""


@pytest.fixture
def schedule(fence):
    return Schedule(fence.client, fence.keys, zone="Europe/Berlin", by="a test")


@pytest.fixture
def fencebeat(in_project):
    """Run a command in the project; returns exit code, stdout (as JSON if it is) and stderr."""

    def run(*arguments):
        code, out, err = in_project(PROJECT, *arguments)
        return code, json.loads(out) if "--json" in arguments and out else out, err

    return run


ADD = ("schedule", "add", "nightly", "--task", "reports.nightly")


def test_add_stores_an_entry_with_everything_that_was_said(fencebeat, fence, schedule) -> None:
    code, told, _ = fencebeat(
        *ADD,
        *("--cron", "30 2 * * mon-fri", "--zone", "America/New_York", "--catchup", "window=30m", "--grace", "60"),
        *("--jitter", "90", "--overlap", "skip", "--args", "[1]", "--kwargs", '{"a": 2}', "--queue", "slow"),
        *("--priority", "3", "--expires", "600", "--option", "retry=false", "--option", "exchange=x", "--json"),
    )
    assert code == 0
    entry = schedule.find("nightly").entry
    assert entry == entry_of(
        "nightly",
        {
            "task": "reports.nightly",
            "schedule": read_schedule_text("30 2 * * mon-fri"),
            "args": [1],
            "kwargs": {"a": 2},
            "options": {"queue": "slow", "priority": 3, "expires": 600.0, "retry": False, "exchange": "x"},
            "fencebeat": {
                "zone": "America/New_York",
                "catchup": "window=30m",
                "grace": 60.0,
                "jitter": 90.0,
                "overlap": "skip",
            },
        },
        source="stored",
    )
    assert told["definition"]["version"] == entry.version
    assert told["done"] == "added"


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        (("--every", "90s"), "every 90 s"),
        (("--every", "1.5h", "--start", "2026-01-01T00:05"), "every 5400 s"),
        (("--solar", "sunrise 52.52 13.40"), "solar sunrise 52.52 13.4"),
        (("--cron", "*/5 * * * *"), "*/5 * * * *"),
    ],
)
def test_add_takes_each_kind_of_schedule_and_the_zone_of_the_project(fencebeat, fence, schedule, when, shown) -> None:
    assert fencebeat(*ADD, *when)[0] == 0
    entry = schedule.find("nightly").entry
    assert (entry.shown, entry.zone.key) == (shown, "Europe/Berlin")
    if "--start" in when:
        assert entry.start == round(datetime(2026, 1, 1, 0, 5, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of --cron, --every and --solar"),
        (("--cron", "* * * * *", "--every", "5s"), "exclude each other"),
        (("--cron", "* * * foo *"), "no crontab"),
        (("--every", "soon"), "no interval"),
        (("--every", "5s", "--args", "{}"), "--args must be a JSON list"),
        (("--every", "5s", "--kwargs", "nonsense"), "--kwargs is no JSON"),
        (("--every", "5s", "--option", "novalue"), "KEY=VALUE"),
        (("--every", "5s", "--start", "tomorrow"), "is no time"),
    ],
)
def test_add_says_what_is_wrong_with_its_arguments_and_changes_nothing(fencebeat, fence, arguments, said) -> None:
    before = fence.everything()
    code, _, err = fencebeat(*ADD, *arguments)
    assert code == 2
    assert said in " ".join(err.split())
    assert fence.everything() == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((*ADD, "--every", "5s", "--zone", "Mars"), 4, "no time zone"),
        (("schedule", "add", "e", "--task", "t", "--every", "5s"), 4, "There is an entry e already"),
        (("schedule", "add", "broken", "--task", "t", "--every", "5s", "--dry-run"), 4, "an entry broken already"),
        (("schedule", "edit", "e", "--every", "5s"), 4, "comes from beat_schedule"),
        (("schedule", "remove", "e", "--yes"), 4, "comes from beat_schedule"),
        (("schedule", "edit", "nobody", "--every", "5s"), 2, "There is no entry nobody."),
        (("schedule", "remove", "nobody", "--yes"), 2, "There is no entry nobody."),
        (("schedule", "pause", "nobody"), 2, "There is no entry nobody."),
        (("schedule", "resume", "nobody"), 2, "There is no entry nobody."),
        (("schedule", "run-now", "nobody"), 2, "There is no entry nobody."),
        (("schedule", "show", "nobody"), 2, "There is no entry nobody."),
        (("schedule", "backfill", "nobody", "--from", "2026-01-01", "--to", "2026-01-02"), 2, "no entry nobody."),
    ],
)
def test_refusals_have_their_exit_codes_and_sentences(fencebeat, fence, arguments, code, said) -> None:
    before = fence.everything()
    got, _, err = fencebeat(*arguments)
    assert (got, said in " ".join(err.split()).replace("Nothing was done: there", "There")) == (code, True), err
    assert fence.everything() == before
    got, _, _ = fencebeat(*arguments, "--json")
    assert got == code


def test_a_dry_run_shows_the_next_five_and_changes_nothing(fencebeat, fence, schedule) -> None:
    before = fence.everything()
    _, told, _ = fencebeat(*ADD, "--cron", "0 0 * * *", "--dry-run", "--json")
    assert len(told["next_five"]) == 5
    assert all("T00:00:00+0" in row["local"] for row in told["next_five"])
    assert fence.everything() == before
    schedule.add("nightly", {"task": "t", "schedule": 60})
    before = fence.everything()
    assert "nothing is changed" in fencebeat("schedule", "edit", "nightly", "--every", "1h", "--dry-run")[1]
    assert fence.everything() == before
    assert fencebeat(*ADD, "--every", "5s", "--dry-run")[0] == 4


def test_edit_changes_what_is_named_and_nothing_else(fencebeat, fence, schedule) -> None:
    old = schedule.add("nightly", {"task": "t", "schedule": 60, "args": [1], "options": {"queue": "q", "priority": 1}})
    assert fencebeat("schedule", "edit", "nightly", "--args", "[]", "--option", "queue=", "--expires", "5")[0] == 0
    entry = schedule.find("nightly").entry
    assert (entry.args, entry.options) == ((), {"priority": 1, "expires": 5.0})
    assert (entry.task, entry.rule, fence.mark("nightly")) == ("t", old.entry.rule, old.mark)
    code, _, err = fencebeat("schedule", "edit", "nightly")
    assert (code, "nothing to change" in err) == (2, True)


def test_pause_and_resume_also_for_an_entry_of_the_configuration(fencebeat, fence, schedule) -> None:
    fence.entry("e", mark=fence.now(), schedule=3600.0, args=[1], fencebeat={"zone": "Europe/Berlin"})
    assert fencebeat("schedule", "pause", "e", "--reason", "disk is full")[0] == 0
    assert fence.client.zscore(fence.keys.due, "e") is None
    (row,) = fencebeat("schedule", "list", "--prefix", "e", "--json")[1]
    assert (row["next"], row["paused"]["reason"], row["problem"]) == (None, "disk is full", "paused")
    shown = fencebeat("schedule", "show", "e")[1]
    assert "disk is full" in shown
    assert fencebeat("schedule", "resume", "e", "--skip-missed", "--json")[1]["done"] == "resumed"
    assert fence.client.zscore(fence.keys.due, "e") is not None


def test_remove_asks_first(fencebeat, fence, schedule, monkeypatch) -> None:
    schedule.add("nightly", {"task": "t", "schedule": 60})
    assert fencebeat("schedule", "remove", "nightly", "--json")[0] == 2
    monkeypatch.setattr("typer.confirm", _refuses)
    assert fencebeat("schedule", "remove", "nightly")[0] == 1
    assert "Nothing was done." in fencebeat("schedule", "remove", "nightly")[2]
    assert schedule.find("nightly").text
    assert fencebeat("schedule", "remove", "nightly", "--yes")[0] == 0
    assert schedule.find("nightly").text is None


def _refuses(_question, *, abort):
    import typer

    assert abort
    raise typer.Abort


def test_run_now_leaves_a_request(fencebeat, fence, schedule) -> None:
    schedule.add("nightly", {"task": "t", "schedule": 60})
    _, told, _ = fencebeat("schedule", "run-now", "nightly", "--json")
    (text,) = fence.client.hvals(fence.keys.requests)
    assert Request.of(text).id == told["tick"]


def test_backfill_shows_first_and_emits_only_when_told(fencebeat, fence, schedule) -> None:
    schedule.add("nightly", {"task": "t", "schedule": 3600})
    fence.client.hset(fence.keys.last, "nightly", fence.now())
    span = ("schedule", "backfill", "nightly", "--from", "2026-01-01T00:30:00", "--to", "2026-01-01T03:00:00")
    _, told, _ = fencebeat(*span, "--json")
    assert told["fire_times"] == [f"2026-01-01T0{hour}:00:00Z" for hour in (1, 2, 3)]
    assert told["asked"] is False
    assert fence.client.hlen(fence.keys.requests) == 0
    assert "3 would be emitted; --yes does it" in fencebeat(*span)[1]
    assert fencebeat(*span, "--yes")[0] == 0
    assert fence.client.hlen(fence.keys.requests) == 3
    code, _, err = fencebeat(*span, "--yes", "--limit", "2")
    assert (code, "more than 2 fire times" in " ".join(err.split())) == (4, True)
    backwards = ("schedule", "backfill", "nightly", "--from", "2026-01-02", "--to", "2026-01-01")
    assert "--to is before --from" in fencebeat(*backwards)[2]
    assert "No fire time in that range" in fencebeat(*span[:4], "2099-01-01", "--to", "2099-01-02")[1]


# --- reading


def test_list_shows_stored_entries_beside_the_configured_and_pages_what_is_many(fencebeat, fence, schedule) -> None:
    definition = entry_of("x", {"task": "t", "schedule": 60}, source="stored").definition
    fence.client.hset(fence.keys.entries, mapping={f"s{n:04}": definition for n in range(1500)})
    _, rows, _ = fencebeat("schedule", "list", "--prefix", "s", "--limit", "0", "--json")
    assert [row["entry"] for row in rows] == [f"s{n:04}" for n in range(1500)]
    assert {(row["source"], row["schedule"]) for row in rows} == {("stored", "every 60 s")}
    _, rows, _ = fencebeat("schedule", "list", "--json")
    assert len(rows) == 200
    said = fencebeat("schedule", "list")[1]
    assert re.search(r"200 of 1,50\d entries", said)  # Celery may add one of its own
    assert "stored" in said


def test_show_tells_what_differs_between_here_and_the_store(fencebeat, fence) -> None:
    fence.entry("e", mark=fence.now(), schedule=60.0, args=[2])
    fence.client.hset(fence.keys.emitted, "e", 1_790_000_000 * SECOND)
    fence.client.hset(fence.keys.quarantine, "e", json.dumps({"reason": "it raised", "since": 1, "until": 2}))
    code, told, _ = fencebeat("schedule", "show", "e", "--json")
    assert code == 0
    assert {"args", "schedule"} <= set(told["drift"])
    assert "version" not in told["drift"]
    assert (told["definition"]["schedule"], told["stored"]["schedule"]) == ("every 3600 s", "every 60 s")
    assert told["last_emitted"] == "2026-09-21T14:13:20Z"
    assert told["quarantined"]["reason"] == "it raised"
    assert len(told["next_five"]) == 5
    said = fencebeat("schedule", "show", "e")[1]
    assert "differs from what is stored in:" in said
    assert "it raised" in said


def test_show_and_next_know_a_stored_entry_and_a_broken_one(fencebeat, fence, schedule) -> None:
    edited = schedule.add("nightly", {"task": "t", "schedule": 60, "fencebeat": {"jitter": 5}})
    _, told, _ = fencebeat("schedule", "next", "nightly", "--json")
    assert told[0]["fire_time"] == fencebeat("schedule", "list", "--prefix", "n", "--json")[1][0]["next"]
    assert told[0]["emitted_from"].rstrip("Z") >= told[0]["fire_time"].rstrip("Z")
    assert "nightly" in fencebeat("schedule", "show", "nightly")[1]
    assert edited.entry.jitter == 5
    assert fencebeat("schedule", "next", "broken")[0] == 4
    assert "not supported" in fencebeat("schedule", "show", "broken", "--json")[1]["problem"]
    fence.client.hset(fence.keys.entries, "bad", '{"source": "stored"}')
    assert "lacks" in fencebeat("schedule", "show", "bad", "--json")[1]["problem"]


# --- leader and flags


def test_resign_ends_the_term_in_force_and_wakes_the_standbys(fencebeat, fence, monkeypatch) -> None:
    fence.client.hset(fence.keys.term, mapping={"since": fence.now(), "lease": 5000})
    assert fencebeat("leader", "resign", "--json")[0] == 2
    monkeypatch.setattr("typer.confirm", _refuses)
    assert fencebeat("leader", "resign")[0] == 1
    assert fence.client.get(fence.keys.lock) == fence.term.nonce
    code, told, _ = fencebeat("leader", "resign", "--yes", "--json")
    assert (code, told["token"]) == (0, 100)
    assert fence.client.get(fence.keys.lock) is None
    assert fence.client.llen(fence.keys.signal) > 1
    code, _, err = fencebeat("leader", "resign", "--yes")
    assert (code, "Nobody leads" in err) == (1, True)


def test_flags_shows_the_copy_with_its_age(fencebeat, fence) -> None:
    fence.client.hset(fence.keys.flags, "renewed", fence.now())
    flag = {"level": "emit", "reason": "bad deploy", "author": "ops", "until": 1_790_000_000}
    fence.client.hset(fence.keys.flags, "queue:slow", json.dumps(flag))
    code, told, _ = fencebeat("flags", "--json")
    assert (code, told["known"], told["generation"]) == (0, True, 1)
    assert told["flags"] == [{"scope": "queue:slow", **flag, "until": "2026-09-21T14:13:20Z"}]
    assert 0 <= told["age_seconds"] < 60
    said = fencebeat("flags")[1]
    assert "queue:slow" in said
    assert "bad deploy" in said


@pytest.mark.parametrize("damage", ["missing", "rubbish"])
def test_flags_that_are_unknown_say_so(fencebeat, fence, damage) -> None:
    if damage == "missing":
        fence.client.delete(fence.keys.flags)
    else:
        fence.client.hset(fence.keys.flags, mapping={"renewed": fence.now(), "all": "rubbish"})
    code, told, _ = fencebeat("flags", "--json")
    assert (code, told["known"], told["flags"]) == (3, False, [])
    assert "unknown" in fencebeat("flags")[1]


@pytest.mark.parametrize(
    "command",
    [
        *(("schedule", name) for name in ("list", "next", "show", "add", "edit", "remove", "pause", "resume")),
        *(("schedule", name) for name in ("run-now", "backfill", "import-redbeat")),
        *(("leader", "show"), ("leader", "resign"), ("flags",)),
    ],
)
def test_every_command_has_examples_in_its_help(fencebeat, command) -> None:
    code, out, _ = fencebeat(*command, "--help")
    assert code == 0
    assert "Examples:" in out
    assert "--json" in out
