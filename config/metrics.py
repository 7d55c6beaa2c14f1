"""Counters and histograms of all worker processes of a host, added up by whoever serves `/metrics`.

Workers are prefork: each pool child counts for itself. prometheus_client keeps such counts in one memory-mapped file a
process, in FENCEBEAT_STATE_DIR/metrics; the files survive SIGKILL, so a killed child's counts are not lost. What a
store already knows (leader, documents by state, switches) is not counted here: the status page reads it there.
"""

import os
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.settings import settings

if TYPE_CHECKING:  # importing prometheus_client decides where its values live, so it waits for `_client`
    import prometheus_client

LABEL_LIMIT: Final = 100
"""Distinct values of one label in one process; further ones are counted as `other`, so that no series runs away."""

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_COUNTS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 10_000.0)

_seen: dict[tuple[str, str], set[str]] = {}
_lock = threading.Lock()


def directory() -> Path:
    """Where the processes of this host keep their counts."""
    return Path(os.environ.get("PROMETHEUS_MULTIPROC_DIR") or settings().state_dir / "metrics")


@lru_cache(maxsize=1)
def _client() -> "type[prometheus_client.Counter]":
    """Import prometheus_client with its values in the files of `directory()`.

    It decides at its import where values live, and `celery` imports it before us (its command line loads Flower's): so
    the decision is made here, for every metric that is made from now on.
    """
    path = directory()
    path.mkdir(parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(path.resolve())
    from prometheus_client import Counter, values  # noqa: PLC0415 - only now: see above

    if not values.ValueClass._multiprocess:  # noqa: SLF001 - the only thing that tells
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]  # it has no annotation
    return Counter


@lru_cache(maxsize=1024)
def _counter(name: str, labels: tuple[str, ...], text: str) -> "prometheus_client.Counter":
    return _client()(name, text, labels)


@lru_cache(maxsize=1024)
def _histogram(name: str, labels: tuple[str, ...], text: str) -> "prometheus_client.Histogram":
    _client()
    from prometheus_client import Histogram  # noqa: PLC0415 - only after `_client`

    return Histogram(name, text, labels, buckets=_SECONDS if name.endswith("_seconds") else _COUNTS)


def _bounded(metric: str, labels: Mapping[str, object]) -> dict[str, str]:
    """The labels as text, each with at most LABEL_LIMIT values."""
    bounded = {}
    with _lock:
        for name, value in labels.items():
            text = str(value)
            seen = _seen.setdefault((metric, name), set())
            if text not in seen and len(seen) >= LABEL_LIMIT:
                text = "other"
            seen.add(text)
            bounded[name] = text
    return bounded


_counting = True


def count_nothing() -> None:
    """From now on this process counts nothing: a command that ends at once would leave files that nobody removes."""
    global _counting  # noqa: PLW0603 - one decision a process, like where the counts live
    _counting = False


def observe(event: str, *, labels: Mapping[str, object], measures: Mapping[str, float]) -> None:
    """Count one event (`fencebeat_<event>_total`) and take in its measures (a histogram each)."""
    if not _counting:
        return
    base = f"fencebeat_{event.replace('.', '_')}"
    names, values = tuple(labels), _bounded(base, labels)
    counter = _counter(base, names, f"Events {event}; see docs/events.md.")
    (counter.labels(**values) if names else counter).inc()
    for measure, value in measures.items():
        histogram = _histogram(f"{base}_{measure}", names, f"{measure} of {event}; see docs/events.md.")
        (histogram.labels(**values) if names else histogram).observe(value)


def count_malformed(event: str) -> None:
    """Count an event that did not fit the catalogue."""
    if _counting:
        text = "Events that did not fit the catalogue."
        _counter("fencebeat_events_malformed", ("emitted",), text).labels(event).inc()


def text() -> bytes:
    """The counts of all processes of this host, in Prometheus text format."""
    _client()
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - only after `_client`
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415 - only after `_client`

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client has no annotation here
    return generate_latest(registry)


def serve(port: int) -> None:
    """Serve `text()` on loopback in a thread of this process: for a worker with FENCEBEAT_METRICS_PORT."""
    _client()
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only after `_client`
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415 - only after `_client`

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client has no annotation here
    start_http_server(port, addr="127.0.0.1", registry=registry)
