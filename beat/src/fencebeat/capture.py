"""Messages made by Celery and kombu as always, collected instead of sent, so that one script can send and record them.

The scheduler publishes on a connection of its own whose channels override the two places where kombu's Redis transport
writes a message: `_put` (queues) and `_put_fanout` (Broadcast). Routing, priorities, headers, serializer, signals, TLS
and Sentinel options stay theirs. What was collected lives in the `Sink`, outside the channels: after an error kombu's
`ensure` replaces the channel in the middle of a publish.

Declaring a queue still writes its binding, as it does without us: that is topology, the same for every beat, and no
message. Any other write is refused.

May import: kombu, redis. Must never know: terms, entries, scripts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kombu import Connection
from kombu.transport import redis as transport
from kombu.utils.json import dumps
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from fencebeat.errors import ImpossibleConfiguration, UncapturedWrite

_READS = frozenset({"PING", "SMEMBERS", "EXISTS", "LLEN"})
_SCRIPTS = frozenset({"EVALSHA", "SCRIPT LOAD"})  # kombu's only script on this path renews a binding
_TOPOLOGY = "_kombu.binding"


class Command(NamedTuple):
    """One command that kombu would have sent. `key` is complete, kombu's global prefix included."""

    name: Literal["lpush", "pexpire", "publish", "xadd"]  # xadd: the outbox's, which kombu does not know
    key: str
    value: str


@dataclass
class Captured:
    """What one message became: its commands, the queues it goes to, the broker's id of it. No command: unroutable."""

    commands: list[Command] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    message_id: str = ""


class Sink:
    """Where channels put what they would have sent, one at a time; outside `collecting` a message is refused."""

    def __init__(self) -> None:
        self._open: Captured | None = None

    @contextmanager
    def collecting(self) -> Iterator[Captured]:
        """Collect what is published inside the block."""
        self._open = captured = Captured()
        try:
            yield captured
        finally:
            self._open = None

    def begin(self, key: str) -> Captured:
        """The message being collected. Raises UncapturedWrite when none is."""
        if self._open is None:
            raise UncapturedWrite(command="a message", key=key)
        return self._open


class _CapturingChannel(transport.Channel):
    """Mixed in before kombu's own channel class."""

    sink: Sink
    timeout: float

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        captured = self.sink.begin(queue)
        if queue == self.deadletter_queue:  # kombu's place for what no binding matches; nobody reads it
            return
        captured.queues.append(queue)
        captured.message_id = str(message["properties"]["delivery_tag"])
        key = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
        captured.commands.append(Command("lpush", self._prefixed(key), dumps(message)))
        if queue in self._expires:
            captured.commands.extend(
                Command("pexpire", self._prefixed(self._q_for_pri(queue, step)), str(self._expires[queue]))
                for step in self.priority_steps
            )

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        captured = self.sink.begin(exchange)
        captured.queues.append(exchange)
        captured.message_id = str(message["properties"]["delivery_tag"])
        payload = dumps(message)
        captured.commands.extend(
            Command("publish", self._prefixed(topic), payload)
            for topic in self._get_publish_topics(exchange, routing_key)
        )

    def _prefixed(self, key: str) -> str:
        return f"{self.global_keyprefix}{key}"

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """What kombu would use, with our time-outs: by default redis-py retries ten times, kombu waits for ever."""
        ours: dict[str, Any] = {
            "socket_timeout": self.timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        }
        theirs = super()._connparams(asynchronous)
        if "path" not in theirs:  # a Unix socket has no time-out of its own for connecting
            ours["socket_connect_timeout"] = self.timeout
        return {**theirs, **ours}

    def _create_client(self, asynchronous: bool = False) -> Any:
        return _guarded(super()._create_client(asynchronous))


def _guarded(client: Any) -> Any:
    """Make a client, and the pipelines it opens, refuse every command that could be a message."""
    execute, pipeline = client.execute_command, getattr(client, "pipeline", None)

    def guarded_execute(*args: Any, **options: Any) -> Any:
        name = str(args[0]).upper()
        keys = [str(arg) for arg in args[1:] if isinstance(arg, str)]
        if name not in _READS and name not in _SCRIPTS and not (name == "SADD" and keys[0].startswith(_TOPOLOGY)):
            raise UncapturedWrite(command=name, key=keys[0] if keys else "")
        return execute(*args, **options)

    client.execute_command = guarded_execute
    if pipeline is not None:
        client.pipeline = lambda *args, **options: _guarded(pipeline(*args, **options))
    return client


def capturing(connection: Connection, sink: Sink, timeout: float) -> Connection:
    """Make `connection` (not connected yet) collect into `sink`. `timeout` in seconds, for connecting and each reply.

    Raises ImpossibleConfiguration where its transport is not kombu's Redis.
    """
    theirs = connection.get_transport_cls()
    if not issubclass(theirs, transport.Transport):
        raise ImpossibleConfiguration(rules="the broker must be Redis or Valkey: its scripts check the fence.")
    channel = type("CapturingChannel", (_CapturingChannel, theirs.Channel), {"sink": sink, "timeout": timeout})
    connection.transport_cls = type("CapturingTransport", (theirs,), {"Channel": channel})
    return connection
