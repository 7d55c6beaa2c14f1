"""A Celery project on RabbitMQ whose guarded task has an effect that can be counted; told by the environment.

RABBITMQ_URL is the broker, DRIVE_QUEUE the queue, REDIS_URL where effects are counted, FENCEBEAT_CLAIMS the store of
claims, FENCEBEAT_NAMESPACE its namespace.
"""

import os

import redis
from celery import Celery

from fencebeat.guard import GuardedTask, current_tick

app = Celery("outbox_project", broker=os.environ.get("RABBITMQ_URL", "amqp://"), set_as_current=False)
app.conf.update(
    task_queues={
        os.environ.get("DRIVE_QUEUE", "drive"): {
            "exchange": os.environ.get("DRIVE_QUEUE", "drive"),
            "exchange_type": "topic",
            "binding_key": "#",
        }
    },
    fencebeat_claims=os.environ.get("FENCEBEAT_CLAIMS", ""),
    fencebeat_claim_lease=5.0,
    fencebeat_namespace=os.environ.get("FENCEBEAT_NAMESPACE", "fencebeat"),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="drive.effect", base=GuardedTask, shared=False)
def effect() -> None:
    """Count one effect of this tick."""
    with redis.Redis.from_url(os.environ["REDIS_URL"], socket_timeout=5, socket_connect_timeout=5) as client:
        client.hincrby("effects", current_tick().task_id, 1)
