"""The time limit of a parse, asked for by the parsers themselves at every step they take.

A prefork worker's main thread may set no alarm of its own (Celery's limits use signals), a thread cannot be killed, and
a process for each document would cost more than the parsing. So the loops that could run long ask: ours, and
markdown-it's by a rule of ours at every block. What cannot ask is C code whose time grows with the bounded input only
(NFC, lxml's parser). Behind all that stands the worker's hard time limit, after which a claim ends without outcome.
"""

from fencebeat.clock import Clock


class TooSlow(Exception):
    """The limit of seconds is over."""


class Deadline:
    """An amount of time from now on."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.elapsed() + seconds

    def check(self) -> None:
        """Raises TooSlow once the time is over."""
        if self._clock.elapsed() > self._end:
            raise TooSlow
