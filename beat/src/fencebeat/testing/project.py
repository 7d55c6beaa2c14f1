"""A Celery project for drives, told by the environment: REDIS_URL, and FENCEBEAT_DRIVE with settings as JSON.

In `beat_schedule` a schedule is a number of seconds or a crontab of five fields. The task `drive.work` does nothing:
drives look at what is on the queue.
"""

import json
import os
from typing import Any

from celery import Celery
from celery.schedules import crontab


def settings() -> dict[str, Any]:
    """The settings in FENCEBEAT_DRIVE, with crontabs made of their text."""
    told: dict[str, Any] = json.loads(os.environ.get("FENCEBEAT_DRIVE", "{}"))
    for line in told.get("beat_schedule", {}).values():
        if isinstance(line["schedule"], str):
            line["schedule"] = crontab.from_string(line["schedule"])
    return told


app = Celery("drive", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"), set_as_current=False)
app.conf.update({"result_expires": None, **settings()})


@app.task(name="drive.work")
def work(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""
