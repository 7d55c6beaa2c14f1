"""One round of the leader: what is due, which ticks that means, their messages, one commit.

    [schedule in memory?] ──▶ due ──▶ fire times since the mark, by policy ──▶ messages ──▶ [trust?] ──▶ commit ──▶ log
     │ synchronised once       │ a page of up to 1,000 entries, then                         │            │
     │ a term, then by edits   │ batches of 100 until it is used up                          │            └─ no answer:
     │                         └─ fenced, unknown: the term is over                          │               the same
     └─ an edit, a lost definition: read what changed             not leading: nothing is sent               batch again

While the server works on one batch of a page, the next one is made. Nothing is remembered between rounds but the
schedule, the rest of a page, that next batch, a batch whose reply was lost, and entries that raised: what is due is
asked from the store, from the mark on, so a tick between two leaders is the next one's.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from fencebeat.clock import Clock
from fencebeat.entries import Entry
from fencebeat.errors import ClockRefused, FencebeatError, OverlapUnknown, StoreUnreachable, UnusableEntry
from fencebeat.failpoints import failpoint
from fencebeat.firetimes import SECOND
from fencebeat.history import record, recording
from fencebeat.jumps import JumpWatch
from fencebeat.lease import Term
from fencebeat.overlap import AGAIN, Overlap
from fencebeat.planner import Planner, nothing_in_the_way
from fencebeat.quarantine import SECONDS, Quarantine
from fencebeat.render import Renderer
from fencebeat.requests import Requests
from fencebeat.schedule_memory import ScheduleMemory
from fencebeat.signals import Signal
from fencebeat.store import Committed, Decision, DueEntries, Emission, Store
from fencebeat.ticks import instant, tick_id

log = logging.getLogger(__name__)

BATCH = 100
"""Decisions in one commit: more of them would hold other clients of the server for longer than 3 ms."""
PAGE = 1000
"""Due entries of one reply."""
ATTENTION = 0.5
"""Longest wait of a leader, in seconds: an edit is in force within a second."""
SLICE = 0.05
"""Seconds of one call spent on reading a large schedule before the thread is handed back."""


@dataclass(frozen=True)
class Batch:
    """Decisions under one term, kept until their outcome is known."""

    term: Term
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Outcome:
    """What a commit did: each decision with its outcome."""

    term: Term
    results: tuple[tuple[Decision, str], ...]


@dataclass(frozen=True)
class RoundSignals:
    """What happened, for tests."""

    committed: Signal[Outcome] = field(default_factory=Signal)
    synced: Signal[int] = field(default_factory=Signal)  # token of the term
    quarantined: Signal[str] = field(default_factory=Signal)  # entry


class Rounds:
    """The leader's work. Called by the tick thread alone, with the term it leads under."""

    def __init__(
        self,
        store: Store,
        renderer: Renderer,
        entries: Mapping[str, Entry],
        *,
        clock: Clock,
        tolerance: float,
        leading: Callable[[], Term | None],
        extended: Callable[[Term, float], None],
        flags_generation: Callable[[], int | None],
        overlap: Overlap | None = None,
        requests: Requests | None = None,
        jumps: JumpWatch | None = None,
    ) -> None:
        """entries: of the configuration. overlap: what knows of ticks under way. requests: what answers extra runs."""
        self.signals = RoundSignals()
        self.memory = ScheduleMemory(entries)
        self.quarantine = Quarantine(clock)
        self._planner = Planner(renderer, overlap.held if overlap is not None else nothing_in_the_way)
        self._store, self._renderer = store, renderer
        self._synchroniser, self._requests, self._overlap = store.synchroniser(), requests, overlap
        self._clock, self._tolerance = clock, tolerance
        self._leading, self._extended, self._flags_generation = leading, extended, flags_generation
        self._synced: Term | None = None
        self._reading: Iterator[None] | None = None  # an unfinished synchronisation
        self._doubt = False  # the store has another version of something, and no edit explains it
        self._odd: tuple[int, int] | None = None  # generation and number of entries that were looked into
        self._page: deque[tuple[str, int | None]] = deque()
        self._page_now = 0
        self._open: Batch | None = None  # sent, and its reply was lost
        self._next: tuple[Decision, ...] | None = None  # made while the batch before it was under way
        self._jumps = jumps or JumpWatch(clock)
        self._calls = count(1)

    def run(self, term: Term) -> float:
        """One round under `term`; returns the seconds until the next one is worth while, 0 for at once.

        Raises Fenced, StoreUnknown and ClockRefused, after which the term must be given up; StoreUnreachable and
        UnusableRecord, after which it may be tried again; ClockJumped.
        """
        if self._synced != term and self._reading is None:
            self.quarantine.begin(self._store.quarantined())
            self._reading = self._synchroniser.synchronise(term, self.memory, complete=False)
        if self._reading is not None and not self._read(term):
            return 0.0
        if self._open is not None:
            if self._open.term == term:
                self._commit(self._open)  # its reply was lost: what it did is answered `duplicate`
                return 0.0
            self._open = None  # of a term that is over: the store refuses it
        decisions, self._next = self._next, None
        if decisions is None:
            if not self._page and (pause := self._turn_page(term)) is not None:
                return pause
            decisions = tuple(self._decide(term))
        if decisions and self._leading() == term:
            self._commit(Batch(term, decisions))
        self.quarantine.flush(self._store, term)
        return 0.0

    def _turn_page(self, term: Term) -> float | None:
        """Ask what is due. Returns how long to wait where there is nothing to decide now, else None."""
        due = self._store.due(term, PAGE + len(self.quarantine))
        answered = self._clock.elapsed()
        self._check_clocks(due.now)
        self._reading = self._news(term, due)
        if self._reading is not None:
            return 0.0
        names: Collection[str] = due.marks
        if len(self.quarantine):
            names = [name for name in names if not self.quarantine.holds(name)]
        if self._overlap is not None:  # first: where it raises, the page is asked for again
            self._overlap.look((entry for name in names if (entry := self.memory.get(name))), due.now)
        self._page_now = due.now
        self._page.extend((name, due.marks[name]) for name in names)
        more = self._requests is not None and self._leading() == term and self._requests.serve(term, self.memory.get)
        if self._page:
            return None
        self.quarantine.flush(self._store, term)
        return 0.0 if more else self._until(due, answered)

    def forget(self) -> None:
        """Drop everything that belongs to a lost term; the store is asked anew."""
        self._synced = self._open = self._next = self._reading = self._odd = None
        self._doubt = False
        self._page.clear()
        self.memory.forget()
        self._planner.forget()

    def _read(self, term: Term) -> bool:
        """Go on reading the schedule, for a moment; returns whether it is all in memory."""
        until = self._clock.elapsed() + SLICE
        reading = self._reading
        while reading is not None:
            try:
                next(reading)
            except StopIteration:
                break
            except Exception:
                self._reading = None  # begun anew by the next call
                raise
            if self._clock.elapsed() >= until:
                return False
        self._reading, self._doubt = None, False
        unusable = {**self.memory.unreadable, **self.memory.lost}
        for name, reason in unusable.items():
            self._leave_alone(name, reason)
        for name in self.quarantine.names():
            if name not in unusable and self.memory.get(name) is None:
                self.quarantine.release(name)
        if self._synced != term:
            self._synced = term
            self.signals.synced.send(term.token)
        return True

    def _news(self, term: Term, due: DueEntries) -> Iterator[None] | None:
        """What must be read first because the store's schedule is not the one in memory."""
        if due.generation != self.memory.generation:
            return self._synchroniser.follow(term, self.memory, due.generation)
        if self._doubt:
            self._synced = None
            return self._synchroniser.synchronise(term, self.memory, complete=True)
        facts = (due.generation, due.entries)
        if due.entries != self.memory.count and facts != self._odd:
            self._odd = facts
            return self._synchroniser.synchronise(term, self.memory, complete=False)
        return None

    def _check_clocks(self, now: int) -> None:
        ahead = self._clock.wall() - now / SECOND
        if abs(ahead) > self._tolerance:
            log.error("this host's clock and the store's differ by %.1f s; it does not lead until they agree", ahead)
            raise ClockRefused(server=now)
        self._jumps.look(now)

    def _until(self, due: DueEntries, answered: float) -> float:
        if due.following is None:
            return ATTENTION
        left = due.following / 1000 - due.now / SECOND - (self._clock.elapsed() - answered) + 0.001
        return min(ATTENTION, max(0.001, left))

    def _decide(self, term: Term) -> Iterator[Decision]:
        """Decisions for the next entries of the page, entry by entry, each oldest first, about a batch."""
        room = BATCH
        while self._page and room > 0:
            name, mark = self._page.popleft()
            entry = self.memory.get(name)
            if entry is None or mark is None:
                self._unknown(name, entry)
                continue
            made = 0
            try:
                for decision in self._planner.decide(term, entry, mark, self._page_now, room):
                    made += 1
                    yield decision
                self.quarantine.release(name)
            except StoreUnreachable:
                self._page.clear()
                raise
            except OverlapUnknown as error:
                self._leave_alone(name, error.what, seconds=AGAIN)
            except UnusableEntry as error:
                self._leave_alone(name, error.what)
            except Exception as error:  # whatever one entry raises, the others go on
                log.exception("entry %s cannot be emitted; it stays due and is tried again later", name)
                self._renderer.close()
                self._leave_alone(name, f"it cannot be emitted: {error!r:.500}", logged=True)
            room -= made

    def _look_ahead(self, term: Term) -> None:
        """Make the next batch of the page: other entries than those of the batch that the server works on."""
        if self._page and self._next is None:
            try:
                self._next = tuple(self._decide(term))
            except StoreUnreachable as error:  # its ticks stay due: the next round asks for them, and says so
                log.debug("the next batch was not made while another was sent: %s", error)

    def _unknown(self, name: str, entry: Entry | None) -> None:
        if entry is not None:
            log.error("entry %s has no mark in the store; the schedule is compared", name)
            self._doubt = True
        else:
            known = {**self.memory.unreadable, **self.memory.lost}
            self._leave_alone(name, known.get(name, "it is due and has no definition. Add it again, or remove it."))

    def _leave_alone(self, name: str, reason: str, *, logged: bool = False, seconds: float = SECONDS) -> None:
        if self.quarantine.holds(name):
            return
        if not logged:
            log.error("entry %s is left alone: %s", name, reason)
        self.quarantine.put(name, reason, seconds)
        self.signals.quarantined.send(name)

    def _commit(self, batch: Batch) -> None:
        self._open = batch
        term, call = batch.term, f"c-{next(self._calls)}"
        failpoint("beat.commit.before")
        started = self._clock.elapsed()
        if recording():
            ticks = [tick_id(d.entry, d.fire_time if isinstance(d, Emission) else d.last) for d in batch.decisions]
            record("call", op="commit", id=call, token=term.token, ticks=ticks)
        try:
            committed = self._store.commit(
                term,
                batch.decisions,
                sender_now=round(self._clock.wall() * SECOND),
                flags_generation=self._flags_generation(),
                meanwhile=partial(self._look_ahead, term),
            )
        except StoreUnreachable:
            raise  # no return in the history either: its outcome is unknown, and the batch is kept
        except FencebeatError as error:
            self._open = None
            record("return", op="commit", id=call, outcome=type(error).__name__.lower())
            raise
        self._open = None
        record("return", op="commit", id=call, outcome=list(committed.outcomes))
        failpoint("beat.commit.after")
        self._extended(term, started)
        self._report(batch, committed)

    def _report(self, batch: Batch, committed: Committed) -> None:
        results = tuple(zip(batch.decisions, committed.outcomes, strict=True))
        emitted = [d for d, outcome in results if isinstance(d, Emission) and outcome == "emitted"]
        self._renderer.sent([tick.task_id for tick in emitted])
        for tick in emitted:
            self._planner.guard.emitted(tick.entry, tick.fire_time)
        if emitted:
            first, last = emitted[0], emitted[-1]
            log.info(
                "emitted: %d ticks, %s at %s to %s at %s",
                *(len(emitted), first.entry, instant(first.fire_time), last.entry, instant(last.fire_time)),
            )
        for decision, outcome in results:
            level = _LEVELS.get(outcome, logging.INFO)
            if log.isEnabledFor(level):
                last_one = decision.fire_time if isinstance(decision, Emission) else decision.last
                detail = decision.task_id if isinstance(decision, Emission) else decision.reason
                log.log(level, "%s: %s at %s (%s)", outcome, decision.entry, instant(last_one), detail)
            if outcome == "changed":
                self._doubt = True
            elif outcome == "refused":
                self._leave_alone(decision.entry, "its queue is no list in the broker.")
        self.signals.committed.send(Outcome(batch.term, results))


_LEVELS = {
    "emitted": logging.DEBUG,
    "unroutable": logging.ERROR,
    "refused": logging.ERROR,
    "early": logging.WARNING,
    "changed": logging.WARNING,
}
