"""Rounds with many entries, many terms and many faults: S15, S20, S21, S22, S26, jitter, and the guard of the rate."""

import json
import logging
import random
import threading
import time
from collections import Counter

import pytest
from celery import Celery

from fencebeat.connection import Client
from fencebeat.edits import Schedule
from fencebeat.entries import entry_of, read_schedule
from fencebeat.errors import StoreUnreachable
from fencebeat.planner import RateGuard
from fencebeat.rounds import BATCH, PAGE
from fencebeat.store import Store
from tests.support.fences import SECOND
from tests.support.leading import drain, leader, set_back, take_over


@pytest.fixture
def client(redis_url):
    with Client.from_url(redis_url, decode_responses=True, socket_timeout=10, socket_connect_timeout=5) as made:
        yield made


@pytest.fixture
def fence(fence):
    fence.client.pexpire(fence.keys.lock, 600_000)
    return fence


@pytest.fixture
def app(redis_url):
    with Celery("scale", broker=redis_url, set_as_current=False) as made:
        made.conf.result_expires = None
        made.finalize()
        yield made


def lines(count, seconds=1.0, *, queue="q", **policies):
    line = {"task": "t", "schedule": seconds, "options": {"queue": queue}, "fencebeat": policies}
    entries, refused = read_schedule({f"e{n:04}": {**line, "args": (n,)} for n in range(count)})
    assert refused == []
    return entries


def queued(client, queue="q"):
    return [json.loads(text)["headers"] for text in reversed(client.lrange(queue, 0, -1))]


def ticks(client, queue="q"):
    return [header["fencebeat_tick"] for header in queued(client, queue)]


# --- many at once


def test_s15_a_burst_goes_out_in_batches_each_tick_once_and_an_edit_is_seen_meanwhile(app, fence, client) -> None:
    entries = lines(2 * PAGE + 7, 3600.0)
    with leader(app, fence, entries) as rounds:
        drain(rounds, fence.term)
        for _ in range(2):
            fence.client.delete("q")
            mark = (fence.now() // SECOND - 3600) * SECOND
            client.hset(fence.keys.last, mapping=dict.fromkeys(entries, mark))
            client.zadd(fence.keys.due, dict.fromkeys(entries, mark // 1000 + 1))
            added = entry_of("added", {"task": "t", "schedule": 1.0, "options": {"queue": "other"}}, source="stored")
            rounds.run(fence.term)
            client.hset(fence.keys.entries, "added", added.definition)
            client.hset(fence.keys.last, "added", mark)
            client.zadd(fence.keys.due, {"added": mark // 1000})
            generation = client.hincrby(fence.keys.entries, "generation", 1)
            client.xadd(fence.keys.edits, {"generation": generation, "op": "add", "entry": "added"})
            drain(rounds, fence.term)
            assert client.llen("q") == len(set(ticks(client))) == len(entries)
            assert client.llen("other") >= 1
            rounds.forget()  # a burst an hour later would be another term's or another fire time's
        assert len(rounds.election.extensions) >= 2 * len(entries) // BATCH
    assert {header["fencebeat_token"] for header in queued(client)} == {fence.term.token}


def test_messages_are_the_same_with_and_without_templates(app, fence, client) -> None:
    entries = lines(30, 3600.0)
    said = []
    for fast in (True, False):
        with leader(app, fence, entries, fast=fast) as rounds:
            drain(rounds, fence.term)
            client.hset(fence.keys.last, mapping=dict.fromkeys(entries, 0))
            client.zadd(fence.keys.due, dict.fromkeys(entries, 1))
            drain(rounds, fence.term)
        messages = [json.loads(text) for text in client.lrange("q", 0, -1)]
        for message in messages:
            del message["properties"]["delivery_tag"]
        said.append(sorted(messages, key=lambda message: message["headers"]["fencebeat_entry"]))
        client.delete("q")
    assert said[0] == said[1]
    assert len(said[0]) == 30


# --- many terms


def test_s20_fifty_changes_of_leader_repeat_nothing_and_leave_no_thread_behind(app, fence, client) -> None:
    entries = lines(3, 2.0, catchup="all")
    with leader(app, fence, entries) as a, leader(app, fence, entries) as b:
        a.run(fence.term)
        b.run(fence.term)
        before = threading.active_count()
        connected = None
        mark = set_back(fence, entries, 250)
        for number in range(50):
            rounds = (a, b)[number % 2]
            take_over(fence, rounds, number)
            rounds.run(fence.term)
            if number == 10:
                connected = len(client.client_list())
        rounds = a
        take_over(fence, rounds, 50)
        drain(rounds, fence.term)
        assert threading.active_count() == before
        assert abs(len(client.client_list()) - connected) <= 10  # other tests connect to the same server
    seen = Counter(ticks(client))
    assert set(seen.values()) == {1}
    times = sorted({header["fencebeat_fire_time"] for header in queued(client)})
    assert times == list(range(-(-(mark + 1) // (2 * SECOND)) * 2 * SECOND, times[-1] + 1, 2 * SECOND))
    assert len(seen) == 3 * len(times)


# --- many faults


class Dies(BaseException):
    """The process is gone: nothing may catch it."""


class Doomed(Store):
    """Dies at a chosen request, before it leaves or before its reply arrives; or finds the server full."""

    plan = ("never", 0)

    def _at(self, edge):
        what, left = self.plan
        if what == edge:
            self.plan = (what, left - 1)
            if left <= 1:
                raise Dies

    def due(self, term, limit):
        self._at("due")
        return super().due(term, limit)

    def commit(self, term, decisions, **options):
        self._at("before")
        if self.plan[0] == "refused":
            self.plan = ("never", 0)
            raise StoreUnreachable(store="Redis", seconds=1, why="its memory is full", address="test")
        committed = super().commit(term, decisions, **options)
        self._at("after")
        if self.plan[0] == "lost":
            self.plan = ("never", 0)
            raise StoreUnreachable(store="Redis", seconds=1, why="the reply was lost", address="test")
        return committed


def test_s21_whatever_the_moment_of_its_death_each_tick_is_queued_once_by_somebody(app, fence, client) -> None:
    dice = random.Random("S21")
    entries = lines(4, 1.0, catchup="all")
    first = None
    for number in range(60):
        store = Doomed(client, fence.keys)
        store.plan = (dice.choice(["before", "after", "due", "refused", "lost", "never"]), dice.randint(1, 3))
        with leader(app, fence, entries, store=store) as rounds:
            take_over(fence, rounds, number)
            if number == 0:
                store.plan = ("never", 0)
                rounds.run(fence.term)
                first = set_back(fence, entries, 400)
            for _ in range(dice.randint(1, 3)):
                try:
                    rounds.run(fence.term)
                except StoreUnreachable:
                    continue  # the same leader goes on
                except Dies:
                    break
    with leader(app, fence, entries) as rounds:
        take_over(fence, rounds, 1000)
        drain(rounds, fence.term)
    seen = Counter((header["fencebeat_entry"], header["fencebeat_fire_time"]) for header in queued(client))
    assert set(seen.values()) == {1}
    for name in entries:
        times = sorted(at for entry, at in seen if entry == name)
        assert times == list(range(first + SECOND, fence.mark(name) + 1, SECOND))


def test_s21_a_repeat_a_day_later_is_refused(app, fence, client) -> None:
    entries = lines(1, 3600.0, catchup="all")
    with leader(app, fence, entries) as rounds:
        drain(rounds, fence.term)
        set_back(fence, entries, 26 * 3600)
        drain(rounds, fence.term)
    emitted = queued(client)
    assert len(emitted) >= 25
    entry = entries["e0000"]
    take_over(fence, rounds, 1)
    for header in emitted:
        assert fence.commit(fence.emission(entry, header["fencebeat_fire_time"])) == ("duplicate",)
    assert client.llen("q") == len(emitted)


# --- lost and unusable entries


def test_s22_definitions_that_disappear_are_restored_or_named_within_one_loop(app, fence, client, caplog) -> None:
    entries = lines(3, 1.0, catchup="all")
    stored = entry_of("d", {"task": "t", "schedule": 1.0}, source="stored")
    with leader(app, fence, entries) as rounds:
        rounds.signals.quarantined.listen()
        client.hset(fence.keys.entries, "d", stored.definition)
        client.hset(fence.keys.last, "d", fence.now())
        rounds.run(fence.term)
        emitted = set_back(fence, entries, 5)
        drain(rounds, fence.term)
        before = Counter(ticks(client))
        client.hdel(fence.keys.entries, "e0001", "d")
        with caplog.at_level(logging.ERROR):
            for _ in range(2):  # one that notices, one that mends
                rounds.run(fence.term)
        assert client.hget(fence.keys.entries, "e0001") == entries["e0001"].definition
        assert rounds.signals.quarantined.wait() == "d"
        assert "entry d is left alone" in caplog.text
        assert "e0001" in caplog.text
        assert "disappeared" in json.loads(fence.store.quarantined()["d"])["reason"]
        set_back_to_mark = fence.mark("e0001")
        assert set_back_to_mark > emitted
        drain(rounds, fence.term)
    assert all(count == 1 for count in Counter(ticks(client)).values())
    assert before.keys() <= Counter(ticks(client)).keys()


def test_s17_an_edit_is_followed_while_nothing_is_due(app, fence, client) -> None:
    schedule = Schedule(client, fence.keys, by="a test")
    schedule.add("d", {"task": "t", "schedule": 3600, "args": [1]})
    with leader(app, fence, {}) as rounds:
        drain(rounds, fence.term)
        assert rounds.memory.get("d").args == (1,)
        schedule.edit("d", args=[2])
        drain(rounds, fence.term)
        assert rounds.memory.get("d").args == (2,)


def test_a_stored_entry_that_cannot_be_read_is_shown_and_ends_nothing(app, fence, client) -> None:
    client.hset(fence.keys.entries, "bad", json.dumps({"source": "stored"}))
    client.hset(fence.keys.last, "bad", fence.now())
    client.zadd(fence.keys.due, {"bad": 1})
    entries = lines(1, 1.0, catchup="all")
    with leader(app, fence, entries) as rounds:
        rounds.run(fence.term)
        set_back(fence, entries, 3)
        drain(rounds, fence.term)
        assert client.llen("q") >= 3
        record = json.loads(fence.store.quarantined()["bad"])
        assert record["until"] > record["since"]
        client.hdel(fence.keys.entries, "bad")
        generation = client.hincrby(fence.keys.entries, "generation", 1)
        client.xadd(fence.keys.edits, {"generation": generation, "op": "remove", "entry": "bad"})
        client.zrem(fence.keys.due, "bad")
        drain(rounds, fence.term)
        rounds.run(fence.term)
    assert fence.store.quarantined() == {}


def test_a_new_term_takes_the_records_of_an_older_one_away(app, fence, client) -> None:
    client.hset(fence.keys.quarantine, "well-again", "{}")
    with leader(app, fence, lines(1, 3600.0)) as rounds:
        drain(rounds, fence.term)
    assert fence.store.quarantined() == {}


def test_an_entry_whose_message_cannot_be_made_is_alone_in_quarantine(app, fence, client) -> None:
    entries = {**lines(2, 1.0, catchup="all"), **read_bad()}
    with leader(app, fence, entries) as rounds:
        rounds.run(fence.term)
        set_back(fence, entries, 3)
        drain(rounds, fence.term)
    assert {header["fencebeat_entry"] for header in queued(client)} == {"e0000", "e0001"}
    assert "it cannot be emitted" in json.loads(fence.store.quarantined()["bad"])["reason"]
    assert fence.store.quarantined().keys() == {"bad"}


def read_bad():
    line = {"task": "t", "schedule": 1.0, "options": {"serializer": "no-such-thing"}}
    return {"bad": entry_of("bad", {**line, "fencebeat": {"catchup": "all"}})}


# --- backlogs


@pytest.mark.parametrize(("policy", "most"), [("latest", 1), ("all", 1000), ("window=10s", 10)])
def test_s26_a_backlog_of_any_size_yields_what_the_policy_says_and_the_entry_lives(
    app, fence, client, policy, most
) -> None:
    line = {"task": "t", "schedule": 60.0, "options": {"queue": "q"}, "fencebeat": {"catchup": policy}}
    entries = {**lines(1, 1.0, catchup=policy), "slow": entry_of("slow", line)}
    with leader(app, fence, entries) as rounds:
        rounds.run(fence.term)
        set_back(fence, ["e0000"], 5 * 3600)
        set_back(fence, ["slow"], 3 * 86_400)
        started = time.process_time()
        rounds.run(fence.term)
        assert time.process_time() - started < 1.0  # S26 names this limit
        drain(rounds, fence.term)
        counts = Counter(header["fencebeat_entry"] for header in queued(client))
        assert most <= counts["e0000"] <= most + 5  # seconds go by meanwhile
        assert counts["slow"] in {"latest": (1, 2), "all": (1000, 1001)}.get(policy, (0, 1))  # a minute may go by, too
        passed = [r for r in fence.audit() if r["outcome"] in ("skipped", "superseded") and r["entry"] == "e0000"]
        assert sum(int(record["count"]) for record in passed) + counts["e0000"] >= 5 * 3600
        set_back(fence, ["e0000"], 2)
        rounds.forget()
        drain(rounds, fence.term)
        assert Counter(header["fencebeat_entry"] for header in queued(client))["e0000"] > counts["e0000"]


@pytest.mark.parametrize(
    ("policy", "emitted"), [("skip", (0, 1)), ("latest", (1, 1)), ("all", (1000, 1000)), ("window=1h", (60, 61))]
)
def test_s26_after_a_pause_of_three_days_the_policy_decides_and_the_entry_lives(
    app, fence, client, policy, emitted
) -> None:
    entries = lines(1, 60.0, catchup=policy)
    schedule = Schedule(client, fence.keys, by="a test")
    with leader(app, fence, entries) as rounds:
        drain(rounds, fence.term)
        mark = set_back(fence, entries, 3 * 86_400)
        schedule.pause("e0000", "holiday")
        drain(rounds, fence.term)
        assert (client.llen("q"), fence.mark("e0000")) == (0, mark), (
            "paused: nothing is emitted and nothing passed over"
        )
        schedule.resume("e0000")
        drain(rounds, fence.term)
    assert emitted[0] <= client.llen("q") <= emitted[1]
    passed = [record for record in fence.audit() if record["outcome"] in ("skipped", "superseded")]
    assert all(record["reason"] for record in passed)
    assert sum(int(record["count"]) for record in passed) + client.llen("q") in (4320, 4321)
    assert fence.mark("e0000") > fence.now() - 61 * SECOND
    assert client.zscore(fence.keys.due, "e0000") * 1000 > fence.now() - SECOND


def test_f38_everything_is_due_after_six_hours_down(app, fence, client) -> None:
    """Half of them want every tick, half the newest one; one more fires each second meanwhile."""
    line = {"task": "t", "schedule": 3600.0, "options": {"queue": "q"}}
    every, newest = ({"catchup": policy, "jitter": 60} for policy in ("all", "latest"))
    entries = {f"e{n:04}": entry_of(f"e{n:04}", {**line, "fencebeat": every if n % 2 else newest}) for n in range(2000)}
    entries["live"] = entry_of("live", {**line, "schedule": 1.0, "options": {"queue": "live"}})
    with leader(app, fence, entries) as rounds:
        drain(rounds, fence.term)
        client.delete("live")
        mark = set_back(fence, entries, 6 * 3600)
        now = fence.now()
        open_times = {name: entry.plan(mark, now) for name, entry in entries.items()}
        rounds.signals.committed.listen()
        renewed = len(rounds.election.extensions)
        drain(rounds, fence.term)
        ended = fence.now()
        batches = [rounds.signals.committed.wait() for _ in rounds.election.extensions[renewed:]]
    by_entry: dict[str, list[int]] = {}
    for header in queued(client):
        by_entry.setdefault(header["fencebeat_entry"], []).append(header["fencebeat_fire_time"])
    hour = 3600 * SECOND
    steady = now % hour > 61 * SECOND and ended // hour == now // hour  # else more comes due while they go out
    for name, plan in open_times.items():
        if name != "live" and steady:
            assert by_entry.get(name, [])[: len(plan.emit)] == list(plan.emit), "what its policy says, oldest first"
    assert len(by_entry["e0001"]) >= 5
    assert {len(times) for name, times in by_entry.items() if int(name[1:]) % 2 == 0} <= {1, 2}
    sizes = [sum(result == "emitted" for _, result in batch.results) for batch in batches]
    assert max(sizes) <= BATCH + 6, "so that the lease is renewed in between: by each of them"
    assert sum(sizes) >= 6000
    assert {header["fencebeat_token"] for header in queued(client)} == {fence.term.token}
    assert queued(client, "live")[-1]["fencebeat_fire_time"] > ended - 3 * SECOND, "new ticks do not starve"
    scores = {score for name, score in client.zrange(fence.keys.due, 0, -1, withscores=True) if name != "live"}
    assert len(scores) > 1900, "jitter spreads what comes next"


# --- jitter, rate


def test_s27_a_tick_with_jitter_is_due_later_and_keeps_its_fire_time(app, fence, client) -> None:
    (entry,) = lines(1, 3600.0, catchup="all", jitter=1800).values()
    with leader(app, fence, {entry.name: entry}) as rounds:
        drain(rounds, fence.term)
        set_back(fence, [entry.name], 4 * 3600)
        drain(rounds, fence.term)
    times = [header["fencebeat_fire_time"] for header in queued(client)]
    assert len(times) >= 3
    assert all(at % (3600 * SECOND) == 0 and entry.due_at(at) <= fence.now() for at in times)
    assert {header["eta"] for header in queued(client)} == {None}, "the scheduler waits, and not the message"
    following = entry.next_after(times[-1])
    assert client.zscore(fence.keys.due, entry.name) == -(-entry.due_at(following) // 1000)


def test_an_entry_whose_mark_falls_again_and_again_is_stopped_and_the_others_go_on(app, fence, client) -> None:
    entries = lines(2, 3600.0)
    with leader(app, fence, entries) as rounds:
        drain(rounds, fence.term)
        for _ in range(4):
            client.hset(fence.keys.last, "e0000", 0)
            client.zadd(fence.keys.due, {"e0000": 1})
            drain(rounds, fence.term)
        client.hset(fence.keys.last, "e0001", 0)
        client.zadd(fence.keys.due, {"e0001": 1})
        drain(rounds, fence.term)
    counts = Counter(header["fencebeat_entry"] for header in queued(client))
    assert counts == {"e0000": 2, "e0001": 1}  # one replay in a term, as after a failover
    assert "more often than it fires" in fence.store.quarantined()["e0000"]


def test_the_rate_guard_lets_every_new_fire_time_through() -> None:
    guard = RateGuard()
    for at in range(5):
        guard.check("e", at)
        guard.emitted("e", at)
