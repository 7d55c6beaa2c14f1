"""What every store of claims promises: the same suite on memory, Redis and Postgres."""

import os
import threading
from dataclasses import replace

import psycopg
import pytest
import time_machine

from fencebeat.claims import Claimed, ClaimState, Closed, Running
from fencebeat.claims.memory import MemoryClaims
from fencebeat.claims.postgres import PostgresClaims
from fencebeat.claims.redis import RedisClaims
from fencebeat.clock import ManualClock, SystemClock
from fencebeat.errors import NoTransaction, StoreUnreachable, UnusableRecord
from tests.support.claims import tick
from tests.support.waiting import until

LONG, SHORT = 60.0, 0.2


def taken_over(store, one, holder="second", lease=LONG):
    """The attempt that takes a claim over, once its lease is over."""

    def ask():
        answer = store.claim(one, holder, lease)
        return answer if isinstance(answer, Claimed) else None

    return until(ask, what="the lease ran out").attempt


class ClaimConformance:
    """Subclassed for each store; `store` is new and empty."""

    @pytest.fixture
    def store(self):
        raise NotImplementedError

    def test_a_tick_is_claimed_once_at_a_time(self, store):
        one = tick()

        assert store.claim(one, "first", LONG) == Claimed(1)

        answer = store.claim(one, "second", LONG)
        assert isinstance(answer, Running)
        assert LONG - 30 < answer.left <= LONG
        again = store.claim(one, "first", LONG)
        assert isinstance(again, Running), "not even by the same holder: it may be another copy of the message"

    def test_ticks_do_not_disturb_each_other(self, store):
        one, other = tick(), tick()
        store.claim(one, "first", LONG)

        assert store.claim(other, "first", LONG) == Claimed(1)
        assert store.close(other.task_id, 1, "succeeded")
        assert store.look([one.task_id])[one.task_id].outcome is None

    def test_f23_a_claim_whose_lease_is_over_is_taken_over_as_the_next_attempt(self, store):
        one = tick()
        store.claim(one, "first", SHORT)

        assert taken_over(store, one) == 2

        assert store.look([one.task_id])[one.task_id].holder == "second"

    def test_a_stale_attempt_can_change_nothing(self, store):
        one = tick()
        store.claim(one, "first", SHORT)
        taken_over(store, one)
        before = store.look([one.task_id])[one.task_id]

        assert store.extend(one.task_id, 1, 2 * LONG) is False
        assert store.release(one.task_id, 1) is False
        assert store.close(one.task_id, 1, "succeeded") is False

        after = store.look([one.task_id])[one.task_id]
        assert replace(after, left=before.left) == before
        assert after.left <= before.left
        assert store.close(one.task_id, 2, "failed") is True, "the newer attempt decides"
        assert store.claim(one, "third", LONG) == Closed("failed")

    def test_extending_holds_a_claim_beyond_its_lease(self, store):
        one, clock = tick(), SystemClock()
        store.claim(one, "first", SHORT)
        end = clock.elapsed() + 3 * SHORT

        while clock.elapsed() < end:
            assert store.extend(one.task_id, 1, LONG)
            assert isinstance(store.claim(one, "second", SHORT), Running)

    def test_a_lapsed_claim_that_nobody_took_may_go_on(self, store):
        one = tick()
        store.claim(one, "first", SHORT)
        until(lambda: not store.look([one.task_id])[one.task_id].running, what="the lease ran out")

        assert store.extend(one.task_id, 1, LONG) is True

        assert isinstance(store.claim(one, "second", LONG), Running)

    def test_a_released_claim_is_free_at_once(self, store):
        one = tick()
        store.claim(one, "first", LONG)

        assert store.release(one.task_id, 1) is True
        assert store.release(one.task_id, 1) is True, "a repeated call answers the same"

        assert store.claim(one, "second", LONG) == Claimed(2)

    def test_a_closed_tick_stays_closed(self, store):
        one = tick()
        store.claim(one, "first", SHORT)
        assert store.close(one.task_id, 1, "succeeded") is True

        assert store.close(one.task_id, 1, "failed") is True, "a repeated call answers the same"
        assert store.extend(one.task_id, 1, LONG) is False
        assert store.release(one.task_id, 1) is False

        until(lambda: store.look([one.task_id])[one.task_id].left == 0, what="the lease ran out")
        assert store.claim(one, "second", LONG) == Closed("succeeded")

    def test_nothing_is_extended_or_closed_that_was_never_claimed(self, store):
        one = tick()

        assert store.extend(one.task_id, 1, LONG) is False
        assert store.release(one.task_id, 1) is False
        assert store.close(one.task_id, 1, "succeeded") is False
        assert store.look([one.task_id]) == {}
        assert store.claim(one, "first", LONG) == Claimed(1)

    def test_looking_tells_the_attempt_its_holder_and_the_outcome(self, store):
        running, done, absent = tick(), tick(), tick()
        store.claim(running, "here:1", LONG)
        store.claim(done, "here:2", LONG)
        store.close(done.task_id, 1, "failed")

        seen = store.look([running.task_id, done.task_id, absent.task_id])

        assert set(seen) == {running.task_id, done.task_id}
        assert seen[running.task_id].running
        assert replace(seen[running.task_id], left=0.0) == ClaimState(1, "here:1", 0.0, None)
        assert not seen[done.task_id].running
        assert seen[done.task_id].outcome == "failed"

    def test_the_floor_is_the_highest_token_of_any_claim(self, store):
        assert store.floor() == 0
        store.claim(tick(token=40), "first", LONG)
        store.claim(tick(token=30), "first", LONG)
        assert store.floor() == 40

        again = tick(token=50)
        store.claim(again, "first", SHORT)
        taken_over(store, replace(again, token=2**53 - 1))

        assert store.floor() == 2**53 - 1, "emitted again by another term"

    def test_purging_keeps_what_is_open_and_the_newest_of_each_entry(self, store):
        ticks = [tick("a", token=9), tick("a"), tick("a"), tick("b")]
        still_open = tick("a")
        for one in ticks:
            store.claim(one, "first", LONG)
            store.close(one.task_id, 1, "succeeded")
        store.claim(still_open, "first", LONG)

        assert store.purge(3600.0) == 0, "nothing is that old"
        assert store.purge(-1.0) > 0, "a second from now, all of them are old"

        left = set(store.look([one.task_id for one in [*ticks, still_open]]))
        assert ticks[1].task_id not in left
        assert {ticks[2].task_id, ticks[3].task_id, still_open.task_id} <= left
        assert store.floor() == 9, "a purge does not lower the floor"
        assert store.claim(ticks[2], "second", LONG) == Closed("succeeded")

    def test_of_many_that_ask_at_once_one_gets_the_claim(self, store):
        one, answers, gate = tick(), [], threading.Barrier(8)

        def ask(number):
            gate.wait(10)
            answers.append(store.claim(one, f"holder-{number}", LONG))

        run_all(ask, 8)

        assert sorted(type(answer).__name__ for answer in answers) == ["Claimed"] + ["Running"] * 7

    def test_eight_holders_lose_no_update_of_an_unprotected_counter(self, store):
        one, counter, attempts, rounds = tick(), [0], [], 3

        def write(number):
            for _ in range(rounds):
                attempt = taken_over(store, one, f"holder-{number}")
                seen = counter[0]
                threading.Event().wait(0.002)  # long enough for every other one to come in between
                counter[0] = seen + 1
                attempts.append(attempt)
                assert store.release(one.task_id, attempt)

        run_all(write, 8)

        assert counter == [rounds * 8]
        assert attempts == list(range(1, rounds * 8 + 1)), "each takeover has a number of its own, in order"


def run_all(work, count):
    """Run work(0) ... work(count - 1) in threads; fails when one of them fails."""
    failures = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


class ServerConformance(ClaimConformance):
    """What stores on a server promise besides."""

    def test_the_clock_of_the_store_judges_the_lease(self, store):
        one, other = tick(), tick()
        store.claim(one, "first", LONG)

        with time_machine.travel(SystemClock().wall() + 86_400, tick=True):  # this host is a day ahead
            assert isinstance(store.claim(one, "second", LONG), Running)
            store.claim(other, "first", LONG)

        answer = store.claim(other, "second", LONG)
        assert isinstance(answer, Running)
        assert answer.left <= LONG, "a lease that a wrong clock has given is no longer than others"

    def test_a_fork_has_connections_of_its_own(self, store):
        before, in_child, after = tick(), tick(), tick()
        store.claim(before, "parent", LONG)

        child = os.fork()
        if child == 0:
            good = store.claim(in_child, "child", LONG) == Claimed(1) and isinstance(
                store.claim(before, "child", LONG), Running
            )
            os._exit(0 if good else 1)

        assert os.waitpid(child, 0)[1] == 0
        assert store.claim(after, "parent", LONG) == Claimed(1), "the child has not closed its parent's connection"
        assert store.look([in_child.task_id])[in_child.task_id].holder == "child"


class TestMemoryClaims(ClaimConformance):
    @pytest.fixture
    def store(self):
        return MemoryClaims()

    def test_the_injected_clock_judges_the_lease(self):
        clock = ManualClock()
        store, one = MemoryClaims(clock), tick()
        store.claim(one, "first", 10.0)
        clock.advance(9.0)
        assert store.claim(one, "second", 10.0) == Running(1.0)

        clock.advance(1.0)

        assert store.claim(one, "second", 10.0) == Claimed(2)


class TestRedisClaims(ServerConformance):
    @pytest.fixture
    def store(self, redis_url, namespace):
        store = RedisClaims(redis_url, namespace)
        yield store
        store.disconnect()

    def test_a_server_that_is_not_there_is_said_so(self):
        with pytest.raises(StoreUnreachable):
            RedisClaims("redis://127.0.0.1:1/0", timeout=0.5).claim(tick(), "first", LONG)

    def test_namespaces_are_apart(self, store, redis_url):
        other, one = RedisClaims(redis_url, "another"), tick(token=99)
        other.claim(one, "first", LONG)
        other.disconnect()

        assert store.look([one.task_id]) == {}
        assert store.floor() == 0

    @pytest.mark.parametrize("what", ["{ns}:claim:{id}", "{ns}:claims:floor"])
    def test_rubbish_in_a_record_is_named_and_left_alone(self, store, redis_client, namespace, what):
        one = tick()
        key = what.format(ns=namespace, id=one.task_id)
        redis_client.lpush(key, "rubbish")

        with pytest.raises(UnusableRecord, match=key):
            store.claim(one, "first", LONG)

        assert redis_client.lrange(key, 0, -1) == [b"rubbish"]
        assert len(redis_client.keys(f"{namespace}:*")) == 1

    def test_more_newest_claims_than_a_page_do_not_end_a_purge(self, store, monkeypatch):
        monkeypatch.setattr("fencebeat.claims.redis._PAGE", 2)
        ticks = [tick(f"entry-{number}") for number in range(5)] + [tick("last"), tick("last")]
        for one in ticks:
            store.claim(one, "first", LONG)
            store.close(one.task_id, 1, "succeeded")

        assert store.purge(-1.0) == 1

        assert ticks[5].task_id not in store.look([ticks[5].task_id])


@pytest.fixture
def installed(database_url):
    """URI of a database with the table."""
    store = PostgresClaims(database_url)
    store.install()
    store.install()  # again: what is there stays
    store.disconnect()
    return database_url


class TestPostgresClaims(ServerConformance):
    @pytest.fixture
    def store(self, installed):
        store = PostgresClaims(installed, "test")
        yield store
        store.disconnect()

    def test_a_server_that_is_not_there_is_said_so_without_its_password(self):
        store = PostgresClaims("postgresql://somebody:s3cret@127.0.0.1:1/db", timeout=0.5)
        with pytest.raises(StoreUnreachable) as failure:
            store.claim(tick(), "first", LONG)
        store.disconnect()
        assert "s3cret" not in str(failure.value)

    def test_a_forked_child_speaks_on_no_connection_of_its_parent(self, store):
        def backend():
            with store._connection() as connection:
                return connection.info.backend_pid

        ours = backend()

        child = os.fork()
        if child == 0:
            os._exit(0 if backend() != ours else 1)

        assert os.waitpid(child, 0)[1] == 0, "two processes on one socket would read each other's answers"
        assert backend() == ours

    def test_a_missing_table_is_said_so(self, database_url):
        store = PostgresClaims(database_url)
        with pytest.raises(StoreUnreachable, match="fencebeat claims install"):
            store.claim(tick(), "first", LONG)
        store.disconnect()

    def test_namespaces_are_apart(self, store, installed):
        other = PostgresClaims(installed, "another")
        for one in (tick(token=99), tick(token=98)):
            other.claim(one, "first", LONG)
            other.close(one.task_id, 1, "succeeded")
        other.disconnect()

        assert store.floor() == 0
        assert store.purge(0.0) == 0

    def test_a_row_that_somebody_closes_in_a_transaction_is_not_waited_for_long(self, store, installed):
        one = tick()
        store.claim(one, "first", 0.0)
        with psycopg.connect(installed) as connection:
            store.close_in(connection, one.task_id, 1, "succeeded")

            with pytest.raises(StoreUnreachable, match="lock"):
                store.claim(one, "second", LONG)

        assert store.claim(one, "second", LONG) == Closed("succeeded")

    def test_s27_effect_and_close_commit_together(self, store, installed):
        one = tick()
        store.claim(one, "first", LONG)

        with psycopg.connect(installed) as connection:
            connection.execute("CREATE TABLE effect (n int)")
            connection.execute("INSERT INTO effect VALUES (1)")
            assert store.close_in(connection, one.task_id, 1, "succeeded") is True
            assert store.look([one.task_id])[one.task_id].outcome is None, "not before the commit"

        assert store.look([one.task_id])[one.task_id].outcome == "succeeded"

    def test_s27_effect_and_close_roll_back_together(self, store, installed):
        one = tick()
        store.claim(one, "first", 0.0)

        with psycopg.connect(installed) as connection:
            assert store.close_in(connection, one.task_id, 1, "succeeded") is True
            connection.rollback()

        assert store.claim(one, "second", LONG) == Claimed(2)

    def test_s27_a_stale_attempt_is_refused_in_the_transaction_too(self, store, installed):
        one = tick()
        store.claim(one, "first", 0.0)
        store.claim(one, "second", LONG)

        with psycopg.connect(installed) as connection:
            assert store.close_in(connection, one.task_id, 1, "succeeded") is False

        assert store.look([one.task_id])[one.task_id].outcome is None

    def test_closing_in_no_transaction_is_refused(self, store, installed):
        one = tick()
        store.claim(one, "first", LONG)

        with psycopg.connect(installed, autocommit=True) as connection:
            with pytest.raises(NoTransaction):
                store.close_in(connection, one.task_id, 1, "succeeded")
            with connection.transaction():
                assert store.close_in(connection, one.task_id, 1, "succeeded") is True

    def test_a_tick_is_recorded_with_its_entry_its_fire_time_and_its_token(self, store, installed):
        one = tick("every minute", fire_time=1_767_225_600_123_456, token=2**53 - 1)
        store.claim(one, "host:7", LONG)

        with psycopg.connect(installed) as connection:
            row = connection.execute(
                "SELECT tick_id::text, entry, (extract(epoch FROM fire_time) * 1000000)::bigint,"
                " token, holder, namespace FROM tick_claim"
            ).fetchone()

        assert row == (one.task_id, "every minute", 1_767_225_600_123_456, 2**53 - 1, "host:7", "test")
