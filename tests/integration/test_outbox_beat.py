"""A whole beat in front of a broker that is not Redis: what it refuses, what it does while the broker is away."""

import json
import os
import subprocess
import sys

from fencebeat.testing.beats import cluster, committed
from fencebeat.ticks import instant
from tests.support.waiting import until

DEAD = "amqp://guest:secret@127.0.0.1:1//"
RUN = "import sys; from fencebeat.cli import main; sys.exit(main())"


def settings(namespace, redis_url, broker_url=DEAD, **more):
    line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": namespace}, "fencebeat": {"catchup": "all"}}
    return {
        "broker_url": broker_url,
        "fencebeat_redis_url": redis_url,
        "fencebeat_namespace": namespace,
        "fencebeat_lease": 2.0,
        "beat_schedule": {"each-second": line},
        **more,
    }


def command(folder, conf, *words):
    """`fencebeat -A fencebeat.testing.project ...`: (exit code, stdout)."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, "-A", "fencebeat.testing.project", *words],
        cwd=folder,
        env={**os.environ, "FENCEBEAT_DRIVE": json.dumps(conf)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_while_the_broker_is_away_ticks_are_committed_up_to_the_limit_and_then_wait(
    tmp_path, redis_url, namespace, client
):
    conf = settings(namespace, redis_url, fencebeat_outbox_limit=3)
    outbox = f"{namespace}:outbox"
    with cluster(tmp_path, redis_url, **conf) as beats:
        beat = beats.start_beat()
        beat.wait_for(committed, 30)
        until(lambda: "as many as may" in beat.log.read_text(), at_most=30, what="the complaint about a full outbox")
        assert client.xlen(outbox) == 3
        until(
            lambda: int(client.hget(f"{namespace}:last", "each-second")) < (client.time()[0] - 2) * 1_000_000,
            at_most=20,
            what="seconds that stay due",
        )
        assert client.xlen(outbox) == 3
        code, out = command(tmp_path, conf, "outbox", "--json")
        assert json.loads(out)["rows"] == 3
        assert code in (0, 3)
        assert beat.stop() == 0
        log = beat.log.read_text()
        assert "The broker does not take messages" in log
        assert "secret" not in log


def test_messages_that_wait_for_long_are_degraded(tmp_path, redis_url, namespace, client):
    client.xadd(f"{namespace}:outbox", {"message": "{}"}, id="1-1")
    code, out = command(tmp_path, settings(namespace, redis_url), "outbox", "--json")
    assert (code, json.loads(out)["late"]) == (3, True)
    client.delete(f"{namespace}:outbox")
    assert command(tmp_path, settings(namespace, redis_url), "outbox")[0] == 0


def test_a_beat_publishes_and_explains_what_became_of_a_tick(tmp_path, redis_url, rabbitmq_url, namespace, client):
    conf = settings(namespace, redis_url, rabbitmq_url)
    with cluster(tmp_path, redis_url, **conf) as beats:
        beat = beats.start_beat()
        beat.wait_for(lambda line: line["kind"] == "return" and line.get("op") == "publish", 30)
        until(lambda: client.xlen(f"{namespace}:outbox") == 0, what="an empty outbox")
        records = [fields for _, fields in client.xrange(f"{namespace}:audit") if fields["outcome"] == "published"]
        at = instant(int(records[0]["fire_time"]))
        code, out = command(tmp_path, conf, "explain", "each-second", at, "--json")
        told = json.loads(out)
        assert (code, told["outcome"]) == (0, "emitted")
        assert "published by" in told["why"]
        assert beat.stop() == 0


def test_a_broker_that_is_not_redis_needs_a_place_for_the_records(tmp_path, redis_url, namespace):
    conf = settings(namespace, "")
    with cluster(tmp_path, redis_url, **conf) as beats:
        beat = beats.start_beat()
        assert beat.process.wait(30) != 0
        assert "fencebeat_redis_url must say which Redis" in beat.log.read_text()
