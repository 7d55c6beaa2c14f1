"""The store itself is in trouble: full, evicting, failed over, without quorum; or it is reached in special ways."""

import re
import signal
from importlib.resources import files

import pytest

from fencebeat.clock import SystemClock
from fencebeat.keys import Keys
from fencebeat.locks.etcd import _put
from tests.support.local_beats import LocalBeats
from tests.support.redis_servers import (
    SCHEDULER_USER,
    EtcdMembers,
    Sentinel,
    TlsFront,
    Valkey,
    certificates,
    keeper,
)
from tests.support.waiting import until

CLOCK = SystemClock()
LEASE = 2.0
BOUND = LEASE + 0.5


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with keeper(tmp_path_factory.mktemp("stores")) as made:
        yield made


@pytest.fixture
def own(servers, tmp_path):
    """A server that only this test uses."""
    server = Valkey(servers, tmp_path)
    yield server
    servers.stop(server.child)


@pytest.fixture
def beats(own, namespace):
    with LocalBeats(own.url, namespace, lease=LEASE) as made:
        yield made


def test_f08_a_full_store_queues_nothing_moves_no_mark_and_is_caught_up_afterwards(beats, own, caplog):
    beat = beats.beat()
    term = beat.elected()
    beats.more(1)
    own.tell("CONFIG", "SET", "maxmemory", "1")
    until(lambda: "memory is full" in caplog.text, what="it says so loudly")
    queued, mark = beats.client.llen(beats.namespace), beats.client.hget(beats.keys.last, "each")
    seen = beats.client.pttl(beats.keys.lock)
    until(lambda: beats.client.pttl(beats.keys.lock) > seen, at_most=LEASE, what="renewing still works")
    until(lambda: int(own.tell("TIME")[0]) > int(mark) // 1_000_000 + 3, what="three ticks are due")

    assert beats.client.llen(beats.namespace) == queued
    assert beats.client.hget(beats.keys.last, "each") == mark
    assert beat.leading() == term
    own.tell("CONFIG", "SET", "maxmemory", "0")
    beats.more(4, at_most=5)
    counted = beats.tally()
    assert counted.problems == []
    assert set(counted.by_token) == {term.token}


def test_f08_a_full_store_elects_nobody_and_says_why(beats, own, caplog):
    own.tell("CONFIG", "SET", "maxmemory", "1")
    beat = beats.beat()
    until(lambda: "memory is full" in caplog.text, what="it says why nobody can lead")

    assert beat.says("standby", "store_unreachable")
    own.tell("CONFIG", "SET", "maxmemory", "0")
    beat.elected()


def test_f09_s22_an_eviction_that_is_switched_on_at_run_time_is_told_and_survived(beats, own, caplog):
    beat = beats.beat()
    term = beat.elected()
    beats.more(1)
    own.tell("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    until(lambda: "maxmemory-policy is allkeys-lru" in caplog.text, at_most=15, what="it says so while it leads")
    for key in (beats.keys.lock, beats.keys.entries, beats.keys.due):  # what an eviction takes: lock, entries, due
        beats.client.delete(key)
    own.tell("CONFIG", "SET", "maxmemory-policy", "noeviction")
    again = until(lambda: (now := beat.leading()) and now.token > term.token and now, what="a new term")
    beats.more(2)

    assert beats.client.hexists(beats.keys.entries, "each"), "the static entry is restored"
    outcomes = [fields["outcome"] for _, fields in beats.client.xrange(beats.keys.audit)]
    assert "gap" in outcomes, "that the store lost something is recorded"
    counted = beats.tally()
    assert not counted.doubled
    assert not counted.stale
    assert counted.by_token[again.token] >= 2


def test_s7_f07_a_failover_under_sentinel_loses_no_tick_and_forgets_no_fence(servers, tmp_path, namespace, caplog):
    primary, replica = Valkey(servers, tmp_path / "a"), Valkey(servers, tmp_path / "b")
    replica.follow(primary)
    sentinel = Sentinel(servers, tmp_path, primary)
    until(lambda: sentinel.knows(1), at_most=20, what="Sentinel knows the replica")
    options = {"broker_transport_options": {"master_name": "primary"}}
    with LocalBeats(primary.url, namespace, lease=LEASE) as beats:
        first = beats.beat(sentinel.url, name="A", **options)
        second = beats.beat(sentinel.url, name="B", **options)
        until(beats.leaders, what="a leader, found through Sentinel")
        old = beats.leaders()[0].leading()
        beats.more(2)
        mark = int(replica.tell("HGET", beats.keys.last, "each"))
        replica.lag()
        beats.more(3)
        lost = beats.queued()[-1]["fencebeat_fire_time"]
        assert lost > mark, "the replica lags"
        primary.kill()
        killed = CLOCK.elapsed()
        until(lambda: sentinel.primary_port() == replica.port, at_most=20, what="Sentinel promotes the replica")
        beats.client.close()
        beats.client = replica.client()
        new = until(
            lambda: next((t for b in (first, second) if (t := b.leading()) and t.token > old.token), None),
            at_most=15,
            what="a leader at the promoted replica",
        )
        until(
            lambda: [h for h in beats.queued() if h["fencebeat_fire_time"] > lost],
            at_most=15,
            what=f"the first tick after the failover, {CLOCK.elapsed() - killed:.1f} s",
        )
        ids = {h["fencebeat_fire_time"]: h["id"] for h in beats.queued()}
        counted = beats.tally()

    assert counted.problems == [], "what the replica knows and what it is told make every tick once"
    assert new.token > old.token
    assert mark + 1_000_000 in ids, "what the lag lost is due again"
    assert first.failure is None
    assert second.failure is None


def test_a_scheduler_leads_over_tls_with_a_checked_certificate(own, tmp_path, namespace):
    with TlsFront(tmp_path / "tls", own.port) as front, LocalBeats(own.url, namespace, lease=LEASE) as beats:
        beats.beat(front.url).elected()
        beats.more(2)
        assert beats.tally().problems == []


def test_a_certificate_of_another_authority_is_a_state_and_not_an_end(own, tmp_path, namespace):
    with TlsFront(tmp_path / "tls", own.port) as front, LocalBeats(own.url, namespace, lease=LEASE) as beats:
        other = front.url.replace(str(front.authority), str(certificates(tmp_path / "other")[0]))
        beat = beats.beat(other)
        until(lambda: beat.says("standby", "store_unreachable"), what="it says that it cannot reach the store")
        assert beat.alive


def test_a_user_with_the_rights_of_the_readme_is_enough(own):
    """The namespace and the queue are those of the line in the README, so the line itself is tested."""
    own.tell("ACL", "SETUSER", "beat", *SCHEDULER_USER.split())
    url = own.url.replace("redis://", "redis://beat:secret@")
    with LocalBeats(own.url, "fencebeat", lease=LEASE) as beats:
        beats.namespace = "celery"  # the queue
        line = {**beats.settings["beat_schedule"]["each"], "options": {"queue": "celery"}}
        beats.settings["beat_schedule"] = {"each": line}
        first = beats.beat(url)
        first.elected()
        second = beats.beat(url)
        second.standing_by()
        beats.more(2)
        first.stop()
        second.elected()
        beats.more(1)
        denied = list(own.tell("ACL", "LOG"))
        assert denied == []
        assert beats.tally().problems == []


@pytest.mark.parametrize("right", ["+evalsha", "+blpop", "+time", "+info", "~lock:fencebeat:leader"])
def test_without_one_of_those_rights_the_scheduler_says_what_it_may_not(own, right, caplog):
    rights = SCHEDULER_USER.split()
    rights.remove(right)
    own.tell("ACL", "SETUSER", "beat", *rights)
    with LocalBeats(own.url, "fencebeat", lease=LEASE) as beats:
        beats.beat(own.url.replace("redis://", "redis://beat:secret@"))
        if right == "+blpop":  # only a standby waits
            beats.beats[0].elected()
            beats.beat(own.url.replace("redis://", "redis://beat:secret@"))
        until(lambda: "NoPermission" in caplog.text, what="it says what it may not do")


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_f16_without_quorum_nobody_leads_and_with_it_the_ticks_are_caught_up(own, servers, tmp_path, namespace, how):
    etcd = EtcdMembers(servers, tmp_path / "etcd")
    settings = {"fencebeat_lock": "etcd", "fencebeat_etcd_url": etcd.url}
    with LocalBeats(own.url, namespace, lease=LEASE, **settings) as beats:
        first, second = beats.beat(), beats.beat()
        until(beats.leaders, what="a leader")
        beats.more(2)
        etcd.signal(how)
        lost = CLOCK.elapsed()
        until(lambda: not beats.leaders(), at_most=LEASE + 1, what="nobody leads once trust has ended")
        assert CLOCK.elapsed() - lost <= LEASE
        queued = beats.client.llen(beats.namespace)
        until(
            lambda: all(b.says("standby", "store_unreachable") for b in (first, second)),
            at_most=15,
            what="both say why",
        )
        assert beats.client.llen(beats.namespace) == queued
        etcd.signal(signal.SIGCONT) if how == signal.SIGSTOP else etcd.again()
        etcd.wait()
        until(beats.leaders, at_most=20, what="a leader again")
        beats.more(2)
        assert beats.tally().problems == []
        assert first.alive or first.failure is None
    for child in etcd.children:
        servers.stop(child)


def test_s7_f16_an_etcd_restored_from_a_backup_raises_its_base_and_every_tick_comes_once(own, etcd_url, namespace):
    """Its revisions start anew below what the broker has sealed: the seal refuses by number and the base is raised."""
    settings = {"fencebeat_lock": "etcd", "fencebeat_etcd_url": etcd_url}
    with LocalBeats(own.url, namespace, lease=LEASE, **settings) as beats:
        beat = beats.beat()
        old = beat.elected()
        beats.more(1)
        lock = beat.elector._lock
        base = lock._look()[1]
        lock._transact([], [_put(lock._base_key, str(base - 10_000_000_000))])  # as the backup has it
        new = until(lambda: (t := beat.leading()) and t.nonce != old.nonce and t, at_most=15, what="a term of its own")
        beats.more(2)

        assert new.token > old.token
        assert lock._look()[1] > base - 10_000_000_000
        assert beats.tally().problems == []


def test_every_command_of_the_scripts_is_in_the_acl_line():
    called = set()
    for file in files("fencebeat").joinpath("lua").iterdir():
        called |= set(re.findall(r"redis\.p?call\('([A-Z]+)'", file.read_text()))

    assert called >= {"XADD", "HSET", "PEXPIRE"}
    assert called <= {right[1:].upper() for right in SCHEDULER_USER.split() if right.startswith("+")}


def test_the_names_in_the_acl_line_are_the_schedulers_own():
    keys = Keys("fencebeat")
    assert {f"~{keys.lock}", f"~{keys.signal}", "~fencebeat:*"} <= set(SCHEDULER_USER.split())
    for key in (keys.term, keys.entries, keys.last, keys.due, keys.flags, keys.audit, keys.edits, keys.outbox):
        assert key.startswith("fencebeat:")
