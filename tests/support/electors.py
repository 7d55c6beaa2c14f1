"""An elector with a tick thread that does nothing but go round, as a test needs it."""

import threading

from fencebeat.clock import Clock, SystemClock
from fencebeat.elector import Elector
from fencebeat.lease import LeaseTiming, Lock, Term


class Candidate:
    """An elector and its ticker. `hang` and `go_on` stop and resume the ticker."""

    def __init__(self, lock: Lock, timing: LeaseTiming, *, clock: Clock | None = None, **options) -> None:
        self.lock = lock
        self.elector = Elector(lock, timing, clock=clock or SystemClock(), **options)
        self.signals = self.elector.signals
        for signal in vars(self.signals).values():
            signal.listen()
        self._hanging, self._ending = threading.Event(), threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def start(self) -> "Candidate":
        self.elector.start()
        self._ticker.start()
        return self

    def elected(self, at_most: float = 10.0) -> Term:
        return self.signals.elected.wait(at_most)

    def hang(self) -> None:
        self._hanging.set()

    def go_on(self) -> None:
        self._hanging.clear()

    def stop(self) -> None:
        self._ending.set()
        if self._ticker.is_alive():
            self._ticker.join(5)
        self.elector.stop()

    def _tick(self) -> None:
        while not self._ending.wait(0.02):
            if not self._hanging.is_set():
                self.elector.progress()


class Shaky:
    """A lock whose requests a test makes fail, before or after they reach the store, or be late."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.carrier = lock.carrier
        self.before: dict[str, list[BaseException]] = {}
        self.after: dict[str, list[BaseException]] = {}
        self.gates: dict[str, threading.Event] = {}
        self.calls: list[str] = []

    def _call(self, name, *args, **options):
        self.calls.append(name)
        if self.before.get(name):
            raise self.before[name].pop(0)
        answer = getattr(self._lock, name)(*args, **options)
        if (gate := self.gates.get(name)) is not None:
            assert gate.wait(30)
        if self.after.get(name):
            raise self.after[name].pop(0)
        return answer

    def acquire(self, nonce, floor=0):
        return self._call("acquire", nonce, floor)

    def renew(self, term):
        return self._call("renew", term)

    def resign(self, term, *, wake=True):
        return self._call("resign", term, wake=wake)

    def wait(self, at_most):
        return self._call("wait", at_most)

    def holder(self):
        return self._lock.holder()

    def close(self):
        self._lock.close()
