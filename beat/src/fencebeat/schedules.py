"""Schedules as people write them, and the rules they mean: Celery's objects and one line of text, both ways.

    30 2 * * mon-fri             a crontab: minute, hour, day of month, month, day of week
    every 30 s                   an interval; seconds, with a fraction if need be
    solar sunrise 52.52 13.4     an event of the sun at a latitude and a longitude, as Celery names them

What `text_of` writes, `read_rule` reads back as the same rule. Equal rules are one object, so that 100,000 entries need
little memory. May import: the standard library, Celery's schedules. Must never know: entries, who leads, what Redis is.
"""

import re
from dataclasses import fields
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.schedules import ParseException, crontab, schedule, solar

from fencebeat.firetimes import SECOND, Crontab, Interval, Rule
from fencebeat.solar import Solar

_KEPT = 16_384  # rules and texts remembered: more different ones only cost memory
_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_EVERY = re.compile(r"every (\d+(?:\.\d{1,6})?) s")


def rule_of(value: Any, start: int | None = None) -> Rule:
    """The rule of a `schedule` as Celery takes it: crontab, `schedule`, `solar`, timedelta or a number of seconds.

    start: microseconds since the epoch from which an interval counts; None is the epoch. Raises TypeError and
    ValueError with the reason.
    """
    if isinstance(value, crontab | solar):
        if start is not None:
            raise ValueError("`start` is for intervals: the times of a crontab or of the sun are fixed. Remove it.")
        return _one(_crontab(value) if isinstance(value, crontab) else _solar(value))
    return _one(_interval(_seconds(value), start))


def text_of(value: Any) -> str:
    """A schedule that `rule_of` takes, as one line of text."""
    if isinstance(value, crontab):
        return " ".join(_field(getattr(value, f"_orig_{name}")) for name in _FIELDS)
    if isinstance(value, solar):
        return f"solar {value.event} {float(value.lat)!r} {float(value.lon)!r}"
    every = _interval(_seconds(value), None).every
    whole, rest = divmod(every, SECOND)
    return f"every {whole}" + (f".{rest:06d}".rstrip("0") if rest else "") + " s"


@lru_cache(maxsize=_KEPT)
def read_rule(text: str, start: int | None = None) -> Rule:
    """The rule that a line of text means. Raises ValueError with the reason."""
    return rule_of(read_schedule_text(text), start)


def read_schedule_text(text: str) -> Any:
    """A line of text as a schedule that `rule_of` takes. Raises ValueError with the reason."""
    if match := _EVERY.fullmatch(text):
        return timedelta(microseconds=int(Decimal(match[1]) * SECOND))
    if text.startswith("solar "):
        return _read_solar(text)
    if len(text.split()) != len(_FIELDS):
        raise ValueError(f"{text!r} is no schedule. Use five crontab fields, or for example `every 30 s`.")
    try:
        return crontab.from_string(text)
    except (ParseException, ValueError, KeyError) as error:
        raise ValueError(f"{text!r} is no crontab: {error}") from None


def _read_solar(text: str) -> solar:
    try:
        _, event, latitude, longitude = text.split()
        return solar(event, float(latitude), float(longitude))
    except ImproperlyConfigured:
        raise ValueError("schedules by the sun need `ephem`: pip install 'fencebeat[solar]'.") from None
    except ValueError as error:
        why = f"{text!r} is no sun event ({error})"
        raise ValueError(f"{why}. Use for example `sunrise 52.52 13.40`: event, latitude, longitude.") from None


def _solar(value: solar) -> Solar:
    latitude, longitude = float(value.lat), float(value.lon)
    if not (isfinite(latitude) and isfinite(longitude)):
        raise ValueError("latitude and longitude must be numbers of degrees.")
    return Solar(event=value.event, latitude=latitude, longitude=longitude)


def _crontab(value: crontab) -> Crontab:
    hour = str(value._orig_hour)  # noqa: SLF001 - the only place that still knows of `*` and steps
    return Crontab(
        minutes=_numbers(frozenset(value.minute)),
        hours=_numbers(frozenset(value.hour)),
        days=_numbers(frozenset(value.day_of_month)),
        months=_numbers(frozenset(value.month_of_year)),
        weekdays=_numbers(frozenset(value.day_of_week)),
        elapsed="*" in hour or "/" in hour,
    )


def _interval(seconds: float, start: int | None) -> Interval:
    every = round(seconds * SECOND)
    if every < SECOND // 10:
        raise ValueError("its interval is shorter than 0.1 s. Use a longer one.")
    return Interval(every=every, anchor=(start or 0) % every)


def _seconds(value: Any) -> float:
    if type(value) is schedule:
        value = value.run_every
    if isinstance(value, timedelta):
        return value / timedelta(seconds=1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(
            f"a schedule of type {kind} is not supported. Use a crontab, a solar event, a timedelta or seconds."
        )
    return value


def _field(value: Any) -> str:
    if isinstance(value, str | int):
        return "".join(str(value).split())
    return ",".join(map(str, sorted(value)))


@lru_cache(maxsize=_KEPT)
def _one(rule: Rule) -> Rule:
    """The same rule for every entry that has it."""
    return rule


@lru_cache(maxsize=_KEPT)
def _numbers(numbers: frozenset[int]) -> frozenset[int]:
    """The same set for every rule that has it: sixty minutes alone take 2 KB."""
    return numbers


def plain(rule: Rule) -> list[Any]:
    """A rule as JSON can say it, the same in every process."""
    facts = sorted((field.name, getattr(rule, field.name)) for field in fields(rule))
    return [type(rule).__name__, [[name, sorted(v) if isinstance(v, frozenset) else v] for name, v in facts]]


def is_interval(value: Any) -> bool:
    """Whether a schedule that `rule_of` takes counts from a start."""
    return type(value) is schedule or isinstance(value, timedelta | int | float)


_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_UNITS = {"ms": 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND, "w": 604_800 * SECOND}


def read_every(text: str) -> timedelta:
    """An interval as people type it: 30s, 15m, 6h, 1d; a number alone is seconds. Raises ValueError."""
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no interval. Use for example 30s, 15m, 6h or 1d.")
    return timedelta(microseconds=int(Decimal(match[1]) * _UNITS[match[2] or "s"]))
