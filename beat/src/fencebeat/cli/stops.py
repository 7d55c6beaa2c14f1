"""Stops of a project without an effect store, set and lifted in Redis itself: `fencebeat flags stop` and `lift`."""

import re
from typing import Annotated

import typer
from rich.markup import escape

from fencebeat.cli.answers import AsJson, Asked, answer, asked, examples
from fencebeat.errors import StopsLiveElsewhere

Scope = Annotated[str, typer.Argument(help="all, entry:NAME or queue:NAME.")]
Reason = Annotated[str, typer.Option(help="Why; whoever finds it at night must know.")]
_SCOPE = re.compile(r"all|(entry|queue):.+")


def add(flags: typer.Typer) -> None:
    """Add these commands to `fencebeat flags`."""
    flags.command("stop", epilog=examples('fencebeat flags stop entry:nightly --reason "bad data"'))(stop)
    flags.command("lift", epilog=examples('fencebeat flags lift all --reason "nothing was stopped"'))(lift)


def stop(context: typer.Context, scope: Scope, reason: Reason, as_json: AsJson = False) -> None:
    """Emit no ticks of a scope until it is lifted; each is recorded as paused."""
    from fencebeat import flagmemory  # noqa: PLC0415 - imports redis
    from fencebeat.edits import whoever  # noqa: PLC0415 - the same
    from fencebeat.effects import Flag  # noqa: PLC0415 - beside its user

    with asked(context) as given:
        _check(given, scope)
        flag = Flag("emit", reason, whoever())
        generation = flagmemory.stop(given.client, given.configuration.keys, scope, flag)
    data = {"scope": scope, "stopped": True, "generation": generation}
    answer(data, as_json, lambda console: console.print(f"{escape(scope)} is stopped from the next commit on"))


def lift(context: typer.Context, scope: Scope, reason: Reason, as_json: AsJson = False) -> None:
    """Lift the stop of a scope; a wider one stays in force. After a lost past: say that nothing was stopped."""
    from fencebeat import flagmemory  # noqa: PLC0415 - imports redis
    from fencebeat.edits import whoever  # noqa: PLC0415 - the same

    with asked(context) as given:
        _check(given, scope)
        generation = flagmemory.lift(given.client, given.configuration.keys, scope, reason=reason, author=whoever())
    data = {"scope": scope, "stopped": False, "generation": generation}
    answer(data, as_json, lambda console: console.print(f"the stop of {escape(scope)} is lifted"))


def _check(given: Asked, scope: str) -> None:
    if given.configuration.effect_store:
        raise StopsLiveElsewhere
    if not _SCOPE.fullmatch(scope):
        raise typer.BadParameter(f"there is no scope {scope!r}: use all, entry:NAME or queue:NAME.")
