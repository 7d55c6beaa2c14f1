"""The outbox: how ticks reach a broker that cannot compare a token (RabbitMQ, SQS, ...).

The commit script cannot put a message on such a broker's queue in the step that advances the mark. It writes the
message to a stream beside the mark instead, and the leader publishes from there:

    commit: mark + row ──▶ step script: still my term? no stop in force? ──▶ publish ──▶ confirmed by the broker
                               ▲                                                                    │
                               └──── the same script, under the term: row out, audit `published` ◀──┘

    a crash or a lost answer between publish and removal   the row is still there: it is sent again, under the same id,
                                                           and the worker's guard drops the copy
    frozen after the check of one row                      that one message is late; a copy under the same id
    a stop is in force                                     the row stays in place, others pass it
    no queue is bound                                      declared again, sent again, then out as `unroutable`
    the broker refuses one row                             it stays and is tried now and then; others pass it
    the broker is down, or tells publishers to wait        rows stay; tried again with a growing, jittered pause
    too many rows wait (`fencebeat_outbox_limit`)          nothing more is emitted; ticks stay due

So emission into the outbox happens once, publication at least once under one id, the effect once by the guard.

The check costs one request for each message: the same one takes out what was confirmed and brings the next row.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Self

import redis
from celery import Celery

from fencebeat.clock import Clock
from fencebeat.configuration import OUTBOX_LIMIT, Configuration
from fencebeat.errors import BrokerGone, FencebeatError, Fenced, OutboxFull, UnreadableRow
from fencebeat.failpoints import failpoint
from fencebeat.history import record
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.outbox_record import Message
from fencebeat.outbox_sending import Sender, Settled
from fencebeat.scripts import asking, script
from fencebeat.signals import Signal
from fencebeat.store import AUDIT_LENGTH, accepted
from fencebeat.ticks import tick_id

log = logging.getLogger(__name__)

SLICE = 1.0
"""Seconds between two looks at rows that a stop held back; the longest wait of the thread."""
REFUSED_SECONDS = 10.0
"""A row that the broker refused is tried again after that: its queue may have room, or be declared right, by then."""
PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds to wait after the first failure, and after many."""
LAST_SECONDS = 0.2
"""How long a publisher that is asked to stop waits for confirms; a standby waits for us meanwhile."""


@dataclass(frozen=True)
class OutboxSignals:
    """What happened, for tests."""

    published: Signal[str] = field(default_factory=Signal)  # task ids, once their row is out
    unroutable: Signal[str] = field(default_factory=Signal)
    refused: Signal[str] = field(default_factory=Signal)
    troubled: Signal[str] = field(default_factory=Signal)


@dataclass(frozen=True)
class OutboxLook:
    """What waits in an outbox: rows, and since when the oldest one does (seconds since the epoch, by the server)."""

    rows: int
    oldest: float | None


def look(client: redis.Redis, keys: Keys) -> OutboxLook:
    """What waits in the outbox. Raises StoreUnreachable."""
    with asking(client):
        pipe = client.pipeline(transaction=True)
        pipe.xlen(keys.outbox)
        pipe.xrange(keys.outbox, count=1)
        rows, first = pipe.execute()
    return OutboxLook(int(rows), int(str(first[0][0]).split("-")[0]) / 1000 if first else None)


class Publisher:
    """The thread that publishes, where this process leads. `client` and `sender` are its own.

    bound: a client of the tick thread's, which asks before each round whether there is room.
    """

    def __init__(
        self,
        sender: Sender,
        client: redis.Redis,
        bound: redis.Redis,
        keys: Keys,
        *,
        clock: Clock,
        leading: Callable[[], Term | None],
        flags_generation: Callable[[], int | None] = lambda: None,
        carrier: Carrier = "lock",
        limit: int = OUTBOX_LIMIT,
    ) -> None:
        self.signals = OutboxSignals()
        self._sender, self._client, self._bound, self._keys = sender, client, bound, keys
        self._clock, self._leading, self._flags_generation = clock, leading, flags_generation
        self._carrier, self._limit = carrier, limit
        self._mail: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        self._failures = 0
        self._cursor = ""  # the row looked at last in this pass
        self._again = 0.0  # when to look from the first row on, in seconds of `elapsed`
        self._done: list[Settled] = []  # the broker has them, the outbox still does, too
        self._later: dict[str, float] = {}  # refused row -> when to try it again

    @classmethod
    def of(
        cls,
        app: Celery,
        configuration: Configuration,
        *,
        clock: Clock,
        leading: Callable[[], Term | None],
        flags_generation: Callable[[], int | None],
        carrier: Carrier,
    ) -> Self:
        """The publisher that `configuration` asks for. Opens nothing yet."""
        timeout = configuration.timing.call_timeout
        return cls(
            Sender(app, clock, timeout),
            configuration.broker.client(timeout, name="fencebeat-outbox"),
            configuration.broker.client(timeout, name="fencebeat-outbox-room"),
            configuration.keys,
            clock=clock,
            leading=leading,
            flags_generation=flags_generation,
            carrier=carrier,
            limit=configuration.outbox_limit,
        )

    @property
    def trouble(self) -> str | None:
        """Why rows wait that no stop holds back, or None."""
        return self._trouble

    def check_room(self) -> None:
        """For the tick thread, before a round. Raises OutboxFull, StoreUnreachable."""
        with asking(self._bound):
            rows: Any = self._bound.xlen(self._keys.outbox)
        if rows >= self._limit:
            raise OutboxFull(rows=rows)

    def start(self) -> None:
        """Start the thread; it works while `leading` names a term."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fencebeat-outbox", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Say that there may be new rows. Never blocks, also not in a signal handler."""
        self._mail.put(None)

    def stop(self, at_most: float = 2 * LAST_SECONDS) -> None:
        """Finish the rows in flight or abandon them, and end the thread. For signal handlers, too; again: nothing.

        Call it while the term is still held: what is confirmed by then is taken out.
        """
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join(at_most)

    def _run(self) -> None:
        term: Term | None = None
        while not self._stopping:
            now_leading = self._leading()
            if now_leading != term:
                self._forget()
                term = now_leading
            if term is None:
                self._rest(SLICE)
                continue
            try:
                self._step(term)
            except Fenced as error:
                record("event", event="outbox.fenced", token=term.token)
                log.info("%s", error.what)
                self._forget()
                self._rest(PAUSE)  # the tick thread finds out by itself and gives the term up
            except FencebeatError as error:
                self._fail(error.what, error)
            except Exception as error:  # whatever a transport raises, rows stay and are tried again
                log.exception("publishing from the outbox failed")
                self._fail(repr(error), error)
        self._finish(term)

    def _step(self, term: Term) -> None:
        """One request, and at most one message."""
        if self._sender.blocked:
            self._say("the broker has told publishers to wait (an alarm of memory or disk)")
            self._collect(SLICE)
            return
        kind, last, _held, *row = self._ask(term, "next")
        if kind == "row":
            self._take(term, row[0], row[1])
            return
        self._cursor = last
        if kind == "more":
            return
        if self._sender.in_flight:
            self._collect(LAST_SECONDS)
        elif not self._done:
            self._idle()

    def _take(self, term: Term, row: str, text: str) -> None:
        if self._clock.elapsed() < self._later.get(row, 0.0):
            self._cursor = row
            return
        try:
            message = Message.from_json(row, text)
        except UnreadableRow as error:
            self._refuse(row, row, error.what)
            self._cursor = row
            return
        if not self._sender.ready(row):
            self._collect(LAST_SECONDS)  # and ask again: the check has to be just before the message
            return
        if self._leading() != term:
            return
        self._cursor = row
        failpoint("beat.publish.before")
        record("call", op="publish", id=row, token=term.token, tick=tick_id(message.entry, message.fire_time))
        self._sender.send(row, message)
        self._collect(0)

    def _collect(self, at_most: float) -> None:
        """Hear what became of rows in flight."""
        for settled in self._sender.settled(at_most):
            record("return", op="publish", id=settled.row, outcome=settled.fate)
            if settled.fate == "refused":
                self._refuse(settled.row, settled.message.task_id, settled.reason)
                continue
            failpoint("beat.publish.after")
            self._done.append(settled)
            self._later.pop(settled.row, None)
            self._failures = 0
            if not self._later:
                self._say(None)

    def _ask(self, term: Term, what: str) -> list[str]:
        """The step script. Raises Fenced, StoreUnknown, StoreUnreachable, UnusableRecord."""
        keys, done = self._keys, self._done
        generation = self._flags_generation()
        facts: list[Any] = []
        for one in done:
            told = one.message
            identity = str(told.properties.get("message_id", told.task_id))
            facts += [one.row, one.fate, told.entry, told.fire_time, told.task_id, identity, one.reason]
        reply = script("outbox_step")(
            self._client,
            [keys.lock, keys.term, keys.flags, keys.outbox, keys.audit],
            [
                *(str(term.token), term.nonce, self._carrier, term.holder),
                *("" if generation is None else generation, AUDIT_LENGTH, what, self._cursor, len(done), *facts),
            ],
        )
        answer = accepted(reply, term)
        self._done = []
        for one in done:
            self._report(one)
        return answer

    def _report(self, one: Settled) -> None:
        tick = tick_id(one.message.entry, one.message.fire_time)
        if one.fate == "unroutable":
            log.error("unroutable: %s (%s): %s", tick, one.message.task_id, one.reason)
            self.signals.unroutable.send(one.message.task_id)
        else:
            log.info("published: %s (%s)", tick, one.message.task_id)
            self.signals.published.send(one.message.task_id)

    def _refuse(self, row: str, name: str, why: str) -> None:
        """One row is at fault: it stays, the others go on."""
        self._later[row] = self._clock.elapsed() + REFUSED_SECONDS
        self._say(f"row {row} of the outbox is not published: {why}")
        self.signals.refused.send(name)

    def _idle(self) -> None:
        """A pass is over: wait for new rows, and look at those that were held back once a second."""
        if not self._later and not self._sender.blocked:
            self._say(None)
        self._failures = 0
        self._collect(0.001)  # the broker may have said something: good-bye, wait
        woken = self._rest(SLICE)
        now = self._clock.elapsed()
        if not woken or now >= self._again:
            self._cursor, self._again = "", now + SLICE

    def _fail(self, why: str, error: Exception) -> None:
        """Pause. Without the broker nothing is known of the rows in flight: they are looked at again afterwards."""
        self._say(why)
        record("event", event="outbox.failed", error=type(error).__name__)
        if isinstance(error, BrokerGone) or not isinstance(error, FencebeatError):
            self._forget()
        pause = min(LONGEST_PAUSE, PAUSE * 2 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        self._failures += 1
        until = self._clock.elapsed() + pause
        while not self._stopping and (left := until - self._clock.elapsed()) > 0:
            self._rest(left)

    def _forget(self) -> None:
        """Begin anew with the first row. What the broker confirmed stays known, for any later term of ours."""
        self._sender.close(politely=True)
        self._cursor = ""

    def _finish(self, term: Term | None) -> None:
        """Asked to stop: hear of what is in flight for a moment, and take out what the broker has."""
        try:
            until = self._clock.elapsed() + LAST_SECONDS
            while self._sender.in_flight and (left := until - self._clock.elapsed()) > 0:
                self._collect(left)
            if self._done and term is not None:
                self._ask(term, "settle")
        except FencebeatError as error:
            log.info("rows in flight were abandoned; the next leader sends them again: %s", error.what)
        finally:
            self._sender.close(politely=True)

    def _rest(self, seconds: float) -> bool:
        """Wait for mail, at most `seconds`; whether there was some."""
        if self._stopping:
            return False
        try:
            self._mail.get(timeout=max(0.001, seconds))
        except Empty:
            return False
        while not self._mail.empty():  # this thread alone reads
            self._mail.get_nowait()
        return True

    def _say(self, trouble: str | None) -> None:
        """Log a lasting trouble once, and its end."""
        if trouble == self._trouble:
            return
        self._trouble = trouble  # before it is told: who hears of it looks here
        if trouble is None:
            log.info("publishing from the outbox again")
        else:
            log.error("%s", trouble)
            self.signals.troubled.send(trouble)
