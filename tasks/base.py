"""What all tasks have in common: none starts while its start is stopped, and passing faults are no surprise.

Which tasks are guarded, and why most are not: docs/decisions/010-guarded-ticks.md.
"""

from typing import Any

from celery import Task

from config import events
from config.events import emit
from fencebeat.errors import Refused, Retryable
from fencebeat.guard import GuardedTask
from tasks.wiring import services


class WakeUp(Task):
    """A task that may be lost, doubled or refused: the ledger is the work list, and the next wake-up finds it.

    Retryable and Refused end a run with one line in the log and no traceback.
    """

    throws = (Retryable, Refused)
    ignore_result = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, unless a switch at level `start` covers everything or this queue; unknown means no."""
        queue = (self.request.delivery_info or {}).get("routing_key") or self.app.conf.task_default_queue
        if not services().reader.permits("start", ("all", f"queue:{queue}")):
            emit(events.TASK_REFUSED, task=self.name, queue=queue)
            return None
        return super().__call__(*args, **kwargs)


class Daily(WakeUp, GuardedTask):
    """A wake-up that comes once a day: a worker that dies with it must not take the day with it."""
