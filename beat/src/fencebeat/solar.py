"""Sun events as fire times: a pure function of (event, place, day). Needs `ephem`, as Celery's `solar` does.

    an event of a day    the first one after local mean solar midnight and before the next, always computed from that
                         midnight, so that nobody who asks at another moment gets another time; to the whole second
    no such event        polar day or night: the next day that has it counts, up to 400 days on; else it never comes

May import: the standard library; ephem inside functions. Must never know: entries, Celery, who leads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

MOST_DAYS = 400
"""Days without the event after which it is taken to never come: it would have come within a year."""

_SECOND = 1_000_000
_DAY = 86_400
_EPHEM_EPOCH = 25_567.5  # days from ephem's epoch (noon of 31 December 1899) to 1970
_EVENTS = {  # method, height of the sun in degrees and minutes, whether its centre counts or its edge: as Celery has it
    "dawn_astronomical": ("next_rising", "-18", True),
    "dawn_nautical": ("next_rising", "-12", True),
    "dawn_civil": ("next_rising", "-6", True),
    "sunrise": ("next_rising", "-0:34", False),
    "solar_noon": ("next_transit", "0", False),
    "sunset": ("next_setting", "-0:34", False),
    "dusk_civil": ("next_setting", "-6", True),
    "dusk_nautical": ("next_setting", "-12", True),
    "dusk_astronomical": ("next_setting", "-18", True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Solar:
    """A rule that fires at an event of the sun; latitude and longitude in degrees, north and east positive."""

    event: str
    latitude: float
    longitude: float


def events_after(rule: Solar, after: int) -> Iterator[int]:
    """The events later than `after`, in microseconds since the epoch; ends where none comes any more."""
    first = int((after / _SECOND + rule.longitude * 240) // _DAY)  # 240 s of sun time for each degree
    found, last = first, after
    for day in count(first):
        if day - found > MOST_DAYS:
            return
        at = _event(rule, day)
        if at is not None and at > last:
            found, last = day, at
            yield at


@lru_cache(maxsize=4096)
def _event(rule: Solar, day: int) -> int | None:
    """The event within the local mean solar day `day` (counted from 1970), or None where it has none."""
    import ephem  # noqa: PLC0415 - an extra: only who schedules by the sun needs it

    method, horizon, center = _EVENTS[rule.event]
    here = ephem.Observer()
    here.lat, here.lon, here.horizon, here.elev, here.pressure = (
        *(str(rule.latitude), str(rule.longitude), horizon),
        *(0, 0),
    )
    midnight = day * _DAY - rule.longitude * 240
    options = {"use_center": True} if center else {}
    try:
        at = getattr(here, method)(ephem.Sun(), start=ephem.Date(midnight / _DAY + _EPHEM_EPOCH), **options)
    except ephem.CircumpolarError:
        return None
    seconds = (float(at) - _EPHEM_EPOCH) * _DAY
    return round(seconds) * _SECOND if seconds < midnight + _DAY else None
