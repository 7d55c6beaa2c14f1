"""Real processes of the product in a test: start, freeze, thaw, kill, and wait for what they write to the history."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fencebeat import history
from tests.support.waiting import until


def environment(world, *, failpoints: str = "", **more: str) -> dict[str, str]:
    """What a process of this world's product needs to know."""
    settings = world.settings
    sources = ",".join(
        f'"{name}":{{"tenant":"{config.tenant}","path":"{config.path}"}}' for name, config in settings.sources.items()
    )
    given = {
        "REDIS_URL": settings.redis_url,
        "POSTGRES_URL": settings.postgres_url,
        "OPENSEARCH_URL": settings.opensearch_url,
        "EMBEDDER_URL": settings.embedder_url,
        "FENCEBEAT_STATE_DIR": str(settings.state_dir),
        "FENCEBEAT_NAMESPACE": settings.namespace,
        "FENCEBEAT_INDEX_PREFIX": settings.index_prefix,
        "FENCEBEAT_TARGET": settings.target,
        "FENCEBEAT_SOURCES": f"{{{sources}}}",
        "FENCEBEAT_CLAIM_SECONDS": str(settings.claim_seconds),
        "FENCEBEAT_CLAIM_BATCH": str(settings.claim_batch),
        "FENCEBEAT_SWEEP_SECONDS": str(settings.sweep_seconds),
        "FENCEBEAT_SYNC_SECONDS": str(settings.sync_seconds),
        "FENCEBEAT_HISTORY": str(world.history),
        "FENCEBEAT_TESTING": "1",
        "FENCEBEAT_FAILPOINTS": failpoints,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    ours = {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    return {**ours, **given, **more}  # each process counts in its own state folder, not in ours


class Group:
    """A process that a test started, with its children: a process group of its own, killed at the end of the block."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        self._file = log.open("ab")
        self.popen = subprocess.Popen(
            command,
            env=env,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._file.close()

    def signal(self, number: int) -> None:
        """To the whole group: a worker and its pool."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)  # frozen or not: one that is thawed first would run on for a moment
        self.popen.wait(timeout=10)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)


class Process(Group):
    """One process of the product."""

    def __init__(self, world, name: str, command: list[str], *, failpoints: str = "", **env: str) -> None:
        self._history: Path = world.history
        told = environment(world, failpoints=failpoints, FENCEBEAT_PROC=name, **env)
        super().__init__(name, command, told, world.settings.state_dir / f"{name}.log")

    def said(self, **facts):
        """Lines of this process in the history that have these facts."""
        return [
            line
            for line in history.read(self._history)
            if line["proc"] == self.name and all(line.get(key) == value for key, value in facts.items())
        ]

    def wait_for(self, *, at_most: float = 30.0, **facts):
        """The first line of this process with these facts."""
        return until(lambda: self.said(**facts), at_most=at_most, what=f"{self.name}: {facts}; see {self.log}")[0]

    def wait_until_frozen(self, failpoint: str) -> None:
        """Until this process has stopped itself at a failpoint."""
        line = self.wait_for(kind="failpoint", name=failpoint)
        until(lambda: _state(line["pid"]) == "T", what=f"{self.name} frozen at {failpoint}")

    def wait_until_ended(self, at_most: float = 30.0) -> int:
        return self.popen.wait(timeout=at_most)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def batches(world, name: str, *, failpoints: str = "", **env: str) -> Process:
    """A process that runs batches until nothing is claimable, then ends: a worker without Celery around it."""
    command = [sys.executable, "-m", "tests.support.run_batches"]
    return Process(world, name, command, failpoints=failpoints, **env)


def worker(
    world, name: str, *, concurrency: int = 2, queue: str | None = None, failpoints: str = "", **env: str
) -> Process:
    """A real Celery worker with a prefork pool, on the default queue or another."""
    command = [
        sys.executable, "-m", "celery", "-A", "tasks", "worker",
        "--concurrency", str(concurrency), "--hostname", f"{name}@test", "--loglevel", "INFO",
        *(["--queues", queue] if queue else []),
    ]  # fmt: skip
    return Process(world, name, command, failpoints=failpoints, **env)
