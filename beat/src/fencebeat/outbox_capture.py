"""Messages for brokers that cannot compare a token: made by Celery as always, kept as rows of the outbox.

`capture` does the same for Redis at the channel; here the producer is the place, one step earlier, because that is
where all transports are still alike, and because nothing needs a connection there: messages are made, committed and
kept also while the broker is down. Declaring queues is left to whoever publishes (`outbox`).

May import: kombu, Celery, the renderer. Must never know: terms, scripts, the publisher.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection, Exchange, Producer, Queue

from fencebeat.capture import Command, Sink
from fencebeat.clock import Clock
from fencebeat.message_template import scope_of
from fencebeat.outbox_record import Message, described
from fencebeat.render import Renderer
from fencebeat.ticks import task_id


class OutboxRenderer(Renderer):
    """A renderer whose messages are one command: the row for the outbox at `key`."""

    def __init__(self, app: Celery, namespace: str, timeout: float, *, key: str, fast: Clock | None = None) -> None:
        """key: of the outbox. fast: see `Renderer`."""
        super().__init__(app, namespace, timeout, fast=fast)
        self._key = key

    def _open(self) -> Any:
        if self._producer is None:
            # A result backend would open a connection here, or subscribe to results that nobody reads in a beat.
            self._app.backend.on_task_call = lambda *_args, **_options: None
            self._connection = self._app.connection_for_write()  # never opened: nothing below asks it for a channel
            facts = {"sink": self._sink, "key": self._key, "amqp": self._app.amqp, "namespace": self._namespace}
            made = type("CapturingProducer", (_CapturingProducer, self._app.amqp.Producer), facts)
            self._producer = made(self._connection, auto_declare=False)
        return self._producer

    def _plain(self) -> Connection:
        return self._app.connection_for_write(
            heartbeat=0,
            connect_timeout=self._timeout,
            transport_options={"read_timeout": self._timeout, "write_timeout": self._timeout},
        )


class _CapturingProducer(Producer):
    """Mixed in before the application's own producer class."""

    sink: Sink
    key: str
    amqp: AMQP
    namespace: str

    def _publish(  # noqa: PLR0917 - kombu's signature
        self,
        body: str | bytes,
        priority: int | None,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,  # noqa: ARG002 - the publisher always asks whether a message reached a queue
        immediate: bool,  # noqa: ARG002 - RabbitMQ has none
        exchange: str,
        declare: Sequence[Exchange | Queue] | None,
        *_: Any,
        **__: Any,
    ) -> None:
        captured = self.sink.begin(self.key)
        entry, fire_time = str(headers["fencebeat_entry"]), int(headers["fencebeat_fire_time"])
        identity = task_id(self.namespace, entry, fire_time)
        if isinstance(reply_to := properties.get("reply_to"), Queue):
            properties["reply_to"] = reply_to.name
        properties.setdefault("message_id", identity)  # the same in every copy that is ever published of this tick
        wanted = [*(declare or ()), *_broadcast(self.amqp, exchange)]
        captured.queues.extend(queues_of(self.amqp, exchange, routing_key, wanted))
        captured.message_id = str(properties["message_id"])
        message = Message(
            entry=entry,
            fire_time=fire_time,
            task_id=identity,
            scopes=("all", scope_of(entry), *(f"queue:{queue}" for queue in captured.queues)),
            body=body,
            content_type=content_type,
            content_encoding=content_encoding,
            priority=priority,
            headers=headers,
            properties=properties,
            exchange=exchange,
            routing_key=routing_key,
            declare=described(wanted),
        )
        captured.commands.append(Command("xadd", self.key, message.to_json()))


def _broadcast(amqp: AMQP, exchange: str) -> Iterator[Exchange]:
    """The exchange of a Broadcast queue: Celery leaves it to the workers, and publishing to none is an error."""
    for queue in amqp.queues.values():
        if exchange and queue.exchange.name == exchange and queue.exchange.type == "fanout":
            yield queue.exchange
            return


def queues_of(amqp: AMQP, exchange: str, routing_key: str, declared: Sequence[Exchange | Queue]) -> list[str]:
    """The queues a message reaches, as far as the configuration knows: where a stop of a queue holds it back.

    The default exchange: the queue of that name. Another one: the queues that are declared with the message, and those
    of `task_queues` that are bound to it and match; of a fanout also the exchange's own name, which is what its queue
    is called in `task_queues`. Bindings that were made by hand on the broker are not known.
    """
    if not exchange:
        return [routing_key]
    found = [one.name for one in declared if isinstance(one, Queue)]
    for queue in amqp.queues.values():
        for source, key in _bindings(queue):
            if source.name == exchange and _matches(source.type, key or "", routing_key or ""):
                found.extend([queue.alias or queue.name, exchange] if source.type == "fanout" else [queue.name])
    return list(dict.fromkeys(found))


def _bindings(queue: Queue) -> Iterator[tuple[Exchange, str | None]]:
    yield queue.exchange, queue.routing_key
    for bound in queue.bindings or ():
        yield bound.exchange, bound.routing_key


def _matches(kind: str, bound: str, routing_key: str) -> bool:
    """Whether a binding lets a message through; for kinds that look at more than the key (headers), perhaps is yes."""
    if kind == "topic":
        return _topic(tuple(bound.split(".")), tuple(routing_key.split(".")))
    return bound == routing_key if kind == "direct" else True


def _topic(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """AMQP 0-9-1: `*` is one word, `#` is any number of words, none included."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_topic(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _topic(pattern[1:], words[1:])
