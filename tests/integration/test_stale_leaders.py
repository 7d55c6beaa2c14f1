"""S18: a leader that could confirm itself. Identity is random for each term, and no error says yes."""

import pytest

from fencebeat.clock import SystemClock
from fencebeat.errors import Fenced
from tests.support.electors import Candidate
from tests.support.local_beats import LocalBeats
from tests.support.locks import RedisLease, audit
from tests.support.redis_servers import Valkey, keeper
from tests.support.waiting import until

CLOCK = SystemClock()
LEASE = 2.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with keeper(tmp_path_factory.mktemp("stale")) as made:
        yield made


def test_s18_an_idle_leader_sees_another_holder_at_its_next_renewal_and_leaves_it_alone(redis_url, namespace):
    idle = {"each-day": {"task": "drive.work", "schedule": 86_400.0, "options": {"queue": namespace}}}
    with LocalBeats(redis_url, namespace, lease=LEASE, beat_schedule=idle) as beats:
        beat = beats.beat()
        old = beat.elected()
        theirs = {"token": old.token + 1, "nonce": "behind-its-back", "holder": old.holder, "lease": 60_000}
        beats.client.hset(beats.keys.term, mapping=theirs)
        beats.client.set(beats.keys.lock, "behind-its-back", px=60_000)
        until(lambda: beat.leading() is None, at_most=LEASE / 3 + 1, what="it stands by at its next renewal")
        beat.standing_by()

        assert beats.client.get(beats.keys.lock) == "behind-its-back"
        assert beats.client.pttl(beats.keys.lock) > 50_000, "neither extended nor shortened: 60 s is their lease"
        assert beats.client.hget(beats.keys.term, "token") == str(old.token + 1)
        with pytest.raises(Fenced):
            beat.scheduler._election.rounds._store.due(old, 1)


def impatient(lock):
    """A standby waits up to a second in one request, and stopping it as long: two hundred times here."""
    wait = lock.wait
    lock.wait = lambda _: wait(0.02)
    return lock


def test_s18_two_that_have_one_name_never_act_under_one_lease(redis_url, namespace):
    store = RedisLease(redis_url, namespace)
    nonces = set()
    for _ in range(100):
        twins = [Candidate(impatient(store.lock("host:17")), store.timing).start() for _ in range(2)]
        leader = until(lambda twins=twins: next((t for t in twins if t.elector.leading()), None), what="one leads")
        term = leader.elector.leading()
        [other] = [twin for twin in twins if twin is not leader]
        assert other.elector.leading() is None
        assert other.lock.renew(type(term)(term.token, other.elector._nonce, term.holder, term.lease)) is False
        assert term.nonce not in nonces
        nonces.add(term.nonce)
        other.stop()  # first, or it would take over
        leader.stop()
    elections = [record for record in audit(store.client, store.keys.audit) if record["outcome"] == "elected"]

    assert len(elections) == len({record["nonce"] for record in elections}) == 100
    store.close()


def test_s18_server_errors_confirm_nobody_and_the_other_leads_once_the_lease_is_over(servers, tmp_path, namespace):
    own = Valkey(servers, tmp_path)
    own.tell("ACL", "SETUSER", "a", "on", ">secret", "~*", "&*", "+@all")
    with LocalBeats(own.url, namespace, lease=LEASE) as beats:
        first = beats.beat(own.url.replace("redis://", "redis://a:secret@"), name="A")
        old = first.elected()
        second = beats.beat(name="B")
        second.standing_by()
        beats.more(1)
        own.tell("ACL", "SETUSER", "a", "-eval", "-evalsha")
        failing = CLOCK.elapsed()
        until(lambda: first.leading() is None, at_most=LEASE, what="trust ends without an answer")
        new = second.elected()
        assert CLOCK.elapsed() - failing <= LEASE + 0.5
        beats.more(2)
        assert first.says("standby")
        own.tell("ACL", "SETUSER", "a", "+eval", "+evalsha")
        first.standing_by()
        counted = beats.tally()

    assert counted.problems == []
    assert set(counted.by_token) == {old.token, new.token}
