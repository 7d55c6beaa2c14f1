"""The story of one tick, from the audit: emitted by whom, under which token, as which message; or why not."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from fencebeat.entries import EXTRA, Entry
from fencebeat.errors import UnknownEntry
from fencebeat.store import Store
from fencebeat.ticks import instant, task_id, tick_id

Record = Mapping[str, str]

_DECIDES = ("emitted", "unroutable", "paused", "skipped", "superseded")
_BESIDE = ("asked", "held", "removed")
"""Records that name the entry's mark of the moment, and decide nothing about the tick there."""
_SLACK_MS = 1000
"""The store's clock may have stepped back a little between a decision and its record."""


@dataclass(frozen=True)
class Explanation:
    """What became of a tick. `outcome` is the audit's word, or pending, undecided, never, forgotten."""

    tick: str
    entry: str
    fire_time: str
    outcome: str
    why: str
    task_id: str
    token: int | None = None
    holder: str | None = None
    message_id: str | None = None
    records: tuple[dict[str, str], ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "records": list(self.records)}


def explain(store: Store, namespace: str, entries: Mapping[str, Entry], name: str, fire_time: int) -> Explanation:
    """The story of the tick of entry `name` at `fire_time` (microseconds since the epoch).

    Raises UnknownEntry where neither the configuration, the store nor the audit knows the entry; StoreUnreachable.
    """
    if name.endswith(EXTRA):
        return _extra(store, namespace, name, fire_time)
    mark = store.marks().get(name)
    records = tuple(_about(store, name, fire_time))
    entry = entries.get(name)
    if entry is None and mark is None and not records:
        raise UnknownEntry(name=name)
    decided = next((r for r in records if r["outcome"] in _DECIDES), None)
    published = next((r for r in records if r["outcome"] == "published"), None)
    if decided is None:
        outcome, why = _without_decision(records, entry, mark, fire_time)
        facts: Record = {}
    else:
        outcome, why, facts = decided["outcome"], _story(decided, published), decided
    return Explanation(
        tick=tick_id(name, fire_time),
        entry=name,
        fire_time=instant(fire_time),
        outcome=outcome,
        why=why,
        task_id=task_id(namespace, name, fire_time),
        token=int(facts["token"]) if "token" in facts else None,
        holder=facts.get("holder"),
        message_id=facts.get("message_id"),
        records=tuple(dict(r) for r in records),
    )


def _extra(store: Store, namespace: str, name: str, fire_time: int) -> Explanation:
    """The story of an extra run (`run-now`), which has a tick of its own beside the schedule, and one record."""
    tick = tick_id(name, fire_time)
    recent = takewhile(lambda record: int(record[0].split("-")[0]) >= fire_time // 1000 - _SLACK_MS, store.audit())
    records = tuple({"id": identity, **fields} for identity, fields in recent if fields.get("tick") == tick)
    facts: Record = records[0] if records else {}
    why = f"put on the queue by {facts['holder']} under token {facts['token']}" if "message_id" in facts else ""
    return Explanation(
        tick=tick,
        entry=name,
        fire_time=instant(fire_time),
        outcome=facts.get("outcome", "pending"),
        why="; ".join(filter(None, (why, facts.get("reason")))) or _NOT_ANSWERED,
        task_id=task_id(namespace, name, fire_time),
        token=int(facts["token"]) if "token" in facts else None,
        holder=facts.get("holder"),
        message_id=facts.get("message_id"),
        records=records,
    )


_NOT_ANSWERED = "no leader has answered it: none leads, the request was lost with Redis, or nobody asked for this run"


def _about(store: Store, name: str, fire_time: int) -> Iterator[dict[str, str]]:
    """Audit records that concern the tick, newest first. Nothing is decided about a tick before its fire time."""
    tick = tick_id(name, fire_time)
    stamp = f"{name}@{fire_time}"  # how the commit script names the ticks of a refused batch
    for identity, fields in store.audit():
        if int(identity.split("-")[0]) < fire_time // 1000 - _SLACK_MS:
            return
        record = {"id": identity, **fields}
        if fields.get("outcome") == "fenced":
            if stamp in fields.get("ticks", "").split("\n"):
                yield {**record, "ticks": tick}
        elif fields.get("outcome") == "gap":
            if fields.get("entry", name) == name and _covers(fields, fire_time):
                yield record
        elif fields.get("outcome") in _BESIDE:
            continue
        elif fields.get("entry") == name and "fire_time" in fields and _covers(fields, fire_time):
            yield record


def _covers(fields: Record, fire_time: int) -> bool:
    """Whether a record is about the tick: its own, one of its run, or all before the moment of a recovery."""
    if "until" in fields:
        return fire_time < int(fields["until"])
    last = int(fields["fire_time"])
    return int(fields.get("first") or last) <= fire_time <= last


def _story(record: Record, published: Record | None = None) -> str:
    if record["outcome"] == "emitted":
        if published is not None:
            return (
                f"written to the outbox by {record['holder']} under token {record['token']}, "
                f"published by {published['holder']} under token {published['token']}"
            )
        note = f"; {record['reason']}" if "reason" in record else ""
        return f"put on the queue by {record['holder']} under token {record['token']}{note}"
    if record["outcome"] == "unroutable":
        return record.get("reason") or "no queue is bound for its message, so nobody would have received it"
    return record.get("reason", "")


def _without_decision(
    records: tuple[Record, ...], entry: Entry | None, mark: int | None, fire_time: int
) -> tuple[str, str]:
    for record in records:
        if record["outcome"] == "gap" and "entry" in record:
            return "gap", f"{record['reason']}: it was emitted, and nobody knows whether it ran"
    for record in records:
        if record["outcome"] in ("changed", "resumed"):
            return record["outcome"], record.get("reason", "")
        if record["outcome"] == "gap" and (mark is None or fire_time <= mark):
            return "gap", "the store lost its past, and with it what became of this tick"
    if entry is not None and entry.next_after(fire_time - 1) != fire_time:
        following = entry.next_after(fire_time)
        then = "never again" if following is None else instant(following)
        return "never", f"this is no fire time of the entry ({entry.shown}, {entry.zone.key}); the next one is {then}"
    if mark is None or fire_time > mark:
        refused = [r for r in records if r["outcome"] == "fenced"]
        if refused:
            return "fenced", f"refused under the old token {refused[0]['token']}, and not decided by a newer one yet"
        return "pending", "not decided yet: it is not due, or no beat leads"
    return "forgotten", "it lies before the oldest record that the audit still has, or before the entry was known"
