"""A small model of belief: how long two processes may think that they lead, with clocks that run.

Time goes on in whole units. A request starts, reaches the store later, and its answer arrives later still; the store
ends a lease by its own clock. A process's clock may miss one unit, as a clock that runs slow does. The fence is not in
this model: it makes overlapping beliefs harmless, and the trust window makes them not happen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.search import Step

END = 8
LEASE, MARGIN = 4, 1


class Believer(NamedTuple):
    """One process. Times are by its own clock; None: nothing of the kind."""

    until: int | None = None  # trusts its lease until then
    started: int | None = None  # a request is under way since then
    granted: bool | None = None  # what the store has answered to it; None: the request has not reached it
    missed: int = 0  # units that its clock did not count


class Lease(NamedTuple):
    """The state of the world."""

    now: int
    holder: int | None
    ends: int
    processes: tuple[Believer, ...]


@dataclass(frozen=True)
class Beliefs:
    """anchored: trust counts from the start of the attempt. margin: trust ends this long before the lease."""

    anchored: bool = True
    margin: int = MARGIN
    slow: bool = True  # one clock may miss one unit

    def start(self) -> Lease:
        """Nobody holds the lease."""
        return Lease(0, None, 0, (Believer(), Believer()))

    def steps(self, state: Lease) -> Iterator[Step]:
        """Every step; a state in which two believe breaks I4."""
        for step in self._all(state):
            after: Lease = step.state  # type: ignore[assignment]  # ours
            both = [after.now - p.missed < p.until for p in after.processes if p.until is not None]
            yield step._replace(broken="I4", why="two trust their lease") if sum(both) > 1 else step

    def _all(self, state: Lease) -> Iterator[Step]:
        now, holder, ends, processes = state
        if now < END:
            yield Step(f"time {now + 1}", state._replace(now=now + 1))
            if self.slow:
                for index, process in enumerate(processes):
                    if not any(other.missed for other in processes):
                        slow = _put(processes, index, process._replace(missed=1))
                        yield Step(f"time {now + 1}, not for beat {index + 1}", Lease(now + 1, holder, ends, slow))
        for index, process in enumerate(processes):
            who, own = f"beat {index + 1}", now - process.missed
            if process.started is None:
                asking = process._replace(started=own)
                yield Step(f"{who} asks for the lease", state._replace(processes=_put(processes, index, asking)))
            elif process.granted is None:
                free = holder in (None, index) or now >= ends
                answered = _put(processes, index, process._replace(granted=free))
                moved = (index, now + LEASE) if free else (holder, ends)
                yield Step(f"the store answers {who}: {free}", Lease(now, *moved, answered))
            else:
                since = process.started if self.anchored else own
                until = max(since + LEASE - self.margin, process.until or 0) if process.granted else process.until
                heard = Believer(until=until, missed=process.missed)
                yield Step(f"{who} hears it", state._replace(processes=_put(processes, index, heard)))


def _put(processes: tuple[Believer, ...], index: int, process: Believer) -> tuple[Believer, ...]:
    return (*processes[:index], process, *processes[index + 1 :])
