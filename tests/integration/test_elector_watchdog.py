"""The watchdog ends a hung process, leaves a frozen one alone, and never outlives its owner."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from fencebeat.clock import SystemClock
from tests.support.waiting import until

CLOCK = SystemClock()

OWNER = """
import ctypes, sys, threading, time
from fencebeat.watchdog import Watchdog
dog = Watchdog(limit=2)
dog.beat()
print(dog._watcher.pid, flush=True)
how = sys.argv[1]
if how == "close":
    dog.close(); dog.close(); dog.beat()
    time.sleep(4)
if how == "lock":
    lock = threading.Lock(); lock.acquire(); lock.acquire()
if how == "interpreter":
    ctypes.PyDLL(None).sleep(60)
while True:
    dog.beat()
    time.sleep(0.05)
    if how == "close":
        break
print("went on", flush=True)
"""


@contextmanager
def owner(how):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.kill()


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["lock", "interpreter"])
def test_s9_a_hung_process_is_ended_with_its_stacks_and_a_code_that_is_not_zero(how):
    with owner(how) as (process, watcher):
        _, errors = process.communicate(timeout=15)

    assert process.returncode == -signal.SIGABRT
    assert "the tick thread was silent for 2 s" in errors
    assert "Fatal Python error: Aborted" in errors
    assert 'File "<string>", line' in errors
    until(lambda: not runs(watcher))


def test_s4_a_process_that_was_frozen_beyond_the_limit_goes_on():
    with owner("beat") as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4.5)
        os.kill(process.pid, signal.SIGCONT)

        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
        process.kill()


def test_a_watchdog_that_was_called_off_ends_nobody():
    with owner("close") as (process, watcher):
        output, _ = process.communicate(timeout=15)

    assert (process.returncode, output) == (0, "went on\n")
    until(lambda: not runs(watcher))


def test_the_watcher_ends_with_its_owner():
    with owner("beat") as (process, watcher):
        assert runs(watcher)
        process.kill()
        process.communicate()

        until(lambda: not runs(watcher), at_most=5)
