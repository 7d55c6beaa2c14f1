"""Celery's configuration, read by `app.config_from_object("config.celery")`. Module-level names are Celery's own."""

from config.schedule import beat_schedule as _beat_schedule
from config.settings import settings as _settings

_configured = _settings()

broker_url = _configured.redis_url
broker_connection_retry_on_startup = True
broker_transport_options = {
    "socket_timeout": 30,  # longer than kombu's blocking pops
    "socket_connect_timeout": _configured.control_timeout,
    "socket_keepalive": True,
    "visibility_timeout": 3600,  # wake-ups are acknowledged early; only what is lost in between comes back so late
}

# JSON only: a pickle on the queue would let whoever reaches Redis run code here.
task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True
result_expires = None  # there are no results, so Celery needs no daily clean-up of them
task_default_queue = _configured.namespace
task_time_limit = 900  # a hung pool child is replaced; its claims lapse and are taken over
task_track_started = True
task_send_sent_event = True
worker_send_task_events = True
worker_prefetch_multiplier = 1
worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_max_tasks_per_child = 2000
worker_proc_alive_timeout = 30.0

timezone = "UTC"
beat_schedule = _beat_schedule(_configured)

fencebeat_namespace = _configured.namespace
fencebeat_lease = _configured.lease_seconds
fencebeat_lock = _configured.lock
fencebeat_etcd_url = _configured.etcd_url
fencebeat_effect_store = "tasks.wiring:effect_store"
fencebeat_claims = "tasks.wiring:claim_store"
