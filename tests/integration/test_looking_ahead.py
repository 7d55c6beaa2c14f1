"""While the server works on one batch the next one is made: what that must not change."""

import json
import threading
from collections import Counter

import pytest
from celery import Celery

from fencebeat.entries import read_schedule
from fencebeat.errors import StoreUnreachable
from fencebeat.rounds import BATCH
from fencebeat.store import Store
from tests.support.fences import Fence
from tests.support.leading import drain, leader, set_back, take_over

COUNT = 2 * BATCH + 50


@pytest.fixture
def app(redis_url):
    with Celery("ahead", broker=redis_url, set_as_current=False) as made:
        made.conf.result_expires = None
        made.finalize()
        yield made


@pytest.fixture
def fence(client, namespace):
    made = Fence.sealed(client, namespace)
    client.pexpire(made.keys.lock, 600_000)
    return made


@pytest.fixture
def entries():
    line = {"task": "t", "schedule": 3600.0, "options": {"queue": "q"}}
    read, refused = read_schedule({f"e{n:04}": line for n in range(COUNT)})
    assert refused == []
    return read


@pytest.fixture
def rounds(app, fence, entries):
    """A leader with a page of three batches before it."""
    with leader(app, fence, entries) as made:
        drain(made, fence.term)
        set_back(fence, entries, 3600)
        made.signals.committed.listen()
        yield made


def outcomes(rounds, batches):
    """What the decisions of the next batches became."""
    return [outcome for _ in range(batches) for _, outcome in rounds.signals.committed.wait().results]


def queued(client):
    return Counter(json.loads(text)["headers"]["fencebeat_tick"] for text in client.lrange("q", 0, -1))


def test_the_next_batch_is_made_while_the_server_works(rounds, fence, client, monkeypatch):
    real, made = type(client).parse_response, []

    def parse_response(connection, command, **options):
        before = len(made)
        reply = real(client, connection, command, **options)
        if before != len(made):
            order.append("reply")
        return reply

    order, render = [], rounds._renderer.render

    def counted(*tick):
        made.append(tick)
        if len(made) % BATCH == 1:
            order.append("made")
        return render(*tick)

    monkeypatch.setattr(rounds._renderer, "render", counted)
    monkeypatch.setattr(client, "parse_response", parse_response)
    rounds.run(fence.term)
    assert order == ["made", "made", "reply"]
    assert client.llen("q") == BATCH
    drain(rounds, fence.term)
    assert len(made) == COUNT, "each message is made once"
    assert outcomes(rounds, 3) == ["emitted"] * COUNT
    assert set(queued(client).values()) == {1}


def test_a_lost_reply_neither_loses_nor_repeats_the_batch_that_was_made_meanwhile(rounds, fence, client, monkeypatch):
    real, lost = Store.commit, []

    def commit(*args, **options):
        committed = real(*args, **options)
        if len(lost) < 2:
            lost.append(committed)
            raise StoreUnreachable(store="Redis", seconds=1, why="the reply was lost", address="test")
        return committed

    monkeypatch.setattr(Store, "commit", commit)
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            rounds.run(fence.term)
    drain(rounds, fence.term)
    assert len(queued(client)) == COUNT
    assert set(queued(client).values()) == {1}
    assert Counter(outcomes(rounds, 3)) == {"emitted": COUNT - BATCH, "duplicate": BATCH}


def test_the_next_batch_of_a_lost_term_is_not_sent_under_a_later_one(rounds, fence, client):
    rounds.run(fence.term)
    take_over(fence, rounds, 1)
    drain(rounds, fence.term)
    tokens = Counter(json.loads(text)["headers"]["fencebeat_token"] for text in client.lrange("q", 0, -1))
    assert tokens == {fence.term.token - 1: BATCH, fence.term.token: COUNT - BATCH}


def test_a_broker_that_is_gone_while_the_next_batch_is_made_leaves_the_one_under_way_alone(
    rounds, fence, client, monkeypatch
):
    render, calls = rounds._renderer.render, []

    def broken(*tick):
        calls.append(tick)
        if len(calls) == BATCH + 7:
            raise StoreUnreachable(store="The broker", seconds=1, why="it is gone", address="test")
        return render(*tick)

    monkeypatch.setattr(rounds._renderer, "render", broken)
    rounds.run(fence.term)
    assert outcomes(rounds, 1) == ["emitted"] * BATCH
    drain(rounds, fence.term)
    assert outcomes(rounds, 2) == ["emitted"] * (COUNT - BATCH)
    assert set(queued(client).values()) == {1}


def test_a_reply_that_nobody_reads_is_not_taken_for_the_next_one(client):
    def interrupted():
        raise KeyboardInterrupt

    begun = threading.Event()
    assert client.execute_command("EVAL", "return 'one'", 0, meanwhile=begun.set) == "one"
    assert begun.is_set()
    for _ in range(20):  # the reply is there at once, or a moment later
        with pytest.raises(KeyboardInterrupt):
            client.execute_command("EVAL", "return 'lost'", 0, meanwhile=interrupted)
        assert client.ping()
    (connection,) = client.connection_pool._available_connections
    assert connection.is_connected
    with pytest.raises(KeyboardInterrupt):
        client.execute_command("EVAL", "return 'lost'", 0, meanwhile=interrupted)
    assert not connection.is_connected
