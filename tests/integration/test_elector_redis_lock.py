"""What the Redis lock does beyond the contract of every lock: its records, its scripts, its manners to others."""

import json
import subprocess
import sys

import pytest
import redis_lock

from fencebeat.clock import SystemClock
from fencebeat.errors import StoreUnreachable, UnusableRecord
from fencebeat.locks.redis import SIGNAL_MS, STANDBYS
from tests.support import ports
from tests.support.locks import RedisLease, audit, nonce


@pytest.fixture
def unused_port():
    with ports.unused() as port:
        yield port


@pytest.fixture
def silent_port():
    with ports.silent() as port:
        yield port


def test_the_fence_is_sealed_and_recorded_in_the_step_that_takes_the_lock(store):
    lock = store.lock("host-1")

    term = lock.acquire(name := nonce())

    sealed = store.client.hgetall(store.keys.term)
    assert sealed.pop("since").isdigit()
    assert sealed == {"token": str(term.token), "nonce": name, "holder": "host-1", "lease": "5000"}
    assert store.client.get(f"lock:{store.namespace}:leader") == name
    assert 4000 < store.client.pttl(store.keys.lock) <= 5000
    [record] = audit(store.client, store.keys.audit)
    assert record == {"outcome": "elected", "token": str(term.token), "nonce": name, "holder": "host-1"}


def test_a_token_is_the_servers_microseconds_unless_more_is_known(store):
    lock = store.lock("host-1")
    seconds, _ = store.client.time()

    by_time = lock.acquire(nonce())
    lock.resign(by_time)
    store.client.hset(store.keys.term, "token", by_time.token + 10**9)
    by_record = lock.acquire(nonce())
    lock.resign(by_record)
    by_floor = lock.acquire(nonce(), floor=by_record.token + 10**9)

    assert by_time.token // 1_000_000 - seconds in (0, 1)
    assert by_record.token == by_time.token + 10**9 + 1
    assert by_floor.token == by_record.token + 10**9 + 1


def test_a_lock_without_its_term_is_sealed_anew_by_its_holder(store):
    lock = store.lock("host-1")
    old = lock.acquire(name := nonce())
    store.client.delete(store.keys.term)

    assert lock.renew(old) is False
    new = lock.acquire(name)

    assert new.token > old.token
    assert lock.renew(new) is True


@pytest.mark.parametrize("left_ms", [7_200_000, None])
def test_a_lock_that_a_set_back_clock_left_too_long_is_shortened_to_one_lease(store, left_ms):
    dead, standby = store.lock("dead"), store.lock("standby")
    dead.acquire(nonce())
    if left_ms is None:
        store.client.persist(store.keys.lock)
    else:
        store.client.pexpire(store.keys.lock, left_ms)

    assert standby.acquire(nonce()) is None

    shortened = store.client.pttl(store.keys.lock)
    assert 4000 < shortened <= 5000
    store.client.pexpire(store.keys.lock, 3000)
    standby.acquire(nonce())
    assert store.client.pttl(store.keys.lock) <= 3000, "looking again does not lengthen it"


def test_the_holders_lease_counts_and_not_that_of_the_standby(store):
    store.lock("dead").acquire(nonce())
    store.client.pexpire(store.keys.lock, 60_000)
    store.client.hset(store.keys.term, "lease", "20000")

    store.lock("standby").acquire(nonce())

    assert 19_000 < store.client.pttl(store.keys.lock) <= 20_000


def test_one_release_leaves_a_signal_for_every_standby_and_the_next_term_removes_them(store):
    lock = store.lock("host-1")

    lock.resign(lock.acquire(nonce()))

    assert store.client.llen(store.keys.signal) == STANDBYS
    assert 0 < store.client.pttl(store.keys.signal) <= SIGNAL_MS
    lock.acquire(nonce())
    assert store.client.exists(store.keys.signal) == 0


def test_a_quiet_resignation_wakes_nobody(store):
    lock = store.lock("host-1")

    assert lock.resign(lock.acquire(nonce()), wake=False)

    assert store.client.exists(store.keys.signal) == 0
    assert [record["outcome"] for record in audit(store.client, store.keys.audit)] == ["elected", "resigned"]


def test_another_programs_reset_of_all_locks_costs_the_term_and_nothing_else(store):
    lock = store.lock("host-1")
    old = lock.acquire(nonce())

    redis_lock.reset_all(store.client)

    assert lock.renew(old) is False
    new = lock.acquire(nonce())
    assert new.token > old.token


def test_a_lock_that_another_program_took_meanwhile_is_neither_extended_nor_freed(store):
    lock = store.lock("host-1")
    old = lock.acquire(nonce())
    redis_lock.reset_all(store.client)
    plain = redis_lock.Lock(store.client, f"{store.namespace}:leader", expire=60)
    assert plain.acquire(blocking=False)  # the term still names us, the lock does not

    assert lock.renew(old) is False
    assert lock.resign(old) is False

    assert plain.locked()
    assert store.client.pttl(store.keys.lock) > 50_000
    assert lock.holder() is None


def test_a_plain_lock_of_the_same_name_waits_for_ours(store):
    lock = store.lock("host-1")
    term = lock.acquire(nonce())
    plain = redis_lock.Lock(store.client, f"{store.namespace}:leader", expire=5)

    assert plain.acquire(blocking=False) is False
    lock.resign(term)

    assert plain.acquire(blocking=False) is True
    assert lock.acquire(nonce()) is None
    plain.release()


def test_plain_locks_of_the_process_still_work_beside_ours(redis_url):
    program = f"""
import redis, redis_lock
from fencebeat.connection import Broker
from fencebeat.lease import LeaseTiming
from fencebeat.locks.redis import RedisLock
RedisLock.of(Broker({redis_url!r}), "ns", LeaseTiming.of(), "h").acquire("n")
plain = redis_lock.Lock(redis.Redis.from_url({redis_url!r}), "other", expire=5)
print(plain.acquire(), plain.extend(), plain.release())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.returncode) == ("True None None\n", 0), done.stderr


@pytest.mark.parametrize("way", ["release", "extend", "reset", "__enter__"])
def test_nothing_frees_or_extends_the_lease_without_naming_a_term(store, way):
    lock = store.lock("host-1")
    term = lock.acquire(nonce())

    with pytest.raises(TypeError, match="by term"):
        getattr(lock, way)()

    assert lock.holder() == term


@pytest.mark.parametrize("record", ["lock", "signal", "term", "audit"])
def test_a_record_of_another_type_is_named_and_nothing_is_written(store, record):
    key = getattr(store.keys, record)
    store.client.sadd(key, "rubbish")

    with pytest.raises(UnusableRecord, match=key):
        store.lock("host-1").acquire(nonce())

    assert store.client.keys() == [key]


@pytest.mark.parametrize("token", ["rubbish", "-1", "1.5", str(2**53), "1.79e15"])
def test_a_stored_token_that_is_no_whole_number_is_refused(store, token):
    store.client.hset(store.keys.term, "token", token)
    lock = store.lock("host-1")

    if token == "1.79e15":  # a whole number in another spelling is read, and written in full
        assert lock.acquire(nonce()).token > 1_790_000_000_000_000
        assert store.client.hget(store.keys.term, "token").isdigit()
    else:
        with pytest.raises(UnusableRecord, match="no number below"):
            lock.acquire(nonce())
        assert store.client.exists(store.keys.lock) == 0


def test_a_full_server_refuses_a_new_term_whole_and_still_renews_and_resigns(store):
    lock, other = store.lock("host-1"), store.lock("host-2")
    term = lock.acquire(nonce())
    store.client.config_set("maxmemory", 1)
    try:
        assert lock.renew(term)
        assert lock.resign(term)
        with pytest.raises(StoreUnreachable, match="memory is full"):
            other.acquire(nonce())
        assert store.client.exists(store.keys.lock) == 0
        assert store.client.hget(store.keys.term, "token") == str(term.token)
    finally:
        store.client.config_set("maxmemory", 0)

    assert other.acquire(nonce()).token > term.token


def test_scripts_come_back_after_the_server_forgot_them(store):
    lock = store.lock("host-1")
    term = lock.acquire(nonce())

    store.client.script_flush()

    assert lock.renew(term)
    assert lock.resign(term)


def test_all_keys_have_the_prefix_of_kombu(redis_url, namespace):
    store = RedisLease(redis_url, namespace)
    store.broker = type(store.broker)(redis_url, {"global_keyprefix": "app:"})
    lock = store.lock("host-1")

    lock.resign(lock.acquire(nonce()))

    try:
        assert all(key.startswith("app:") for key in store.client.scan_iter())
        assert store.client.exists(f"app:lock-signal:{namespace}:leader")
    finally:
        store.close()


def test_a_server_that_is_gone_is_an_unknown_outcome_within_the_time_out(namespace, unused_port):
    store = RedisLease(f"redis://127.0.0.1:{unused_port}/0", namespace, lease=1.0)
    lock, clock = store.lock("host-1"), SystemClock()

    for call in (lambda: lock.acquire(nonce()), lambda: lock.wait(1.0), lock.holder):
        began = clock.elapsed()
        with pytest.raises(StoreUnreachable, match=f"127.0.0.1:{unused_port}/0"):
            call()
        assert clock.elapsed() - began < 2 * store.timing.call_timeout

    store.close()


def test_a_server_that_never_answers_is_given_up_at_the_time_out_without_repeats(namespace, silent_port):
    store = RedisLease(f"redis://127.0.0.1:{silent_port}/0", namespace, lease=1.0)
    lock, clock = store.lock("host-1"), SystemClock()
    began = clock.elapsed()

    with pytest.raises(StoreUnreachable, match=r"within 0\.4 s"):
        lock.acquire(nonce())

    assert clock.elapsed() - began < 3 * store.timing.call_timeout, "redis-py alone would try ten times"
    store.close()


def test_the_lock_has_an_expiry_at_every_moment(store):
    lock = store.lock("host-1")
    program = """
import json, redis, sys
client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
print("ready", flush=True)
seen = set()
while "stop" not in seen:
    with client.pipeline(transaction=True) as both:
        both.exists(sys.argv[2]); both.pttl(sys.argv[2]); both.exists("stop")
        there, left, stop = both.execute()
    if there and left < 0: seen.add("for ever")
    if there and left > 0: seen.add("limited")
    if stop: seen.add("stop")
print(json.dumps(sorted(seen)))
"""
    url = f"redis://127.0.0.1:{store.client.connection_pool.connection_kwargs['port']}"
    url += f"/{store.client.connection_pool.connection_kwargs['db']}"
    with subprocess.Popen(
        [sys.executable, "-c", program, url, store.keys.lock], stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdout.readline() == "ready\n"
        for _ in range(200):
            term = lock.acquire(nonce())
            lock.renew(term)
            lock.resign(term)
        lock.acquire(nonce())
        store.client.set("stop", 1)
        output, _ = watcher.communicate(timeout=30)

    assert json.loads(output) == ["limited", "stop"]
