"""The commands about claims: make their table, show those of a tick, forget old ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fencebeat.cli.answers import App, AsJson, answer, examples
from fencebeat.errors import NothingToInstall

if TYPE_CHECKING:  # imports Celery, which `fencebeat --help` must not
    from fencebeat.claims import ClaimStore

DAY = 86_400.0


def add(app: typer.Typer) -> None:
    """Add these commands to the `fencebeat` command."""
    claims = typer.Typer(no_args_is_help=True, help="Claims of ticks, by which each has its effect once.")
    claims.command("install", epilog=examples("fencebeat claims install", "fencebeat claims install --print"))(install)
    claims.command("purge", epilog=examples("fencebeat claims purge --days 30"))(purge)
    app.add_typer(claims, name="claims")


@contextmanager
def _store(context: typer.Context) -> "Iterator[ClaimStore]":
    from fencebeat.claims.opening import ClaimSettings  # noqa: PLC0415 - imports Celery

    store = ClaimSettings.of((context.find_object(App) or App("tasks")).load()).open()
    try:
        yield store
    finally:
        store.disconnect()


def install(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--print", help="Print the SQL for your own migrations; do nothing.")] = False,
) -> None:
    """Make the table of claims in the Postgres that `fencebeat_claims` names. May be run again."""
    if show:
        from fencebeat.claims.schema import schema  # noqa: PLC0415 - beside its only user

        typer.echo(schema())
        return
    with _store(context) as store:
        make: Callable[[], None] | None = getattr(store, "install", None)
        if make is None:
            raise NothingToInstall(store=type(store).__name__)
        make()
    typer.echo("The table tick_claim is there.")


def purge(
    context: typer.Context,
    days: Annotated[float, typer.Option(min=1, help="Age of closing from which a claim is forgotten.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Forget claims that were closed long ago. The newest of each entry stays, and so does what is not closed.

    A message that is older than its claim would run again: keep claims longer than any backlog may last.
    """
    with _store(context) as store:
        purged = store.purge(days * DAY)

    def text(console: Console) -> None:
        console.print(f"{purged} claims forgotten that were closed more than {days:g} days ago.")

    answer({"purged": purged}, as_json, text)
