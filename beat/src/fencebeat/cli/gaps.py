"""What a loss of Redis left behind: `fencebeat schedule gaps`."""

from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from fencebeat.cli.answers import AsJson, Asked, answer, asked, examples
from fencebeat.ticks import instant


def add(schedule: typer.Typer) -> None:
    """Add this command to `fencebeat schedule`."""
    schedule.command("gaps", epilog=examples("fencebeat schedule gaps", "fencebeat schedule gaps --json"))(gaps)


def gaps(context: typer.Context, as_json: AsJson = False) -> None:
    """List what may have been lost: each time the store lost its past, and the ticks nobody can account for.

    Newest first, as far as the audit goes back. Run what matters again: `fencebeat schedule backfill`.
    """
    with asked(context) as given:
        rows = list(_rows(given))

    def text(console: Console) -> None:
        for row in rows:
            console.print(escape(_told(row)))
        if not rows:
            console.print("No gap: the store has its past, as far as the audit goes back.")

    answer(rows, as_json, text)


def _rows(given: Asked) -> Iterator[dict[str, Any]]:
    for identity, fields in given.store.audit():
        if fields.get("outcome") != "gap":
            continue
        row: dict[str, Any] = {"recorded": instant(int(identity.partition("-")[0]) * 1000), "reason": fields["reason"]}
        if "entry" in fields:
            times = {name: instant(int(fields[name])) for name in ("first", "fire_time")}
            yield {**row, "entry": fields["entry"], **times, "count": int(fields["count"])}
        else:
            row.update({name: int(fields[name]) for name in ("recovered", "lost") if name in fields})
            yield {**row, "until": instant(int(fields["until"]))}


def _told(row: dict[str, Any]) -> str:
    if "entry" in row:
        span = row["fire_time"] if row["count"] == 1 else f"{row['first']} to {row['fire_time']}"
        return f"{row['entry']}  {span}  {row['count']} ticks: {row['reason']}"
    known = row.get("recovered", 0)
    return f"{row['until']}  {row['reason']}; {known} marks were known, {row.get('lost', 0)} ticks may have been lost"
