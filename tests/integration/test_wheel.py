"""The library alone: its wheel in a new environment beside a foreign project, which has its own `tasks` package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from fencebeat import history

ROOT = Path(__file__).parents[2]

PROJECT = {
    "proj/__init__.py": "",
    "proj/celery.py": """
import os
from celery import Celery

app = Celery("proj", broker=os.environ["REDIS_URL"], include=["tasks"])
app.conf.update(
    fencebeat_namespace="proj",
    fencebeat_lease=2.0,
    task_default_queue="proj-queue",
    beat_schedule={"theirs": {"task": "tasks.theirs", "schedule": 1.0, "kwargs": {"n": 1}}},
)
""",
    "tasks/__init__.py": """
from proj.celery import app


@app.task(name="tasks.theirs", time_limit=7)
def theirs(n):
    return n
""",
}


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=150, check=False, **options
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the wheel and its [cli] extra, and nothing of this repository on its path."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv is not None, "uv is part of the development environment"
    source = folder / "source"
    shutil.copytree(ROOT / "beat", source, ignore=shutil.ignore_patterns("__pycache__"))
    run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, source)
    (wheel,) = folder.glob("fencebeat-*.whl")
    run(uv, "venv", "--quiet", "--python", sys.executable, folder / "env")
    python = folder / "env" / "bin" / "python"
    pins = ROOT / "requirements" / "run.txt"
    constraint = folder / "constraints.txt"
    constraint.write_text(
        "\n".join(line.split(" ")[0] for line in pins.read_text().splitlines() if "==" in line and line[0].isalnum())
    )
    run(uv, "pip", "install", "--quiet", "--python", python, "-c", constraint, f"fencebeat[cli] @ file://{wheel}")
    return folder / "env"


@pytest.fixture
def project(tmp_path):
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_foreign_project_runs_its_schedule_fenced_by_the_wheel(environment, project, redis_url) -> None:
    lines = project / "history.jsonl"
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FENCEBEAT", "VIRTUAL"))
    }
    env = {**clean, "REDIS_URL": redis_url, "FENCEBEAT_HISTORY": str(lines), "FENCEBEAT_PROC": "theirs"}
    beat = subprocess.Popen(
        [environment / "bin" / "celery", "-q", "-A", "proj", "beat", "-S", "fencebeat", "--pidfile", ""],
        cwd=project,
        env=env,
    )
    client = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=60, socket_connect_timeout=5)
    try:
        messages = [json.loads(client.brpop(["proj-queue"], timeout=45)[1]) for _ in range(3)]
        story = run(
            environment / "bin" / "fencebeat",
            *(
                "-A",
                "proj",
                "explain",
                "theirs",
                str(messages[0]["headers"]["fencebeat_fire_time"] // 1_000_000),
                "--json",
            ),
            cwd=project,
            env=env,
        )
        leader = json.loads(
            run(environment / "bin" / "fencebeat", "-A", "proj", "leader", "show", "--json", cwd=project, env=env)
        )
        # another term takes over behind its back: what it sends from now on is refused
        client.hset("proj:term", mapping={"token": leader["token"] + 1, "nonce": "somebody else"})
        client.set("lock:proj:leader", "somebody else", px=1500)
        while messages[-1]["headers"]["fencebeat_token"] == leader["token"]:
            messages.append(json.loads(client.brpop(["proj-queue"], timeout=45)[1]))
    finally:
        beat.terminate()
        beat.wait(20)
        client.close()
    assert beat.returncode == 0
    headers = [message["headers"] for message in messages]
    assert {header["task"] for header in headers} == {"tasks.theirs"}
    assert {tuple(header["timelimit"]) for header in headers} == {(7, None)}  # of the foreign `tasks` package
    fire_times = [header["fencebeat_fire_time"] for header in headers]
    assert len(set(fire_times)) == len(fire_times)
    assert fire_times == sorted(fire_times)
    assert headers[-1]["fencebeat_token"] > leader["token"] + 1
    assert json.loads(story)["outcome"] == "emitted"
    assert json.loads(story)["token"] == headers[0]["fencebeat_token"]
    ends = [
        line for line in history.read(lines) if line.get("event") in ("term.lost", "fence.rejected", "term.refused")
    ]
    assert ends, "the beat never noticed that its term was over"


@pytest.mark.timeout(300)
def test_the_wheel_brings_nothing_of_the_application(environment) -> None:
    python = environment / "bin" / "python"
    names = ("tasks", "control", "index", "ops", "config", "opensearchpy", "psycopg", "torch")
    code = f"import importlib.util as u; print([n for n in {names!r} if u.find_spec(n)])"
    assert run(python, "-I", "-c", code).strip() == "[]"


@pytest.mark.timeout(300)
def test_the_command_says_which_application_it_misses(environment, tmp_path) -> None:
    result = subprocess.run(
        [environment / "bin" / "fencebeat", "leader", "show"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert result.returncode == 4
    assert "fencebeat -A proj" in result.stderr
