"""The metrics that stores already know, read when they are asked for: leader, lateness, documents, switches, doctor.

A store that does not answer leaves its gauges out, because an absent series alarms and a zero lies.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ops.schedules import Schedule
from ops.status import Status, Target

STATES = ("indexed", "dirty", "claimed", "dead", "absent")


class _Families:
    """A collector of prometheus_client over one status."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def families(status: Status, ticks: Mapping[str, int] | None, tick_lag_seconds: float | None) -> Iterable[Metric]:
    """Everything as metric families. ticks: decisions by outcome; None where Redis did not answer."""
    yield _gauge("fencebeat_degraded", "1 while anything is wrong; see the status page", float(status.degraded))
    if ticks is not None:  # Redis answered
        yield _gauge("fencebeat_leader", "1 while a beat leads", float(status.leader is not None))
        yield _gauge("fencebeat_switches_fresh", "1 while workers may believe Redis", float(status.flags_fresh))
        decided = CounterMetricFamily("fencebeat_ticks", "Decisions about ticks by outcome", labels=["outcome"])
        for outcome, count in ticks.items():
            decided.add_metric([outcome], count)
        yield decided
        yield _gauge("fencebeat_fence_rejected", "Requests of older terms refused", float(ticks.get("fenced", 0)))
        yield _labelled("fencebeat_queue_messages", "Messages waiting in a queue", "queue", status.queues)
        late = {entry.name: entry.late_seconds for entry in status.entries}
        yield _labelled("fencebeat_tick_late_seconds", "How long an entry's next tick is overdue", "entry", late)
    if status.schedule is not None:
        yield from _schedule(status, status.schedule)
    if status.leader is not None:
        yield _gauge("fencebeat_token", "Fencing token of the term in force", float(status.leader.token))
        if status.leader.lease_left_seconds is not None:
            left = status.leader.lease_left_seconds
            yield _gauge(
                "fencebeat_lease_trust_remaining_seconds", "How long the store still believes the leader", left
            )
    if tick_lag_seconds is not None:
        yield _gauge("fencebeat_tick_lag_seconds", "Lag of the newest emitted tick", tick_lag_seconds)
    if status.ledger_answered:
        yield from _ledger(status)


def _schedule(status: Status, seen: Schedule) -> Iterable[Metric]:
    for name, text, entries in (
        ("paused", "Entries that somebody has paused", len(seen.paused)),
        ("quarantined", "Entries that the leader leaves alone", len(seen.left_alone)),
        ("undefined", "Entries that are due and whose definition was lost", len(seen.undefined)),
    ):
        yield _gauge(f"fencebeat_{name}_entries", text, float(entries))
    yield _gauge("fencebeat_outbox_messages", "Messages that wait in the outbox", float(seen.outbox_messages))
    yield _gauge("fencebeat_outbox_age_seconds", "How long the oldest message waits in the outbox", seen.outbox_seconds)
    lost = status.lost.ticks if status.lost is not None else 0
    yield _gauge("fencebeat_lost_ticks", "Ticks that a loss of Redis within a day may have lost", float(lost))
    if status.same_schedule is not None:
        drifts = float(not status.same_schedule)
        yield _gauge("fencebeat_schedule_drift", "1 while the leader's schedule is not the one configured here", drifts)


def _ledger(status: Status) -> Iterable[Metric]:
    yield _gauge("killswitch_active", "Scopes that are stopped", float(len(status.stops)))
    yield _labelled(
        "dlq_size", "Documents that failed for good, by kind of failure", "fingerprint", status.dead_letters
    )
    documents = GaugeMetricFamily("index_documents", "Documents by state", labels=["target", "state"])
    for target in status.targets:
        for state in STATES:
            documents.add_metric([target.target_id, state], getattr(target, state))
    yield documents
    yield _of_targets("index_chunks", "Chunks in committed manifests", status, "chunks")
    yield _of_targets("index_garbage_chunks", "Chunks that wait for the collector", status, "garbage")
    yield _of_targets("index_freshness_age_seconds", "How long the oldest edit waits", status, "oldest_dirty_seconds")
    if status.doctor is not None:
        yield _gauge("index_doctor_diff", "Differences the last doctor found", float(status.doctor["differences"]))
        yield _gauge("index_doctor_timestamp_seconds", "When the last doctor ended", float(status.doctor["at"]))


def _of_targets(name: str, text: str, status: Status, field: str) -> Metric:
    return _labelled(name, text, "target", {one.target_id: _number(one, field) for one in status.targets})


def _number(target: Target, field: str) -> float:
    return float(getattr(target, field))


def text(status: Status, ticks: Mapping[str, int] | None, tick_lag_seconds: float | None) -> bytes:
    """The same in Prometheus text format."""
    registry = CollectorRegistry()
    registry.register(_Families(families(status, ticks, tick_lag_seconds)))
    return generate_latest(registry)
