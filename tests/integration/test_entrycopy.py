"""The copy of definitions and pauses: what the edits name, else everything, and nothing of a flushed store."""

import pytest

from fencebeat.connection import Broker
from fencebeat.copying import AuditCopier
from fencebeat.edits import Schedule
from fencebeat.effects import Version
from fencebeat.entrycopy import DefinitionCopier
from fencebeat.testing.effects import MemoryEffects

LINE = {"task": "t", "schedule": 60.0}


class Recording(MemoryEffects):
    """Remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def copy_entries(self, copy):
        self.calls.append(copy)
        return super().copy_entries(copy)


@pytest.fixture
def effects():
    return Recording()


@pytest.fixture
def client(redis_url):
    with Broker(redis_url).client(5.0) as made:
        yield made


@pytest.fixture
def schedule(client, fence):
    return Schedule(client, fence.keys, by="ana")


@pytest.fixture
def copier(effects, client, fence):
    return DefinitionCopier(effects, client, fence.keys, page=3)


def kept(effects):
    past = effects.past()
    return set(past.entries), set(past.paused)


def generation(fence):
    return int(fence.client.hget(fence.keys.entries, "generation"))


def test_the_first_look_copies_everything_in_pages(copier, effects, schedule, fence):
    for number in range(8):
        schedule.add(f"e{number}", LINE)
    schedule.pause("e3", "night")

    assert copier.copy()

    assert kept(effects) == ({f"e{number}" for number in range(8)}, {"e3"})
    assert effects.copied_entries() == Version(fence.term.token, generation(fence))
    assert max(len(call.entries) for call in effects.calls) == 3
    lasts = [call.last for call in effects.calls]  # how many pages there are depends on how the server scans its hash
    assert len(lasts) >= 3
    assert lasts.index(True) == len(lasts) - 1
    assert effects.past().entries["e1"] == fence.client.hget(fence.keys.entries, "e1")


def test_an_empty_schedule_is_a_complete_copy(copier, effects, fence):
    assert copier.copy()
    assert effects.copied_entries() == Version(fence.term.token, 1)


def test_later_only_what_the_edits_name_is_copied(copier, effects, schedule):
    for number in range(8):
        schedule.add(f"e{number}", LINE)
    copier.copy()
    assert copier.copy() is False
    effects.calls.clear()
    schedule.edit("e1", schedule=30.0)
    schedule.remove("e2")
    schedule.pause("e3", "night")

    assert copier.copy()

    [change] = effects.calls
    assert set(change.entries) == {"e1", "e2", "e3"}
    assert kept(effects) == ({"e0", "e1", "e3", "e4", "e5", "e6", "e7"}, {"e3"})
    assert '"every 30 s"' in effects.past().entries["e1"]
    schedule.resume("e3")
    copier.copy()
    assert kept(effects)[1] == set()


@pytest.mark.parametrize("hole", ["trimmed", "sync", "another term"])
def test_where_the_edits_cannot_tell_everything_is_copied(copier, effects, schedule, fence, *, hole):
    schedule.add("one", LINE)
    schedule.add("two", LINE)
    copier.copy()
    effects.calls.clear()
    schedule.remove("one")
    if hole == "trimmed":
        fence.client.xtrim(fence.keys.edits, maxlen=0)
        schedule.pause("two", "night")
    elif hole == "sync":
        fence.client.hincrby(fence.keys.entries, "generation", 1)
        fence.client.xadd(fence.keys.edits, {"generation": generation(fence), "op": "sync", "entry": ""})
    else:
        fence.successor()

    assert copier.copy()

    assert {call.base for call in effects.calls} == {None}
    assert kept(effects)[0] == {"two"}


def test_an_unknown_store_is_not_copied(copier, effects, schedule, fence):
    schedule.add("one", LINE)
    copier.copy()
    fence.client.delete(fence.keys.entries, fence.keys.last)

    assert copier.copy() is False

    assert kept(effects)[0] == {"one"}


@pytest.mark.parametrize("moment", ["xrevrange", "hscan", "hmget"])
def test_f06_a_store_that_is_flushed_while_it_is_copied_takes_nothing_from_the_copy(
    effects, schedule, fence, client, *, moment
):
    """A recovery needs the copy at just that moment."""
    for number in range(5):
        schedule.add(f"e{number}", LINE)
    DefinitionCopier(effects, client, fence.keys, page=3).copy()
    before = effects.past()
    schedule.remove("e0")
    if moment == "hscan":
        fence.successor()  # so that everything is copied

    class Flushed:
        """The client, whose server is flushed before its next request of that kind."""

        def __getattr__(self, name):
            if name == moment or (name == "pipeline" and moment == "hmget" and effects.asked):
                client.flushdb()
            return getattr(client, name)

    effects.asked = False
    copied = effects.copied_entries

    def asked():
        effects.asked = True
        return copied()

    effects.copied_entries = asked
    DefinitionCopier(effects, Flushed(), fence.keys, page=3).copy()

    assert client.dbsize() == 0
    assert effects.past() == before


def test_another_copier_that_was_faster_is_no_failure(effects, schedule, fence, client):
    one, other = (DefinitionCopier(effects, client, fence.keys) for _ in range(2))
    schedule.add("e", LINE)
    one.copy()
    other.copy()
    schedule.remove("e")
    one.copy()

    other.copy()
    effects.calls.clear()

    assert other.copy() is False
    assert effects.calls == []


def test_no_record_is_kept_before_the_definition_that_it_is_about(effects, schedule, fence, client):
    schedule.add("e", LINE)
    copier = AuditCopier(effects, client, fence.keys)
    keep, seen = effects.copy_audit, []

    def keeping(records):
        seen.extend((record.fields.get("entry"), set(effects.past().entries)) for record in records)
        keep(records)

    effects.copy_audit = keeping
    copier.copy()

    assert ("e", {"e"}) in seen
    read, xrange = [], client.xrange

    class Late:
        """An entry that is added while the records are read."""

        def __getattr__(self, name):
            return getattr(client, name)

        def xrange(self, *args, **options):
            if not read:
                read.append(schedule.add("late", LINE))
            return xrange(*args, **options)

    AuditCopier(effects, Late(), fence.keys).copy()
    assert ("late", {"e", "late"}) in seen


@pytest.mark.parametrize("recovered", [False, True])
def test_s7_records_of_a_store_that_was_lost_meanwhile_are_not_kept_without_their_definitions(
    effects, schedule, fence, client, recovered
):
    """Read, then the process was frozen. A recovery that knew the mark alone would take the entry for a changed one."""
    schedule.add("e", LINE)
    generation = client.hget(fence.keys.last, "generation")

    class Frozen:
        """The store loses its data right after the records were read."""

        def __getattr__(self, name):
            return getattr(client, name)

        def xrange(self, *args, **options):
            read = client.xrange(*args, **options)
            client.flushdb()
            if recovered:
                fence.successor()
                for key in (fence.keys.entries, fence.keys.last):
                    client.hset(key, "generation", int(generation) + 1)
            return read

    assert AuditCopier(effects, Frozen(), fence.keys).copy() == 0
    assert "e" not in effects.past().marks
