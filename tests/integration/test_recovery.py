"""The recovery of a store that lost its past: what it writes, in which order, and what it records."""

import pytest

from fencebeat import flagmemory, recovery
from fencebeat.copying import AuditCopier
from fencebeat.effects import EntriesCopy, Flag, Version
from fencebeat.entries import entry_of
from fencebeat.errors import Fenced, UnusableRecord
from fencebeat.explain import explain
from fencebeat.flagmemory import FlagMemory
from fencebeat.flags import FlagKeeper, read_flags
from fencebeat.recovery import Recovery
from fencebeat.scripts import script
from fencebeat.store import Store
from fencebeat.testing.effects import MemoryEffects
from tests.support.audits import sent
from tests.support.locks import audit, nonce

SECOND = 1_000_000


@pytest.fixture
def effects():
    return MemoryEffects()


@pytest.fixture
def keeper(store, effects):
    return FlagKeeper(effects, store.client, store.keys)


@pytest.fixture
def known(store, term):
    """A store that knows its past."""
    Recovery(store.client, store.keys, carrier="lock")(term)
    return store


def outcomes(store):
    return [record["outcome"] for record in audit(store.client, store.keys.audit)]


def now(store):
    seconds, rest = store.client.time()
    return seconds * SECOND + rest


def records(store):
    """Every record that a recovery writes."""
    keys = store.keys
    return {key: store.client.hgetall(key) for key in (keys.entries, keys.last, keys.flags, keys.paused)}


def test_a_first_start_gets_its_generations_and_no_gap(store, term, effects, keeper):
    effects.stop("all", Flag("emit"))

    Recovery(store.client, store.keys, carrier="lock", effects=effects, keeper=keeper)(term)

    generations = [store.client.hget(key, "generation") for key in (store.keys.entries, store.keys.last)]
    assert generations == [str(term.token)] * 2
    copy = read_flags(store.client, store.keys)
    assert (copy.generation, copy.flags) == (2, effects.stops)
    assert outcomes(store) == ["elected"]
    assert keeper.generation == 2, "seeded before the first commit"


def test_s7_what_the_effect_store_knows_is_written_and_what_it_lost_is_recorded(store, term, effects):
    at = now(store)
    sent(effects, at, at - 9 * SECOND, at - 8 * SECOND, at - 7 * SECOND)
    effects.claims[f"e-{at - 9 * SECOND}"] = True
    sent(effects, at, at - 6 * SECOND, at - 5 * SECOND, entry="bare", guarded=False)
    definition = entry_of("e", {"task": "t", "schedule": 1.0}).definition
    effects.copy_entries(EntriesCopy(Version(7, 3), None, {"e": definition, "new": "{}"}, {"e": '{"by":"ana"}'}))
    store.client.hset(store.keys.term, "digest", "of a schedule whose due times are lost")

    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    written = records(store)
    marks = written[store.keys.last]
    begun = marks.pop("new")
    assert int(begun) >= at, "nobody knows a mark of it: it is new"
    assert marks == {"e": str(at - 8 * SECOND - 1), "bare": str(at - 5 * SECOND), "generation": str(term.token)}
    assert written[store.keys.entries] == {"e": definition, "new": "{}", "generation": str(term.token)}
    assert written[store.keys.paused] == {"e": '{"by":"ana"}'}
    assert not store.client.hexists(store.keys.term, "digest"), "what is due has to be made anew"
    lost, added, whole = audit(store.client, store.keys.audit)[1:]
    assert added == {"outcome": "added", "entry": "new", "fire_time": begun, "token": str(term.token)}
    assert lost == {
        "outcome": "gap",
        "entry": "bare",
        "first": str(at - 6 * SECOND),
        "fire_time": str(at - 5 * SECOND),
        "count": "2",
        "task_id": f"bare-{at - 5 * SECOND}",
        "token": str(term.token),
        "reason": "may have been lost",
    }
    assert (whole["outcome"], whole["recovered"], whole["lost"]) == ("gap", "2", "2")
    assert int(whole["until"]) >= at


def test_s7_an_entry_that_began_at_a_loss_is_known_at_the_next_one(store, term, effects):
    """Of a monthly entry nothing else is told in between."""
    effects.copy_entries(EntriesCopy(Version(7, 3), None, {"monthly": "{}"}, {}))
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
    begun = store.client.hget(store.keys.last, "monthly")
    assert int(begun) > 0
    AuditCopier(effects, store.client, store.keys).copy()
    store.client.flushdb()
    new = store.lock("host-1").acquire(nonce(), floor=term.token)

    Recovery(store.client, store.keys, carrier="lock", effects=effects)(new)

    assert store.client.hget(store.keys.last, "monthly") == begun


def test_explain_tells_of_a_tick_that_may_have_been_lost_and_of_its_neighbours(store, term, effects, namespace):
    at = now(store)
    sent(effects, at, at - 6 * SECOND, at - 5 * SECOND, entry="bare", guarded=False)
    sent(effects, at, at - 5 * SECOND)
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
    ask = Store(store.client, store.keys)

    lost = explain(ask, namespace, {}, "bare", at - 6 * SECOND)
    before = explain(ask, namespace, {}, "bare", at - 60 * SECOND)
    again = explain(ask, namespace, {}, "e", at - 5 * SECOND)

    assert (lost.outcome, lost.why) == ("gap", "may have been lost: it was emitted, and nobody knows whether it ran")
    assert lost.task_id
    assert (before.outcome, before.why) == ("gap", "the store lost its past, and with it what became of this tick")
    assert (again.outcome, again.why) == ("pending", "not decided yet: it is not due, or no beat leads")


def test_a_past_that_the_effect_store_knows_is_recorded_as_a_gap(store, term, effects):
    effects.highest = 5

    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    assert outcomes(store) == ["elected", "gap"]


def test_f06_a_process_that_saw_the_past_records_the_gap_without_an_effect_store(store, term):
    recovered = Recovery(store.client, store.keys, carrier="lock")
    recovered(term)
    store.client.flushdb()
    new = store.lock("host-1").acquire(nonce(), floor=term.token)

    recovered(new)

    assert outcomes(store) == ["elected", "gap"]


def test_flags_that_were_read_long_ago_are_not_stamped_as_fresh(store, term, effects, monkeypatch):
    read, flags = [], effects.flags

    def reading():
        read.append(now(store))
        return flags()

    monkeypatch.setattr(effects, "flags", reading)
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
    assert int(store.client.hget(store.keys.flags, "renewed")) <= read[0]


def test_a_known_store_is_left_as_it_is(known, term, effects):
    known.client.hset(known.keys.last, "nightly", 17)
    before = records(known)
    effects.past = None  # it is not even asked

    Recovery(known.client, known.keys, carrier="lock", effects=effects)(term)

    assert records(known) == before
    assert outcomes(known) == ["elected"]


@pytest.mark.parametrize("lost", ["entries", "last", "flags"])
def test_s22_one_lost_record_is_made_anew_and_the_others_stay(known, term, effects, lost):
    known.client.hset(known.keys.entries, "nightly", "{}")
    known.client.hset(known.keys.last, "nightly", 17)
    effects.copy_entries(EntriesCopy(Version(7, 3), None, {"nightly": "copied"}, {}))
    known.client.delete(getattr(known.keys, lost))

    Recovery(known.client, known.keys, carrier="lock", effects=effects)(term)

    assert all(
        known.client.hexists(key, "generation") for key in (known.keys.entries, known.keys.last, known.keys.flags)
    )
    assert outcomes(known) == ["elected", *(["added"] if lost == "last" else []), "gap"]
    mark = int(known.client.hget(known.keys.last, "nightly"))
    if lost == "last":
        assert abs(mark - now(known)) < 10 * SECOND, "an entry without a mark counts as new"
    else:
        assert mark == 17
    assert known.client.hget(known.keys.entries, "nightly") == ("copied" if lost == "entries" else "{}")


def test_no_mark_falls_that_stayed_behind_without_a_generation(store, term, effects):
    at = now(store)
    sent(effects, at, at - 9 * SECOND)
    store.client.hset(store.keys.last, mapping={"e": at, "gone": 300})

    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    marks = store.client.hgetall(store.keys.last)
    assert (marks["e"], marks["gone"]) == (str(at), "300")


@pytest.mark.parametrize("place", ["beat.page.before", "beat.page.after"])
def test_f05_whatever_ends_a_recovery_in_the_middle_the_store_stays_unknown_and_the_next_term_begins_again(
    store, term, effects, monkeypatch, *, place
):
    monkeypatch.setattr(recovery, "PAGE", 3)
    at = now(store)
    for number in range(10):
        sent(effects, at, at - SECOND, entry=f"e{number}")
    effects.copy_entries(EntriesCopy(Version(7, 3), None, {f"e{number}": "{}" for number in range(10)}, {"e1": "{}"}))
    passed = []

    def ends_at(number):
        def failpoint(name):
            passed.append(name)
            if passed.count(place) == number:
                raise ConnectionResetError("in the middle")

        return failpoint

    for number in range(1, 20):
        passed.clear()
        monkeypatch.setattr(recovery, "failpoint", ends_at(number))
        try:
            Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
        except ConnectionResetError:
            assert not any("generation" in record for record in records(store).values())
        else:
            break
    marks = store.client.hgetall(store.keys.last)
    assert {name: int(mark) for name, mark in marks.items() if name != "generation"} == {
        f"e{number}": at - SECOND - 1 for number in range(10)
    }
    assert store.client.hlen(store.keys.entries) == 11
    assert store.client.hgetall(store.keys.paused) == {"e1": "{}"}


def test_a_hundred_thousand_entries_come_in_requests_of_bounded_size(store, term, effects, monkeypatch):
    definitions = {f"entry-{number}": '{"task":"t"}' for number in range(100_000)}
    effects.copy_entries(EntriesCopy(Version(7, 3), None, definitions, {}))
    sizes, renewed = [], []
    run = script("recover").__call__

    def measured(client, keys, args):
        sizes.append(len(args))
        return run(client, keys, args)

    monkeypatch.setattr(recovery, "script", lambda _name: measured)

    def renew(running):
        renewed.append(running)
        return store.client.pexpire(store.keys.lock, 5000)

    Recovery(store.client, store.keys, carrier="lock", effects=effects, renew=renew)(term)

    assert max(sizes) <= 2 * recovery.PAGE + 10
    assert len(renewed) >= 100_000 / recovery.PAGE / recovery.RENEW
    assert store.client.hlen(store.keys.last) == store.client.hlen(store.keys.entries) == 100_001
    assert len(set(store.client.hvals(store.keys.last))) == 2, "one TIME, and the generation"


def test_a_lease_that_ran_out_while_the_past_was_read_ends_the_recovery(store, term, effects):
    with pytest.raises(Fenced):
        Recovery(store.client, store.keys, carrier="lock", effects=effects, renew=lambda _: False)(term)

    assert not any("generation" in record for record in records(store).values())


def test_only_the_running_term_may_recover(store, term):
    lock = store.lock("host-1")
    lock.resign(term)

    with pytest.raises(Fenced):
        Recovery(store.client, store.keys, carrier="lock")(term)
    new = lock.acquire(nonce())
    with pytest.raises(Fenced):
        Recovery(store.client, store.keys, carrier="term")(term)

    assert store.client.exists(store.keys.entries, store.keys.last, store.keys.flags) == 0
    Recovery(store.client, store.keys, carrier="term")(new)


@pytest.mark.parametrize("step", ["look", "page", "done"])
def test_every_step_names_the_term(store, term, step):
    store.lock("host-1").resign(term)
    arguments = {"look": (), "page": (0, 0, 0, 0, 0), "done": (1, 5, 0, 0, "", 1)}[step]
    keys = store.keys
    answer = script("recover")(
        store.client,
        (keys.lock, keys.term, keys.entries, keys.last, keys.flags, keys.audit, keys.paused),
        (term.token, term.nonce, "lock", step, *arguments),
    )

    assert answer == ["fenced", str(term.token)]
    assert not any(records(store).values())


@pytest.mark.parametrize("record", ["last", "paused", "entries", "flags", "audit"])
def test_a_record_of_another_type_is_named_and_nothing_is_written(store, term, record):
    store.client.delete(getattr(store.keys, record))
    store.client.set(getattr(store.keys, record), "rubbish")

    with pytest.raises(UnusableRecord, match=getattr(store.keys, record)):
        Recovery(store.client, store.keys, carrier="lock")(term)

    others = {"last", "entries", "flags", "paused"} - {record}
    assert store.client.exists(*(getattr(store.keys, name) for name in others)) == 0


@pytest.mark.parametrize("call", ["flags", "floor", "past"])
def test_what_the_effect_store_raises_reaches_the_elector_and_nothing_is_written(store, term, effects, call):
    def down():
        raise TimeoutError("postgres is down")

    setattr(effects, call, down)

    with pytest.raises(TimeoutError):
        Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    assert not any(records(store).values())


# --- flags without an effect store


@pytest.fixture
def make_memory(store):
    def make(**options):
        memory = FlagMemory(store.client, store.keys, **options)
        memory.seen.listen()
        memory.restored.listen()
        return memory

    return make


def test_f06_a_living_process_sets_the_stops_again_that_it_last_read(known, term, make_memory):
    memory = make_memory()
    flagmemory.stop(known.client, known.keys, "queue:q", Flag("emit", "bad parser", "ana"))
    memory.look()
    known.client.flushdb()
    new = known.lock("host-1").acquire(nonce(), floor=term.token)

    Recovery(known.client, known.keys, carrier="lock", memory=memory)(new)

    assert read_flags(known.client, known.keys).flags == {"queue:q": Flag("emit", "bad parser", "ana")}
    [lost] = [r for r in audit(known.client, known.keys.audit) if r["outcome"] == "flags_lost"]
    assert "queue:q (emit)" in lost["reason"]


@pytest.mark.parametrize(("on_unknown", "stopped"), [("run", False), ("stop", True)])
def test_f06_what_nobody_knows_is_decided_by_the_setting(store, term, make_memory, on_unknown, stopped):
    store.client.hset(store.keys.last, "generation", 1)  # so that there was a past

    Recovery(store.client, store.keys, carrier="lock", memory=make_memory(on_unknown=on_unknown))(term)

    assert ("all" in read_flags(store.client, store.keys).flags) is stopped
    assert "flags_lost" in outcomes(store)


def test_a_first_start_that_may_not_know_waits_for_a_human_and_goes_on_after_one_has_said_so(store, term, make_memory):
    Recovery(store.client, store.keys, carrier="lock", memory=make_memory(on_unknown="stop"))(term)
    assert read_flags(store.client, store.keys).flags["all"].level == "emit"

    flagmemory.lift(store.client, store.keys, "all", reason="first start", author="ana")

    assert read_flags(store.client, store.keys).flags == {}
    assert outcomes(store)[-1] == "lifted"


def test_f07_an_older_copy_of_the_flags_that_comes_back_is_set_right_by_whoever_remembers(known, make_memory):
    older = known.client.hgetall(known.keys.flags)
    flagmemory.stop(known.client, known.keys, "all", Flag("emit", "night", "ana"))
    memory, other = make_memory(), make_memory()
    memory.look()
    other.look()
    known.client.delete(known.keys.flags)
    known.client.hset(known.keys.flags, mapping=older)
    flagmemory.stop(known.client, known.keys, "entry:x", Flag("emit", "since then", "bob"))

    memory.look()
    memory.look()
    other.look()

    copy = read_flags(known.client, known.keys)
    assert set(copy.flags) == {"all", "entry:x"}, "in union: a stop of either history holds"
    assert copy.generation > 2
    assert memory.restored.wait() == copy.generation
    assert outcomes(known).count("flags_lost") == 1, "the other one found them set"


def test_a_lifted_stop_stays_lifted_where_nothing_was_lost(known, make_memory):
    memory = make_memory()
    flagmemory.stop(known.client, known.keys, "all", Flag("emit"))
    memory.look()
    flagmemory.lift(known.client, known.keys, "all", reason="over", author="ana")

    memory.look()
    memory.look()

    assert read_flags(known.client, known.keys).flags == {}
    assert "flags_lost" not in outcomes(known)
