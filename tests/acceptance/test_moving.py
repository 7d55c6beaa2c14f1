"""The page `docs/moving.md`, followed word by word in somebody else's project."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fencebeat.clock import SystemClock
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "moving.md").read_text()
REDBEAT = json.loads((ROOT / "tests/unit/recorded/redbeat_of_a_project.json").read_text())
BIN = Path(sys.executable).parent
DAY = 86_400.0
PROJECT = """
import os
from celery import Celery
from celery.schedules import crontab

app = Celery("proj", broker=os.environ["REDIS_URL"])
app.conf.beat_schedule = {
    "heartbeat": {"task": "proj.heartbeat", "schedule": 1.0},
    "nightly": {"task": "proj.nightly", "schedule": crontab(hour=2, minute=30)},
}
"""


def commands(heading):
    """The shell commands under a heading of the page, in order."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "proj.py").write_text(PROJECT)
    return tmp_path


@pytest.fixture
def env(redis_url):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCEBEAT")}
    return {**clean, "REDIS_URL": redis_url, "COLUMNS": "160"}


@contextmanager
def running(line, project, env):
    """A command that stays; ended by SIGTERM, which it must obey."""
    with (project / "beat.log").open("ab") as log:
        process = subprocess.Popen(_words(line), cwd=project, env=env, stdout=log, stderr=log)
    try:
        yield process
        process.terminate()
        assert process.wait(20) == 0, (project / "beat.log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def _words(line):
    program, *rest = shlex.split(line)
    return [str(BIN / program), *rest]


def follow(heading, project, env, client, then=lambda: True):
    """Run the commands under a heading, the beat beside those after it until `then`; what each said, and since when."""
    said = {}
    before, (beat,), after = _parts(commands(heading))
    for line in before:
        said[line] = _run(line, project, env)
    began = SystemClock().wall()
    with running(beat, project, env):
        until(lambda: _ticks(client), at_most=60, what=f"a message, see {project / 'beat.log'}")
        for line in after:
            said[line] = _run(line, project, env)
        until(then, at_most=30, what=f"what should follow, see {project / 'beat.log'}")
    return said, began


def _parts(lines):
    at = next(place for place, line in enumerate(lines) if " beat " in line)
    return lines[:at], lines[at : at + 1], lines[at + 1 :]


def _run(line, project, env):
    done = subprocess.run(_words(line), cwd=project, env=env, capture_output=True, text=True, timeout=60, check=False)
    # `check` answers 3 for what would hurt later: the server of the tests keeps nothing on disk.
    assert done.returncode == 0 or (line.endswith(" check") and done.returncode == 3), (
        f"{line}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def _ticks(client, queue="celery"):
    """Entry and fire time (seconds) of our messages on a queue, oldest first."""
    headers = [json.loads(raw)["headers"] for raw in reversed(client.lrange(queue, 0, -1))]
    ours = [one for one in headers if "fencebeat_tick" in one]
    return [(one["fencebeat_entry"], one["fencebeat_fire_time"] / 1e6) for one in ours]


@pytest.mark.slow
def test_a_project_moves_from_celery_beat_by_one_setting(project, env, client) -> None:
    with running("celery -A proj beat --pidfile ''", project, env):
        until(lambda: client.llen("celery"), at_most=60, what="a message of celery beat")
    state = {path.name: path.read_bytes() for path in project.iterdir() if path.name.startswith("celerybeat-schedule")}
    assert state, "celery beat left no state: the page has nothing to move from"
    files = (project / "proj.py").read_bytes()

    said, began = follow("From celery beat", project, env, client)

    assert (project / "proj.py").read_bytes() == files
    assert {name: (project / name).read_bytes() for name in state} == state  # neither read nor written any more
    ticks = _ticks(client)
    assert {entry for entry, _ in ticks} - {"nightly"} == {"heartbeat"}  # 02:30 may come while this runs
    assert all(at == round(at) and at > began - 1 for _, at in ticks)  # counted from the epoch, and never for the past
    assert len(set(ticks)) == len(ticks)
    shown = said["fencebeat -A proj schedule list"]
    assert "heartbeat" in shown
    assert "30 2 * * *" in shown
    assert "token" in said["fencebeat -A proj leader show"]


@pytest.mark.slow
def test_a_project_moves_from_redbeat_with_the_entries_made_at_run_time(project, env, client) -> None:
    for key, fields in REDBEAT["hashes"].items():
        client.hset(key, mapping=fields)
    for key, members in REDBEAT["sets"].items():
        client.sadd(key, *members)
    for key, scores in REDBEAT["sorted sets"].items():
        client.zadd(key, scores)
    records = dump(client)

    lines = commands("From RedBeat")
    shown = _run(lines[0], project, env)
    assert dump(client) == records
    assert client.keys("fencebeat:*") == []

    def caught_up():
        return _ticks(client, "feeds") and any(entry == "report" for entry, _ in _ticks(client))

    said, began = follow("From RedBeat", project, env, client, then=caught_up)

    assert "3 of 3 would be added" in shown  # all that were made at run time; the others are in the configuration
    assert "3 of 3 added" in said[lines[2]]
    assert dump(client) == records
    last_run = datetime(2026, 12, 1, 0, 5, 18, tzinfo=UTC).timestamp()
    missed = [at for entry, at in _ticks(client, "feeds") if entry == "poll" and at < began - 2]
    assert missed == []  # of all the ticks missed since its last run, only the newest
    polls = [at for entry, at in _ticks(client, "feeds") if entry == "poll"]
    assert polls
    assert all((at - last_run) % 2 == 0 for at in polls)  # in the rhythm it had
    entries = {entry for entry, _ in _ticks(client)}
    assert entries - {"nightly"} == {"heartbeat", "report"}  # `nightly` is new here: it has missed nothing
    reports = [at for entry, at in _ticks(client) if entry == "report"]
    assert reports[0] % DAY == 2.5 * 3600, "02:30, as it was"
    assert began - DAY < reports[0]
    assert len(reports) == 1 or reports[1:] == [reports[0] + DAY]  # 02:30 may come while this runs
    listed = said["fencebeat -A proj schedule list"]
    assert all(name in listed for name in ("heartbeat", "nightly", "poll", "report", "off"))
    assert client.hexists("fencebeat:paused", "off")


def dump(client):
    return {key: client.dump(key) for key in sorted(client.scan_iter("redbeat:*"))}


def test_the_page_has_the_commands_that_are_run():
    """The tests above would pass on a page from which nothing was read."""
    assert len(commands("From celery beat")) == 4
    assert len(commands("From RedBeat")) == 5
