"""The schedule, edited at run time from any host: add, edit, remove, pause, resume, and ask for extra runs.

    read entry, mark and the store's time ──▶ the new entry, its next fire time ──▶ one script ──▶ changed
              ▲                                                                         │
              └─────── moved: entry or mark are not as they were read, or time has passed ┘

A change is data. It needs no term, runs nothing, and is in force with the leader's next round. A new entry, and one
whose timing changes, get a mark of now by the store's clock, so no fire time of the past is emitted; what that closes
is recorded. A removal keeps the mark, so that whoever adds the name again repeats nothing. A pause takes the entry from
the due ones and leaves its mark: after `resume` the catch-up policy decides about what was missed.

Entries of the configuration can be paused and resumed; they are changed where they are written.
"""

import getpass
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis

from fencebeat.clock import Clock, SystemClock
from fencebeat.entries import Entry, entry_of, line_of
from fencebeat.errors import (
    ClocksDiffer,
    EntryExists,
    EntryMoves,
    NoPast,
    StaticEntry,
    TooMany,
    UnknownEntry,
    UnusableRecord,
)
from fencebeat.firetimes import SECOND, fire_times
from fencebeat.keys import Keys
from fencebeat.requests import Request
from fencebeat.schedules import is_interval, read_schedule_text
from fencebeat.scripts import asking, script
from fencebeat.store import AUDIT_LENGTH

ATTEMPTS = 3
LIMIT = 1000
"""Most fire times of one backfill, if nothing else is said."""
_FIELDS = {"task", "schedule", "args", "kwargs", "options"}


@dataclass(frozen=True)
class Found:
    """An entry as the store has it. Times in microseconds; `now` by the store's clock when it was read."""

    name: str
    text: str | None  # its definition, None where there is none
    mark: int | None
    paused: Mapping[str, Any] | None  # by whom, when and why
    now: int
    has_past: bool = True  # False: no beat has led here yet, or the store lost its data

    @property
    def entry(self) -> Entry:
        """The entry itself. Raises UnknownEntry, UnusableEntry."""
        if self.text is None:
            raise UnknownEntry(name=self.name)
        return Entry.of_definition(self.name, self.text)

    @property
    def source(self) -> str | None:
        """`static` or `stored`; None where there is no definition or it cannot be read."""
        try:
            return str(json.loads(self.text or "null")["source"])
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class Edited:
    """What a change did: the generation it made, the entry (None: removed), its mark and next fire time (us)."""

    name: str
    generation: int
    entry: Entry | None
    mark: int | None
    following: int | None


@dataclass(frozen=True)
class _Change:
    """What one call of the script is to write; None leaves a mark, and is `never` of a time."""

    op: str
    content: str = ""
    mark: int | None = None
    following: int | None = None
    due_at: int | None = None
    first: int | None = None
    reason: str = ""
    entry: Entry | None = None
    requests: Sequence[str] = ()


class Schedule:
    """The schedule of one namespace, for programs and the command line. `client` answers in text and does not retry.

    zone: of entries that name none. lease: seconds; the default grace is at least two of it. tolerance: seconds by
    which this host's clock and the store's may differ. by: who edits, for the records.

    Every method is one or a few bounded requests and raises, with nothing changed: UnknownEntry, UnusableEntry,
    ClocksDiffer, EntryMoves, NoPast (the store lost its past, or no beat ever ran), UnusableRecord; and
    StoreUnreachable, where it is not known whether the change was made.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        zone: str = "UTC",
        lease: float = 5.0,
        tolerance: float = 2.0,
        clock: Clock | None = None,
        by: str = "",
    ) -> None:
        self._client, self._keys, self._zone, self._lease = client, keys, zone, lease
        self._tolerance, self._clock, self._by = tolerance, clock or SystemClock(), by or whoever()

    def find(self, name: str) -> Found:
        """The entry `name` as the store has it; without a definition where there is none."""
        with asking(self._client), self._client.pipeline(transaction=True) as all_of:
            all_of.time()
            all_of.hget(self._keys.entries, name)
            all_of.hget(self._keys.last, name)
            all_of.hget(self._keys.paused, name)
            all_of.hexists(self._keys.entries, "generation")
            (seconds, rest), *values, has_past = all_of.execute(raise_on_error=False)
        for key, value in zip((self._keys.entries, self._keys.last, self._keys.paused), values, strict=True):
            if isinstance(value, redis.ResponseError):
                raise UnusableRecord(key=key, found=str(value))
        text, mark, paused = values
        return Found(name, text, int(mark) if mark else None, _json(paused), seconds * SECOND + rest, bool(has_past))

    def make(self, name: str, line: Mapping[str, Any]) -> Entry:
        """The stored entry that a line as in `beat_schedule` means, without storing it. Raises UnusableEntry."""
        return entry_of(name, line, zone=self._zone, lease=self._lease, source="stored")

    def changed(self, entry: Entry, **changes: Any) -> Entry:
        """The entry with some of its fields changed, without storing it. Raises UnusableEntry.

        changes: task, schedule, args, kwargs, options, and the policies zone, catchup, grace, start, jitter, overlap.
        """
        line = line_of(entry)
        if isinstance(changes.get("schedule"), str):
            changes["schedule"] = read_schedule_text(changes["schedule"])
        if "schedule" in changes and not is_interval(changes["schedule"]):
            line["fencebeat"].pop("start", None)  # it counted for the interval
        policies = {key: value for key, value in changes.items() if key not in _FIELDS}
        line.update({key: value for key, value in changes.items() if key in _FIELDS})
        return self.make(entry.name, {**line, "fencebeat": {**line["fencebeat"], **policies}})

    def add(self, name: str, line: Mapping[str, Any], *, mark: int | None = None) -> Edited:
        """Add a stored entry, a line as in `beat_schedule`. EntryExists where the name is taken.

        mark: of an entry that moves here from elsewhere: what is not later than it was emitted there. Never the future.
        """
        entry = self.make(name, line)

        def change(found: Found) -> _Change:
            if found.text is not None:
                raise EntryExists(name=name)
            begin = found.now if mark is None else min(mark, found.now)
            return self._fresh("add", entry, found, begin, imported=mark is not None)

        return self._edit(name, change)

    def edit(self, name: str, **changes: Any) -> Edited:
        """Change a stored entry; see `changed`. StaticEntry where the configuration defines it.

        A change that leaves the timing alone keeps the mark and the next fire time; any other counts from now.
        """

        def change(found: Found) -> _Change:
            old = self._stored(found)
            entry = self.changed(old, **changes)
            if found.mark is None or entry.timing != old.timing:
                reason = f"the schedule was edited: {old.shown} -> {entry.shown}"
                return self._fresh("edit", entry, found, found.now, reason=reason)
            due_at = _due_at(entry, entry.next_after(found.mark))
            return _Change("edit", content=entry.definition, due_at=due_at, entry=entry)

        return self._edit(name, change)

    def remove(self, name: str) -> Edited:
        """Remove a stored entry and its pause; its mark stays. StaticEntry where the configuration defines it."""

        def change(found: Found) -> _Change:
            if found.text is None:
                raise UnknownEntry(name=name)
            if found.source == "static":
                raise StaticEntry(name=name)
            return _Change("remove")

        return self._edit(name, change)

    def pause(self, name: str, reason: str = "") -> Edited:
        """Emit nothing of an entry, static or stored, until it is resumed. Paused again, it gets the new reason."""

        def change(found: Found) -> _Change:
            if found.text is None:
                raise UnknownEntry(name=name)
            pause = {"by": self._by, "at": found.now, "reason": reason}
            return _Change("pause", content=json.dumps(pause), reason=reason)

        return self._edit(name, change)

    def resume(self, name: str, *, skip_missed: bool = False) -> Edited:
        """Go on with a paused entry; one that is not paused stays as it is, but for `skip_missed`.

        The catch-up policy decides about what was missed; skip_missed: nothing before now is emitted; it is recorded.
        """

        def change(found: Found) -> _Change:
            entry = found.entry
            if skip_missed or found.mark is None:
                return self._fresh("resume", entry, found, found.now, reason="resumed without what was missed")
            return _Change("resume", due_at=_due_at(entry, entry.next_after(found.mark)), entry=entry)

        return self._edit(name, change)

    def run_now(self, name: str) -> Request:
        """Ask for one run of an entry now, beside its schedule, paused or not; the leader emits it within 2 s."""
        asked: list[Request] = []

        def change(found: Found) -> _Change:
            entry = found.entry
            asked[:] = [Request(name, "run", found.now, self._by, found.now)]
            return _Change("run", reason="one run now", entry=entry, requests=_pairs(asked))

        self._edit(name, change)
        return asked[0]

    def past(self, name: str, first: int, last: int, *, limit: int = LIMIT) -> list[int]:
        """The fire times in [first, last] that are decided already, for `backfill`; only reads.

        Raises TooMany where there are more than `limit`, UnknownEntry, UnusableEntry.
        """
        return _past(self.find(name), first, last, limit)

    def backfill(self, name: str, first: int, last: int, *, limit: int = LIMIT) -> list[Request]:
        """Ask for every fire time in [first, last] (microseconds) again that is decided already; see `requests`.

        Their ticks have their own task ids, so a guarded task runs only those that have not run. Raises TooMany.
        """
        asked: list[Request] = []

        def change(found: Found) -> _Change:
            times = _past(found, first, last, limit)
            asked[:] = [Request(name, "backfill", at, self._by, found.now) for at in times]
            return _Change("run", reason=f"backfill of {len(asked)} fire times", requests=_pairs(asked))

        self._edit(name, change)
        return asked

    def _stored(self, found: Found) -> Entry:
        if found.source == "static":
            raise StaticEntry(name=found.name)
        return found.entry

    def _fresh(
        self, op: str, entry: Entry, found: Found, begin: int, *, reason: str = "", imported: bool = False
    ) -> _Change:
        """A change after which nothing up to `begin` is emitted."""
        mark = max(found.mark or 0, begin)
        following = entry.next_after(mark)
        closes = found.mark is not None and mark > found.mark and found.text is not None
        return _Change(
            op=op,
            content=entry.definition if op != "resume" else "",
            mark=mark,
            following=None if imported else following,  # what is imported may be due since a while
            due_at=_due_at(entry, following),
            first=(found.mark or 0) + 1 if closes else None,
            reason=reason,
            entry=entry,
        )

    def _edit(self, name: str, change: Callable[[Found], _Change]) -> Edited:
        keys = self._keys
        for _ in range(ATTEMPTS):
            found = self.find(name)
            if not found.has_past:  # asked first: what is configured is in the store only after a beat has led
                raise NoPast(record=self._keys.entries)
            wanted = change(found)
            host_now = round(self._clock.wall() * SECOND)
            reply = script("edit_entries")(
                self._client,
                [keys.entries, keys.last, keys.due, keys.paused, keys.edits, keys.audit, keys.requests],
                [
                    *(wanted.op, name, self._by, host_now, round(self._tolerance * SECOND), AUDIT_LENGTH),
                    *(found.text or "", _text(found.mark), wanted.content, _text(wanted.mark)),
                    *(_text(wanted.following), _text(wanted.due_at), _text(wanted.first), wanted.reason),
                    *wanted.requests,
                ],
            )
            match reply[0]:
                case "changed":
                    mark = found.mark if wanted.mark is None else wanted.mark
                    following = wanted.entry.next_after(mark or 0) if wanted.entry is not None else None
                    return Edited(name, int(reply[1]), wanted.entry, mark, following)
                case "clock":
                    raise ClocksDiffer(seconds=abs(host_now - int(reply[1])) / SECOND)
                case "unknown":
                    raise NoPast(record=reply[1])
        raise EntryMoves(name=name, attempts=ATTEMPTS)


def _past(found: Found, first: int, last: int, limit: int) -> list[int]:
    entry = found.entry
    until = min(last, found.mark or 0)
    times = list(islice(fire_times(entry.rule, entry.zone, first - 1, until), limit + 1))
    if len(times) > limit:
        raise TooMany(name=found.name, limit=limit)
    return times


def _pairs(requests: Sequence[Request]) -> list[str]:
    return [part for request in requests for part in (request.id, request.text)]


def _due_at(entry: Entry, fire_time: int | None) -> int | None:
    return None if fire_time is None else entry.due_at(fire_time)


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _json(text: str | None) -> Mapping[str, Any] | None:
    """A pause as it is stored; what cannot be read is a pause all the same."""
    if text is None:
        return None
    with suppress(ValueError):
        if isinstance(record := json.loads(text), dict):
            return record
    return {"unreadable": text[:200]}


def whoever() -> str:
    """Who edits here, for the records: user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        return socket.gethostname()
