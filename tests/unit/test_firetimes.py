"""S11, S13, S20: fire times against a scan of every minute, and the written rule for days on which clocks change."""

import random
import time
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from fencebeat.firetimes import Crontab, Interval, fire_times, next_fire_time, next_fire_times
from fencebeat.schedules import rule_of
from tests.support.crontabs import MINUTE, scan

ZONES = (
    "Europe/Berlin",
    "America/Los_Angeles",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Antarctica/Troll",
    "America/Santiago",
    "UTC",
)
CASES = 10_000
START = datetime(2026, 1, 1, tzinfo=UTC)
UTC_ZONE = ZoneInfo("UTC")


def us(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000


def cron(text: str) -> Crontab:
    rule = rule_of(crontab.from_string(text))
    assert isinstance(rule, Crontab)
    return rule


def random_rule(dice: random.Random) -> Crontab:
    minute = dice.choice(["*", "*/15", "*/7", str(dice.randrange(60)), "0,30", "5-50/9"])
    hour = dice.choice(["*", "*/2", "*/5", str(dice.randrange(24)), "0,1,2,3", "1-3", "22-2", "23"])
    day = dice.choice(["*", "*", "1", "15,31", "1-7", "*/10"])
    month = dice.choice(["*", "*", "*/3", "3,4,9,10,11", "2"])
    weekday = dice.choice(["*", "*", "0", "mon-fri", "6,0"])
    return cron(f"{minute} {hour} {day} {month} {weekday}")


@pytest.mark.parametrize("zone", ZONES)
def test_s11_random_crontabs_agree_with_a_scan_of_every_minute(zone: str) -> None:
    dice = random.Random(f"S11 {zone}")
    minutes = scan(zone, START)
    end = us(2026, 1, 1) + 398 * 1440 * MINUTE
    compared = 0
    while compared < CASES / len(ZONES):
        rule = random_rule(dice)
        expected = [at for at in minutes.fire_times(rule) if at <= end]
        assert list(fire_times(rule, ZoneInfo(zone), minutes.first + 86_400_000_000, end)) == [
            at for at in expected if at > minutes.first + 86_400_000_000
        ], rule
        for _ in range(25):
            after = dice.randrange(us(2026, 1, 2), end - 40 * 1440 * MINUTE)
            position = bisect_right(expected, after)
            if position < len(expected):
                assert next_fire_time(rule, ZoneInfo(zone), after) == expected[position], (rule, after)
                compared += 1


@pytest.mark.parametrize("zone", ["America/St_Johns", "Pacific/Apia", "Asia/Gaza", "Africa/Casablanca"])
def test_zones_whose_clock_changes_over_midnight_or_skips_a_date_agree_with_the_scan(zone: str) -> None:
    start = datetime(2010, 12, 1, tzinfo=UTC) if zone == "America/St_Johns" else datetime(2011, 9, 1, tzinfo=UTC)
    minutes = scan(zone, start, 330)
    after, end = minutes.first + 2 * 86_400_000_000, minutes.first + 328 * 86_400_000_000
    for text in ("30 23 * * *", "0 0 * * *", "30 0 * * *", "*/20 * * * *", "15 */3 * * *", "59 23 * * 5"):
        rule = cron(text)
        expected = [at for at in minutes.fire_times(rule) if after < at <= end]
        assert list(fire_times(rule, ZoneInfo(zone), after, end)) == expected, text


# zone, forward date, hourly, quarter-hourly, daily "h:m", its instant; the same for the day on which it goes back
TABLE = [
    ("Europe/Berlin", (3, 29), 23, 92, "30 2", (3, 29, 1, 0), (10, 25), 25, 100, "30 2", (10, 25, 0, 30)),
    ("America/Los_Angeles", (3, 8), 23, 92, "30 2", (3, 8, 10, 0), (11, 1), 25, 100, "30 1", (11, 1, 8, 30)),
    ("Australia/Lord_Howe", (10, 4), 23, 94, "15 2", (10, 3, 15, 30), (4, 5), 24, 98, "45 1", (4, 4, 14, 45)),
    ("Pacific/Chatham", (9, 27), 23, 92, "0 3", (9, 26, 14, 0), (4, 5), 25, 100, "0 3", (4, 4, 13, 15)),
    ("Antarctica/Troll", (3, 29), 22, 88, "30 2", (3, 29, 1, 0), (10, 25), 26, 104, "30 2", (10, 25, 0, 30)),
    ("America/Santiago", (9, 6), 23, 92, "30 0", (9, 6, 4, 0), (4, 4), 25, 100, "30 23", (4, 5, 2, 30)),
]


def local_day(zone: ZoneInfo, month: int, day: int) -> tuple[int, int]:
    """The instants just before the first and at the last minute that a clock in `zone` shows this date."""
    minutes = [us(2026, month, day) + n * MINUTE for n in range(-1440, 2 * 1440)]
    shown = [m for m in minutes if datetime.fromtimestamp(m // 1_000_000, zone).date() == date(2026, month, day)]
    return shown[0] - 1, shown[-1]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_s13_days_on_which_the_clock_changes(row: tuple) -> None:
    zone = ZoneInfo(row[0])
    for on, hourly, quarters, daily, instant in (row[1:6], row[6:11]):
        after, until = local_day(zone, *on)
        assert len(list(fire_times(cron("0 * * * *"), zone, after, until))) == hourly
        assert len(list(fire_times(cron("*/15 * * * *"), zone, after, until))) == quarters
        on_that_day = list(fire_times(cron(f"{daily} * * *"), zone, after, until))
        assert on_that_day == [us(2026, *instant)]
        year = list(fire_times(cron(f"{daily} * * *"), zone, us(2025, 12, 31), us(2027, 1, 2)))
        dates = [datetime.fromtimestamp(at // 1_000_000, zone).date() for at in year]
        in_2026 = [d for d in dates if d.year == 2026]
        assert len(in_2026) == 365
        assert len(set(in_2026)) == 365


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 0 29 2 *", us(2096, 3, 1), us(2104, 2, 29)),
        ("0 0 29 2 1", us(2026, 1, 1), us(2044, 2, 29)),
        ("0 0 31 12 *", us(2026, 12, 31), us(2027, 12, 31)),
    ],
)
def test_s11_rare_dates(text: str, after: int, expected: int) -> None:
    assert next_fire_time(cron(text), UTC_ZONE, after) == expected


def test_s11_a_date_that_never_comes_is_never_and_quick() -> None:
    every = cron("0 0 * * *")
    never = Crontab(
        minutes=every.minutes,
        hours=every.hours,
        days=frozenset({30}),
        months=frozenset({2}),
        weekdays=every.weekdays,
        elapsed=False,
    )
    started = time.perf_counter()
    assert next_fire_time(never, UTC_ZONE, us(2026, 1, 1)) is None
    assert time.perf_counter() - started < 0.1  # S11 names this limit


def test_two_fixed_times_in_one_gap_are_one_fire_time() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    day = list(fire_times(cron("0,15,30 2 * * *"), berlin, us(2026, 3, 28, 12), us(2026, 3, 29, 12)))
    assert day == [us(2026, 3, 29, 1, 0)]


@given(
    every=st.integers(min_value=100_000, max_value=10**12),
    anchor=st.integers(min_value=-(10**15), max_value=10**15),
    after=st.integers(min_value=0, max_value=4 * 10**15),
)
def test_s20_an_interval_depends_on_its_anchor_alone(every: int, anchor: int, after: int) -> None:
    rule = Interval(every=every, anchor=anchor)
    at = next_fire_time(rule, UTC_ZONE, after)
    assert at is not None
    assert after < at <= after + every
    assert (at - anchor) % every == 0


def test_s10_an_interval_of_ten_minutes_fires_at_its_anchor_and_not_when_it_is_added() -> None:
    rule = rule_of(timedelta(minutes=10))
    assert next_fire_time(rule, UTC_ZONE, us(2026, 1, 1, 23, 55)) == us(2026, 1, 2)


@given(after=st.integers(min_value=us(2026, 1, 1), max_value=us(2036, 1, 1)), zone=st.sampled_from(ZONES))
def test_the_next_fire_times_are_the_fire_times(after: int, zone: str) -> None:
    rule = cron("*/30 1-3 * * *")
    found = next_fire_times(rule, ZoneInfo(zone), after, 5)
    assert found == list(fire_times(rule, ZoneInfo(zone), after, found[-1]))
    assert all(a < b for a, b in pairwise(found))
