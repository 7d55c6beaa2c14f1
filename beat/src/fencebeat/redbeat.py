"""RedBeat's entries, read from its own records, as lines of a schedule. Nothing of it is changed, and it is not needed.

    {prefix}:schedule   sorted set: the key of each entry, scored by when RedBeat runs it next
    {prefix}:statics    set: names of the entries that come from the configuration; they are not imported
    {prefix}NAME        hash: `definition` and `meta`, JSON with values that name their `__type__`

An interval of RedBeat counts from its last run, ours from a start: the last run becomes the start, so the beat goes on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import redis
from celery.schedules import crontab, schedule

from fencebeat.firetimes import SECOND
from fencebeat.scripts import asking

PREFIX = "redbeat:"
_SANE = datetime(2000, 1, 1, tzinfo=UTC)  # RedBeat writes the year 1 for "never"
_CELERYS = {"celery.backend_cleanup"}  # the beat adds it by itself where the result backend wants it
_KNOWN = {"name", "task", "schedule", "args", "kwargs", "options", "enabled"}


@dataclass(frozen=True)
class Found:
    """One entry of RedBeat. `line` is None where it cannot be represented; `refused` says why."""

    name: str
    line: Mapping[str, Any] | None
    last_run: int | None  # microseconds; None: never, or nothing that can be believed
    enabled: bool
    refused: str = ""


def read(client: redis.Redis, prefix: str = PREFIX, *, page: int = 500) -> Iterator[Found]:
    """RedBeat's entries that do not come from a configuration, by name. Raises StoreUnreachable.

    client: of RedBeat's database; answers in text.
    """
    with asking(client):
        statics: Any = client.smembers(f"{prefix}:statics")
        keys: Any = sorted(client.zrange(f"{prefix}:schedule", 0, -1))
    for at in range(0, len(keys), page):
        some = keys[at : at + page]
        with asking(client), client.pipeline(transaction=False) as pipe:
            for key in some:
                pipe.hmget(key, "definition", "meta")
            records = pipe.execute(raise_on_error=False)
        for key, record in zip(some, records, strict=True):
            found = _found(key.removeprefix(prefix), record)
            if found.name not in statics and found.name not in _CELERYS:
                yield found


def _found(name: str, record: Sequence[str | None] | Exception) -> Found:
    if isinstance(record, Exception) or record[0] is None:
        return Found(name, None, None, enabled=True, refused="its record is missing or damaged.")
    try:
        definition = json.loads(record[0], object_hook=_value)
        meta = json.loads(record[1] or "{}", object_hook=_value)
        last_run = _sane(meta.get("last_run_at"))
        return Found(
            name=str(definition["name"]),
            line=_line(definition, last_run),
            last_run=last_run,
            enabled=bool(definition.get("enabled", True)),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"it has no {error}." if isinstance(error, KeyError) else str(error)
        return Found(name, None, None, enabled=True, refused=why)


def _line(definition: Mapping[str, Any], last_run: int | None) -> dict[str, Any]:
    if unknown := sorted(set(definition) - _KNOWN):
        raise ValueError(f"it has {', '.join(unknown)}, which nothing here stands for.")
    when = definition["schedule"]
    if not isinstance(when, crontab | schedule):
        raise TypeError("its schedule is neither a crontab nor an interval.")
    anchored = last_run is not None and not isinstance(when, crontab) and not when.relative
    start = {"start": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=last_run or 0)} if anchored else {}
    return {
        "task": definition["task"],
        "schedule": when,
        "args": definition.get("args") or [],
        "kwargs": definition.get("kwargs") or {},
        "options": definition.get("options") or {},
        "fencebeat": start,
    }


def _sane(last_run: Any) -> int | None:
    if not isinstance(last_run, datetime) or last_run < _SANE:
        return None
    return (last_run - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) // SECOND * SECOND


def _value(record: dict[str, Any]) -> Any:
    """A JSON object of RedBeat as the value it stands for. Raises ValueError for a kind that we cannot represent."""
    kind = record.get("__type__")
    fields = {key: value for key, value in record.items() if key != "__type__"}
    match kind:
        case None:
            return record
        case "crontab":
            return crontab(**fields)
        case "interval":
            return schedule(run_every=timedelta(seconds=fields["every"]), relative=bool(fields.get("relative")))
        case "datetime":
            zone = fields.pop("timezone", "UTC")
            # a number: seconds east of UTC
            place = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
            return datetime(**fields, tzinfo=place)
        case _:
            raise ValueError(f"a value of kind {kind} has no counterpart here.")
