"""A Celery project whose ticks leave rows in Postgres: beats and workers of it find out what ran, and how often.

REDIS_URL is the broker, FENCEBEAT_DRIVE has settings as JSON (see `fencebeat.testing.project`), EFFECTS_URL a Postgres
with the table `effect`. `ticking.guarded` closes its claim in the transaction of its effect.
"""

import os

import psycopg
from celery import Celery

from fencebeat.guard import GuardedTask, current_tick
from fencebeat.testing.project import settings

app = Celery("ticking", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1:1/0"), set_as_current=False)
app.conf.update(
    {
        "result_expires": None,
        "fencebeat_claims": os.environ.get("EFFECTS_URL", ""),
        "fencebeat_claim_lease": 2.0,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "broker_connection_retry_on_startup": True,
        # What a worker that died has taken comes back after this time: a broker without data has lost it anyway.
        "broker_transport_options": {"visibility_timeout": 3600, "socket_timeout": 5, "socket_connect_timeout": 5},
        **settings(os.environ.get("FENCEBEAT_DRIVE", "{}")),
    }
)

TABLE = "CREATE TABLE effect (task_id uuid, entry text, fire_time bigint, attempt int)"


@app.task(name="ticking.guarded", base=GuardedTask, shared=False)
def guarded() -> None:
    """Leave a row, once a tick."""
    tick = current_tick()
    with psycopg.connect(os.environ["EFFECTS_URL"], connect_timeout=5) as connection:
        row = (tick.task_id, tick.entry, tick.fire_time, tick.attempt)
        connection.execute("INSERT INTO effect VALUES (%s, %s, %s, %s)", row)
        tick.close(connection)


@app.task(name="ticking.bare", shared=False)
def bare() -> None:
    """Leave a row each time it runs."""
    tick = current_tick()
    with psycopg.connect(os.environ["EFFECTS_URL"], connect_timeout=5) as connection:
        connection.execute("INSERT INTO effect VALUES (%s, %s, %s, NULL)", (tick.task_id, tick.entry, tick.fire_time))
