"""Two clocks in one injected object. Nothing else in fencebeat reads a clock.

`elapsed` is for durations: CLOCK_BOOTTIME, because `time.monotonic` does not count the time a host was suspended.
`wall` is for schedules and records. With FENCEBEAT_TESTING=1 the file named by FENCEBEAT_TEST_CLOCK may move both.
"""

import json
import os
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What the code may ask about time."""

    def elapsed(self) -> float:
        """Seconds since an arbitrary start, suspend included; for durations only."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, UTC; for schedules and records."""
        ...


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.perf_counter()


class SystemClock:
    """The clocks of this host."""

    def elapsed(self) -> float:
        """See `Clock.elapsed`."""
        return _boottime()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.clock_gettime(time.CLOCK_REALTIME)


class FileClock(SystemClock):
    """The host's clocks, moved by a JSON file: {"wall": seconds, "elapsed": seconds, "rate": factor}. Tests only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._anchor = _boottime()

    def _moved(self) -> dict[str, float]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def elapsed(self) -> float:
        """Elapsed time with the file's rate since this object was made, plus its offset."""
        moved = self._moved()
        return self._anchor + (_boottime() - self._anchor) * moved.get("rate", 1.0) + moved.get("elapsed", 0.0)

    def wall(self) -> float:
        """Wall time plus the file's offset."""
        return super().wall() + self._moved().get("wall", 0.0)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, wall: float = 0.0, elapsed: float = 0.0) -> None:
        self._wall, self._elapsed = wall, elapsed

    def elapsed(self) -> float:
        """See `Clock.elapsed`."""
        return self._elapsed

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`."""
        self._wall += seconds
        self._elapsed += seconds


def system_clock() -> Clock:
    """The clock a process runs by: the host's, or the file's in a test (see the module docstring)."""
    path = os.environ.get("FENCEBEAT_TEST_CLOCK")
    if path and os.environ.get("FENCEBEAT_TESTING") == "1":
        return FileClock(Path(path))
    return SystemClock()
