"""A thread of a beat that does one thing again and again, leader or not, until it is told to end."""

import threading
from abc import ABC, abstractmethod


class Repeated(ABC):
    """The thread. name: of the thread. every: seconds between two turns."""

    def __init__(self, name: str, every: float) -> None:
        self._name, self._every = name, every
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self, at_most: float = 5.0) -> None:
        """End the thread and wait for it. Not for signal handlers. Called again it does nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(at_most)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._once()
            self._stopping.wait(self._every)

    @abstractmethod
    def _once(self) -> None:
        """One turn. What it raises would end the thread."""
