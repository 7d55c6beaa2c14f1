"""The schedule edited at run time: data that compares what it read, never runs anything, never fires for the past."""

import json
from datetime import UTC, datetime

import pytest

from fencebeat.clock import ManualClock, SystemClock
from fencebeat.edits import Schedule
from fencebeat.entries import entry_of
from fencebeat.errors import (
    ClocksDiffer,
    EntryExists,
    EntryMoves,
    NoPast,
    StaticEntry,
    UnknownEntry,
    UnusableEntry,
    UnusableRecord,
)
from fencebeat.schedules import read_schedule_text
from tests.support.fences import SECOND, Fence
from tests.support.redis_servers import ClockedValkey, keeper
from tests.support.waiting import until

DAY = 86_400 * SECOND


class MovedClock(SystemClock):
    """The host's clock and `seconds`."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def wall(self):
        return super().wall() + self.seconds


def line(text="every 600 s", **more):
    return {"task": "t", "schedule": read_schedule_text(text), **more}


def score(fence, name="e"):
    found = fence.client.zscore(fence.keys.due, name)
    return None if found is None else round(found) * 1000


def generation(fence):
    return int(fence.client.hget(fence.keys.entries, "generation"))


def edits(fence):
    return [fields for _, fields in fence.client.xrange(fence.keys.edits)]


# --- S10


@pytest.fixture(scope="module")
def clocked(tmp_path_factory):
    """A server whose clock a test sets."""
    folder = tmp_path_factory.mktemp("clocked")
    with keeper(folder) as servers:
        yield ClockedValkey(servers, folder)


def step(server, fence, offset):
    """Move the server's clock and wait until it tells so: it keeps the time of its last wake-up."""
    server.step(offset)
    until(lambda: abs(fence.now() / SECOND - SystemClock().wall() - offset) < 0.2)


@pytest.fixture
def at_time(clocked, namespace):
    """Set the server's clock and ours to a moment; returns the fence and the schedule."""

    def set_both(moment):
        offset = moment.timestamp() - SystemClock().wall()
        client = clocked.client()
        fence = Fence.sealed(client, namespace)
        step(clocked, fence, offset)
        return fence, Schedule(client, fence.keys, clock=MovedClock(offset))

    yield set_both
    clocked.client().flushall()
    clocked.step(0)


MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
MIDNIGHT_US = round(MIDNIGHT.timestamp() * SECOND)


@pytest.mark.parametrize("before", [300.0, 0.9])  # 23:55:00, and so late that a slow edit would meet midnight
def test_s10_an_entry_added_before_midnight_first_fires_at_midnight(at_time, before) -> None:
    fence, schedule = at_time(datetime.fromtimestamp(MIDNIGHT.timestamp() - before, UTC))
    edited = schedule.add("e", line("0 0 * * *"))
    first = MIDNIGHT_US if edited.mark < MIDNIGHT_US else MIDNIGHT_US + DAY  # on a machine that is very slow
    assert edited.following == score(fence) == first
    assert before < 1 or first == MIDNIGHT_US
    assert edited.mark == fence.mark() > MIDNIGHT_US - 301 * SECOND
    assert fence.store.due(fence.term, 10).marks == {} or fence.now() >= first


def test_s10_an_entry_whose_first_fire_time_passes_while_it_is_added_begins_after_it(at_time, monkeypatch) -> None:
    """Read at 23:59:59.9, written after midnight: midnight is the past by then."""
    fence, schedule = at_time(datetime.fromtimestamp(MIDNIGHT.timestamp() - 0.9, UTC))
    find, found = schedule.find, []

    def slow(name):
        found.append(find(name))
        while fence.now() < MIDNIGHT_US:
            pass
        return found[-1]

    monkeypatch.setattr(schedule, "find", slow)
    edited = schedule.add("e", line("0 0 * * *"))
    assert len(found) == 2
    assert found[0].now < MIDNIGHT_US
    assert edited.following == MIDNIGHT_US + DAY
    assert fence.store.due(fence.term, 10).marks == {}


def test_s10_an_interval_added_at_five_to_first_fires_at_its_anchor(at_time) -> None:
    fence, schedule = at_time(datetime.fromtimestamp(MIDNIGHT.timestamp() - 300, UTC))
    assert schedule.add("e", line("every 600 s")).following == MIDNIGHT_US
    assert score(fence) == MIDNIGHT_US


def test_a_clock_set_back_while_an_entry_is_added_leaves_no_mark_in_the_future(at_time, clocked, monkeypatch) -> None:
    fence, schedule = at_time(MIDNIGHT)
    find, found = schedule.find, []

    def stepped(name):
        found.append(find(name))
        if len(found) == 1:
            offset = MIDNIGHT.timestamp() - SystemClock().wall() - 1.5  # within the tolerance
            step(clocked, fence, offset)
        return found[-1]

    monkeypatch.setattr(schedule, "find", stepped)
    schedule.add("e", line("every 600 s"))
    assert len(found) >= 2
    assert fence.mark() <= fence.now()


# --- what an edit does


def test_an_added_entry_has_a_mark_of_now_and_is_recorded(fence, schedule) -> None:
    before = fence.now()
    edited = schedule.add("e", line(args=[1], fencebeat={"jitter": 60, "zone": "Europe/Berlin"}))
    assert before <= fence.mark() <= fence.now()
    assert edited.mark == fence.mark()
    assert edited.generation == generation(fence) == 2
    assert score(fence) == -(-edited.entry.due_at(edited.following) // 1000) * 1000
    assert schedule.find("e").entry == edited.entry
    assert edited.entry.source == "stored"
    assert edits(fence) == [{"generation": "2", "op": "add", "entry": "e", "by": "a test"}]
    (record,) = fence.audit()
    assert record == {"outcome": "added", "entry": "e", "by": "a test", "fire_time": str(fence.mark())}


def test_adding_a_name_that_is_taken_changes_nothing(fence, schedule) -> None:
    schedule.add("e", line())
    before = fence.everything()
    with pytest.raises(EntryExists):
        schedule.add("e", line("every 5 s"))
    assert fence.everything() == before


@pytest.mark.parametrize("act", ["edit", "remove", "pause", "resume"])
def test_an_unknown_entry_is_refused_by_name(fence, schedule, act) -> None:
    before = fence.everything()
    with pytest.raises(UnknownEntry, match="nothing here"):
        getattr(schedule, act)("nothing here")
    assert fence.everything() == before


def test_what_cannot_be_scheduled_is_refused_before_anything_is_asked(fence, schedule) -> None:
    before = fence.everything()
    for bad in ({"schedule": 5}, line(fencebeat={"zone": "Mars"}), line(args=[object()])):
        with pytest.raises(UnusableEntry):
            schedule.add("e", bad)
    assert fence.everything() == before


def test_s17_another_schedule_counts_from_now_and_closes_what_was_open(fence, schedule) -> None:
    schedule.add("e", line("*/5 * * * *"))
    mark = fence.now() - 3600 * SECOND
    fence.client.hset(fence.keys.last, "e", mark)  # as if nobody had led for an hour
    fence.client.zadd(fence.keys.due, {"e": mark // 1000})
    edited = schedule.edit("e", schedule="*/7 * * * *")
    assert edited.entry.shown == "*/7 * * * *"
    assert fence.store.due(fence.term, 10).marks == {}
    assert edited.following > fence.now() - SECOND
    record = fence.audit()[-1]
    assert (record["outcome"], int(record["first"]), int(record["fire_time"])) == ("changed", mark + 1, fence.mark())
    assert "*/5 * * * * -> */7 * * * *" in record["reason"]


def test_s17_other_arguments_keep_the_next_fire_time_even_one_that_is_due(fence, schedule) -> None:
    schedule.add("e", line("every 5 s"))
    mark = fence.now() - 100 * SECOND
    fence.client.hset(fence.keys.last, "e", mark)
    due = schedule.find("e").entry.next_after(mark)
    fence.client.zadd(fence.keys.due, {"e": due // 1000})
    edited = schedule.edit("e", args=[1], kwargs={"b": 2}, options={"queue": "other"})
    assert (fence.mark(), score(fence)) == (mark, due)
    assert edited.entry.args == (1,)
    assert edited.entry.options == {"queue": "other"}
    assert "first" not in fence.audit()[-1]


def test_s17_a_removed_entry_keeps_its_mark_and_added_again_repeats_nothing(fence, schedule) -> None:
    schedule.add("e", line("every 5 s"))
    future = fence.now() + 3600 * SECOND
    fence.client.hset(fence.keys.last, "e", future)  # what was emitted in its former life
    schedule.pause("e")
    schedule.remove("e")
    assert (fence.mark(), score(fence), fence.client.hget(fence.keys.entries, "e")) == (future, None, None)
    edited = schedule.add("e", line("every 5 s"))
    assert fence.mark() == future
    assert edited.following > future
    assert score(fence) == edited.following
    assert schedule.find("e").paused is None


def test_an_edit_keeps_the_pause(fence, schedule) -> None:
    schedule.add("e", line())
    schedule.pause("e", "the printer burns")
    schedule.edit("e", schedule="every 5 s")
    schedule.edit("e", args=[1])
    assert score(fence) is None
    assert schedule.find("e").paused["reason"] == "the printer burns"


@pytest.mark.parametrize("source", ["static", "stored"])
def test_s26_a_pause_leaves_the_mark_and_resume_lets_the_policy_decide(fence, schedule, source) -> None:
    entry = entry_of("e", line("* * * * *"), source=source)
    mark = fence.now() - 3 * DAY
    fence.client.hset(fence.keys.entries, "e", entry.definition)
    fence.client.hset(fence.keys.last, "e", mark)
    fence.client.zadd(fence.keys.due, {"e": mark // 1000})
    schedule.pause("e", "holiday")
    assert (score(fence), fence.mark()) == (None, mark)
    assert schedule.find("e").paused == {"by": "a test", "at": pytest.approx(fence.now(), abs=9e6), "reason": "holiday"}
    schedule.resume("e")
    assert (score(fence), fence.mark()) == (entry.next_after(mark), mark)
    assert schedule.find("e").paused is None
    assert [record["outcome"] for record in fence.audit()] == ["held", "resumed"]
    assert [record["op"] for record in edits(fence)] == ["pause", "resume"]
    assert fence.store.due(fence.term, 10).marks == {"e": mark}


def test_resume_may_skip_what_was_missed_and_records_it(fence, schedule) -> None:
    schedule.add("e", line("* * * * *"))
    mark = fence.now() - 3 * DAY
    fence.client.hset(fence.keys.last, "e", mark)
    schedule.pause("e")
    edited = schedule.resume("e", skip_missed=True)
    assert edited.mark == fence.mark() > mark
    assert score(fence) == edited.following > fence.now() - SECOND
    record = fence.audit()[-1]
    assert (record["outcome"], int(record["first"]), int(record["fire_time"])) == ("resumed", mark + 1, fence.mark())
    assert "without what was missed" in record["reason"]


@pytest.mark.parametrize("act", ["edit", "remove"])
def test_an_entry_of_the_configuration_is_changed_there(fence, schedule, act) -> None:
    fence.entry("e")
    before = fence.everything()
    with pytest.raises(StaticEntry, match="beat_schedule"):
        getattr(schedule, act)("e")
    assert fence.everything() == before


def test_a_start_goes_with_the_interval_that_it_counted_for(schedule) -> None:
    schedule.add("e", line(fencebeat={"start": datetime(2026, 1, 1, 0, 5, tzinfo=UTC)}))
    assert schedule.find("e").entry.rule.anchor == 300 * SECOND
    assert (
        schedule.edit("e", jitter=5).entry.start == round(datetime(2026, 1, 1, 0, 5, tzinfo=UTC).timestamp()) * SECOND
    )
    assert schedule.edit("e", schedule="0 0 * * *").entry.start is None


def test_an_entry_moved_here_goes_on_from_where_it_was_and_never_from_the_future(fence, schedule) -> None:
    mark = fence.now() - DAY
    schedule.add("past", line("every 3600 s"), mark=mark)
    assert fence.mark("past") == mark
    assert fence.store.due(fence.term, 10).marks == {"past": mark}
    schedule.add("future", line("every 3600 s"), mark=fence.now() + DAY)
    assert fence.mark("future") <= fence.now()


# --- what an edit compares


def test_an_edit_that_lost_a_race_reads_again_and_builds_on_the_other_one(fence, schedule, monkeypatch) -> None:
    schedule.add("e", line(args=[1]))
    other = Schedule(fence.client, fence.keys)
    find, calls = schedule.find, []

    def raced(name):
        found = find(name)
        if not calls:
            other.edit("e", kwargs={"by": "other"})
        calls.append(found)
        return found

    monkeypatch.setattr(schedule, "find", raced)
    schedule.edit("e", args=[2])
    assert len(calls) == 2
    entry = other.find("e").entry
    assert (entry.args, entry.kwargs) == ((2,), {"by": "other"})


def test_an_edit_whose_mark_was_moved_by_an_emission_reads_again(fence, schedule, monkeypatch) -> None:
    schedule.add("e", line("every 5 s"))
    find, calls = schedule.find, []

    def raced(name):
        found = find(name)
        if not calls:
            fence.client.hset(fence.keys.last, "e", found.mark + 1)
        calls.append(found)
        return found

    monkeypatch.setattr(schedule, "find", raced)
    schedule.edit("e", args=[2])
    assert len(calls) == 2
    assert fence.mark() == calls[0].mark + 1


def test_an_entry_that_never_stands_still_is_given_up_by_name(fence, schedule, monkeypatch) -> None:
    schedule.add("e", line())
    find = schedule.find

    def raced(name):
        found = find(name)
        fence.client.hset(fence.keys.last, "e", found.mark + 1)
        return found

    monkeypatch.setattr(schedule, "find", raced)
    with pytest.raises(EntryMoves, match="entry e"):
        schedule.pause("e")
    assert schedule.find("e").paused is None


@pytest.mark.parametrize("seconds", [-3.0, 3.0, 86_400.0])
def test_s14_a_host_whose_clock_is_off_edits_nothing(fence, seconds) -> None:
    before = fence.everything()
    with pytest.raises(ClocksDiffer, match=r"differ by \d"):
        Schedule(fence.client, fence.keys, clock=MovedClock(seconds)).add("e", line())
    assert fence.everything() == before
    Schedule(fence.client, fence.keys, clock=MovedClock(1.0)).add("e", line())


@pytest.mark.parametrize("record", ["entries", "last"])
def test_a_store_that_lost_its_past_is_not_edited(fence, schedule, record) -> None:
    fence.client.hdel(getattr(fence.keys, record), "generation")
    before = fence.everything()
    with pytest.raises(NoPast, match="Start a beat"):
        schedule.add("e", line())
    assert fence.everything() == before


@pytest.mark.parametrize("ask", ["pause", "resume", "run_now", "remove", "edit"])
def test_before_any_beat_has_led_that_is_what_is_said_and_not_that_the_entry_is_unknown(fence, schedule, ask) -> None:
    fence.client.delete(fence.keys.entries, fence.keys.last)
    with pytest.raises(NoPast, match="No beat has led here yet"):
        getattr(schedule, ask)("configured")


@pytest.mark.parametrize("record", ["due", "paused", "edits", "audit", "requests"])
def test_a_record_of_another_type_changes_nothing(fence, schedule, record) -> None:
    fence.client.set(getattr(fence.keys, record), "rubbish")
    before = {name: value for name, value in fence.everything().items() if name != fence.keys.audit}
    with pytest.raises(UnusableRecord, match=record):
        schedule.add("e", line())
    assert fence.everything() == before


def test_the_generation_grows_with_every_change_and_each_change_is_told(fence, schedule) -> None:
    fence.client.hset(fence.keys.entries, "generation", 1_790_000_000_000_123)  # as after a recovery
    schedule.add("e", line())
    schedule.edit("e", args=[1])
    schedule.pause("e")
    schedule.resume("e")
    schedule.remove("e")
    assert [record["op"] for record in edits(fence)] == ["add", "edit", "pause", "resume", "remove"]
    assert [int(record["generation"]) for record in edits(fence)] == [1_790_000_000_000_123 + n for n in range(1, 6)]
    assert generation(fence) == 1_790_000_000_000_128


def test_a_pause_that_cannot_be_read_is_a_pause(fence, schedule) -> None:
    schedule.add("e", line())
    fence.client.hset(fence.keys.paused, "e", "rubbish")
    assert schedule.find("e").paused == {"unreadable": "rubbish"}
    schedule.edit("e", args=[1])
    assert score(fence) is None


def test_a_definition_that_cannot_be_read_can_be_paused_and_removed(fence, schedule) -> None:
    fence.client.hset(fence.keys.entries, "e", json.dumps({"source": "stored", "task": "t"}))
    with pytest.raises(UnusableEntry):
        schedule.edit("e", args=[1])
    schedule.pause("e")
    schedule.remove("e")
    assert fence.client.hget(fence.keys.entries, "e") is None


def test_who_edits_is_recorded(fence) -> None:
    Schedule(fence.client, fence.keys, clock=ManualClock(wall=fence.now() / SECOND)).add("e", line())
    assert "@" in fence.audit()[-1]["by"] or fence.audit()[-1]["by"]
