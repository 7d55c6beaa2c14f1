"""Publishing rows to the broker: declare what Celery would declare, publish, and know what became of it.

    sent ──▶ confirmed: the broker has it        returned: no queue was bound (declared again and sent once more first)
      │
      └────▶ refused: this row alone is at fault (nacked, an exchange that is not there, a queue that is another one)
             BrokerGone: nothing is known of the rows in flight; they stay in the outbox and are sent again

On AMQP up to `WINDOW` messages are in flight: confirms come back together, and a message costs no round trip of its
own. Where a channel error could be any of several rows in flight, they are sent again one by one, so that the one at
fault is known and the others go on. Other transports of kombu answer each publish by themselves (or raise).

May import: kombu, amqp, the record. Must never know: terms, Redis.
"""

import contextlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from amqp.exceptions import AMQPError, ChannelError, FrameSyntaxError
from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError, OperationalError
from kombu.transport import pyamqp
from kombu.utils.json import dumps

from fencebeat.clock import Clock
from fencebeat.errors import BrokerGone
from fencebeat.outbox_record import Message, entity

WINDOW = 64
"""Messages in flight: what a crash may send twice (under the same id), against one round trip for each."""
CONFIRM_SECONDS = 10.0
"""A confirm that takes longer is lost: a broker confirms when all copies of a durable queue are on disk."""
BLOCKED_SECONDS = 60.0
"""A broker that has told us to wait (an alarm of memory or disk) is looked for anew after that."""

GOOD_BYE_SECONDS = 0.2

_AT_ONCE = {"interval_start": 0, "interval_step": 0, "interval_max": 0}  # the publisher does the waiting
_LOST = (OperationalError, AMQPError, OSError)
_UNSENDABLE = (
    KombuError,
    FrameSyntaxError,
    struct.error,
    KeyError,
    TypeError,
    ValueError,
)  # raised before a byte is sent

Fate = Literal["published", "unroutable", "refused"]


@dataclass(frozen=True)
class Settled:
    """What became of one row."""

    row: str
    message: Message
    fate: Fate
    reason: str = ""


@dataclass
class _InFlight:
    row: str
    message: Message
    since: float
    returned: str = ""
    again: bool = False  # it came back once


class Sender:
    """One connection to the broker. One thread only; `timeout` in seconds, for connecting and each reply."""

    def __init__(self, app: Celery, clock: Clock, timeout: float) -> None:
        self._app, self._clock, self._timeout = app, clock, timeout
        self._connection: Connection | None = None
        self._raw: Any = None  # the transport's own connection
        self._channel: Any = None
        self._declared: set[str] = set()
        self._flying: dict[int, _InFlight] = {}  # delivery tag -> row, oldest first
        self._tag = 0
        self._careful: set[str] = set()  # rows to be sent alone, because one of them is at fault
        self._settled: list[Settled] = []
        self._returned: list[_InFlight] = []  # to be sent once more
        self._blocked: float | None = None  # since when the broker wants us to wait

    @property
    def in_flight(self) -> int:
        """How many rows were sent whose fate is not known."""
        return len(self._flying) + len(self._returned)

    @property
    def blocked(self) -> bool:
        """Whether the broker has told publishers to wait."""
        return self._blocked is not None

    def ready(self, row: str) -> bool:
        """Whether `row` may be sent now: there is room for it in flight."""
        alone = row in self._careful or any(one.row in self._careful for one in self._flying.values())
        return not self.blocked and self.in_flight < (1 if alone else WINDOW)

    def send(self, row: str, message: Message) -> None:
        """Publish one row. What became of it comes from `settled`. Raises BrokerGone."""
        with self._reaching():
            self._open()
            self._send(_InFlight(row, message, self._clock.elapsed()))

    def settled(self, at_most: float) -> list[Settled]:
        """What became of rows since the last call; waits up to `at_most` seconds for news where there is none yet.

        at_most: 0 does not look at the connection at all; each publish does that.
        Raises BrokerGone where a confirm is overdue or the connection is lost.
        """
        if self._returned or (at_most and not self._settled and isinstance(self._raw, pyamqp.Connection)):
            with self._reaching():
                try:
                    if not self._returned:
                        self._raw.drain_events(timeout=at_most)
                except TimeoutError:
                    self._look_at_time()
                except ChannelError as error:
                    self._refused(error)
                returned, self._returned = self._returned, []
                for flying in returned:
                    self._open()
                    self._send(flying)
        news, self._settled = self._settled, []
        return news

    def close(self, *, politely: bool = False) -> None:
        """Drop the connection; rows in flight are forgotten here and stay in the outbox. Again it does nothing.

        politely: say good-bye, which waits for the broker's own, `GOOD_BYE_SECONDS` at most.
        """
        raw, connection = self._raw, self._connection
        self._raw = self._channel = self._connection = self._blocked = None
        for kept in (self._flying, self._declared, self._settled, self._returned):
            kept.clear()
        if connection is None:
            return
        with contextlib.suppress(*_LOST):  # it is dropped either way
            if isinstance(raw, pyamqp.Connection):
                if politely and raw.connected:
                    raw.sock.settimeout(GOOD_BYE_SECONDS)
                else:
                    raw.collect()
            connection.release()

    def _open(self) -> None:
        if self._connection is None:
            self._connection = self._app.connection_for_write(
                heartbeat=0,  # nobody would send them while nothing is due; a dead peer shows at the next confirm
                connect_timeout=self._timeout,
                transport_options={"confirm_publish": False},  # it would wait for each confirm; ours come together
            )
            self._connection.ensure_connection(max_retries=len(self._connection.alt) or 1, **_AT_ONCE)
            self._raw = self._connection.connection
            if isinstance(self._raw, pyamqp.Connection):
                self._raw.sock.settimeout(self._timeout)  # py-amqp would wait for ever for a reply, and write for ever
                self._raw.on_blocked, self._raw.on_unblocked = self._on_blocked, self._on_unblocked
        if self._channel is None:
            self._channel, self._tag = self._connection.channel(), 0
            self._declared.clear()
            if isinstance(self._raw, pyamqp.Connection):
                self._channel.confirm_select()
                self._channel.events["basic_ack"].add(self._on_ack)
                self._channel.events["basic_nack"].add(self._on_nack)
                self._channel.events["basic_return"].add(self._on_return)

    def _send(self, flying: _InFlight) -> None:
        try:
            self._declare(flying.message)
            self._publish(flying)
        except OperationalError:
            raise
        except (ChannelError, *_UNSENDABLE) as error:
            self._refused(error, flying)

    def _publish(self, flying: _InFlight) -> None:
        message, confirming = flying.message, isinstance(self._raw, pyamqp.Connection)
        prepared = self._channel.prepare_message(
            message.body,
            message.priority,
            message.content_type,
            message.content_encoding,
            dict(message.headers),
            dict(message.properties),
        )
        if confirming:
            self._tag += 1
            self._flying[self._tag] = flying
        self._channel.basic_publish(
            prepared, exchange=message.exchange, routing_key=message.routing_key, mandatory=True, timeout=self._timeout
        )
        if not confirming:
            self._settle(flying, "published")

    def _declare(self, message: Message) -> None:
        """What kombu's `maybe_declare` does: once a channel, and each time for what vanishes by itself."""
        for facts in message.declare:
            name = dumps(facts)
            if name not in self._declared:
                one = entity(facts)
                one.bind(self._channel).declare()
                if one.can_cache_declaration:
                    self._declared.add(name)

    def _settle(self, flying: _InFlight, fate: Fate, reason: str = "") -> None:
        if fate == "published":
            self._careful.discard(flying.row)
        self._settled.append(Settled(flying.row, flying.message, fate, reason))

    def _take(self, tag: int, multiple: bool) -> Iterator[_InFlight]:
        for known in [one for one in self._flying if one == tag or (multiple and one < tag)]:
            yield self._flying.pop(known)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for flying in self._take(tag, multiple):
            if not flying.returned:
                self._settle(flying, "published")
            elif flying.again or not flying.message.declare:
                self._settle(flying, "unroutable", flying.returned)
            else:  # somebody deleted its queue after we declared it: nobody has the message, so it is sent once more
                self._declared.clear()
                self._returned.append(_InFlight(flying.row, flying.message, self._clock.elapsed(), again=True))

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for flying in self._take(tag, multiple):
            self._settle(flying, "refused", "the broker did not take it (nack): its queue is full, or it has a fault")

    def _on_return(self, error: Exception, _exchange: str, _routing_key: str, message: Any) -> None:
        tick = message.properties.get("application_headers", {}).get("fencebeat_tick")
        for flying in self._flying.values():
            if flying.message.headers.get("fencebeat_tick") == tick:
                flying.returned = f"no queue took it ({error})"

    def _on_blocked(self, *_: Any) -> None:
        self._blocked = self._clock.elapsed()

    def _on_unblocked(self) -> None:
        self._blocked = None
        for flying in self._flying.values():
            flying.since = self._clock.elapsed()

    def _refused(self, error: Exception, current: _InFlight | None = None) -> None:
        """Something was refused: `current`, or one of the rows in flight, whose confirms are lost with the channel.

        Raises BrokerGone where others are concerned: they are read and sent again, those under suspicion alone.
        """
        others = [flying for flying in self._flying.values() if flying is not current]
        suspects = [*others, current] if current is not None else others
        self._careful.update(flying.row for flying in suspects)
        if len(suspects) > 1:
            raise self._gone(f"it refused one of {len(suspects)} messages, which are sent again one by one: {error}")
        self.close(politely=True)
        for flying in suspects:
            self._settle(flying, "refused", str(error) or type(error).__name__)

    def _look_at_time(self) -> None:
        now = self._clock.elapsed()
        if self._blocked is not None:
            if now - self._blocked > BLOCKED_SECONDS:
                raise TimeoutError(f"it has told publishers to wait for more than {BLOCKED_SECONDS:g} s")
        elif self._flying and now - next(iter(self._flying.values())).since > CONFIRM_SECONDS:
            raise TimeoutError(f"{len(self._flying)} messages were not confirmed within {CONFIRM_SECONDS:g} s")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Whatever a lost connection raises becomes BrokerGone, and the connection is dropped."""
        try:
            yield
        except BrokerGone:
            self.close()
            raise
        except (*_LOST, AttributeError) as error:
            if isinstance(error, AttributeError) and getattr(self._raw, "connected", False):
                raise  # py-amqp has that for a connection that is gone; else it is a fault of the program
            gone = self._gone(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            self.close()
            raise gone from error

    def _gone(self, why: str) -> BrokerGone:
        address = self._connection.as_uri() if self._connection is not None else self._app.connection().as_uri()
        return BrokerGone(why=why, address=address)
