"""A real process with an elector, ended or frozen at each of its steps, and the candidate that follows."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencebeat import history
from fencebeat.clock import SystemClock
from tests.support.electors import Candidate
from tests.support.locks import RedisLease
from tests.support.waiting import until

PROGRAM = Path(__file__).parents[1] / "support" / "elector_process.py"
CLOCK = SystemClock()
LEASE = 1.0


@pytest.fixture
def store(redis_url, namespace):
    store = RedisLease(redis_url, namespace, LEASE)
    yield store
    store.close()


@pytest.fixture
def first(redis_url, namespace, tmp_path):
    @contextmanager
    def start(rules):
        environment = {
            "FENCEBEAT_TESTING": "1",
            "FENCEBEAT_FAILPOINTS": rules,
            "FENCEBEAT_HISTORY": str(tmp_path / "history"),
            "FENCEBEAT_PROC": "first",
            "PYTHONPATH": str(PROGRAM.parents[2]),
        }
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), redis_url, namespace, "first", str(LEASE)], env=os.environ | environment
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    return start


@pytest.fixture
def second(store):
    candidate = Candidate(store.lock("second"), store.timing)
    yield candidate
    candidate.stop()


@pytest.fixture
def events(tmp_path):
    return lambda name: [line for line in history.read(tmp_path / "history") if line.get("event") == name]


STEPS = [
    "beat.acquire.before",
    "beat.acquire.after",
    "beat.recover.before",
    "beat.recover.after",
    "beat.renew.before",
    "beat.renew.after",
    "beat.resign.before",
    "beat.resign.after",
]


@pytest.mark.parametrize("step", STEPS)
def test_f03_killed_at_any_step_it_is_followed_within_the_bound(store, first, second, events, step):
    with first(f"{step}=kill") as process:
        if step.startswith("beat.resign"):
            until(lambda: events("term.elected"))
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGKILL
        killed = CLOCK.elapsed()

        second.start()
        term = second.elected()

    assert CLOCK.elapsed() - killed <= LEASE + 0.5
    assert all(line["token"] < term.token for line in events("term.elected"))
    assert store.lock("anybody").holder() == term


def test_f01_frozen_in_the_middle_of_a_renewal_it_steps_down_on_waking_and_stays_alive(store, first, second, events):
    with first("beat.renew.before=stop@2") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        second.start()
        term = second.elected()

        process.send_signal(signal.SIGCONT)

        [lost] = until(lambda: events("term.lost"))
        assert lost["reason"] == "refused"
        assert lost["token"] < term.token
        assert store.lock("anybody").holder() == term
        second.stop()
        until(lambda: len(events("term.elected")) == 2, what="a candidate again, in the same process")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    assert [line["token"] for line in events("term.resigned")] == [events("term.elected")[-1]["token"]]


def test_s2_cut_off_fifty_times_it_stays_alive_and_leads_within_the_bound(store, first, events):
    with first("") as process:
        for _ in range(50):
            store.client.client_kill_filter(_type="normal", skipme=True)
            assert process.poll() is None
        healed = CLOCK.elapsed()

        until(lambda: store.lock("anybody").holder())

        assert CLOCK.elapsed() - healed <= 5.0 + LEASE + 0.5  # the longest pause, then the bound
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert events("term.elected")
