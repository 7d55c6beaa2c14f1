"""Entries that must not overlap (`"overlap": "skip"`): is the last tick that was emitted still under way?

    claim closed                     no: the next tick is emitted
    claim held by a living worker    yes, for as long as it extends its lease
    no claim, or one that lapsed     yes: the message waits for a worker, or comes back after the crash of one; but
      and its message has expired    no: no worker begins it any more (see `guard`)
      and for `fencebeat_overlap_    no: the message counts as lost. One more message does less harm than an entry that
      wait` since it was emitted     is silent for ever; the audit record says that nobody has finished the last one
    the store of claims is silent    nobody knows: the tick stays due, the entry is left alone for a while, others go on

One request to each store for all such entries of a page of due ones; the claims are asked in a thread, and after
`PATIENCE` the rounds go on without an answer. Within a page one tick of an entry is emitted, the others are skipped.

May import: claims, guard, ticks, keys. Must never know: who leads.
"""

import threading
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import redis
from celery import Celery

from fencebeat.claims.opening import claims_of
from fencebeat.claims.port import ClaimState
from fencebeat.entries import Entry
from fencebeat.errors import FencebeatError, ImpossibleConfiguration, OverlapUnknown, UnusableEntry
from fencebeat.firetimes import SECOND
from fencebeat.guard import is_guarded
from fencebeat.keys import Keys
from fencebeat.scripts import asking
from fencebeat.ticks import instant, task_id

WAIT = 7200.0
"""Seconds after which a tick that nobody works on is in nobody's way any more: twice the time after which kombu's Redis
transport gives back the message of a worker that died."""
PATIENCE = 1.0
"""Seconds for which a round waits for the store of claims: renewals stop where the tick thread is silent for longer."""
AGAIN = 5.0
"""Seconds after which an entry is tried again of which nobody could tell."""
SLACK = 10.0
"""Seconds by which the clocks of a worker and of the store may differ about the end of a message."""


class Way(NamedTuple):
    """Whether a tick is passed over because of another one, and what its audit record tells of that one."""

    blocked: bool
    says: str = ""


class _Sent(NamedTuple):
    """The last tick of an entry that was emitted, and when it was; microseconds."""

    fire_time: int
    at: int


class Overlap:
    """What is under way, as of one look. One thread. `client`: answers are text. wait: seconds, see `WAIT`."""

    def __init__(
        self, app: Celery, client: redis.Redis, keys: Keys, wait: float = WAIT, *, patience: float = PATIENCE
    ) -> None:
        self._app, self._client, self._keys, self._wait, self._patience = app, client, keys, wait, patience
        self._ways: dict[str, Way] = {}  # of the entries that were asked about
        self._why = "nobody has asked yet"  # the others are not known
        self._question: _Question | None = None

    def look(self, entries: Iterable[Entry], now: int) -> None:
        """Ask about the entries of a page. now: the server's time in microseconds. Raises StoreUnreachable.

        What the store of claims raises is kept until an entry is asked for.
        """
        self._ways = {}
        asked = {entry.name: entry for entry in entries if entry.overlap == "skip"}
        if not asked:
            return
        with asking(self._client):
            emitted: Any = self._client.hmget(self._keys.emitted, list(asked))
        last = {name: _read(text) for name, text in zip(asked, emitted, strict=True) if text}
        ids = {name: task_id(self._keys.namespace, name, sent.fire_time) for name, sent in last.items() if sent}
        try:
            states = self._claims(list(ids.values())) if ids else {}
        except Exception as error:  # noqa: BLE001 - whatever somebody's own store raises, it is no answer
            self._why = error.what if isinstance(error, FencebeatError) else repr(error)
            return
        for name, entry in asked.items():
            sent = last.get(name)
            if sent is not None:
                self._ways[name] = self._way(entry, sent, states.get(ids[name]), now)
            else:
                says = "overlap: the record of its last tick cannot be read" if name in last else ""
                self._ways[name] = Way(blocked=False, says=says)

    def held(self, entry: Entry, fire_time: int) -> Way:
        """Whether this tick is passed over; if not it may be emitted, and then it is the one under way.

        Raises OverlapUnknown where nobody can tell now, UnusableEntry where nobody ever can.
        """
        if (error := refusal(self._app, entry)) is not None:
            raise error
        way = self._ways.get(entry.name)
        if way is None:
            raise OverlapUnknown(name=entry.name, why=self._why)
        if not way.blocked:
            self._ways[entry.name] = Way(
                blocked=True, says=f"overlap: the tick of {instant(fire_time)} is sent just now"
            )
        return way

    def _claims(self, ids: list[str]) -> Mapping[str, ClaimState]:
        """What is recorded of these ticks. Raises what the store raises, TimeoutError where it takes too long."""
        if self._question is not None and self._question.is_alive():
            raise TimeoutError("the store of claims has not answered the question before this one")
        self._question = question = _Question(self._app, ids)
        question.start()
        question.join(self._patience)
        if question.error is not None:
            raise question.error
        if question.states is None:
            raise TimeoutError(f"the store of claims did not answer within {self._patience:g} s")
        return question.states

    def _way(self, entry: Entry, sent: _Sent, claim: ClaimState | None, now: int) -> Way:
        tick = f"overlap: the tick of {instant(sent.fire_time)}"
        if claim is not None and claim.outcome is not None:
            return Way(blocked=False)
        if claim is not None and claim.left > 0:
            return Way(blocked=True, says=f"{tick} is run by {claim.holder}")
        seconds = (now - sent.at) / SECOND
        expires = _expires(self._app, entry)
        if expires is not None and seconds > expires + SLACK:
            return Way(blocked=False, says=f"{tick} was not finished; its message has expired")
        if seconds > self._wait:
            return Way(blocked=False, says=f"{tick} was not finished in {self._wait:.0f} s, so it counts as lost")
        waits = "waits for a worker" if claim is None else f"waits for a worker again, after {claim.holder}"
        return Way(blocked=True, says=f"{tick} {waits}")


class _Question(threading.Thread):
    """One question to the store of claims. A thread that is never answered keeps nothing from ending."""

    def __init__(self, app: Celery, ids: list[str]) -> None:
        super().__init__(name="fencebeat-overlap", daemon=True)
        self._app, self._ids = app, ids
        self.states: Mapping[str, ClaimState] | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            _, store = claims_of(self._app)
            self.states = store.look(self._ids)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            self.error = error


def _read(text: str) -> _Sent | None:
    """A value of the hash; None for what is none."""
    fire_time, _, at = text.partition(" ")
    return _Sent(int(fire_time), int(at)) if fire_time.isdigit() and at.isdigit() else None


def _expires(app: Celery, entry: Entry) -> float | None:
    """Seconds after which no worker begins the entry's message; None where it never ends, or at a fixed time."""
    expires = entry.options.get("expires")
    if expires is None:
        expires = getattr(app.tasks.get(entry.task), "expires", None)
    return float(expires) if isinstance(expires, Real) else None


def refusal(app: Celery, entry: Entry) -> UnusableEntry | None:
    """Why an entry that must not overlap cannot be told to be under way, or None."""
    if entry.overlap != "skip":
        return None
    if not is_guarded(app, entry.task):
        why = f"`overlap` is skip, which asks the claim of its task, but {entry.task} is not a GuardedTask here."
        return UnusableEntry(name=entry.name, why=why)
    try:
        claims_of(app)
    except ImpossibleConfiguration as error:
        return UnusableEntry(name=entry.name, why=f"`overlap` is skip, which asks the claims. {error.facts['rules']}")
    return None
