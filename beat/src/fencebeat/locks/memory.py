"""The lease in this process's memory: for tests and simulations, under the same contract as the real stores."""

import threading
from dataclasses import dataclass, field

from fencebeat.clock import Clock
from fencebeat.errors import Refused
from fencebeat.lease import Carrier, Term

DAY_US = 86_400 * 1_000_000


@dataclass
class MemoryStore:
    """What a server would hold. Shared by the locks of all candidates."""

    clock: Clock
    lease: float = 5.0
    token: int = 0
    term: Term | None = None
    ends: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def running(self) -> Term | None:
        """The term whose lease has not run out."""
        return self.term if self.term is not None and self.clock.elapsed() < self.ends else None

    def lose(self) -> None:
        """Forget everything, as a server that restarts without its data."""
        with self.changed:
            self.token, self.term, self.ends = 0, None, 0.0
            self.changed.notify_all()


class MemoryLock:
    """The lock of one candidate."""

    carrier: Carrier = "term"

    def __init__(self, store: MemoryStore, holder: str) -> None:
        self._store, self._holder = store, holder

    def acquire(self, nonce: str, floor: int = 0) -> Term | None:
        """See `lease.Lock.acquire`."""
        store = self._store
        with store.changed:
            now_us = int(store.clock.wall() * 1e6)
            if floor > now_us + DAY_US:
                raise Refused(why=f"the floor of tokens is more than a day ahead of the store's time ({floor}).")
            running = store.running()
            if running is not None and running.nonce != nonce:
                return None
            if running is None:
                store.token = max(store.token, floor, now_us) + 1
                store.term = Term(token=store.token, nonce=nonce, holder=self._holder, lease=store.lease)
            store.ends = store.clock.elapsed() + store.lease
            return store.term

    def wait(self, at_most: float) -> None:
        """See `lease.Lock.wait`."""
        store = self._store
        with store.changed:
            left = store.ends - store.clock.elapsed()
            if store.term is not None and left > 0:
                store.changed.wait(min(at_most, 1.0, left))

    def renew(self, term: Term) -> bool:
        """See `lease.Lock.renew`."""
        store = self._store
        with store.changed:
            if store.running() != term:
                return False
            store.ends = store.clock.elapsed() + term.lease
            return True

    def resign(self, term: Term, *, wake: bool = True) -> bool:
        """See `lease.Lock.resign`."""
        store = self._store
        with store.changed:
            if store.running() != term:
                return False
            store.term = None
            if wake:
                store.changed.notify_all()
            return True

    def holder(self) -> Term | None:
        """See `lease.Lock.holder`."""
        with self._store.changed:
            return self._store.running()

    def close(self) -> None:
        """See `lease.Lock.close`."""
