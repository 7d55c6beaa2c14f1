"""A real prefork worker with `config.workers.watch`: one trace over two tasks, bound logs, shared metrics."""

import json
import os
import signal
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest
from celery import Celery

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]

APP = """
import logging
from celery import Celery
import structlog
from config import events, telemetry, workers
from config.logging import bound

app = Celery("watched", broker={broker!r})
app.conf.broker_connection_retry_on_startup = True
workers.watch()

@app.task(name="first")
def first():
    with telemetry.span("sync", source="docs"):
        second.apply_async()

@app.task(name="second")
def second():
    with telemetry.span("document", doc_uid="a.md"), bound(doc_uid="a.md", epoch=4):
        logging.getLogger("library").warning("looked at redis://:{secret}@h/0")
        events.emit(events.TOMBSTONES_PURGED, purged=2, target="t")
"""

SECRET = "n0t-for-logs"


def outside():
    """The environment without what a metric counted in this process has put into it."""
    return {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}


@pytest.fixture
def worker(redis_url, tmp_path):
    """A worker of the application above; gives its Celery app and the folder with its files."""
    (tmp_path / "watched.py").write_text(APP.format(broker=redis_url, secret=SECRET))
    log = (tmp_path / "worker.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "watched", "worker", "-c", "1", "--without-gossip", "--without-mingle"],
        cwd=tmp_path,
        env=outside()
        | {
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "FENCEBEAT_STATE_DIR": str(tmp_path / "state"),
            "FENCEBEAT_TRACE_FILE": str(tmp_path / "trace.jsonl"),
            "FENCEBEAT_LOG_JSON": "1",
            "FENCEBEAT_TESTING": "1",
            "REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1/0",  # a secret this worker knows, and must not say
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        with Celery("client", broker=redis_url) as client:
            yield client, tmp_path
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
        log.close()


def read_spans(folder):
    path = folder / "trace.jsonl"
    return {s["name"]: s for s in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def finished(folder):
    """The spans, once the last one of both tasks is there."""
    spans = read_spans(folder)
    return spans if "run/second" in spans and "apply_async/second" in spans and "run/first" in spans else None


def test_one_trace_reaches_from_the_tick_to_the_work_of_the_second_task(worker):
    client, folder = worker
    trace_id, tick_span, tick_id = uuid.uuid4().hex, uuid.uuid4().hex[:16], str(uuid.uuid4())

    client.send_task(
        "first",
        headers={
            "traceparent": f"00-{trace_id}-{tick_span}-01",
            "fencebeat_tick": tick_id,
            "fencebeat_entry": "docs",
            "fencebeat_fire_time": 1_767_225_600_000_000,
            "fencebeat_token": 17,
        },
    )

    spans = until(partial(finished, folder), at_most=60)
    path = ["tick", "run/first", "sync", "apply_async/second", "run/second", "document"]
    assert {spans[name]["trace_id"] for name in path} == {trace_id}
    assert [spans[name]["parent_id"] for name in path] == [None, *(spans[name]["span_id"] for name in path[:-1])]
    assert spans["tick"]["span_id"] == tick_span
    assert spans["tick"]["attributes"]["fencebeat.token"] == 17
    assert spans["tick"]["start"] == 1_767_225_600.0

    log = (folder / "worker.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    said = next(line for line in lines if line["event"].startswith("looked at"))
    assert (said["doc_uid"], said["epoch"], said["task"], said["trace_id"]) == ("a.md", 4, "second", trace_id)
    assert SECRET not in log
    ran = next(line for line in lines if line["event"] == "tombstones.purged")
    assert (ran["purged"], ran["task"]) == (2, "second")

    metrics = subprocess.run(
        [sys.executable, "-c", "import sys; from config.metrics import text; sys.stdout.buffer.write(text())"],
        env=outside() | {"PYTHONPATH": str(ROOT), "FENCEBEAT_STATE_DIR": str(folder / "state")},
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout.decode()
    assert 'fencebeat_tombstones_purged_total{target="t"} 1.0' in metrics


def test_a_task_of_no_tick_starts_a_trace_of_its_own(worker):
    client, folder = worker

    client.send_task("first")

    spans = until(partial(finished, folder), at_most=60)
    assert "tick" not in spans
    assert spans["run/first"]["trace_id"] == spans["document"]["trace_id"]
