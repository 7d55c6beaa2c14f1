"""The embedder's figures for Prometheus, in a registry of their own: several embedders may live in one test process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class EmbedderMetrics:
    """Counters since the start of the process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        prefix = "fencebeat_embedder_"
        self.inputs = Counter(f"{prefix}inputs", "texts given to the model", registry=registry)
        self.batches = Counter(f"{prefix}batches", "batches given to the model", registry=registry)
        self.tokens = Counter(f"{prefix}tokens", "tokens given to the model", registry=registry)
        self.truncated = Counter("tokens_truncated", "tokens cut off before the model; always 0", registry=registry)
        self.joined = Counter(f"{prefix}joined", "inputs answered by one already open", registry=registry)
        self.refused = Counter(f"{prefix}refused", "requests refused", ["reason"], registry=registry)
        self.queued = Gauge(f"{prefix}queued", "distinct texts waiting or running", registry=registry)
        self.forward_seconds = Histogram(
            f"{prefix}forward_seconds", "time of one batch in the model", buckets=_SECONDS, registry=registry
        )

    def batch(self, inputs: int, tokens: int, truncated: int) -> None:
        """Count a batch that has run."""
        self.inputs.inc(inputs)
        self.batches.inc()
        self.tokens.inc(tokens)
        self.truncated.inc(truncated)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
