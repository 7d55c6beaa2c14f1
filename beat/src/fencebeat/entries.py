"""Entries: the lines of the schedule, read from `app.conf.beat_schedule`, with their policies and a version.

An entry is Celery's own (task, schedule, args, kwargs, options) and, under the key `fencebeat`, its policies:

    "nightly": {
        "task": "reports.nightly", "schedule": crontab(hour=2, minute=30),
        "fencebeat": {"zone": "Europe/Berlin", "catchup": "window=30m", "grace": 30},
    }

May import: the standard library, Celery's schedules, kombu's JSON. Must never know: who leads, what Redis is.
"""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.beat import Scheduler as CeleryScheduler
from kombu.utils.json import JSONEncoder, loads

from fencebeat.catchup import CatchUp, Plan
from fencebeat.errors import UnusableEntry
from fencebeat.firetimes import SECOND, Rule, fire_times, next_fire_time
from fencebeat.schedules import plain, read_rule, read_schedule_text, rule_of, text_of
from fencebeat.ticks import tick_id

RESERVED = "generation"
"""A field of the records that hold entries and marks; no entry may have this name."""
EXTRA = "!now"
"""How the name of an extra run ends (`requests`), so no entry's name may."""
MOST_JITTER = 86_400.0
"""Seconds; more would be another schedule."""

Source = Literal["static", "stored"]
Overlap = Literal["allow", "skip"]

_KEYS = {"task", "schedule", "args", "kwargs", "options", "relative", "fencebeat"}
_POLICIES = {"zone", "catchup", "grace", "start", "jitter", "overlap"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Mapping[str, Any] = {}  # shared by all entries without keywords; nobody writes to it


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the schedule. `rule`, `zone` and `catchup` decide when it fires, the rest what is sent."""

    name: str
    task: str
    rule: Rule
    zone: ZoneInfo
    catchup: CatchUp
    shown: str  # the schedule as text
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    source: Source = "static"
    jitter: float = 0.0  # seconds
    overlap: Overlap = "allow"
    start: int | None = None  # microseconds since the epoch, from which an interval counts
    _version: str = field(default="", init=False, repr=False, compare=False)  # made when it is asked for

    @classmethod
    def of_definition(cls, name: str, definition: str | Mapping[str, Any]) -> "Entry":
        """A stored definition (its JSON text, or what that says) as the entry it was made from.

        Raises UnusableEntry with the reason. What only the configuration can say (a lazy function, a queue object)
        stands in the definition of a static entry as a description, so take static entries from the configuration.
        """
        try:
            return _of_definition(name, definition)
        except (TypeError, ValueError, KeyError) as error:
            why = f"it lacks {error}." if isinstance(error, KeyError) else str(error)
            raise UnusableEntry(name=name, why=why) from None

    def next_after(self, after: int) -> int | None:
        """The first fire time after `after` (microseconds since the epoch); None when it never fires again."""
        return next_fire_time(self.rule, self.zone, after)

    def due_at(self, fire_time: int) -> int:
        """When the tick of `fire_time` is emitted: its fire time plus its jitter, both in microseconds.

        The jitter is a function of the tick's identity alone, and ends before the next fire time.
        """
        if not self.jitter:
            return fire_time
        following = self.next_after(fire_time)
        room = round(self.jitter * SECOND)
        if following is not None:
            room = min(room, following - fire_time)
        dice = hashlib.sha256(tick_id(self.name, fire_time).encode()).digest()[:8]
        return fire_time + (room * int.from_bytes(dice) >> 64)

    def plan(self, mark: int, now: int) -> Plan:
        """What to do at `now` about the fire times since `mark` that are due (jitter included), by the policy."""
        times = fire_times(self.rule, self.zone, mark, now)
        if self.jitter:
            times = tuple(times)
            if times and self.due_at(times[-1]) > now:  # those before it are due: no jitter reaches the next fire time
                times = times[:-1]
        return self.catchup.plan(times, now, due_at=self.due_at if self.jitter else None)

    @property
    def timing(self) -> str:
        """A digest of what decides the fire times: an edit that keeps it keeps the next fire time."""
        return _timing(self.rule, self.zone.key, self.catchup)

    @property
    def definition(self) -> str:
        """The entry as it is stored: JSON with `version` and `timing`. UnusableEntry if JSON cannot say it."""
        content = {
            "task": self.task,
            "args": self.args,
            "kwargs": self.kwargs,
            "options": self.options,
            "schedule": self.shown,
            "zone": self.zone.key,
            "catchup": self.catchup.text,
            "grace": self.catchup.grace,
            "start": self.start,
            "jitter": self.jitter,
            "overlap": self.overlap,
            "timing": self.timing,
            "source": self.source,
        }
        try:
            text = (_STATIC if self.source == "static" else _STORED).encode(content)
            version = self._version or hashlib.sha256(text.encode()).hexdigest()[:16]
        except (TypeError, ValueError) as error:
            raise UnusableEntry(name=self.name, why=f"its arguments or options are not JSON ({error}).") from None
        object.__setattr__(self, "_version", version)  # frozen for others: it is what the fields say
        return f'{text[:-1]}, "version": "{version}"}}'

    @property
    def version(self) -> str:
        """A digest of the definition: a tick computed from another version is refused."""
        return self._version or json.loads(self.definition)["version"]


def _of_definition(name: str, definition: str | Mapping[str, Any]) -> Entry:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    content = loads(text)  # kombu's: it brings times, UUIDs and decimals back
    if not isinstance(content, dict):
        raise TypeError("its definition is no object.")
    known = {"task", "args", "kwargs", "options", "schedule", "timing", "source", "version", "zone", "catchup", "grace"}
    known |= {"start", "jitter", "overlap"}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"its definition has {', '.join(unknown)}, which this version of fencebeat does not know.")
    start = content.get("start")
    if start is not None and type(start) is not int:
        raise TypeError(f"`start` is {start!r}, which is no whole number of microseconds.")
    entry = Entry(
        name=_name(name),
        task=sys.intern(content["task"]),
        rule=read_rule(content["schedule"], start),
        zone=_zone(content["zone"]),
        catchup=_catchup(content["catchup"], content["grace"]),
        shown=sys.intern(content["schedule"]),
        args=tuple(content["args"]),
        kwargs=dict(content["kwargs"]) if content["kwargs"] else _NOTHING,
        options=dict(content["options"]) if content["options"] else _NOTHING,
        source=_one_of(Source, "source", content["source"]),
        jitter=_jitter(content.get("jitter", 0.0)),
        overlap=_one_of(Overlap, "overlap", content.get("overlap", "allow")),
        start=start,
    )
    object.__setattr__(entry, "_version", str(content["version"]))  # what the store compares, whoever made it
    return entry


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=16_384)  # as many as there are rules worth remembering
def _timing(rule: Rule, zone: str, catchup: CatchUp) -> str:
    return _digest([plain(rule), zone, catchup.text, catchup.grace])


class _Described(JSONEncoder):
    """Says of a value that is not JSON itself what it is: enough to tell two definitions apart."""

    def default(self, o: Any) -> Any:
        """What stands in a static definition for `o`."""
        if isinstance(o, BeatLazyFunc):  # evaluated when the message is made
            return {"lazy": getattr(o._func, "__qualname__", type(o._func).__name__)}  # noqa: SLF001 - has no name
        if isinstance(o, set | frozenset):
            return sorted(o)
        if hasattr(o, "as_dict"):  # a kombu Queue or Exchange among the options
            return o.as_dict(recurse=True)
        return super().default(o)


_STATIC = _Described(sort_keys=True, ensure_ascii=False)
_STORED = JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)


def entry_of(
    name: str, line: Mapping[str, Any], *, zone: str = "UTC", lease: float = 5.0, source: Source = "static"
) -> Entry:
    """One line of `beat_schedule` as an entry. Raises UnusableEntry with the reason.

    zone: of entries that name none. lease: seconds; the default grace is at least two of it. source: of a stored one,
    arguments and options must be JSON (with kombu's times, UUIDs and decimals), and tuples among them become lists.
    """
    try:
        entry = _entry_of(name, line, zone, lease)
        return entry if source == "static" else _as_stored(entry)
    except (TypeError, ValueError) as error:
        raise UnusableEntry(name=name, why=str(error)) from None


def _entry_of(name: str, line: Mapping[str, Any], zone: str, lease: float) -> Entry:
    policies = line.get("fencebeat", {})
    if unknown := sorted({*(set(line) - _KEYS), *(set(policies) - _POLICIES)}):
        raise ValueError(f"{', '.join(map(repr, unknown))} is not something an entry has. Remove it.")
    if not line.get("task") or not isinstance(line["task"], str):
        raise ValueError("it names no task. Add `task`, the task's name.")
    if "schedule" not in line:
        raise ValueError("it has no `schedule`. Add a crontab, a timedelta or seconds.")
    start = _start(policies.get("start"))
    return Entry(
        name=_name(name),
        task=line["task"],
        rule=rule_of(line["schedule"], start),
        zone=_zone(policies.get("zone", zone)),
        catchup=CatchUp.of(policies.get("catchup", "latest"), grace=policies.get("grace"), lease=lease),
        shown=sys.intern(text_of(line["schedule"])),
        args=tuple(line.get("args") or ()),
        kwargs=dict(line["kwargs"]) if line.get("kwargs") else _NOTHING,
        options=dict(line["options"]) if line.get("options") else _NOTHING,
        jitter=_jitter(policies.get("jitter", 0.0)),
        overlap=_one_of(Overlap, "overlap", policies.get("overlap", "allow")),
        start=start,
    )


def _as_stored(entry: Entry) -> Entry:
    """The entry as everybody will read it from the store; refused if that is not what was given."""
    stored = Entry.of_definition(entry.name, replace(entry, source="stored").definition)
    before, after = ([e.args, e.kwargs, e.options] for e in (entry, stored))
    if _listed(before) != _listed(after):
        raise UnusableEntry(name=entry.name, why="JSON would change its arguments or options. Use text as keys.")
    return stored


def _listed(value: Any) -> Any:
    """The value with lists in place of tuples, as JSON knows only one of them."""
    if isinstance(value, Mapping):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def line_of(entry: Entry) -> dict[str, Any]:
    """The line of `beat_schedule` that makes this entry: what an edit begins with."""
    start = {} if entry.start is None else {"start": _EPOCH + timedelta(microseconds=entry.start)}
    policies = {"zone": entry.zone.key, "catchup": entry.catchup.text, "grace": entry.catchup.grace}
    return {
        "task": entry.task,
        "schedule": read_schedule_text(entry.shown),
        "args": entry.args,
        "kwargs": entry.kwargs,
        "options": entry.options,
        "fencebeat": {**policies, **start, "jitter": entry.jitter, "overlap": entry.overlap},
    }


def _name(name: str) -> str:
    if not name or name == RESERVED or name.endswith(EXTRA):
        raise ValueError(f"an entry may not be called {name!r}. Give it another name.")
    return name


def _zone(key: Any) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise ValueError(f"there is no time zone {key!r}. Use an IANA name such as Europe/Berlin.") from None


@lru_cache(maxsize=1024)
def _catchup(text: str, grace: float) -> CatchUp:
    return CatchUp.of(text, grace=grace, lease=0.0)  # whoever stored it has checked the grace against the lease


def _jitter(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`jitter` must be a number of seconds, not {value!r}.")
    if not (math.isfinite(value) and 0 <= value <= MOST_JITTER):
        raise ValueError(f"`jitter` is {value:g} s. Use 0 to {MOST_JITTER:g} s.")
    return float(value)


def _one_of(allowed: Any, what: str, value: Any) -> Any:
    if value not in get_args(allowed):
        raise ValueError(f"`{what}` is {value!r}. Use {' or '.join(get_args(allowed))}.")
    return value


def _start(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("`start` must be a datetime with a time zone.")
    return (value - _EPOCH) // timedelta(microseconds=1)


def lines_of(app: Celery) -> dict[str, Mapping[str, Any]]:
    """`beat_schedule` of an application, with the entries that Celery adds itself (clean-up of a result backend)."""
    celery_own = CeleryScheduler(app, lazy=True)
    celery_own.install_default_entries(celery_own.data)
    own = app.conf.beat_schedule
    return {**{name: _line(entry) for name, entry in celery_own.data.items() if name not in own}, **own}


def _line(entry: ScheduleEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ("task", "schedule", "args", "kwargs", "options")}


def read_schedule(
    lines: Mapping[str, Mapping[str, Any]], *, zone: str = "UTC", lease: float = 5.0
) -> tuple[dict[str, Entry], list[UnusableEntry]]:
    """All lines of `beat_schedule`: the entries that can be scheduled, and why the others cannot.

    One bad line never stops the others; whether it stops the start is the caller's choice.
    """
    entries: dict[str, Entry] = {}
    refused: list[UnusableEntry] = []
    for name, line in lines.items():
        try:
            entry = entry_of(str(name), line, zone=zone, lease=lease)
            entry.version  # noqa: B018 - made now, so that an argument that is not JSON is found here
        except UnusableEntry as error:
            refused.append(error)
        else:
            entries[entry.name] = entry
    return entries, refused


def schedule_digest(entries: Mapping[str, Entry]) -> str:
    """One digest of all definitions: two processes that differ in it run different configurations."""
    return _digest({name: entry.version for name, entry in entries.items()})
