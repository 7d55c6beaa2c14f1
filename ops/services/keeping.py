"""The owner's side of the keeper: start a process, hear that it ended, stop everything.

What was started through a `Keeper` ends with the process that made it, however that one ends.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ops.services.errors import KeeperLost

_STARTED_SECONDS = 30.0  # a fork on a loaded machine; more means that the keeper hangs


def _import_path() -> list[str]:
    """PYTHONPATH under which the keeper finds this package, also where nothing is installed."""
    given = os.environ.get("PYTHONPATH")
    return [str(Path(__file__).parents[2]), *([given] if given else [])]


@dataclass(eq=False)
class Child:
    """A process held by the keeper. `code` is its exit code (negative: the signal), None while it runs."""

    name: str
    log: Path
    pid: int = 0
    code: int | None = None
    refused: str | None = None
    answered: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    order: Mapping[str, object] = field(default_factory=dict, repr=False)  # its environment may hold secrets

    def tail(self, lines: int = 12) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 16_384))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:]) or "(empty)"


class Keeper:
    """Starts the keeper process and talks to it. A context manager; `close` stops everything.

    Args:
        log: file for what the keeper itself has to say; its folder exists.
        on_end: called in a thread of ours with each child that ended, asked to or not.
    """

    def __init__(self, log: Path, on_end: Callable[[Child], None] = lambda _: None) -> None:
        self._log = log
        self._on_end = on_end
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._lost = threading.Event()
        self._closing = False
        with log.open("ab") as errors:
            # -P: a folder named like one of our packages in the current folder is not imported instead of ours.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ops.services.keeper", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
            )
        self._reader = threading.Thread(target=self._listen, name="keeper", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._process.pid

    def start(  # noqa: D417 - the others are what `subprocess.Popen` calls so
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
        stop_signal: int = signal.SIGTERM,
        grace: float = 10.0,
        rank: int = 0,
    ) -> Child:
        """Start a process in a session of its own and return once it runs.

        Args:
            name: unique among the running ones.
            log: file its output is appended to.
            stop_signal: what asks it to end.
            grace: seconds from then to SIGKILL for its whole group.
            rank: at the end, higher ranks are stopped before lower ones.

        Raises:
            OSError: the program cannot be started.
            KeeperLost: the keeper is gone.
        """
        order = {
            "do": "start",
            "name": name,
            "argv": [str(part) for part in argv],
            "env": dict(os.environ if env is None else env),
            "cwd": None if cwd is None else str(cwd),
            "log": str(log),
            "user": user,
            "group": group,
            "signal": int(stop_signal),
            "grace": grace,
            "rank": rank,
        }
        return self._start(Child(name, log, order=order))

    def again(self, child: Child) -> Child:
        """Start a process that has ended once more, just as before. Raises as `start` does."""
        return self._start(Child(child.name, child.log, order=child.order))

    def _start(self, child: Child) -> Child:
        with self._lock:
            running = self._children.get(child.name)
            if running is not None and not running.ended.is_set():
                raise ValueError(f"{child.name} runs already, as process {running.pid}")
            self._children[child.name] = child
        self._order(child.order)
        if not child.answered.wait(_STARTED_SECONDS):
            raise KeeperLost(log=self._log)
        if child.refused is not None:
            raise OSError(f"{child.name} cannot be started: {child.refused}")
        return child

    def stop(self, child: Child, at_most: float = 60.0) -> None:
        """Ask one process to end and wait for it. Raises TimeoutError after `at_most` seconds."""
        if not child.ended.is_set():
            self._order({"do": "stop", "name": child.name})
        if not child.ended.wait(at_most):
            raise TimeoutError(f"{child.name} (process {child.pid}) did not end within {at_most} s")

    def close(self, at_most: float = 120.0) -> None:
        """Stop everything, in order of rank, and wait until the keeper ended. Safe to call twice.

        Raises subprocess.TimeoutExpired after `at_most` seconds, and KeeperLost when the keeper failed by itself.
        """
        self._closing = True
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(at_most)
        self._reader.join(at_most)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.returncode > 0:
            raise KeeperLost(log=self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, order: Mapping[str, object]) -> None:
        if self._process.stdin is None or self._process.stdin.closed or self._lost.is_set():
            raise KeeperLost(log=self._log)
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise KeeperLost(log=self._log) from None

    def _listen(self) -> None:
        ended: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        # `on_end` may order a restart, whose answer this thread has to read: it runs in another one.
        teller = threading.Thread(target=self._tell, args=(ended,), name="keeper-ends", daemon=True)
        teller.start()
        for line in self._process.stdout or ():
            fact = json.loads(line)
            child = self._children[fact["name"]]
            match fact["said"]:
                case "started":
                    child.pid = fact["pid"]
                    child.answered.set()
                case "refused":
                    child.refused = fact["why"]
                    child.ended.set()
                    child.answered.set()
                case "ended":
                    child.code = fact["code"]
                    child.ended.set()
                    ended.put(child)
        self._lost.set()
        ended.put(None)
        teller.join()
        if not self._closing:
            self._children_without_keeper()

    def _tell(self, ended: "queue.SimpleQueue[Child | None]") -> None:
        while (child := ended.get()) is not None:
            self._on_end(child)

    def _children_without_keeper(self) -> None:
        """The keeper died before us. Linux has told its children (see `keeper`); this says so to whoever waits."""
        for child in self._children.values():
            if not child.ended.is_set():
                if not child.answered.is_set():
                    child.refused = "the keeper ended"
                child.ended.set()
                child.answered.set()
                self._on_end(child)
