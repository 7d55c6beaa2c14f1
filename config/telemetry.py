"""Traces: one from the tick to the commit, whatever processes the work passes through.

    tick ── run/tasks.sync_source ── sync ── apply_async ── run/tasks.index_documents ── document ── embed, bulk, commit

The beat writes `traceparent` into its messages itself and exports nothing: it must not wait for a collector. The first
worker that receives a tick writes the tick's span in its place, under the ids that the beat chose. Between tasks the
Celery instrumentation passes the context on.

Spans go to a bounded queue that drops rather than waits; exit waits for a collector at most `EXIT_SECONDS`. Set up
after the fork, in each pool child: threads and locks made before it would be dead in the child.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from config.settings import Settings, settings

EXIT_SECONDS: Final = 2.0
"""How long a process may wait for its collector when it ends."""

QUEUE_SPANS: Final = 2048
"""Spans kept for a slow collector; further ones push the oldest out."""

_given: ContextVar[trace.SpanContext | None] = ContextVar("fencebeat_given_ids", default=None)


class _Ids(RandomIdGenerator):
    """Random ids, except for the one span whose ids the beat has chosen already."""

    def generate_span_id(self) -> int:
        given = _given.get()
        return given.span_id if given else super().generate_span_id()

    def generate_trace_id(self) -> int:
        given = _given.get()
        return given.trace_id if given else super().generate_trace_id()


class JsonLines(SpanExporter):
    """Writes each span as one JSON line, one `write` to a file opened for append, like the history file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans. A full disk loses spans and nothing else."""
        try:
            for span in spans:
                os.write(self._fd, json.dumps(_as_dict(span), default=str).encode() + b"\n")
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _as_dict(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    return {
        "name": span.name,
        "trace_id": trace.format_trace_id(context.trace_id) if context else "",
        "span_id": trace.format_span_id(context.span_id) if context else "",
        "parent_id": trace.format_span_id(span.parent.span_id) if span.parent else None,
        "start": (span.start_time or 0) / 1e9,
        "end": (span.end_time or 0) / 1e9,
        "status": span.status.status_code.name,
        "pid": os.getpid(),
        "attributes": dict(span.attributes or {}),
    }


def provider(configured: Settings, service: str) -> TracerProvider | None:
    """A tracer provider as the settings say; None where they name no place for spans."""
    if not (configured.otlp_endpoint or configured.trace_file):
        return None
    made = TracerProvider(
        resource=Resource.create({"service.name": service, "process.pid": os.getpid()}),
        id_generator=_Ids(),
        shutdown_on_exit=False,  # `stop` does it, with a limit
    )
    if configured.trace_file:
        made.add_span_processor(SimpleSpanProcessor(JsonLines(configured.trace_file)))
    if configured.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - 0.2 s where it is used only
            OTLPSpanExporter,
        )

        endpoint = f"{configured.otlp_endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXIT_SECONDS)
        made.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS))
    return made


_running: TracerProvider | None = None


def start(service: str) -> TracerProvider | None:
    """Trace this process; does nothing where the settings name no place for spans, or when it was done before."""
    global _running  # noqa: PLW0603 - OpenTelemetry has one provider a process, too
    if _running is None and (made := provider(settings(), service)) is not None:
        trace.set_tracer_provider(made)
        _running = made
    return _running


def stop() -> None:
    """Send what is queued, for at most EXIT_SECONDS; what a slow collector has not taken by then is dropped."""
    global _running
    ending, _running = _running, None
    if ending is not None:
        _shutdown(ending, EXIT_SECONDS)


def _shutdown(ending: TracerProvider, seconds: float) -> None:
    """Shut down in a thread of its own, because the SDK's own limit is 30 s and cannot be set from here."""
    import threading  # noqa: PLC0415 - only at exit

    thread = threading.Thread(target=ending.shutdown, name="telemetry-exit", daemon=True)
    thread.start()
    thread.join(seconds)


@contextmanager
def span(name: str, **attributes: str | float | bool | None) -> Iterator[trace.Span]:
    """A span around a step. Attributes go under `fencebeat.`, None is left out; an exception marks it as failed."""
    given = {f"fencebeat.{key}": value for key, value in attributes.items() if value is not None}
    with trace.get_tracer("fencebeat").start_as_current_span(name, attributes=given) as opened:
        yield opened


def write_tick_span(headers: Mapping[str, Any], attributes: Mapping[str, str | int | float]) -> None:
    """Write the span of the tick that sent this message, from its fire time until now.

    headers: the message's; without a `traceparent` nothing is written. attributes: must hold `fire_time`, in seconds
    since the epoch. A redelivered message writes the span again, under the same ids.
    """
    carrier = {"traceparent": str(headers.get("traceparent") or "")}
    sent = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    if not sent.is_valid:
        return
    held = _given.set(sent)
    try:
        tick = trace.get_tracer("fencebeat").start_span(
            "tick",
            context=Context(),  # a root: what runs now is its child
            kind=trace.SpanKind.PRODUCER,
            attributes={f"fencebeat.{key}": value for key, value in attributes.items()},
            start_time=int(float(attributes["fire_time"]) * 1e9),
        )
    finally:
        _given.reset(held)
    tick.end()
