"""The event catalogue: what can happen, when exactly it is said to have happened, and with which facts.

Logs, metrics and the history file are subscribers of the same events, so they cannot disagree. A name is `noun.past`; a
renamed event, measure or attribute is a breaking change. `docs/events.md` is generated from this file:

    python -m config.events > docs/events.md

Facts are bounded and never hold the text of a document. Labels (what becomes a dimension of a metric) are a subset of
the attributes with few values: definition refuses a label that names one document, tick, term or task.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from config import metrics
from fencebeat import history

UNBOUNDED: Final = frozenset(
    {"doc_uid", "epoch", "nonce", "token", "tick_id", "task_id", "fire_time", "trace_id", "change", "why", "worker"}
)
"""Attributes with one value for each document, tick, term or task: never a label."""

_NAME = re.compile(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*")
_FACT = re.compile(r"[a-z]+(_[a-z]+)*")

CATALOGUE: Final[dict[str, "Event"]] = {}
"""Every event there is, by name."""


class EventMismatch(TypeError):
    """An event was emitted with other facts than the catalogue states."""


@dataclass(frozen=True)
class Event:
    """One kind of event. Making one adds it to `CATALOGUE`; raises ValueError where the definition breaks a rule.

    when: the moment it is emitted, in words of the protocol. measures: name -> meaning and unit; numbers.
    attributes: the other facts. labels: the attributes that become dimensions of the metrics.
    by: the process that emits it. level: of its log line.
    """

    name: str
    when: str
    measures: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    by: str = "worker"
    level: str = "info"

    def __post_init__(self) -> None:
        rules = (
            (_NAME.fullmatch(self.name) is not None, "its name must be noun.past"),
            (bool(self.when), "it must say when it is emitted"),
            (all(_FACT.fullmatch(fact) for fact in self.facts), "facts are words in lower case"),
            (len(set(self.facts)) == len(self.facts), "a fact is named twice"),
            (not {"event", "level", "timestamp", "name"} & set(self.facts), "a fact has the name of a log field"),
            (set(self.labels) <= set(self.attributes), "each label must be an attribute"),
            (not UNBOUNDED & set(self.labels), "a label must have few values"),
            (self.name not in CATALOGUE, "it is there already"),
        )
        broken = [sentence for holds, sentence in rules if not holds]
        if broken:
            raise ValueError(f"event {self.name!r} cannot be defined: {'; '.join(broken)}")
        CATALOGUE[self.name] = self

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of all measures and attributes."""
        return (*self.measures, *self.attributes)

    def mismatch(self, facts: Mapping[str, Any]) -> str:
        """How `facts` differ from the definition, in words; empty where they do not."""
        missing, unknown = set(self.facts) - set(facts), set(facts) - set(self.facts)
        wrong = [n for n in self.measures if n in facts and not isinstance(facts[n], int | float)]
        parts = [("missing", missing), ("unknown", unknown), ("not a number", wrong)]
        return "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in parts if names)


def emit(event: Event, **facts: Any) -> None:
    """Say that `event` happened: one log line, its metrics, and a line in the history file.

    Raises EventMismatch where FENCEBEAT_TESTING=1 and the facts are not exactly those of the catalogue. Elsewhere such
    an event is logged as an error and counted: a slip in what is told must not stop what is done.
    """
    log = structlog.get_logger("fencebeat")
    if mismatch := event.mismatch(facts):
        if os.environ.get("FENCEBEAT_TESTING") == "1":
            raise EventMismatch(f"{event.name}: {mismatch}")
        metrics.count_malformed(event.name)
        log.error("event.malformed", emitted=event.name, mismatch=mismatch)
        return
    getattr(log, event.level)(event.name, **facts)
    history.record("event", event=event.name, **facts)
    metrics.observe(
        event.name,
        labels={name: facts[name] for name in event.labels},
        measures={name: float(facts[name]) for name in event.measures},
    )


_DOCUMENT = ("tenant", "source", "target", "doc_uid", "epoch")

# --- the scheduler's own: the library writes them, and they are listed here because operators read them together.
# What became of a tick is not an event but a record of the audit stream: `fencebeat explain`.
TERM_ELECTED = Event(
    "term.elected",
    when="a beat won the lock; the fence is sealed in the same step",
    attributes=("token", "holder"),
    by="beat",
)
TERM_LOST = Event(
    "term.lost",
    when="a beat stopped believing that it leads: fenced, trust over, or clock refused",
    attributes=("token", "reason"),
    labels=("reason",),
    by="beat",
    level="warning",
)
TERM_RESIGNED = Event("term.resigned", when="a leader gave its term back", attributes=("token",), by="beat")
FENCE_REJECTED = Event(
    "fence.rejected",
    when="a store refused a request of an older term; it changed nothing",
    attributes=("token",),
    by="beat",
    level="warning",
)
STATE_CHANGED = Event(
    "state.changed",
    when="a beat became standby, recovering, leading or stopped, or is so for another reason",
    attributes=("state", "reason"),
    by="beat",
)
SCHEDULE_CHANGED = Event(
    "schedule.changed",
    when="a leader's configuration replaced the schedule of another one; `back` where it is the one before that again",
    attributes=("token", "digest", "before", "back"),
    by="beat",
    level="warning",
)
OUTBOX_FENCED = Event(
    "outbox.fenced",
    when="a former leader was refused the next message of the outbox",
    attributes=("token",),
    by="beat",
    level="warning",
)
OUTBOX_FAILED = Event(
    "outbox.failed",
    when="a message of the outbox was not confirmed by the broker; it stays",
    attributes=("error",),
    by="beat",
    level="warning",
)

# --- the worker's claim on a tick: written by the library's guard
_CLAIM = ("entry", "fire_time", "task", "attempt")
CLAIM_TAKEN = Event("claim.taken", when="a worker claimed a tick and runs it", attributes=_CLAIM, by="guard")
CLAIM_CLOSED = Event(
    "claim.closed", when="a run ended and its claim is closed", attributes=(*_CLAIM, "outcome"), by="guard"
)
CLAIM_DUPLICATE = Event(
    "claim.duplicate",
    when="a message was dropped, for its tick has run to its end",
    attributes=(*_CLAIM, "outcome"),
    by="guard",
)
CLAIM_POSTPONED = Event(
    "claim.postponed",
    when="a message was put back, for its tick is running elsewhere",
    measures={"left": "seconds that the other claim has left"},
    attributes=_CLAIM,
    by="guard",
)
CLAIM_UNKNOWN = Event(
    "claim.unknown",
    when="a message was put back, for the store of claims did not answer",
    attributes=_CLAIM,
    by="guard",
    level="warning",
)
CLAIM_LOST = Event(
    "claim.lost",
    when="a run ended after another attempt had taken its claim; it does not count",
    attributes=(*_CLAIM, "outcome"),
    by="guard",
    level="warning",
)
CLAIM_UNCLOSED = Event(
    "claim.unclosed",
    when="a run ended, but its claim could not be closed; a further copy would run again",
    attributes=(*_CLAIM, "outcome"),
    by="guard",
    level="error",
)

# --- a sync
SYNC_FINISHED = Event(
    "sync.finished",
    when="a source was listed, compared with the ledger, and what differs is marked dirty",
    measures={
        "listed": "documents in the listing",
        "marked": "documents marked dirty",
        "absent": "documents marked for deletion",
        "seconds": "duration",
    },
    attributes=("tenant", "source", "complete"),
    labels=("source", "complete"),
)
SYNC_REFUSED = Event(
    "sync.refused",
    when="a sync would delete more than the limits allow; its deletions wait for approval",
    measures={"absent": "documents that would be deleted", "known": "documents of the source in the ledger"},
    attributes=("tenant", "source"),
    labels=("source",),
    level="warning",
)

# --- a document's attempt
DOCUMENT_COMMITTED = Event(
    "document.committed",
    when="the ledger accepted a new manifest; readers of our search see it from now on",
    measures={
        "chunks": "in the manifest",
        "written": "index documents written",
        "deleted": "index ids handed to the collector",
        "seconds": "from claim to commit",
    },
    attributes=_DOCUMENT,
    labels=("target",),
)
DOCUMENT_UNCHANGED = Event(
    "document.unchanged",
    when="content, meta and fingerprints are those of the committed version; nothing was embedded or written",
    measures={"seconds": "from claim to commit"},
    attributes=_DOCUMENT,
    labels=("target",),
)
DOCUMENT_FENCED = Event(
    "document.fenced",
    when="the ledger refused an attempt because a newer one holds the document; it stopped and touched nothing",
    attributes=(*_DOCUMENT, "step"),
    labels=("target", "step"),
    level="warning",
)
DOCUMENT_STOPPED = Event(
    "document.stopped",
    when="a kill switch refused the next step of an attempt; the document stays dirty",
    attributes=(*_DOCUMENT, "step"),
    labels=("target", "step"),
    level="warning",
)
DOCUMENT_HANDED_BACK = Event(
    "document.handed_back",
    when="an attempt gave its document back undone, for a passing reason; it is tried again",
    attributes=(*_DOCUMENT, "why"),
    labels=("target",),
    level="warning",
)
DOCUMENT_DEAD_LETTERED = Event(
    "document.dead_lettered",
    when="a document failed for good; its old version stays searchable",
    attributes=(*_DOCUMENT, "error", "why"),
    labels=("target", "error"),
    level="error",
)

# --- its costly steps
BATCH_EMBEDDED = Event(
    "batch.embedded",
    when="vectors of a batch have passed every check",
    measures={"inputs": "asked for", "cached": "of them found in the cache", "seconds": "of the embedder's call"},
)
BULK_WRITTEN = Event(
    "bulk.written",
    when="every item of a bulk has an outcome",
    measures={"items": "sent", "refused": "not ok and not superseded", "seconds": "with all retries"},
    attributes=("target",),
    labels=("target",),
)
CHUNKS_COLLECTED = Event(
    "chunks.collected",
    when="index ids that no manifest names any more have become tombstones",
    measures={"buried": "tombstones written", "kept": "ids that an open attempt has written anew"},
    attributes=("target",),
    labels=("target",),
)
TOMBSTONES_PURGED = Event(
    "tombstones.purged",
    when="tombstones older than any late write were deleted",
    measures={"purged": "tombstones deleted"},
    attributes=("target",),
    labels=("target",),
)

# --- control, search, doctor
SWITCH_CHANGED = Event(
    "switch.changed",
    when="a switch and its audit record are committed in Postgres",
    attributes=("scope", "stop_level", "change", "author", "why"),
    labels=("stop_level",),
    by="command",
)
SWITCH_ACKNOWLEDGED = Event(
    "switch.acknowledged",
    when="every live worker has reported that it acts on the change",
    measures={"workers": "that acknowledged", "silent": "that did not", "seconds": "since the change"},
    attributes=("change",),
    by="command",
)
SEARCH_ANSWERED = Event(
    "search.answered",
    when="a search returned; what is not in a committed manifest was dropped",
    measures={"hits": "returned", "seconds": "duration"},
    attributes=("target", "partial"),
    labels=("target", "partial"),
    by="command, page",
    level="debug",
)
DOCTOR_FINISHED = Event(
    "doctor.finished",
    when="a target was compared with the manifests",
    measures={
        "documents": "compared",
        "chunks": "compared",
        "differences": "found, all kinds together",
        "seconds": "duration",
    },
    attributes=("target",),
    labels=("target",),
)

TASK_REFUSED = Event(
    "task.refused",
    when="a task did not start, because a switch stops its queue or everything, or nobody could tell",
    attributes=("task", "queue"),
    labels=("task", "queue"),
    level="warning",
)


def table() -> str:
    """The catalogue as a Markdown page."""
    lines = [
        "# Events",
        "",
        "<!-- Generated by `python -m config.events`; a test compares it. -->",
        "",
        "Each event is one log line, one line in the history file, and, where it is counted, the metric",
        "`fencebeat_<name>_total` and one `fencebeat_<name>_<measure>` for each measure (dots become underscores).",
        "Labels are printed in **bold**.",
        "",
        "| event | by | when | measures | attributes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for event in CATALOGUE.values():
        measures = "<br>".join(f"`{name}`: {meaning}" for name, meaning in event.measures.items()) or "-"
        attributes = ", ".join(f"**{n}**" if n in event.labels else n for n in event.attributes) or "-"
        lines.append(f"| `{event.name}` | {event.by} | {event.when} | {measures} | {attributes} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
