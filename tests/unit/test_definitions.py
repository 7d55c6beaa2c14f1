"""What can be stored is read back as the entry it was made from; jitter belongs to the tick; memory is bounded."""

import json
import sys
import tracemalloc
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from fencebeat.entries import Entry, UnusableEntry, entry_of
from fencebeat.firetimes import SECOND
from fencebeat.schedules import read_rule, text_of

NOW = round(datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC).timestamp() * SECOND)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    part = st.one_of(number.map(str), span, st.tuples(span, st.integers(1, 7)).map(lambda p: f"{p[0]}/{p[1]}"))
    every = st.one_of(st.just("*"), st.integers(2, 9).map(lambda step: f"*/{step}"))
    return st.one_of(every, st.lists(part, min_size=1, max_size=3).map(",".join))


crontabs = st.builds(
    crontab,
    field(0, 59),
    field(0, 23),
    st.one_of(st.sampled_from(["*", "mon-fri", "sun,wed"]), field(0, 6)),
    field(1, 31),
    st.one_of(field(1, 12), st.frozensets(st.integers(1, 12), min_size=1)),
)
intervals = st.one_of(
    st.integers(1, 10**7),
    st.floats(0.1, 10**6),
    st.timedeltas(min_value=timedelta(seconds=0.1), max_value=timedelta(days=4000)),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "zone": st.sampled_from(["Europe/Berlin", "Asia/Kathmandu", "UTC"]),
        "catchup": st.sampled_from(["skip", "latest", "all", "window=90m", "window=1234567s"]),
        "grace": st.floats(10, 10**5),
        "jitter": st.floats(0, 86_400),
        "overlap": st.sampled_from(["allow", "skip"]),
    },
)


@given(
    schedule=crontabs | intervals,
    own=policies,
    start=st.none() | st.datetimes(min_value=datetime(1990, 1, 1), timezones=st.just(ZoneInfo("UTC"))),  # noqa: DTZ001 - bound
    args=st.lists(values, max_size=2),
    kwargs=st.dictionaries(texts, values, max_size=2),
    options=st.fixed_dictionaries({}, optional={"queue": texts, "priority": st.integers(0, 9)}),
)
def test_every_entry_that_can_be_stored_is_read_back_equal(  # noqa: PLR0917 - by name
    schedule, own, start, args, kwargs, options
) -> None:
    if start is not None and not isinstance(schedule, crontab):
        own = {**own, "start": start}
    line = {"task": "t", "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, "fencebeat": own}
    entry = entry_of("e", line, source="stored")
    again = Entry.of_definition("e", entry.definition)
    assert again == entry
    assert again.definition == entry.definition
    assert again.timing == entry.timing
    assert Entry.of_definition("e", json.loads(entry.definition)) == entry
    assert read_rule(again.shown, again.start) is again.rule


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, {"a"}, object(), "\ud800", [(1, float("inf"))]])
def test_what_would_not_be_read_back_equal_is_refused_in_a_stored_entry(value: object) -> None:
    with pytest.raises(UnusableEntry, match="JSON"):
        entry_of("e", {"task": "t", "schedule": 5, "args": [value]}, source="stored")


def test_a_tuple_among_the_arguments_of_a_stored_entry_is_the_list_that_the_task_will_get() -> None:
    assert entry_of("e", {"task": "t", "schedule": 5, "args": [(1, (2,))]}, source="stored").args == ([1, [2]],)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "now and then"}, "no schedule"),
        ({"schedule": "* * * foo *"}, "no crontab"),
        ({"schedule": "every 0 s"}, "0.1 s"),
        ({"schedule": "0 0 * * *", "start": 5}, "for intervals"),
        ({"start": "soon"}, "whole number"),
        ({"zone": "Mars/Olympus"}, "no time zone"),
        ({"overlap": "never"}, "overlap"),
        ({"source": "elsewhere"}, "source"),
        ({"colour": "red"}, "does not know"),
        ({"task": 5}, "not int"),
        ({"kwargs": [5]}, "sequence"),
    ],
)
def test_a_damaged_definition_is_refused_by_name(change: dict, said: str) -> None:
    definition = {**json.loads(entry_of("e", {"task": "t", "schedule": 5}).definition), **change}
    with pytest.raises(UnusableEntry, match="Entry broken") as caught:
        Entry.of_definition("broken", definition)
    assert said in caught.value.what


@pytest.mark.parametrize("text", ["[]", "nonsense", "{}", '{"task": "t"}'])
def test_what_is_no_definition_is_refused(text: str) -> None:
    with pytest.raises(UnusableEntry):
        Entry.of_definition("broken", text)


def test_an_entry_that_is_changed_gets_another_version() -> None:
    entry = Entry.of_definition("e", entry_of("e", {"task": "t", "schedule": 5}).definition)
    assert replace(entry, args=(1,)).version != entry.version


def test_celerys_sets_and_spaces_are_text_that_can_be_read_back() -> None:
    value = crontab(minute={50, 5}, hour="1, 3")
    assert text_of(value) == "5,50 1,3 * * *"
    assert read_rule(text_of(value)) is entry_of("e", {"task": "t", "schedule": value}).rule


def jittered(name: str, schedule: object, jitter: float, **policies: object) -> Entry:
    return entry_of(name, {"task": "t", "schedule": schedule, "fencebeat": {"jitter": jitter, **policies}})


@given(jitter=st.floats(0, 86_400), after=st.integers(0, 2**50), name=st.text(min_size=1), every=st.floats(0.1, 10**6))
def test_s27_jitter_ends_before_the_next_fire_time_and_depends_on_the_tick_alone(jitter, after, name, every) -> None:
    if name == "generation":
        return
    entry = jittered(name, every, jitter)
    fire_time = entry.next_after(after)
    assert fire_time <= entry.due_at(fire_time) < entry.next_after(fire_time)
    assert entry.due_at(fire_time) <= fire_time + round(jitter * SECOND)
    assert entry.due_at(fire_time) == Entry.of_definition(name, entry.definition).due_at(fire_time)


def test_jitter_differs_from_tick_to_tick_and_from_entry_to_entry() -> None:
    offsets = {
        jittered(name, 3600, 60).due_at(hour * 3600 * SECOND) - hour * 3600 * SECOND
        for name in "ab"
        for hour in range(50)
    }
    assert len(offsets) == 100
    assert max(offsets) - min(offsets) > 30 * SECOND


def test_a_tick_is_not_planned_before_its_jitter_is_over() -> None:
    entry = jittered("e", 3600, 600, catchup="all")
    mark = 1_000 * 3600 * SECOND
    first, second = mark + 3600 * SECOND, mark + 7200 * SECOND
    assert entry.due_at(second) > second
    assert entry.plan(mark, entry.due_at(second) - 1).emit == (first,)
    assert entry.plan(mark, entry.due_at(second)).emit == (first, second)


@pytest.mark.parametrize("policy", ["skip", "window=10s"])
def test_jitter_alone_makes_no_tick_late(policy: str) -> None:
    entry = jittered("e", 3600, 600, catchup=policy)
    mark = 1_000 * 3600 * SECOND
    due = entry.due_at(mark + 3600 * SECOND)
    assert due - (mark + 3600 * SECOND) > 10 * SECOND, "else this shows nothing"
    assert entry.plan(mark, due + 9 * SECOND).emit == (mark + 3600 * SECOND,)
    assert entry.plan(mark, due + 11 * SECOND).emit == ()


def test_a_hundred_thousand_entries_take_less_than_a_hundred_megabytes() -> None:
    count = 10_000  # a tenth, so that the test is quick; what one takes does not depend on how many there are
    texts = [
        entry_of(
            f"customer-{n}",
            {"task": "reports.work", "schedule": crontab(n % 60, n // 60 % 24), "kwargs": {"n": n}},
            source="stored",
        ).definition
        for n in range(count)
    ]
    tracemalloc.start()
    try:
        entries = {f"customer-{n}": Entry.of_definition(f"customer-{n}", text) for n, text in enumerate(texts)}
        for entry in entries.values():
            assert entry.version
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / count < 1000, f"{taken / count:.0f} bytes for each entry"
    assert sys.getsizeof(entries["customer-7"]) < 200
    assert entries["customer-7"].rule is entries["customer-1447"].rule


def test_times_and_uuids_among_the_arguments_come_back() -> None:
    given_args = [uuid.UUID(int=7), datetime(2026, 1, 1, tzinfo=UTC)]
    entry = entry_of("e", {"task": "t", "schedule": 5, "args": given_args}, source="stored")
    assert Entry.of_definition("e", entry.definition).args == tuple(given_args)
