"""An oracle for crontab fire times: a scan of every minute. It shares no code with `fencebeat.firetimes`."""

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from fencebeat.firetimes import Crontab

MINUTE = 60_000_000


class MinuteScan:
    """Every minute of `days` days from `start` (a midnight, UTC), with what a wall clock in `zone` shows in it."""

    def __init__(self, zone: str, start: datetime, days: int) -> None:
        tz = ZoneInfo(zone)
        self.first = int(start.timestamp()) * 1_000_000
        moments = [(start + timedelta(minutes=n)).astimezone(tz) for n in range(days * 1440)]
        self.shown = np.array([m.toordinal() * 1440 + m.hour * 60 + m.minute for m in moments], dtype=np.int64)
        highest = np.maximum.accumulate(self.shown)
        self.repeated = np.zeros(len(moments), dtype=bool)
        self.repeated[1:] = self.shown[1:] <= highest[:-1]
        self.gaps = [
            (n, np.arange(highest[n - 1] + 1, self.shown[n]))
            for n in range(1, len(moments))
            if self.shown[n] > highest[n - 1] + 1
        ]

    def fire_times(self, rule: Crontab) -> list[int]:
        """The fire times of `rule` in the scanned time, in microseconds."""
        fires = _matches(rule, self.shown)
        if not rule.elapsed:
            fires &= ~self.repeated
            for at, skipped in self.gaps:
                fires[at] |= bool(_matches(rule, skipped).any())
        return (self.first + np.flatnonzero(fires) * MINUTE).tolist()


def _matches(rule: Crontab, shown: np.ndarray) -> np.ndarray:
    ordinals, of_day = np.divmod(shown, 1440)
    dates = (ordinals - 719163).astype("datetime64[D]")  # 719163: ordinal of 1970-01-01
    months = dates.astype("datetime64[M]")
    days = (dates - months).astype(int) + 1
    return (
        np.isin(of_day // 60, list(rule.hours))
        & np.isin(of_day % 60, list(rule.minutes))
        & np.isin(days, list(rule.days))
        & np.isin(months.astype(int) % 12 + 1, list(rule.months))
        & np.isin(ordinals % 7, list(rule.weekdays))  # ordinal 1 was a Monday, so Sunday is 0
    )


@lru_cache(maxsize=16)
def scan(zone: str, start: datetime, days: int = 400) -> MinuteScan:
    """The scan of a zone, made once a session: it is half a million conversions."""
    return MinuteScan(zone, start, days)
