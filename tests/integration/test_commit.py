"""The commit script on a real server: fence, identity, flags, clocks; all checks before the first write."""

import json

import pytest
import redis

from fencebeat.capture import Captured, Command
from fencebeat.errors import ClockRefused, Fenced, StoreUnknown, StoreUnreachable, UnusableRecord
from fencebeat.lease import Term
from fencebeat.store import Pass
from tests.support.fences import SECOND, Fence


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(
        redis_url, decode_responses=True, encoding_errors="surrogateescape", socket_timeout=5, socket_connect_timeout=5
    ) as made:
        yield made


@pytest.fixture
def base(fence):
    """A whole second about ten seconds ago."""
    return (fence.now() // SECOND - 10) * SECOND


def a_pass(entry, first, last, **changes):
    facts = {
        "entry": entry.name,
        "version": entry.version,
        "first": first,
        "last": last,
        "count": (last - first) // SECOND + 1,
        "following": entry.next_after(last),
        "outcome": "skipped",
        "reason": "window",
    }
    return Pass(**{**facts, **changes})


# --- one tick, once


def test_a_tick_is_queued_marked_advanced_and_recorded_in_one_step(fence, base) -> None:
    entry = fence.entry(mark=base)
    assert fence.commit(fence.emission(entry, base + SECOND)) == ("emitted",)
    assert fence.messages() == [["e", base + SECOND]]
    assert fence.mark() == base + SECOND
    assert fence.client.zscore(fence.keys.due, "e") == (base + 2 * SECOND) / 1000
    (record,) = fence.audit()
    assert (record["outcome"], record["token"], record["holder"]) == ("emitted", "100", "host:1")
    assert record["task_id"] == f"t-e-{base + SECOND}"
    assert record["message_id"] == f"m-e-{base + SECOND}"
    assert record["fire_time"] == str(base + SECOND)


def test_s21_a_repeated_commit_is_answered_duplicate_and_queues_nothing(fence, base) -> None:
    entry = fence.entry(mark=base)
    tick = fence.emission(entry, base + SECOND)
    assert fence.commit(tick) == ("emitted",)
    assert fence.commit(tick) == ("duplicate",)
    assert len(fence.messages()) == 1


def test_s21_an_old_tick_is_refused_for_ever_also_by_a_new_leader(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.commit(fence.emission(entry, base + 5 * SECOND))
    term = fence.successor()
    assert fence.commit(fence.emission(entry, base + SECOND), term=term) == ("duplicate",)
    assert fence.mark() == base + 5 * SECOND


def test_the_same_tick_twice_in_one_batch_is_queued_once(fence, base) -> None:
    entry = fence.entry(mark=base)
    tick = fence.emission(entry, base + SECOND)
    assert fence.commit(tick, tick) == ("emitted", "duplicate")
    assert len(fence.messages()) == 1


def test_a_duplicate_moves_the_due_time_on_and_never_back(fence, base) -> None:
    entry = fence.entry(mark=base + 5 * SECOND)
    fence.client.zadd(fence.keys.due, {"e": (base + 6 * SECOND) / 1000})
    fence.commit(fence.emission(entry, base + SECOND))
    assert fence.client.zscore(fence.keys.due, "e") == (base + 6 * SECOND) / 1000


def test_large_numbers_keep_their_digits(fence) -> None:
    """Lua writes 1.7960701375163e+15 when left to itself, and two tokens or marks become equal."""
    entry = fence.entry(mark=0)
    term = Term(9_007_199_254_740_990, "nonce-max", "host:9", 5.0)
    fence.seal(term)
    fire_time = fence.now() // SECOND * SECOND - 1
    assert fence.commit(fence.emission(entry, fire_time), term=term) == ("emitted",)
    assert fence.client.hget(fence.keys.last, "e") == str(fire_time)
    assert fence.audit()[-1]["token"] == "9007199254740990"


def test_several_ticks_of_one_entry_are_queued_in_order(fence, base) -> None:
    entry = fence.entry(mark=base)
    ticks = [fence.emission(entry, base + n * SECOND) for n in range(1, 6)]
    assert fence.commit(*ticks) == ("emitted",) * 5
    assert fence.messages() == [["e", base + n * SECOND] for n in range(1, 6)]


# --- the fence


@pytest.mark.parametrize("carrier", ["lock", "term"])
def test_f02_the_whole_batch_of_an_old_term_is_refused(client, namespace, carrier) -> None:
    fence = Fence.sealed(client, namespace, carrier)
    base = (fence.now() // SECOND - 10) * SECOND
    entries = [fence.entry(f"e{n}", mark=base) for n in range(300)]
    fence.successor()
    before = fence.everything()
    with pytest.raises(Fenced) as refusal:
        fence.commit(*[fence.emission(entry, base + SECOND) for entry in entries])
    assert "101" in str(refusal.value)
    assert fence.everything() == before
    assert fence.messages() == []
    (record,) = fence.audit()
    assert record["outcome"] == "fenced"
    assert len(record["ticks"].split("\n")) == 300


@pytest.mark.parametrize("carrier", ["lock", "term"])
def test_s7_an_equal_token_with_another_nonce_is_refused(client, namespace, carrier) -> None:
    fence = Fence.sealed(client, namespace, carrier)
    entry = fence.entry()
    twin = Term(fence.term.token, "nonce-of-another-history", "host:3", 5.0)
    with pytest.raises(Fenced):
        fence.commit(fence.emission(entry, SECOND), term=twin)
    assert fence.messages() == []


@pytest.mark.parametrize("carrier", ["lock", "term"])
def test_the_newest_nonce_under_another_token_is_refused(client, namespace, carrier) -> None:
    fence = Fence.sealed(client, namespace, carrier)
    entry = fence.entry()
    with pytest.raises(Fenced):
        fence.commit(fence.emission(entry, SECOND), term=Term(99, fence.term.nonce, "host:1", 5.0))
    assert fence.messages() == []


@pytest.mark.parametrize("carrier", ["lock", "term"])
def test_an_old_term_is_told_so_when_it_asks_what_is_due_or_syncs(client, namespace, carrier) -> None:
    fence = Fence.sealed(client, namespace, carrier)
    fence.successor()
    with pytest.raises(Fenced):
        fence.store.due(fence.term, 10)
    with pytest.raises(Fenced):
        fence.sync()


def test_a_lock_that_ran_out_is_refused_although_the_term_is_the_last_one(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.client.delete(fence.keys.lock)
    with pytest.raises(Fenced):
        fence.commit(fence.emission(entry, base + SECOND))
    assert fence.messages() == []


def test_where_etcd_keeps_the_lock_the_term_alone_is_asked(client, namespace) -> None:
    fence = Fence.sealed(client, namespace, "term")
    base = (fence.now() // SECOND - 10) * SECOND
    entry = fence.entry(mark=base)
    client.delete(fence.keys.lock)
    assert fence.commit(fence.emission(entry, base + SECOND)) == ("emitted",)


def test_a_commit_extends_the_lease(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.client.pexpire(fence.keys.lock, 1000)
    fence.commit(fence.emission(entry, base + SECOND))
    assert fence.client.pttl(fence.keys.lock) > 4000


# --- what the store must know


@pytest.mark.parametrize("record", ["entries", "last", "flags"])
def test_a_store_without_a_generation_is_unknown_and_nothing_is_decided(fence, base, record) -> None:
    entry = fence.entry(mark=base)
    fence.client.hdel(getattr(fence.keys, record), "generation")
    before = fence.everything()
    with pytest.raises(StoreUnknown):
        fence.commit(fence.emission(entry, base + SECOND))
    with pytest.raises(StoreUnknown):
        fence.store.due(fence.term, 10)
    assert fence.everything() == before


@pytest.mark.parametrize(("generation", "age"), [(4, 0), (5, 3), (5, -3600), (None, 0)])
def test_flags_that_are_older_than_the_sender_knows_or_not_renewed_are_unknown(fence, base, generation, age) -> None:
    """A negative age: the server's clock was set back since the renewal, which `read_flags` calls old as well."""
    entry = fence.entry(mark=base)
    fence.client.hset(fence.keys.flags, mapping={"renewed": fence.now() - age * SECOND})
    if generation is not None:
        fence.client.hset(fence.keys.flags, "generation", generation)
    else:
        fence.client.hset(fence.keys.flags, "generation", "rubbish")
    with pytest.raises(StoreUnknown):
        fence.commit(fence.emission(entry, base + SECOND), flags_generation=5)
    assert fence.messages() == []


def test_flags_that_were_just_renewed_permit(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.client.hset(fence.keys.flags, mapping={"generation": 5, "renewed": fence.now()})
    assert fence.commit(fence.emission(entry, base + SECOND), flags_generation=5) == ("emitted",)


@pytest.mark.parametrize("scope", ["all", "entry:e", "queue:q"])
@pytest.mark.parametrize("flag", ['{"level":"emit"}', '{"level":"start"}', '{"level":"write"}', "rubbish"])
def test_a_stop_holds_the_tick_back_at_every_level_and_records_it(fence, base, scope, flag) -> None:
    entry, other = fence.entry(mark=base), fence.entry("other", mark=base)
    fence.client.hset(fence.keys.flags, scope, flag)
    outcomes = fence.commit(
        fence.emission(entry, base + SECOND), fence.emission(other, base + SECOND, queue="elsewhere")
    )
    assert outcomes == ("paused", "paused" if scope == "all" else "emitted")
    assert fence.messages() == []
    assert fence.mark() == base + SECOND
    assert scope in fence.audit()[0]["reason"]


def test_a_stop_of_another_scope_holds_nothing_back(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.client.hset(fence.keys.flags, "entry:other", '{"level":"emit"}')
    assert fence.commit(fence.emission(entry, base + SECOND)) == ("emitted",)


# --- clocks


def test_a_sender_whose_clock_is_ahead_is_refused_and_nothing_changes(fence, base) -> None:
    entry = fence.entry(mark=base)
    before = fence.everything()
    with pytest.raises(ClockRefused):
        fence.commit(fence.emission(entry, base + SECOND), sender_now=fence.now() + 3 * SECOND)
    assert fence.everything() == before


def test_f11_a_fire_time_later_than_the_servers_time_stays_due(fence, base) -> None:
    entry = fence.entry(mark=base)
    future = fence.now() + 60 * SECOND
    assert fence.commit(fence.emission(entry, future)) == ("early",)
    assert fence.mark() == base
    assert fence.messages() == []


# --- edits


def test_s17_a_tick_of_another_version_is_not_emitted_and_stays_due(fence, base) -> None:
    old = fence.entry(mark=base)
    fence.entry(mark=base, args=[1])
    assert fence.commit(fence.emission(old, base + SECOND)) == ("changed",)
    assert fence.mark() == base
    assert fence.client.zscore(fence.keys.due, "e") == (base + SECOND) / 1000


@pytest.mark.parametrize("stored", [None, "rubbish", "[]", "7"])
def test_a_tick_of_an_entry_that_is_gone_or_damaged_is_not_emitted(fence, base, stored) -> None:
    entry = fence.entry(mark=base)
    fence.client.hdel(fence.keys.entries, "e")
    if stored is not None:
        fence.client.hset(fence.keys.entries, "e", stored)
    assert fence.commit(fence.emission(entry, base + SECOND)) == ("changed",)
    assert fence.messages() == []


def test_what_follows_an_undecided_tick_of_the_same_entry_waits_too(fence, base) -> None:
    """Else the mark would pass over the first one, and it would be lost."""
    old = fence.entry(mark=base)
    new = fence.entry(mark=base, args=[1])
    outcomes = fence.commit(fence.emission(old, base + SECOND), fence.emission(new, base + 2 * SECOND))
    assert outcomes == ("changed", "changed")
    assert fence.mark() == base


@pytest.mark.parametrize("stored", [None, "rubbish", "[]", "7"])
def test_s17_another_text_is_judged_by_its_version(fence, base, stored) -> None:
    old = fence.entry(mark=base)
    fence.entry(mark=base, args=[1])
    assert fence.commit(fence.emission(old, base + SECOND)) == ("changed",)
    same = fence.entry(mark=base)
    fence.client.hset(fence.keys.entries, "e", same.definition + " ")
    assert fence.commit(fence.emission(same, base + SECOND)) == ("emitted",)
    fence.client.hdel(fence.keys.entries, "e")
    if stored is not None:
        fence.client.hset(fence.keys.entries, "e", stored)
    assert fence.commit(fence.emission(same, base + 2 * SECOND)) == ("changed",)


def test_the_version_of_something_inside_a_definition_is_not_its_own(fence, base) -> None:
    entry = fence.entry(mark=base, kwargs={"version": "x"})
    definition = json.dumps({"version": "y", "kwargs": {"version": entry.version}})
    fence.client.hset(fence.keys.entries, "e", definition)
    assert fence.commit(fence.emission(entry, base + SECOND)) == ("changed",)


def test_s17_a_paused_entry_is_held_and_keeps_its_mark(fence, base) -> None:
    entry, other = fence.entry(mark=base), fence.entry("other", mark=base)
    fence.client.hset(fence.keys.paused, "e", "whatever it says")
    outcomes = fence.commit(
        fence.emission(entry, base + SECOND),
        fence.emission(entry, base + 2 * SECOND),
        fence.emission(other, base + SECOND),
    )
    assert outcomes == ("held", "held", "emitted")
    assert fence.mark() == base
    assert fence.messages() == [["other", base + SECOND]]
    assert fence.commit(a_pass(entry, base + SECOND, base + 2 * SECOND)) == ("held",)
    assert fence.mark() == base


def test_a_repeated_commit_does_not_put_a_paused_entry_back_among_the_due_ones(fence, base) -> None:
    entry = fence.entry(mark=base)
    tick = fence.emission(entry, base + SECOND)
    fence.commit(tick)
    fence.client.hset(fence.keys.paused, "e", "{}")
    fence.client.zrem(fence.keys.due, "e")
    assert fence.commit(tick) == ("duplicate",)
    assert fence.client.zscore(fence.keys.due, "e") is None


def test_the_last_emitted_tick_is_kept_apart_from_what_was_passed_over(fence, base) -> None:
    entry, other = fence.entry(mark=base), fence.entry("other", mark=base)
    before = fence.now()
    fence.commit(
        fence.emission(entry, base + SECOND, guarded=True, note="the one before has expired"),
        a_pass(entry, base + 2 * SECOND, base + 3 * SECOND),
        fence.emission(other, base + SECOND, message=Captured()),
    )
    assert set(fence.client.hgetall(fence.keys.emitted)) == {"e"}
    fire_time, at = map(int, fence.client.hget(fence.keys.emitted, "e").split())
    assert fire_time == base + SECOND
    assert before <= at <= fence.now()
    assert [record.get("guarded") for record in fence.audit()] == ["1", None, None]
    assert [record.get("reason") for record in fence.audit()][::2] == ["the one before has expired", None]


def test_a_batch_of_many_queues_and_entries_keeps_the_order_of_each_queue(fence, base) -> None:
    entries = [fence.entry(f"e{n}", mark=base) for n in range(300)]
    ticks = [fence.emission(e, base + SECOND, queue=f"q{n % 2}") for n, e in enumerate(entries)]
    assert fence.commit(*ticks) == ("emitted",) * 300
    for parity in (0, 1):
        assert fence.messages(f"q{parity}") == [[f"e{n}", base + SECOND] for n in range(parity, 300, 2)]
    assert {fence.mark(f"e{n}") for n in range(300)} == {base + SECOND}
    assert fence.client.zcount(fence.keys.due, *[(base + 2 * SECOND) // 1000] * 2) == 300


# --- passes, routing, broken records


def test_a_message_for_the_outbox_is_appended_to_it_in_the_same_step(fence, base) -> None:
    entry = fence.entry(mark=base)
    message = Captured(commands=[Command("xadd", fence.keys.outbox, "m")], queues=["far"], message_id="m")
    assert fence.commit(fence.emission(entry, base + SECOND, message=message)) == ("emitted",)
    ((_, fields),) = fence.client.xrange(fence.keys.outbox)
    assert fields == {"message": "m"}
    fence.client.delete(fence.keys.outbox)
    fence.client.rpush(fence.keys.outbox, "not a stream")
    assert fence.commit(fence.emission(entry, base + 2 * SECOND, message=message)) == ("refused",)
    assert fence.mark() == base + SECOND


def test_a_pass_moves_the_mark_and_records_the_run_with_its_reason(fence, base) -> None:
    entry = fence.entry(mark=base)
    outcomes = fence.commit(a_pass(entry, base + SECOND, base + 4 * SECOND), fence.emission(entry, base + 5 * SECOND))
    assert outcomes == ("skipped", "emitted")
    skipped = fence.audit()[0]
    assert (skipped["first"], skipped["fire_time"]) == (str(base + SECOND), str(base + 4 * SECOND))
    assert (skipped["count"], skipped["reason"]) == ("4", "window")
    assert fence.messages() == [["e", base + 5 * SECOND]]


def test_a_message_that_reaches_no_queue_is_recorded_as_unroutable(fence, base) -> None:
    entry = fence.entry(mark=base)
    assert fence.commit(fence.emission(entry, base + SECOND, message=Captured())) == ("unroutable",)
    assert fence.mark() == base + SECOND


def test_a_queue_with_a_time_limit_and_a_broadcast_get_their_commands(fence, base) -> None:
    entry = fence.entry(mark=base)
    message = Captured(
        commands=[Command("lpush", "short", "m"), Command("pexpire", "short", "60000"), Command("publish", "/x", "m")],
        queues=["short"],
        message_id="m",
    )
    with fence.client.pubsub() as subscriber:
        subscriber.subscribe("/x")
        assert subscriber.get_message(timeout=5)["type"] == "subscribe"
        assert fence.commit(fence.emission(entry, base + SECOND, message=message)) == ("emitted",)
        assert subscriber.get_message(timeout=5)["data"] == "m"
    assert fence.client.lrange("short", 0, -1) == ["m"]
    assert 50_000 < fence.client.pttl("short") <= 60_000


def test_an_entry_whose_queue_is_no_list_waits_and_the_others_go_on(fence, base) -> None:
    broken, good = fence.entry("broken", mark=base), fence.entry("good", mark=base)
    fence.client.set("not-a-list", "x")
    outcomes = fence.commit(
        fence.emission(broken, base + SECOND, queue="not-a-list"), fence.emission(good, base + SECOND)
    )
    assert outcomes == ("refused", "emitted")
    assert fence.mark("broken") == base


@pytest.mark.parametrize("record", ["term", "entries", "last", "due", "flags", "audit", "paused", "emitted"])
def test_a_record_of_a_wrong_type_is_named_and_nothing_is_written(fence, base, record) -> None:
    """Redis does not undo a script that fails half way, so types are checked before the first write."""
    entry = fence.entry(mark=base)
    key = getattr(fence.keys, record)
    fence.client.delete(key)
    fence.client.set(key, "x")
    before = fence.everything()
    with pytest.raises(UnusableRecord, match=record):
        fence.commit(fence.emission(entry, base + SECOND))
    assert fence.everything() == before
    assert fence.messages() == []


def test_a_mark_that_is_no_number_is_named_and_nothing_is_written(fence, base) -> None:
    entry, good = fence.entry(mark=base), fence.entry("good", mark=base)
    fence.client.hset(fence.keys.last, "e", "yesterday")
    with pytest.raises(UnusableRecord):
        fence.commit(fence.emission(good, base + SECOND), fence.emission(entry, base + SECOND))
    assert fence.messages() == []
    assert fence.mark("good") == base


def test_a_malformed_request_changes_nothing(fence, base) -> None:
    good, bad = fence.entry("good", mark=base), fence.entry(mark=base)
    message = Captured(commands=[Command("flushall", "x", "m")], queues=["x"], message_id="m")
    tick = fence.emission(bad, base + SECOND, message=message)
    before = fence.everything()
    with pytest.raises(StoreUnreachable, match="not a command"):
        fence.commit(fence.emission(good, base + SECOND), tick)
    assert fence.everything() == before


def test_a_full_server_refuses_the_whole_batch(fence, base) -> None:
    entry = fence.entry(mark=base)
    used = fence.client.info("memory")["used_memory"]
    before = fence.everything()
    fence.client.config_set("maxmemory", used // 2)
    try:
        with pytest.raises(StoreUnreachable, match="memory"):
            fence.commit(fence.emission(entry, base + SECOND))
    finally:
        fence.client.config_set("maxmemory", 0)
    assert fence.everything() == before


def test_the_script_comes_back_after_the_server_forgot_it(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.commit(fence.emission(entry, base + SECOND))
    fence.client.script_flush()
    assert fence.commit(fence.emission(entry, base + 2 * SECOND)) == ("emitted",)


# --- due and sync


def test_due_names_what_is_due_with_its_mark_and_when_to_look_again(fence, base) -> None:
    fence.entry("now", mark=base)
    later = fence.entry("later", mark=fence.now() + 60 * SECOND)
    due = fence.store.due(fence.term, 10)
    assert due.marks == {"now": base}
    assert due.following == (later.next_after(fence.mark("later")) or 0) // 1000
    with pytest.raises(Fenced):
        fence.store.due(Term(99, "old", "host:0", 5.0), 10)


def test_s10_a_new_entry_never_fires_for_the_past(fence) -> None:
    from fencebeat.entries import entry_of

    entry = entry_of("nightly", {"task": "t", "schedule": 3600})
    before = fence.now()
    fence.sync(entry)
    assert fence.mark("nightly") >= before
    assert fence.store.due(fence.term, 10).marks == {}
    assert fence.client.zscore(fence.keys.due, "nightly") * 1000 == entry.next_after(fence.mark("nightly"))


def test_s17_an_edit_of_arguments_keeps_the_next_fire_time_and_one_of_the_schedule_closes_the_past(fence, base) -> None:
    from fencebeat.entries import entry_of

    fence.entry(mark=base)
    fence.sync(entry_of("e", {"task": "t", "schedule": 1.0, "args": [1]}))
    assert fence.mark() == base
    assert fence.store.due(fence.term, 10).marks == {"e": base}
    fence.sync(entry_of("e", {"task": "t", "schedule": 3600}))
    assert fence.mark() > base
    assert fence.store.due(fence.term, 10).marks == {}
    closed = fence.audit()[-1]
    assert (closed["outcome"], closed["first"], closed["fire_time"]) == ("changed", str(base), str(fence.mark()))
    assert "every 1 s -> every 3600 s" in closed["reason"]


def test_s17_a_removed_entry_never_fires_and_one_that_comes_back_repeats_nothing(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.commit(fence.emission(entry, base + 5 * SECOND))
    assert fence.sync() == 1
    assert fence.store.due(fence.term, 10).marks == {}
    assert fence.commit(fence.emission(entry, base + 6 * SECOND)) == ("changed",)
    assert fence.mark() == base + 5 * SECOND
    fence.sync(entry)
    assert fence.mark() > base + 6 * SECOND


def test_s23_only_the_leader_changes_the_schedule_and_entries_from_elsewhere_stay(fence, base) -> None:
    fence.entry(mark=base)
    other = json.dumps({"source": "stored", "version": "1"})
    fence.client.hset(fence.keys.entries, "d", other)
    before = fence.everything()
    with pytest.raises(Fenced):
        fence.sync(term=Term(99, "standby", "host:0", 5.0))
    assert fence.everything() == before
    fence.sync()
    assert fence.client.hget(fence.keys.entries, "d") == other


def test_a_term_that_starts_again_writes_the_same_schedule(fence, base) -> None:
    entry = fence.entry(mark=base)
    fence.sync(entry)
    before = fence.everything()
    fence.sync(entry)
    after = fence.everything()
    assert after == before
