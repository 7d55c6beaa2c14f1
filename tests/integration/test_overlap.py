"""Entries with `"overlap": "skip"`: real rounds on a real server, the claims in memory."""

import json
import threading

import pytest
from celery import Celery

from fencebeat.checks import check
from fencebeat.claims.memory import MemoryClaims
from fencebeat.claims.port import Tick
from fencebeat.clock import ManualClock, SystemClock
from fencebeat.entries import read_schedule
from fencebeat.errors import StoreUnreachable
from fencebeat.guard import GuardedTask
from fencebeat.overlap import WAIT, Overlap
from fencebeat.ticks import task_id
from tests.support.fences import SECOND
from tests.support.leading import drain, leader, set_back


def work():
    """Do nothing."""


@pytest.fixture
def fence(fence):
    fence.client.pexpire(fence.keys.lock, 600_000)
    return fence


@pytest.fixture
def clock():
    return ManualClock(wall=SystemClock().wall())


@pytest.fixture
def claims(clock, monkeypatch):
    """The store of claims of the application."""
    made = MemoryClaims(clock)
    monkeypatch.setattr("fencebeat.overlap.claims_of", lambda _app: (None, made))
    return made


@pytest.fixture
def app(redis_url, namespace, claims):
    with Celery("overlap", broker=redis_url, set_as_current=False) as made:
        made.conf.update(result_expires=None, fencebeat_namespace=namespace)
        made.task(name="t", base=GuardedTask, shared=False)(work)  # else every later application has it
        made.task(name="plain", shared=False)(work)
        made.finalize()
        yield made


@pytest.fixture
def entries():
    def line(task, overlap):
        policies = {"catchup": "all", "overlap": overlap}
        return {"task": task, "schedule": 1.0, "options": {"queue": "q"}, "fencebeat": policies}

    lines = {"one": line("t", "skip"), "free": line("t", "allow"), "plain": line("plain", "skip")}
    read, refused = read_schedule(lines)
    assert refused == []
    return read


def emitted(fence, name):
    """Fire times of an entry's messages, oldest first."""
    headers = [json.loads(text)["headers"] for text in reversed(fence.client.lrange("q", 0, -1))]
    return [header["fencebeat_fire_time"] for header in headers if header["fencebeat_entry"] == name]


def skipped(fence, name):
    """What the audit tells of skipped ticks of an entry, oldest first."""
    return [r["reason"] for r in fence.audit() if r["outcome"] == "skipped" and r["entry"] == name]


def claim(claims, fence, name, fire_time):
    tick = Tick(name, fire_time, fence.term.token, task_id(fence.keys.namespace, name, fire_time))
    claims.claim(tick, "worker:1", 60.0)
    return tick


@pytest.fixture
def rounds(app, fence, client, entries):
    chosen = {name: entry for name, entry in entries.items() if name != "plain"}
    with leader(app, fence, chosen, overlap=Overlap(app, client, fence.keys)) as made:
        drain(made, fence.term)
        client.delete("q")
        yield made


def test_of_several_open_ticks_one_is_sent_and_the_others_say_why_not(rounds, fence) -> None:
    mark = set_back(fence, ["one", "free"], 3)
    drain(rounds, fence.term)
    assert emitted(fence, "one") == [mark + SECOND]
    assert len(emitted(fence, "free")) >= 3
    assert "is sent just now" in skipped(fence, "one")[0]


@pytest.mark.parametrize(("state", "said"), [("queued", "waits for a worker"), ("running", "is run by worker:1")])
def test_while_the_last_tick_is_not_finished_the_next_is_passed_over(rounds, fence, claims, state, said) -> None:
    mark = set_back(fence, ["one"], 2)
    drain(rounds, fence.term)
    if state == "running":
        claim(claims, fence, "one", mark + SECOND)
    at = fence.mark("one")
    set_back(fence, ["one"], 0)
    fence.client.hset(fence.keys.last, "one", at - SECOND)
    fence.client.zadd(fence.keys.due, {"one": at // 1000})
    drain(rounds, fence.term)
    assert emitted(fence, "one") == [mark + SECOND]
    assert any(said in reason for reason in skipped(fence, "one"))


def last_was(fence, *, fire_time_ago, sent_ago):
    """As if the entry's last tick had been emitted so many seconds ago; returns its fire time."""
    now = fence.now() // SECOND * SECOND
    fire_time = now - fire_time_ago * SECOND
    fence.client.hset(fence.keys.emitted, "one", f"{fire_time} {now - sent_ago * SECOND}")
    return fire_time


def noted(fence, name):
    """What the audit tells of emitted ticks of an entry besides."""
    return [r["reason"] for r in fence.audit() if r["outcome"] == "emitted" and r["entry"] == name and "reason" in r]


def next_tick(rounds, fence):
    """The next tick comes; whether it was emitted."""
    mark = set_back(fence, ["one"], 1)
    drain(rounds, fence.term)
    return mark + SECOND in emitted(fence, "one")


def test_after_its_end_the_next_tick_is_sent(rounds, fence, claims) -> None:
    tick = claim(claims, fence, "one", last_was(fence, fire_time_ago=5, sent_ago=5))
    claims.close(tick.task_id, 1, "succeeded")
    assert next_tick(rounds, fence)
    assert noted(fence, "one") == []


@pytest.mark.parametrize("state", ["queued", "lapsed"])
def test_what_nobody_finishes_is_waited_for_and_then_counts_as_lost_which_the_audit_tells(
    rounds, fence, claims, clock, state
) -> None:
    before = last_was(fence, fire_time_ago=int(WAIT) + 100, sent_ago=int(WAIT) - 100)  # it was sent late
    if state == "lapsed":
        claim(claims, fence, "one", before)
        clock.advance(61.0)
    assert not next_tick(rounds, fence), "it counts from when it was sent"
    last_was(fence, fire_time_ago=int(WAIT) + 100, sent_ago=int(WAIT) + 50)
    assert next_tick(rounds, fence)
    assert any("counts as lost" in reason for reason in noted(fence, "one"))


def test_a_run_that_takes_longer_than_the_wait_is_still_under_way(rounds, fence, claims) -> None:
    claim(claims, fence, "one", last_was(fence, fire_time_ago=3 * int(WAIT), sent_ago=3 * int(WAIT)))
    assert not next_tick(rounds, fence)
    assert "is run by worker:1" in skipped(fence, "one")[-1]


def test_a_message_that_no_worker_begins_any_more_is_in_nobodys_way(app, rounds, fence) -> None:
    app.tasks["t"].expires = 60
    last_was(fence, fire_time_ago=90, sent_ago=65)
    assert not next_tick(rounds, fence), "the worker's clock may be a bit behind"
    last_was(fence, fire_time_ago=90, sent_ago=75)
    assert next_tick(rounds, fence)
    assert any("has expired" in reason for reason in noted(fence, "one"))


@pytest.mark.parametrize(
    "error", [StoreUnreachable(store="Postgres", seconds=1, why="gone", address="x"), RuntimeError("their own store")]
)
def test_while_nobody_can_tell_the_tick_stays_due_and_others_go_on(rounds, fence, claims, monkeypatch, error) -> None:
    def silent(_ids):
        raise error

    monkeypatch.setattr(claims, "look", silent)
    last_was(fence, fire_time_ago=5, sent_ago=5)
    mark = set_back(fence, ["one", "free"], 2)
    drain(rounds, fence.term)
    assert emitted(fence, "one") == []
    assert fence.mark("one") == mark
    assert emitted(fence, "free")
    assert rounds.quarantine.holds("one")


def test_a_store_of_claims_that_hangs_holds_no_round_for_longer_than_its_patience(
    app, fence, entries, claims, monkeypatch
) -> None:
    asked, answer = [], threading.Event()

    def hang(ids):
        asked.append(ids)
        answer.wait(60)
        return {}

    monkeypatch.setattr(claims, "look", hang)
    chosen = {name: entries[name] for name in ("one", "free")}
    overlap = Overlap(app, fence.client, fence.keys, patience=0.2)
    with leader(app, fence, chosen, overlap=overlap) as rounds:
        drain(rounds, fence.term)
        last_was(fence, fire_time_ago=5, sent_ago=5)
        mark = set_back(fence, ["one", "free"], 2)
        drain(rounds, fence.term)
        assert emitted(fence, "free")
        rounds.quarantine.release("one")
        drain(rounds, fence.term)
        assert len(asked) == 1, "while one question is open there is no other"
        assert (emitted(fence, "one"), fence.mark("one")) == ([], mark)
        answer.set()
        ends = [thread for thread in threading.enumerate() if thread.name == "fencebeat-overlap"]
        for thread in ends:
            thread.join(30)
        rounds.quarantine.release("one")
        monkeypatch.undo()
        monkeypatch.setattr("fencebeat.overlap.claims_of", lambda _app: (None, claims))
        drain(rounds, fence.term)
        assert "waits for a worker" in skipped(fence, "one")[-1]


def test_where_the_last_ticks_could_not_be_read_the_page_is_asked_for_again(rounds, fence, claims, client) -> None:
    claim(claims, fence, "one", last_was(fence, fire_time_ago=5, sent_ago=5))
    set_back(fence, ["one"], 2)
    fence.client.rename(fence.keys.emitted, "away")
    client.set(fence.keys.emitted, "no hash")
    with pytest.raises(StoreUnreachable):
        rounds.run(fence.term)
    fence.client.rename("away", fence.keys.emitted)
    drain(rounds, fence.term)
    assert emitted(fence, "one") == []
    assert "is run by worker:1" in skipped(fence, "one")[-1]


def test_a_record_that_cannot_be_read_keeps_nothing_back_and_is_made_anew(rounds, fence) -> None:
    fence.client.hset(fence.keys.emitted, "one", "rubbish")
    assert next_tick(rounds, fence)
    assert any("cannot be read" in reason for reason in noted(fence, "one"))
    assert fence.client.hget(fence.keys.emitted, "one").split()[0].isdigit()


def test_all_entries_of_a_page_are_one_question(app, fence, client, claims, monkeypatch) -> None:
    line = {"task": "t", "schedule": 1.0, "options": {"queue": "q"}, "fencebeat": {"overlap": "skip"}}
    entries, _ = read_schedule(dict.fromkeys(("a", "b", "c"), line))
    questions = []
    look = claims.look
    monkeypatch.setattr(claims, "look", lambda ids: questions.append(len(ids)) or look(ids))
    with leader(app, fence, entries, overlap=Overlap(app, client, fence.keys)) as rounds:
        drain(rounds, fence.term)
        set_back(fence, entries, 1)
        drain(rounds, fence.term)
        assert questions == [], "there is nothing to ask of entries that were never emitted"
        set_back(fence, entries, 1)
        drain(rounds, fence.term)
    assert questions[0] == 3


def test_an_entry_whose_task_claims_nothing_is_left_alone_and_named_by_check(app, fence, client, entries) -> None:
    chosen = {"plain": entries["plain"]}
    with leader(app, fence, chosen, overlap=Overlap(app, client, fence.keys)) as rounds:
        drain(rounds, fence.term)
        set_back(fence, ["plain"], 2)
        drain(rounds, fence.term)
        assert emitted(fence, "plain") == []
        assert rounds.quarantine.holds("plain")
    app.conf.beat_schedule = {
        "plain": {"task": "plain", "schedule": 1.0, "fencebeat": {"overlap": "skip"}},
    }
    (found,) = [finding for finding in check(app, SystemClock(), 1.0) if finding.check == "overlap"]
    assert found.level == "refused"
    assert "plain is not a GuardedTask" in found.says
