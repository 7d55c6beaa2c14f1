"""Wait for something to become true, with a deadline, looking often: tests do not sleep and hope."""

import threading
from collections.abc import Callable
from typing import TypeVar

from fencebeat.clock import SystemClock

T = TypeVar("T")

_LOOK_SECONDS = 0.02


def until(look: Callable[[], T | None], *, at_most: float = 10.0, what: str = "") -> T:
    """The first true answer of `look`. Fails after `at_most` seconds, saying what was waited for and seen last."""
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.elapsed() + at_most
    while True:
        seen = look()
        if seen:
            return seen
        if clock.elapsed() > deadline:
            raise AssertionError(f"{what or 'it'} did not come true within {at_most:g} s; last seen: {seen!r}")
        pause.wait(_LOOK_SECONDS)
