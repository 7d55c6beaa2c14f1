"""The schedule, changed: add, edit, remove, pause, resume, run-now, backfill. Who leads acts by it within a second."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fencebeat.cli.answers import AsJson, Asked, answer, asked, examples
from fencebeat.cli.schedule import now, print_times, upcoming
from fencebeat.cli.times import read_instant
from fencebeat.errors import EntryExists, StaticEntry, UnknownEntry
from fencebeat.ticks import instant

if TYPE_CHECKING:  # imports Celery, which `fencebeat --help` must not
    from fencebeat.edits import Edited
    from fencebeat.entries import Entry

LIMIT = 1000

Name = Annotated[str, typer.Argument(help="Name of the entry.")]
Task = Annotated[str | None, typer.Option(help="The task's name.")]
Cron = Annotated[str | None, typer.Option(help='Five crontab fields: "*/5 8-18 * * mon-fri".')]
Every = Annotated[str | None, typer.Option(help="An interval: 30s, 15m, 6h, 1d.")]
Solar = Annotated[str | None, typer.Option(help='A solar event, latitude and longitude: "sunrise 52.52 13.40".')]
Zone = Annotated[str | None, typer.Option(help="Time zone of the crontab's fields, for example Europe/Berlin.")]
Catchup = Annotated[str | None, typer.Option(help="Late fire times: latest, all, skip, or for example window=30m.")]
Grace = Annotated[float | None, typer.Option(help="Seconds after which `skip` counts a tick as missed.")]
Start = Annotated[str | None, typer.Option(help="From when an interval counts: ISO 8601.")]
Jitter = Annotated[float | None, typer.Option(help="Each tick up to so many seconds later.")]
Overlap = Annotated[str | None, typer.Option(help="allow, or skip: no tick while the task of the last one runs.")]
Args = Annotated[str | None, typer.Option(help='Positional arguments, JSON: "[1, 2]".')]
Kwargs = Annotated[str | None, typer.Option(help="""Keyword arguments, JSON: '{"tenant": 7}'.""")]
Queue = Annotated[str | None, typer.Option(help="The queue; without it Celery's routing decides.")]
Priority = Annotated[int | None, typer.Option(help="Priority of the message.")]
Expires = Annotated[float | None, typer.Option(help="Seconds after which a worker drops the message.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Another option of apply_async, KEY=VALUE; KEY= drops it.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show the next five fire times.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def add(schedule: typer.Typer) -> None:
    """Add these commands to `fencebeat schedule`."""
    schedule.command(
        "add",
        epilog=examples(
            'fencebeat schedule add nightly --task reports.nightly --cron "30 2 * * *" --zone Europe/Berlin',
            "fencebeat schedule add ping --task net.ping --every 30s --args '[7]' --queue fast --dry-run",
        ),
    )(add_entry)
    schedule.command(
        "edit",
        epilog=examples(
            'fencebeat schedule edit nightly --cron "0 3 * * *"', "fencebeat schedule edit ping --every 1m --dry-run"
        ),
    )(edit_entry)
    schedule.command("remove", epilog=examples("fencebeat schedule remove ping --yes"))(remove)
    schedule.command("pause", epilog=examples('fencebeat schedule pause nightly --reason "disk is full"'))(pause)
    schedule.command(
        "resume",
        epilog=examples("fencebeat schedule resume nightly", "fencebeat schedule resume nightly --skip-missed"),
    )(resume)
    schedule.command("run-now", epilog=examples("fencebeat schedule run-now nightly"))(run_now)
    schedule.command(
        "backfill", epilog=examples("fencebeat schedule backfill nightly --from 2026-11-01 --to 2026-11-08 --yes")
    )(backfill)


def add_entry(  # noqa: PLR0917 - typer's, by name
    context: typer.Context,
    name: Name,
    task: Annotated[str, typer.Option(help="The task's name.")],
    cron: Cron = None,
    every: Every = None,
    solar: Solar = None,
    zone: Zone = None,
    catchup: Catchup = None,
    grace: Grace = None,
    start: Start = None,
    jitter: Jitter = None,
    overlap: Overlap = None,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = None,
    priority: Priority = None,
    expires: Expires = None,
    option: Options = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Add an entry to the stored schedule. It first fires after now, never for the past."""
    schedule = _schedule(cron, every, solar)
    if schedule is None:
        raise typer.BadParameter("say when: one of --cron, --every and --solar.")
    line = {
        "task": task,
        "schedule": schedule,
        "args": _json(args, list, "--args") or [],
        "kwargs": _json(kwargs, dict, "--kwargs") or {},
        "options": _options({}, queue, priority, expires, option),
        "fencebeat": _policies(zone, catchup, grace, start, jitter, overlap),
    }
    with asked(context) as given:
        if name in given.entries or name in given.unusable:
            raise EntryExists(name=name)
        if dry_run:
            if given.schedule.find(name).text is not None:
                raise EntryExists(name=name)
            entry = given.schedule.make(name, line)
        else:
            edited = given.schedule.add(name, line)
    _tell_preview(entry, as_json) if dry_run else _tell("added", edited, as_json)


def edit_entry(  # noqa: PLR0917 - typer's, by name
    context: typer.Context,
    name: Name,
    task: Task = None,
    cron: Cron = None,
    every: Every = None,
    solar: Solar = None,
    zone: Zone = None,
    catchup: Catchup = None,
    grace: Grace = None,
    start: Start = None,
    jitter: Jitter = None,
    overlap: Overlap = None,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: Queue = None,
    priority: Priority = None,
    expires: Expires = None,
    option: Options = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Change a stored entry; what is not named stays. Another timing counts from now; other arguments move nothing."""
    changes: dict[str, Any] = {
        "task": task,
        "schedule": _schedule(cron, every, solar),
        "args": _json(args, list, "--args"),
        "kwargs": _json(kwargs, dict, "--kwargs"),
        **_policies(zone, catchup, grace, start, jitter, overlap),
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    with asked(context) as given:
        _changeable(given, name)
        old = given.schedule.find(name).entry
        options = _options(old.options, queue, priority, expires, option)
        if options != old.options:
            changes["options"] = options
        if not changes:
            raise typer.BadParameter("nothing to change was named; `--help` shows what can be.")
        if dry_run:
            entry = given.schedule.changed(old, **changes)
        else:
            edited = given.schedule.edit(name, **changes)
    _tell_preview(entry, as_json) if dry_run else _tell("changed", edited, as_json)


def remove(context: typer.Context, name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a stored entry. Its mark stays: added again, it repeats nothing."""
    with asked(context) as given:
        _changeable(given, name)
        if given.schedule.find(name).text is None:
            raise UnknownEntry(name=name)
        confirmed(yes, f"Remove {name}?", as_json)
        edited = given.schedule.remove(name)
    _tell("removed", edited, as_json)


def pause(
    context: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; shown by `schedule show`.")] = "",
    as_json: AsJson = False,
) -> None:
    """Emit nothing of an entry until it is resumed; one of the configuration, too."""
    _act(context, as_json, "paused", lambda given: given.schedule.pause(name, reason))


def resume(
    context: typer.Context,
    name: Name,
    skip_missed: Annotated[bool, typer.Option("--skip-missed", help="Emit nothing of what was missed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a paused entry. Its catch-up policy decides about what was missed."""
    _act(context, as_json, "resumed", lambda given: given.schedule.resume(name, skip_missed=skip_missed))


def run_now(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Ask for one run of an entry now, beside its schedule. Whoever leads emits it, once, within 2 s."""
    with asked(context) as given:
        request = given.schedule.run_now(name)
    data = {"entry": name, "tick": request.id, "asked_by": request.by}

    def text(console: Console) -> None:
        console.print(f"asked for {escape(request.id)}; what became of it:")
        console.print(f"fencebeat explain '{escape(request.id)}'", soft_wrap=True)

    answer(data, as_json, text)


def backfill(  # noqa: PLR0917 - typer's, by name
    context: typer.Context,
    name: Name,
    first: Annotated[str, typer.Option("--from", help="First moment: ISO 8601, or seconds.")],
    last: Annotated[str, typer.Option("--to", help="Last moment, included.")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many fire times.")] = LIMIT,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it; without it, only show what would be emitted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Emit fire times of the past again, with their own task ids: a guarded task runs only those that have not run.

    Without --yes nothing is emitted, and what would be is shown. Fire times that are not decided yet are left to the
    schedule.
    """
    begin, end = read_instant(first), read_instant(last)
    if end < begin:
        raise typer.BadParameter("--to is before --from.")
    with asked(context) as given:
        if yes:
            times = [request.fire_time for request in given.schedule.backfill(name, begin, end, limit=limit)]
        else:
            times = given.schedule.past(name, begin, end, limit=limit)
    data = {"entry": name, "asked": yes, "fire_times": [instant(at) for at in times]}

    def text(console: Console) -> None:
        for at in times[:20]:
            console.print(instant(at))
        if len(times) > 20:
            console.print(f"... {len(times):,} in all")
        if not times:
            console.print("No fire time in that range is decided yet; those to come are left to the schedule.")
        else:
            console.print(f"{len(times):,} asked for" if yes else f"{len(times):,} would be emitted; --yes does it")

    answer(data, as_json, text)


def confirmed(yes: bool, question: str, as_json: bool) -> None:
    """Ask before something that cannot be undone. A program must say --yes."""
    if yes:
        return
    if as_json:
        raise typer.BadParameter("with --json nobody can be asked: say --yes.")
    typer.confirm(question, abort=True)


def _act(context: typer.Context, as_json: bool, done: str, act: "Callable[[Asked], Edited]") -> None:
    with asked(context) as given:
        edited = act(given)
    _tell(done, edited, as_json)


def _changeable(given: Asked, name: str) -> None:
    if name in given.entries or name in given.unusable:
        raise StaticEntry(name=name)


def _tell(done: str, edited: "Edited", as_json: bool) -> None:
    entry = edited.entry
    data = {
        "entry": edited.name,
        "done": done,
        "generation": edited.generation,
        "mark": None if edited.mark is None else instant(edited.mark),
        "next": None if edited.following is None else instant(edited.following),
        "definition": None if entry is None else json.loads(entry.definition),
    }

    def text(console: Console) -> None:
        console.print(f"[bold]{done}[/] {escape(edited.name)}" + (f": {escape(entry.shown)}" if entry else ""))
        if data["next"]:
            console.print(f"next fire time {data['next']}")

    answer(data, as_json, text)


def _tell_preview(entry: "Entry", as_json: bool) -> None:
    times = upcoming(entry, now(), 5)
    data = {"entry": entry.name, "done": None, "definition": json.loads(entry.definition), "next_five": times}

    def text(console: Console) -> None:
        console.print(f"nothing is changed; {escape(entry.name)} ({escape(entry.shown)}) would fire at")
        print_times(console, times)

    answer(data, as_json, text)


def _schedule(cron: str | None, every: str | None, solar: str | None) -> Any:
    from fencebeat.schedules import read_every, read_schedule_text  # noqa: PLC0415 - imports Celery

    if sum(value is not None for value in (cron, every, solar)) > 1:
        raise typer.BadParameter("--cron, --every and --solar exclude each other.")
    try:
        if every is not None:
            return read_every(every)
        text = cron if cron is not None else None if solar is None else f"solar {solar}"
        return None if text is None else read_schedule_text(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _policies(  # noqa: PLR0917 - in the order of the options
    zone: str | None,
    catchup: str | None,
    grace: float | None,
    start: str | None,
    jitter: float | None,
    overlap: str | None,
) -> dict[str, Any]:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - beside its user

    begin = None if start is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=read_instant(start))
    given = {"zone": zone, "catchup": catchup, "grace": grace, "start": begin, "jitter": jitter, "overlap": overlap}
    return {key: value for key, value in given.items() if value is not None}


def _options(
    old: Any, queue: str | None, priority: int | None, expires: float | None, more: list[str] | None
) -> dict[str, Any]:
    named = {"queue": queue, "priority": priority, "expires": expires}
    options = {**old, **{key: value for key, value in named.items() if value is not None}}
    for pair in more or []:
        key, separator, text = pair.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{pair!r} is no KEY=VALUE.")
        if not text:
            options.pop(key, None)
            continue
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text  # a plain word is text
    return options


def _json(text: str | None, kind: type, what: str) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{what} is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise typer.BadParameter(f"{what} must be a JSON {'list' if kind is list else 'object'}.")
    return value
