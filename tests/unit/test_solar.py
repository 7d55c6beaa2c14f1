"""Sun events: the same time whoever asks, and when; those of Celery's `solar`; an end where the sun does not come."""

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import ephem
import pytest
from celery.schedules import solar
from hypothesis import assume, given
from hypothesis import strategies as st

from fencebeat.entries import Entry, UnusableEntry, entry_of
from fencebeat.schedules import read_rule, rule_of, text_of
from fencebeat.solar import MOST_DAYS, Solar, events_after

SECOND = 1_000_000
DAY = 86_400 * SECOND
EVENTS = sorted(solar._all_events)

moments = st.integers(0, 100 * 365 * 86_400).map(lambda seconds: seconds * SECOND)
longitudes = st.floats(-180, 180)
events = st.sampled_from(EVENTS)


def us(*moment):
    return round(datetime(*moment, tzinfo=UTC).timestamp()) * SECOND


def of_celery(schedule, after):
    start = ephem.Date(datetime.fromtimestamp(after / SECOND, UTC).replace(tzinfo=None))
    return round((float(schedule._next_event(start)) - 25_567.5) * 86_400) * SECOND


@given(event=events, latitude=st.floats(-45, 45), longitude=longitudes, after=moments)
def test_the_next_event_is_celerys(event, latitude, longitude, after) -> None:
    schedule = solar(event, latitude, longitude)
    ours = next(events_after(rule_of(schedule), after))
    theirs = of_celery(schedule, after)
    if theirs <= after + SECOND:  # Celery's are exact: it may name the event that has just been, to the second
        theirs = of_celery(schedule, after + 60 * SECOND)
    assert abs(ours - theirs) <= 2 * SECOND


@given(event=events, latitude=st.floats(-89, 89), longitude=longitudes, after=moments)
def test_events_grow_by_a_day_or_more_and_do_not_depend_on_who_asks_when(event, latitude, longitude, after) -> None:
    rule = Solar(event=event, latitude=latitude, longitude=longitude)
    found = list(islice(events_after(rule, after), 4))
    assert all(after < at for at in found)
    for one, two in pairwise(found):
        assert two > one
        assert next(events_after(rule, one)) == two
        assert next(events_after(rule, two - 1)) == two
        assert next(events_after(rule, one + (two - one) // 2)) == two


@given(event=events, latitude=st.floats(-40, 40), longitude=longitudes, after=moments)
def test_an_event_comes_once_a_day_away_from_the_poles(event, latitude, longitude, after) -> None:
    rule = Solar(event=event, latitude=latitude, longitude=longitude)
    found = list(islice(events_after(rule, after), 8))
    assert all(DAY - 600 * SECOND < two - one < DAY + 600 * SECOND for one, two in pairwise(found))


def test_berlin_at_midsummer() -> None:
    rule = read_rule("solar sunrise 52.52 13.405")
    assert abs(next(events_after(rule, us(2026, 6, 21))) - us(2026, 6, 21, 2, 43)) < 120 * SECOND


@pytest.mark.parametrize(
    ("event", "after", "earliest", "latest"),
    [
        ("sunrise", (2026, 12, 1), (2027, 1, 10), (2027, 1, 20)),  # Tromsø: polar night
        ("sunset", (2026, 6, 1), (2026, 7, 24), (2026, 8, 2)),  # and the midnight sun
    ],
)
def test_a_polar_night_ends_with_the_next_season(event, after, earliest, latest) -> None:
    rule = Solar(event=event, latitude=69.65, longitude=18.96)
    assert us(*earliest) < next(events_after(rule, us(*after))) < us(*latest)


@pytest.mark.parametrize("latitude", [90.0, -90.0])
@pytest.mark.parametrize("event", EVENTS)
def test_at_the_poles_it_ends(event, latitude) -> None:
    rule = Solar(event=event, latitude=latitude, longitude=0.0)
    assert len(list(islice(events_after(rule, us(2026, 1, 1)), 3))) <= 3


def test_what_never_comes_is_never_after_a_bounded_search(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("fencebeat.solar._event", lambda _rule, day: asked.append(day))
    entry = entry_of("e", {"task": "t", "schedule": solar("sunrise", 80, 0)})
    assert entry.next_after(us(2026, 1, 1)) is None
    assert len(asked) == MOST_DAYS + 1


def test_an_entry_by_the_sun_is_stored_and_read_back() -> None:
    entry = entry_of("e", {"task": "t", "schedule": solar("dusk_civil", 52, -13.4)}, source="stored")
    assert entry.shown == text_of(solar("dusk_civil", 52.0, -13.4)) == "solar dusk_civil 52.0 -13.4"
    again = Entry.of_definition("e", entry.definition)
    assert again == entry
    assert again.rule is entry.rule
    assert again.timing != entry_of("e", {"task": "t", "schedule": solar("dusk_civil", 52, -13.5)}).timing


@given(event=events, latitude=st.floats(-90, 90), longitude=longitudes)
def test_every_place_is_read_back(event, latitude, longitude) -> None:
    assume(latitude == latitude + 0)
    schedule = solar(event, latitude, longitude)
    assert read_rule(text_of(schedule)) == rule_of(schedule)


@pytest.mark.parametrize(
    "text",
    ["solar sunrise 52.52", "solar tea 1 2", "solar sunrise 91 0", "solar sunrise 0 181", "solar sunrise north 1"],
)
def test_what_is_no_sun_event_is_refused_with_an_example(text) -> None:
    with pytest.raises(ValueError, match=r"sunrise 52\.52 13\.40"):
        read_rule(text)


@pytest.mark.parametrize("place", [(float("nan"), 0), (0, float("nan"))])
def test_a_place_that_is_no_number_is_refused(place) -> None:
    with pytest.raises(UnusableEntry, match="numbers of degrees"):
        entry_of("e", {"task": "t", "schedule": solar("sunrise", *place)})


def test_without_ephem_the_sentence_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    with pytest.raises(ValueError, match=r"pip install 'fencebeat\[solar\]'"):
        read_rule("solar sunrise 1.25 2.5")


def test_catching_up_over_a_season_is_quick_enough_for_one_round() -> None:
    entry = entry_of("e", {"task": "t", "schedule": solar("sunset", 52.52, 13.4), "fencebeat": {"catchup": "all"}})
    begin = us(2026, 1, 1)
    plan = entry.plan(begin, begin + round(timedelta(days=365).total_seconds()) * SECOND)
    assert len(plan.emit) == 365
