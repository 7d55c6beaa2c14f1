"""What an operator watches: `inspect ping`, Flower's API, and one trace from the tick to the commit."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from ops.services.launch import free_ports
from tests.support.processes import Process, environment, worker
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def running(make_world, tmp_path):
    """A world with a beat, a worker and Flower as real processes; nothing is indexed yet."""
    root = tmp_path / "docs"
    root.mkdir()
    (root / "a.md").write_text("# Alpha\n\nA page about the way of a tick.\n")
    world = make_world(root, "pgvector", sync_seconds=1.0, sweep_seconds=3.0)
    world.page, world.rewritten = root / "a.md", 0
    world.trace = world.settings.state_dir / "trace.jsonl"
    world.flower = f"http://127.0.0.1:{next(free_ports())}"
    env = {"FENCEBEAT_TRACE_FILE": str(world.trace), "FENCEBEAT_LOG_JSON": "1", "FLOWER_UNAUTHENTICATED_API": "true"}
    celery = [sys.executable, "-m", "celery", "-A", "tasks"]
    port = world.flower.rpartition(":")[2]
    with ExitStack() as stack:
        flower = [*celery, "flower", "--address=127.0.0.1", f"--port={port}"]
        stack.enter_context(Process(world, "flower", flower, **env))
        world.worker = stack.enter_context(worker(world, "watched", **env))
        beat = [*celery, "beat", "-S", "fencebeat", "--pidfile", "", "--schedule", str(tmp_path / "schedule")]
        stack.enter_context(Process(world, "beat", beat, **env))
        yield world


def spans(world):
    """Every span so far, by id."""
    if not world.trace.exists():
        return {}
    return {span["span_id"]: span for span in map(json.loads, world.trace.read_text().splitlines())}


def way_to_the_tick(known, span):
    """Names from this span up to its root."""
    names = [span["name"]]
    while (span := known.get(span["parent_id"])) is not None:
        names.append(span["name"])
    return names


def committed_way(world):
    """The way from a commit in the batch that wrote the page up to its root, once every span of it is there."""
    known = spans(world)
    for span in known.values():
        if span["name"] == "commit":
            names = {s["name"] for s in known.values() if s["trace_id"] == span["trace_id"]}
            way = way_to_the_tick(known, span)
            from_sync = way[-1] == "tick" and "run/tasks.sync_source" in way
            if from_sync and {"sync", "document", "embed", "bulk"} <= names:
                return way, span["trace_id"]
    commits = sum(span["name"] == "commit" for span in known.values())
    if commits > world.rewritten:  # a sweep was faster than the sync's own wake-up: once more
        world.rewritten = commits
        world.page.write_text(f"# Again\n\nThe text number {commits}, for a commit on its way from a sync.\n")
    return None


def test_one_trace_reaches_from_the_tick_to_the_commit(running):
    way, trace_id = until(lambda: committed_way(running), at_most=150, what="a trace from tick to commit")

    assert way[-1] == "tick"
    assert "run/tasks.sync_source" in way
    assert "run/tasks.index_documents" in way
    known = [span for span in spans(running).values() if span["trace_id"] == trace_id]
    (tick,) = [span for span in known if span["name"] == "tick"]
    assert tick["attributes"]["fencebeat.entry"] == "sync-docs"
    documents = [span for span in known if span["name"] == "document"]
    assert documents[0]["attributes"]["fencebeat.doc_uid"] == "docs/a.md"
    lines = [json.loads(line) for line in running.worker.log.read_text().splitlines() if line.startswith("{")]
    said = [line for line in lines if line.get("event") == "document.committed"]
    assert trace_id in [line["trace_id"] for line in said if line["doc_uid"] == "docs/a.md"]


def test_workers_answer_a_ping_and_flower_lists_them_with_their_tasks(running):
    def pong():
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tasks", "inspect", "ping", "--timeout", "2", "--json"],
            env=environment(running),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    assert until(pong, at_most=120, what="a ping answered") == {"watched@test": {"ok": "pong"}}
    assert until(lambda: _workers(running.flower), at_most=120, what="Flower listing the worker") == ["watched@test"]
    wanted = {"tasks.sync_source", "tasks.index_documents", "tasks.sweep"}
    until(lambda: wanted <= _tasks(running.flower), at_most=60, what="Flower listing the tasks by name")


def _workers(flower):
    answer = _get(f"{flower}/api/workers?refresh=1")
    return sorted(answer) if answer else None


def _tasks(flower):
    answer = _get(f"{flower}/api/tasks?limit=1000") or {}
    return {task["name"] for task in answer.values()}


def _get(url):
    try:
        answer = httpx.get(url, timeout=10)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.is_success else None
