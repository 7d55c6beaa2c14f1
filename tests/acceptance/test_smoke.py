"""The two smoke runs, by their names, and what `fencebeat smoke` says of a run that fails or does not exist."""

import pytest

from ops import smoke
from ops.errors import SmokeFailed, UnknownSmoke
from ops.smoke.stage import Request

pytestmark = pytest.mark.timeout(900)  # a loaded machine starts ten processes of Python here


@pytest.mark.slow
def test_an_election_under_load_loses_and_doubles_no_tick(request):
    facts = request.getfixturevalue("rag-scheduled-job-leader-election-smoke").facts

    assert facts["terms"] >= 5
    assert facts["ticks"] >= 30
    assert facts["stale commits refused"] >= facts["frozen leaders"] >= 2
    assert len(facts["takeovers after a kill"]) == facts["killed leaders"] == 2
    assert facts["searches answered"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["redis", "etcd"])
def test_two_workers_have_one_effect_on_either_lock(request, lock):
    facts = request.getfixturevalue("rag-distributed-lock-redis-etcd-smoke").facts

    assert facts[f"{lock}: effects of 3 deliveries to 2 workers"] == 1
    assert facts[f"{lock}: ticks"] >= 3


def test_an_unknown_run_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UnknownSmoke, match="rag-distributed-lock-redis-etcd-smoke"):
        smoke.run("smoke")


def test_a_run_that_fails_says_where_and_keeps_its_files(monkeypatch, tmp_path):
    def failing(stage):
        stage.expect("answering", False, "nothing")

    monkeypatch.setitem(smoke.RUNS, "failing", failing)

    with pytest.raises(SmokeFailed, match="answering") as failed:
        smoke.run("failing", folder=tmp_path / "kept")

    assert str(tmp_path / "kept") in str(failed.value)
    assert (tmp_path / "kept").is_dir()


def test_a_request_repeated_under_its_key_is_one_message():
    first, again = Request("acme", "k1"), Request("acme", "k1")

    assert first.task_id == again.task_id
    assert first.headers == {"tenant_id": "acme", "idempotency_key": "k1"}
    assert first.timeout == 2.0
    assert Request("acme", "k2").task_id != first.task_id
    assert Request("other", "k1").task_id != first.task_id
