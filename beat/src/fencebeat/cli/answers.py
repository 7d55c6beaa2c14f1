"""How the library's commands answer, and what they ask: the Celery application's configuration and the store."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fencebeat.errors import NoApplication

if TYPE_CHECKING:  # with Celery and redis a second and more: `fencebeat --help` asks neither
    import redis
    from celery import Celery

    from fencebeat.configuration import Configuration
    from fencebeat.edits import Schedule
    from fencebeat.entries import Entry
    from fencebeat.store import Store

TIMEOUT = 2.0
"""Seconds for each call of a command."""


class Exit(IntEnum):
    """Exit codes; they do not change."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DEGRADED = 3
    REFUSED = 4


AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON on stdout, for programs.")]


def examples(*lines: str) -> str:
    """Examples for the end of a command's help, a line each."""
    return "\n\n".join(("Examples:", *lines))


def answer(data: Any, as_json: bool, text: Callable[[Console], None]) -> None:
    """Print `data` as JSON, or let `text` print it for people."""
    if as_json:
        typer.echo(json.dumps(data, default=str, ensure_ascii=False))
    else:
        text(Console(highlight=False))


@dataclass(frozen=True)
class App:
    """The name of the Celery application; it is imported only by a command that asks it."""

    name: str

    def load(self) -> "Celery":
        """Import it as `celery -A` does. Raises NoApplication with the reason."""
        from celery.app.utils import find_app  # noqa: PLC0415 - slow: see the top

        if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
            sys.path.insert(0, here)
        try:
            return find_app(self.name)
        except (ImportError, AttributeError, ValueError) as error:
            raise NoApplication(why=f"{self.name!r}: {error}") from error


@dataclass(frozen=True)
class Asked:
    """What a command needs: the configuration, its entries, the store, and the schedule to be edited."""

    configuration: "Configuration"
    entries: "dict[str, Entry]"
    unusable: dict[str, str]  # entry -> why it cannot be scheduled
    store: "Store"
    schedule: "Schedule"
    client: "redis.Redis"

    @property
    def in_redis(self) -> bool:
        """Whether the lock is in Redis, where its remaining time can be seen."""
        return self.configuration.lock == "redis"


@contextmanager
def asked(context: typer.Context) -> Iterator[Asked]:
    """The application that `-A` names and its store, for one command. Raises NoApplication, ImpossibleConfiguration."""
    from fencebeat.clock import system_clock  # noqa: PLC0415 - beside its user
    from fencebeat.configuration import Configuration  # noqa: PLC0415 - slow: see the top
    from fencebeat.edits import Schedule  # noqa: PLC0415 - the same
    from fencebeat.entries import lines_of, read_schedule  # noqa: PLC0415 - the same
    from fencebeat.store import Store  # noqa: PLC0415 - the same

    app = context.find_object(App) or App("tasks")
    celery = app.load()
    configuration = Configuration.of(celery)
    entries, refused = read_schedule(lines_of(celery), zone=configuration.zone, lease=configuration.timing.lease)
    client = configuration.broker.client(TIMEOUT, name="fencebeat-cli")
    try:
        yield Asked(
            configuration,
            entries,
            {str(error.facts["name"]): str(error.facts["why"]) for error in refused},
            Store(client, configuration.keys),
            Schedule(
                client,
                configuration.keys,
                zone=configuration.zone,
                lease=configuration.timing.lease,
                tolerance=configuration.tolerance,
                clock=system_clock(),
            ),
            client,
        )
    finally:
        client.close()
