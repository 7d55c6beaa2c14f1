"""The `fencebeat` command.

Lives here: the entry (`main`), how errors are shown, the library's own commands; other distributions add theirs through
the entry point group `fencebeat.commands` (a callable that takes the typer application).

    exit code   0 ok · 1 failed · 2 usage · 3 degraded · 4 refused

May import: typer and rich (the extra `cli`), the rest of the library. Must never know: what the commands of other
distributions do. This module imports neither at its top, so that a missing extra is one sentence and not a traceback.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every error is shown as what, why, what to do."""
    try:
        from fencebeat.cli.entry import run  # noqa: PLC0415 - needs the extra
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(f"The command line needs {error.name}, which is not installed: pip install 'fencebeat[cli]'\n")
        return 1
    return run(sys.argv[1:] if argv is None else list(argv))
