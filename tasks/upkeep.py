"""The slow tasks: tombstones, purge, doctor."""

from typing import Any

from fencebeat.claims.opening import claims_of
from tasks.base import Daily, WakeUp
from tasks.celery import app
from tasks.wiring import services

AUDIT_DAYS = 30


@app.task(name="tasks.collect", base=WakeUp)
def collect() -> int:
    """Bury whatever still waits for its tombstone."""
    return services().collect()


@app.task(name="tasks.purge", base=Daily)
def purge() -> int:
    """Delete tombstones older than any late write, old copies of the scheduler's audit, and old claims of ticks."""
    made = services()
    made.ledger.trim_audit(AUDIT_DAYS)
    claims_of(app)[1].purge(AUDIT_DAYS * 86_400)
    return made.purge()


@app.task(name="tasks.doctor", base=WakeUp)
def doctor() -> dict[str, Any]:
    """Compare the target with the manifests; the result is kept for status and metrics."""
    return services().examine().as_dict()
