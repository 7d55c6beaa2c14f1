"""The tasks that keep the index equal to its sources. Messages are wake-ups: they carry references, and may be lost."""

from typing import Any

from celery import Task

from fencebeat.scripts import asking
from index.ledger import Progress
from tasks.base import WakeUp
from tasks.celery import app
from tasks.wiring import services

EXPIRES = 60  # seconds; an older wake-up has been overtaken by a sweep
WAKE_UPS = 8  # messages in the queue beyond which no wake-up is added: it would only wait there


def wake_up(progress: Progress) -> int:
    """Send wake-ups for claimable work, unless enough of them wait in the queue already; returns how many."""
    made = services()
    wanted = -(-max(progress.dirty - progress.claimed, 0) // made.settings.claim_batch)
    with asking(made.redis):
        waiting = int(made.redis.llen(f"{made.keys.prefix}{app.conf.task_default_queue}"))
    count = max(min(wanted, WAKE_UPS - waiting), 0)
    for _ in range(count):
        index_documents.apply_async(expires=EXPIRES)
    return count


@app.task(name="tasks.sync_source", base=WakeUp)
def sync_source(name: str, approve: bool = False) -> dict[str, Any]:
    """List a source, mark what differs, and wake workers."""
    made = services()
    tenant = made.source(name).tenant_id
    if not made.reader.permits("start", (f"tenant:{tenant}", f"source:{tenant}/{name}")):
        return {"stopped": True}
    report = made.sync(name, approve=approve)
    if report.marked or report.absent:
        wake_up(made.ledger.progress(made.spec.target_id))
    return report.as_dict()


@app.task(name="tasks.index_documents", base=WakeUp, bind=True)
def index_documents(self: Task) -> dict[str, int]:
    """Claim one batch, bring it to an end, bury what it left, and go on while there is work."""
    made = services()
    report = made.indexer.run_batch()
    if report.claimed:
        made.collect()
        self.apply_async(expires=EXPIRES)
    return {str(outcome): count for outcome, count in report.outcomes.items()}


@app.task(name="tasks.sweep", base=WakeUp)
def sweep() -> int:
    """Find dirty documents that no message announces any more, and wake workers for them."""
    made = services()
    return wake_up(made.ledger.progress(made.spec.target_id))
