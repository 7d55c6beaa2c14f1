"""What keeps ticks back: pauses, quarantine, lost definitions, the outbox; and whose configuration is in force.

Plain values and the sentences about them, from records that `beats` reads.

May import: fencebeat, settings. Must never know: who asks.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from config.schedule import beat_schedule
from config.settings import Settings
from fencebeat.entries import RESERVED, read_schedule, schedule_digest

NAMED: Final = 5  # entries that one sentence names; the page and the JSON have all
WAITS_SECONDS: Final = 10.0  # a message that waits in the outbox for longer is a problem: the leader looks each second


@dataclass(frozen=True)
class Kept:
    """An entry that is not emitted: paused by a human, or left alone by the leader. since: seconds since the epoch."""

    entry: str
    reason: str
    since: float | None
    by: str = ""


@dataclass(frozen=True)
class Schedule:
    """The schedule as its store has it. digest: of the leader's configuration; None before the first leader.

    undefined: entries that are due, and whose definition is not there any more. outbox_seconds: how long its oldest
    message waits.
    """

    paused: tuple[Kept, ...] = ()
    left_alone: tuple[Kept, ...] = ()
    undefined: tuple[str, ...] = ()
    outbox_messages: int = 0
    outbox_seconds: float = 0.0
    digest: str | None = None


def read(
    now: float,
    *,
    paused: Mapping[str, str],
    quarantine: Mapping[str, str],
    defined: Iterable[str],
    due: Iterable[str],
    outbox: tuple[int, list[tuple[str, Any]]],
    digest: str | None,
) -> Schedule:
    """From the records of the store. outbox: how many rows, and the first one. A damaged record is shown as it is."""
    known = set(defined) - {RESERVED}
    rows, first = outbox
    return Schedule(
        paused=tuple(_kept(entry, text, "at") for entry, text in sorted(paused.items())),
        left_alone=tuple(_kept(entry, text, "since") for entry, text in sorted(quarantine.items())),
        undefined=tuple(sorted(set(due) - known)),
        outbox_messages=rows,
        outbox_seconds=max(0.0, now - int(first[0][0].partition("-")[0]) / 1000) if first else 0.0,
        digest=digest,
    )


def configured_digest(settings: Settings) -> str:
    """Digest of the schedule that `settings` ask for, as a beat with the same settings writes it."""
    entries, _ = read_schedule(beat_schedule(settings), lease=settings.lease_seconds)
    return schedule_digest(entries)


def problems(seen: Schedule) -> list[tuple[str, str, float | None]]:
    """What is degraded: a word for its kind, a sentence, and since when."""
    found: list[tuple[str, str, float | None]] = []
    if seen.left_alone:
        since = min((one.since for one in seen.left_alone if one.since is not None), default=None)
        told = "; ".join(f"{one.entry}: {one.reason}" for one in seen.left_alone[:NAMED])
        count = len(seen.left_alone)
        found.append(("quarantine", f"The leader leaves {_entries(count)} alone: {told}{_more(count)}", since))
    if seen.undefined:
        names = ", ".join(seen.undefined[:NAMED])
        says = f"Definitions were lost: {names}{_more(len(seen.undefined))} Add them again, or remove the entries."
        found.append(("definitions", says, None))
    if seen.outbox_seconds > WAITS_SECONDS:
        says = f"{seen.outbox_messages} messages wait in the outbox, the oldest one for {seen.outbox_seconds:.0f} s."
        found.append(("outbox", says, None))
    return found


def notes(seen: Schedule, same: bool | None) -> list[str]:
    """What a reader should know, though nothing is wrong. same: whether the leader's configuration is this one."""
    told = []
    if seen.paused:
        some = seen.paused[:NAMED]
        names = ", ".join(f"{one.entry} (by {one.by or '?'}: {one.reason or 'no reason given'})" for one in some)
        told.append(f"Somebody has paused {_entries(len(seen.paused))}: {names}{_more(len(seen.paused))}")
    if same is False:
        told.append("The schedule in force is not the one configured here: a deployment may be under way.")
    return told


def _entries(count: int) -> str:
    return "one entry" if count == 1 else f"{count} entries"


def _more(count: int) -> str:
    return f" and {count - NAMED} more." if count > NAMED else "."


def _kept(entry: str, text: str, when: str) -> Kept:
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        return Kept(entry, f"the record cannot be read: {text[:80]}", None)
    at = record.get(when)
    since = at / 1e6 if isinstance(at, int) else None
    return Kept(entry, str(record.get("reason") or ""), since, str(record.get("by") or ""))
