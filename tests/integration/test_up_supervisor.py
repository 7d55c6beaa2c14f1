"""The supervisor: an unasked end is told and mended; a hopeless process is named; at the end nothing is started."""

import os
import queue
import signal
import sys

import pytest

from ops import supervise
from ops.services import Keeper
from ops.services.errors import ProcessFailed
from ops.supervise import Supervisor
from tests.support.waiting import until


@pytest.fixture(name="told")
def _told():
    return queue.Queue()


@pytest.fixture(name="supervisor")
def _supervisor(keeper_and_supervisor):
    return keeper_and_supervisor[1]


@pytest.fixture(name="keeper_and_supervisor")
def _keeper_and_supervisor(tmp_path, told, monkeypatch):
    monkeypatch.setattr(supervise, "FIRST_PAUSE", 0.01)
    supervisor = Supervisor(told.put)
    with Keeper(tmp_path / "keeper.log", supervisor.on_end) as keeper:
        supervisor.attach(keeper)
        yield keeper, supervisor
        supervisor.release()


@pytest.fixture(name="run")
def _run(keeper_and_supervisor, tmp_path):
    keeper, supervisor = keeper_and_supervisor

    def run(code):
        child = keeper.start("one", [sys.executable, "-c", code], log=tmp_path / "one.log", cwd=tmp_path, grace=1)
        supervisor.adopt(child)
        return child

    return run


_COUNT = "open('starts','a').write('x');print('said last', flush=True);"


def test_a_killed_process_is_started_again_and_told(supervisor, run, told, tmp_path):
    child = run(_COUNT + "import signal;signal.pause()")
    until((tmp_path / "starts").exists)
    os.kill(child.pid, signal.SIGKILL)
    assert told.get(timeout=10).startswith("one ended with code -9; again in 0.01 s. Its last line: said last")
    until(lambda: (tmp_path / "starts").read_text() == "xx")
    assert supervisor.restarts == 1
    supervisor.check()


def test_pauses_grow_and_a_hopeless_process_is_named(supervisor, run, told, tmp_path):
    run(_COUNT + "raise SystemExit('broken')")
    pauses = [told.get(timeout=10).split("again in ")[1].split(" s")[0] for _ in range(supervise.HOPELESS)]
    assert pauses == ["0.01", "0.02", "0.04", "0.08", "0.16", "0.32"]
    with pytest.raises(ProcessFailed, match=r"(?s)one ended \d+ times in a row, the last time with code 1.*broken"):
        supervisor.check()


def test_one_that_ran_long_enough_has_its_short_pause_back(run, told, monkeypatch):
    run("raise SystemExit(1)")
    told.get(timeout=10)
    monkeypatch.setattr(supervise, "STEADY_SECONDS", 0.0)
    until(lambda: "again in 0.01 s" in told.get(timeout=10))


def test_after_release_nothing_is_started_again(supervisor, run, told, tmp_path):
    child = run(_COUNT + "import signal;signal.pause()")
    until((tmp_path / "starts").exists)
    supervisor.release()
    os.kill(child.pid, signal.SIGKILL)
    assert child.ended.wait(10)
    assert told.empty()
    assert (tmp_path / "starts").read_text() == "x"
