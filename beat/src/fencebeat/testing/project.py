"""A Celery project for drives, told by the environment: REDIS_URL, and FENCEBEAT_DRIVE with settings as JSON.

In `beat_schedule` a schedule is a number of seconds or a crontab of five fields, a `start` is ISO text. The task
`drive.work` does nothing: drives look at what is on the queue.
"""

import json
import os
from datetime import datetime
from typing import Any

from celery import Celery
from celery.schedules import crontab


def settings(text: str) -> dict[str, Any]:
    """The settings in a JSON text, with crontabs and starts made of their text."""
    told: dict[str, Any] = json.loads(text)
    for line in told.get("beat_schedule", {}).values():
        if isinstance(line["schedule"], str):
            line["schedule"] = crontab.from_string(line["schedule"])
        policies = line.get("fencebeat", {})
        if isinstance(policies.get("start"), str):
            policies["start"] = datetime.fromisoformat(policies["start"])
    return told


app = Celery("drive", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"), set_as_current=False)
app.conf.update({"result_expires": None, **settings(os.environ.get("FENCEBEAT_DRIVE", "{}"))})


@app.task(name="drive.work", shared=False)
def work(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""
