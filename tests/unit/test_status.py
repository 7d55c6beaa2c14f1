"""What counts as degraded, since when, and what is left out where a store does not answer."""

from datetime import UTC, datetime

import pytest
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from config import celery as configured
from control.switches import Switch
from fencebeat.clock import ManualClock
from fencebeat.configuration import Configuration
from fencebeat.entries import lines_of, read_schedule, schedule_digest
from ops import gauges, looks, schedules
from ops.beats import EntryView, Leader, LostPast
from ops.page import FRESH_SECONDS, Watch
from ops.schedules import Kept, Schedule
from ops.status import STALE_SECONDS, Problem, Status, Target, _document_problems

STOP = Switch("all", "write", 7, "bad parser", "me@host", datetime(2026, 1, 1, tzinfo=UTC), None)


def target(**changes):
    facts = dict.fromkeys(("documents", "indexed", "dirty", "claimed", "dead", "absent", "chunks", "garbage"), 0)
    return Target(
        **{"target_id": "t", "kind": "pgvector", "state": "live", "oldest_dirty_seconds": 0.0, **facts, **changes}
    )


def source(**changes):
    return {"tenant_id": "acme", "source_id": "docs", "pending_deletes": 0, "last_error": None, **changes}


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        ({"stops": (STOP,)}, "stop all", "stopped at level write by me@host (bad parser), until it is lifted"),
        ({"targets": (target(state="lost"),)}, "lost t", "has to be rebuilt"),
        ({"targets": (target(oldest_dirty_seconds=STALE_SECONDS + 1),)}, "stale t", "An edit has waited 301 s"),
        ({"sources": (source(pending_deletes=9),)}, "approval acme/docs", "9 deletions in acme/docs wait"),
        ({"sources": (source(last_error="gone\nmore"),)}, "source acme/docs", "could not be listed: gone"),
        ({"dead_letters": {"TooLarge": 2, "Unparsable": 1}}, "dead letters", "3 documents failed for good: 2 TooLarge"),
        ({"doctor": {"differences": 4, "at": 9.0}}, "doctor", "found 4 differences"),
    ],
)
def test_each_trouble_is_a_problem(seen, kind, words):
    (problem,) = _document_problems(Status(at=1000.0, **seen))
    assert problem.kind == kind
    assert words in problem.says


def test_a_quiet_ledger_is_no_problem():
    quiet = Status(
        at=1.0, targets=(target(oldest_dirty_seconds=STALE_SECONDS),), sources=(source(),), doctor={"at": 1.0}
    )
    assert _document_problems(quiet) == []
    assert quiet.as_dict()["status"] == "ok"


class Eyes:
    """An observer that sees what it is told."""

    def __init__(self):
        self.looks = 0
        self.kinds = []
        self.at = 100.0

    def look(self):
        self.looks += 1
        return Status(at=self.at, problems=[Problem(kind, f"{kind} at {self.at}") for kind in self.kinds])


def test_a_problem_keeps_the_time_at_which_it_was_first_seen_and_loses_it_when_it_ends():
    eyes, clock = Eyes(), ManualClock()
    watch = Watch(eyes, clock)
    eyes.kinds = ["leader"]
    assert watch.look().problems[0].since == 100.0

    clock.advance(FRESH_SECONDS + 1)
    eyes.at, eyes.kinds = 110.0, ["leader", "target"]
    assert [(p.kind, p.since) for p in watch.look().problems] == [("leader", 100.0), ("target", 110.0)]

    clock.advance(FRESH_SECONDS + 1)
    eyes.kinds = []
    assert watch.look().problems == []
    clock.advance(FRESH_SECONDS + 1)
    eyes.at, eyes.kinds = 200.0, ["leader"]
    assert watch.look().problems[0].since == 200.0


def test_many_requests_share_one_look():
    eyes, clock = Eyes(), ManualClock()
    watch = Watch(eyes, clock)
    for _ in range(10):
        watch.look()
    assert eyes.looks == 1
    clock.advance(FRESH_SECONDS + 0.1)
    watch.look()
    assert eyes.looks == 2


def test_a_store_that_does_not_answer_leaves_its_gauges_out():
    text = gauges.text(Status(at=1.0), None, None).decode()
    assert [f.name for f in text_string_to_metric_families(text)] == ["fencebeat_degraded"]


def test_gauges_of_a_leader_and_its_ticks():
    seen = Status(at=1.0, leader=Leader(17, "host:1", 1.0, 4.5), entries=(EntryView("sync", 1.0, 2.0, 0.5),))
    text = gauges.text(seen, {"emitted": 3, "fenced": 1}, 0.02).decode()
    for line in (
        "fencebeat_leader 1.0",
        "fencebeat_token 17.0",
        "fencebeat_lease_trust_remaining_seconds 4.5",
        'fencebeat_ticks_total{outcome="emitted"} 3.0',
        "fencebeat_fence_rejected 1.0",
        'fencebeat_tick_late_seconds{entry="sync"} 0.5',
        "fencebeat_tick_lag_seconds 0.02",
    ):
        assert line in text


RECORDS = {
    "paused": {"nightly": '{"by": "ana", "at": 5000000, "reason": "a holiday"}'},
    "quarantine": {"broken": '{"reason": "its task cannot be imported", "since": 7000000, "until": 9000000}'},
    "defined": ["nightly", "broken", "generation"],
    "due": ["broken", "gone"],
    "outbox": (3, [("60000-0", {})]),
    "digest": "theirs",
}


def test_what_keeps_entries_back_is_read_from_the_records():
    assert schedules.read(100.0, **RECORDS) == Schedule(
        paused=(Kept("nightly", "a holiday", 5.0, "ana"),),
        left_alone=(Kept("broken", "its task cannot be imported", 7.0),),
        undefined=("gone",),
        outbox_messages=3,
        outbox_seconds=40.0,
        digest="theirs",
    )
    nothing = {"paused": {}, "quarantine": {}, "defined": [], "due": [], "outbox": (0, []), "digest": None}
    assert schedules.read(100.0, **nothing) == Schedule()


@pytest.mark.parametrize("text", ["rubbish", "[]", "{}", '{"at": "soon"}'])
def test_a_pause_that_cannot_be_read_is_still_a_pause(text):
    (pause,) = schedules.read(100.0, **{**RECORDS, "paused": {"nightly": text}}).paused
    assert (pause.entry, pause.since) == ("nightly", None)


def test_what_keeps_entries_back_is_a_problem_unless_somebody_wanted_it():
    seen = schedules.read(100.0, **RECORDS)
    found = {kind: (says, since) for kind, says, since in schedules.problems(seen)}
    assert found == {
        "quarantine": ("The leader leaves one entry alone: broken: its task cannot be imported.", 7.0),
        "definitions": ("Definitions were lost: gone. Add them again, or remove the entries.", None),
        "outbox": ("3 messages wait in the outbox, the oldest one for 40 s.", None),
    }
    assert schedules.notes(seen, None) == ["Somebody has paused one entry: nightly (by ana: a holiday)."]
    assert "not the one configured here" in schedules.notes(Schedule(), same=False)[0]
    assert schedules.notes(Schedule(), same=True) == []
    assert schedules.problems(Schedule(outbox_messages=3, outbox_seconds=schedules.WAITS_SECONDS)) == []


def test_the_configured_schedule_is_told_as_the_beats_tell_it():
    app = Celery(set_as_current=False)  # the product's own has one entry more in a process that has smoked
    app.config_from_object("config.celery")
    configuration = Configuration.of(app)
    beats, _ = read_schedule(lines_of(app), zone=configuration.zone, lease=configuration.timing.lease)
    given = configured._configured  # what the application was made from; another test may have changed the environment
    assert schedules.configured_digest(given) == schedule_digest(beats)
    other = given.model_copy(update={"sweep_seconds": given.sweep_seconds + 1})
    assert schedules.configured_digest(other) != schedule_digest(beats)


def test_a_sentence_names_a_few_of_many():
    many = tuple(Kept(f"e{number}", "why", float(number)) for number in range(20))
    [(_, says, since)] = schedules.problems(Schedule(left_alone=many))
    assert says.startswith("The leader leaves 20 entries alone: e0: why; e1")
    assert says.endswith("and 15 more.")
    assert since == 0.0


def test_gauges_of_what_keeps_entries_back():
    seen = Status(at=1.0, schedule=schedules.read(100.0, **RECORDS), lost=LostPast(1.0, 4), same_schedule=False)
    text = gauges.text(seen, None, None).decode()
    for line in (
        "fencebeat_paused_entries 1.0",
        "fencebeat_quarantined_entries 1.0",
        "fencebeat_undefined_entries 1.0",
        "fencebeat_outbox_messages 3.0",
        "fencebeat_outbox_age_seconds 40.0",
        "fencebeat_lost_ticks 4.0",
        "fencebeat_schedule_drift 1.0",
    ):
        assert line in text
    nobody = gauges.text(Status(at=1.0, schedule=Schedule()), None, None).decode()
    assert "fencebeat_lost_ticks 0.0" in nobody
    assert "drift" not in nobody


def test_everything_on_the_page_is_escaped():
    evil = "<script>alert(1)</script>"
    seen = Status(
        at=1.0,
        leader=Leader(1, evil, 1.0, None),
        entries=(EntryView(evil, None, None, 0.0),),
        targets=(target(target_id=evil),),
        problems=[Problem("x", evil)],
        schedule=Schedule(paused=(Kept(evil, evil, 1.0, evil),)),
    )
    hit = {"title": evil, "doc_uid": evil, "start": 0, "end": 1, "text": evil}
    found = looks.hits({"hits": [hit], "partial": True, "reason": evil}) + looks.alert(evil)
    page = looks.page(seen, f'"{evil}', f'"{evil}', found)
    assert "<script" not in page
    assert 'value=""' not in page
