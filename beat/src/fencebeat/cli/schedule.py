"""What is scheduled, shown: list, next, show. These commands only read, and ask for no more than they show."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from fencebeat.cli.answers import AsJson, Asked, answer, asked, examples
from fencebeat.clock import system_clock
from fencebeat.errors import UnknownEntry, UnusableEntry
from fencebeat.firetimes import SECOND, next_fire_times
from fencebeat.ticks import instant

if TYPE_CHECKING:  # imports Celery, which `fencebeat --help` must not
    from fencebeat.entries import Entry

WIDE = 130  # columns from which zone, task and policy are shown, too; `--json` always has them
PAGE = 1000
NAME = 24  # columns that an entry's name keeps before it is folded
LIMIT = 200


def add(schedule: typer.Typer) -> None:
    """Add these commands to `fencebeat schedule`."""
    schedule.command(
        "list",
        epilog=examples("fencebeat schedule list", "fencebeat schedule list --prefix tenant-7. --limit 0 --json"),
    )(list_entries)
    schedule.command("next", epilog=examples("fencebeat schedule next nightly --count 10"))(next_times)
    schedule.command("show", epilog=examples("fencebeat schedule show nightly"))(show)


def list_entries(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(help="Only entries whose names begin so.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """List the entries: schedule, zone, policy, the last fire time decided and the next one."""
    from fencebeat.scripts import asking  # noqa: PLC0415 - imports redis

    with asked(context) as given:
        with asking(given.client):
            stored: Any = given.client.hkeys(given.configuration.keys.entries)
        names = {*stored, *given.entries, *given.unusable} - {"generation"}
        chosen = sorted(name for name in names if name.startswith(prefix))
        shown = chosen[:limit] if limit else chosen
        pages = [shown[at : at + PAGE] for at in range(0, len(shown), PAGE)]
        rows: list[dict[str, Any]] = []
        for page in track(pages, "Reading", console=Console(stderr=True), disable=len(pages) < 2, transient=True):
            rows.extend(_rows(given, page))

    def text(console: Console) -> None:
        headings = ["schedule", "last", "next"]
        if console.width >= WIDE:
            headings[1:1] = ["zone", "task", "catchup", "source"]
        table = Table(box=None, pad_edge=False)
        longest = max((len(row["entry"]) for row in rows), default=0)
        table.add_column("entry", overflow="fold", min_width=min(longest, NAME))
        for heading in headings:
            table.add_column(heading, no_wrap=True)
        for row in rows:
            table.add_row(escape(row["entry"]), *(escape(_seconds(row.get(heading) or "-")) for heading in headings))
        console.print(table)
        for row in rows:
            if row.get("problem"):
                console.print(f"[red]{escape(row['entry'])}: {escape(row['problem'])}[/]")
        if len(shown) < len(chosen):
            console.print(f"{len(shown):,} of {len(chosen):,} entries; --limit 0 shows all, --prefix some of them.")

    answer(rows, as_json, text)


def _seconds(text: str) -> str:
    """An instant without its fraction, for people."""
    return re.sub(r"\.\d+Z$", "Z", text)


def _rows(given: Asked, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row for each name; asks the store once."""
    from fencebeat.scripts import asking  # noqa: PLC0415 - imports redis

    keys = given.configuration.keys
    with asking(given.client), given.client.pipeline(transaction=False) as pipe:
        for record in (keys.entries, keys.last, keys.paused, keys.quarantine, keys.emitted):
            pipe.hmget(record, names)
        columns: Any = pipe.execute()
    for name, text, mark, paused, quarantined, emitted in zip(names, *columns, strict=True):
        row: dict[str, Any] = {"entry": name}
        try:
            entry, problem = _in_force(given, name, text)
        except UnusableEntry as error:
            entry, problem = None, str(error.facts["why"])
        if entry is None:
            yield {**row, "problem": problem}
        else:
            state = _state(entry, _whole(mark), paused, quarantined)
            yield {**row, **state, "last_emitted": _instant(_whole(emitted)), "problem": problem or state["problem"]}


def _state(entry: "Entry", mark: int | None, paused: str | None, quarantined: str | None) -> dict[str, Any]:
    following = None if paused is not None else entry.next_after(max(now(), mark or 0))
    return {
        "task": entry.task,
        "schedule": entry.shown,
        "zone": entry.zone.key,
        "catchup": entry.catchup.text,
        "source": entry.source,
        "last": _instant(mark),
        "next": _instant(following),
        "paused": _facts(paused),
        "quarantined": _facts(quarantined),
        "problem": "paused" if paused is not None else _why(quarantined),
    }


def _in_force(given: Asked, name: str, text: str | None) -> "tuple[Entry | None, str | None]":
    """The entry that a leader with this configuration runs, or why there is none; and what is odd about it."""
    from fencebeat.entries import Entry  # noqa: PLC0415 - imports Celery

    if name in given.unusable:
        return None, given.unusable[name]
    mine = given.entries.get(name)
    if mine is not None:
        if text is None:
            return mine, "not stored yet: no beat with this configuration has led"
        if json.loads(text).get("version") != mine.version:
            return mine, "the leader has another version of it"
        return mine, None
    if text is None:
        return None, "there is no such entry"
    entry = Entry.of_definition(name, text)
    return (entry, None) if entry.source == "stored" else (None, "stored, but not in this configuration")


def entry_named(given: Asked, name: str) -> "Entry":
    """The entry as it is in force here, else as it is stored. Raises UnknownEntry, UnusableEntry."""
    if name in given.unusable:
        raise UnusableEntry(name=name, why=given.unusable[name])
    return given.entries.get(name) or given.schedule.find(name).entry


def next_times(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(help="Name of the entry.")],
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show the next fire times of an entry, by the same function that decides emission."""
    with asked(context) as given:
        found = entry_named(given, entry)
        mark = given.schedule.find(entry).mark
    data = upcoming(found, max(now(), mark or 0), count)
    answer(data, as_json, lambda console: print_times(console, data))


def upcoming(entry: "Entry", after: int, count: int) -> list[dict[str, Any]]:
    """The next fire times of an entry as rows: in UTC, in its zone, and when it is emitted where it has jitter."""
    rows = []
    for at in next_fire_times(entry.rule, entry.zone, after, count):
        local = datetime.fromtimestamp(at // SECOND, UTC).astimezone(entry.zone).isoformat()
        due = {"emitted_from": instant(entry.due_at(at))} if entry.jitter else {}
        rows.append({"fire_time": instant(at), "local": local, **due})
    return rows


def print_times(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what `upcoming` found."""
    for row in rows:
        console.print("   ".join(str(value) for value in row.values()))
    if not rows:
        console.print("It never fires again.")


def show(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(help="Name of the entry.")],
    as_json: AsJson = False,
) -> None:
    """Show one entry: its definition here and in the store, pause, quarantine, last and next fire times."""
    with asked(context) as given:
        found = given.schedule.find(entry)
        if found.text is None and entry not in given.entries and entry not in given.unusable:
            raise UnknownEntry(name=entry)
        (row,) = _rows(given, [entry])
        mine = given.entries.get(entry)
        stored = json.loads(found.text) if found.text else None
        here = json.loads(mine.definition) if mine is not None else None
        in_force = None if row.get("task") is None else entry_named(given, entry)
    drift = sorted(key for key in here if stored.get(key) != here[key]) if here and stored else []
    times = upcoming(in_force, max(now(), found.mark or 0), 5) if in_force is not None else []
    data = {
        **row,
        "definition": here or stored,
        "stored": stored,
        "drift": [key for key in drift if key not in ("version", "timing")],
        "next_five": times,
    }

    def text(console: Console) -> None:
        console.print(f"[bold]{escape(entry)}[/]  {escape(str(row.get('schedule') or '-'))}")
        for key, value in (data["definition"] or {}).items():
            if key not in ("version", "timing", "schedule") and value not in ([], {}, None):
                console.print(f"  {key:10} {escape(value if isinstance(value, str) else json.dumps(value))}")
        console.print(f"  {'decided':10} {_seconds(row.get('last') or 'nothing yet')}")
        console.print(f"  {'emitted':10} {_seconds(row.get('last_emitted') or 'nothing yet')}")
        for state in ("paused", "quarantined"):
            if row.get(state):
                facts = ", ".join(f"{key}: {value}" for key, value in row[state].items() if value != "")
                console.print(f"  [yellow]{state}[/]: {escape(facts)}")
        if row.get("problem") and not row.get("paused"):
            console.print(f"  [red]{escape(row['problem'])}[/]")
        if data["drift"]:
            console.print(f"  [red]differs from what is stored in: {', '.join(data['drift'])}[/]")
        console.print("next:" if times else "next: never, as things are")
        print_times(console, times) if times else None

    answer(data, as_json, text)


def now() -> int:
    """This host's wall clock in microseconds."""
    return round(system_clock().wall() * SECOND)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _instant(at: int | None) -> str | None:
    return None if at is None else instant(at)


def _facts(text: str | None) -> dict[str, Any] | None:
    """A stored pause or quarantine with its times as text; what cannot be read is shown as it is."""
    if text is None:
        return None
    try:
        facts = json.loads(text)
        times = {key: instant(facts[key]) for key in ("at", "since", "until") if isinstance(facts.get(key), int)}
    except (ValueError, AttributeError):
        return {"unreadable": text[:200]}
    return {**facts, **times}


def _why(quarantined: str | None) -> str | None:
    facts = _facts(quarantined)
    return None if facts is None else f"in quarantine: {facts.get('reason', facts)}"
