"""Real `celery beat` processes: start, freeze, thaw, kill, stop, and wait for what they say in the history file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fencebeat import history
from fencebeat.clock import SystemClock

POLL = 0.01
"""Seconds between two looks at the history file."""

Line = dict[str, Any]


class NotSeen(AssertionError):
    """What a drive waited for did not happen in time; the message has the end of every beat's log."""


@dataclass
class Beat:
    """One process. `name` is its `proc` in the history file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    cluster: "Cluster" = field(repr=False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (or is frozen)."""
        return self.process.poll() is None

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self.process.wait(10)

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self._signal(signal.SIGTERM)

    def stop(self, at_most: float = 10.0) -> int:
        """SIGTERM; waits and returns the exit code. Raises NotSeen when it stays."""
        if self.alive:
            self.terminate()
        try:
            return self.process.wait(at_most)
        except subprocess.TimeoutExpired:
            raise NotSeen(f"{self.name} did not stop within {at_most} s\n{self.cluster.logs()}") from None

    def wait_for(self, what: Callable[[Line], bool], at_most: float = 15.0, after: float = 0.0) -> Line:
        """The first history line of this process later than `after` for which `what` holds. Raises NotSeen."""
        return self.cluster.wait_for(lambda line: line["proc"] == self.name and what(line), at_most, after)

    def wait_until_frozen(self, at_most: float = 15.0) -> None:
        """Wait until the process is stopped by a signal, its own or ours. Raises NotSeen."""
        self.cluster.poll(lambda: self._state() == "T", at_most, f"{self.name} was not frozen")

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return ""

    def _signal(self, number: signal.Signals) -> None:
        self.cluster.nemesis.write("fault", target=self.name, target_pid=self.pid, action=number.name)
        self.process.send_signal(number)


class Cluster:
    """Beats of one namespace that share a history file. Leaving the block ends every process of it.

    settings: of the Celery application, JSON values; see `fencebeat.testing.project`. environment: of each process.
    project: the module of another application that reads its settings in the same way.
    """

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        *,
        project: str = "fencebeat.testing.project",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.history = folder, folder / "history.jsonl"
        self.redis_url, self.settings, self.environment = redis_url, settings, environment or {}
        self.project = project
        self.beats: list[Beat] = []
        self.nemesis = history.History(self.history, "nemesis")
        self._follower = history.Follower(self.history)

    def start_beat(self, name: str | None = None, *, failpoints: str = "", **environment: str) -> Beat:
        """Start one; it does not wait for anything."""
        name = name or f"beat-{len(self.beats) + 1}"
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-q", "-A", self.project, "beat"]
        command += ["-S", "fencebeat.scheduler:Scheduler", "--loglevel", "INFO", "--pidfile", ""]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=self._environment(name, failpoints, environment),
            )
        beat = Beat(name, process, log, self)
        self.beats.append(beat)
        return beat

    def _environment(self, name: str, failpoints: str, more: Mapping[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            **self.environment,
            "REDIS_URL": self.redis_url,
            "FENCEBEAT_DRIVE": json.dumps(self.settings),
            "FENCEBEAT_TESTING": "1",
            "FENCEBEAT_FAILPOINTS": failpoints,
            "FENCEBEAT_HISTORY": str(self.history),
            "FENCEBEAT_PROC": name,
            **more,
        }

    def lines(self) -> Iterator[Line]:
        """The history so far."""
        return iter(self._follower.lines())

    def wait_for(self, what: Callable[[Line], bool], at_most: float = 15.0, after: float = 0.0) -> Line:
        """The first history line later than `after` (CLOCK_BOOTTIME) for which `what` holds. Raises NotSeen."""
        found: list[Line] = []
        looked_at = 0  # a long drive has a long history: each line is looked at once

        def look() -> bool:
            nonlocal looked_at
            lines = self._follower.lines()
            found.extend(line for line in lines[looked_at:] if line["t"] > after and what(line))
            looked_at = len(lines)
            return bool(found)

        self.poll(look, at_most, "no such line in the history")
        return found[0]

    def poll(self, until: Callable[[], bool], at_most: float, complaint: str) -> None:
        """Wait until `until()` holds. Raises NotSeen with `complaint` after `at_most` seconds."""
        clock = SystemClock()
        deadline = clock.elapsed() + at_most
        while not until():
            if clock.elapsed() > deadline:
                raise NotSeen(f"{complaint} within {at_most} s\n{self.logs()}")
            time.sleep(POLL)

    def beat(self, name: str) -> Beat:
        """The process of this name."""
        return next(beat for beat in self.beats if beat.name == name)

    def logs(self, lines: int = 15) -> str:
        """The end of every beat's log."""
        parts = []
        for beat in self.beats:
            end = beat.log.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {beat.name} (exit code {beat.process.poll()})", *end]))
        return "\n".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for beat in self.beats:
            if beat.alive:
                beat.process.kill()
                beat.process.wait(10)


def elected(line: Line) -> bool:
    """Whether a history line says that a term began."""
    return line.get("event") == "term.elected"


def standing_by(line: Line) -> bool:
    """Whether a history line says that the process asked for the lock and found another leading."""
    return line.get("event") == "state.changed" and line.get("reason") == "another_leads"


def committed(line: Line) -> bool:
    """Whether a history line says that a commit put at least one tick on the queue."""
    return line["kind"] == "return" and line.get("op") == "commit" and "emitted" in line["outcome"]


def fenced(line: Line) -> bool:
    """Whether a history line says that the store refused a commit of an older term."""
    return line["kind"] == "return" and line.get("op") == "commit" and line["outcome"] == "fenced"


@contextmanager
def cluster(folder: Path, redis_url: str, **settings: Any) -> Iterator[Cluster]:
    """A cluster whose processes end with the block."""
    with Cluster(folder, redis_url, settings) as made:
        yield made
