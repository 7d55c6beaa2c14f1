"""Signals by which a loop tells a test what happened, so that no test sleeps."""

from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Signal(Generic[T]):
    """Tells a test that something happened. Free until a test calls `listen`."""

    def __init__(self) -> None:
        self._seen: SimpleQueue[T] | None = None

    def listen(self) -> None:
        """Start to keep what is sent from now on."""
        self._seen = SimpleQueue()

    def send(self, value: T) -> None:
        """Report `value`; dropped when nobody listens."""
        if self._seen is not None:
            self._seen.put(value)

    def wait(self, at_most: float = 5.0) -> T:
        """Next value, in order. Raises `queue.Empty` when none arrives within `at_most` seconds."""
        if self._seen is None:
            msg = "call listen() before the code under test starts"
            raise RuntimeError(msg)
        return self._seen.get(timeout=at_most)
