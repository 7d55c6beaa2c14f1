"""The commands by themselves: fast help, durations, and every command's help with an example."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from click.testing import CliRunner

from ops.cli import register
from ops.cli.answers import Exit, plain
from ops.cli.stopping import duration, me
from ops.errors import NoDuration
from ops.status import Problem

ROOT = Path(__file__).parents[2]

HEAVY = (
    "celery",
    "redis",
    "kombu",
    "numpy",
    "torch",
    "sentence_transformers",
    "opensearchpy",
    "psycopg",
    "uvicorn",
    "starlette",
)

COMMANDS = [
    ("up",), ("embedder",), ("page",), ("status",), ("smoke",), ("sync",), ("search",), ("doctor",), ("migrate",),
    ("kill", "on"), ("kill", "off"), ("kill", "status"),
]  # fmt: skip


@pytest.fixture(scope="module")
def command():
    app = typer.Typer(rich_markup_mode=None)
    register(app)
    return typer.main.get_command(app)


@pytest.mark.parametrize(
    ("argv", "shows"),
    [
        (["--help"], "explain"),
        (["--help"], "doctor"),
        (["explain", "--help"], "Fire time"),
        (["schedule", "list", "--help"], "--json"),
        (["up", "--help"], "--corpus"),
    ],
)
def test_help_loads_nothing_heavy_of_the_library_or_the_application(argv, shows):
    """Celery and redis alone cost more than a second. Both halves: the library's own commands and the application's."""
    code = f"""
import contextlib, io, sys
from fencebeat.cli import main
with contextlib.redirect_stdout(io.StringIO()) as out:
    main({argv!r})
assert {shows!r} in out.getvalue(), out.getvalue()
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command, path):
    for name in path:
        command = command.commands[name]
    assert command.help
    assert command.epilog.startswith("Examples:")
    assert "fencebeat " in command.epilog


def test_there_are_no_other_commands(command):
    found = set()
    for name, one in command.commands.items():
        found |= {(name, inner) for inner in getattr(one, "commands", {})} or {(name,)}
    assert found == set(COMMANDS)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("1.5d", timedelta(days=1.5)),
        (None, None),
    ],
)
def test_durations_are_read(text, meant):
    assert duration(text) == meant


@pytest.mark.parametrize("text", ["", "2", "h", "2 weeks", "-1h", "0s", "1e3s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(NoDuration, match="90s, 30m, 2h or 1d"):
        duration(text)


def test_the_audit_names_a_user_and_a_host():
    user, _, host = me().partition("@")
    assert user
    assert host


def test_exit_codes_do_not_change():
    assert [code.value for code in Exit] == [0, 1, 2, 3, 4]


def test_dataclasses_are_answered_as_dictionaries():
    assert plain([Problem("kind", "says")]) == [{"kind": "kind", "says": "says", "since": None}]


def test_a_stop_needs_a_reason(command):
    assert CliRunner().invoke(command, ["kill", "on"]).exit_code == 2
