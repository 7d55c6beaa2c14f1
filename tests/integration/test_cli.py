"""The commands on real servers, as a user runs them."""

import json
import signal

import pytest

from tests.support.commands import fencebeat
from tests.support.processes import worker
from tests.support.waiting import until


@pytest.fixture
def world(make_world, tmp_path):
    """One page, indexed."""
    root = tmp_path / "docs"
    root.mkdir()
    (root / "a.md").write_text("# Alpha\n\nThe lease ends by itself.\n")
    made = make_world(root, "pgvector")
    made.refresh_world()
    made.root = root
    return made


def test_search_answers_with_its_source_and_the_place_in_it(world):
    answer = fencebeat(world, "search", "lease", "--tenant", "acme", "--json")

    assert answer.code == 0, answer
    (hit,) = json.loads(answer.out)["hits"]
    assert (hit["doc_uid"], hit["text"]) == ("docs/a.md", "# Alpha\n\nThe lease ends by itself.")
    assert hit["end"] - hit["start"] == len(hit["text"])
    shown = fencebeat(world, "search", "lease", "--tenant", "acme")
    assert "docs/a.md" in shown.out


def test_doctor_exits_1_when_the_index_differs(world):
    assert fencebeat(world, "doctor").code == 0

    with world.ledger.pool.connection() as connection:
        connection.execute("UPDATE doc_head SET manifest_ids = ARRAY['gone']")
    answer = fencebeat(world, "doctor", "--json")

    assert answer.code == 1, answer
    assert json.loads(answer.out)["counts"]["missing"] == 1


def test_sync_waits_until_a_worker_has_brought_it_up_to_date(world):
    (world.root / "b.md").write_text("# Beta\n\nA second page.\n")
    with worker(world, "one") as running:
        answer = fencebeat(world, "sync", "--json")
        assert running.popen.poll() is None

    assert answer.code == 0, answer
    said = json.loads(answer.out)
    assert (said["sources"][0]["listed"], said["sources"][0]["marked"], said["waiting_documents"]) == (2, 1, 0)
    assert {row[0] for row in world.live()} == {"docs/a.md", "docs/b.md"}


def test_kill_is_acknowledged_by_workers_and_names_the_frozen_one(world):
    with worker(world, "one") as first, worker(world, "two") as second:
        for running in (first, second):
            until(lambda log=running.log: " ready." in log.read_text(), at_most=90, what="a worker that is ready")
        on = fencebeat(world, "kill", "on", "--scope", "tenant:acme", "--reason", "bad parser", "--for", "1h")
        assert on.code == 0, on
        assert "in force on 2 of 2 workers after" in on.out

        shown = json.loads(fencebeat(world, "kill", "status", "--audit", "5", "--json").out)
        (stop,) = shown["stops"]
        assert (stop["scope"], stop["level"], stop["reason"]) == ("tenant:acme", "write", "bad parser")
        assert stop["until"]
        assert [(row["before"], row["after"]) for row in shown["audit"]] == [("run", "write")]
        assert len(shown["workers"]) == 2

        second.signal(signal.SIGSTOP)
        off = fencebeat(world, "kill", "off", "--scope", "tenant:acme", "--reason", "mended", "--wait", "1", "--json")
        assert off.code == 3, off
        said = json.loads(off.out)
        assert (said["workers"], said["silent"], said["after"]) == (1, ["two@test"], "run")
        second.thaw()


def test_status_says_what_is_wrong_and_exits_3(world):
    answer = fencebeat(world, "status", "--json")

    assert answer.code == 3, answer
    said = json.loads(answer.out)
    assert [problem["kind"] for problem in said["problems"]] == ["leader", "switches"]
    (target,) = said["targets"]
    assert (target["indexed"], target["dirty"]) == (1, 0)
    assert said["embedder"] == "ready"
    shown = fencebeat(world, "status")
    assert "No beat leads" in shown.out
