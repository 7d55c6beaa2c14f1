"""rag-scheduled-job-leader-election-smoke: three beats, ticks each second, the leader is killed and frozen meanwhile.

What must hold: each tick is emitted once and run once, none is missing; a new leader follows within lease + 0.5 s of a
kill; a leader that was frozen for two leases changes nothing after it wakes; searches are answered all the time.
"""

import signal
import threading
from collections import Counter
from typing import Any, Final, Self

from fencebeat.errors import FencebeatError
from ops import beats
from ops.smoke.app import ENTRY
from ops.smoke.stage import DOCUMENTS, TENANT, Request, Stage
from tasks.wiring import Services as Application

LEASE: Final = 2.0
SETTLE_TICKS: Final = 3  # ticks to see under each leader, so that something is there to be lost


def run(stage: Stage) -> None:
    """Run it. Raises SmokeFailed."""
    stage.open("valkey", "postgres", "opensearch")
    stage.env |= {
        "FENCEBEAT_LEASE_SECONDS": str(LEASE),
        "FENCEBEAT_SYNC_SECONDS": "1",
        "FENCEBEAT_SWEEP_SECONDS": "1",
    }
    for number in (1, 2, 3):
        stage.beat(f"beat-{number}")
    worker = stage.worker("worker")
    stage.wait_for_embedder()
    stage.ready(worker)
    made = stage.application()
    stage.wait(
        "indexing the documents",
        lambda: made.ledger.progress(made.spec.target_id).indexed == len(DOCUMENTS),
        at_most=90,
    )
    with _Reader(stage) as reader:
        _ticks(stage)
        _kill_the_leader(stage)
        _freeze_the_leader(stage)
        _kill_the_leader(stage, again=True)
    made.close()
    stage.facts["searches answered"] = reader.answered
    stage.expect("answering searches all the time", not reader.failures and reader.answered > 0, reader.failures[:3])
    _judge(stage)


def wait_until_indexed(stage: Stage, made: Application) -> None:
    """Return once every document of the run is committed."""
    target_id = made.spec.target_id
    stage.wait("indexing the documents", lambda: made.ledger.progress(target_id).indexed == len(DOCUMENTS), at_most=90)


class _Reader:
    """Searches without pause, as users do. Every request has a tenant, a key and a time-out."""

    def __init__(self, stage: Stage) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._made = stage.application()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _read(self) -> None:
        while not self._stop.wait(0.2):
            request = Request(TENANT, f"search-{self.answered}")
            try:
                found = self._made.search.search(
                    request.tenant_id, "which token does a store refuse?", limit=3, timeout=request.timeout
                )
            except FencebeatError as error:
                self.failures.append(f"{request.idempotency_key}: {error.what}")
                continue
            if any(hit.doc_uid.endswith("fence.md") for hit in found.hits):
                self.answered += 1
            else:
                self.failures.append(
                    f"{request.idempotency_key}: {found.reason or 'the document was not among the hits'}"
                )
        self._made.close()


def _leader(stage: Stage) -> beats.Leader:
    return stage.wait("electing a leader", stage.leader, at_most=LEASE * 4 + 20)


def _ticks(stage: Stage) -> None:
    """Wait until the leader in force has emitted some ticks of its own."""
    token = str(_leader(stage).token)

    def emitted() -> bool:
        own = [r for r in stage.audit(ENTRY) if r["outcome"] == "emitted" and r["token"] == token]
        return len(own) >= SETTLE_TICKS

    stage.wait("ticking under the new leader", emitted, at_most=30)


def _kill_the_leader(stage: Stage, *, again: bool = False) -> None:
    old = _leader(stage)
    began = stage.clock.elapsed()
    stage.signal(_pid(old), signal.SIGKILL)
    new = stage.wait("taking over from the killed leader", lambda: _newer(stage, old), at_most=LEASE + 10)
    took = stage.clock.elapsed() - began
    stage.say(f"{new.holder} leads under token {new.token}, {took:.2f} s after the kill")
    stage.facts["takeover after " + ("the second kill" if again else "the first kill")] = f"{took:.2f} s"
    _ticks(stage)


def _freeze_the_leader(stage: Stage) -> None:
    """Frozen for twice its lease while another leads; then awake beside it."""
    old = _leader(stage)
    stage.signal(_pid(old), signal.SIGSTOP)
    frozen = stage.clock.elapsed()
    new = stage.wait("taking over from the frozen leader", lambda: _newer(stage, old), at_most=LEASE + 10)
    stage.facts["takeover from the frozen"] = f"{stage.clock.elapsed() - frozen:.2f} s"
    stage.wait("freezing for two leases", lambda: stage.clock.elapsed() - frozen > 2 * LEASE)
    stage.signal(_pid(old), signal.SIGCONT)
    stage.wait("the woken leader's notice that its term is over", lambda: _lost(stage, old), at_most=10)
    leads = stage.leader()
    stage.expect("the woken leader changes nothing", leads is not None and leads.token == new.token, leads)
    _ticks(stage)


def _lost(stage: Stage, old: beats.Leader) -> bool:
    return any(str(line.get("token")) == str(old.token) for line in stage.events("term.lost"))


def _newer(stage: Stage, old: beats.Leader) -> beats.Leader | None:
    seen = stage.leader()
    return seen if seen is not None and seen.token > old.token else None


def _pid(leader: beats.Leader) -> int:
    return int(leader.holder.rpartition(":")[2])


def _judge(stage: Stage) -> None:
    """Each tick once on the queue and once run, none missing between the first and the last."""
    decided = stage.audit(ENTRY)
    emitted = Counter(int(record["fire_time"]) for record in decided if record["outcome"] == "emitted")
    times = sorted(emitted)
    missing = sorted(set(range(times[0], times[-1], 1_000_000)) - set(times))
    stage.expect("emitting each tick once", set(emitted.values()) == {1}, [t for t, n in emitted.items() if n > 1][:5])
    stage.expect("losing no tick", not missing, missing[:5])
    stage.expect("having at least three terms", len({r["token"] for r in decided if "token" in r}) > 3, decided[-3:])

    def ran() -> bool:
        return {line["fire_time"] for line in stage.runs()} >= set(times)

    stage.wait("running every emitted tick", ran, at_most=20)
    runs: Counter[Any] = Counter(line["fire_time"] for line in stage.runs())
    twice = [time for time, count in runs.items() if count > 1]
    stage.expect("running each tick once", not twice, twice[:5])
    stage.facts["ticks"] = len(times)
    stage.facts["stale requests refused"] = sum(line["outcome"] == "fenced" for line in stage.audit(None))
    stage.facts["terms"] = len({record["token"] for record in decided if record["outcome"] == "emitted"})
