"""What happens when workers start and stop: the report on switches, and what `config.workers` does to watch them."""

from typing import Any

from celery import signals

from config import workers
from config.settings import settings
from control.acknowledge import Reporter
from tasks.wiring import Services, services

_reporters: list[Reporter] = []

workers.watch()


@signals.worker_process_shutdown.connect
def stop_child(**_: Any) -> None:
    """Give the connections back."""
    services().close()


@signals.worker_ready.connect
def start_parent(sender: Any, **_: Any) -> None:
    """The parent reports which switches this worker acts on, with connections of its own."""
    made = Services(settings())
    reporter = Reporter(sender.hostname, made.reader, made.broker.client(settings().control_timeout), made.keys)
    reporter.start()
    _reporters.append(reporter)


@signals.worker_shutting_down.connect
def stop_parent(**_: Any) -> None:
    """Take this worker off the list of those who must acknowledge a switch."""
    while _reporters:
        _reporters.pop().stop()
