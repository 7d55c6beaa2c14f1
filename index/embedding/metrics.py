"""The embedder's figures for Prometheus, kept in the object itself: several embedders may live in one test process.

A collector and not prometheus_client's own counters: where those keep their values is decided once for a whole process,
and the workers' metrics keep theirs in files that outlive an embedder.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fencebeat.clock import SystemClock

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_PREFIX = "fencebeat_embedder_"
_COUNTERS = {
    f"{_PREFIX}inputs": "texts given to the model",
    f"{_PREFIX}batches": "batches given to the model",
    f"{_PREFIX}tokens": "tokens given to the model",
    "tokens_truncated": "tokens cut off before the model; always 0",
    f"{_PREFIX}joined": "inputs answered by one already open",
}


class EmbedderMetrics(Collector):
    """Counts since the start of the process. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._queued = 0
        self._passes = [0] * (len(_SECONDS) + 1)  # passes through the model, by the bucket of their time
        self._pass_seconds = 0.0

    def batch(self, inputs: int, tokens: int, truncated: int) -> None:
        """Count a batch that has run."""
        with self._lock:
            self._counts[f"{_PREFIX}inputs"] += inputs
            self._counts[f"{_PREFIX}batches"] += 1
            self._counts[f"{_PREFIX}tokens"] += tokens
            self._counts["tokens_truncated"] += truncated

    def joined(self, inputs: int) -> None:
        """Count inputs that wait for a text which is open already."""
        with self._lock:
            self._counts[f"{_PREFIX}joined"] += inputs

    def refused(self, reason: str) -> None:
        """Count a request that was refused."""
        with self._lock:
            self._refused[reason] += 1

    def queued(self, texts: int) -> None:
        """Say how many distinct texts wait or run."""
        with self._lock:
            self._queued = texts

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Time one pass through the model."""
        clock = SystemClock()
        began = clock.elapsed()
        try:
            yield
        finally:
            seconds = clock.elapsed() - began
            with self._lock:
                self._passes[bisect_left(_SECONDS, seconds)] += 1
                self._pass_seconds += seconds

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client: the figures as they are now."""
        with self._lock:
            counts, refused, queued = dict(self._counts), dict(self._refused), self._queued
            passes, seconds = list(self._passes), self._pass_seconds
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=counts.get(name, 0))
        turned_away = CounterMetricFamily(f"{_PREFIX}refused", "requests refused", labels=["reason"])
        for reason, times in sorted(refused.items()):
            turned_away.add_metric([reason], times)
        yield turned_away
        yield GaugeMetricFamily(f"{_PREFIX}queued", "distinct texts waiting or running", value=queued)
        below = [(str(edge), float(sum(passes[: place + 1]))) for place, edge in enumerate((*_SECONDS, "+Inf"))]
        yield HistogramMetricFamily(
            f"{_PREFIX}forward_seconds", "time of one batch in the model", buckets=below, sum_value=seconds
        )

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
