"""The keeper: starts, reports, stops in order, and ends what it holds however its owner ends."""

import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencebeat.clock import system_clock
from ops.services import Keeper
from ops.services.errors import KeeperLost
from ops.services.keeper import _Kept, _Loop
from tests.support.processes_seen import family, identity, wait_until_gone

_READY = "import signal,sys,time;{};open(sys.argv[1],'w').close();signal.pause()"


@pytest.fixture(name="ends")
def _ends():
    return queue.Queue()


@pytest.fixture(name="keeper")
def _keeper(tmp_path, ends):
    keeper = Keeper(tmp_path / "keeper.log", ends.put)
    yield keeper
    keeper.close(30)
    wait_until_gone({seen for seen in [identity(keeper.pid)] if seen})


@pytest.fixture(name="run")
def _run(keeper, tmp_path):
    def run(name, prepare="pass", **options):
        """A process that has run `prepare` and waits."""
        mark = tmp_path / f"{name}.ready"
        child = keeper.start(
            name, [sys.executable, "-c", _READY.format(prepare), mark], log=tmp_path / f"{name}.log", **options
        )
        while not mark.exists():
            assert not child.ended.wait(0.01), child.tail()
        return child

    return run


def test_an_end_is_reported_with_its_code_and_the_log(keeper, ends, tmp_path):
    child = keeper.start("one", [sys.executable, "-c", "print('words'); raise SystemExit(7)"], log=tmp_path / "one.log")
    assert ends.get(timeout=20) is child
    assert (child.code, child.tail()) == (7, "words")


def test_a_program_that_does_not_exist_is_refused(keeper, tmp_path):
    with pytest.raises(OSError, match="cannot be started"):
        keeper.start("none", [tmp_path / "nowhere"], log=tmp_path / "none.log")


def test_two_running_processes_do_not_share_a_name(run):
    first = run("same")
    with pytest.raises(ValueError, match=f"process {first.pid}"):
        run("same")


def test_a_name_is_free_again_after_its_end(keeper, run):
    first = run("same")
    keeper.stop(first, 20)
    assert run("same").pid != first.pid


def test_each_process_leads_a_session_of_its_own(run):
    child = run("one")
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_the_keeper_is_out_of_reach_of_the_terminal(keeper):
    assert os.getsid(keeper.pid) == keeper.pid


def test_one_that_ignores_the_signal_is_killed_after_its_grace(keeper, run):
    child = run("deaf", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", grace=0.2)
    keeper.stop(child, 20)
    assert child.code == -signal.SIGKILL


def test_a_frozen_one_is_continued_so_that_it_can_end(keeper, run):
    child = run("frozen", grace=60)
    os.kill(child.pid, signal.SIGSTOP)
    keeper.stop(child, 20)
    assert child.code == -signal.SIGTERM


def test_what_a_process_leaves_in_its_group_ends_with_it(keeper, run):
    child = run("parent", "import subprocess; subprocess.Popen(['sleep','1000'])")
    everyone = family(child.pid)
    assert len(everyone) == 2
    keeper.stop(child, 20)
    wait_until_gone(everyone)


def test_stopping_one_that_has_just_ended_leaves_its_end_to_be_reported():
    """Whoever reaps it by sending a signal takes its end from the loop, which then waits for it in vain, or fails."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        loop = object.__new__(_Loop)
        loop._clock, loop._kept = system_clock(), {"one": _Kept("one", process, signal.SIGTERM, grace=1, rank=0)}
        loop._stop("one")
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def test_at_the_end_higher_ranks_are_stopped_first(keeper, run, ends):
    for name, rank in (("server", 0), ("beat", 3), ("worker", 2)):
        run(name, rank=rank)
    keeper.close(30)
    assert [ends.get(timeout=5).name for _ in range(3)] == ["beat", "worker", "server"]


def test_a_lower_rank_waits_until_the_higher_one_has_ended(keeper, run, ends):
    run("server", rank=0)
    run("slow", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", rank=1, grace=0.3)
    keeper.close(30)
    assert [ends.get(timeout=5).code for _ in range(2)] == [-signal.SIGKILL, -signal.SIGTERM]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_when_the_keeper_is_killed_its_processes_end_and_the_owner_hears_of_it(keeper, run, ends, tmp_path):
    child = run("one")
    seen = family(child.pid)
    os.kill(keeper.pid, signal.SIGKILL)
    assert ends.get(timeout=20) is child
    wait_until_gone(seen)
    with pytest.raises(KeeperLost):
        keeper.start("two", ["true"], log=tmp_path / "two.log")


def test_a_child_of_the_owner_does_not_keep_the_keeper(tmp_path):
    """The pipe's write end is close-on-exec, and a fork without exec is seen by the parent's id."""
    code = """
import os, sys, subprocess
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from ops.services import Keeper
keeper = Keeper(Path(sys.argv[1], "keeper.log"))
kept = keeper.start("kept", ["sleep", "1000"], log=Path(sys.argv[1], "kept.log"))
execed = subprocess.Popen(["sleep", "1000"], close_fds=False, stdout=subprocess.DEVNULL)
forked = os.fork()
if not forked:
    os.close(1)
    import signal; signal.pause()
print(keeper.pid, kept.pid, execed.pid, forked, flush=True)
sys.stdin.read()
"""
    argv = [sys.executable, "-c", code, tmp_path, Path.cwd()]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        keeper, kept, execed, forked = (int(pid) for pid in owner.stdout.readline().split())
        held = family(keeper, kept)
        owner.kill()
        try:
            wait_until_gone(held)
        finally:
            os.kill(execed, signal.SIGKILL)
            os.kill(forked, signal.SIGKILL)
