"""The kill switch: what the ledger refuses, what a worker reads, and what is recorded."""

import threading
from datetime import timedelta

import psycopg
import pytest

from control.acknowledge import Reporter, reports, wait_until_acknowledged
from control.effects import LedgerEffects
from control.switches import SwitchBoard, SwitchReader, UnknownScope
from fencebeat.clock import ManualClock, SystemClock
from fencebeat.connection import Broker
from fencebeat.effects import AuditRecord
from fencebeat.errors import Refused
from fencebeat.failpoints import arm
from fencebeat.flags import FlagKeeper
from tests.support.ledgers import claim, commit, execute, ledger_at, mark

WHO = {"author": "night shift", "origin": "host-1"}


@pytest.fixture
def ledger(database_url):
    with ledger_at(database_url) as made:
        yield made


@pytest.fixture
def board(ledger):
    return SwitchBoard(ledger.pool)


@pytest.fixture
def redis_keys(redis_url, namespace):
    broker = Broker(redis_url)
    client = broker.client(2.0)
    yield client, broker.keys(namespace)
    client.close()


@pytest.fixture
def armed(monkeypatch):
    """Arms failpoints for this test."""
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    yield arm
    arm("")


def stop(board, scope="all", level="write", **more):
    return board.on(scope, level, reason="bad parser", **WHO, **more)


def test_a_stopped_attempt_cannot_stage_or_commit_and_its_claim_goes_back(ledger, board):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    stop(board)
    assert ledger.stage(attempt, ["x"]) == "stopped"
    assert commit(ledger, attempt, ["x"]) == "stopped"
    assert ledger.dead_letter(attempt, version="v1", reason="r", fingerprint="f") == "stopped"
    assert ledger.hand_back(attempt) == "handed_back"
    assert claim(ledger) == []


def test_an_attempt_from_before_a_stop_cannot_commit_after_it_was_lifted(ledger, board):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    stop(board)
    board.off("all", reason="parser mended", **WHO)
    assert commit(ledger, attempt, ["x"]) == "stopped"
    ledger.hand_back(attempt)
    assert commit(ledger, claim(ledger)[0], ["x"]) == "committed"


@pytest.mark.parametrize("scope", ["tenant:acme", "source:acme/docs", "target:t1", "all"])
def test_each_scope_of_a_document_stops_it(ledger, board, scope):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    stop(board, scope)
    assert commit(ledger, attempt, ["x"]) == "stopped"


def test_other_scopes_go_on(ledger, board):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    for scope in ("tenant:other", "source:acme/other", "target:t2", "queue:q", "entry:e"):
        stop(board, scope)
    assert commit(ledger, attempt, ["x"]) == "committed"


def test_level_start_stops_new_claims(ledger, board):
    mark(ledger, "a")
    stop(board, level="start")
    assert claim(ledger) == []


def test_a_claim_that_waits_for_the_switch_gets_nothing(ledger, board, database_url):
    mark(ledger, "a")
    got = []
    with psycopg.connect(database_url) as switching:
        switching.execute("SELECT apply_switch('all', 'write', 'r', 'a', 'o')")  # not committed yet
        waiter = threading.Thread(target=lambda: got.append(claim(ledger)))
        waiter.start()
        wait_for_a_blocked_session(database_url)
        switching.commit()
    waiter.join(10)
    assert got == [[]]


def test_a_commit_that_waits_for_the_switch_is_refused(ledger, database_url):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    got = []
    with psycopg.connect(database_url) as switching:
        switching.execute("SELECT apply_switch('tenant:acme', 'write', 'r', 'a', 'o')")
        waiter = threading.Thread(target=lambda: got.append(commit(ledger, attempt, ["x"])))
        waiter.start()
        wait_for_a_blocked_session(database_url)
        switching.commit()
    waiter.join(10)
    assert got == ["stopped"]


def wait_for_a_blocked_session(url):
    """Until some session waits for a lock: asked of the server, without sleeping."""
    clock = SystemClock()
    end = clock.elapsed() + 10
    with psycopg.connect(url, autocommit=True) as conn:
        while clock.elapsed() < end:
            (waiting,) = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchone()
            if waiting:
                return
    pytest.fail("no session waited for the switch: nothing was proved")


def test_the_audit_shows_every_change(ledger, board):
    stop(board)
    board.off("all", reason="mended", **WHO)
    newest, older = board.audit()
    assert (older["scope"], older["before"], older["after"], older["reason"]) == ("all", "run", "write", "bad parser")
    assert (newest["before"], newest["after"], newest["author"], newest["origin"]) == (
        "write",
        "run",
        "night shift",
        "host-1",
    )
    assert newest["change"] == older["change"] + 1


def test_an_expired_stop_gives_way_to_the_one_before_and_is_recorded(ledger, board):
    stop(board, level="emit")
    stop(board, lasts=timedelta(hours=2))
    execute(ledger, "UPDATE control SET until = clock_timestamp() - interval '1 second' WHERE scope = 'all'")
    (now,) = board.status()
    assert now.level == "emit"  # by the server's clock, before anybody recorded it
    _, flags = board.flags()
    assert flags["all"].level == "emit"
    newest = board.audit()[0]
    assert (newest["before"], newest["after"], newest["author"]) == ("write", "emit", "expiry")


def test_a_stop_that_holds_again_by_the_clock_alone_refuses_a_commit(ledger, board):
    """Nobody has recorded the expiry yet, so no change number tells of it: the level itself must be asked."""
    stop(board)
    stop(board, level="emit", lasts=timedelta(hours=1))
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    execute(ledger, "UPDATE control SET until = clock_timestamp() - interval '1 second' WHERE scope = 'all'")
    assert ledger.stage(attempt, ["x"]) == "stopped"
    assert commit(ledger, attempt, ["x"]) == "stopped"


def test_a_wider_stop_stays_when_a_narrower_one_ends(ledger, board):
    stop(board, "all")
    stop(board, "tenant:acme")
    board.off("tenant:acme", reason="done", **WHO)
    mark(ledger, "a")
    assert claim(ledger) == []


def test_bad_scopes_levels_and_empty_reasons_are_refused(board):
    with pytest.raises(UnknownScope):
        stop(board, "tenant")
    with pytest.raises(Refused, match="level"):
        stop(board, level="everything")
    with pytest.raises(Refused, match="reason"):
        board.on("all", "write", reason=" ", **WHO)
    assert board.audit() == []


def test_a_switch_that_failed_before_its_commit_changed_nothing(ledger, board, armed):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    before = board.generation()
    armed("switch.apply.before=raise:ConnectionError")
    with pytest.raises(ConnectionError):
        stop(board)
    assert (board.status(), board.audit(), board.generation()) == ([], [], before)
    assert commit(ledger, attempt, ["x"]) == "committed"


def test_a_switch_whose_answer_was_lost_is_in_force_and_audited(ledger, board, armed):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    armed("switch.apply.after=raise:ConnectionError@1")
    with pytest.raises(ConnectionError):
        stop(board)
    (switch,) = board.status()
    assert (switch.scope, switch.level) == ("all", "write")
    assert commit(ledger, attempt, ["x"]) == "stopped"
    stop(board)  # whoever saw the error tries again
    assert [switch.scope for switch in board.status()] == ["all"]
    assert [(change["before"], change["after"]) for change in board.audit()] == [("write", "write"), ("run", "write")]


class TestReading:
    """What a worker believes, and for how long."""

    @pytest.fixture
    def clock(self):
        return ManualClock()

    @pytest.fixture
    def keeper(self, ledger, redis_keys):
        client, keys = redis_keys
        client.hset(keys.flags, mapping={"generation": 0, "renewed": 0})  # as a new leader leaves it
        return FlagKeeper(LedgerEffects(ledger.pool, keys.namespace), client, keys)

    def reader(self, board, redis_keys, clock, **more):
        return SwitchReader(board, *redis_keys, clock, **more)

    def test_a_fresh_copy_is_believed(self, board, redis_keys, clock, keeper):
        stop(board, "tenant:acme")
        keeper.seed()
        reader = self.reader(board, redis_keys, clock)
        assert not reader.permits("write", ("all", "tenant:acme"))
        assert reader.permits("write", ("all", "tenant:other"))
        assert reader.known().origin == "redis"

    def test_levels_include_those_before(self, board, redis_keys, clock, keeper):
        stop(board, level="start")
        keeper.seed()
        reader = self.reader(board, redis_keys, clock)
        assert not reader.permits("emit", ("all",))
        assert not reader.permits("start", ("all",))
        assert reader.permits("write", ("all",))

    def test_absence_and_rubbish_are_unknown_and_postgres_is_asked(self, board, redis_keys, clock):
        client, keys = redis_keys
        stop(board)
        for record in ({}, {"generation": "soon", "renewed": 0}, {"all": "rubbish", "generation": 9, "renewed": 9}):
            client.delete(keys.flags)
            if record:
                client.hset(keys.flags, mapping=record)
            reader = self.reader(board, redis_keys, clock)
            assert not reader.permits("write", ("all",))
            assert reader.known().origin == "postgres"

    @pytest.mark.parametrize("edge", ["switch.read.before", "switch.read.after"])
    def test_a_read_that_fails_permits_nothing_and_keeps_nothing(
        self, board, redis_keys, clock, keeper, *, armed, edge
    ):
        keeper.seed()
        reader = self.reader(board, redis_keys, clock)
        assert reader.permits("write", ("all",))
        clock.advance(0.3)  # the answer may not be used again
        stop(board)
        keeper.seed()
        armed(f"{edge}=raise:ConnectionError@1")
        with pytest.raises(ConnectionError):
            reader.permits("write", ("all",))
        assert not reader.permits("write", ("all",))

    def test_an_old_copy_is_not_believed(self, board, redis_keys, clock, keeper):
        client, keys = redis_keys
        keeper.seed()
        client.hset(keys.flags, "renewed", int(client.hget(keys.flags, "renewed")) - 3_000_000)
        stop(board)
        assert not self.reader(board, redis_keys, clock).permits("write", ("all",))

    def test_with_neither_store_the_last_answer_counts_two_seconds_and_then_nothing_is_written(
        self, ledger, board, redis_keys, clock
    ):
        reader = self.reader(board, redis_keys, clock)
        assert reader.permits("write", ("all",))
        redis_keys[0].connection_pool.disconnect()
        dead = Broker("redis://127.0.0.1:1/0").client(0.2)
        reader._client = dead
        ledger.pool.close()
        clock.advance(1.5)
        assert reader.permits("write", ("all",))
        clock.advance(0.6)
        assert not reader.permits("write", ("all",))

    def test_a_deployment_may_start_stopped(self, board, redis_keys, clock):
        reader = self.reader(board, redis_keys, clock, always="write")
        assert not reader.permits("write", ("all",))
        assert not reader.permits("start", ("tenant:any",))

    def test_workers_acknowledge_a_change_and_a_silent_one_is_named(self, board, redis_keys, clock, keeper):
        client, keys = redis_keys
        reporter = Reporter("worker-1", self.reader(board, redis_keys, SystemClock()), client, keys)
        reporter.start()
        client.hset(f"{keys.namespace}:workers", "worker-2", f'{{"generation": 0, "at": {client.time()[0]}}}')
        change = stop(board).change
        keeper.seed()
        try:
            said = wait_until_acknowledged(
                client, keys, change, clock=SystemClock(), pause=threading.Event().wait, at_most=2.0
            )
        finally:
            reporter.stop()
        assert said.workers == ("worker-1",)
        assert said.silent == ("worker-2",)
        assert [report.worker for report in reports(client, keys)] == ["worker-2"]


def test_the_copied_audit_raises_marks_and_the_floor_and_takes_a_record_once(ledger):
    effects = LedgerEffects(ledger.pool, "any")
    assert effects.floor() == 0
    records = [
        AuditRecord("1-0", {"outcome": "elected", "token": "17"}),
        AuditRecord("2-0", {"outcome": "emitted", "entry": "e", "fire_time": "1700000000000000", "token": "17"}),
        AuditRecord("3-0", {"outcome": "emitted", "entry": "e", "fire_time": "1600000000000000", "token": "16"}),
    ]
    effects.copy_audit(records)
    effects.copy_audit(records)
    assert effects.floor() == 17
    assert execute(ledger, "SELECT entry, extract(epoch FROM fire_time)::bigint FROM tick_mark") == [("e", 1700000000)]
    assert execute(ledger, "SELECT count(*) FROM tick_audit") == [(3,)]
