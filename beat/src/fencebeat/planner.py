"""From one due entry to decisions: which of its open ticks are emitted, with which message, and what is passed over.

May raise whatever rendering raises; the caller leaves the entry alone then, and what was decided before stands.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from fencebeat.entries import Entry
from fencebeat.errors import FiresTooOften
from fencebeat.lease import Term
from fencebeat.overlap import Way
from fencebeat.render import Renderer
from fencebeat.store import Decision, Emission, Pass

log = logging.getLogger(__name__)

Held = Callable[[Entry, int], Way]
"""Whether a tick of an entry that must not overlap is passed over: entry, fire time."""


def nothing_in_the_way(_entry: Entry, _fire_time: int) -> Way:
    """No overlap is known of."""
    return Way(blocked=False)


class RateGuard:
    """An entry is not emitted more often than its fire times go by: each one once, but for one replay in a term.

    That the mark forbids a repeat is the store's business. This guard holds when the store's mark itself falls, again
    and again, or when fire times stand still: whatever the fault is, it must not flood the queue. One fall is what a
    failover to a replica that lagged looks like; those ticks are due again, under the same task ids.
    """

    def __init__(self) -> None:
        self._emitted: dict[str, int] = {}
        self._replayed: set[str] = set()

    def check(self, entry: str, fire_time: int) -> None:
        """Raises FiresTooOften."""
        newest = self._emitted.get(entry)
        if newest is None or fire_time > newest:
            return
        if entry in self._replayed:
            raise FiresTooOften(name=entry, fire_time=fire_time)
        log.warning("the store's mark of %s fell: ticks are emitted again, under the same task ids", entry)
        self._replayed.add(entry)
        del self._emitted[entry]

    def emitted(self, entry: str, fire_time: int) -> None:
        """The store took it."""
        self._emitted[entry] = fire_time


class Planner:
    """Makes decisions. One thread."""

    def __init__(self, renderer: Renderer, held: Held = nothing_in_the_way) -> None:
        self._renderer, self._held = renderer, held
        self.guard = RateGuard()

    def decide(self, term: Term, entry: Entry, mark: int, now: int, room: int) -> Iterator[Decision]:
        """Decisions about the ticks of `entry` that are open at `now`, oldest first; at most `room` emissions.

        A tick that is passed over because of an overlap counts as an emission here.
        """
        plan = entry.plan(mark, now)
        starts = [*(run.first for run in plan.passed), *plan.emit]
        if not starts:
            return
        after = entry.next_after(starts[-1] if plan.emit else plan.passed[-1].last)
        nexts = iter([*starts[1:], after])
        for run in plan.passed:
            following = next(nexts)
            yield Pass(
                entry=entry.name,
                version=entry.version,
                first=run.first,
                last=run.last,
                count=run.count,
                following=None if following is None else entry.due_at(following),
                outcome=run.outcome,
                reason=run.reason,
            )
        for fire_time, following in islice(zip(plan.emit, nexts, strict=True), max(0, room)):
            due = None if following is None else entry.due_at(following)
            note = ""
            if entry.overlap == "skip":
                blocked, note = self._held(entry, fire_time)
                if blocked:
                    yield Pass(entry.name, entry.version, fire_time, fire_time, 1, due, "skipped", note)
                    continue
            self.guard.check(entry.name, fire_time)
            identity, message = self._renderer.render(entry, fire_time, term.token)
            yield Emission(
                entry=entry.name,
                version=entry.version,
                fire_time=fire_time,
                following=due,
                task_id=identity,
                message=message,
                guarded=self._renderer.guarded(entry),
                note=note,
            )

    def forget(self) -> None:
        """A term is over."""
        self.guard = RateGuard()
