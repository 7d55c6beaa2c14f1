"""The application with a task that ticks each second and leaves a line in the history; loaded by the smoke runs only.

`all` as catch-up: a tick that is late because its leader was killed is emitted late, and never left out.
"""

from typing import Final

from celery import Task

from fencebeat.history import record
from tasks import app

ENTRY: Final = "smoke-tick"

app.conf.beat_schedule = {
    **app.conf.beat_schedule,
    ENTRY: {"task": "smoke.tick", "schedule": 1.0, "fencebeat": {"catchup": "all"}},
}


@app.task(name="smoke.tick", bind=True)
def tick(self: Task) -> None:
    """Say which tick ran."""
    headers = self.request.headers or {}
    record(
        "ran",
        entry=headers.get("fencebeat_entry"),
        fire_time=headers.get("fencebeat_fire_time"),
        token=headers.get("fencebeat_token"),
    )
