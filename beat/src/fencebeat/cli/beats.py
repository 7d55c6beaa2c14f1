"""The library's commands: leader, flags, explain; and those of the schedule, which are in `schedule` and `editing`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fencebeat.cli import editing, gaps, importing, stops
from fencebeat.cli import schedule as shown
from fencebeat.cli.answers import AsJson, Asked, Exit, answer, asked, examples
from fencebeat.cli.editing import Yes, confirmed
from fencebeat.cli.times import read_instant
from fencebeat.errors import NobodyLeads
from fencebeat.firetimes import SECOND
from fencebeat.ticks import instant

if TYPE_CHECKING:
    from fencebeat.effects import Flag


def add(app: typer.Typer) -> None:
    """Add these commands to the `fencebeat` command."""
    leader = typer.Typer(no_args_is_help=True, help="Who leads, and how to end it.")
    leader.command("show", epilog=examples("fencebeat leader show", "fencebeat -A proj leader show --json"))(show)
    leader.command("resign", epilog=examples("fencebeat leader resign --yes"))(resign)
    schedule = typer.Typer(no_args_is_help=True, help="What is scheduled, when it fires, and how to change it.")
    shown.add(schedule)
    editing.add(schedule)
    importing.add(schedule)
    gaps.add(schedule)
    app.add_typer(leader, name="leader")
    app.add_typer(schedule, name="schedule")
    flag = typer.Typer(help="What is stopped; and stops of a project without an effect store.")
    shows = examples("fencebeat flags", "fencebeat -A proj flags --json")
    flag.callback(invoke_without_command=True, epilog=shows)(flags)
    stops.add(flag)
    app.add_typer(flag, name="flags")
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
        "lost_past": instant(int(record["lost_past"])) if "lost_past" in record else None,
        "lost_ticks": int(record.get("lost_ticks", 0)),
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
        if data["lost_past"]:
            console.print(
                f"The store lost its past before {data['lost_past']}; {data['lost_ticks']} ticks may have been lost:"
                " fencebeat schedule gaps"
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


def resign(context: typer.Context, yes: Yes = False, as_json: AsJson = False) -> None:
    """End the term in force. A standby takes over at once; the old leader is refused at its next act.

    No tick is lost or doubled by it. Where nobody stands by, the old leader wins a new term.
    """
    with asked(context) as given:
        lock = given.configuration.make_lock()
        try:
            term = lock.holder()
            if term is None:
                raise NobodyLeads
            confirmed(yes, f"End the term of {term.holder} (token {term.token})?", as_json)
            ended = lock.resign(term)
        finally:
            lock.close()
    if not ended:
        raise NobodyLeads
    data = {"ended": True, "token": term.token, "holder": term.holder}
    answer(data, as_json, lambda console: console.print(f"ended the term of {escape(term.holder)}, token {term.token}"))


def flags(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the stops in force, as the broker's copy has them. Exit code 3: it is unknown, nothing is emitted."""
    from fencebeat.flags import FRESH, read_flags  # noqa: PLC0415 - imports redis

    if context.invoked_subcommand is not None:
        return
    with asked(context) as given:
        copy = read_flags(given.client, given.configuration.keys)
        kept = bool(given.configuration.effect_store)
    stale = copy is not None and kept and copy.age_seconds > FRESH
    unknown = stale or copy is None
    known = [] if copy is None else [_stop(scope, flag) for scope, flag in sorted(copy.flags.items())]
    data = {
        "known": not unknown,
        "generation": copy.generation if copy else None,
        "age_seconds": round(copy.age_seconds, 3) if copy else None,
        "flags": known,
    }

    def text(console: Console) -> None:
        if copy is None:
            console.print("[bold red]The flags are unknown[/]: missing, without a generation, or damaged.")
        elif stale:
            console.print(f"[bold red]The flags are unknown[/]: nobody renewed them for {copy.age_seconds:.1f} s.")
        if unknown:
            console.print("Nothing is emitted until a beat renews them from the effect store.")
        for row in known:
            until = f" until {row['until']}" if row["until"] else ""
            console.print(
                f"[bold]{escape(row['scope'])}[/]: {row['level']} stopped by {escape(row['author'] or '?')}{until}"
            )
            console.print(f"    {escape(row['reason'] or 'no reason given')}")
        if copy is not None and not unknown:
            console.print(f"{len(known) or 'no'} stops; generation {copy.generation}, {copy.age_seconds:.1f} s old")

    answer(data, as_json, text)
    if unknown:
        raise typer.Exit(Exit.DEGRADED)


def _stop(scope: str, flag: "Flag") -> dict[str, Any]:
    return {
        "scope": scope,
        **asdict(flag),
        "until": None if flag.until is None else instant(round(flag.until * SECOND)),
    }


def explain(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(help="Name of the entry.")],
    time: Annotated[
        str | None, typer.Argument(help="Fire time: ISO 8601 (UTC where it says nothing else), or seconds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what became of one tick: emitted by whom, under which token, as which message; or why not.

    The tick may also be named as one word, as other commands show it: ENTRY@SECONDS.
    """
    from fencebeat.explain import explain as explain_tick  # noqa: PLC0415 - imports redis

    if time is None:
        entry, _, time = entry.rpartition("@")
        if not entry:
            raise typer.BadParameter("say which tick: `explain ENTRY TIME`, or `explain ENTRY@SECONDS`.")
    fire_time = read_instant(time)
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
