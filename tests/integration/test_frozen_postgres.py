"""Postgres takes what it is sent and says nothing: frozen, or behind a way that swallows one direction.

A server that is down refuses; this one lets everybody wait. Each call must end by itself with its sentence, and all
goes on when the server does.
"""

import threading
from contextlib import ExitStack, contextmanager

import pytest

from control.effects import LedgerEffects
from control.switches import SwitchBoard
from fencebeat.claims.bounded import CHECK_SECONDS, NoAnswer
from fencebeat.claims.port import Claimed
from fencebeat.claims.postgres import PostgresClaims
from fencebeat.copying import AuditCopier
from fencebeat.effects import AuditRecord, EntriesCopy, Version
from fencebeat.errors import StoreUnreachable
from fencebeat.flags import FRESH, FlagKeeper, read_flags
from fencebeat.recovery import PastUnread, Recovery
from index.errors import TargetUnavailable
from index.ledger import open_pool
from index.ledger import pool as ledger_pool
from index.ledger.pool import connection
from index.targets.pgvector import PgvectorTarget
from tests.support.claims import tick
from tests.support.documents import make_spec
from tests.support.freezing import Freezer, behind_a_proxy
from tests.support.ledgers import ledger_at
from tests.support.local_beats import LocalBeats
from tests.support.servers import database, running
from tests.support.waiting import until

PATIENCE = 1.0
HUNG = 30.0
"""Seconds after which a call that should have ended by itself counts as one that hangs for ever."""


@pytest.fixture(scope="module")
def freezer(tmp_path_factory):
    with running("postgres", tmp_path_factory.mktemp("frozen-postgres")) as addresses:
        yield Freezer(addresses.postgres_url)


@pytest.fixture(scope="module")
def ledger_url(freezer):
    with database(freezer.url) as url, ledger_at(url):
        yield url


@pytest.fixture
def make_pool(monkeypatch):
    """Pools as the product opens them, with less patience for one answer."""
    monkeypatch.setattr(ledger_pool, "PATIENCE", PATIENCE)
    made = []

    def make(url):
        made.append(open_pool(url, timeout=1.0))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def effects(make_pool, ledger_url, namespace):
    return LedgerEffects(make_pool(ledger_url), namespace)


@pytest.fixture
def proxied(ledger_url):
    with behind_a_proxy(ledger_url) as both:
        yield both


def ends(call, *args):
    """What a call raises, on a thread that may be left behind where it hangs."""
    raised = []

    def run():
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HUNG)
    assert not thread.is_alive(), "it hangs"
    return raised[0]


def says_so(error, *words):
    """StoreUnreachable with its sentences: what, within which time, why, what to look at."""
    assert isinstance(error, StoreUnreachable), error
    for word in ("did not answer within", "Check that the server runs", *words):
        assert word in str(error)
    return True


CALLS = {
    "floor": lambda effects: effects.floor(),
    "flags": lambda effects: effects.flags(),
    "last_copied": lambda effects: effects.last_copied(),
    "copy_audit": lambda effects: effects.copy_audit([AuditRecord("1-0", {"outcome": "elected", "token": "1"})]),
    "copied_entries": lambda effects: effects.copied_entries(),
    "copy_entries": lambda effects: effects.copy_entries(EntriesCopy(Version(1, 1), None, {"a": "{}"}, {})),
    "past": lambda effects: effects.past(),
    "settle": lambda effects: effects.settle(),
}


def test_every_call_of_the_effect_store_ends_while_its_server_is_frozen_and_works_afterwards(freezer, effects):
    effects.floor()  # a connection that it will find mute
    with freezer.frozen():
        for call in CALLS.values():
            assert says_so(ends(call, effects), "/")

    for call in CALLS.values():
        until(lambda call=call: ends(call, effects) is None, at_most=30, what="it works again")


@pytest.mark.parametrize(
    ("call", "statement"),
    [
        ("floor", "known_floor"),
        ("flags", "expire_switches"),
        ("last_copied", "FROM tick_audit"),
        ("copy_audit", "keep_audit"),
        ("copied_entries", "FROM tick_entry_version"),
        ("copy_entries", "keep_entries"),
        ("past", "recovered_marks"),
        ("settle", "settle_page"),
    ],
)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_statement_that_nobody_answers_ends_whichever_way_is_cut(
    proxied, make_pool, namespace, monkeypatch, *, call, statement, direction
):
    proxy, url = proxied
    monkeypatch.setattr("control.effects.SHORT", PATIENCE)
    monkeypatch.setattr("control.switches.FRESH", PATIENCE)
    effects = LedgerEffects(make_pool(url), namespace)
    proxy.silence(direction, about=statement)

    assert says_so(ends(CALLS[call], effects), f"within {PATIENCE:g}", "silent")

    assert proxy.bites["silence"] >= 1
    proxy.heal()
    assert ends(CALLS[call], effects) is None, "the mute connection is not used again"


def test_a_server_that_freezes_inside_a_transaction_ends_it(freezer, make_pool, ledger_url):
    pool = make_pool(ledger_url)

    def work():
        with connection(pool) as conn, conn.transaction():
            conn.execute("SELECT 1")
            freezing.__enter__()
            conn.execute("SELECT 2")

    freezing = freezer.frozen()
    try:
        assert says_so(ends(work))
    finally:
        freezing.__exit__(None, None, None)
    with connection(pool) as conn:
        assert conn.execute("SELECT 3").fetchone() == (3,)


def test_one_mute_connection_takes_the_other_idle_ones_with_it(proxied, make_pool):
    """Otherwise each of them would cost its own second of silence."""
    proxy, url = proxied
    pool = make_pool(url)
    with pool.connection(), pool.connection(), pool.connection():
        pass
    until(lambda: pool.get_stats()["pool_available"] == 3, what="three idle connections")
    idle = list(pool._pool)
    assert len(idle) == 3
    proxy.silence("down", times=1)

    with connection(pool) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)

    assert proxy.bites["silence"] == 1
    assert all(conn.closed for conn in idle), "one was asked, and the others are not used again"


# --- the worker's claims


@pytest.fixture
def make_claims(ledger_url, namespace):
    made = []

    def make(url=ledger_url):
        made.append(PostgresClaims(url, namespace, timeout=1.0))
        return made[-1]

    yield make
    for claims in made:
        claims.disconnect()


def claim_calls(claims, one):
    return [
        lambda: claims.claim(one, "here", 60),
        lambda: claims.extend(one.task_id, 1, 60),
        lambda: claims.look([one.task_id]),
        claims.floor,
        lambda: claims.purge(3600),
        lambda: claims.close(one.task_id, 1, "succeeded"),
    ]


def test_f18_every_call_of_the_claims_ends_while_their_server_is_frozen_and_works_afterwards(freezer, make_claims):
    claims, one = make_claims(), tick()
    assert claims.claim(one, "here", 60) == Claimed(1)
    with freezer.frozen():
        for call in claim_calls(claims, one):
            assert says_so(ends(call), "Postgres (claims)")

    for call in claim_calls(claims, one):
        until(lambda call=call: ends(call) is None, at_most=30, what="it works again")


@pytest.mark.parametrize(("place", "statement"), [(0, "INSERT INTO tick_claim"), (1, "lease_until"), (5, "closed_at")])
def test_f18_a_claim_whose_answer_is_swallowed_ends_and_its_repetition_finds_what_was_done(
    proxied, make_claims, *, place, statement
):
    proxy, url = proxied
    claims, direct, one = make_claims(url), make_claims(), tick()
    if place:
        direct.claim(one, "here", 60)
    proxy.silence("down", about=statement)

    assert says_so(ends(claim_calls(claims, one)[place]), "within 1.25", "silent")

    proxy.heal()
    state = until(lambda: direct.look([one.task_id]).get(one.task_id), what="the claim")
    assert (state.attempt, state.outcome) == (1, "succeeded" if place == 5 else None)
    assert ends(claim_calls(claims, one)[place]) is None


# --- the beat's threads


@contextmanager
def started(*threads):
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stop()


def test_f18_the_flags_grow_old_while_the_ledger_is_frozen_and_are_renewed_when_it_thaws(
    freezer, effects, store, term, namespace
):
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
    keeper = FlagKeeper(effects, store.client, store.keys)
    copier = AuditCopier(effects, store.client, store.keys, every=0.2)
    keeper.renewed.listen()
    with started(keeper, copier):
        keeper.renewed.wait(HUNG)
        with freezer.frozen():
            store.client.xadd(store.keys.audit, {"outcome": "noted"})  # with nothing to copy, nobody is asked
            # By their state: a signal may be of a moment before, when a loaded machine was slow.
            until(lambda: "did not answer" in (keeper.trouble or ""), at_most=HUNG, what="the keeper says so")
            until(lambda: copier.trouble is not None, at_most=HUNG, what="the copier says so")
            until(lambda: read_flags(store.client, store.keys).age_seconds > FRESH, at_most=HUNG, what="unknown")
        until(lambda: read_flags(store.client, store.keys).age_seconds < FRESH, at_most=HUNG, what="renewed")
        until(lambda: keeper.trouble is None and copier.trouble is None, at_most=HUNG, what="both go on")


def test_f18_connections_that_turn_mute_under_a_keeper_are_replaced_while_the_copy_is_still_fresh(
    proxied, make_pool, store, term, namespace
):
    """A way that forgot its connections (a firewall, a failover): each is dead, and a new one works at once."""
    proxy, url = proxied
    pool = make_pool(url)
    effects = LedgerEffects(pool, namespace)
    with pool.connection(), pool.connection(), pool.connection():
        pass
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)
    keeper = FlagKeeper(effects, store.client, store.keys)
    keeper.renewed.listen()
    keeper.failed.listen()
    with started(keeper):
        keeper.renewed.wait(HUNG)
        proxy.silence("down", times=1)
        until(lambda: proxy.bites["silence"], what="a connection is mute")
        for _ in range(3):
            keeper.renewed.wait(HUNG)
    assert keeper.trouble is None
    assert CHECK_SECONDS + keeper._every < FRESH, "found out and replaced before the copy is too old"


# --- a recovery


class Slow:
    """An effect store whose past takes as long as the test wants."""

    def __init__(self, effects):
        self._effects = effects
        self.asked, self.go = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._effects, name)

    def past(self):
        self.asked.set()
        assert self.go.wait(HUNG)
        return self._effects.past()


def test_f05_a_past_that_takes_longer_than_a_lease_does_not_cost_the_term(effects, store, term):
    slow = Slow(effects)
    renewed = threading.Semaphore(0)

    def renew(running):
        renewed.release()
        return store.client.pexpire(store.keys.lock, round(running.lease * 1000))

    failed = []
    recovery = Recovery(store.client, store.keys, carrier="lock", effects=slow, renew=renew)
    thread = threading.Thread(target=lambda: failed.append(ends(recovery, term)), daemon=True)
    thread.start()
    assert slow.asked.wait(HUNG)
    for _ in range(4):  # a third of a lease each: longer than the lease
        assert renewed.acquire(timeout=HUNG), "the lease is kept while the past is read"
    slow.go.set()
    thread.join(HUNG)

    assert failed == [None]
    assert store.client.hget(store.keys.entries, "generation") == str(term.token)


def test_a_past_that_never_comes_ends_the_recovery(effects, store, term, monkeypatch):
    monkeypatch.setattr("fencebeat.recovery.READ_MOST", 0.5)
    slow = Slow(effects)

    error = ends(Recovery(store.client, store.keys, carrier="lock", effects=slow, renew=lambda _: True), term)

    slow.go.set()
    assert isinstance(error, PastUnread)
    assert "0.5 s" in error.what
    assert not store.client.exists(store.keys.entries)


def test_f18_a_recovery_from_a_frozen_ledger_ends_with_its_sentence_and_the_next_one_is_complete(
    freezer, effects, store, term
):
    recovery = Recovery(store.client, store.keys, carrier="lock", effects=effects, renew=lambda _: True)
    with freezer.frozen():
        assert says_so(ends(recovery, term))
        assert not store.client.exists(store.keys.entries, store.keys.last)

    until(lambda: ends(recovery, term) is None, at_most=HUNG, what="recovered")


def test_the_switches_of_a_frozen_ledger_are_not_waited_for_longer_than_their_answer_would_count(proxied, make_pool):
    proxy, url = proxied
    board = SwitchBoard(make_pool(url))
    proxy.silence("down", about="expire_switches")

    error = ends(board.flags)

    assert isinstance(error.__cause__, NoAnswer)
    assert error.__cause__.seconds == FRESH


# --- whole beats


def test_a_search_whose_server_freezes_under_it_ends_by_its_own_time_out(freezer, ledger_url, monkeypatch):
    monkeypatch.setattr(ledger_pool, "PATIENCE", 2 * HUNG)
    with open_pool(ledger_url, timeout=1.0) as pool, ExitStack() as freezing:
        target = PgvectorTarget(make_spec("pgvector"), pool, timeout=30)
        target.open(1, fresh=True)
        leg = target._word_leg

        def freezes(*asked):
            freezing.enter_context(freezer.frozen())
            return leg(*asked)

        def search():
            return target.search(text="a", vector=None, tenant_id="t", limit=1, filters={}, timeout=0.5)

        assert search().hits == []
        monkeypatch.setattr(target, "_word_leg", freezes)
        assert isinstance(ends(search), TargetUnavailable)
        freezing.close()
        monkeypatch.undo()
        assert search().hits == []


def test_f18_a_beat_stops_while_the_ledger_is_frozen_and_goes_on_by_itself_with_every_tick_once(
    freezer, ledger_url, redis_url, namespace, *, monkeypatch, caplog
):
    monkeypatch.setenv("FREEZABLE_LEDGER", ledger_url)
    with LocalBeats(redis_url, namespace, fencebeat_effect_store="tests.support.freezing:effect_store") as beats:
        with freezer.frozen():
            beat = beats.beat()
            until(lambda: beat.says("recovering", "the past is not known"), at_most=HUNG, what="it says why it waits")
            assert beats.client.llen(namespace) == 0
        term = beat.elected(HUNG)
        beats.more(2)

        with freezer.frozen():
            until(
                lambda: (copy := read_flags(beats.client, beats.keys)) and copy.age_seconds > FRESH,
                what="the switches are unknown",
            )
            until(lambda: "the flags cannot be renewed" in caplog.text, at_most=HUNG, what="it says so")
            queued = beats.client.llen(namespace)
            seconds, _ = beats.client.time()
            until(lambda: beats.client.time()[0] > seconds + 2, what="two ticks are due")
            assert beats.client.llen(namespace) == queued, "nothing is emitted under unknown switches"
            until(lambda: beat.says("recovering", "did not answer"), at_most=HUNG, what="it says what it waits for")
        beats.more(4, at_most=HUNG)

        assert beat.leading().token > term.token
        assert beats.tally().problems == []
