"""What users get wrong: each mistake ends with what, why and what to do, with its exit code, and loses nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.commands import fencebeat
from tests.support.processes import environment
from tests.support.servers import absent, database

ROOT = Path(__file__).parents[2]
WRONG = "not-the-password"

PAGES = {
    "a.md": "# Alpha\n\nThe first page is about alpha.\n",
    "b.md": "# Beta\n\nThe second page is about beta.\n",
}


@pytest.fixture
def world(make_world, tmp_path):
    """Two pages, indexed."""
    root = tmp_path / "docs"
    root.mkdir()
    for name, text in PAGES.items():
        (root / name).write_text(text)
    made = make_world(root, "pgvector")
    made.refresh_world()
    made.root = root
    return made


def assert_nothing_lost(world):
    progress = world.ledger.progress(world.services.spec.target_id)
    assert (progress.documents, progress.indexed, progress.absent, progress.dead) == (2, 2, 0, 0)
    assert world.doctor().differences == 0
    assert {row[0] for row in world.live()} == {"docs/a.md", "docs/b.md"}


def assert_says(answer, code, *parts):
    assert answer.code == code, answer
    for part in parts:
        assert part in answer.err, answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_a_missing_folder_deletes_nothing(world):
    moved = world.root.rename(world.root.with_name("moved"))

    answer = fencebeat(world, "sync", "docs")
    status = fencebeat(world, "status", "--json")

    assert_says(answer, 1, "Source docs cannot be read", "Nothing was deleted or changed", "the place exists")
    assert any("Source acme/docs could not be listed" in sentence for sentence in says(status))
    moved.rename(world.root)
    assert_nothing_lost(world)


@pytest.fixture
def denied(postgres_url):
    """Words before a command that make closed folders closed for it: root reads everything, unless it gives that up."""
    if os.getuid() != 0:
        yield ()
        return
    if shutil.which("setpriv") is None:
        absent("root reads every file; `setpriv` (util-linux), which takes that right from a command, is not here")
    folder = Path(conninfo_to_dict(postgres_url)["host"])
    mode = folder.stat().st_mode
    if folder.is_absolute():
        folder.chmod(mode | 0o011)  # the server's socket is another user's, and closed to whoever is not almighty
    yield ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
    folder.chmod(mode)


def test_a_folder_without_permission_deletes_nothing(world, denied):
    world.root.chmod(0)
    try:
        answer = fencebeat(world, "sync", "docs", before=denied)
    finally:
        world.root.chmod(0o755)

    assert answer.code == 3, answer
    assert "not listed: .: permission denied" in answer.out
    assert "so nothing was deleted. Mend what is named and sync again." in answer.out
    assert_nothing_lost(world)


def test_a_file_without_permission_keeps_its_old_version(world, denied):
    closed, open_ = world.root / "b.md", world.root / "a.md"
    closed.write_text("# Beta\n\nA newer text that the product may not read.\n")
    closed.chmod(0)
    open_.write_text("# Alpha\n\nA newer text for everybody.\n")

    assert fencebeat(world, "sync", "docs", "--no-wait", before=denied).code == 0
    run_batches(world, denied)

    (letter,) = world.ledger.dead_letters(world.services.spec.target_id)
    assert letter["doc_uid"] == "docs/b.md"
    assert "may not be read" in letter["reason"]
    assert "Grant permission" in letter["reason"]
    texts = live_texts(world)
    assert "second page" in texts["docs/b.md"], "the old version stays"
    assert "newer text" in texts["docs/a.md"], "the others go on"
    assert "1 documents failed for good: 1 DocumentUnreadable." in says(fencebeat(world, "status", "--json"))

    closed.chmod(0o644)  # granted: it is tried again, and nothing has to be retried by hand
    world.refresh_world()
    assert "may not read" in live_texts(world)["docs/b.md"]
    assert world.ledger.dead_letters(world.services.spec.target_id) == []


def run_batches(world, before):
    command = [*before, sys.executable, "-m", "tests.support.run_batches"]
    subprocess.run(command, env=environment(world), cwd=ROOT, check=True, timeout=120, capture_output=True)


def live_texts(world):
    """What readers may see, by document: the text of its chunk."""
    return {row[0]: row[7] for row in world.live()}


def says(answer):
    """The problems in the answer of `status --json`."""
    return [problem["says"] for problem in json.loads(answer.out)["problems"]]


def test_a_file_with_nul_bytes_is_indexed_without_them(world):
    (world.root / "c.md").write_bytes(b"# Gam\0ma\n\nThe third page\0 is about gamma.\n")

    world.refresh_world()

    texts = live_texts(world)
    assert set(texts) == {"docs/a.md", "docs/b.md", "docs/c.md"}
    assert "The third page is about gamma." in texts["docs/c.md"]
    found = json.loads(fencebeat(world, "search", "gamma", "--tenant", "acme", "--limit", "1", "--json").out)
    assert [hit["doc_uid"] for hit in found["hits"]] == ["docs/c.md"]
    assert world.doctor().differences == 0


@pytest.fixture
def wrong_redis(redis_url, redis_client):
    """The same Redis under a user whose password is another one."""
    redis_client.execute_command("ACL", "SETUSER", "locked", "on", ">the-right-one", "~*", "&*", "+@all")
    yield redis_url.replace("://", f"://locked:{WRONG}@")
    redis_client.execute_command("ACL", "DELUSER", "locked")


@pytest.mark.parametrize("command", [("leader", "show"), ("kill", "status"), ("schedule", "list")])
def test_a_wrong_redis_password_is_named_and_not_shown(world, wrong_redis, command):
    answer = fencebeat(world, *command, REDIS_URL=wrong_redis)

    assert answer.code in (1, 3), answer
    assert "Redis did not answer" in answer.err + answer.out
    assert "username-password" in answer.err + answer.out
    assert WRONG not in answer.err + answer.out
    assert "Traceback" not in answer.err
    assert_nothing_lost(world)


def test_a_stop_holds_although_redis_refuses_us(world, wrong_redis):
    """The switch is set where commits are checked, and the command says what is missing."""
    answer = fencebeat(world, "kill", "on", "--reason", "a test", "--json", REDIS_URL=wrong_redis)

    assert answer.code == 3, answer
    assert "Redis did not answer" in json.loads(answer.out)["problem"]
    (stop,) = world.services.switches.status()
    assert (stop.scope, stop.level, stop.reason) == ("all", "write", "a test")
    (world.root / "a.md").write_text("# Alpha\n\nText that must not be committed.\n")
    world.refresh_world()
    assert "must not be committed" not in str(world.live())


@pytest.mark.parametrize(
    "command",
    [("sync", "docs"), ("search", "beta", "--tenant", "other"), ("doctor",), ("migrate",), ("kill", "status")],
    ids=lambda command: command[0],
)
def test_an_unreachable_postgres_is_named_and_not_its_password(world, command):
    answer = fencebeat(world, *command, POSTGRES_URL=f"postgresql://app:{WRONG}@127.0.0.1:1/ledger")

    assert_says(answer, 1, "Postgres did not answer within", "Nothing was assumed or changed", "127.0.0.1:1/ledger")
    assert WRONG not in answer.err
    assert_nothing_lost(world)


def test_a_status_with_every_store_gone_still_answers(world):
    answer = fencebeat(
        world,
        "status",
        "--json",
        POSTGRES_URL=f"postgresql://app:{WRONG}@127.0.0.1:1/ledger",
        REDIS_URL=f"redis://:{WRONG}@127.0.0.1:1/0",
        EMBEDDER_URL="unix:///nowhere/embedder.sock",
    )

    assert answer.code == 3, answer
    kinds = {problem["kind"] for problem in json.loads(answer.out)["problems"]}
    assert {"scheduler", "ledger", "embedder"} <= kinds
    assert WRONG not in answer.out + answer.err


def test_an_unknown_tenant_is_refused_and_the_known_ones_are_named(world):
    for command in (("search", "beta"), ("doctor",)):
        answer = fencebeat(world, *command, "--tenant", "nobody")
        assert_says(answer, 4, "There is no tenant nobody", "Nothing was searched", "Name one of: acme")


def test_a_search_without_a_tenant_is_no_search(world):
    assert_says(fencebeat(world, "search", "beta"), 2, "--tenant")


def test_an_unknown_entry_is_refused(world):
    answer = fencebeat(world, "explain", "no-such-entry", "2026-01-01T00:00:00Z")
    assert_says(answer, 2, "There is no entry no-such-entry", "fencebeat schedule list")


def test_an_unknown_source_is_refused(world):
    assert_says(fencebeat(world, "sync", "no-such-source"), 4, "There is no source", "no-such-source", "docs")
    assert_nothing_lost(world)


def test_an_unknown_command_is_a_usage_error(world):
    assert_says(fencebeat(world, "explode"), 2, "No such command", "--help")


def test_an_empty_database_asks_for_a_migration(world, postgres_url):
    with database(postgres_url) as empty:
        answer = fencebeat(world, "kill", "status", POSTGRES_URL=empty)
        migrated = fencebeat(world, "migrate", "--json", POSTGRES_URL=empty)
        after = fencebeat(world, "kill", "status", POSTGRES_URL=empty)

    assert_says(answer, 4, "has no schema", "fencebeat migrate")
    assert migrated.code == 0, migrated
    assert after.code == 0, after


@pytest.mark.parametrize(
    "command", [("sync", "no-such-source"), ("search", "beta", "--tenant", "nobody"), ("explode",)]
)
def test_an_error_is_json_where_json_was_asked_for(world, command):
    answer = fencebeat(world, *command, "--json")

    said = json.loads(answer.out)
    assert said["error"]
    assert said["message"]
    assert answer.code in (2, 4)


def test_repair_is_refused_with_a_reason(world):
    assert_says(
        fencebeat(world, "doctor", "--repair"),
        4,
        "--repair is refused",
        "Nothing was changed",
        "FENCEBEAT_INDEX_PREFIX",
    )
    assert_nothing_lost(world)
