"""RabbitMQ as broker: leaders are frozen and killed around the commit and around each publish; each effect comes once.

One drive, one cluster: every beat but the last breaks at its own failpoint while it leads, the next one takes over. A
second queue on the exchange sees each copy that is published; the workers' queue feeds a guarded task that counts.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import kombu
import pytest
import redis

from fencebeat.claims.postgres import PostgresClaims
from fencebeat.testing.beats import Cluster, committed, elected, standing_by
from fencebeat.ticks import task_id
from tests.support.outboxes import Arrivals
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
ENTRIES = ("one", "two", "three")
LEASE = 2.0


@pytest.fixture
def arrivals(rabbitmq_url):
    made = Arrivals(rabbitmq_url)
    yield made
    made.close()


@pytest.fixture
def queue(namespace, arrivals):
    """Sees each copy that is published; the workers have another queue on the same exchange."""
    name = f"{namespace}.seen"
    arrivals.declare(name, exchange=kombu.Exchange(namespace, "topic"), routing_key="#")
    return name


@pytest.fixture
def claims_url(database_url, namespace):
    claims = PostgresClaims(database_url, namespace)
    claims.install()
    claims.disconnect()
    return database_url


@pytest.fixture
def drive(rabbitmq_url, redis_url, claims_url, namespace):
    """What the processes are told."""
    return {
        "RABBITMQ_URL": rabbitmq_url,
        "REDIS_URL": redis_url,
        "DRIVE_QUEUE": namespace,
        "FENCEBEAT_CLAIMS": claims_url,
        "FENCEBEAT_NAMESPACE": namespace,
    }


@contextmanager
def worker(folder, **environment):
    """A stock Celery worker of `tests.support.outbox_project`; it ends with the block."""
    command = ["-m", "celery", "-A", "tests.support.outbox_project", "worker", "-c", "2", "--loglevel", "INFO"]
    with (
        (folder / "worker.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, *command, "--without-gossip", "--without-mingle"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)


def settings(rabbitmq_url, redis_url, namespace):
    line = {"task": "drive.effect", "schedule": 1.0, "fencebeat": {"catchup": "all"}}
    queue = {"exchange": namespace, "exchange_type": "topic", "binding_key": "#"}
    return {
        "broker_url": rabbitmq_url,
        "fencebeat_redis_url": redis_url,
        "fencebeat_namespace": namespace,
        "fencebeat_lease": LEASE,
        "task_queues": {namespace: queue},
        "task_default_queue": namespace,
        "beat_schedule": dict.fromkeys(ENTRIES, line),
    }


def failed_at(beat):
    """Whether a history line says that this beat reached its failpoint."""
    return lambda line: line["kind"] == "failpoint" and line["proc"] == beat.name


def break_one_after_another(cluster, failpoints):
    """Each beat leads until it breaks; then the next one does. The last one is not broken."""
    beats = [cluster.start_beat(failpoints=failpoints[0])]
    beats[0].wait_for(committed, 30)
    for number, rule in enumerate(failpoints, start=1):
        successor = cluster.start_beat(failpoints=failpoints[number] if number < len(failpoints) else "")
        successor.wait_for(lambda line: standing_by(line) or elected(line), 30)
        broken = beats[-1]
        beats.append(successor)
        at = cluster.wait_for(failed_at(broken), 30)["t"]
        if "=stop" in rule:
            broken.wait_until_frozen()
        successor.wait_for(elected, 30, at)
        if "=stop" in rule:
            broken.thaw()
            broken.wait_for(lambda line: line.get("event") == "state.changed" and line["state"] == "standby", 15, at)
            broken.kill()
    beats[-1].wait_for(committed, 30)
    return beats


@pytest.mark.parametrize(
    "failpoints",
    [
        pytest.param(
            [
                "beat.publish.after=kill@4",
                "beat.commit.after=kill@2",
                "beat.publish.before=kill@4",
                "beat.commit.before=kill@2",
            ],
            id="f03-killed",
        ),
        pytest.param(
            [
                "beat.publish.before=stop@4",
                "beat.commit.before=stop@2",
                "beat.publish.after=stop@4",
                "beat.commit.after=stop@2",
            ],
            id="f01-f02-frozen",
        ),
    ],
)
def test_rabbitmq_each_tick_at_least_once_under_one_id_and_each_effect_once(
    tmp_path, drive, arrivals, queue, failpoints
):
    redis_url, claims_url, namespace = drive["REDIS_URL"], drive["FENCEBEAT_CLAIMS"], drive["FENCEBEAT_NAMESPACE"]
    with (
        redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5) as client,
        worker(tmp_path, **drive),
        Cluster(tmp_path / "beats", redis_url, settings(drive["RABBITMQ_URL"], redis_url, namespace)) as cluster,
    ):
        beats = break_one_after_another(cluster, failpoints)
        until(lambda: client.xlen(f"{namespace}:outbox") == 0, at_most=30, what="an empty outbox")
        assert beats[-1].stop() == 0
        # A tick that was committed in the moment of the stop waits for the next leader.
        left = {json.loads(fields["message"])["task_id"] for _, fields in client.xrange(f"{namespace}:outbox")}
        assert len(left) <= len(ENTRIES)

        emitted = {
            record["task_id"]: int(record["fire_time"])
            for _, record in client.xrange(f"{namespace}:audit")
            if record["outcome"] == "emitted"
        }
        seen = arrivals.take(queue)
        copies = Counter(message.headers["id"] for message in seen)
        published = set(emitted) - left
        until(lambda: client.hlen("effects") >= len(published), at_most=60, what="an effect of each tick")
        until(lambda: arrivals.waiting(namespace) == 0, at_most=60, what="no copy left for the workers")
        until(lambda: len(closed(claims_url, namespace, published)) == len(published), at_most=60, what="claims closed")
        effects = {name: int(times) for name, times in client.hgetall("effects").items()}

    terms = [line["token"] for line in cluster.lines() if elected(line)]
    assert len(set(terms)) >= len(failpoints) + 1, "every fault had its leader"
    times = sorted(set(emitted.values()))
    assert times == list(range(times[0], times[-1] + 1, 1_000_000)), "no second was passed over"
    expected = {task_id(namespace, name, at) for name in ENTRIES for at in times}
    assert set(emitted) == expected
    assert set(copies) == published, "each tick was published at least once"
    assert {m.properties["message_id"] for m in seen} == {m.properties["correlation_id"] for m in seen} == published
    assert sum(copies.values()) > len(published), "the faults have bitten: there were copies"
    assert effects == dict.fromkeys(published, 1)


def closed(url, namespace, identities):
    claims = PostgresClaims(url, namespace)
    try:
        return [one for one, state in claims.look(list(identities)).items() if state.outcome == "succeeded"]
    finally:
        claims.disconnect()
