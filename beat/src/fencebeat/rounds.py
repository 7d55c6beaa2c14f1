"""One round of the leader: what is due, which ticks that means, their messages, one commit.

    due ──▶ fire times since the mark ──▶ catch-up policy ──▶ messages ──▶ [trust?] ──▶ commit ──▶ events, log
     │                                                                        │            │
     └─ fenced, unknown: the term is over          not leading: nothing is sent            └─ no answer: asked again
                                                                                              with the same batch

Nothing is remembered between rounds but the schedule, a batch whose reply was lost, and entries that raised: what is
due is asked from the store each time, from the mark on, so a tick between two leaders belongs to the next one.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from fencebeat.clock import Clock
from fencebeat.entries import Entry
from fencebeat.errors import ClockJumped, ClockRefused, FencebeatError, StoreUnreachable
from fencebeat.failpoints import failpoint
from fencebeat.firetimes import SECOND, fire_times
from fencebeat.history import record
from fencebeat.lease import Term
from fencebeat.render import Renderer
from fencebeat.signals import Signal
from fencebeat.store import Committed, Decision, DueEntries, Emission, Pass, Store
from fencebeat.ticks import instant, tick_id

log = logging.getLogger(__name__)

BATCH = 100
"""Decisions in one commit: more of them would hold other clients of the server for longer than 3 ms."""
QUARANTINE = 30.0
"""Seconds for which an entry that raised is left alone; it stays due, the others go on."""
JUMP = 86_400 * SECOND
"""A step of the store's clock beyond this stops emission: no mark may move into a future that is a mistake."""


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
    ) -> None:
        self.signals = RoundSignals()
        self._store, self._renderer, self._entries = store, renderer, entries
        self._clock, self._tolerance = clock, tolerance
        self._leading, self._extended, self._flags_generation = leading, extended, flags_generation
        self._synced: Term | None = None
        self._open: Batch | None = None
        self._quarantined: dict[str, float] = {}  # entry -> when to try again, in seconds of `elapsed`
        self._seen: tuple[int, float] | None = None  # the store's time, and ours when it said so
        self._calls = count(1)

    def run(self, term: Term) -> float:
        """One round under `term`; returns the seconds until the next one is worth while, 0 for at once.

        Raises Fenced, StoreUnknown and ClockRefused, after which the term must be given up; StoreUnreachable and
        UnusableRecord, after which it may be tried again; ClockJumped.
        """
        if self._synced != term:
            self._store.sync(term, self._entries)
            self._synced = term
            self.signals.synced.send(term.token)
        if self._open is not None:
            if self._open.term == term:
                self._commit(self._open)  # its reply was lost: what it did is answered `duplicate`
                return 0.0
            self._open = None  # of a term that is over: the store refuses it
        due = self._store.due(term, BATCH + len(self._quarantined))
        answered = self._clock.elapsed()
        self._check_clocks(due.now, answered)
        decisions = tuple(self._decide(term, due))
        if not decisions:
            return self._until(due, answered)
        if self._leading() == term:
            self._commit(Batch(term, decisions))
        return 0.0

    def forget(self) -> None:
        """Drop everything that belongs to a lost term; the store is asked anew."""
        self._synced = self._open = self._seen = None

    def _check_clocks(self, now: int, answered: float) -> None:
        ahead = self._clock.wall() - now / SECOND
        if abs(ahead) > self._tolerance:
            log.error("this host's clock and the store's differ by %.1f s; it does not lead until they agree", ahead)
            raise ClockRefused(server=now)
        if self._seen is not None:
            then, at = self._seen
            step = now - then - round((answered - at) * SECOND)
            if step > JUMP:
                raise ClockJumped(days=step / JUMP)
        self._seen = (now, answered)

    def _until(self, due: DueEntries, answered: float) -> float:
        if due.following is None:
            return 1.0
        return max(0.001, due.following / 1000 - due.now / SECOND - (self._clock.elapsed() - answered) + 0.001)

    def _decide(self, term: Term, due: DueEntries) -> Iterator[Decision]:
        """Decisions for what is due, entry by entry, each oldest first, at most a batch."""
        room = BATCH
        for name, mark in due.marks.items():
            entry = self._entries.get(name)
            if self._clock.elapsed() < self._quarantined.get(name, 0.0):
                continue
            if entry is None or mark is None:
                log.warning("entry %s is due in the store but not as this configuration knows it; syncing", name)
                self._synced = None
                continue
            made: list[Decision] = []
            try:
                for decision in self._plan(term, entry, mark, due.now, room):
                    made.append(decision)  # noqa: PERF402 - what was made before an entry raises is kept
                self._quarantined.pop(name, None)
            except StoreUnreachable:
                raise
            except Exception:  # whatever one entry raises, the others go on
                log.exception("entry %s cannot be emitted; it stays due and is tried again in %.0f s", name, QUARANTINE)
                self._quarantined[name] = self._clock.elapsed() + QUARANTINE
                self._renderer.close()
                self.signals.quarantined.send(name)
            yield from made
            room -= len(made)
            if room <= 0:
                return

    def _plan(self, term: Term, entry: Entry, mark: int, now: int, room: int) -> Iterator[Decision]:
        plan = entry.catchup.plan(fire_times(entry.rule, entry.zone, mark, now), now)
        starts = [*(run.first for run in plan.passed), *plan.emit]
        following = [*starts[1:], entry.next_after(starts[-1] if plan.emit else plan.passed[-1].last)] if starts else []
        for run, then in zip(plan.passed, following, strict=False):
            yield Pass(
                entry=entry.name,
                version=entry.version,
                first=run.first,
                last=run.last,
                count=run.count,
                following=then,
                outcome=run.outcome,
                reason=run.reason,
            )
        for fire_time, then in zip(plan.emit[: max(0, room)], following[len(plan.passed) :], strict=False):
            identity, message = self._renderer.render(entry, fire_time, term.token)
            yield Emission(
                entry=entry.name,
                version=entry.version,
                fire_time=fire_time,
                following=then,
                task_id=identity,
                message=message,
            )

    def _commit(self, batch: Batch) -> None:
        self._open = batch
        term, call = batch.term, f"c-{next(self._calls)}"
        ticks = [tick_id(d.entry, d.fire_time if isinstance(d, Emission) else d.last) for d in batch.decisions]
        failpoint("beat.commit.before")
        started = self._clock.elapsed()
        record("call", op="commit", id=call, token=term.token, ticks=ticks)
        try:
            committed = self._store.commit(
                term,
                batch.decisions,
                sender_now=round(self._clock.wall() * SECOND),
                flags_generation=self._flags_generation(),
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
        self._renderer.sent([d.task_id for d, outcome in results if isinstance(d, Emission) and outcome == "emitted"])
        for decision, outcome in results:
            last = decision.fire_time if isinstance(decision, Emission) else decision.last
            detail = decision.task_id if isinstance(decision, Emission) else decision.reason
            level = _LEVELS.get(outcome, logging.INFO)
            log.log(level, "%s: %s at %s (%s)", outcome, decision.entry, instant(last), detail)
            if outcome == "changed":
                self._synced = None
            elif outcome == "refused":
                self._quarantined[decision.entry] = self._clock.elapsed() + QUARANTINE
        self.signals.committed.send(Outcome(batch.term, results))


_LEVELS = {"unroutable": logging.ERROR, "refused": logging.ERROR, "early": logging.WARNING, "changed": logging.WARNING}
