"""What happens when workers start and stop: logs, traces, and the report on switches."""

from typing import Any

from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from config import logging as logs
from config import metrics, telemetry
from config.settings import settings
from control.acknowledge import Reporter
from tasks.wiring import Services, services

_reporters: list[Reporter] = []


@signals.setup_logging.connect
def set_up_logging(**_: Any) -> None:
    """Log our way; with a receiver of this signal Celery leaves the root logger alone."""
    logs.configure(settings())


@signals.worker_process_init.connect
def start_child(**_: Any) -> None:
    """A pool child: its own traces and metrics, made after the fork."""
    telemetry.start("fencebeat-worker")
    CeleryInstrumentor().instrument()


@signals.worker_process_shutdown.connect
def stop_child(**_: Any) -> None:
    """Send what is queued, for a short time; give the connections back."""
    telemetry.stop()
    services().close()


@signals.worker_ready.connect
def start_parent(sender: Any, **_: Any) -> None:
    """The parent reports which switches this worker acts on, with connections of its own."""
    made = Services(settings())
    if settings().metrics_port:
        metrics.serve(settings().metrics_port)
    reporter = Reporter(sender.hostname, made.reader, made.broker.client(settings().control_timeout), made.keys)
    reporter.start()
    _reporters.append(reporter)


@signals.worker_shutting_down.connect
def stop_parent(**_: Any) -> None:
    """Take this worker off the list of those who must acknowledge a switch."""
    while _reporters:
        _reporters.pop().stop()


@signals.task_prerun.connect
def write_tick(task: Any, **_: Any) -> None:
    """The first worker that runs a tick's message writes the tick's span, under the ids the beat chose."""
    headers = getattr(task.request, "headers", None) or {}
    if "fencebeat_tick" in headers:
        telemetry.write_tick_span(
            headers,
            {
                "tick": str(headers["fencebeat_tick"]),
                "entry": str(headers.get("fencebeat_entry", "")),
                "fire_time": float(headers.get("fencebeat_fire_time", 0)) / 1e6,
                "token": int(headers.get("fencebeat_token", 0)),
            },
        )
