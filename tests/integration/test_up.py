"""`fencebeat up` as a process: it ends in order, leaves nothing, refuses clearly; a second run has nothing to do."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.services import postgres
from tests.support.processes_seen import family, wait_until_gone
from tests.support.servers import unique
from tests.support.waiting import until

FENCEBEAT = Path(sys.executable).with_name("fencebeat")
NAMES = ("embedder", "beat-1", "beat-2", "worker", "page", "flower", "valkey", "postgres")


@pytest.fixture(name="environ")
def _environ():
    """An environment in which nothing is set up yet, and pgvector is the target."""
    servers = ("REDIS_URL", "POSTGRES_URL", "OPENSEARCH_URL", "ETCD_URL")
    kept = {name: value for name, value in os.environ.items() if name not in servers and "FENCEBEAT" not in name}
    return {**kept, "FENCEBEAT_TARGET": "pgvector", "NO_COLOR": "1"}


@pytest.fixture(name="state")
def _state(tmp_path):
    yield tmp_path / "state"
    postgres.remove(tmp_path / "state")


@pytest.fixture(name="corpus")
def _corpus(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "lease.md").write_text("# How long a lease lasts\n\nA lease ends by itself after five seconds.\n")
    (folder / "switch.md").write_text("# The kill switch\n\nIt stops all writers within two seconds.\n")
    return folder


class Up:
    """A running `fencebeat up --json`."""

    def __init__(self, corpus, state, environ, *options):
        argv = [FENCEBEAT, "up", "--json", "--corpus", corpus, "--state-dir", state, *options]
        self.said = (state.parent / "said").open("ab+")
        self.process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=self.said)

    def fact(self):
        """The next fact on its output, None at its end."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def everyone(self):
        """All processes of this run, the keeper and the servers included."""
        return family(self.process.pid)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        self.said.close()


@contextlib.contextmanager
def _up(*args):
    run = Up(*args)
    try:
        yield run
    finally:
        run.close()


@pytest.mark.timeout(300)
def test_a_killed_make_leaves_no_process(corpus, state, environ):
    """As `make run` starts it: make dies of SIGKILL and cannot tell its child."""
    makefile = state.parent / "Makefile"
    makefile.write_text(f"run:\n\t@exec {FENCEBEAT} up --json --with-parent --corpus {corpus} --state-dir {state}\n")
    with (state.parent / "said").open("ab") as said:
        argv = ["make", "--no-print-directory", "-f", makefile, "run"]
        outside = {name: value for name, value in environ.items() if not name.startswith("MAKE")}  # no make above it
        make = subprocess.Popen(argv, env=outside, stdout=subprocess.PIPE, stderr=said)
        try:
            assert json.loads(make.stdout.readline())["fact"] == "started", (state.parent / "said").read_text()
            everyone = family(make.pid)
            assert len(everyone) > len(NAMES)
        finally:
            make.kill()
            make.wait(10)
            make.stdout.close()
    wait_until_gone(everyone, at_most=90)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_however_it_ends_no_process_stays(corpus, state, environ, number):
    with _up(corpus, state, environ) as run:
        started = run.fact()
        assert started["fact"] == "started", (state.parent / "said").read_text()
        everyone = run.everyone()
        assert len(everyone) > len(NAMES)
        run.process.send_signal(number)
        code = run.process.wait(120)
    wait_until_gone(everyone, at_most=90)
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)


@pytest.mark.timeout(300)
def test_a_killed_process_is_started_again(corpus, state, environ):
    with _up(corpus, state, environ) as run:
        assert run.fact()["fact"] == "started"
        flower = _pid_of(run, "flower")
        os.kill(flower, signal.SIGKILL)
        assert until(lambda: _pid_of(run, "flower") not in (None, flower), at_most=60)
        everyone = run.everyone()
        said = until(lambda: "flower ended with code -9; again in" in (state.parent / "said").read_text())
        assert said
    wait_until_gone(everyone, at_most=90)


@pytest.mark.timeout(300)
def test_commands_in_another_terminal_find_its_servers(corpus, state, environ):
    with _up(corpus, state, environ) as run:
        assert run.fact()["fact"] == "started", (state.parent / "said").read_text()
        assert (state / "env").stat().st_mode & 0o777 == 0o600
        argv = ["sh", "-c", f". {state}/env; {FENCEBEAT} status --json"]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
        status = json.loads(done.stdout)
        assert status["ledger_answered"], done.stdout
        assert [source["source_id"] for source in status["sources"]] in ([], ["notes"])
        everyone = run.everyone()
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(120) == 0
        assert not (state / "env").exists()
    wait_until_gone(everyone, at_most=90)


def _pid_of(run, word):
    for pid, _ in run.everyone():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word.encode() in command and b"tasks" in command:
                return pid
    return None


@pytest.mark.timeout(300)
def test_a_second_up_on_the_same_state_is_refused(corpus, state, environ):
    with _up(corpus, state, environ) as run:
        until((state / "up.lock").exists, at_most=60)
        until(lambda: (state / "up.lock").read_text().strip(), at_most=60)
        again = [FENCEBEAT, "up", "--corpus", corpus, "--state-dir", state]
        second = subprocess.run(again, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 4
        assert f"(process {run.process.pid})" in second.stderr
        everyone = run.everyone()
    wait_until_gone(everyone, at_most=90)


def test_a_missing_corpus_is_refused_before_anything_starts(state, environ, tmp_path):
    argv = [FENCEBEAT, "up", "--corpus", tmp_path / "nowhere", "--state-dir", state]
    result = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 4
    assert "nowhere cannot be read: No such file or directory" in " ".join(result.stderr.split())
    assert not state.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_once_ends_when_the_index_equals_its_sources_and_a_second_run_does_nothing(
    corpus, state, environ, opensearch_url
):
    """On OpenSearch, by the embedder's own log and OpenSearch's own counter. A file that cannot be read stays out."""
    here = {"FENCEBEAT_TARGET": "opensearch", "OPENSEARCH_URL": opensearch_url, "FENCEBEAT_INDEX_PREFIX": unique("up")}
    for _ in range(2):
        with _up(corpus, state, environ | here, "--once") as run:
            assert run.fact()["fact"] == "started", (state.parent / "said").read_text()
            equal = run.fact()
            assert run.process.wait(120) == 0, (state.parent / "said").read_text()
        assert (equal["documents"], equal["differences"], equal["dead"]) == (2, 0, 0)
        assert equal["answer"]["doc_uid"] == "notes/lease.md"
        assert equal["question"] == "How long a lease lasts"
        assert equal["first_hit_seconds"] > 0
        if _ == 0:
            assert equal["embeddings"] == equal["writes"] == equal["chunks"] > 0
    assert (equal["embeddings"], equal["writes"]) == (0, 0)
    shutil.rmtree(state)
