"""The `fencebeat` command as a user runs it: a process of its own, on a world's servers."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


def fencebeat(world, *arguments: str, before: tuple[str, ...] = (), **env: str) -> Answer:
    """Run one command to its end. before: a program that starts it. env: changes of the environment."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.support.commands", *arguments],
        env=environment(world, PYTHONPATH=f"{ROOT}:{ROOT / 'beat/src'}", **env),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    from fencebeat.cli import main

    sys.exit(main())
