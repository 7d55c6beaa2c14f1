"""Extends a claim while its task runs: one thread for each running claim, one bounded call every third of the lease."""

import logging
import threading
from collections.abc import Callable
from typing import Self

from fencebeat.errors import FencebeatError

log = logging.getLogger(__name__)


class Heartbeat:
    """A context manager around the run of a task.

    extend: holds the claim for another lease; False when it is lost for good. every: seconds between two calls.
    `lost` is set once another attempt has the claim; then nothing is extended any more. A call that fails is made
    again at the next beat: until the lease ends the claim is still held.
    """

    def __init__(self, extend: Callable[[], bool], every: float) -> None:
        self._extend, self._every = extend, every
        self._stopped = threading.Event()
        self._calling = threading.Lock()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fencebeat-claim", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Extend no more: a call that is under way is waited for, none follows. Called again it does nothing."""
        self._stopped.set()
        with self._calling:  # after a release, a late extension would take the claim again for nobody
            pass

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            with self._calling:
                if self._stopped.is_set():
                    return
                try:
                    held = self._extend()
                except FencebeatError as error:
                    log.warning("the claim of a running tick was not extended, and will be tried again: %s", error.what)
                    continue
            if not held:
                self.lost.set()
                return
