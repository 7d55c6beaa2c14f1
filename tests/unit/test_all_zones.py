"""S16: nothing that can become due is left out, in any zone: a restart every three hours, across a clock change."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from celery.schedules import crontab

from fencebeat.entries import entry_of
from tests.support.crontabs import MINUTE, scan

HOUR = 60 * MINUTE
START = datetime(2026, 10, 24, tzinfo=UTC)  # Europe's clocks go back on the 25th
ZONES = (
    *("UTC", "Europe/Berlin", "Europe/London", "Europe/Moscow", "Africa/Casablanca", "Atlantic/Azores"),
    *("America/St_Johns", "America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles"),
    *("America/Santiago", "America/Sao_Paulo", "Pacific/Marquesas", "Pacific/Honolulu", "Asia/Kolkata"),
    *("Asia/Kathmandu", "Asia/Tehran", "Asia/Tokyo", "Australia/Eucla", "Australia/Adelaide"),
    *("Australia/Lord_Howe", "Pacific/Chatham", "Pacific/Kiritimati"),
)
MORE = ("*/20 * * * *", "5 */5 * * *", "0,30 1-3 * * *", "15 22-2 * * sun")


def test_s16_576_entries_in_24_zones_emit_what_the_oracle_says_and_nothing_else() -> None:
    emitted, expected = set(), set()
    begin = round(START.timestamp()) * 1_000_000
    end = begin + 48 * HOUR
    for zone in ZONES:
        minutes = scan(zone, datetime(2026, 10, 22, tzinfo=UTC), 6)
        for text in (*(f"0 {hour} * * *" for hour in range(24)), *MORE):
            line = {"task": "t", "schedule": crontab.from_string(text), "fencebeat": {"zone": zone, "catchup": "all"}}
            entry = entry_of(f"{zone} {text}", line)
            assert entry.zone == ZoneInfo(zone)
            expected |= {(entry.name, at) for at in minutes.fire_times(entry.rule) if begin < at <= end}
            mark, due = begin, entry.next_after(begin)
            for restart in range(begin + 3 * HOUR, end + 1, 3 * HOUR):  # what is stored is all that a beat has
                if due is not None and due <= restart:
                    plan = entry.plan(mark, restart)
                    emitted |= {(entry.name, at) for at in plan.emit}
                    mark = plan.emit[-1]
                    due = entry.next_after(mark)
    assert len(ZONES) == 24
    assert len({name for name, _ in expected}) >= 576
    assert emitted == expected
