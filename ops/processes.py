"""The processes of the application: one table for `fencebeat up`, the Procfile and docker-compose.yml.

A test holds the three together: a process that runs here runs there, with the same command.
"""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template


@dataclass(frozen=True)
class Process:
    """A process: its command as the Procfile has it ($NAME is taken from the environment), and how it is stopped.

    count: how many run side by side. rank: higher ones are stopped first. grace: seconds from SIGTERM to SIGKILL.
    """

    name: str
    command: str
    count: int = 1
    rank: int = 1
    grace: float = 10.0

    def argv(self, environ: Mapping[str, str]) -> list[str]:
        """The command with its variables filled in, its program taken from the running Python's folder."""
        program, *words = (Template(word).substitute(environ) for word in self.command.split())
        beside = Path(sys.executable).with_name(program)
        return [str(beside) if beside.exists() else program, *words]

    def names(self) -> list[str]:
        """Names of its instances."""
        return [self.name] if self.count == 1 else [f"{self.name}-{number + 1}" for number in range(self.count)]


#: Beats stop first, so that nothing new is scheduled; then the workers, which may still need the embedder.
PROCESSES = (
    Process("embedder", "fencebeat embedder"),
    Process("beat", "celery -A tasks beat -S fencebeat --loglevel INFO", count=2, rank=3),
    # The batch that runs at SIGTERM may end; one that is killed is taken over when its claim lapses.
    Process("worker", "celery -A tasks worker --concurrency 2 --task-events --loglevel INFO", rank=2, grace=20.0),
    Process("page", "fencebeat page --port $FENCEBEAT_PAGE_PORT"),
    Process("flower", "celery -A tasks flower --address=127.0.0.1 --port=$FENCEBEAT_FLOWER_PORT"),
)


def environment(state_dir: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What every process of ours gets beside the addresses of the servers."""
    environ = {
        **given,
        "FENCEBEAT_STATE_DIR": str(state_dir),
        "FENCEBEAT_HISTORY": given.get("FENCEBEAT_HISTORY") or str(state_dir / "history.jsonl"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # Its API is refused without a login otherwise; it listens on loopback only.
        "FLOWER_UNAUTHENTICATED_API": given.get("FLOWER_UNAUTHENTICATED_API", "true"),
    }
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").exists():  # the processes work in the state folder and must find the packages
        environ["PYTHONPATH"] = os.pathsep.join([str(checkout), *filter(None, [given.get("PYTHONPATH")])])
    return environ


def write_environment(path: Path, environ: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Write what was chosen here (addresses, settings) for the shell of another terminal: `. .fencebeat/env`.

    What stands in `given` is left out: that terminal has it too, or it is a secret that belongs nowhere else.
    """
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environ.items())
        if name in _ADDRESSES or (name.startswith("FENCEBEAT_") and name != "FENCEBEAT_HISTORY")
        if given.get(name) != value
    ]
    path.touch(mode=0o600)
    path.write_text("".join(lines))


_ADDRESSES = ("REDIS_URL", "POSTGRES_URL", "OPENSEARCH_URL", "ETCD_URL", "EMBEDDER_URL")
