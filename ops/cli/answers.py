"""How every command answers: JSON or text on stdout, logs on stderr, one exit code for each kind of outcome."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from fencebeat.cli.answers import AsJson, Exit, examples
from fencebeat.cli.answers import answer as answer_plainly

if TYPE_CHECKING:  # wiring imports the drivers of every store; `fencebeat --help` must not
    from tasks.wiring import Services


__all__ = ["AsJson", "Exit", "answer", "application", "err", "examples", "leave", "plain", "quiet_logs"]

err = Console(stderr=True, highlight=False)


def answer(data: Any, as_json: bool, text: Callable[[Console], None]) -> None:
    """Print `data`, which may hold dataclasses, as JSON, or let `text` print it for people."""
    answer_plainly(plain(data) if as_json else None, as_json, text)


def plain(data: Any) -> Any:
    """Dataclasses as dictionaries, so that JSON can say them."""
    if is_dataclass(data) and not isinstance(data, type):
        return asdict(data)
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    return data


def leave(code: Exit) -> None:
    """End the command with this exit code."""
    if code is not Exit.OK:
        raise typer.Exit(int(code))


def quiet_logs() -> None:
    """Only warnings, on stderr: a command's answer is its stdout."""
    import logging  # noqa: PLC0415 - with structlog 0.1 s; help does not need it

    from config.logging import configure  # noqa: PLC0415 - see above
    from config.settings import settings  # noqa: PLC0415 - see above

    configure(settings(), level=logging.WARNING)


@contextmanager
def application() -> Iterator["Services"]:
    """The application's stores and steps, for one command; they are closed afterwards.

    Raises LedgerMissing where Postgres answers and has no schema of ours.
    """
    import psycopg  # noqa: PLC0415 - only where a store is asked

    from config import metrics  # noqa: PLC0415 - see above
    from config.settings import redacted, settings  # noqa: PLC0415 - see above
    from ops.errors import LedgerMissing  # noqa: PLC0415 - see above
    from tasks.wiring import services  # noqa: PLC0415 - imports the drivers of every store

    quiet_logs()
    metrics.count_nothing()
    wired = services()
    try:
        yield wired
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedColumn) as error:
        why = str(error).partition("\n")[0]
        raise LedgerMissing(address=redacted(settings().postgres_url), why=why) from error
    finally:
        wired.pool.close()
