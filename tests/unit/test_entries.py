"""Entries are read from Celery's own configuration; what cannot be scheduled is refused by name, the rest goes on."""

from datetime import UTC, datetime, timedelta

import pytest
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedule

from fencebeat.entries import UnusableEntry, entry_of, read_schedule, schedule_digest
from fencebeat.firetimes import Interval


class Sunset(BaseSchedule):
    """Stands for solar, which needs a package of its own, and for any schedule of somebody else's."""


LINE = {"task": "t.work", "schedule": 30.0}


@pytest.mark.parametrize("value", [60, 60.0, timedelta(minutes=1), schedule(60), schedule(timedelta(minutes=1))])
def test_celerys_ways_to_write_an_interval_are_one_rule(value: object) -> None:
    assert entry_of("e", {"task": "t", "schedule": value}).rule == Interval(every=60_000_000)


def test_a_start_anchors_an_interval() -> None:
    line = {**LINE, "fencebeat": {"start": datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)}}
    assert entry_of("e", line).rule == Interval(every=30_000_000, anchor=10_000_000)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"task": "t", "schedule": Sunset()}, "not supported"),
        ({"task": "t", "schedule": 0}, "0.1 s"),
        ({"task": "t", "schedule": "daily"}, "not supported"),
        ({"task": "t", "schedule": True}, "not supported"),
        ({"task": "t"}, "schedule"),
        ({"schedule": 5}, "names no task"),
        ({**LINE, "fencebeat": {"zone": "Mars/Olympus"}}, "no time zone"),
        ({**LINE, "fencebeat": {"catchup": "sometimes"}}, "latest"),
        ({**LINE, "fencebeat": {"grace": 3}}, "two leases"),
        ({**LINE, "fencebeat": {"grace": "30"}}, "number of seconds"),
        ({**LINE, "fencebeat": {"start": datetime(2026, 1, 1)}}, "time zone"),  # noqa: DTZ001 - the mistake
        ({**LINE, "fencebeat": {"overlap": "cancel_other"}}, "allow or skip"),
        ({**LINE, "fencebeat": {"jitter": -1}}, "jitter"),
        ({**LINE, "fencebeat": {"jitter": float("nan")}}, "jitter"),
        ({**LINE, "fencebeat": {"jitter": True}}, "number of seconds"),
        ({**LINE, "fencebeat": {"rest": 1}}, "rest"),
        ({"task": "t", "schedule": crontab(), "fencebeat": {"start": datetime.now(UTC)}}, "for intervals"),
        ({**LINE, "retries": 3}, "retries"),
        ({**LINE, "args": (object(),)}, "not JSON"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_by_name_and_the_others_go_on(line: dict, said: str) -> None:
    entries, refused = read_schedule({"bad": line, "good": LINE})
    assert list(entries) == ["good"]
    (error,) = refused
    assert isinstance(error, UnusableEntry)
    assert "bad" in error.what
    assert said in str(error)


def test_the_name_of_the_generation_is_refused() -> None:
    _, refused = read_schedule({"generation": LINE})
    assert len(refused) == 1


def test_the_name_of_an_extra_run_is_refused() -> None:
    _, (error,) = read_schedule({"e!now": LINE})
    assert "may not be called 'e!now'" in str(error)


def test_the_version_changes_with_the_arguments_and_the_timing_does_not() -> None:
    before, after = entry_of("e", {**LINE, "args": (1,)}), entry_of("e", {**LINE, "args": (2,)})
    assert before.version != after.version
    assert before.timing == after.timing


@pytest.mark.parametrize(
    "change", [{"schedule": 31.0}, {"fencebeat": {"zone": "Europe/Berlin"}}, {"fencebeat": {"catchup": "all"}}]
)
def test_the_timing_changes_with_rule_zone_and_policy(change: dict) -> None:
    assert entry_of("e", LINE).timing != entry_of("e", {**LINE, **change}).timing


def test_definitions_are_the_same_in_every_process() -> None:
    lines = {
        "cron": {
            "task": "t",
            "schedule": crontab(minute={5, 50, 20}, hour="*/2"),
            "args": (timedelta(hours=1).seconds,),
        },
        "lazy": {"task": "t", "schedule": 5, "kwargs": {"now": BeatLazyFunc(datetime.now)}},
        "sets": {"task": "t", "schedule": 5, "kwargs": {"tags": {"b", "a"}}},
    }
    entries, refused = read_schedule(lines)
    assert refused == []
    again, _ = read_schedule(dict(reversed(lines.items())))
    assert schedule_digest(entries) == schedule_digest(again)
    assert "0x" not in "".join(entry.definition for entry in entries.values())


def test_a_schedule_is_shown_in_the_order_of_crontab() -> None:
    assert (
        entry_of("e", {"task": "t", "schedule": crontab(minute=30, hour=2, day_of_week="sun")}).shown == "30 2 * * sun"
    )
    assert entry_of("e", LINE).shown == "every 30 s"
