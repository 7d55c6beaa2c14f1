"""The library's commands: leader, schedule, explain. They only read."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencebeat.cli.answers import AsJson, Asked, Exit, answer, asked, examples
from fencebeat.clock import SystemClock
from fencebeat.errors import UnknownEntry
from fencebeat.firetimes import SECOND, next_fire_times
from fencebeat.ticks import instant

if TYPE_CHECKING:  # imports Celery, which `fencebeat --help` must not
    from fencebeat.entries import Entry

WIDE = 130  # columns from which zone, task and policy are shown, too; `--json` always has them


def add(app: typer.Typer) -> None:
    """Add these commands to the `fencebeat` command."""
    leader = typer.Typer(no_args_is_help=True, help="Who leads.")
    leader.command("show", epilog=examples("fencebeat leader show", "fencebeat -A proj leader show --json"))(show)
    schedule = typer.Typer(no_args_is_help=True, help="What is scheduled, and when it fires.")
    schedule.command("list", epilog=examples("fencebeat schedule list"))(list_entries)
    schedule.command("next", epilog=examples("fencebeat schedule next nightly --count 10"))(next_times)
    app.add_typer(leader, name="leader")
    app.add_typer(schedule, name="schedule")
    app.command("explain", epilog=examples("fencebeat explain nightly 2026-11-30T02:30:00+01:00"))(explain)


def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the term in force: its token, its holder, since when. Exit code 3 when nobody leads."""
    from fencebeat.entries import schedule_digest  # noqa: PLC0415 - imports Celery

    with asked(context) as given:
        record = given.store.term()
        leads = _in_force(given, record)
        same = record.get("digest") == schedule_digest(given.entries)
    data = {
        "leads": leads,
        "token": int(record["token"]) if record else None,
        "holder": record.get("holder"),
        "since": instant(int(record["since"])) if "since" in record else None,
        "lease_left_seconds": max(0, int(record["left"])) / 1000 if leads and given.in_redis else None,
        "same_schedule": same if leads else None,
        **given.configuration.describe(),
    }

    def text(console: Console) -> None:
        if not record:
            console.print("[bold]Nobody leads[/], and nobody ever has.")
        elif not leads:
            console.print(f"[bold]Nobody leads.[/] The last one was {escape(record['holder'])}, token {data['token']}.")
        else:
            console.print(
                f"[bold]{escape(record['holder'])}[/] leads under token {data['token']} since {data['since']}"
            )
        if leads and not same:
            console.print("Its schedule is not the one configured here: a deployment may be under way.")
        if not leads:
            console.print("Start a beat: celery -A proj beat -S fencebeat")

    answer(data, as_json, text)
    if not leads:
        raise typer.Exit(Exit.DEGRADED)


def _in_force(given: Asked, record: dict[str, str]) -> bool:
    """Whether a lock is held for the record's term, in Redis or in etcd."""
    if not record:
        return False
    lock = given.configuration.make_lock()
    try:
        holder = lock.holder()
    finally:
        lock.close()
    return holder is not None and str(holder.token) == record.get("token")


def list_entries(context: typer.Context, as_json: AsJson = False) -> None:
    """List the entries: schedule, zone, policy, the last fire time decided and the next one."""
    with asked(context) as given:
        stored, marks = given.store.entries(), given.store.marks()
    now = _now()
    rows = [_row(entry, stored.get(name), marks.get(name), now) for name, entry in sorted(given.entries.items())]
    rows += [
        {"entry": name, "problem": "stored, but not in this configuration"}
        for name in sorted(set(stored) - set(given.entries) - set(given.unusable))
    ]
    rows += [{"entry": name, "problem": why} for name, why in sorted(given.unusable.items())]

    def text(console: Console) -> None:
        headings = ["schedule", "last", "next"]
        if console.width >= WIDE:
            headings[1:1] = ["zone", "task", "catchup"]
        table = Table(box=None, pad_edge=False)
        table.add_column("entry", overflow="fold")
        for heading in headings:
            table.add_column(heading, no_wrap=True)
        for row in rows:
            table.add_row(escape(row["entry"]), *(escape(_seconds(row.get(heading) or "-")) for heading in headings))
        console.print(table)
        for row in rows:
            if row.get("problem"):
                console.print(f"[red]{escape(row['entry'])}: {escape(row['problem'])}[/]")

    answer(rows, as_json, text)


def _seconds(text: str) -> str:
    """An instant without its fraction, for people."""
    return re.sub(r"\.\d+Z$", "Z", text)


def _row(entry: "Entry", stored: dict[str, Any] | None, mark: int | None, now: int) -> dict[str, Any]:
    following = entry.next_after(now)
    problem = None
    if stored is None:
        problem = "not stored yet: no beat with this configuration has led"
    elif stored.get("version") != entry.version:
        problem = "the leader has another version of it"
    return {
        "entry": entry.name,
        "task": entry.task,
        "schedule": entry.shown,
        "zone": entry.zone.key,
        "catchup": entry.catchup.text,
        "last": instant(mark) if mark is not None else None,
        "next": instant(following) if following is not None else None,
        "problem": problem,
    }


def next_times(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(help="Name of the entry.")],
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show the next fire times of an entry, by the same function that decides emission."""
    with asked(context) as given:
        if entry not in given.entries:
            raise UnknownEntry(name=entry)
    found = given.entries[entry]
    times = next_fire_times(found.rule, found.zone, _now(), count)
    data = [{"fire_time": instant(at), "local": _local(at, found)} for at in times]

    def text(console: Console) -> None:
        for row in data:
            console.print(f"{row['fire_time']}   {row['local']}")
        if not data:
            console.print("It never fires again.")

    answer(data, as_json, text)


def _local(at: int, entry: "Entry") -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).astimezone(entry.zone).isoformat()


def explain(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(help="Name of the entry.")],
    time: Annotated[str, typer.Argument(help="Fire time: ISO 8601 (UTC where it says nothing else), or seconds.")],
    as_json: AsJson = False,
) -> None:
    """Tell what became of one tick: emitted by whom, under which token, as which message; or why not."""
    from fencebeat.explain import explain as explain_tick  # noqa: PLC0415 - imports redis

    fire_time = _instant(time)
    with asked(context) as given:
        story = explain_tick(given.store, given.configuration.namespace, given.entries, entry, fire_time)

    def text(console: Console) -> None:
        console.print(f"[bold]{escape(story.tick)}[/]  {story.fire_time}")
        console.print(f"[bold]{story.outcome}[/]: {escape(story.why)}")
        console.print(f"task id     {story.task_id}")
        if story.message_id:
            console.print(f"message id  {story.message_id}")
        for record in reversed(story.records):
            facts = " ".join(f"{name}={value}" for name, value in record.items() if name in _TOLD)
            console.print(f"  {_recorded(record['id'])}  {escape(record['outcome'])}  {escape(facts)}")

    answer(story.as_dict(), as_json, text)


_TOLD = ("token", "holder", "sealed", "reason", "count")


def _recorded(identity: str) -> str:
    return instant(int(identity.partition("-")[0]) * 1000)


def _instant(text: str) -> int:
    try:
        return round(float(text) * SECOND)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time. Use ISO 8601, for example 2026-11-30T02:30:00Z, or seconds since the epoch."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.replace(microsecond=0).timestamp()) * SECOND + moment.microsecond


def _now() -> int:
    return round(SystemClock().wall() * SECOND)
