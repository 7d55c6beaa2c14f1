"""An outbox with a publisher of its own on real servers, and what arrived on RabbitMQ."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import kombu
import redis
from amqp.exceptions import NotFound
from celery import Celery
from kombu import Queue

from fencebeat.clock import SystemClock
from fencebeat.entries import Entry
from fencebeat.lease import Term
from fencebeat.outbox import Publisher
from fencebeat.outbox_capture import OutboxRenderer
from fencebeat.outbox_sending import Sender
from fencebeat.store import Emission
from tests.support.fences import Fence
from tests.support.leading import rendered
from tests.support.waiting import until


def application(rabbitmq_url: str, namespace: str, **conf) -> Celery:
    """A Celery application on RabbitMQ whose default queue is the namespace's own."""
    app = Celery("outbox", broker=rabbitmq_url, set_as_current=False)
    app.conf.update(task_default_queue=namespace, **conf)
    app.finalize()
    return app


class Arrivals:
    """Reads queues of RabbitMQ."""

    def __init__(self, url: str) -> None:
        self._connection = kombu.Connection(url, connect_timeout=10, heartbeat=0)
        self._channel = self._connection.channel()

    def declare(self, name: str, **options) -> None:
        Queue(name, **options).bind(self._channel).declare()

    def delete(self, name: str) -> None:
        self._channel.queue_delete(name)

    def waiting(self, queue: str) -> int:
        """Messages on an existing queue."""
        return self._channel.queue_declare(queue, passive=True).message_count

    def take(self, queue: str) -> list[kombu.Message]:
        """All messages that are on an existing queue now, oldest first."""
        found = []
        while (message := self._channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def wait_for(self, queue: str, count: int, at_most: float = 20.0) -> list[kombu.Message]:
        """As many messages, oldest first."""
        found: list[kombu.Message] = []

        def look() -> bool:
            found.extend(self.take(queue))
            return len(found) >= count

        until(look, at_most=at_most, what=f"{count} messages on {queue}")
        return found

    def wait_for_queue(self, queue: str, count: int, at_most: float = 20.0) -> list[kombu.Message]:
        """The same, of a queue that the publisher has still to declare."""
        until(lambda: self._exists(queue), at_most=at_most, what=f"queue {queue}")
        return self.wait_for(queue, count, at_most)

    def _exists(self, queue: str) -> bool:
        with self._connection.channel() as channel:  # a channel of its own: it is closed where there is no queue
            try:
                channel.queue_declare(queue, passive=True)
            except NotFound:
                return False
            return True

    def close(self) -> None:
        self._connection.release()


def ticks(messages) -> list[str]:
    return [message.headers["fencebeat_tick"] for message in messages]


@dataclass
class Bench:
    """A sealed term, messages for RabbitMQ, a publisher that believes in the term of `leader`."""

    fence: Fence
    app: Celery
    renderer: OutboxRenderer
    publisher: Publisher
    sender: Sender
    arrivals: Arrivals
    leader: list[Term | None] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.fence.client.xlen(self.fence.keys.outbox)

    def emission(self, entry: Entry, fire_time: int, term: Term | None = None) -> Emission:
        return rendered(self.renderer, entry, fire_time, term or self.fence.term)

    def outcomes(self) -> list[str]:
        return [record["outcome"] for record in self.fence.audit()]

    def wait_until_empty(self, at_most: float = 20.0) -> None:
        until(lambda: self.rows == 0, at_most=at_most, what="an empty outbox")


@contextmanager
def bench(redis_url: str, rabbitmq_url: str, namespace: str, *, limit: int = 10_000, **conf) -> Iterator[Bench]:
    """Everything but the started thread."""
    connected = {"decode_responses": True, "socket_timeout": 5, "socket_connect_timeout": 5}
    clients = [redis.Redis.from_url(redis_url, **connected) for _ in range(3)]
    fence = Fence.sealed(clients[0], namespace)
    fence.term = replace(fence.term, lease=3600.0)  # each commit extends the lock by it: nobody renews it here
    app = application(rabbitmq_url, namespace, **conf)
    leader: list[Term | None] = [fence.term]
    sender = Sender(app, SystemClock(), 5.0)
    publisher = Publisher(
        sender,
        clients[1],
        clients[2],
        fence.keys,
        clock=SystemClock(),
        leading=lambda: leader[-1],
        limit=limit,
    )
    renderer = OutboxRenderer(app, namespace, 5.0, key=fence.keys.outbox)
    arrivals = Arrivals(rabbitmq_url)
    try:
        yield Bench(fence, app, renderer, publisher, sender, arrivals, leader)
    finally:
        publisher.stop(10)
        sender.close()
        renderer.close()
        arrivals.close()
        app.close()
        for client in clients:
            client.close()
