"""`fencebeat check`: would a beat start here, could it lead, and what should be mended."""

import typer
from rich.console import Console
from rich.markup import escape

from fencebeat.cli.answers import TIMEOUT, App, AsJson, Exit, answer, examples

_CODES = {"ok": Exit.OK, "warning": Exit.DEGRADED, "failed": Exit.FAILED, "refused": Exit.REFUSED}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "refused": "bold red"}


def add(app: typer.Typer) -> None:
    """Add this command to the `fencebeat` command."""
    app.command("check", epilog=examples("fencebeat -A proj check", "fencebeat -A proj check --json"))(check)


def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Look at everything that a beat needs, before one is started. Changes nothing.

    Exit code 0: all is well; 3: a beat works, something is worth mending; 1: a beat would stand by until it is mended;
    4: a beat would not start. Each line that is not ok names the command or setting that repairs or accepts it.
    """
    from fencebeat.checks import check as look  # noqa: PLC0415 - imports Celery
    from fencebeat.checks import worst  # noqa: PLC0415 - the same
    from fencebeat.clock import system_clock  # noqa: PLC0415 - beside its user

    celery = (context.find_object(App) or App("tasks")).load()
    findings = look(celery, system_clock(), TIMEOUT)
    verdict = worst(findings)

    def text(console: Console) -> None:
        for finding in findings:
            colour = _COLOURS[finding.level]
            console.print(f"[{colour}]{finding.level:8}[/] [bold]{finding.check}[/]: {escape(finding.says)}")
            if finding.repair:
                console.print(f"         -> {escape(finding.repair)}")

    answer({"verdict": verdict, "checks": [finding.as_dict() for finding in findings]}, as_json, text)
    if verdict != "ok":
        raise typer.Exit(_CODES[verdict])
