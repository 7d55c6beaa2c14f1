"""The stored schedule and the leader's memory: what differs is written by the leader alone, what is lost has a name."""

import json
import logging
from dataclasses import replace

import pytest

from fencebeat.entries import Entry, entry_of
from fencebeat.errors import Fenced, StoreUnknown
from fencebeat.lease import Term
from fencebeat.schedule_memory import ScheduleMemory
from fencebeat.sync import ONE_STEP, PAGE, Synchroniser
from tests.support.fences import SECOND


class Counted(Synchroniser):
    """Counts the requests that write."""

    def __init__(self, fence):
        store = fence.store
        super().__init__(fence.client, fence.keys, self.count, 1000)
        self.sent, self._real = [], store._under

    def count(self, name, term, keys, args):
        self.sent.append(args)
        return self._real(name, term, keys, args)


def lines(count, **more):
    return {f"e{n:04}": entry_of(f"e{n:04}", {"task": "t", "schedule": 3600.0, **more}) for n in range(count)}


def synchronise(fence, entries, *, memory=None, complete=False, term=None):
    """Run it to its end; returns memory and what was sent."""
    memory = memory or ScheduleMemory(entries)
    worker = Counted(fence)
    for _ in worker.synchronise(term or fence.term, memory, complete=complete):
        pass
    return memory, worker.sent


def store(fence, name, **line):
    """A stored entry, as an edit writes it."""
    entry = entry_of(name, {"task": "t", "schedule": 60.0, **line}, source="stored")
    mark = fence.now()
    fence.client.hset(fence.keys.entries, name, entry.definition)
    fence.client.hset(fence.keys.last, name, mark)
    fence.client.zadd(fence.keys.due, {name: entry.next_after(mark) / 1000})
    return entry


def edit(fence, op, name):
    """Say so, as an edit does."""
    generation = fence.client.hincrby(fence.keys.entries, "generation", 1)
    fence.client.xadd(fence.keys.edits, {"generation": generation, "op": op, "entry": name, "by": "test"})
    return generation


# --- what is written


def test_a_schedule_that_is_stored_already_is_not_written_again(fence) -> None:
    entries = lines(30)
    first, sent = synchronise(fence, entries)
    assert len(sent) == 1
    before = fence.everything()
    again, sent = synchronise(fence, entries)
    assert sent == []
    assert fence.everything() == before
    assert first.generation == again.generation == int(fence.client.hget(fence.keys.entries, "generation"))


def test_only_what_differs_is_sent(fence) -> None:
    synchronise(fence, lines(30))
    changed = {**lines(30), "e0003": entry_of("e0003", {"task": "t", "schedule": 3600.0, "args": [1]})}
    del changed["e0029"]
    _, (request,) = synchronise(fence, changed)
    assert request[3] == 1  # lines
    assert request[4] == "e0003"
    assert request[-2:] == [1, "e0029"]


@pytest.mark.parametrize(("count", "requests"), [(ONE_STEP, 1), (ONE_STEP + 1, -(-(ONE_STEP + 1) // PAGE))])
def test_s23_a_change_is_one_step_and_a_very_large_one_comes_in_pages(fence, count, requests) -> None:
    entries = lines(count)
    _, sent = synchronise(fence, entries)
    assert len(sent) == requests
    assert [bool(request[1]) for request in sent] == [False] * (requests - 1) + [True]  # the digest comes last
    assert fence.client.hlen(fence.keys.entries) == fence.client.zcard(fence.keys.due) + 1 == count + 1


def test_s23_until_it_leads_a_standby_with_another_configuration_changes_nothing(fence) -> None:
    v1 = {name: entry_of(name, {"task": "t", "schedule": 3600.0}) for name in "ab"}
    v2 = {"a": entry_of("a", {"task": "t", "schedule": 1800.0}), "c": entry_of("c", {"task": "t", "schedule": 3600.0})}
    synchronise(fence, v1)
    d = store(fence, "d")
    stored = fence.everything()
    with pytest.raises(Fenced):
        synchronise(fence, v2, term=Term(99, "a standby", "host:0", 5.0))
    assert fence.everything() == stored
    memory, sent = synchronise(fence, v2, term=fence.successor())
    assert len(sent) == 1
    definitions = fence.client.hgetall(fence.keys.entries)
    assert definitions.keys() == {"generation", "a", "c", "d"}
    assert definitions["d"] == d.definition
    assert memory.stored["d"].version == d.version
    assert fence.client.zscore(fence.keys.due, "b") is None
    stored = fence.everything()
    with pytest.raises(Fenced):
        synchronise(fence, v1)
    assert fence.everything() == stored


def test_each_first_mark_is_recorded_once(fence) -> None:
    synchronise(fence, lines(2))
    synchronise(fence, {})
    synchronise(fence, lines(2))
    added = [record for record in fence.audit() if record["outcome"] == "added"]
    assert [record["entry"] for record in added] == ["e0000", "e0001"]
    assert all(int(record["fire_time"]) > 0 and record["token"] == "100" for record in added)


def test_s17_a_pause_outlives_a_change_of_the_configuration(fence) -> None:
    synchronise(fence, lines(2))
    fence.client.hset(fence.keys.paused, "e0000", "{}")
    fence.client.zrem(fence.keys.due, "e0000")
    synchronise(fence, lines(2, args=[1]))
    assert fence.client.zrange(fence.keys.due, 0, -1) == ["e0001"]
    assert fence.client.hexists(fence.keys.paused, "e0000")


def test_what_is_missing_among_the_due_ones_is_put_back(fence) -> None:
    entries = lines(5)
    synchronise(fence, entries)
    store(fence, "d")
    due = fence.client.zrange(fence.keys.due, 0, -1, withscores=True)
    fence.client.delete(fence.keys.due)
    generation = fence.client.hget(fence.keys.entries, "generation")
    synchronise(fence, entries)
    assert fence.client.zrange(fence.keys.due, 0, -1, withscores=True) == due
    assert fence.client.hget(fence.keys.entries, "generation") == generation


def test_an_edit_in_the_middle_makes_it_read_again(fence) -> None:
    memory, worker = ScheduleMemory(lines(3)), Counted(fence)
    work = worker.synchronise(fence.term, memory, complete=False)
    next(work)
    store(fence, "d")
    edit(fence, "add", "d")
    for _ in work:
        pass
    assert len(worker.sent) == 2
    assert list(memory.stored) == ["d"]


def test_s17_a_mark_that_moves_while_the_schedule_is_compared_never_falls(fence) -> None:
    """By whatever moves it without a new generation: a commit whose request was on its way."""
    synchronise(fence, lines(2))
    moved = []

    class Moving(Counted):
        def count(self, *request):
            if not moved:
                moved.append(fence.now() + 5 * SECOND)
                fence.client.hset(fence.keys.last, "e0000", moved[0])
            return super().count(*request)

    worker = Moving(fence)
    for _ in worker.synchronise(fence.term, ScheduleMemory(lines(2, args=[1])), complete=False):
        pass
    assert len(worker.sent) == 2
    assert fence.mark("e0000") == moved[0]


def test_a_schedule_that_never_stands_still_is_given_up(fence) -> None:
    class Restless(Counted):
        def count(self, *request):
            edit(fence, "pause", "e0000")
            return super().count(*request)

    with pytest.raises(StoreUnknown, match="went on changing"):
        for _ in Restless(fence).synchronise(fence.term, ScheduleMemory(lines(3)), complete=False):
            pass


# --- what disappears, and what cannot be read


def test_s22_a_static_definition_that_was_deleted_is_restored_with_its_mark(fence, caplog) -> None:
    entries = lines(3)
    memory, _ = synchronise(fence, entries)
    mark = fence.mark("e0001") - 3600 * SECOND
    fence.client.hset(fence.keys.last, "e0001", mark)
    fence.client.hdel(fence.keys.entries, "e0001")
    with caplog.at_level(logging.ERROR):
        synchronise(fence, entries, memory=memory)
    assert fence.client.hget(fence.keys.entries, "e0001") == entries["e0001"].definition
    assert fence.mark("e0001") == mark  # what it missed is due by its policy, and nothing before
    assert "e0001" in caplog.text


@pytest.mark.parametrize("rubbish", ["rubbish", "[]", "{}"])
def test_s22_a_damaged_static_definition_is_made_anew(fence, rubbish) -> None:
    entries = lines(2)
    synchronise(fence, entries)
    mark = fence.mark("e0001") - 3600 * SECOND
    fence.client.hset(fence.keys.last, "e0001", mark)
    fence.client.hset(fence.keys.entries, "e0001", rubbish)
    synchronise(fence, entries, complete=True)
    assert fence.client.hget(fence.keys.entries, "e0001") == entries["e0001"].definition
    assert fence.mark("e0001") == mark


def test_s22_a_stored_definition_that_was_deleted_is_named(fence) -> None:
    store(fence, "d")
    memory, _ = synchronise(fence, lines(1))
    fence.client.hdel(fence.keys.entries, "d")
    synchronise(fence, memory.static, memory=memory)
    assert "disappeared" in memory.lost["d"]
    assert memory.get("d") is None
    store(fence, "d")
    for _ in Counted(fence).follow(fence.term, memory, edit(fence, "add", "d")):
        pass
    assert memory.lost == {}
    assert memory.get("d") is not None


def test_a_stored_entry_that_cannot_be_read_is_named_and_the_others_go_on(fence) -> None:
    store(fence, "good")
    fence.client.hset(fence.keys.entries, "bad", json.dumps({"source": "stored", "task": "t"}))
    fence.client.hset(fence.keys.entries, "worse", "rubbish")
    memory, _ = synchronise(fence, lines(1))
    assert list(memory.stored) == ["good"]
    assert memory.unreadable.keys() == {"bad", "worse"}
    assert memory.count == fence.client.hlen(fence.keys.entries) - 1


# --- following edits


def test_s17_edits_are_followed_one_by_one(fence) -> None:
    memory, _ = synchronise(fence, lines(2))
    worker = Counted(fence)
    store(fence, "d")
    edit(fence, "add", "d")
    changed = store(fence, "d", args=[1])
    generation = edit(fence, "edit", "d")
    for _ in worker.follow(fence.term, memory, generation):
        pass
    assert (memory.generation, memory.stored["d"].version) == (generation, changed.version)
    fence.client.hdel(fence.keys.entries, "d")
    generation = edit(fence, "remove", "d")
    for _ in worker.follow(fence.term, memory, generation):
        pass
    assert (memory.generation, memory.stored, memory.lost) == (generation, {}, {})
    assert worker.sent == []


@pytest.mark.parametrize("hole", ["trimmed", "sync", "no generation"])
def test_s17_edits_with_a_hole_in_them_load_all(fence, hole) -> None:
    memory, _ = synchronise(fence, {})
    store(fence, "d")
    first = edit(fence, "add", "d")
    store(fence, "f")
    generation = edit(fence, "sync" if hole == "sync" else "add", "" if hole == "sync" else "f")
    if hole == "trimmed":
        fence.client.xtrim(fence.keys.edits, maxlen=1, approximate=False)
    if hole == "no generation":
        fence.client.delete(fence.keys.edits)
        fence.client.xadd(fence.keys.edits, {"generation": "rubbish", "op": "add", "entry": "d"})
        fence.client.xadd(fence.keys.edits, {"generation": first, "op": "add", "entry": "d"})
    for _ in Counted(fence).follow(fence.term, memory, generation):
        pass
    assert (memory.generation, sorted(memory.stored)) == (generation, ["d", "f"])


def test_a_static_entry_stays_the_configurations_whatever_an_edit_says(fence) -> None:
    entries = lines(1)
    memory, _ = synchronise(fence, entries)
    generation = edit(fence, "edit", "e0000")
    for _ in Counted(fence).follow(fence.term, memory, generation):
        pass
    assert memory.get("e0000") is entries["e0000"]
    assert memory.stored == {}


def test_jitter_decides_when_an_entry_is_due(fence) -> None:
    entry: Entry = replace(lines(1)["e0000"], jitter=1800.0)
    synchronise(fence, {"e0000": entry})
    following = entry.next_after(fence.mark("e0000"))
    score = fence.client.zscore(fence.keys.due, "e0000")
    assert score == -(-entry.due_at(following) // 1000)
    assert score > following / 1000
