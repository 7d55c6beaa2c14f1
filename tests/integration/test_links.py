"""The way to the store breaks: whole schedulers on threads of this process, each behind a link of its own.

What is judged is what lies on the queue: every tick once, none missing, none of an older term after a newer one.
"""

import threading

import pytest
from celery.signals import before_task_publish

from fencebeat import elector
from fencebeat.clock import SystemClock
from fencebeat.scripts import script
from fencebeat.testing.tally import queued
from tests.support.local_beats import LocalBeats
from tests.support.proxy import Proxy
from tests.support.waiting import until

CLOCK = SystemClock()
LEASE = 2.0
BOUND = LEASE + 0.5
ACQUIRE, RENEW, COMMIT = (script(name).digest for name in ("acquire", "renew", "commit"))


@pytest.fixture
def beats(redis_url, namespace):
    with LocalBeats(redis_url, namespace, lease=LEASE) as made:
        yield made


@pytest.fixture
def link(redis_url):
    with Proxy.before(redis_url) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch):
    """Campaign again soon after a failure: twenty failures in a row would else take a minute."""
    monkeypatch.setattr(elector, "RETRY_MOST", 0.15)


BREAKS = {
    "before the request leaves": lambda link, times: link.reset("up", about=ACQUIRE, times=times),
    "after the request has left": lambda link, times: link.cut_after(0, "down", about=ACQUIRE, times=times),
    "while the reply is on its way": lambda link, times: link.cut_after(3, "down", about=ACQUIRE, times=times),
}


@pytest.mark.parametrize("break_link", BREAKS.values(), ids=BREAKS)
def test_s1_a_campaign_that_failed_twenty_times_makes_nobody_leader(beats, link, impatient, break_link):
    leader = beats.beat(name="A")
    leader.elected()
    beats.more(1)
    break_link(link, 20)
    standby = beats.beat(link.url, name="B")
    led = []
    until(lambda: led.append(standby.leading()) or sum(link.bites.values()) == 20, at_most=60, what="twenty failures")
    standby.standing_by()
    assert set(led) == {None}

    mine = leader.leading().token
    leader.vanish()
    vanished = CLOCK.elapsed()
    term = standby.elected()
    assert CLOCK.elapsed() - vanished <= BOUND
    beats.more(1)

    counted = beats.tally()
    assert counted.problems == []
    assert set(counted.by_token) == {mine, term.token}
    assert standby.failure is None


def test_s1_f14_a_lost_reply_without_another_leader_costs_at_most_a_lease(beats, link):
    link.cut_after(0, "down", about=ACQUIRE, times=1)
    began = CLOCK.elapsed()
    alone = beats.beat(link.url)
    term = alone.elected()

    assert CLOCK.elapsed() - began <= LEASE
    assert link.bites["cut_after"] == 1
    assert int(beats.client.hget(beats.keys.term, "token")) == term.token
    elections = [fields for _, fields in beats.client.xrange(beats.keys.audit) if fields["outcome"] == "elected"]
    assert len(elections) == 1, "asked again under the same nonce: the same term, not another"
    beats.more(1)
    counted = beats.tally()
    assert counted.problems == []
    assert set(counted.by_token) == {term.token}


def test_s2_cut_off_fifty_times_while_it_starts_it_leads_within_the_bound_after_the_last(beats, link, impatient):
    beat = beats.beat(link.url)
    tokens = []
    for _ in range(50):
        seen = link.connections
        link.reset()
        tokens.append(beats.client.hget(beats.keys.term, "token"))
        until(lambda seen=seen: link.connections > seen, what="it tries again")
    last = CLOCK.elapsed()
    term = beat.elected()

    assert CLOCK.elapsed() - last <= BOUND
    assert link.bites["reset"] >= 40
    assert beat.alive, beat.failure
    beats.more(1)
    assert {headers["fencebeat_token"] for headers in beats.queued()} <= {int(t) for t in tokens if t} | {term.token}
    assert beats.tally().problems == []


def test_s2_a_store_that_refuses_is_told_as_a_reason_and_retried_with_growing_pauses(beats, link):
    link.refuse()
    beat = beats.beat(link.url)
    until(lambda: beat.says("standby", "store_unreachable"), what="the reason")
    until(lambda: beat.elector._failures >= 3, at_most=20, what="three attempts")
    link.heal()
    beat.elected()

    assert beat.alive


def test_s3_a_renewal_that_arrives_after_another_has_won_extends_nothing(beats, link):
    first = beats.beat(link.url, name="A")
    old = first.elected()
    beats.more(1)
    held = link.hold("up", about=RENEW)
    held.wait()
    beats.client.delete(beats.keys.lock)
    second = beats.beat(name="B")
    new = second.elected()
    beats.client.pexpire(beats.keys.lock, 60_000)  # the renewer of B asks once in a while: a change of A's would be
    before = beats.client.hmget(beats.keys.term, "token", "nonce")
    held.release()
    held.answered()

    assert before == [str(new.token), new.nonce]
    assert beats.client.hmget(beats.keys.term, "token", "nonce") == before
    assert beats.client.get(beats.keys.lock) == new.nonce
    until(lambda: first.says("standby"), at_most=LEASE / 3 + 1, what="A stands by within one renewal interval")
    first.standing_by()
    beats.more(2)
    counted = beats.tally()
    assert counted.problems == []
    newest_of_old = max(
        i for i, h in enumerate(queued(beats.client, beats.namespace)) if h["fencebeat_token"] == old.token
    )
    oldest_of_new = min(
        i for i, h in enumerate(queued(beats.client, beats.namespace)) if h["fencebeat_token"] == new.token
    )
    assert newest_of_old < oldest_of_new, "nothing of A was accepted after B's seal"


def test_s5_after_each_of_ten_losses_somebody_leads_within_the_bound_and_three_live_on(redis_url, namespace):
    lease = 1.0
    with LocalBeats(redis_url, namespace, lease=lease) as beats, Links(redis_url, 3) as links:
        for number, link in enumerate(links):
            beats.beat(link.url, name=f"beat-{number}")
        until(beats.leaders, what="a leader")
        for round_number in range(10):
            [leader] = until(lambda: beats.leaders() or None, what="one leader")
            token = leader.leading().token
            link = links[beats.beats.index(leader)]
            if round_number % 2:
                link.hold("up", about=RENEW)
            beats.client.delete(beats.keys.lock)
            lost = CLOCK.elapsed()
            until(
                lambda token=token: [b for b in beats.leaders() if b.leading() and b.leading().token > token],
                at_most=lease + 1.0,
                what="the next leader",
            )
            # A deleted lock is noticed at the next commit or renewal: at most a second, where one entry fires each.
            assert CLOCK.elapsed() - lost <= lease + 0.5
            link.heal()
            until(lambda: len(beats.leaders()) == 1, at_most=lease + 0.5, what="the former leader stands by")
            gauges = [sum(beat.says("leading") for beat in beats.beats) for _ in _samples(0.3)]
            assert set(gauges) == {1}, gauges
        assert [beat.failure for beat in beats.beats] == [None] * 3
        assert all(beat.says("leading") or beat.says("standby") for beat in beats.beats)
        beats.more(2)
        assert beats.tally().problems == []


def _samples(seconds):
    ending = CLOCK.elapsed() + seconds
    while CLOCK.elapsed() < ending:
        yield
        threading.Event().wait(0.1)


class Links(list):
    """Links of several hosts to one store."""

    def __init__(self, url, count):
        super().__init__(Proxy.before(url) for _ in range(count))

    def __enter__(self):
        for link in self:
            link.__enter__()
        return self

    def __exit__(self, *error):
        for link in self:
            link.__exit__(*error)


def test_s8_f10_in_silence_the_leader_steps_down_by_its_own_clock_and_each_tick_exists_once(beats, link):
    first = beats.beat(link.url, name="A")
    old = first.elected()
    second = beats.beat(name="B")
    second.standing_by()
    beats.more(2)
    link.silence()
    until(lambda: link.bites["silence"], at_most=3, what="the silence bites")
    left = beats.client.pttl(beats.keys.lock) / 1000
    ends = CLOCK.elapsed() + left  # a renewal whose reply is lost in the silence may still come, once
    until(lambda: first.leading() is None, at_most=LEASE, what="A trusts itself no longer")
    stepped_down = CLOCK.elapsed()
    new = second.elected()

    assert stepped_down <= ends
    assert CLOCK.elapsed() <= ends + 0.5
    assert new.token > old.token
    beats.more(2)
    until(lambda: first.says("standby", "store_unreachable"), at_most=10, what="A says why")
    link.heal()
    first.standing_by()
    assert first.alive
    counted = beats.tally()
    assert counted.problems == []
    assert set(counted.by_token) == {old.token, new.token}


def test_f10_a_slow_store_shortens_trust_and_the_leader_keeps_its_term(beats, link):
    beat = beats.beat(link.url, fencebeat_lease=5.0)  # the default, and with it the default time-outs
    term = beat.elected()
    beats.more(1)
    link.latency(250, 50)  # both ways: half a second for each call
    beats.more(4, at_most=40)

    assert link.bites["latency"] > 10
    assert beat.leading() == term
    link.heal()
    beats.more(1)
    assert beats.tally().problems == []


def test_f13_s24_a_held_reply_to_a_renewal_does_not_stretch_trust_and_a_late_yes_makes_nobody_leader(beats, link):
    first = beats.beat(link.url, name="A")
    old = first.elected()
    second = beats.beat(name="B")
    second.standing_by()
    beats.more(1)
    held = link.hold("down")  # requests arrive, answers do not: also the renewal's that was granted
    held.wait()
    until_ = first.elector._belief.until
    until(lambda: first.leading() is None, at_most=LEASE, what="A trusts itself no longer")
    assert CLOCK.elapsed() <= until_ + 0.3
    new = second.elected(at_most=3 * LEASE)
    beats.more(2)
    held.release()
    first.standing_by()

    assert first.leading() is None
    assert new.token > old.token
    counted = beats.tally()
    assert counted.problems == []
    assert counted.by_token[new.token] >= 2


def test_s24_the_tick_thread_sees_a_loss_before_its_next_write(beats, monkeypatch):
    beat = beats.beat()
    old = beat.elected()
    beats.more(1)
    store = beat.scheduler._election.rounds._store
    commit, commits, lost = store.commit, [], threading.Event()

    def watched(term, *args, **options):
        commits.append((term, lost.is_set()))
        return commit(term, *args, **options)

    def lose_it_while_publishing(**_):
        if not lost.is_set():
            beats.client.set(beats.keys.lock, "of-another", px=600)
            beats.client.hset(beats.keys.term, mapping={"token": old.token + 1, "nonce": "of-another"})
            until(lambda: beat.leading() is None, at_most=LEASE, what="a renewal was refused")
            lost.set()

    monkeypatch.setattr(store, "commit", watched)
    before_task_publish.connect(lose_it_while_publishing, weak=False)
    try:
        assert lost.wait(10)
        again = beat.elected()
        beats.more(1)
    finally:
        before_task_publish.disconnect(lose_it_while_publishing)

    assert {term for term, after in commits if after} == {again}, "seen before the write, not refused after it"
    assert beats.tally().problems == []


@pytest.mark.parametrize("about", [ACQUIRE, RENEW, COMMIT], ids=["acquire", "renew", "commit"])
def test_f14_requests_that_arrive_without_a_reply_count_as_not_done(beats, link, about):
    if about != ACQUIRE:
        beat = beats.beat(link.url)
        beat.elected()
        beats.more(1)
    link.silence("down", about=about, times=2)
    if about == ACQUIRE:
        beat = beats.beat(link.url)
    until(lambda: link.bites["silence"] == 2, at_most=20, what="two answers were lost")
    link.heal()
    beat.elected()
    beats.more(2)

    assert beats.tally().problems == []


def test_f15_a_reply_lost_after_the_commit_is_asked_again_and_answered_duplicate(beats, link):
    beat = beats.beat(link.url)
    beat.elected()
    beats.more(1)
    link.cut_after(0, "down", about=COMMIT, times=1)
    until(lambda: link.bites["cut_after"], what="a lost reply to a commit")
    link.heal()
    beats.more(2)

    counted = beats.tally()
    outcomes = [fields["outcome"] for _, fields in beats.client.xrange(beats.keys.audit)]
    assert counted.problems == []
    assert outcomes.count("emitted") == counted.ticks, "counted once"
