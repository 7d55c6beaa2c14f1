"""Fire times: pure functions of (rule, zone, after). One function decides for display and emission; no clock is read.

All times are whole microseconds since the epoch, UTC. The rules:

    Crontab     Celery's matching: minute, hour, day of month AND day of week, month; in the entry's own zone.
    A fixed hour that does not exist (clock goes forward)   fires once, at the end of the gap
    A fixed hour that exists twice (clock goes back)        fires once, at its first occurrence
    An hour field with `*` or a step                        follows elapsed time: every real instant that matches
    Two matches in one instant                              are one fire time
    Interval                                                anchored (at the epoch, if nothing else is said), so
                                                            neither a start nor a change of leader moves it
    Solar                                                   see `solar`: once a local solar day that has the event
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from zoneinfo import ZoneInfo

from fencebeat.solar import Solar, events_after

SECOND = 1_000_000
DAY_SECONDS = 86_400
HORIZON_YEARS = 41
"""Any (day, weekday) that ever comes, 29 February on a Monday across 2100 included, comes within 40 years."""

_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, kw_only=True, slots=True)
class Crontab:
    """A crontab rule, its fields already expanded to the numbers that match (Sunday is 0)."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    elapsed: bool  # the hour field has `*` or a step: every matching instant counts, not once a date


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A rule that fires every `every` microseconds, counted from `anchor`."""

    every: int
    anchor: int = 0


Rule = Crontab | Interval | Solar


def next_fire_time(rule: Rule, zone: ZoneInfo, after: int) -> int | None:
    """The first fire time later than `after` (microseconds since the epoch, UTC); None when it never fires again."""
    if isinstance(rule, Interval):
        return after + rule.every - (after - rule.anchor) % rule.every
    return next(_after(rule, zone, after), None)


def fire_times(rule: Rule, zone: ZoneInfo, after: int, until: int) -> Iterable[int]:
    """The fire times in (after, until], oldest first, in microseconds since the epoch, UTC; a range for an interval."""
    if isinstance(rule, Interval):
        first = after + rule.every - (after - rule.anchor) % rule.every
        return range(first, until + 1, rule.every)
    return takewhile(lambda at: at <= until, _after(rule, zone, after))


def _after(rule: Crontab | Solar, zone: ZoneInfo, after: int) -> Iterator[int]:
    return events_after(rule, after) if isinstance(rule, Solar) else _crontab_after(rule, zone, after)


def _crontab_after(rule: Crontab, zone: ZoneInfo, after: int) -> Iterator[int]:
    """Fire times after `after`, for ever or until there are none.

    A local date may still fire after the next one has begun (a clock that goes back over midnight), so an instant is
    handed out only when no later date can come before it: offsets are less than a day.
    """
    here = datetime.fromtimestamp(after // SECOND, UTC).astimezone(zone).date()
    waiting: list[int] = []
    for day in _matching_days(rule, here - timedelta(days=1)):
        settled = (day.toordinal() - _EPOCH - 1) * DAY_SECONDS * SECOND
        ready = bisect_right(waiting, settled)
        yield from waiting[:ready]
        waiting = sorted({*waiting[ready:], *_later(_instants(rule, zone, day), after)})
    yield from waiting


def _later(instants: tuple[int, ...], after: int) -> tuple[int, ...]:
    return instants[bisect_right(instants, after) :]


def _matching_days(rule: Crontab, start: date) -> Iterator[date]:
    """Dates from `start` on that match day, weekday and month; ends after a horizon without any."""
    found = start.year
    year = start.year
    while year <= found + HORIZON_YEARS and year < date.max.year:
        for month in sorted(rule.months):
            for day in sorted(rule.days):
                try:
                    candidate = date(year, month, day)
                except ValueError:
                    break  # this month is shorter
                if candidate >= start and candidate.isoweekday() % 7 in rule.weekdays:
                    found = year
                    yield candidate
        year += 1


@lru_cache(maxsize=4096)  # many entries share a rule, and each is asked again and again for the same day
def _instants(rule: Crontab, zone: ZoneInfo, day: date) -> tuple[int, ...]:
    """The instants at which `rule` fires for the local date `day`, sorted."""
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - a wall clock's reading, not an instant
    moments = [midnight + timedelta(hours=hour, minutes=minute) for hour in rule.hours for minute in rule.minutes]
    quarters = {_offset(zone, midnight + timedelta(hours=hour), fold) for hour in (0, 6, 12, 18, 24) for fold in (0, 1)}
    if len(quarters) == 1:  # an ordinary day: one offset from midnight to midnight
        offset = quarters.pop()
        return tuple(sorted(_wall(moment, offset) for moment in moments))
    return tuple(sorted({at for moment in moments for at in _resolve(zone, moment, elapsed=rule.elapsed)}))


def _resolve(zone: ZoneInfo, moment: datetime, *, elapsed: bool) -> tuple[int, ...]:
    """The instants at which a wall clock in `zone` shows `moment`, by the rule for days on which the clock changes."""
    before, later = _offset(zone, moment, 0), _offset(zone, moment, 1)
    if before == later:
        return (_wall(moment, before),)
    if before > later:  # shown twice
        first, second = _wall(moment, before), _wall(moment, later)
        return (first, second) if elapsed else (first,)
    return () if elapsed else (_end_of_gap(zone, _wall(moment, later), _wall(moment, before)),)


def _end_of_gap(zone: ZoneInfo, low: int, high: int) -> int:
    """The instant in (low, high] at which the offset of `zone` changes, to the second."""
    low, high = low // SECOND, high // SECOND
    old = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return high * SECOND


def _offset(zone: ZoneInfo, moment: datetime, fold: int) -> int:
    """Seconds east of UTC that `zone` has at the wall-clock reading `moment`."""
    shift = moment.replace(tzinfo=zone, fold=fold).utcoffset()
    return int(shift.total_seconds()) if shift is not None else 0


def _wall(moment: datetime, offset: int) -> int:
    """The instant at which a clock `offset` seconds east of UTC shows `moment`."""
    days = moment.toordinal() - _EPOCH
    return (days * DAY_SECONDS + moment.hour * 3600 + moment.minute * 60 - offset) * SECOND


def next_fire_times(rule: Rule, zone: ZoneInfo, after: int, count: int) -> list[int]:
    """At most `count` fire times later than `after`, oldest first."""
    found: list[int] = []
    while len(found) < count and (at := next_fire_time(rule, zone, found[-1] if found else after)) is not None:
        found.append(at)
    return found
