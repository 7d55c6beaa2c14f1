"""Keeps processes running: one that ends unasked is started again, with a growing pause, and somebody is told."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fencebeat.clock import Clock, system_clock
from ops.services import Child, Keeper
from ops.services.errors import KeeperLost, ProcessFailed

FIRST_PAUSE = 0.5  # seconds before the first restart; doubled at each that follows soon
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 30.0  # one that ran so long has its short pause back
HOPELESS = 6  # ends in a row after which a one-off run gives up


@dataclass(eq=False)
class _Kept:
    child: Child
    started: float
    ends_in_a_row: int = 0
    timer: threading.Timer | None = field(default=None, repr=False)


class Supervisor:
    """Starts processes again when they end. `on_end` is to be given to the keeper that holds them.

    Args:
        told: gets a sentence for each unexpected end, from a thread of the keeper's.
    """

    def __init__(self, told: Callable[[str], None], clock: Clock | None = None) -> None:
        self._told = told
        self._clock = clock or system_clock()
        self._keeper: Keeper | None = None
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self.restarts = 0

    def attach(self, keeper: Keeper) -> None:
        """Say which keeper holds the processes."""
        self._keeper = keeper

    def adopt(self, child: Child) -> None:
        """Keep this process running from now on."""
        with self._lock:
            self._kept[child.name] = _Kept(child, self._clock.elapsed())
        if child.ended.is_set():  # before it was noted here, so `on_end` knew nothing of it
            self.on_end(child)

    def on_end(self, child: Child) -> None:
        """A process ended: unless we are stopping, say so and start it again after a pause."""
        with self._lock:
            kept = self._kept.get(child.name)
            if self._stopping or kept is None or kept.child is not child or kept.timer is not None:
                return
            steady = self._clock.elapsed() - kept.started >= STEADY_SECONDS
            kept.ends_in_a_row = 1 if steady else kept.ends_in_a_row + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (kept.ends_in_a_row - 1))
            kept.timer = threading.Timer(pause, self._again, [kept])
            kept.timer.daemon = True
            kept.timer.start()
        last = child.tail(1)
        self._told(f"{child.name} ended with code {child.code}; again in {pause:g} s. Its last line: {last}")

    def check(self) -> None:
        """Raise ProcessFailed when one ended again and again."""
        with self._lock:
            for kept in self._kept.values():
                if kept.ends_in_a_row >= HOPELESS:
                    child = kept.child
                    raise ProcessFailed(
                        name=child.name, times=kept.ends_in_a_row, code=child.code, log=child.log, tail=child.tail()
                    )

    def release(self) -> None:
        """From now on an end is nobody's fault: nothing is started again. The keeper stops what runs."""
        with self._lock:
            self._stopping = True
            for kept in self._kept.values():
                if kept.timer is not None:
                    kept.timer.cancel()

    def _again(self, kept: _Kept) -> None:
        with self._lock:
            if self._stopping or self._keeper is None:
                return
        try:
            child = self._keeper.again(kept.child)
        except (OSError, KeeperLost) as error:
            self._told(f"{kept.child.name} could not be started again: {error}")
            return
        with self._lock:
            self.restarts += 1
            kept.child, kept.started, kept.timer = child, self._clock.elapsed(), None
        if child.ended.is_set():
            self.on_end(child)
