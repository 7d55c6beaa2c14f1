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
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.beat import Scheduler as CeleryScheduler
from celery.schedules import crontab, schedule
from kombu.utils.json import dumps

from fencebeat.catchup import CatchUp
from fencebeat.errors import UnusableEntry
from fencebeat.firetimes import SECOND, Crontab, Interval, Rule, next_fire_time

RESERVED = "generation"
"""A field of the records that hold entries and marks; no entry may have this name."""

_KEYS = {"task", "schedule", "args", "kwargs", "options", "relative", "fencebeat"}
_POLICIES = {"zone", "catchup", "grace", "start"}


@dataclass(frozen=True)
class Entry:
    """One entry of the schedule. `rule`, `zone` and `catchup` decide when it fires, the rest what is sent."""

    name: str
    task: str
    rule: Rule
    zone: ZoneInfo
    catchup: CatchUp
    shown: str  # the schedule in words, for people
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def next_after(self, after: int) -> int | None:
        """The first fire time after `after` (microseconds since the epoch); None when it never fires again."""
        return next_fire_time(self.rule, self.zone, after)

    @cached_property
    def timing(self) -> str:
        """A digest of what decides the fire times: an edit that keeps it keeps the next fire time."""
        return _digest([_plain(self.rule), self.zone.key, self.catchup.text, self.catchup.grace])

    @cached_property
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
            "timing": self.timing,
            "source": "static",
        }
        try:
            text = dumps(content, default=_stored, sort_keys=True)
        except TypeError as error:
            raise UnusableEntry(name=self.name, why=f"its arguments or options are not JSON ({error}).") from None
        return json.dumps({**json.loads(text), "version": _digest(json.loads(text))}, sort_keys=True)

    @cached_property
    def version(self) -> str:
        """A digest of the definition: a tick computed from another version is refused."""
        return str(json.loads(self.definition)["version"])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _plain(rule: Rule) -> list[Any]:
    facts = vars(rule).items()
    return [type(rule).__name__, [[k, sorted(v) if isinstance(v, frozenset) else v] for k, v in sorted(facts)]]


def _stored(value: Any) -> Any:
    """What stands in the stored definition for a value that is not JSON itself."""
    if isinstance(value, BeatLazyFunc):  # evaluated when the message is made
        return {"lazy": getattr(value._func, "__qualname__", type(value._func).__name__)}  # noqa: SLF001 - has no name
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "as_dict"):  # a kombu Queue or Exchange among the options
        return value.as_dict(recurse=True)
    raise TypeError(f"a value of type {type(value).__name__}")


def rule_of(value: Any, anchor: int = 0) -> Rule:
    """The rule of a `schedule` as Celery takes it: crontab, `schedule`, timedelta or a number of seconds.

    anchor: microseconds since the epoch from which intervals count. Raises TypeError and ValueError with the reason.
    """
    if isinstance(value, crontab):
        hour = str(value._orig_hour)  # noqa: SLF001 - the only place that still knows of `*` and steps
        return Crontab(
            minutes=frozenset(value.minute),
            hours=frozenset(value.hour),
            days=frozenset(value.day_of_month),
            months=frozenset(value.month_of_year),
            weekdays=frozenset(value.day_of_week),
            elapsed="*" in hour or "/" in hour,
        )
    if type(value) is schedule:
        value = value.run_every
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(f"a schedule of type {kind} is not supported. Use a crontab, a timedelta or seconds.")
    every = round(value * SECOND)
    if every < SECOND // 10:
        raise ValueError("its interval is shorter than 0.1 s. Use a longer one.")
    return Interval(every=every, anchor=anchor % every)


def _shown(value: Any) -> str:
    if isinstance(value, crontab):
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        return " ".join(_field(getattr(value, f"_orig_{name}")) for name in fields)
    seconds = value.run_every if type(value) is schedule else value
    seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    return f"every {seconds:g} s"


def _field(value: Any) -> str:
    return value if isinstance(value, str | int) and (value := str(value)) else ",".join(map(str, sorted(value)))


def entry_of(name: str, line: Mapping[str, Any], *, zone: str = "UTC", lease: float = 5.0) -> Entry:
    """One line of `beat_schedule` as an entry. Raises UnusableEntry with the reason.

    zone: of entries that name none. lease: seconds; the default grace is at least two of it.
    """
    try:
        return _entry_of(name, line, zone, lease)
    except (TypeError, ValueError) as error:
        raise UnusableEntry(name=name, why=str(error)) from None


def _entry_of(name: str, line: Mapping[str, Any], zone: str, lease: float) -> Entry:
    if not name or name == RESERVED:
        raise ValueError(f"an entry may not be called {name!r}. Give it another name.")
    policies = line.get("fencebeat", {})
    if unknown := sorted({*(set(line) - _KEYS), *(set(policies) - _POLICIES)}):
        raise ValueError(f"{', '.join(map(repr, unknown))} is not something an entry has. Remove it.")
    if not line.get("task") or not isinstance(line["task"], str):
        raise ValueError("it names no task. Add `task`, the task's name.")
    if "schedule" not in line:
        raise ValueError("it has no `schedule`. Add a crontab, a timedelta or seconds.")
    own_zone = policies.get("zone", zone)
    try:
        place = ZoneInfo(own_zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"there is no time zone {own_zone!r}. Use an IANA name such as Europe/Berlin.") from None
    rule = rule_of(line["schedule"], anchor=_anchor(policies.get("start")))
    return Entry(
        name=name,
        task=line["task"],
        rule=rule,
        zone=place,
        catchup=CatchUp.of(policies.get("catchup", "latest"), grace=policies.get("grace"), lease=lease),
        shown=_shown(line["schedule"]),
        args=tuple(line.get("args") or ()),
        kwargs=dict(line.get("kwargs") or {}),
        options=dict(line.get("options") or {}),
    )


def _anchor(start: Any) -> int:
    if start is None:
        return 0
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise ValueError("`start` must be a datetime with a time zone.")
    return round(start.timestamp() * SECOND)


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
            entry.definition  # noqa: B018 - made now, so that an argument that is not JSON is found here
        except UnusableEntry as error:
            refused.append(error)
        else:
            entries[entry.name] = entry
    return entries, refused


def schedule_digest(entries: Mapping[str, Entry]) -> str:
    """One digest of all definitions: two processes that differ in it run different configurations."""
    return _digest({name: entry.version for name, entry in entries.items()})
