"""F01, F02, F03: three real beats, an entry each second; the leader is frozen in its commit twice and killed twice."""

import json

import pytest

from fencebeat.testing.election import drive_election


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_tick_is_queued_once_while_leaders_freeze_and_die(tmp_path, redis_url, namespace, record_property) -> None:
    report = drive_election(tmp_path, redis_url, namespace=namespace, seconds=60, lease=2.0)
    record_property("election", json.dumps(report.as_dict()))
    assert report.problems == []
    assert report.freezes >= 2  # the third beat may come to lead, and to its failpoint, before it is killed
    assert report.kills == 2
    assert report.refused >= 2
    assert max(report.takeover_seconds) <= report.lease + 0.5


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_drive_holds_on_the_etcd_lock_too(tmp_path, redis_url, etcd_url, namespace) -> None:
    """On etcd the token alone carries the term on the broker: what the frozen leader sends is refused by its number."""
    report = drive_election(
        tmp_path,
        redis_url,
        namespace=namespace,
        seconds=30,
        lease=3.0,
        settings={"fencebeat_lock": "etcd", "fencebeat_etcd_url": etcd_url},
    )
    problems = [problem for problem in report.problems if "takeovers" not in problem]  # etcd counts in whole seconds
    assert problems == []
