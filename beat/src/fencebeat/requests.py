"""Extra runs that somebody asked for: an entry now, or its fire times of the past again (backfill).

    `Schedule.run_now`, `Schedule.backfill` ──▶ a record in the store ──▶ the leader's next look ──▶ emitted, once
                                                                               │
                                       the step that puts the message on the queue removes the record

A request is data, as an edit is: whoever leads emits it under its own term, and a lost reply or a change of leaders in
between neither loses nor doubles it. No mark moves, so the schedule itself goes on as if nothing had been asked.

    run now    its tick is `ENTRY!now@TIME asked`: an identity of its own, beside every tick of the schedule
    backfill   the tick's own identity, so that the guard drops what has run already; only fire times before the mark

May import: entries, rendering, scripts. Must never know: who wins an election.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import redis

from fencebeat.capture import Captured
from fencebeat.clock import Clock
from fencebeat.entries import EXTRA, Entry
from fencebeat.errors import StoreUnreachable
from fencebeat.firetimes import SECOND
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.render import Renderer
from fencebeat.scripts import asking, script
from fencebeat.store import AUDIT_LENGTH, accepted
from fencebeat.ticks import tick_id

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks of the leader."""
BATCH = 50
"""Requests answered in one round; the schedule's own ticks come between."""
PATIENCE = 10.0
"""Seconds for which a request waits for its entry to be known to the leader."""

HOPELESS = 3600.0
"""Seconds after which a request whose message no broker took is dropped."""

Kind = Literal["run", "backfill"]


@dataclass(frozen=True)
class Request:
    """One extra run. `fire_time` in microseconds: of the schedule (backfill), or when it was asked for (run)."""

    entry: str
    kind: Kind
    fire_time: int
    by: str
    at: int  # when it was asked for, by the store's clock

    @property
    def id(self) -> str:
        """The tick, which is also the request's name: asked twice it is one."""
        return tick_id(self.entry + (EXTRA if self.kind == "run" else ""), self.fire_time)

    @property
    def text(self) -> str:
        """As it is stored."""
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a stored request. Raises ValueError for what is none."""
        try:
            record = json.loads(text)
            made = cls(**record)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a request: {error}") from None
        if made.kind not in ("run", "backfill") or not all(type(n) is int for n in (made.fire_time, made.at)):
            raise ValueError("not a request: its kind or a time of it is none")
        return made


class Requests:
    """The leader's side: emits what was asked for. Called by the tick thread alone."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        renderer: Renderer,
        *,
        carrier: Carrier,
        clock: Clock,
        tolerance: float,
        flags_generation: Callable[[], int | None],
    ) -> None:
        self._client, self._keys, self._renderer, self._carrier = client, keys, renderer, carrier
        self._clock, self._tolerance, self._flags_generation = clock, tolerance, flags_generation
        self._next_look = 0.0
        self._deferred: set[str] = set()  # whose message the broker did not take: they must not hold up the others

    def serve(self, term: Term, entry_of: Callable[[str], Entry | None]) -> bool:
        """Answer what is asked for, at most a batch; whether more is waiting. Looks once a second.

        Raises Fenced, StoreUnknown and ClockRefused, after which the term must be given up; StoreUnreachable and
        UnusableRecord, after which it may be tried again: nothing is lost or doubled by that.
        """
        if self._clock.elapsed() < self._next_look:
            return False
        self._next_look = self._clock.elapsed() + EVERY
        with asking(self._client):
            if not self._client.hlen(self._keys.requests):
                return False
            waiting: dict[str, str] = self._client.hgetall(self._keys.requests)  # type: ignore[assignment] # untyped
        self._deferred &= waiting.keys()
        order = sorted(waiting.items(), key=lambda pair: (pair[0] in self._deferred, *_order(pair[1])))
        for identity, text in order[:BATCH]:
            self._answer(term, identity, text, entry_of)
        if len(order) > BATCH:
            self._next_look = 0.0
        return len(order) > BATCH

    def _answer(self, term: Term, identity: str, text: str, entry_of: Callable[[str], Entry | None]) -> None:
        try:
            request = Request.of(text)
        except ValueError as error:
            self._drop(term, identity, text, "", str(error))
            return
        entry = entry_of(request.entry)
        if entry is None:
            if self._age(request) > PATIENCE:
                self._drop(term, identity, text, request.entry, "the leader knows no such entry")
            return
        named = entry if request.kind == "backfill" else replace(entry, name=entry.name + EXTRA)
        try:
            task_id, message = self._renderer.render(named, request.fire_time, term.token)
        except StoreUnreachable as error:
            if self._age(request) > HOPELESS:
                self._drop(term, identity, text, request.entry, f"no broker took it for an hour: {error.what}")
                return
            log.warning("the request %s waits, others go before it: %s", identity, error)
            self._deferred.add(identity)
            return
        except Exception as error:  # whatever one message raises, the others go on
            log.exception("the request %s cannot be emitted and is dropped", identity)
            self._renderer.close()
            self._drop(term, identity, text, request.entry, f"it cannot be emitted: {error!r}")
            return
        backfill = request.kind == "backfill"
        outcome = self._commit(
            term,
            identity,
            text,
            [
                *(entry.name, entry.version, "emit", "emitted" if backfill else "extra"),
                *(request.fire_time if backfill else "", identity, task_id, message.message_id),
                "1" if self._renderer.guarded(entry) else "",
                f"backfill by {request.by}" if backfill else f"asked for by {request.by}",
            ],
            message,
        )
        self._renderer.sent([task_id] if outcome in ("emitted", "extra") else [])
        log.info("%s: %s, asked for by %s (%s)", outcome, identity, request.by, task_id)

    def _age(self, request: Request) -> float:
        return abs(self._clock.wall() - request.at / SECOND)  # a time that lies ahead is no reason to wait for it

    def _drop(self, term: Term, identity: str, text: str, entry: str, why: str) -> None:
        log.error("the request %s is dropped: %s", identity, why)
        facts = [entry, "", "failed", "", "", identity, "", "", "", why]
        self._commit(term, identity, text, facts, Captured(commands=[], queues=[], message_id=""))

    def _commit(self, term: Term, identity: str, text: str, facts: list[Any], message: Captured) -> str:
        keys = self._keys
        queues = list(dict.fromkeys(c.key for c in message.commands if c.name != "publish"))
        commands: list[Any] = []
        for command in message.commands:
            where = command.key if command.name == "publish" else queues.index(command.key) + 1
            commands.extend((command.name, where, command.value))
        seen = self._flags_generation()
        reply = script("answer_request")(
            self._client,
            [keys.lock, keys.term, keys.entries, keys.last, keys.flags, keys.audit, keys.requests, *queues],
            [
                *(str(term.token), term.nonce, self._carrier, term.holder, round(self._clock.wall() * SECOND)),
                *(round(self._tolerance * SECOND), "" if seen is None else seen, AUDIT_LENGTH, identity, text, *facts),
                *(len(message.queues), *message.queues, len(message.commands), *commands),
            ],
        )
        return accepted(reply, term)[1]


def _order(text: str) -> tuple[int, int]:
    """Oldest request first, and its fire times in order."""
    try:
        request = Request.of(text)
    except ValueError:
        return (0, 0)
    return (request.at, request.fire_time)
