"""rag-distributed-lock-redis-etcd-smoke: the same contract on the Redis lock and on the etcd lock.

On each lock: two beats, one of which is killed while it leads; two workers that race for one document. The request for
it is sent three times under one idempotency key. The worker that claims first is stopped before its first write; the
other one takes the document over once the claim has lapsed; then the first one is woken.

What must hold: tokens rise, each tick is emitted once; the document is committed once, its chunks are embedded once,
and the woken worker is fenced.
"""

import os
import signal
from collections import Counter
from typing import Any, Final

from celery import Celery

from fencebeat import history
from index.embedding.calls import read as read_calls
from ops.services import Child
from ops.smoke.app import ENTRY
from ops.smoke.stage import SOURCE, TENANT, Request, Stage

LEASE: Final = 2.0
CLAIM: Final = 3.0
REPEATS: Final = 3


def run(stage: Stage) -> None:
    """Run it on both locks. Raises SmokeFailed."""
    stage.open("valkey", "postgres", "opensearch", "etcd", documents={})
    for lock in ("redis", "etcd"):
        _on(stage, lock)


def _on(stage: Stage, lock: str) -> None:
    stage.say(f"on the {lock} lock")
    env = {
        "FENCEBEAT_LOCK": lock,
        "FENCEBEAT_NAMESPACE": f"smoke-{lock}",
        "FENCEBEAT_LEASE_SECONDS": str(LEASE),
        "FENCEBEAT_CLAIM_SECONDS": str(CLAIM),
        "FENCEBEAT_SYNC_SECONDS": "1",
        "FENCEBEAT_SWEEP_SECONDS": "1",
    }
    running = [stage.beat(f"beat-{lock}-{number}", **env) for number in (1, 2)]
    running += _race(stage, lock, env)
    _takeover(stage, lock, env)
    for child in reversed(running):  # the other lock's processes share the ledger: none of these may help them
        stage.stop(child)


def _race(stage: Stage, lock: str, env: dict[str, str]) -> list[Child]:
    """Two workers, one document, one request sent three times: one effect. Returns the workers."""
    uid = f"{SOURCE}/race-{lock}.md"
    frozen = stage.worker(f"frozen-{lock}", 1, **env, FENCEBEAT_FAILPOINTS="index.write.before=stop@1")
    second = stage.worker(f"second-{lock}", 1, **env)
    stage.wait_for_embedder()
    stage.ready(frozen, second)
    os.killpg(second.pid, signal.SIGSTOP)  # so that the first one is the first to claim
    (stage.folder / "corpus" / f"race-{lock}.md").write_text(f"# Race\n\nTwo workers race under the {lock} lock.\n")
    pid = stage.wait("stopping the first worker before its write", lambda: _stopped(stage, frozen), at_most=60)
    stage.say(f"{frozen.name} holds {uid} and is stopped")
    os.killpg(second.pid, signal.SIGCONT)
    request = Request(TENANT, f"index-{uid}")
    for _ in range(REPEATS):
        _send(stage, request, env)

    def committed() -> list[dict[str, Any]]:
        return [line for line in stage.events("document.committed") if line["doc_uid"] == uid]

    stage.wait("taking the document over", committed, at_most=CLAIM * 3 + 30)
    stage.signal(pid, signal.SIGCONT)
    stage.wait("fencing the woken worker", lambda: _fenced(stage, uid), at_most=30)
    stage.expect("committing the document once", len(committed()) == 1, committed())
    stage.expect("by the second worker", committed()[0]["proc"] == second.name, committed())
    twice = _embedded_twice(stage)
    stage.expect("embedding each chunk once", not twice, twice)
    stage.facts[f"{lock}: effects of {REPEATS} deliveries to 2 workers"] = len(committed())
    return [frozen, second]


def _stopped(stage: Stage, worker: Child) -> int | None:
    """The process of this worker that its failpoint has stopped."""
    lines = history.read(stage.folder / "history.jsonl")
    return next((line["pid"] for line in lines if line["kind"] == "failpoint" and line["proc"] == worker.name), None)


def _fenced(stage: Stage, uid: str) -> bool:
    return any(line["doc_uid"] == uid for line in stage.events("document.fenced"))


def _embedded_twice(stage: Stage) -> list[str]:
    """Inputs that reached the model more than once, by the embedder's own log."""
    calls = Counter(text for line in read_calls(stage.folder / "embedder-calls.jsonl") for text in line["inputs"])
    return [text for text, count in calls.items() if count > 1]


def _send(stage: Stage, request: Request, env: dict[str, str]) -> None:
    """Send the request's message; a broker that does not answer is asked again, within the request's time-out."""
    limits = {"socket_timeout": request.timeout, "socket_connect_timeout": request.timeout}
    with Celery("smoke", broker=stage.env["REDIS_URL"], set_as_current=False) as client:
        client.conf.broker_transport_options = limits
        client.send_task(
            "tasks.index_documents",
            task_id=request.task_id,
            headers=request.headers,
            queue=env["FENCEBEAT_NAMESPACE"],
            expires=60,
            retry=True,
            retry_policy={"max_retries": 3, "interval_start": 0.1, "interval_max": 0.5},
        )


def _takeover(stage: Stage, lock: str, env: dict[str, str]) -> None:
    """Kill the leader; the other beat goes on under a higher token, and no tick is doubled or lost."""
    old = stage.wait("electing a leader", lambda: stage.leader(**env), at_most=30)
    began = stage.clock.elapsed()
    stage.signal(int(old.holder.rpartition(":")[2]), signal.SIGKILL)

    def emitted() -> list[int]:
        records = stage.audit(ENTRY, **env)
        return [int(r["token"]) for r in records if r["outcome"] == "emitted" and int(r["token"]) > old.token]

    stage.wait("ticking under a higher token", emitted, at_most=LEASE + 20)
    stage.facts[f"{lock}: first tick after the kill"] = f"{stage.clock.elapsed() - began:.2f} s"
    times = Counter(int(r["fire_time"]) for r in stage.audit(ENTRY, **env) if r["outcome"] == "emitted")
    missing = set(range(min(times), max(times), 1_000_000)) - set(times)
    stage.expect("emitting each tick once", set(times.values()) == {1}, times.most_common(3))
    stage.expect("losing no tick", not missing, sorted(missing)[:5])
    stage.facts[f"{lock}: ticks"] = len(times)
