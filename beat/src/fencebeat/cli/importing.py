"""`fencebeat schedule import-redbeat`: RedBeat's entries become stored entries; its own records stay as they are."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencebeat.cli.answers import TIMEOUT, App, AsJson, Asked, Exit, answer, asked, examples
from fencebeat.errors import EntryExists, UnusableEntry
from fencebeat.ticks import instant

if TYPE_CHECKING:
    from fencebeat.redbeat import Found


_THERE = "there is a stored entry of this name already."


def add(schedule: typer.Typer) -> None:
    """Add this command to `fencebeat schedule`."""
    schedule.command(
        "import-redbeat",
        epilog=examples(
            "fencebeat -A proj schedule import-redbeat", "fencebeat -A proj schedule import-redbeat --yes --json"
        ),
    )(import_redbeat)


def import_redbeat(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="RedBeat's Redis; without it redbeat_redis_url, else the broker.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="RedBeat's key prefix; without it redbeat_key_prefix, else `redbeat:`.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; without it, only show what would be added.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add RedBeat's entries as stored entries. Without --yes nothing is changed; RedBeat's records never are.

    What was emitted there is not emitted again: an entry goes on from its last run. Stop RedBeat first. Exit code 3
    when some entry could not be taken over; each is named with the reason.
    """
    from fencebeat.connection import Broker  # noqa: PLC0415 - imports redis
    from fencebeat.redbeat import PREFIX, read  # noqa: PLC0415 - imports Celery

    conf = (context.find_object(App) or App("tasks")).load().conf
    with asked(context) as given:
        address = url or conf.get("redbeat_redis_url")
        client = Broker(address).client(TIMEOUT, name="fencebeat-import") if address else given.client
        where = prefix or conf.get("redbeat_key_prefix") or PREFIX
        try:
            rows = [_take(given, found, yes) for found in read(client, where)]
        finally:
            if client is not given.client:
                client.close()
    refused = [row for row in rows if row["outcome"] == "refused"]

    def text(console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        for heading in ("entry", "outcome", "schedule", "last run", "next"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(
                *(escape(str(row[key] or "-")) for key in ("entry", "outcome", "schedule", "last_run", "next"))
            )
        if not rows:
            console.print(f"RedBeat has no entries under {escape(where)} there.")
            return
        console.print(table)
        for row in rows:
            if row["why"]:
                console.print(f"[yellow]{escape(row['entry'])}[/]: {escape(row['why'])}")
        taken = sum(row["outcome"] in ("added", "would be added") for row in rows)
        console.print(f"{taken} of {len(rows)} " + ("added" if yes else "would be added; --yes does it"))

    answer(rows, as_json, text)
    if refused:
        raise typer.Exit(Exit.DEGRADED)


def _take(given: Asked, found: "Found", yes: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "entry": found.name,
        "outcome": "refused",
        "schedule": None,
        "last_run": None if found.last_run is None else instant(found.last_run),
        "next": None,
        "paused": not found.enabled,
        "why": found.refused,
    }
    if found.line is None:
        return row
    if found.name in given.entries or found.name in given.unusable:
        return {**row, "outcome": "kept", "why": "beat_schedule has an entry of this name."}
    try:
        entry = given.schedule.make(found.name, found.line)
        now = given.schedule.find(found.name)
        if now.text is not None:
            return {**row, "outcome": "kept", "why": _THERE}
        following = entry.next_after(max(now.mark or 0, min(found.last_run or now.now, now.now)))
        if yes:
            # A disabled one must not catch up in the moment before its pause.
            mark = found.last_run if found.enabled else None
            following = given.schedule.add(found.name, found.line, mark=mark).following
            if not found.enabled:
                given.schedule.pause(found.name, "it was disabled in RedBeat")
    except EntryExists:
        return {**row, "outcome": "kept", "why": _THERE}
    except UnusableEntry as error:
        return {**row, "why": str(error.facts["why"])}
    return {
        **row,
        "outcome": "added" if yes else "would be added",
        "schedule": entry.shown,
        "next": None if following is None else instant(following),
    }
