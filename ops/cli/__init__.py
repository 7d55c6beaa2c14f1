"""The application's sub-commands of `fencebeat`.

Lives here: one module for each group of commands, and `answers`, how all of them answer. May import at its top: typer,
rich, and what prints an answer. Everything with drivers or numbers in it (stores, numpy, models) is imported inside the
command that needs it, so that `fencebeat --help` answers at once.
Must never know: how anything is done; a command reads like a sentence about the layers below.
"""

import typer

from ops.cli import documents, running, stopping


def register(app: typer.Typer) -> None:
    """Add the application's commands to the `fencebeat` command; entry point of the group `fencebeat.commands`."""
    for add in (running.add, documents.add, stopping.add):
        add(app)


__all__ = ["register"]
