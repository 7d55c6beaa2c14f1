"""The kill switch's commands: on, off, status."""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ops.cli.answers import AsJson, Exit, answer, application, err, examples, leave

if TYPE_CHECKING:  # see ops.cli.answers
    from control.acknowledge import Acknowledged
    from control.switches import Change
    from tasks.wiring import Services

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Scope = Annotated[str, typer.Option(help="all, tenant:x, source:tenant/x, target:x, queue:x or entry:x.")]
Level = Annotated[str, typer.Option(help="emit: no new ticks; start: no new tasks; write: nothing is written.")]
Lasts = Annotated[str | None, typer.Option("--for", help="90s, 30m, 2h, 1d; without it, until it is lifted.")]
Reason = Annotated[str, typer.Option(help="Why; whoever finds the stop at night reads this.")]
Author = Annotated[str, typer.Option(help="Who; the user of this system without it.")]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for the workers' acknowledgement.")]

kill = typer.Typer(help="Stop new effects in a scope, within two seconds, and prove it.", no_args_is_help=True)


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(kill, name="kill")


def duration(text: str | None) -> timedelta | None:
    """`90s`, `30m`, `2h`, `1d` as a duration; None stays None. Raises NoDuration for anything else, and for zero."""
    from ops.errors import NoDuration  # noqa: PLC0415 - see ops.cli

    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise NoDuration(text=text)
    return timedelta(**{_UNITS[match[2]]: float(match[1])})


def me() -> str:
    """The user of this system, as the audit names people."""
    import getpass  # noqa: PLC0415 - only for the audit
    import socket  # noqa: PLC0415 - only for the audit

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        import os  # noqa: PLC0415 - only there

        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@kill.command("on", epilog=examples('fencebeat kill on --scope tenant:acme --reason "bad parser" --for 2h'))
def on(
    *,
    reason: Reason,
    scope: Scope = "all",
    level: Level = "write",
    lasts: Lasts = None,
    author: Author = "",
    wait: Wait = 5.0,
    as_json: AsJson = False,
) -> None:
    """Stop a scope. Exits 3 when a worker did not acknowledge; it cannot commit all the same."""
    limit = duration(lasts)
    with application() as made:
        change = made.switches.on(scope, level, reason=reason, author=author or me(), origin="command", lasts=limit)
        _report(made, change, wait, as_json)


@kill.command("off", epilog=examples('fencebeat kill off --reason "parser rolled back"'))
def off(
    *,
    reason: Reason,
    scope: Scope = "all",
    author: Author = "",
    wait: Wait = 5.0,
    as_json: AsJson = False,
) -> None:
    """Lift the stop of a scope; a wider one stays in force."""
    with application() as made:
        change = made.switches.off(scope, reason=reason, author=author or me(), origin="command")
        _report(made, change, wait, as_json)


def _report(made: "Services", change: "Change", wait: float, as_json: bool) -> None:
    """Hand the change to Redis, wait for the workers, and say who acts on it."""
    from fencebeat.errors import Retryable  # noqa: PLC0415 - see ops.cli

    what = f"{change.scope} is " + ("running again" if change.after == "run" else f"stopped at level {change.after}")
    until = "" if change.until is None else f" until {change.until:%Y-%m-%d %H:%M:%S %Z}"
    lines = [f"change {change.change}: {what}{until}"]
    facts: dict[str, Any] = {
        "change": change.change,
        "scope": change.scope,
        "before": change.before,
        "after": change.after,
        "until": change.until and change.until.isoformat(),
    }
    try:
        seen = _acknowledged(made, change.change, wait)
    except Retryable as error:
        code = Exit.DEGRADED
        facts |= {"workers": None, "silent": None, "problem": error.what}
        lines.append(f"Nobody could be asked whether they act on it: {error.what}")
        lines.append("It is in force all the same: Postgres checks it in every commit.")
    else:
        code = Exit.DEGRADED if seen.silent else Exit.OK
        facts |= {"workers": len(seen.workers), "silent": list(seen.silent), "seconds": round(seen.seconds, 3)}
        total = len(seen.workers) + len(seen.silent)
        lines.append(
            f"in force on {len(seen.workers)} of {total} workers after {seen.seconds:.1f} s"
            if total
            else "no worker is running; those that start will act on it"
        )
        lines += [f"silent: {one}. It cannot commit: Postgres checks the switch there." for one in seen.silent]
    answer(facts, as_json, lambda console: console.print("\n".join(lines), markup=False))
    leave(code)


def _acknowledged(made: "Services", change: int, wait: float) -> "Acknowledged":
    import time  # noqa: PLC0415 - only while waiting

    from config import events  # noqa: PLC0415 - see ops.cli
    from control.acknowledge import wait_until_acknowledged  # noqa: PLC0415 - see ops.cli
    from fencebeat.flags import FlagsUnknown  # noqa: PLC0415 - see ops.cli

    try:
        made.keeper.seed()  # at once; beats renew the copy from Postgres twice a second in any case
    except FlagsUnknown as error:  # no beat has led yet, or Redis lost its past: workers ask Postgres themselves
        err.print(f"Redis has no switches yet, so workers ask Postgres: {error.what}", style="yellow", markup=False)
    with err.status("waiting for the workers"):
        result = wait_until_acknowledged(
            made.redis, made.keys, change, clock=made.clock, pause=time.sleep, at_most=wait
        )
    events.emit(
        events.SWITCH_ACKNOWLEDGED,
        change=change,
        workers=len(result.workers),
        silent=len(result.silent),
        seconds=result.seconds,
    )
    return result


@kill.command("status", epilog=examples("fencebeat kill status --audit 10"))
def status(
    *,
    audit: Annotated[int, typer.Option(min=0, help="Also the newest changes, so many.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what is stopped, by whom, why, until when, and which workers act on the newest change."""
    from control.acknowledge import reports  # noqa: PLC0415 - see ops.cli
    from fencebeat.errors import Retryable  # noqa: PLC0415 - see ops.cli

    with application() as made:
        stops, newest = made.switches.status(), made.switches.generation()
        changes = made.switches.audit(audit) if audit else []
        try:
            workers, problem = reports(made.redis, made.keys), None
        except Retryable as error:
            workers, problem = [], error.what

    def text(console: Console) -> None:
        if not stops:
            console.print("nothing is stopped")
        for stop in stops:
            until = "until it is lifted" if stop.until is None else f"until {stop.until:%Y-%m-%d %H:%M:%S %Z}"
            console.print(
                f"{stop.scope}: {stop.level}, {until}; {stop.author}: {stop.reason}", style="red", markup=False
            )
        acting = sum(worker.generation >= newest for worker in workers)
        console.print(f"newest change {newest}; {acting} of {len(workers)} workers act on it")
        if problem:
            console.print(f"workers are unknown: {problem}", style="yellow", markup=False)
        if changes:
            table = Table("at", "change", "scope", "from", "to", "author", "reason")
            for row in changes:
                at = f"{row['at']:%Y-%m-%d %H:%M:%S}"
                table.add_row(
                    at, str(row["change"]), row["scope"], row["before"], row["after"], row["author"], row["reason"]
                )
            console.print(table)

    data = {
        "stops": [stop.as_dict() for stop in stops],
        "change": newest,
        "workers": workers,
        "problem": problem,
        "audit": changes,
    }
    answer(data, as_json, text)
    leave(Exit.DEGRADED if problem else Exit.OK)
