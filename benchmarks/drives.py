"""What the drives of several benchmarks share: a server, schedules with a tick every few milliseconds, RedBeat's beats.

RedBeat runs from a project file of its own with the same entries, on the same server in the same run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from ops.services import Services

Schedule = dict[str, dict[str, Any]]

REDBEAT_PROJECT = """
import json, os
from celery import Celery

told = json.loads(os.environ["PEER"])
app = Celery("peer", broker=os.environ["REDIS_URL"], set_as_current=False)
app.conf.update(told)
app.conf.redbeat_redis_url = os.environ["REDIS_URL"]


@app.task(name="drive.work")
def work(*_args, **_kwargs):
    pass
"""


@contextmanager
def server() -> Iterator[tuple[Path, str]]:
    """A folder and a Valkey for one benchmark."""
    with tempfile.TemporaryDirectory(prefix="fencebeat-bench-") as folder:
        services = Services(Path(folder) / "server", ("valkey",), durable=False, environ={})
        try:
            url = services.start().redis_url
            assert url is not None
            yield Path(folder), url
        finally:
            services.stop()


def client(url: str) -> redis.Redis:
    """A client that gives text."""
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=30, socket_connect_timeout=5)


def every_second(count: int, queue: str) -> Schedule:
    """`count` entries that fire once a second each, spread evenly over it: something is due every 1/`count` s."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        f"entry-{number:03}": {
            "task": "drive.work",
            "schedule": 1.0,
            "options": {"queue": queue},
            "fencebeat": {"catchup": "all", "start": (begin + timedelta(seconds=number / count)).isoformat()},
        }
        for number in range(count)
    }


def settings(namespace: str, lease: float, schedule: Schedule) -> dict[str, Any]:
    """Settings of a drive's application."""
    return {"fencebeat_namespace": namespace, "fencebeat_lease": lease, "beat_schedule": schedule}


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, -(-len(values) * round(share * 1000) // 1000) - 1)]


class RedBeats:
    """Beats of celery-redbeat on one key prefix, with a lock of `lock_timeout` seconds and a loop a fifth of it.

    That ratio is RedBeat's own default (300 s and 1,500 s). Leaving the block ends every process of it.
    """

    def __init__(self, folder: Path, url: str, name: str, lock_timeout: float, schedule: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "peer.py").write_text(REDBEAT_PROJECT)
        self._folder, self._url = folder, url
        self.lock_key = f"{name}::lock"
        self._told = {
            "redbeat_key_prefix": f"{name}:",
            "redbeat_lock_key": self.lock_key,
            "redbeat_lock_timeout": lock_timeout,
            "beat_max_loop_interval": lock_timeout / 5,
            "beat_schedule": schedule,
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start one more beat."""
        command = [sys.executable, "-m", "celery", "-q", "-A", "peer", "beat", "-S", "redbeat.RedBeatScheduler"]
        command += ["--loglevel", "INFO", "--pidfile", ""]
        with (self._folder / "peer.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "REDIS_URL": self._url, "PEER": json.dumps(self._told)},
            )
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
