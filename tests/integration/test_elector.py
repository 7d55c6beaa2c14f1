"""Several electors at real servers: takeover, refusal, loss of data, start-up checks."""

import statistics

import pytest

from fencebeat import recovery
from fencebeat.clock import SystemClock
from fencebeat.errors import StoreUnreachable
from tests.support import ports
from tests.support.electors import Candidate
from tests.support.locks import EtcdLease, RedisLease, audit, nonce
from tests.support.waiting import until

CLOCK = SystemClock()


class Cluster:
    """Candidates at one store."""

    def __init__(self, store):
        self.store = store
        self.candidates = []

    def candidate(self, name, **options):
        candidate = Candidate(self.store.lock(name), self.store.timing, **options)
        self.candidates.append(candidate)
        return candidate

    def leaders(self):
        return [candidate for candidate in self.candidates if candidate.elector.leading()]

    def close(self):
        for candidate in self.candidates:
            candidate.stop()
        self.store.close()


@pytest.fixture
def redis_cluster(redis_url, namespace):
    cluster = Cluster(RedisLease(redis_url, namespace))
    yield cluster
    cluster.close()


@pytest.fixture
def etcd_cluster(etcd_url, redis_url, namespace):
    cluster = Cluster(EtcdLease(etcd_url, redis_url, namespace))
    yield cluster
    cluster.close()


@pytest.fixture(params=["redis", "etcd"])
def cluster(request):
    return request.getfixturevalue(f"{request.param}_cluster")


def test_s3_a_former_holder_extends_nothing_of_the_new_one(redis_cluster):
    store = redis_cluster.store
    first = redis_cluster.candidate("first").start()
    old = first.elected()
    second = store.lock("second")
    store.client.delete(store.keys.lock)
    new = second.acquire(nonce())
    store.client.pexpire(store.keys.lock, 60_000)  # so that a change would show
    before = store.client.hgetall(store.keys.term)

    assert first.lock.renew(old) is False
    assert first.signals.refused.wait().term == old

    assert first.signals.lost.wait().reason == "refused"
    assert store.client.hgetall(store.keys.term) == before
    assert second.holder() == new
    assert first.elector.leading() is None


def test_s5_after_every_loss_somebody_leads_within_the_bound_and_nobody_ends(redis_cluster):
    store = redis_cluster.store
    candidates = [redis_cluster.candidate(f"host-{number}").start() for number in range(3)]
    tokens = []
    for _ in range(6):
        [leader] = until(lambda: redis_cluster.leaders() or None)
        tokens.append(leader.elector.leading().token)
        store.client.delete(store.keys.lock)
        leader.signals.lost.wait()
        lost_at = CLOCK.elapsed()
        until(lambda: (now := redis_cluster.leaders()) and now[0].elector.leading().token > tokens[-1])
        assert CLOCK.elapsed() - lost_at <= store.timing.lease + 0.5

    assert tokens == sorted(set(tokens))
    assert len(redis_cluster.leaders()) == 1
    assert all(candidate.elector._thread.is_alive() for candidate in candidates)


def test_a_graceful_stop_hands_over_within_100_ms_at_the_median(cluster):
    taken = []
    current = cluster.candidate("host-0").start()
    current.elected()
    for number in range(1, 8):
        following = cluster.candidate(f"host-{number}").start()
        until(lambda following=following: following.elector.state.reason == "another_leads")
        began = CLOCK.elapsed()
        current.elector.stop()
        following.elected()
        taken.append(CLOCK.elapsed() - began)
        current = following

    assert statistics.median(taken) <= 0.1, taken


def test_a_leader_that_vanishes_is_followed_within_the_bound(redis_cluster):
    first = redis_cluster.candidate("first").start()
    second = redis_cluster.candidate("second")
    term = first.elected()
    second.start()
    until(lambda: second.elector.state.reason == "another_leads")

    first.elector._lock.renew = first.elector._lock.resign = lambda *_, **__: (_ for _ in ()).throw(OSError("gone"))
    first.signals.lost.wait()
    ended = CLOCK.elapsed()  # a margin before the lease ends

    assert second.elected().token > term.token
    assert CLOCK.elapsed() - ended <= redis_cluster.store.timing.margin + 0.5
    first.elector._lock.resign = lambda *_, **__: False


def test_ten_candidates_have_one_leader(cluster):
    for number in range(10):
        cluster.candidate(f"host-{number}").start()

    until(cluster.leaders)
    until(lambda: sum(c.elector.state.reason == "another_leads" for c in cluster.candidates) == 9)

    assert len(cluster.leaders()) == 1


def test_after_a_flush_the_term_is_refused_and_the_store_is_recovered_under_a_higher_one(redis_cluster):
    store = redis_cluster.store
    prepare = recovery.Recovery(store.broker.client(1.0), store.keys, carrier="lock")
    one = redis_cluster.candidate("first", prepare=prepare).start()
    term = one.elected()
    assert store.client.hexists(store.keys.entries, "generation")

    store.client.flushdb()

    assert one.signals.lost.wait().reason == "refused"
    assert one.elected().token > term.token
    assert store.client.hexists(store.keys.last, "generation")
    assert "gap" in [record["outcome"] for record in audit(store.client, store.keys.audit)], "this process knew a past"
    prepare._client.close()


def test_etcd_restored_from_a_backup_issues_no_token_twice(etcd_cluster):
    store = etcd_cluster.store
    lock = store.lock("first")
    old = lock.acquire(nonce())
    lock.resign(old)
    store.client.hset(store.keys.term, "token", old.token + 1_000)  # what later terms sealed, unknown to this etcd

    assert lock.acquire(nonce()) is None, "refused by the broker's number: make way, with the base raised"
    new = lock.acquire(nonce())

    assert new.token > old.token + 1_000
    assert store.client.hget(store.keys.term, "nonce") == new.nonce


def test_etcd_campaigns_again_above_a_floor_it_did_not_know(etcd_cluster):
    store = etcd_cluster.store
    lock = store.lock("first")
    old = lock.acquire(nonce())
    lock.resign(old)
    floor = old.token + 1_000_000

    assert lock.acquire(nonce(), floor=floor) is None
    assert lock.acquire(nonce(), floor=floor).token > floor


def test_an_equal_token_under_another_nonce_is_not_sealed(etcd_cluster):
    store = etcd_cluster.store
    lock = store.lock("first")
    term = lock.acquire(nonce())
    store.client.hset(store.keys.term, "nonce", "of-another-history")

    assert lock._seal(term, 0) == term.token
    assert store.client.hget(store.keys.term, "nonce") == "of-another-history"


def test_an_etcd_that_is_gone_is_an_unknown_outcome(redis_url, namespace):
    with ports.unused() as port:
        store = EtcdLease(f"http://127.0.0.1:{port}", redis_url, namespace)
        with pytest.raises(StoreUnreachable) as failure:
            store.lock("first").acquire(nonce())
        store.close()

    assert str(failure.value).startswith("etcd did not answer")
    assert f"127.0.0.1:{port}" in str(failure.value)
