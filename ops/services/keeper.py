"""The keeper: a process that starts others and outlives their owner just long enough to stop them.

Run as `python -m ops.services.keeper`, by `ops.services.keeping.Keeper` only. Orders come as JSON lines on standard
input, facts leave as JSON lines on standard output. Standard input is the read end of a pipe whose only write end the
owner holds (close-on-exec, so no child of the owner keeps it open): end of file says that the owner is gone or wants to
stop, and an orderly stop and a SIGKILL of the owner are the same code path. Then everything is stopped, highest rank
first, and the keeper ends.

    owner -> keeper   {"do": "start", "name", "argv", "env", "cwd", "log", "user", "signal", "grace", "rank"}
                      {"do": "stop", "name"}
    keeper -> owner   {"said": "started", "name", "pid"}   {"said": "refused", "name", "why"}
                      {"said": "ended", "name", "pid", "code"}

Each process leads its own session: a Ctrl-C in the terminal reaches only the owner. The keeper has one thread, so the
parent-death signal of its children (Linux) is reliable: it covers a SIGKILL of the keeper itself.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencebeat.clock import system_clock

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 0.5  # how late a deadline or a vanished owner may be noticed
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _dies_with_keeper(stop_signal: int, keeper: int) -> Callable[[], None] | None:
    """What a child runs before exec so that it gets `stop_signal` when the keeper dies."""
    libc = _LIBC
    if libc is None:
        return None

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, stop_signal)
        if os.getppid() != keeper:  # it died before we asked
            os._exit(1)

    return ask


@dataclass(eq=False)
class _Kept:
    """One process of the keeper's."""

    name: str
    process: subprocess.Popen[bytes]
    signal: int
    grace: float  # seconds between the stop signal and SIGKILL
    rank: int  # higher ones are stopped first
    kill_at: float | None = None  # on the elapsed clock; None: nobody asked it to stop


class _Loop:
    """Reads orders, reaps children, keeps deadlines. One thread."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._clock = system_clock()
        self._kept: dict[str, _Kept] = {}
        self._buffer = b""
        self._open = True  # the owner lives and wants its processes
        self._wake_read, wake_write = os.pipe()
        for end in (self._wake_read, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the wake-up matters
        signal.signal(signal.SIGTERM, self._asked_to_end)  # the host goes down: stop in order, as at end of file
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)

    def run(self) -> None:
        """Until the owner is gone and every process has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while self._open or self._kept:
                for key, _ in selector.select(_POLL_SECONDS):
                    if key.fd == self._wake_read:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_read, 4096)
                    elif not self._read_orders():
                        selector.unregister(key.fd)
                # A process forked off the owner without exec would hold our pipe open; the parent's id cannot lie.
                if os.getppid() != self._owner:
                    self._open = False
                self._reap()
                if not self._open:
                    self._stop_next_rank()
                self._kill_overdue()

    def _asked_to_end(self, *_: object) -> None:
        self._open = False

    def _say(self, **fact: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the owner is gone; what it would have heard has no reader
            os.write(sys.stdout.fileno(), json.dumps(fact).encode() + b"\n")

    def _read_orders(self) -> bool:
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            self._open = False
            return False
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "stop":
                self._stop(order["name"])
            elif self._open:
                self._start(order)
        return True

    def _start(self, order: dict[str, Any]) -> None:
        name, user = order["name"], order["user"]
        try:
            with open(order["log"], "ab", buffering=0) as log:  # noqa: PTH123 - unbuffered bytes, handed to the child
                process = subprocess.Popen(
                    order["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=order["env"],
                    cwd=order["cwd"],
                    user=user,
                    group=order["group"],
                    extra_groups=None if user is None else [],
                    start_new_session=True,
                    # Safe here: this process has a single thread.
                    preexec_fn=_dies_with_keeper(order["signal"], os.getpid()),  # noqa: PLW1509 - see above
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._say(said="refused", name=name, why=str(error))
            return
        self._kept[name] = _Kept(name, process, order["signal"], order["grace"], order["rank"])
        self._say(said="started", name=name, pid=process.pid)

    def _stop(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is not None and kept.kill_at is None:
            kept.kill_at = self._clock.elapsed() + kept.grace
            # Not Popen.send_signal, which reaps one that has just ended: only `_reap` may, so the id is its own.
            os.kill(kept.process.pid, kept.signal)
            os.kill(kept.process.pid, signal.SIGCONT)  # a frozen process ends too

    def _stop_next_rank(self) -> None:
        highest = max((kept.rank for kept in self._kept.values()), default=0)
        for kept in list(self._kept.values()):
            if kept.rank == highest:
                self._stop(kept.name)

    def _kill_overdue(self) -> None:
        for kept in self._kept.values():
            if kept.kill_at is not None and self._clock.elapsed() >= kept.kill_at:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(kept.process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        for kept in list(self._kept.values()):
            pid = kept.process.pid
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # Before its id is free for others: what it left in its group ends with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            code = kept.process.wait()
            del self._kept[kept.name]
            self._say(said="ended", name=kept.name, pid=pid, code=code)


if __name__ == "__main__":
    _Loop(owner=int(sys.argv[1])).run()
