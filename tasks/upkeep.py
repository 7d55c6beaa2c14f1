"""The slow tasks: tombstones, purge, doctor."""

from typing import Any

from tasks.base import WakeUp
from tasks.celery import app
from tasks.wiring import services

AUDIT_DAYS = 30


@app.task(name="tasks.collect", base=WakeUp)
def collect() -> int:
    """Bury whatever still waits for its tombstone."""
    return services().collect()


@app.task(name="tasks.purge", base=WakeUp)
def purge() -> int:
    """Delete tombstones older than any late write, and old copies of the scheduler's audit."""
    made = services()
    made.ledger.trim_audit(AUDIT_DAYS)
    return made.purge()


@app.task(name="tasks.doctor", base=WakeUp)
def doctor() -> dict[str, Any]:
    """Compare the target with the manifests; the result is kept for status and metrics."""
    return services().examine().as_dict()
