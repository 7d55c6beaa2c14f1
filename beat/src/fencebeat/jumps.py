"""Whether the store's clock went forward by more than a day at once.

One for a process, not one for a term: the jump itself ends every lease, so the next term must know what the last one
saw. A standby looks, too, whenever it asks whether it may lead. A process that starts has seen nothing: starting the
beats anew is how people say that the new time is right.
"""

from fencebeat.clock import Clock
from fencebeat.errors import ClockJumped

SECOND = 1_000_000
JUMP = 86_400 * SECOND
"""Microseconds: a step beyond this stops emission, for no mark may move into a future that is a mistake."""


class JumpWatch:
    """Remembers the store's time and ours when it said so. Two threads may look: what is kept is one tuple."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[int, float] | None = None

    def look(self, now: int) -> None:
        """`now`: the store's time in microseconds. Raises ClockJumped, until the store's clock is back."""
        elapsed = self._clock.elapsed()
        if self._seen is not None:
            then, at = self._seen
            step = now - then - round((elapsed - at) * SECOND)
            if step > JUMP:
                raise ClockJumped(days=step / JUMP)
        self._seen = (now, elapsed)
