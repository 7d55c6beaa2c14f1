"""What every worker of the Celery application does to be watched: logs, traces, metrics. Connected once, at import.

Celery's own logging is replaced whole (a receiver of `setup_logging` keeps it away from the root logger). Tracing
starts in each pool child, after the fork; so does the Celery instrumentation, which continues the `traceparent` of a
message and passes it on in every message that a task sends.
"""

import logging
from contextvars import Token
from typing import Any, Final

import structlog
from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from config import logging as logs
from config import metrics, telemetry
from config.settings import settings

TICK_HEADERS: Final = {
    "fencebeat_tick": "tick_id",
    "fencebeat_entry": "entry",
    "fencebeat_fire_time": "fire_time",
    "fencebeat_token": "token",
}
"""Headers that the beat puts into a tick's message (the fire time in microseconds) -> their words in logs and spans."""

_bound: dict[str, dict[str, Token[Any]]] = {}


def watch() -> None:
    """Connect to Celery's signals. Call it where the application is made; a second call changes nothing."""
    signals.setup_logging.connect(_set_up_logging, dispatch_uid="fencebeat.logging", weak=False)
    signals.worker_ready.connect(_serve_metrics, dispatch_uid="fencebeat.metrics", weak=False)
    signals.worker_process_init.connect(_trace_child, dispatch_uid="fencebeat.telemetry", weak=False)
    signals.worker_process_shutdown.connect(_end_child, dispatch_uid="fencebeat.telemetry.end", weak=False)
    signals.task_prerun.connect(_begin_task, dispatch_uid="fencebeat.task", weak=False)
    signals.task_postrun.connect(_end_task, dispatch_uid="fencebeat.task.end", weak=False)


def _set_up_logging(loglevel: int | None = None, **_: Any) -> None:
    # WARNING is what Celery says when nobody asked for a level; our events are at INFO.
    logs.configure(settings(), level=logging.INFO if loglevel in (None, logging.WARNING) else loglevel)


def _serve_metrics(**_: Any) -> None:
    if settings().metrics_port:
        metrics.serve(settings().metrics_port)


def _trace_child(**_: Any) -> None:
    if telemetry.start("fencebeat-worker") is not None:
        CeleryInstrumentor().instrument()


def _end_child(**_: Any) -> None:
    telemetry.stop()


def tick_of(headers: dict[str, Any] | None) -> dict[str, Any]:
    """What a message says about the tick it is for: tick_id, entry, fire_time (s since the epoch), token; else {}."""
    said = {word: headers[name] for name, word in TICK_HEADERS.items() if headers and name in headers}
    return {**said, "fire_time": said["fire_time"] / 1e6} if "fire_time" in said else said


def _begin_task(task_id: str, task: Any, **_: Any) -> None:
    """Before the instrumentation's own receiver, which is connected later: the tick's span is the parent of the run."""
    tick = tick_of(task.request.headers)
    _bound[task_id] = dict(structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id, **tick))
    if "fire_time" in tick:
        telemetry.write_tick_span(task.request.headers, tick)


def _end_task(task_id: str, **_: Any) -> None:
    structlog.contextvars.reset_contextvars(**_bound.pop(task_id, {}))
