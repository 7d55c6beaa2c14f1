"""The application of typer, its root options, and the one place where errors become text and exit codes."""

import json
import logging
import sys
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fencebeat import __version__
from fencebeat.cli import beats, check, claims, outbox
from fencebeat.cli.answers import App, Exit, examples
from fencebeat.errors import FencebeatError, Refused, UnknownEntry


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fencebeat {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    app: Annotated[
        str, typer.Option("-A", "--app", envvar="FENCEBEAT_APP", help="The Celery application, as for `celery -A`.")
    ] = "tasks",
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A Celery Beat scheduler for many hosts: who leads, what is due, what became of a tick."""
    context.obj = App(app)


def application() -> typer.Typer:
    """The whole command: the library's own part, and what installed distributions add.

    Commands that cannot be loaded are named on stderr; the others work.
    """
    made = typer.Typer(name="fencebeat", no_args_is_help=True, add_completion=True, rich_markup_mode="rich")
    made.callback(epilog=examples("fencebeat leader show", "fencebeat -A proj schedule list --json"))(_root)
    beats.add(made)
    check.add(made)
    claims.add(made)
    outbox.add(made)
    for point in entry_points(group="fencebeat.commands"):
        try:
            point.load()(made)
        except Exception as error:  # noqa: BLE001 - somebody else's code must not take our commands away
            sys.stderr.write(f"The commands of {point.value} are missing: {error!r}\n")
    return made


def run(argv: list[str]) -> int:
    """Run one command; returns its exit code."""
    as_json = "--json" in argv
    # The pool of connections logs each failed attempt; the error that ends the command says it once.
    logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())
    command = typer.main.get_command(application())
    try:
        result = command.main(args=argv, prog_name="fencebeat", standalone_mode=False)
    except FencebeatError as error:
        _show(error.as_dict(), str(error), as_json)
        return _code(error)
    except typer.Abort:
        _show({"error": "Abort", "message": "Nothing was done."}, "Nothing was done.", as_json)
        return Exit.FAILED
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return Exit.FAILED
    except Exception as error:
        # typer carries a click of its own in some versions and uses the common one in others: told by what it can do.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        _show({"error": "UsageError", "message": message}, f"{message}\n{_hint(error)}", as_json)
        return int(getattr(error, "exit_code", Exit.USAGE))
    return int(result) if isinstance(result, int) else Exit.OK


def _code(error: FencebeatError) -> int:
    if isinstance(error, UnknownEntry):
        return Exit.USAGE
    return Exit.REFUSED if isinstance(error, Refused) else Exit.FAILED


def _hint(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context is not None else 'fencebeat'} --help` shows what there is."


def _show(data: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(data, default=str, ensure_ascii=False))
        return
    what, _, rest = text.partition("\n")
    console = Console(stderr=True, highlight=False)
    console.print(f"[bold red]{escape(what)}[/]", soft_wrap=True)
    if rest:
        console.print(escape(rest), soft_wrap=True)
