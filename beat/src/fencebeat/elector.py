"""Leadership of the scheduler: at most one process may act, several may believe.

Authority: the lock and term records in the store. This process only decides when to stop trusting its last answer.

    standby ── elected(token, nonce) ──▶ recovering ── prepared ──▶ leading ── fenced | refused | trust over ──▶ standby
       ▲                                      │                        │
       └── the effect store did not answer ───┘                        └── stop: resigned, the standbys are woken

A term is (token, nonce). Renew, resign and every commit name their term; a request naming an older one changes nothing.
One thread of its own talks to the store, over its own connection. It renews only while the tick thread makes progress,
and campaigns only then: the process that leads is one that ticks. A loss never ends the process.

The store does not answer    nothing is assumed: trust still ends where the last successful attempt put it.
An answer was lost           the same nonce asks again: same term, lease extended. Until then: not elected.
An answer came too late      trust was over in between, so the term is given back and a new one campaigned for.
The store forgot the term    the next renew or commit says so; become a standby, win a new term later.
This process was frozen      `elapsed` has moved on (suspend counts): the first look at `leading` after waking says no.
The tick thread is silent    no renewal after `progress_within`; the lease lapses; the watchdog ends the process.
The effect store is down     resign without a signal, `recovering`, next campaign after 1 s, growing to 5 s.
This host's clock is off     `permit` gives a reason: no campaign, and a running term is resigned.
Something else is broken     logged with its trace, shown as the reason; a standby after all.
"""

import logging
import random
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Literal

from fencebeat.clock import Clock
from fencebeat.errors import FencebeatError, StoreUnreachable
from fencebeat.failpoints import failpoint
from fencebeat.history import record
from fencebeat.lease import LeaseTiming, Lock, Term, trusted_until
from fencebeat.signals import Signal
from fencebeat.watchdog import Watchdog

log = logging.getLogger(__name__)

RETRY_FIRST, RETRY_MOST = 0.1, 5.0
"""Bounds of the jittered pause after a store did not answer, in seconds."""
RECOVER_FIRST, RECOVER_MOST = 1.0, 5.0
"""Bounds of the pause after the effect store did not answer, in seconds."""

Phase = Literal["standby", "recovering", "leading", "stopped"]


@dataclass(frozen=True)
class State:
    """What this process is, why, and since when (seconds since the epoch); for people and gauges, not for decisions."""

    state: Phase
    reason: str
    since: float
    term: Term | None = None


@dataclass(frozen=True)
class Loss:
    """A term that ended for this process, and why."""

    term: Term
    reason: str


@dataclass(frozen=True)
class Signals:
    """What happened, for tests."""

    elected: Signal[Term] = field(default_factory=Signal)  # leading: prepared and trusted
    lost: Signal[Loss] = field(default_factory=Signal)
    renewed: Signal[Term] = field(default_factory=Signal)
    resigned: Signal[Term] = field(default_factory=Signal)
    refused: Signal[Loss] = field(default_factory=Signal)  # the store said that the term is over
    changed: Signal[State] = field(default_factory=Signal)


class _Belief:
    """One term as this process believes in it. `over` is only ever set, so no late answer can revive a term."""

    def __init__(self, term: Term, anchor: float, until: float) -> None:
        self.term, self.anchor, self.until = term, anchor, until
        self.over: str | None = None

    def trusted(self, now: float) -> bool:
        return self.over is None and now < self.until


class Elector:
    """Campaigns, renews and resigns in a thread of its own. Whoever acts asks `leading` just before.

    `floor`: highest token any effect store has seen. `permit`: a reason why this process may not lead now, or None.
    `prepare`: called with a new term before it may act (recovery); what it raises gives the term back.
    `wake`: called from the elector's thread when the state changes. All four have time-outs of their own.
    """

    def __init__(
        self,
        lock: Lock,
        timing: LeaseTiming,
        *,
        clock: Clock,
        floor: Callable[[], int] | None = None,
        permit: Callable[[], str | None] | None = None,
        prepare: Callable[[Term], None] | None = None,
        wake: Callable[[], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.signals = Signals()
        self._lock, self._timing, self._clock, self._watchdog = lock, timing, clock, watchdog
        self._floor, self._permit, self._prepare, self._wake = floor, permit, prepare, wake
        self._state = State("standby", "starting", clock.wall())
        self._belief: _Belief | None = None
        self._nonce = secrets.token_hex(16)  # of this campaign
        self._unreturned: Term | None = None  # a term that the store may still hold for us
        self._progressed: float | None = None
        self._recover_pause = RECOVER_FIRST
        self._failures = 0  # of the store, in a row
        self._forbidden = False  # by `permit`, and it was logged
        self._stopping = False
        # A SimpleQueue, not an Event: put() may be interrupted by a signal handler that calls put() itself.
        self._mail: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- what the tick thread and signal handlers call: no lock is taken, nothing is waited for but in `stop`

    @property
    def state(self) -> State:
        """What this process is now. A term whose trust is over shows as standby at once, whatever its thread does."""
        state = self._state
        if state.state == "leading" and self.leading() is None:
            return State("standby", "trust_over", state.since)
        return state

    def leading(self) -> Term | None:
        """The term to act under, or None. Trusted by our own clock alone, so ask again before each act."""
        belief = self._belief
        return belief.term if belief is not None and belief.trusted(self._clock.elapsed()) else None

    def progress(self) -> None:
        """Say that the tick thread goes round: its licence to lead. The first call starts the campaign."""
        first, self._progressed = self._progressed is None, self._clock.elapsed()
        if self._watchdog is not None:
            self._watchdog.beat()
        if first:
            self._mail.put(None)

    def lost(self, term: Term, reason: str) -> None:
        """Give up `term` at once, for example because a commit was answered `fenced`. An older term changes nothing."""
        belief = self._belief
        if belief is not None and belief.term == term and belief.over is None:
            belief.over = reason
            self._mail.put(None)

    def extended(self, term: Term, attempt_started: float) -> None:
        """Count a commit as a renewal where its script extended the lease: not where etcd keeps the lock.

        `attempt_started` in seconds of `elapsed`.
        """
        if self._lock.carrier != "lock":
            return
        belief = self._belief
        if belief is not None and belief.term == term and belief.trusted(self._clock.elapsed()):
            self._trust(belief, attempt_started)

    def start(self) -> None:
        """Start the thread. It campaigns from the first `progress` on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fencebeat-elector", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Resign and end the thread; called again it only waits. Safe in a signal handler, wherever it interrupts.

        Waits at most for one call and one slice of waiting: a store that hangs must not keep the process.
        """
        self._stopping = True
        self._mail.put(None)
        if self._watchdog is not None:
            self._watchdog.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._timing.call_timeout + 1.5)

    # -- the elector's own thread

    def _run(self) -> None:
        while not self._stopping:
            self._turn()
        self._finish()

    def _turn(self) -> None:
        try:
            if self._belief is None:
                self._campaign()
            else:
                self._keep(self._belief)
            self._failures = 0
        except StoreUnreachable as error:
            self._doubt("store_unreachable", error.what)
        except Exception as error:  # whatever it was, it must neither end the process nor make it leader
            log.exception("the election stumbled; this process is no leader until it is clear why")
            self._doubt("error", repr(error))

    def _campaign(self) -> None:
        if not self._ticking():
            self._say("standby", "not_ticking")
            return self._rest(self._timing.progress_within / 10)
        self._give_back()
        if self._permit is not None and (why := self._permit()) is not None:
            if not self._forbidden:  # once, and loudly: the figures in it may differ each second
                log.error("this process may not lead: %s", why)
            self._forbidden = True
            self._say("standby", why)
            return self._rest(1.0)
        self._forbidden = False
        try:
            floor = self._floor() if self._floor is not None else 0
        except Exception as error:  # noqa: BLE001 - an effect store may raise anything; all of it means: not now
            return self._recover_later(error)
        failpoint("beat.acquire.before")
        started = self._clock.elapsed()
        term = self._lock.acquire(self._nonce, floor)
        failpoint("beat.acquire.after")
        if term is None:
            self._say("standby", "another_leads")
            return self._lock.wait(1.0)
        self._nonce = secrets.token_hex(16)
        self._unreturned = term
        return self._begin(term, started)

    def _begin(self, term: Term, started: float) -> None:
        self._say("recovering", "elected", term)
        record("event", event="term.elected", token=term.token, holder=term.holder)
        log.info("elected under token %d", term.token)
        try:
            failpoint("beat.recover.before")
            if self._prepare is not None:
                self._prepare(term)
            failpoint("beat.recover.after")
        except Exception as error:  # noqa: BLE001 - an effect store may raise anything; all of it means: not now
            self._give_back(wake=False)
            return self._recover_later(error)
        self._recover_pause = RECOVER_FIRST
        self._unreturned = None
        until = trusted_until(started, term.lease, self._timing.margin)
        belief = _Belief(term, started, until)
        self._belief = belief
        if belief.trusted(self._clock.elapsed()):
            self._say("leading", "elected", term)
            self.signals.elected.send(term)
        return None

    def _keep(self, belief: _Belief) -> None:
        now = self._clock.elapsed()
        if belief.over is not None:
            return self._demote(belief, belief.over)
        if now >= belief.until:
            return self._demote(belief, "trust_over" if self._ticking() else "not_ticking")
        due = belief.anchor + self._timing.renew_every
        if now < due:
            return self._rest(min(due, belief.until) - now)
        if not self._ticking():
            return self._rest(min(0.1, belief.until - now))
        if self._permit is not None and (why := self._permit()) is not None:
            return self._demote(belief, why)
        failpoint("beat.renew.before")
        started = self._clock.elapsed()
        renewed = self._lock.renew(belief.term)
        failpoint("beat.renew.after")
        if not renewed:
            record("event", event="fence.rejected", token=belief.term.token)
            self.signals.refused.send(Loss(belief.term, "refused"))
            return self._demote(belief, "refused")
        if not belief.trusted(self._clock.elapsed()):  # yes, but too late: others may have counted on our silence
            return self._demote(belief, belief.over or "trust_over")
        self._trust(belief, started)
        return self.signals.renewed.send(belief.term)

    def _trust(self, belief: _Belief, started: float) -> None:
        belief.anchor = max(belief.anchor, started)
        belief.until = max(belief.until, trusted_until(started, belief.term.lease, self._timing.margin))

    def _demote(self, belief: _Belief, reason: str) -> None:
        belief.over = reason
        self._belief = None
        self._unreturned = belief.term  # also when fenced: with etcd the lock may be ours while the fence is not
        self._say("standby", reason)
        record("event", event="term.lost", token=belief.term.token, reason=reason)
        log.warning("term %d is over for this process: %s", belief.term.token, reason)
        self.signals.lost.send(Loss(belief.term, reason))
        self._give_back()

    def _give_back(self, *, wake: bool = True) -> None:
        """Resign what the store may still hold for us, so that nobody waits for a lease that nobody uses."""
        term = self._unreturned
        if term is None:
            return
        failpoint("beat.resign.before")
        resigned = self._lock.resign(term, wake=wake)
        failpoint("beat.resign.after")
        self._unreturned = None
        if resigned:
            record("event", event="term.resigned", token=term.token)
            self.signals.resigned.send(term)

    def _recover_later(self, error: Exception) -> None:
        why = error.what if isinstance(error, FencebeatError) else f"{type(error).__name__}: {error}"
        self._say("recovering", f"the past is not known: {why}")
        log.warning("no campaign for %.0f s, because the past is not known: %s", self._recover_pause, why)
        pause, self._recover_pause = self._recover_pause, min(RECOVER_MOST, self._recover_pause * 2)
        self._rest(pause)

    def _doubt(self, reason: str, detail: str) -> None:
        """After a call whose outcome is unknown: never more leader than before, and not again at once."""
        self._failures += 1
        belief = self._belief
        if belief is not None:  # the term may still be saved within its trust: soon, and not beyond its end
            left = max(0.0, belief.until - self._clock.elapsed())
            return self._rest(min(left, random.uniform(0.5, 1.0) * self._timing.renew_every / 4))
        if self._state.reason != reason:
            log.warning("%s: %s", reason, detail)
        self._say("standby", reason)
        most = min(RETRY_MOST, RETRY_FIRST * 2**self._failures)
        return self._rest(random.uniform(RETRY_FIRST, most))

    def _finish(self) -> None:
        """Give the term back first, then speak: the main thread may be inside a signal handler, holding the log."""
        belief, self._belief = self._belief, None
        if belief is not None:
            belief.over = belief.over or "resigned"
            self._unreturned = belief.term
        self._state = State("stopped", "resigned", self._clock.wall())
        try:
            self._give_back()
        except StoreUnreachable as error:
            log.warning("could not resign; a standby takes over when the lease ends: %s", error.what)
        finally:
            self._lock.close()

    def _ticking(self) -> bool:
        progressed = self._progressed
        return progressed is not None and self._clock.elapsed() - progressed <= self._timing.progress_within

    def _rest(self, seconds: float) -> None:
        if self._stopping:
            return
        try:
            self._mail.get(timeout=max(0.001, seconds))
        except Empty:
            return

    def _say(self, state: Phase, reason: str, term: Term | None = None) -> None:
        if (self._state.state, self._state.reason, self._state.term) == (state, reason, term):
            return
        self._state = State(state, reason, self._clock.wall(), term)
        record("event", event="state.changed", state=state, reason=reason)
        self.signals.changed.send(self._state)
        if self._wake is not None:
            self._wake()
