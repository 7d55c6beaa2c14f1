"""A day of two electors in seconds: their turns are taken by the test, on one clock that it moves."""

import random
from itertools import pairwise

import pytest
from celery import Celery

from fencebeat.clock import ManualClock
from fencebeat.configuration import Configuration
from fencebeat.elector import Elector
from fencebeat.errors import ImpossibleConfiguration, StoreUnreachable
from fencebeat.lease import LeaseTiming
from fencebeat.locks.memory import MemoryLock, MemoryStore

LEASE = 5.0
STEP = 0.25
DAY = 24 * 3600


class Stepped(Elector):
    """An elector whose rests and waits are noted instead of taken."""

    def __init__(self, lock, clock):
        super().__init__(lock, LeaseTiming.of(LEASE), clock=clock)
        self.asleep_until = 0.0

    def _rest(self, seconds):
        self.asleep_until = self._clock.elapsed() + seconds


class Faulty(MemoryLock):
    """A lock whose renewals fail with server errors while `broken`; it never waits."""

    broken = False

    def renew(self, term):
        if self.broken:
            raise StoreUnreachable(store="memory", seconds=1, why="ERR internal", address="nowhere")
        return super().renew(term)

    def wait(self, at_most):
        pass


@pytest.mark.parametrize("seed", [1, 2])
def test_s18_in_a_day_of_faults_two_leader_gauges_are_never_1_together_for_longer_than_a_renewal(seed):
    dice, clock = random.Random(seed), ManualClock(wall=1.8e9)
    store = MemoryStore(clock, LEASE)
    locks = [Faulty(store, "one-host"), Faulty(store, "one-host")]  # names tell nothing apart
    both = [Stepped(lock, clock) for lock in locks]
    mended = [0.0, 0.0]
    terms, dark, longest_dark, together, longest_together = [], 0.0, 0.0, 0.0, 0.0
    while clock.elapsed() < DAY:
        clock.advance(STEP)
        now = clock.elapsed()
        calm = not together and not any(lock.broken for lock in locks)  # one fault at a time
        if calm and dice.random() < STEP / 300:  # every five minutes: renewals of one fail for up to 20 s
            number = dice.randrange(2)
            locks[number].broken, mended[number] = True, now + dice.uniform(1, 20)
        elif calm and dice.random() < STEP / 600:  # every ten minutes: somebody deletes the lock
            store.term = None
        for number, elector in enumerate(both):
            if locks[number].broken and now >= mended[number]:
                locks[number].broken = False
            elector.progress()
            if now >= elector.asleep_until:
                elector._turn()
        gauges = [elector.state.state == "leading" for elector in both]
        together = together + STEP if all(gauges) else 0.0
        longest_together = max(longest_together, together)
        dark = 0.0 if any(gauges) else dark + STEP
        longest_dark = max(longest_dark, dark)
        terms += [term for e in both if (term := e.leading()) is not None and term not in terms[-2:]]

    assert len(terms) > 100, "leadership changed often"
    assert 0 < longest_together <= LEASE / 3 + STEP, "a deleted lock is noticed at the next renewal, and only that"
    assert longest_dark <= LEASE + 0.5
    assert all(earlier.token < later.token and earlier.nonce != later.nonce for earlier, later in pairwise(terms))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"fencebeat_renew_every": 5.0}, ("lease", "renew_every")),
        ({"fencebeat_call_timeout": 6.0}, ("lease", "call_timeout")),
        ({"fencebeat_margin": 5.0}, ("lease", "margin")),
    ],
)
def test_s4_timings_that_cannot_work_refuse_the_start_naming_both_settings(settings, named):
    app = Celery("timings", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update({"fencebeat_lease": 5.0, **settings})

    with pytest.raises(ImpossibleConfiguration) as refused:
        Configuration.of(app)

    assert all(name in str(refused.value) for name in named)
    app.close()


def test_timings_may_be_set_apart():
    app = Celery("timings", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(fencebeat_lease=10.0, fencebeat_renew_every=1.0, fencebeat_margin=2.0, fencebeat_call_timeout=0.5)

    assert Configuration.of(app).timing == LeaseTiming(lease=10.0, renew_every=1.0, margin=2.0, call_timeout=0.5)
    app.close()
