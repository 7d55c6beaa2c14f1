"""Real beat processes whose tick thread hangs, or never starts; and ten of them at once."""

import json
import signal

import pytest

from fencebeat.clock import SystemClock
from fencebeat.connection import Broker
from fencebeat.entries import read_schedule
from fencebeat.testing.beats import Cluster, committed, elected, standing_by
from fencebeat.testing.tally import tally
from ops import beats
from tests.support.waiting import until

CLOCK = SystemClock()
LEASE = 2.0
PROGRESS, WATCHDOG = 3.0, 15.0

FINALISER = '''
"""A finaliser that takes the lock of the connection pool, run while the pool's own thread holds it: redis-py 1583."""
import threading
from fencebeat import scripts

class Trap:
    def __init__(self, lock):
        self.lock = lock
    def __del__(self):
        self.lock.acquire()

calls = []
original = scripts.Script.__call__

def call(script, client, keys, args, *more):
    if script.name == "commit":
        calls.append(1)
        if len(calls) == 3:
            client.connection_pool._lock = threading.Lock()  # what it was then
            with client.connection_pool._lock:
                Trap(client.connection_pool._lock)
    return original(script, client, keys, args, *more)

scripts.Script.__call__ = call
'''

HOOK = '''
"""A start hook that raises."""
from fencebeat.scheduler import Election

def start(_):
    raise RuntimeError("the start hook is broken")

Election.start = start
'''


@pytest.fixture
def cluster(tmp_path, redis_url, namespace):
    line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": namespace}, "fencebeat": {"catchup": "all"}}
    conf = {"fencebeat_namespace": namespace, "fencebeat_lease": LEASE, "beat_schedule": {"each": line}}
    with Cluster(tmp_path, redis_url, conf) as made:
        yield made


def judged(cluster, client, namespace):
    for beat in cluster.beats:
        if beat.alive:
            beat.stop()
    entries, _ = read_schedule(cluster.settings["beat_schedule"], lease=LEASE)
    return tally(client, Broker(cluster.redis_url).keys(namespace), namespace, entries)


def with_module(cluster, name, source):
    """Settings by which a beat imports this module at its start."""
    (cluster.folder / f"{name}.py").write_text(source)
    return {"FENCEBEAT_DRIVE": json.dumps({**cluster.settings, "imports": [name]})}


@pytest.mark.parametrize("how", ["a held lock", "a finaliser"])
def test_s9_f27_a_hung_tick_thread_loses_the_lease_shows_red_and_is_ended(cluster, client, namespace, how):
    if how == "a held lock":
        hung = cluster.start_beat("A", failpoints="beat.commit.before=pause@4", FENCEBEAT_STATE_DIR=str(cluster.folder))
    else:
        hung = cluster.start_beat("A", **with_module(cluster, "finaliser", FINALISER))
    hung.wait_for(committed, 30)
    standby = cluster.start_beat("B")
    last = [line for line in cluster.lines() if committed(line) and line["proc"] == "A"][-1]["t"]
    if how == "a held lock":
        last = hung.wait_for(lambda line: line["kind"] == "failpoint", 30)["t"]
    else:
        standby.wait_for(elected, 40)
        last = [line for line in cluster.lines() if committed(line) and line["proc"] == "A"][-1]["t"] + 1.0
    keys = Broker(cluster.redis_url).keys(namespace)
    red = None
    if how == "a held lock":
        status = until(
            lambda: (seen := beats.look(client, keys)).leader is None or (seen.leader.overdue and seen),
            at_most=PROGRESS + LEASE + 1,
            what="the status says that the leader is silent",
        )
        red = CLOCK.elapsed() - last
        assert status
    taken = standby.wait_for(committed, 30, last)

    assert taken["t"] - last <= PROGRESS + LEASE + 0.5 + 1.0  # its entry fires each second
    assert red is None or red <= 5.0
    assert hung.process.wait(WATCHDOG + 5) == -signal.SIGABRT
    assert CLOCK.elapsed() - last <= WATCHDOG + 1.0
    assert judged(cluster, client, namespace).problems == []


def test_s9_a_leader_whose_start_hook_raises_three_times_never_holds_the_lease(cluster, client, namespace):
    for number in range(3):
        broken = cluster.start_beat(f"broken-{number}", **with_module(cluster, "hook", HOOK))
        assert broken.process.wait(30) != 0
        assert "the start hook is broken" in broken.log.read_text()

    assert client.get(f"lock:{namespace}:leader") is None
    assert client.hget(f"{namespace}:term", "token") is None
    cluster.start_beat("sound").wait_for(committed, 20)


def test_f39_s5_of_ten_beats_one_acts_and_there_is_always_a_next_one(cluster, client, namespace):
    for _ in range(10):
        cluster.start_beat()
    first = cluster.wait_for(committed, 60)
    cluster.poll(
        lambda: len({line["proc"] for line in cluster.lines() if standing_by(line) or elected(line)}) == 10,
        60,
        "not all of them are leader or standby",
    )
    leader, tokens = cluster.beat(first["proc"]), []
    for _ in range(4):
        tokens.append(max(line["token"] for line in cluster.lines() if elected(line)))
        at = CLOCK.elapsed()
        leader.kill()
        following = cluster.wait_for(lambda line, gone=leader.name: committed(line) and line["proc"] != gone, 30, at)
        leader = cluster.beat(following["proc"])
    counted = judged(cluster, client, namespace)

    assert counted.problems == []
    assert tokens == sorted(set(tokens))
    assert len(counted.by_token) >= 5
    assert sum(beat.process.returncode == 0 for beat in cluster.beats) == 6, "the others were alive to the end"
