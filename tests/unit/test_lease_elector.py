"""The elector over a lock in memory: what it believes, and when it stops believing."""

import signal
import threading
from queue import Empty

import pytest

from fencebeat.clock import ManualClock, SystemClock
from fencebeat.elector import Elector
from fencebeat.errors import StoreUnreachable
from fencebeat.lease import LeaseTiming
from fencebeat.locks.memory import MemoryLock, MemoryStore
from tests.support.electors import Candidate, Shaky
from tests.support.locks import nonce
from tests.support.waiting import until

UNREACHABLE = {"store": "Redis", "seconds": 1, "why": "cut", "address": "here"}


class AddedTime(SystemClock):
    """The host's clock, and what the test adds: a suspended host, as seen after waking."""

    added = 0.0

    def elapsed(self):
        return super().elapsed() + self.added


@pytest.fixture
def clock():
    return AddedTime()


@pytest.fixture
def store():
    return MemoryStore(SystemClock(), lease=1.0)


@pytest.fixture
def candidate(store, clock):
    made = []

    def make(name="host-1", *, lock=None, timing=None, **options):
        lock = lock or MemoryLock(store, name)
        made.append(Candidate(lock, timing or LeaseTiming.of(store.lease), clock=clock, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def unreachable():
    return StoreUnreachable(**UNREACHABLE)


def test_a_process_leads_once_its_tick_thread_goes_round(candidate, store):
    elector = candidate()
    elector.elector.start()
    until(lambda: elector.elector.state.reason == "not_ticking")
    assert store.term is None

    elector._ticker.start()

    term = elector.elected()
    assert elector.elector.leading() == term == store.running()
    assert elector.elector.state.state == "leading"
    assert elector.elector.state.term == term


def test_a_second_process_stands_by_and_says_who_does_not(candidate):
    candidate("host-1").start().elected()
    second = candidate("host-2").start()

    until(lambda: second.elector.state.reason == "another_leads")

    assert second.elector.leading() is None
    assert second.elector.state.state == "standby"


def test_renewals_keep_the_term(candidate, store):
    one = candidate().start()
    term = one.elected()

    for _ in range(4):  # each a third of the lease
        assert one.signals.renewed.wait() == term

    assert one.elector.leading() == term


class BrokersLock(MemoryLock):
    """The lock is where the messages are, so a commit extends the lease."""

    carrier = "lock"


def test_f16_a_commit_extends_no_trust_where_another_store_keeps_the_lock(candidate, clock):
    one = candidate().start()
    term = one.elected()
    until_before = one.elector._belief.until

    one.elector.extended(term, clock.elapsed() + 50)

    assert one.elector._belief.until < until_before + 40


def test_a_commit_counts_as_a_renewal_from_the_start_of_its_attempt(candidate, clock, store):
    one = candidate(lock=BrokersLock(store, "host-1")).start()
    term = one.elected()
    until_before = one.elector._belief.until

    one.elector.extended(term, clock.elapsed() - 100)
    assert one.elector._belief.until == pytest.approx(until_before, abs=1.0)
    one.elector.extended(term, clock.elapsed() + 50)

    assert one.elector._belief.until > until_before + 40
    with pytest.raises(Empty):
        one.signals.renewed.wait(1.0)  # three renewals would have been due


def test_s4_a_suspended_host_leads_no_more_at_the_first_look(candidate, clock, store):
    one = candidate(lock=BrokersLock(store, "host-1")).start()
    term = one.elected()

    clock.added += 60.0

    assert one.elector.leading() is None
    one.elector.extended(term, clock.elapsed())
    assert one.elector.leading() is None, "no commit revives a term whose trust was over"
    assert one.elector.state.state == "standby"
    assert one.signals.lost.wait().term == term
    assert one.elected().token > term.token


def test_trust_ends_by_our_own_clock_before_the_lease_does(store):
    clock = ManualClock(wall=1e9)
    elector = Elector(MemoryLock(store, "host-1"), LeaseTiming.of(5.0), clock=clock)
    store.clock, store.lease = clock, 5.0
    elector.signals.elected.listen()
    elector.progress()
    elector.start()
    term = elector.signals.elected.wait()

    clock.advance(4.4)
    assert elector.leading() == term
    clock.advance(0.2)
    assert elector.leading() is None
    assert store.running() == term, "the store still believes"
    elector.stop()


def test_a_slow_reply_shortens_trust(store):
    clock = ManualClock(wall=1e9)
    store.clock, store.lease = clock, 5.0
    lock = MemoryLock(store, "host-1")
    acquire, renew = lock.acquire, lock.renew
    lock.acquire = lambda name, floor=0: (acquire(name, floor), clock.advance(3.0))[0]
    lock.renew = lambda term: (renew(term), clock.advance(1.0))[0]
    elector = Elector(lock, LeaseTiming.of(5.0), clock=clock)
    for one in (elector.signals.elected, elector.signals.renewed):
        one.listen()
    elector.progress()
    elector.start()
    term = elector.signals.elected.wait()

    assert elector.signals.renewed.wait() == term  # due at once: the attempt began 3 s ago
    clock.advance(3.4)
    assert elector.leading() == term
    clock.advance(0.2)
    assert elector.leading() is None, "counted from before the request: 4.5 s, one of them on the way"
    elector.stop()


def test_a_slow_election_shortens_trust(store):
    clock = ManualClock(wall=1e9)
    store.clock, store.lease = clock, 5.0
    lock = MemoryLock(store, "host-1")
    acquire = lock.acquire
    lock.acquire = lambda name, floor=0: (acquire(name, floor), clock.advance(1.5))[0]
    elector = Elector(lock, LeaseTiming.of(5.0), clock=clock)
    elector.signals.elected.listen()
    elector.progress()
    elector.start()
    elector.signals.elected.wait()
    lock.renew = lambda _term: (_ for _ in ()).throw(unreachable())

    clock.advance(3.1)

    assert elector.leading() is None
    elector.stop()


def test_a_term_that_a_commit_found_fenced_is_given_up_at_once_and_a_new_one_won(candidate):
    one = candidate().start()
    term = one.elected()

    one.elector.lost(term, "fenced")

    assert one.elector.leading() is None
    loss = one.signals.lost.wait()
    assert (loss.term, loss.reason) == (term, "fenced")
    new = one.elected()
    assert new.token > term.token
    one.elector.lost(term, "fenced")
    assert one.elector.leading() == new, "news of an older term change nothing"


def test_a_refused_renewal_is_final(candidate, store):
    one = candidate().start()
    term = one.elected()

    store.lose()

    assert one.signals.refused.wait().term == term
    assert one.signals.lost.wait().reason == "refused"
    assert one.elected().nonce != term.nonce


def test_a_lost_reply_to_a_campaign_is_asked_again_under_the_same_nonce(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    lock.after["acquire"] = [unreachable()]
    one = candidate(lock=lock).start()

    until(lambda: one.elector.state.reason == "store_unreachable")
    first = store.running()

    assert first is not None, "the store has sealed it, but nobody knows"
    assert one.elected() == first


def test_a_lost_request_elects_nobody(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    lock.before["acquire"] = [unreachable() for _ in range(3)]
    one = candidate(lock=lock).start()

    until(lambda: one.elector.state.reason == "store_unreachable")
    assert one.elector.leading() is None

    assert one.elected() == store.running()


def test_one_failed_renewal_is_repeated_within_the_time_of_trust(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    lock.before["renew"] = [unreachable()]
    one = candidate(lock=lock).start()
    term = one.elected()

    assert one.signals.renewed.wait() == term
    assert one.elector.leading() == term


def test_a_reply_that_comes_after_the_end_of_trust_makes_nobody_leader_again(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    gate = lock.gates["renew"] = threading.Event()
    one = candidate(lock=lock).start()
    term = one.elected()

    until(lambda: "renew" in lock.calls)
    until(lambda: one.elector.leading() is None, what="trust ended, whatever the call does")
    del lock.gates["renew"]
    gate.set()

    assert one.signals.lost.wait().reason == "trust_over"
    assert one.elected().token > term.token


def test_a_silent_store_ends_trust_and_the_process_stays_a_candidate(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    one = candidate(lock=lock).start()
    term = one.elected()
    for name in ("renew", "resign", "acquire"):
        lock.before[name] = [unreachable() for _ in range(100)]

    assert one.signals.lost.wait().reason == "trust_over"
    until(lambda: one.elector.state.reason == "store_unreachable")
    lock.before.clear()

    assert one.elected().token > term.token


def test_a_broken_store_is_no_reason_to_lead_or_to_end(candidate, store, caplog):
    lock = Shaky(MemoryLock(store, "host-1"))
    lock.before["acquire"] = [ZeroDivisionError("odd")]
    one = candidate(lock=lock).start()

    until(lambda: one.elector.state.reason == "error")
    assert one.elector.leading() is None

    assert one.elected()
    assert "no leader until it is clear why" in caplog.text


def test_a_hanging_tick_thread_loses_the_lease(candidate, store):
    timing = LeaseTiming(lease=1.0, renew_every=0.3, margin=0.1, call_timeout=0.4, progress_within=1.1)
    one, two = candidate("host-1", timing=timing).start(), candidate("host-2")
    term = one.elected()
    two.start()

    one.hang()

    assert two.elected().token > term.token
    assert one.signals.lost.wait().reason == "not_ticking"
    until(lambda: one.elector.state.reason == "not_ticking")
    one.go_on()
    until(lambda: one.elector.state.reason == "another_leads", what="a candidate again")


def test_stopping_resigns_and_wakes_the_standby(candidate, store):
    one, two = candidate("host-1").start(), candidate("host-2")
    term = one.elected()
    two.start()
    until(lambda: two.elector.state.reason == "another_leads")

    one.stop()
    one.stop()

    assert one.signals.resigned.wait() == term
    assert one.elector.leading() is None
    assert one.elector.state.state == "stopped"
    assert two.elected().token > term.token


def test_stopping_waits_no_longer_than_a_call_for_a_store_that_hangs(candidate, store, clock):
    lock = Shaky(MemoryLock(store, "host-1"))
    one = candidate(lock=lock).start()
    one.elected()
    gate = lock.gates["resign"] = threading.Event()
    began = clock.elapsed()

    one.elector.stop()

    assert clock.elapsed() - began < LeaseTiming.of(store.lease).call_timeout + 2.0
    gate.set()


def test_a_signal_handler_may_stop_it_wherever_it_interrupts_the_tick_thread(store):
    interrupted = []

    def handler(*_):
        interrupted[-1].stop()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(20):
            elector = Elector(MemoryLock(store, "host-1"), LeaseTiming.of(1.0), clock=SystemClock())
            elector.signals.elected.listen()
            elector.start()
            elector.progress()
            term = elector.signals.elected.wait()
            interrupted.append(elector)

            signal.setitimer(signal.ITIMER_REAL, 0.001 + number * 0.0001)
            while elector._thread.is_alive():
                elector.progress()
                elector.leading()
                elector.extended(term, 0.0)
                elector.lost(term, "fenced")

            assert elector.state.state == "stopped"
            elector.stop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert store.running() is None


def test_a_reason_not_to_lead_keeps_it_from_campaigning_and_ends_a_term(candidate, store):
    reasons = ["clock is off"]
    one = candidate(permit=lambda: reasons[0] if reasons else None).start()
    until(lambda: one.elector.state.reason == "clock is off")
    assert store.term is None

    reasons.clear()
    term = one.elected()
    reasons.append("clock is off again")

    assert one.signals.lost.wait().reason == "clock is off again"
    assert one.signals.resigned.wait() == term
    assert store.running() is None


def test_the_floor_of_the_effect_store_is_below_the_token(candidate, store):
    floor = int(store.clock.wall() * 1e6) + 60_000_000

    one = candidate(floor=lambda: floor).start()

    assert one.elected().token > floor


def test_without_the_effect_store_nobody_campaigns_and_the_state_says_why(candidate, store):
    answers = [TimeoutError("postgres is down"), 7]

    def floor():
        if isinstance(answers[0], Exception):
            raise answers.pop(0)
        return answers[0]

    one = candidate(floor=floor).start()

    state = until(lambda: (state := one.elector.state).state == "recovering" and state)
    assert "postgres is down" in state.reason
    assert store.term is None
    assert one.elected()


def test_a_term_that_cannot_be_prepared_is_resigned_without_a_signal(candidate, store):
    failures = [TimeoutError("postgres is down")]
    prepared = []

    def prepare(term):
        prepared.append(term)
        if failures:
            raise failures.pop()

    lock = Shaky(MemoryLock(store, "host-1"))
    quiet = []
    resign = lock.resign
    lock.resign = lambda term, *, wake=True: (quiet.append(not wake), resign(term, wake=wake))[1]
    one = candidate(lock=lock, prepare=prepare).start()

    state = until(lambda: (state := one.elector.state).state == "recovering" and "postgres" in state.reason and state)
    assert one.elector.leading() is None
    assert store.running() is None
    assert quiet == [True]

    term = one.elected()
    assert [term.token > prepared[0].token, prepared[1]] == [True, term]
    assert state.term is None


def test_nothing_may_be_done_while_a_term_is_prepared(candidate, store):
    inside, go_on = threading.Event(), threading.Event()

    def prepare(_term):
        inside.set()
        assert go_on.wait(10)

    one = candidate(prepare=prepare).start()
    assert inside.wait(5)

    assert one.elector.leading() is None
    assert one.elector.state.state == "recovering"
    go_on.set()
    assert one.elected()


def test_the_tick_thread_is_woken_when_something_changes(candidate):
    woken = threading.Event()
    one = candidate(wake=woken.set).start()

    one.elected()

    assert woken.wait(5)


def test_a_term_of_unknown_end_is_given_back_before_the_next_campaign(candidate, store):
    lock = Shaky(MemoryLock(store, "host-1"))
    one = candidate(lock=lock).start()
    term = one.elected()
    lock.before["resign"] = [unreachable()]

    one.elector.lost(term, "clock")

    assert one.signals.resigned.wait() == term
    assert one.elected().token > term.token


def test_starting_and_stopping_under_stress_leaves_the_lease_free(store):
    errors = []

    def stress(number):
        try:
            for _ in range(10):
                elector = Elector(MemoryLock(store, f"host-{number}"), LeaseTiming.of(1.0), clock=SystemClock())
                elector.start()
                elector.progress()
                elector.start()
                elector.stop()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=stress, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == []
    assert store.running() is None
    assert MemoryLock(store, "after").acquire(nonce())
