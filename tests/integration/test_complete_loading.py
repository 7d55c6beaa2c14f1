"""S16: whatever the zone, no entry is overlooked, and none fires when it should not."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import redis
from celery.schedules import crontab

from fencebeat.capture import Captured, Command
from fencebeat.entries import read_schedule
from fencebeat.lease import Term
from fencebeat.planner import Planner
from tests.support.fences import SECOND, Fence

ZONES = [
    "UTC",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Athens",
    "Europe/Moscow",
    "Asia/Dubai",
    "Asia/Tehran",
    "Asia/Kabul",
    "Asia/Karachi",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Dhaka",
    "Asia/Yangon",
    "Asia/Bangkok",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "America/St_Johns",
    "America/New_York",
    "America/Los_Angeles",
    "Pacific/Honolulu",
]
BEGIN = datetime(2025, 3, 29, 12, tzinfo=UTC)  # Europe's clocks go forward in the second night
HOURS = 48
RESTART = 180  # minutes
SHAPES = {7: {"minute": "*/20"}, 15: {"minute": "5-10/5", "hour": "*/3"}, 23: {"minute": "1,31", "hour": "0-6,22"}}
"""Steps, ranges and lists, in the place of three of the hours of each zone."""


def schedule():
    """576 entries: each full hour in each zone, some of them in another shape."""
    return {
        f"{zone}/{hour:02}": {
            "task": "t",
            "schedule": crontab(**SHAPES.get(hour, {"minute": 0, "hour": hour})),
            "fencebeat": {"zone": zone, "catchup": "all"},
        }
        for zone in ZONES
        for hour in range(24)
    }


def minutes(zone):
    """Each minute: the instant, what a clock shows, and what fixed hours count then (the end of a gap, no repeat)."""
    shown, last = set(), None
    for number in range(-24 * 60, HOURS * 60 + 1):
        moment = BEGIN + timedelta(minutes=number)
        wall = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        steps = 1 if last is None else max(1, (wall - last) // timedelta(minutes=1))
        counting = {wall - timedelta(minutes=back) for back in range(steps)} - shown
        shown |= counting
        last = wall
        if number > 0:
            yield round(moment.timestamp()) * SECOND, wall, counting


def oracle(lines):
    """Ticks by looking at every minute of every zone."""
    expected = Counter()
    for zone in ZONES:
        seen = list(minutes(zone))
        for name, line in lines.items():
            if line["fencebeat"]["zone"] != zone:
                continue
            rule = line["schedule"]
            elapsed = any(sign in str(rule._orig_hour) for sign in "*/")
            expected.update(
                f"{name}@{at}"
                for at, wall, counting in seen
                if any(one.minute in rule.minute and one.hour in rule.hour for one in ([wall] if elapsed else counting))
            )
    return expected


class Naming:
    """A renderer whose messages are the ticks' names."""

    def render(self, entry, fire_time, _token):
        name = f"{entry.name}@{fire_time}"
        return name, Captured([Command("lpush", "q", name)], ["q"], name)

    def guarded(self, _entry):
        return False


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=10, socket_connect_timeout=5) as made:
        yield made


def test_s16_two_days_in_24_zones_with_a_restart_every_three_hours_emit_what_the_oracle_says(client, namespace) -> None:
    lines = schedule()
    assert len(lines) == 576
    fence, planner = Fence.sealed(client, namespace), None
    entries, refused = read_schedule(lines)
    assert refused == []
    start = round(BEGIN.timestamp()) * SECOND
    client.hset(fence.keys.entries, mapping={name: entry.definition for name, entry in entries.items()})
    client.hset(fence.keys.last, mapping=dict.fromkeys(entries, start))
    client.zadd(fence.keys.due, {name: entry.next_after(start) / 1000 for name, entry in entries.items()})
    for number in range(HOURS * 60 + 1):
        if number % RESTART == 0:  # a new process leads, and knows nothing but its configuration and the store
            fence.term = Term(100 + number, f"nonce-{number}", "host:1", 600.0)
            fence.seal(fence.term)
            client.pexpire(fence.keys.lock, 600_000)
            entries, _ = read_schedule(schedule())
            planner = Planner(Naming())
        now = start + number * 60 * SECOND
        while names := client.zrangebyscore(fence.keys.due, "-inf", now // 1000, start=0, num=100):
            marks = client.hmget(fence.keys.last, names)
            decisions = [
                decision
                for name, mark in zip(names, marks, strict=True)
                for decision in planner.decide(fence.term, entries[name], int(mark), now, 100)
            ]
            assert set(fence.commit(*decisions)) == {"emitted"}
    assert Counter(client.lrange("q", 0, -1)) == oracle(lines)
