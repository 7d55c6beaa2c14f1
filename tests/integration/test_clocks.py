"""Clocks step and drift: of one host, of the store, of everything. The store is a server of the test's own, whose wall
clock a preloaded shim moves (its other clocks stay); each scheduler's clocks are moved by a file of its own.
"""

import json

import pytest

from fencebeat.clock import FileClock, SystemClock
from fencebeat.connection import Broker
from fencebeat.errors import Fenced
from fencebeat.store import Store
from tests.support.electors import Candidate
from tests.support.local_beats import LocalBeats, each_second
from tests.support.locks import RedisLease
from tests.support.proxy import Proxy
from tests.support.redis_servers import ClockedValkey, keeper
from tests.support.waiting import until

CLOCK = SystemClock()
LEASE = 2.0
HOUR, YEARS = 3600, 10 * 365 * 86_400


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with keeper(tmp_path_factory.mktemp("clocks")) as made:
        yield made


@pytest.fixture
def store(servers, tmp_path):
    server = ClockedValkey(servers, tmp_path / "store")
    yield server
    servers.stop(server.child)


@pytest.fixture
def clocks(tmp_path):
    """Two hosts' clocks; `step(host, wall=..., elapsed=..., rate=...)`."""
    return Clocks([tmp_path / f"clock-{number}" for number in range(2)])


class Clocks(list):
    def step(self, *hosts, **moved):
        for host in hosts or range(len(self)):
            new = self[host].with_suffix(".new")
            new.write_text(json.dumps(moved))
            new.replace(self[host])  # in one step: it is read at every look at the clock


@pytest.fixture
def beats(store, namespace):
    with LocalBeats(store.url, namespace, lease=LEASE) as made:
        yield made


def leader_of(beats):
    [leader] = until(lambda: beats.leaders() or None, what="a leader")
    return leader


@pytest.mark.parametrize("step", [HOUR, -HOUR, YEARS])
def test_s14_f11_a_leader_whose_clock_steps_gives_up_within_a_renewal_and_the_other_goes_on(
    beats, clocks, caplog, step
):
    two = [beats.beat(clock=clock) for clock in clocks]
    leader = leader_of(beats)
    other = next(beat for beat in two if beat is not leader)
    other.standing_by()
    beats.more(2)
    clocks.step(two.index(leader), wall=step)
    until(lambda: leader.leading() is None, at_most=LEASE / 3 + 1, what="it gives up within one renewal")
    other.elected()
    until(lambda: leader.says("standby", "clock"), what="it says why")
    beats.more(2)
    assert "clock" in caplog.text
    clocks.step(two.index(leader), wall=0)
    leader.standing_by()
    counted = beats.tally()

    assert counted.problems == []
    assert len(counted.by_token) == 2


def test_s14_f11_if_only_the_stores_clock_steps_nobody_leads_until_clocks_agree(beats, clocks, store, caplog):
    two = [beats.beat(clock=clock) for clock in clocks]
    leader_of(beats)
    beats.more(1)
    store.step(-HOUR)
    until(lambda: all(beat.says("standby", "clock") for beat in two), at_most=15, what="nobody leads, and both say why")
    queued = beats.client.llen(beats.namespace)
    assert "clock" in caplog.text
    store.step(0)
    leader_of(beats)
    beats.more(2)

    assert beats.client.llen(beats.namespace) > queued
    assert beats.tally().problems == []


def test_s14_f11_when_all_clocks_step_forward_the_policy_applies_once_and_back_nothing_is_repeated(
    beats, clocks, store
):
    beats.settings["beat_schedule"] = {"each": each_second(beats.namespace, catchup="latest")}
    for clock in clocks:
        beats.beat(clock=clock)
    leader_of(beats)
    beats.more(2)
    before = beats.client.llen(beats.namespace)

    def step_all(seconds):
        store.step(seconds)
        clocks.step(wall=seconds)

    step_all(HOUR)
    beats.more(3, at_most=20)
    passed = [fields for _, fields in beats.client.xrange(beats.keys.audit) if fields["outcome"] == "superseded"]
    assert sum(int(fields["count"]) for fields in passed if int(fields["count"]) > 1000) in range(HOUR - 10, HOUR + 10)
    assert len([fields for fields in passed if int(fields["count"]) > 1000]) == 1, "the policy was applied once"
    assert beats.client.llen(beats.namespace) < before + 30, "not a message for each missed second"
    tokens = [int(f["token"]) for _, f in beats.client.xrange(beats.keys.audit) if f["outcome"] == "elected"]

    step_all(0)
    leader_of(beats)
    mark = beats.client.hget(beats.keys.last, "each")
    ahead = int(mark) / 1e6 - CLOCK.wall()
    assert ahead > HOUR - 60
    asleep = beats.client.llen(beats.namespace)
    renewals = [beats.client.get(beats.keys.lock), CLOCK.elapsed()]
    until(lambda: CLOCK.elapsed() - renewals[1] > 3, what="three seconds with a leader")
    assert beats.client.get(beats.keys.lock), "somebody leads"
    assert beats.client.llen(beats.namespace) == asleep
    step_all(HOUR + 30)
    beats.more(2, at_most=20)
    headers = beats.queued()
    assert len({h["fencebeat_fire_time"] for h in headers}) == len(headers), "nothing is emitted twice"
    assert tokens == sorted(set(tokens)), "tokens keep rising"


def test_s14_a_jump_of_years_stops_emission_before_any_mark_moves_and_its_end_resumes(beats, clocks, store, caplog):
    two = [beats.beat(clock=clock) for clock in clocks]
    leader_of(beats)
    beats.more(2)
    store.step(YEARS)
    clocks.step(wall=YEARS)
    until(lambda: "went forward" in caplog.text, at_most=20, what="the alarm")
    queued = beats.client.llen(beats.namespace)
    seen = CLOCK.elapsed()
    until(lambda: CLOCK.elapsed() - seen > 2 * LEASE, at_most=3 * LEASE, what="two leases in which a new term may come")

    assert beats.client.llen(beats.namespace) == queued
    assert int(beats.client.hget(beats.keys.last, "each")) / 1e6 < CLOCK.wall() + 1, "no mark lies in the future"
    store.step(0)
    clocks.step(wall=0)
    beats.more(3, at_most=20)
    counted = beats.tally()
    assert counted.problems == []
    assert [beat.failure for beat in two] == [None, None]


def test_s14_a_standby_that_knew_the_time_before_a_jump_does_not_lead_after_it(beats, clocks, store):
    one = beats.beat(clock=clocks[0])
    one.elected()
    two = beats.beat(clock=clocks[1])
    two.standing_by()  # it has never led, so only its campaigns have seen the time
    beats.more(1)
    mark = beats.client.hget(beats.keys.last, "each")
    store.step(YEARS)
    clocks.step(wall=YEARS)
    one.vanish()
    until(lambda: two.says("standby", "went forward"), what="why it does not lead")
    assert int(beats.client.hget(beats.keys.last, "each")) - int(mark) < 60 * 1_000_000, "no mark moved into that time"


@pytest.mark.parametrize("ahead", [1.5, -1.5])
def test_s25_a_difference_within_the_tolerance_changes_no_fire_time_whoever_leads(beats, clocks, ahead):
    clocks.step(1, wall=ahead)
    two = [beats.beat(clock=clock) for clock in clocks]
    for _ in range(5):
        leader = leader_of(beats)
        beats.more(1)
        number = two.index(leader)
        next(beat for beat in two if beat is not leader).standing_by()
        leader.stop()
        two[number] = beats.beat(clock=clocks[number])
    counted = beats.tally()

    assert counted.problems == []
    assert len(counted.by_token) >= 5


def test_s25_a_host_that_is_three_minutes_off_refuses_leadership_and_shows_why(beats, clocks, caplog):
    clocks.step(1, wall=180)
    right, off = (beats.beat(clock=clock) for clock in clocks)
    right.elected()
    beats.more(1)
    right.stop()
    until(lambda: off.says("standby", "180"), what="it says by how much it is off")
    queued = beats.client.llen(beats.namespace)
    until(lambda: beats.client.get(beats.keys.lock) is None, what="nobody leads")
    clocks.step(1, wall=0)
    off.elected()
    beats.more(2)

    assert beats.queued()[queued]["fencebeat_token"] == off.leading().token
    assert beats.tally().problems == []


def test_s25_a_leader_that_is_set_back_by_seventy_seconds_steps_down_and_repeats_nothing(beats, clocks):
    beat = beats.beat(clock=clocks[0])
    beat.elected()
    beats.more(2)
    clocks.step(0, wall=-70)
    until(lambda: beat.leading() is None, at_most=LEASE / 3 + 1, what="it steps down")
    clocks.step(0, wall=0)
    beats.more(2)

    assert beats.tally().problems == []


def test_s4_a_host_that_was_suspended_counts_its_lease_as_lost_before_any_write(beats, clocks):
    """The boot-time clock goes on while the monotonic one stands still: suspended for a minute."""
    beat = beats.beat(clock=clocks[0])
    old = beat.elected()
    beats.more(1)
    election = beat.scheduler._election
    acts = []
    commit = election.rounds._store.commit
    election.rounds._store.commit = lambda term, *a, **o: (acts.append(term), commit(term, *a, **o))[1]
    clocks.step(0, elapsed=60)
    assert beat.leading() is None, "at the first look"
    acts.clear()
    new = until(lambda: (t := beat.leading()) and t != old and t, what="a new term")
    beats.more(2)

    assert old not in acts
    assert new.token > old.token
    assert beats.tally().problems == []


@pytest.mark.parametrize(("rate", "overlaps"), [(0.5, True), (2.0, False)])
def test_f12_at_another_rate_of_elapsed_time_two_may_believe_and_one_acts(redis_url, namespace, clocks, rate, overlaps):
    clocks.step(0, rate=rate)
    slow_clock = FileClock(clocks[0])
    with Proxy.before(redis_url) as link:
        through, direct = RedisLease(link.url, namespace, 1.0), RedisLease(redis_url, namespace, 1.0)
        first = Candidate(through.lock("first"), through.timing, clock=slow_clock).start()
        old = first.elected()
        second = Candidate(direct.lock("second"), direct.timing).start()
        until(lambda: second.elector.state.reason == "another_leads", what="a standby")
        link.silence()
        new = second.elected()
        both = first.elector.leading() is not None
        until(lambda: first.elector.leading() is None, what="its belief ends, too")
        with Broker(redis_url).client(2.0) as client, pytest.raises(Fenced):
            Store(client, direct.keys).due(old, 1)
        assert both is overlaps, "belief lasts lease / rate: below 0.9 it may overlap"
        assert new.token > old.token
        for one in (first, second):
            one.stop()
        through.close()
        direct.close()
