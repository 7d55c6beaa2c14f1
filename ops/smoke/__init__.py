"""Two runs that prove the main promises on real servers, in about a minute each: `fencebeat smoke NAME`.

Lives here: `stage` (servers and processes of one run), `app` (the application with one more task, which ticks each
second), and one module for each run. May import: everything. Must never know: tests; they use this, not the reverse.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ops.errors import UnknownSmoke
from ops.smoke import election, race
from ops.smoke.stage import Result, Stage

RUNS: Final[dict[str, Callable[[Stage], None]]] = {
    "rag-scheduled-job-leader-election-smoke": election.run,
    "rag-distributed-lock-redis-etcd-smoke": race.run,
}
"""The runs by name."""


def run(name: str, *, folder: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Result:
    """Run it to its end; raises UnknownSmoke, or SmokeFailed with what was seen and where its files are.

    folder: for logs and history, kept; None: a temporary one, which is kept only where the run fails.
    """
    if name not in RUNS:
        raise UnknownSmoke(name=name, known=", ".join(RUNS))
    with Stage(name, folder, say) as stage:
        RUNS[name](stage)
        return stage.result()
