"""The history file: one JSON object a line, one `write` a line, appended by every process of a run.

Lines of several processes stay whole and apart, also under SIGKILL, because each is one write to a file opened for
append. `t` is CLOCK_BOOTTIME, read past every injected clock. Without FENCEBEAT_HISTORY nothing is written.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class History:
    """Writes to one history file."""

    def __init__(self, path: Path, proc: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._proc = proc
        self._pid = os.getpid()
        self._seq = 0
        self._lock = threading.Lock()

    def write(self, kind: str, **facts: Any) -> None:
        """Append one line. `kind` is call, return, event, failpoint or fault; facts are JSON values."""
        if os.getpid() != self._pid:  # a forked child numbers its own lines
            self._pid, self._seq, self._lock = os.getpid(), 0, threading.Lock()
        with self._lock:
            self._seq += 1
            line = {
                "t": round(time.clock_gettime(time.CLOCK_BOOTTIME), 6),
                "seq": self._seq,
                "proc": self._proc,
                "pid": self._pid,
                "kind": kind,
                **facts,
            }
            os.write(self._fd, json.dumps(line, default=str).encode() + b"\n")


_current: History | None = None
_known: str | None = None
_opening = threading.Lock()


def record(kind: str, **facts: Any) -> None:
    """Append a line to the file named by FENCEBEAT_HISTORY, as the process named by FENCEBEAT_PROC; else do nothing."""
    global _current, _known  # noqa: PLW0603 - one file per process, opened at the first line
    path = os.environ.get("FENCEBEAT_HISTORY")
    if path != _known:
        with _opening:  # known last: another thread must not find the path known and the file not yet open
            if path != _known:
                proc = os.environ.get("FENCEBEAT_PROC", f"pid-{os.getpid()}")
                _current = History(Path(path), proc) if path else None
                _known = path
    if _current is not None:
        _current.write(kind, **facts)


def recording() -> bool:
    """Whether `record` writes anything; for facts that cost something to gather."""
    return "FENCEBEAT_HISTORY" in os.environ


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history file so far, oldest first; a line that is still being written is left out."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


class Follower:
    """A history file read as it grows: each line is parsed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes
        self._lines: list[dict[str, Any]] = []

    def lines(self) -> list[dict[str, Any]]:
        """The lines so far, oldest first, as `read` gives them. The list is the follower's own: do not change it."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._lines.extend(json.loads(line) for line in whole.splitlines())
            self._read += len(whole)
        return self._lines
