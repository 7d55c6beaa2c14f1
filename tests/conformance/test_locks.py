"""What every lock promises: one suite on memory, Redis (alone, Sentinel, TLS, least rights), three etcd members."""

import contextlib
import statistics
import threading
from dataclasses import replace
from queue import Empty

import pytest

from fencebeat.clock import SystemClock
from fencebeat.connection import Broker
from fencebeat.elector import Elector
from fencebeat.errors import Refused
from tests.support.locks import EtcdLease, MemoryLease, RedisLease, nonce
from tests.support.redis_servers import SCHEDULER_USER, EtcdMembers, Sentinel, TlsFront, Valkey, keeper
from tests.support.waiting import until

CLOCK = SystemClock()


def won(lock, name, floor=0):
    """The next term, whatever has to end first."""

    def ask():
        term = lock.acquire(name, floor)
        if term is None:
            lock.wait(0.05)
        return term

    return until(ask, what="winning a term")


class LockConformance:
    """Subclassed for each store; `store` makes locks of several candidates and can lose its data."""

    handover = 0.1  # seconds, the median of graceful takeovers
    patience = 0.05  # seconds in which a candidate that nobody hinders is elected

    @pytest.fixture
    def store(self):
        raise NotImplementedError

    def test_one_term_at_a_time(self, store):
        first, second = store.lock("first"), store.lock("second")

        term = first.acquire(nonce())

        assert term.holder == "first"
        assert term.lease == store.timing.lease
        assert second.acquire(nonce()) is None
        assert first.acquire(nonce()) is None, "not even to the same candidate under another nonce"
        assert second.holder() == first.holder() == term

    def test_nobody_holds_a_new_lease(self, store):
        assert store.lock("first").holder() is None

    def test_a_term_that_ran_out_cannot_be_renewed(self, store):
        first, second = store.lock("first"), store.lock("second")
        old = first.acquire(nonce())

        new = won(second, nonce())

        assert first.renew(old) is False
        assert second.holder() == new

    def test_a_term_that_ran_out_cannot_be_renewed_although_nobody_took_over(self, store):
        lock = store.lock("first")
        old = lock.acquire(nonce())

        until(lambda: lock.holder() is None, what="the lease ran out")

        assert lock.renew(old) is False
        assert lock.holder() is None

    def test_renewing_keeps_a_term_beyond_its_lease(self, store):
        first, second = store.lock("first"), store.lock("second")
        term = first.acquire(nonce())
        end = CLOCK.elapsed() + 2 * store.timing.lease

        while CLOCK.elapsed() < end:
            assert first.renew(term)
            assert second.acquire(nonce()) is None

    def test_only_the_exact_term_is_renewed_or_resigned(self, store):
        lock = store.lock("first")
        term = lock.acquire(nonce())

        for other in (replace(term, token=term.token - 1), replace(term, nonce=nonce())):
            assert lock.renew(other) is False
            assert lock.resign(other) is False

        assert lock.holder() == term

    def test_resigning_an_old_term_leaves_the_new_term_alone(self, store):
        first, second = store.lock("first"), store.lock("second")
        old = first.acquire(nonce())
        assert first.resign(old) is True
        new = second.acquire(nonce())

        assert first.resign(old) is False

        assert second.holder() == new
        assert second.renew(new) is True

    def test_tokens_grow_across_resignation_expiry_and_loss_of_data(self, store):
        lock, other = store.lock("first"), store.lock("second")
        terms = [lock.acquire(nonce())]

        lock.resign(terms[-1])
        terms.append(lock.acquire(nonce()))
        terms.append(won(other, nonce()))
        store.lose_data()
        terms.append(won(lock, nonce(), floor=terms[-1].token + 5_000_000))

        tokens = [term.token for term in terms]
        assert tokens == sorted(set(tokens))
        assert tokens[-1] > tokens[-2] + 5_000_000, "the floor is what survives a loss"
        assert all(token < 2**53 for token in tokens)

    def test_a_floor_that_no_clock_can_explain_is_refused(self, store):
        lock = store.lock("first")
        future = int((CLOCK.wall() + 2 * 86_400) * 1e6)

        with pytest.raises(Refused, match="more than a day ahead"):
            lock.acquire(nonce(), floor=future)

    def test_the_own_nonce_again_answers_the_same_term_and_extends_the_lease(self, store):
        first, second = store.lock("first"), store.lock("second")
        name = nonce()
        term = first.acquire(name)
        end = CLOCK.elapsed() + 2 * store.timing.lease

        while CLOCK.elapsed() < end:
            assert first.acquire(name) == term
            assert second.acquire(nonce()) is None

    def test_a_release_wakes_those_who_wait(self, store):
        taken = []
        for _ in range(5):
            first, second = store.lock("first"), store.lock("second")
            term = won(first, nonce())
            waiting, done = threading.Event(), []

            def wait(second=second, waiting=waiting, done=done):
                assert second.acquire(nonce()) is None
                waiting.set()
                second.wait(1.0)
                done.append((second.acquire(nonce()), CLOCK.elapsed()))

            thread = threading.Thread(target=wait)
            thread.start()
            assert waiting.wait(5)
            released = CLOCK.elapsed()
            assert first.resign(term)
            thread.join(10)
            [(new, at)] = done
            taken.append(at - released)
            second.resign(new)

        assert statistics.median(taken) < self.handover, "a graceful takeover"

    def test_waiting_ends_in_time_when_nobody_resigns(self, store):
        first, second = store.lock("first"), store.lock("second")
        first.acquire(nonce())
        second.acquire(nonce())
        began = CLOCK.elapsed()

        second.wait(30.0)

        assert CLOCK.elapsed() - began < 1.5, "a standby looks at its own orders once a second"

    def test_eight_writers_lose_no_update_of_an_unprotected_counter(self, store):
        counter, rounds, writers = [0], 3, 8
        failures = []

        def write(number):
            lock = store.lock(f"writer-{number}")
            try:
                for _ in range(rounds):
                    term = won(lock, nonce())
                    seen = counter[0]
                    threading.Event().wait(0.002)  # long enough for every other writer to come in between
                    counter[0] = seen + 1
                    assert lock.resign(term)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert failures == []
        assert counter == [rounds * writers]

    def test_ten_candidates_that_start_and_stop_fifty_times_leave_the_lease_free(self, store):
        rounds, candidates = 5, 10
        failures, tokens = [], []

        def come_and_go(number):
            try:
                for _ in range(rounds):
                    elector = Elector(store.lock(f"host-{number}"), store.timing, clock=CLOCK)
                    elector.signals.elected.listen()
                    elector.start()
                    elector.progress()
                    with contextlib.suppress(Empty):
                        tokens.append(elector.signals.elected.wait(self.patience).token)
                    elector.stop()
                    elector.stop()
                    assert elector.state.state == "stopped"
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(candidates)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)

        assert failures == []
        assert len(tokens) >= 5, "some of them led"
        assert len(tokens) == len(set(tokens)), "no token twice"
        assert store.lock("anybody").holder() is None

    def test_a_term_that_somebody_else_resigned_is_over_and_its_holder_stands_by(self, store):
        elector = Elector(store.lock("first"), store.timing, clock=CLOCK)
        elector.signals.elected.listen()
        elector.signals.lost.listen()
        elector.start()
        elector.progress()
        term = elector.signals.elected.wait(10)
        other = store.lock("another host")
        seen = other.holder()
        assert (seen.token, seen.nonce) == (term.token, term.nonce), "all that it takes to resign it from elsewhere"

        assert other.resign(seen) is True
        new = other.acquire(nonce())
        lost = elector.signals.lost.wait(10)

        assert (lost.term, lost.reason) == (term, "refused")
        until(lambda: elector.state.reason == "another_leads" or elector.progress(), what="a standby like any other")
        assert other.renew(new) is True, "it has not touched the new term"
        elector.stop()

    def test_closing_twice_is_no_error(self, store):
        lock = store.lock("first")
        lock.acquire(nonce())

        lock.close()
        lock.close()


class TestMemoryLock(LockConformance):
    @pytest.fixture
    def store(self):
        return MemoryLease()


class TestRedisLock(LockConformance):
    @pytest.fixture
    def store(self, redis_url, namespace):
        store = RedisLease(redis_url, namespace)
        yield store
        store.close()


@pytest.fixture(scope="session")
def lock_servers(tmp_path_factory):
    with keeper(tmp_path_factory.mktemp("locks")) as made:
        yield made


@pytest.fixture(scope="session")
def own_valkey(lock_servers, tmp_path_factory):
    return Valkey(lock_servers, tmp_path_factory.mktemp("locks-valkey"))


@pytest.fixture(scope="session")
def sentinel(lock_servers, own_valkey, tmp_path_factory):
    return Sentinel(lock_servers, tmp_path_factory.mktemp("sentinel"), own_valkey)


@pytest.fixture(scope="session")
def front(own_valkey, tmp_path_factory):
    with TlsFront(tmp_path_factory.mktemp("tls"), own_valkey.port) as made:
        yield made


@pytest.fixture(scope="session")
def members(lock_servers, tmp_path_factory):
    return EtcdMembers(lock_servers, tmp_path_factory.mktemp("etcd-members"))


class TestRedisLockUnderSentinel(LockConformance):
    @pytest.fixture
    def store(self, own_valkey, sentinel, namespace):
        broker = Broker(sentinel.url, {"master_name": "primary"})
        store = RedisLease(own_valkey.url, namespace, broker=broker)
        yield store
        store.close()


class TestRedisLockOverTls(LockConformance):
    handover, patience = 0.5, 0.5  # the TLS front is a part of this process and shares its interpreter lock

    @pytest.fixture
    def store(self, front, own_valkey, namespace):
        store = RedisLease(front.url, namespace, admin=own_valkey.url)
        yield store
        store.close()


class TestRedisLockWithTheLeastRights(LockConformance):
    @pytest.fixture
    def store(self, own_valkey, namespace):
        rights = SCHEDULER_USER.replace("fencebeat", namespace).split()
        own_valkey.tell("ACL", "SETUSER", namespace, *rights)
        url = own_valkey.url.replace("redis://", f"redis://{namespace}:secret@")
        store = RedisLease(url, namespace, admin=own_valkey.url)
        yield store
        store.close()


class TestEtcdLock(LockConformance):
    patience = 0.5  # three members agree on each step

    @pytest.fixture
    def store(self, members, redis_url, namespace):
        store = EtcdLease(members.url, redis_url, namespace)
        yield store
        store.close()
