"""From an entry and a fire time to the message that will be queued, by Celery's own path.

Every message carries the tick in its headers: fencebeat_tick, fencebeat_entry, fencebeat_fire_time (microseconds),
fencebeat_token, and the `traceparent` of the tick's trace, which workers continue.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from fencebeat.capture import Captured, Sink, capturing
from fencebeat.clock import Clock
from fencebeat.entries import Entry
from fencebeat.errors import StoreUnreachable
from fencebeat.guard import is_guarded
from fencebeat.templates import Templates
from fencebeat.ticks import task_id, tick_id, traceparent

log = logging.getLogger(__name__)


class SentEvents:
    """Stands where Celery's event dispatcher would publish `task-sent`, and keeps it until the tick is committed."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def publish(self, type: str, fields: Mapping[str, Any], *_: Any, **__: Any) -> None:  # noqa: A002 - Celery's name
        """Keep one event; see `celery.events.EventDispatcher.publish`."""
        self.kept.append({"type": type, **fields})


class Renderer:
    """Makes messages on a connection of its own. One thread only."""

    def __init__(self, app: Celery, namespace: str, timeout: float, *, fast: Clock | None = None) -> None:
        """fast: the clock by which templates age (see `templates`); None: every message goes Celery's own way."""
        self._app, self._namespace, self._timeout = app, namespace, timeout
        self.templates = Templates(app, namespace, self.render_fully, fast) if fast is not None else None
        self._sink = Sink()
        self._guarded: dict[str, bool] = {}
        self._connection: Connection | None = None
        self._producer: Any = None
        self._events: dict[str, list[dict[str, Any]]] = {}  # task id -> what to say once it is sent

    def render(self, entry: Entry, fire_time: int, token: int) -> tuple[str, Captured]:
        """The task id and the message of one tick, from a template where there is a proven one.

        Raises StoreUnreachable where the broker does not answer; whatever else publishing raises goes through.
        """
        made = self.templates.message(entry, fire_time, token) if self.templates is not None else None
        return made or self.render_fully(entry, fire_time, token)

    def render_fully(self, entry: Entry, fire_time: int, token: int) -> tuple[str, Captured]:
        """The same, always by Celery's own path."""
        identity = task_id(self._namespace, entry.name, fire_time)
        headers = {
            **entry.options.get("headers", {}),
            "celery_beat_task": True,
            "fencebeat_tick": tick_id(entry.name, fire_time),
            "fencebeat_entry": entry.name,
            "fencebeat_fire_time": fire_time,
            "fencebeat_token": token,
            "traceparent": traceparent(identity),
        }
        events = SentEvents()
        options = {
            **entry.options,
            "headers": headers,
            "task_id": identity,
            "retry": False,  # the tick stays due, and the next round tries it with fresh facts
            "add_to_parent": False,
            "event_dispatcher": events,
        }
        args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        task = self._app.tasks.get(entry.task)
        with self._sink.collecting() as captured, self._reaching():
            options["producer"] = self._open()
            if task is not None:
                task.apply_async(args, kwargs, **options)
            else:
                self._app.send_task(entry.task, args, kwargs, **options)
        if events.kept:
            self._events[identity] = events.kept
        return identity, captured

    def guarded(self, entry: Entry) -> bool:
        """Whether a worker would find a further copy of the entry's ticks claimed."""
        if entry.task not in self._guarded:
            self._guarded[entry.task] = is_guarded(self._app, entry.task)
        return self._guarded[entry.task]

    def sent(self, identities: list[str]) -> None:
        """Publish the `task-sent` events of these committed ticks. An event that cannot be sent is logged, no more."""
        events = [event for identity in identities for event in self._events.pop(identity, [])]
        self._events.clear()
        if not events:
            return
        try:
            with self._plain() as connection, self._app.events.Dispatcher(connection, enabled=True) as dispatcher:
                for event in events:
                    dispatcher.publish(event.pop("type"), event, dispatcher.producer, retry=False)
        except Exception as error:  # noqa: BLE001 - an observer must not stop the schedule
            log.warning("task-sent events of %d ticks were not published: %r", len(events), error)

    def close(self) -> None:
        """Drop the connection; the next message opens another. Called again it does nothing."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Tell a broker that does not answer, which concerns all entries, from a fault of one entry."""
        try:
            yield
        except (OperationalError, RedisError) as error:
            address = self._connection.as_uri() if self._connection is not None else "the broker"
            self.close()
            raise StoreUnreachable(store="The broker", seconds=self._timeout, why=error, address=address) from error

    def _plain(self) -> Connection:
        bounds = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
        return self._app.connection_for_write(transport_options={**self._app.conf.broker_transport_options, **bounds})

    def _open(self) -> Any:
        if self._producer is None:
            # A Redis result backend would subscribe to each task's result here, in a process that never reads one.
            self._app.backend.on_task_call = lambda *_args, **_options: None
            self._connection = capturing(self._app.connection_for_write(), self._sink, self._timeout)
            for queue in self._app.amqp.queues.values():
                if queue.exchange.type == "fanout":  # known to this connection only; else kombu takes it for a direct
                    queue.exchange(self._connection.default_channel).declare()  # one and drops a broadcast in silence
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer
