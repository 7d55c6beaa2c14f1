"""What the beat emits: wake-ups. The ledger is the work list, so a lost or doubled wake-up changes nothing."""

from typing import Any

from celery.schedules import crontab

from config.settings import Settings


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """The static schedule: a sync for each source, and the sweeps that need no source."""
    schedule: dict[str, dict[str, Any]] = {
        f"sync-{name}": {
            "task": "tasks.sync_source",
            "schedule": settings.sync_seconds,
            "args": [name],
            "options": {"expires": max(settings.sync_seconds * 2, 10)},
        }
        for name in sorted(settings.sources)
    }
    schedule["sweep"] = {
        "task": "tasks.sweep",
        "schedule": settings.sweep_seconds,
        "options": {"expires": max(settings.sweep_seconds * 2, 10)},
    }
    schedule["collect"] = {"task": "tasks.collect", "schedule": 30.0, "options": {"expires": 60}}
    schedule["doctor"] = {"task": "tasks.doctor", "schedule": 600.0, "options": {"expires": 600}}
    schedule["purge"] = {"task": "tasks.purge", "schedule": crontab(hour="4", minute="30")}
    return schedule
