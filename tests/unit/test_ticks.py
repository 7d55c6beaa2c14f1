"""A tick has one identity, whoever computes it."""

import re
import uuid

from hypothesis import given
from hypothesis import strategies as st

from fencebeat.ticks import instant, task_id, tick_id, traceparent

FIRE_TIMES = st.integers(min_value=0, max_value=4 * 10**15)


def test_a_tick_is_named_by_entry_and_seconds() -> None:
    assert tick_id("nightly", 1_767_225_600_000_000) == "nightly@1767225600"
    assert tick_id("fast", 1_767_225_600_250_000) == "fast@1767225600.25"
    assert instant(1_767_225_600_250_000) == "2026-01-01T00:00:00.250000Z"


def test_the_task_id_never_changes_between_versions() -> None:
    """Another id for the same tick would make a repeated emission run twice after an upgrade."""
    assert task_id("fencebeat", "nightly", 1_767_225_600_000_000) == "c63327d5-38e1-5805-9958-4801e8b01722"


@given(
    one=st.tuples(st.text(max_size=20), st.text(max_size=20), FIRE_TIMES),
    other=st.tuples(st.text(max_size=20), st.text(max_size=20), FIRE_TIMES),
)
def test_different_ticks_have_different_ids(one: tuple, other: tuple) -> None:
    assert (task_id(*one) == task_id(*other)) == (one == other)
    assert uuid.UUID(task_id(*one)).version == 5


@given(of=st.uuids().map(str))
def test_the_trace_of_a_tick_is_valid_and_always_the_same(of: str) -> None:
    header = traceparent(of)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", header)
    assert header == traceparent(of)
