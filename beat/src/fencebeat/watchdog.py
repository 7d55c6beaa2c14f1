"""Ends this process when its tick thread hangs, also where a C call holds the interpreter lock.

No thread of a hung interpreter can do that, so a small process watches. A deadline inside the process
(`faulthandler.dump_traceback_later`) cannot tell a hang from a freeze: a process that was stopped for longer than the
limit would be ended on waking, although it only has to step down. The watcher does not count the time in which its
owner is stopped, nor more than one slice for any pause of its own.
"""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = 12
"""Seconds of silence after which the owner is ended; with slices of a second, within 15 s."""

_WATCH = Path(__file__).with_name("_watch.py")


class Watchdog:
    """The owner's side: call `beat` from the thread that must not hang."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._watcher: subprocess.Popen[bytes] | None = None

    def beat(self) -> None:
        """Say that the thread goes round. The first call starts the watcher. Never blocks."""
        if self._watcher is None:
            self._watcher = self._start()
        pipe = self._watcher.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it has enough; broken: it was ended
                os.write(pipe.fileno(), b".")

    def close(self) -> None:
        """Call the watcher off. Called again it does nothing."""
        watcher = self._watcher
        if watcher is not None and watcher.stdin is not None and not watcher.stdin.closed:
            watcher.kill()  # at once, because this may be a signal handler
            watcher.stdin.close()
            watcher.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        faulthandler.enable(file=2)  # SIGABRT then writes all stacks; by number, because Celery puts a proxy at stderr
        command = [
            sys.executable,
            "-I",
            "-S",
            str(_WATCH),
            str(os.getpid()),
            str(self._limit),
            str(int(signal.SIGABRT)),
        ]
        watcher = subprocess.Popen(  # a session of its own: Ctrl-C at the terminal is for the owner
            command, stdin=subprocess.PIPE, start_new_session=True
        )
        if watcher.stdin is not None:
            os.set_blocking(watcher.stdin.fileno(), False)
        return watcher
