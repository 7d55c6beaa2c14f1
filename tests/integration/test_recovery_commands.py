"""What a human sees after a loss, and says: gaps, the leader's line, stops without an effect store."""

import io
import json

import pytest
import redis
from rich.console import Console

from config.settings import Settings
from fencebeat.edits import Schedule
from fencebeat.flags import read_flags
from fencebeat.recovery import Recovery
from fencebeat.testing.effects import MemoryEffects
from ops import beats, looks
from ops.cli.running import _shown
from ops.schedules import configured_digest
from ops.status import Observer, Status
from tests.support.audits import sent
from tests.support.fences import SECOND, Fence

PROJECT = """
from celery import Celery
app = Celery("cli", broker={url!r}, set_as_current=False)
app.conf.update(
    fencebeat_namespace={namespace!r},
    fencebeat_effect_store={effects!r},
    beat_schedule={{"e": {{"task": "t", "schedule": 1.0}}}},
)
"""


@pytest.fixture
def fence(redis_url, namespace):
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5) as client:
        made = Fence.sealed(client, namespace)
        client.hset(made.keys.term, mapping={"since": made.now(), "lease": 5000})
        yield made


@pytest.fixture
def fencebeat(in_project):
    """Run a command in the project; returns exit code, stdout (as JSON if it is) and stderr."""

    def run(*arguments, effects=""):
        code, out, err = in_project(PROJECT, *arguments, effects=effects)
        return code, json.loads(out) if "--json" in arguments and out else out, err

    return run


@pytest.fixture
def lost(fence):
    """A store that was recovered: three ticks of an unguarded task may have been lost. Yields the first one."""
    effects, at = MemoryEffects(), fence.now() // SECOND * SECOND
    sent(effects, at, *(at - n * SECOND for n in (5, 4, 3)), guarded=False)
    fence.client.delete(fence.keys.entries, fence.keys.last, fence.keys.flags)
    Recovery(fence.client, fence.keys, carrier="lock", effects=effects)(fence.term)
    return at - 5 * SECOND


def test_f06_gaps_are_listed_and_told_by_the_leaders_line_and_by_explain(fencebeat, lost) -> None:
    code, rows, _ = fencebeat("schedule", "gaps", "--json")
    assert code == 0
    whole, ticks = rows
    assert (whole["reason"], whole["recovered"], whole["lost"]) == ("the store lost its past", 1, 3)
    assert (ticks["entry"], ticks["count"], ticks["reason"]) == ("e", 3, "may have been lost")
    code, shown, _ = fencebeat("schedule", "gaps")
    assert "3 ticks: may have been lost" in shown

    _, leader, _ = fencebeat("leader", "show", "--json")
    assert (leader["lost_past"], leader["lost_ticks"]) == (whole["until"], 3)
    assert "fencebeat schedule gaps" in fencebeat("leader", "show")[1]

    code, told, _ = fencebeat("explain", "e", str(lost / SECOND), "--json")
    assert (code, told["outcome"]) == (0, "gap")
    assert told["why"].startswith("may have been lost")


def test_a_store_that_lost_nothing_has_no_gap(fencebeat, fence) -> None:
    assert fencebeat("schedule", "gaps", "--json")[:2] == (0, [])
    assert "No gap" in fencebeat("schedule", "gaps")[1]
    assert fencebeat("leader", "show", "--json")[1]["lost_past"] is None


def test_a_human_stops_and_lifts_where_there_is_no_effect_store(fencebeat, fence) -> None:
    code, told, _ = fencebeat("flags", "stop", "entry:e", "--reason", "bad data", "--json")
    assert (code, told["stopped"]) == (0, True)
    flag = read_flags(fence.client, fence.keys).flags["entry:e"]
    assert (flag.level, flag.reason) == ("emit", "bad data")
    assert "@" in flag.author
    entry = fence.entry(mark=fence.now() - 2 * SECOND)
    assert fence.commit(fence.emission(entry, entry.next_after(fence.mark()))) == ("paused",)
    assert "entry:e" in fencebeat("flags")[1]

    code, told, _ = fencebeat("flags", "lift", "entry:e", "--reason", "mended", "--json")
    assert (code, told["stopped"]) == (0, False)
    assert read_flags(fence.client, fence.keys).flags == {}
    assert fence.commit(fence.emission(entry, entry.next_after(fence.mark()))) == ("emitted",)
    said = [(record["outcome"], record["reason"]) for record in fence.audit() if "scopes" in record]
    assert said == [("stopped", "bad data"), ("lifted", "mended")]


def test_a_stop_is_refused_where_an_effect_store_would_undo_it(fencebeat, fence) -> None:
    code, _, err = fencebeat("flags", "lift", "all", "--reason", "x", effects="some.where:store")
    assert code == 4
    assert "effect store" in err
    assert fencebeat("flags", "stop", "tenant:x", "--reason", "x")[0] == 2
    assert fence.client.hgetall(fence.keys.flags) == {"generation": "1"}


def test_status_tells_of_the_loss_for_a_day_and_counts_it_as_over(fence, lost, redis_url, namespace) -> None:
    seen = beats.look(fence.client, fence.keys)
    assert seen.lost == beats.LostPast(until=pytest.approx(seen.now, abs=60), ticks=3)
    observer = Observer(Settings(redis_url=redis_url, namespace=namespace))
    try:
        first, later = Status(at=0.0), Status(at=0.0)
        problems = observer._scheduler(first)
        fence.client.hset(fence.keys.term, "lost_past", int((seen.now - 2 * 86_400) * SECOND))
        observer._scheduler(later)
    finally:
        observer.close()
    assert (first.lost, later.lost) == (seen.lost, None)
    assert "3 ticks may have been lost: fencebeat schedule gaps" in _text(first)
    assert [problem for problem in problems if "lost" in problem.says] == []


def test_status_tells_what_keeps_entries_back_and_whose_schedule_is_in_force(fence, redis_url, namespace) -> None:
    settings = Settings(redis_url=redis_url, namespace=namespace)
    for name in ("going", "nightly", "broken", "gone"):
        fence.entry(name, mark=fence.now())
    Schedule(fence.client, fence.keys, by="ana").pause("nightly", "a holiday")
    left = json.dumps({"reason": "no such task", "since": fence.now(), "until": fence.now() + 30 * SECOND})
    fence.store.quarantine(fence.term, {"broken": left})
    fence.client.hdel(fence.keys.entries, "gone")
    fence.client.hset(fence.keys.term, "digest", configured_digest(settings))
    observer = Observer(settings)
    try:
        first, later = Status(at=0.0), Status(at=0.0)
        kinds = {problem.kind for problem in observer._scheduler(first)}
        fence.client.hset(fence.keys.term, "digest", "of another configuration")
        observer._scheduler(later)
    finally:
        observer.close()
    assert {"quarantine", "definitions"} <= kinds
    kept = {entry.name: entry.kept for entry in first.entries}
    assert kept == {"going": "", "nightly": "paused", "broken": "left alone", "gone": "undefined"}
    assert (first.same_schedule, later.same_schedule) == (True, False)
    assert "Somebody has paused one entry: nightly (by ana: a holiday)." in _text(first)
    assert "not the one configured here" in _text(later)
    page = looks.page(later, "", "", "")
    for said in ("nightly (by ana: a holiday)", "not the one configured here", "<td>undefined</td>"):
        assert said in page


def _text(status) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(_shown(status))
    return console.file.getvalue()
