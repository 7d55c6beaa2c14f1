"""What every store of claims promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Tick:
    """One tick as its message names it."""

    entry: str
    fire_time: int  # microseconds since the epoch
    token: int  # fencing token of the term that emitted it; final stores may order their effects by it
    task_id: str  # the tick's own: the same in every copy of the message
    attempt: int = 0  # of the claim under which it runs, from 1; 0 where nothing was claimed


@dataclass(frozen=True)
class Claimed:
    """The claim is ours, as this attempt; attempts are counted from 1."""

    attempt: int


@dataclass(frozen=True)
class Running:
    """Another attempt holds the claim for `left` more seconds (above 0), unless it is extended."""

    left: float


@dataclass(frozen=True)
class Closed:
    """The tick has been run to its end."""

    outcome: str


@dataclass(frozen=True)
class ClaimState:
    """A claim as it is recorded. `left` is 0 where its lease is over; `outcome` is None while it is not closed."""

    attempt: int
    holder: str
    left: float
    outcome: str | None

    @property
    def running(self) -> bool:
        """Whether somebody holds it now."""
        return self.outcome is None and self.left > 0


class ClaimStore(Protocol):
    """Claims by tick identity (the task id). The store's own clock judges every lease.

    Each call is bounded in time and raises StoreUnreachable where it is not known whether it had an effect. A call may
    be made again: `extend`, `release` and `close` answer the same attempt the same way.
    """

    def claim(self, tick: Tick, holder: str, lease: float) -> Claimed | Running | Closed:
        """Take the tick for `lease` seconds: a new one, or one whose lease is over, as the next attempt."""
        ...

    def extend(self, task_id: str, attempt: int, lease: float) -> bool:
        """Hold it for `lease` seconds from now. False: it is closed, or another attempt has taken it."""
        ...

    def release(self, task_id: str, attempt: int) -> bool:
        """End the lease now, without an outcome. False: it is closed, or another attempt has taken it."""
        ...

    def close(self, task_id: str, attempt: int, outcome: str) -> bool:
        """Record that the tick was run to its end. False: another attempt has taken it, or there is no such claim.

        Closed already by this attempt: True, and the first outcome stays.
        """
        ...

    def look(self, task_ids: Sequence[str]) -> Mapping[str, ClaimState]:
        """What is recorded of these ticks; ticks that nobody has claimed are left out."""
        ...

    def floor(self) -> int:
        """Highest token of any claim; 0 where there is none."""
        ...

    def purge(self, older: float) -> int:
        """Forget claims that were closed more than `older` seconds ago; returns how many.

        Of each entry the newest closed claim stays, however old: what was decided last must not look undecided.
        """
        ...

    def disconnect(self) -> None:
        """Close this process's connections; the next call opens others."""
        ...
