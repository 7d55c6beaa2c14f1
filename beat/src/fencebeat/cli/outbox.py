"""The command about the outbox: how much waits there for a broker that is not Redis, and since when."""

import typer
from rich.console import Console

from fencebeat.cli.answers import AsJson, Exit, answer, asked, examples

LATE = 10.0
"""Seconds after which a waiting message is a trouble: a leader publishes within milliseconds."""


def add(app: typer.Typer) -> None:
    """Add this command to the `fencebeat` command."""
    app.command("outbox", epilog=examples("fencebeat outbox", "fencebeat -A proj outbox --json"))(show)


def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Show how many messages wait in the outbox, and since when. Exit code 3 when one has waited for 10 s."""
    from fencebeat.outbox import look  # noqa: PLC0415 - imports Celery

    with asked(context) as given:
        seen = look(given.client, given.configuration.keys)
        seconds, microseconds = given.client.time()
    waits = None if seen.oldest is None else max(0.0, round(seconds + microseconds / 1e6 - seen.oldest, 3))
    late = waits is not None and waits >= LATE
    data = {
        "used": given.configuration.outbox,
        "rows": seen.rows,
        "limit": given.configuration.outbox_limit,
        "oldest_waits_seconds": waits,
        "late": late,
    }

    def text(console: Console) -> None:
        if not data["used"] and not seen.rows:
            console.print("The broker is Redis: messages go to their queues in the commit itself, without an outbox.")
        elif waits is None:
            console.print("Nothing waits in the outbox.")
        else:
            console.print(f"{seen.rows} messages wait (at most {data['limit']}), the oldest for {waits:.1f} s.")
        if late:
            console.print(
                "[bold]That is too long.[/] Is a stop in force (`fencebeat flags`), does nobody lead "
                "(`fencebeat leader show`), or is the broker down? The leader's log says which."
            )

    answer(data, as_json, text)
    if late:
        raise typer.Exit(Exit.DEGRADED)
