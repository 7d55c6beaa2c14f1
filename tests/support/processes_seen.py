"""What /proc says about processes: which live, and who descends from whom."""

import threading
from pathlib import Path

from fencebeat.clock import system_clock


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on (state, parent, ...); None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rsplit(")", 1)[1].split()


def identity(pid: int) -> tuple[int, str] | None:
    """The id and the start time, which no later process shares; None when it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else (pid, fields[19])


def family(*roots: int) -> set[tuple[int, str]]:
    """Identities of these processes and of all that descend from them now."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(fields[1])
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {seen for pid in found if (seen := identity(pid)) is not None}


def alive(identities: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those that still live."""
    return {seen for seen in identities if identity(seen[0]) == seen}


def wait_until_gone(identities: set[tuple[int, str]], at_most: float = 30.0) -> None:
    """Raises AssertionError naming those that still live after `at_most` seconds."""
    clock, pause = system_clock(), threading.Event()
    until = clock.elapsed() + at_most
    while left := alive(identities):
        if clock.elapsed() > until:
            names = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120] for pid, _ in left]
            raise AssertionError(f"still alive after {at_most} s: {names}")
        pause.wait(0.02)
