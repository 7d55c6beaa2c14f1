"""The Celery application: `celery -A tasks worker`, `celery -A tasks beat -S fencebeat`."""

from celery import Celery

app = Celery("fencebeat", include=["tasks.indexing", "tasks.upkeep", "tasks.lifecycle"])
app.config_from_object("config.celery")
