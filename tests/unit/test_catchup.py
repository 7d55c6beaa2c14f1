"""S12, S26: what happens to missed ticks is a choice of the entry, with the true fire times and a reason for each."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from fencebeat.catchup import LIMIT, CatchUp
from fencebeat.firetimes import fire_times
from fencebeat.schedules import rule_of

SECOND = 1_000_000


def at(hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 1, 1, hour, minute, tzinfo=UTC).timestamp()) * SECOND


def missed(until: int) -> list[int]:
    return list(fire_times(rule_of(crontab.from_string("0 * * * *")), ZoneInfo("UTC"), at(1, 59), until))


@pytest.mark.parametrize(
    ("policy", "emitted"),
    [
        ("skip", []),
        ("latest", [at(5)]),
        ("all", [at(2), at(3), at(4), at(5)]),
        ("window=30m", [at(5)]),
    ],
)
def test_s12_an_hourly_entry_after_three_hours_down(policy: str, emitted: list[int]) -> None:
    plan = CatchUp.of(policy, grace=30).plan(iter(missed(at(5, 1))), at(5, 1))
    assert list(plan.emit) == emitted
    left_out = [t for t in missed(at(5, 1)) if t not in emitted]
    assert sum(run.count for run in plan.passed) == len(left_out)
    assert all(run.reason for run in plan.passed)
    if left_out:
        assert (plan.passed[0].first, plan.passed[-1].last) == (left_out[0], left_out[-1])


def test_s12_skip_loses_no_tick_of_a_handover() -> None:
    policy = CatchUp.of("skip", lease=5.0)
    takeover = at(2) + round(5.5 * SECOND)
    assert policy.plan([at(2)], takeover).emit == (at(2),)


def test_a_grace_shorter_than_two_leases_is_refused() -> None:
    with pytest.raises(ValueError, match="two leases"):
        CatchUp.of("skip", grace=9.0, lease=5.0)


@pytest.mark.parametrize("text", ["", "none", "window=0m", "window=5", "window=5w", "LATEST", 5])
def test_an_unknown_policy_is_refused_with_what_would_work(text: object) -> None:
    with pytest.raises(ValueError, match="latest"):
        CatchUp.of(text)


def test_s26_a_backlog_is_bounded_the_newest_are_kept_and_the_rest_is_counted() -> None:
    backlog = range(SECOND, 18_001 * SECOND, SECOND)
    plan = CatchUp.of("all").plan(backlog, 18_000 * SECOND)
    assert plan.emit == tuple(backlog[-LIMIT:])
    (dropped,) = plan.passed
    assert (dropped.count, dropped.last) == (17_000, 17_000 * SECOND)


@given(
    times=st.lists(st.integers(min_value=0, max_value=10**4), unique=True, max_size=200).map(sorted),
    policy=st.sampled_from(["skip", "latest", "all", "window=30m"]),
    late=st.integers(min_value=0, max_value=10**4),
)
def test_every_open_fire_time_is_emitted_or_left_out_with_a_reason(times: list[int], policy: str, late: int) -> None:
    times = [t * SECOND for t in times]
    now = (times[-1] if times else 0) + late * SECOND
    plan = CatchUp.of(policy).plan(times, now)
    assert sum(run.count for run in plan.passed) + len(plan.emit) == len(times)
    covered = {t for run in plan.passed for t in times if run.first <= t <= run.last}
    assert covered.isdisjoint(plan.emit)
    assert covered | set(plan.emit) == set(times)
    assert list(plan.emit) == sorted(plan.emit)
