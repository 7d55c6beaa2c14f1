"""Threads of which exactly one runs, and only as far as its next call of a port: interleavings that repeat.

An actor stands still before each call of a port, after it, and while it rests. Whoever holds the world lets one of them
take a step. A frozen actor is one that is not stepped; a killed one ends at the place where it stands.
"""

import threading
from collections.abc import Callable
from typing import Any

HANDOVER = 30.0
"""Seconds of real time for one step; longer means that an actor waits for something outside of the simulation."""


class Killed(BaseException):
    """Ends an actor where it stands. No `except Exception` of the product stops it."""


class Actor:
    """One thread. `until`: virtual time before which it rests; `wakes`: what ends the rest earlier."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.where = "start"
        self.until = 0.0
        self.wakes: Callable[[], bool] | None = None
        self.ended = False
        self.trouble: BaseException | None = None
        self.fault: str | None = None  # of its next call: `request` or `reply` is lost
        self._body, self._killed = body, False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ready(self, now: float) -> bool:
        """Whether a step would do anything."""
        return not self.ended and (now >= self.until or (self.wakes is not None and self.wakes()))

    def step(self) -> None:
        """Run to the next stop. Raises what ended the actor, unless it was killed."""
        self._hand_over()
        if self.trouble is not None:
            raise self.trouble

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        while not self.ended:
            self._hand_over()
        self._thread.join(HANDOVER)

    def stop_here(self, where: str, until: float = 0.0, wakes: Callable[[], bool] | None = None) -> None:
        """Called by the actor itself: stand still until the next step."""
        if self._killed:
            raise Killed
        self.where, self.until, self.wakes = where, until, wakes
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _hand_over(self) -> None:
        if self.ended:
            return
        self._go.release()
        if not self._back.acquire(timeout=HANDOVER):
            raise AssertionError(f"{self.name} does not come back from {self.where}")

    def _run(self) -> None:
        _here.actor = self
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `step`, in the thread of the test
            self.trouble = error
        finally:
            self.ended = True
            self._back.release()


class _Here(threading.local):
    actor: Actor | None = None


_here = _Here()


def here() -> Actor | None:
    """The actor whose thread this is; None in the thread of the test."""
    return _here.actor


def ask(name: str, call: Callable[[], Any], lost: Callable[[], Exception]) -> Any:
    """A call of a port, with a stop before and after it. `lost` makes the error of a request or reply that is lost."""
    actor = here()
    if actor is None:
        return call()
    actor.stop_here(f"before {name}")
    fault, actor.fault = actor.fault, None
    if fault == "request":
        raise lost()
    answer = call()
    actor.stop_here(f"after {name}")
    fault, actor.fault = actor.fault or fault, None
    if fault == "reply":
        raise lost()
    return answer
