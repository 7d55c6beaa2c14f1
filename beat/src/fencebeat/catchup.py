"""Catch-up: which of an entry's open fire times are emitted now, and why the others are not. Pure functions.

    latest        (default) only the newest; the older ones are superseded
    all           each of them, oldest first; of more than 1,000 only the newest 1,000
    window=30m    those not older than the window
    skip          none that is later than the grace; what lies within it counts as on time

The grace is at least two leases, so that `skip` loses no tick of a handover.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from fencebeat.firetimes import SECOND

LIMIT = 1000
"""Most ticks of one entry that `all` and `window` emit after an outage; the newest are kept."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW = re.compile(r"window=(\d+)([smhd])")


@dataclass(frozen=True)
class Passed:
    """A run of fire times that are not emitted, for one reason. `count` of them, from `first` to `last`."""

    first: int
    last: int
    count: int
    outcome: str  # skipped or superseded
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to do about the open fire times of an entry: `passed` and `emit`, each oldest first."""

    passed: tuple[Passed, ...]
    emit: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CatchUp:
    """An entry's policy for fire times that are late."""

    kind: str  # skip, latest, all or window
    grace: float  # seconds; `skip` counts a tick as missed only when it is later than this
    window: float | None = None  # seconds

    @property
    def text(self) -> str:
        """The policy as it is written in the schedule."""
        return self.kind if self.window is None else f"window={self.window:.0f}s"

    @classmethod
    def of(cls, text: str, *, grace: float | None = None, lease: float = 5.0) -> Self:
        """Read a policy. Raises ValueError for one that cannot be, TypeError for values of a wrong kind."""
        least = 2 * lease
        if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int | float)):
            raise TypeError(f"`grace` must be a number of seconds, not {grace!r}.")
        if grace is not None and grace < least:
            raise ValueError(
                f"`grace` ({grace:g} s) must be at least two leases ({least:g} s), or a handover would lose ticks."
            )
        allowed = max(least, 10.0) if grace is None else float(grace)
        if text in ("skip", "latest", "all"):
            return cls(kind=text, grace=allowed)
        if (match := _WINDOW.fullmatch(str(text))) and int(match[1]) > 0:
            return cls(kind="window", grace=allowed, window=float(int(match[1]) * _UNITS[match[2]]))
        raise ValueError(f"`catchup` is {text!r}. Use skip, latest, all, or for example window=30m.")

    def plan(self, open_times: Iterable[int], now: int, *, due_at: Callable[[int], int] | None = None) -> Plan:
        """Decide about `open_times` (ascending, none later than `now`, microseconds).

        due_at: from when on a fire time counts as late, where that is not itself (jitter); ascending, too.
        """
        times = open_times if isinstance(open_times, range) else tuple(open_times)
        match self.kind:
            case "latest":
                return _newest(times, 1, "superseded", "latest: a newer fire time is emitted in its place")
            case "skip":
                oldest = now - round(self.grace * SECOND)
                return _since(times, oldest, due_at, f"skip: later than the grace of {self.grace:g} s")
            case "window":
                oldest = now - round((self.window or 0) * SECOND)
                return _since(times, oldest, due_at, f"window: older than {self.window:g} s")
            case _:
                return _newest(times, LIMIT, "skipped", _BEYOND)


_BEYOND = f"more than {LIMIT} fire times were open; the newest are kept"


def _newest(times: Sequence[int], count: int, outcome: str, reason: str) -> Plan:
    return Plan(_passed(times[:-count], outcome, reason), tuple(times[-count:]))


def _since(times: Sequence[int], oldest: int, due_at: Callable[[int], int] | None, reason: str) -> Plan:
    first = bisect_left(times, oldest, key=due_at)
    rest = _newest(times[first:], LIMIT, "skipped", _BEYOND)
    return Plan((*_passed(times[:first], "skipped", reason), *rest.passed), rest.emit)


def _passed(times: Sequence[int], outcome: str, reason: str) -> tuple[Passed, ...]:
    return (Passed(times[0], times[-1], len(times), outcome, reason),) if times else ()
