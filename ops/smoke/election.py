"""rag-scheduled-job-leader-election-smoke: the election drive, while the application indexes and answers searches.

Three beats tick each second on the application's broker, with the ledger as their effect store; the leader is frozen in
the middle of its commit twice and killed twice (`fencebeat.testing.election`). Beside them run one beat, the embedder
and a worker of the application.

What must hold: what the drive demands; every search is answered with its document meanwhile; in the end the worker runs
each tick once.
"""

import threading
from collections import Counter
from typing import Final, Self

from celery import Celery

from fencebeat.errors import FencebeatError
from fencebeat.testing.beats import NotSeen
from fencebeat.testing.election import ENTRY, ElectionReport, drive_election
from ops.smoke.stage import CALL_SECONDS, DOCUMENTS, TENANT, Request, Stage

LEASE: Final = 2.0
SECONDS: Final = 30.0
NAMESPACE: Final = "smoke-election"


def run(stage: Stage) -> None:
    """Run it. Raises SmokeFailed."""
    stage.open("valkey", "postgres", "opensearch")
    stage.env |= {"FENCEBEAT_SYNC_SECONDS": "1", "FENCEBEAT_SWEEP_SECONDS": "1"}
    stage.beat("beat")
    worker = stage.worker("worker")
    stage.wait_for_embedder()
    stage.ready(worker)
    made = stage.application()
    stage.wait(
        "indexing the documents",
        lambda: made.ledger.progress(made.spec.target_id).indexed == len(DOCUMENTS),
        at_most=90,
    )
    made.close()
    with _Reader(stage) as reader:
        report = _drive(stage)
    stage.facts |= {
        "ticks": report.ticks,
        "terms": report.terms,
        "frozen leaders": report.freezes,
        "killed leaders": report.kills,
        "takeovers after a kill": [f"{seconds:.2f} s" for seconds in report.takeover_seconds],
        "stale commits refused": report.refused,
        "searches answered": reader.answered,
    }
    stage.expect("electing one leader at a time", report.ok, report.problems)
    stage.expect("answering searches all the time", not reader.failures and reader.answered > 0, reader.failures[:3])
    _run_each_once(stage, report)


def _drive(stage: Stage) -> ElectionReport:
    try:
        return drive_election(
            stage.folder / "drive",
            stage.env["REDIS_URL"],
            namespace=NAMESPACE,
            seconds=SECONDS,
            lease=LEASE,
            task="smoke.tick",
            settings={"fencebeat_effect_store": "tasks.wiring:effect_store"},
            environment=stage.env,
            say=stage.say,
        )
    except NotSeen as missing:
        raise stage.failure("the drive", missing) from missing


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


def _run_each_once(stage: Stage, report: ElectionReport) -> None:
    """Give the worker the queue on which the drive has left its messages."""
    limits = {"socket_timeout": CALL_SECONDS, "socket_connect_timeout": CALL_SECONDS}
    with Celery("smoke", broker=stage.env["REDIS_URL"], set_as_current=False) as client:
        client.conf.broker_transport_options = limits
        client.control.add_consumer(NAMESPACE, reply=True, timeout=CALL_SECONDS)

    def ran() -> bool:
        return len(set(stage.runs(ENTRY))) >= report.ticks

    stage.wait("running every tick", ran, at_most=30)
    twice = [time for time, count in Counter(stage.runs(ENTRY)).items() if count > 1]
    stage.expect("running each tick once", not twice, twice[:5])
