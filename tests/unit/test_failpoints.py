import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from fencebeat import history
from fencebeat.errors import ImpossibleConfiguration
from fencebeat.failpoints import arm, failpoint


@pytest.fixture
def armed(monkeypatch, tmp_path):
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    monkeypatch.setenv("FENCEBEAT_HISTORY", str(tmp_path / "history"))
    yield arm
    arm("")


@contextmanager
def run(rules, program="failpoint('beat.commit.before')\nprint('went on')", **environment):
    with subprocess.Popen(
        [sys.executable, "-c", f"from fencebeat.failpoints import failpoint\n{program}"],
        env=os.environ | {"FENCEBEAT_TESTING": "1", "FENCEBEAT_FAILPOINTS": rules} | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_disarmed_nothing_happens():
    failpoint("beat.commit.before")


def test_an_exception_is_raised_at_the_nth_passage_only(armed):
    armed("beat.commit.before=raise:TimeoutError@2")

    failpoint("beat.commit.before")
    with pytest.raises(TimeoutError, match=r"beat\.commit\.before"):
        failpoint("beat.commit.before")
    failpoint("beat.commit.before")


def test_a_share_of_the_passages_comes_from_the_seed(armed, monkeypatch):
    def bites():
        armed("beat.renew.after=raise:OSError%0.5")
        seen = []
        for _ in range(40):
            try:
                failpoint("beat.renew.after")
                seen.append(False)
            except OSError:
                seen.append(True)
        return seen

    monkeypatch.setenv("FENCEBEAT_SEED", "8841")
    first = bites()
    assert 5 < sum(first) < 35
    assert bites() == first


@pytest.mark.parametrize(
    ("rules", "what"),
    [("beat.comit.before=kill", "there is no failpoint 'beat.comit.before'"), ("beat.commit.before", "cannot be read")],
)
def test_a_rule_that_cannot_bite_is_refused(armed, rules, what):
    with pytest.raises(ImpossibleConfiguration, match=what):
        armed(rules)


def test_failpoints_outside_of_tests_are_refused(monkeypatch):
    monkeypatch.delenv("FENCEBEAT_TESTING", raising=False)

    with pytest.raises(ImpossibleConfiguration, match="FENCEBEAT_TESTING=1"):
        arm("beat.commit.before=kill")


@pytest.mark.parametrize(
    ("action", "code"), [("kill", -signal.SIGKILL), ("kill_group", -signal.SIGKILL), ("exit", 137)]
)
def test_a_process_dies_at_the_place_and_its_history_says_so(tmp_path, action, code):
    path = tmp_path / "history"

    with run(f"beat.commit.before={action}", FENCEBEAT_HISTORY=str(path), FENCEBEAT_PROC="beat-1") as process:
        output, _ = process.communicate(timeout=30)

    assert (process.returncode, output) == (code, "")
    [line] = history.read(path)
    assert (line["kind"], line["name"], line["proc"]) == ("failpoint", "beat.commit.before", "beat-1")


def test_a_stopped_process_goes_on_when_told():
    with run("beat.commit.before=stop") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

        process.send_signal(signal.SIGCONT)

        assert process.communicate(timeout=30)[0] == "went on\n"


def test_a_paused_process_waits_for_its_release(tmp_path):
    gate = tmp_path / "failpoints" / "beat.commit.before.release"
    gate.parent.mkdir()
    program = "print('here', flush=True)\nfailpoint('beat.commit.before')\nprint('went on')"

    with run("beat.commit.before=pause", program, FENCEBEAT_STATE_DIR=str(tmp_path)) as process:
        assert process.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        gate.touch()

        assert process.communicate(timeout=30)[0] == "went on\n"


def test_a_hang_keeps_the_interpreter_from_every_thread():
    program = """
import os, threading, time
def other():
    while True:
        os.write(1, b'.')
        time.sleep(0.01)
threading.Thread(target=other, daemon=True).start()
time.sleep(0.2)
failpoint('beat.commit.before')
"""
    with run("beat.commit.before=hang", program) as process:
        output = process.stdout.fileno()
        assert select.select([output], [], [], 30)[0], "the other thread lives at first"
        read = 0
        while select.select([output], [], [], 1.0)[0]:  # a second of silence from a thread that speaks every 10 ms
            read += len(os.read(output, 4096))
            assert read < 2000, "the other thread went on"

        assert process.poll() is None
