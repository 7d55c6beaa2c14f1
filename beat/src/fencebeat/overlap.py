"""Entries that must not overlap (`"overlap": "skip"`): is the last tick that was emitted still under way?

    claim closed                     no: the next tick is emitted
    claim open, held or lapsed       yes; a lapsed one is taken over when its message comes back
    no claim                         yes: its message waits for a worker
    any of these for longer than     no: the message counts as lost, or nobody works any more; one more message does
    `fencebeat_overlap_wait`         less harm than an entry that is silent for ever
    the store of claims is silent    nobody knows: the tick stays due, the entry is left alone for a while, others go on

One request to each store for all such entries of a page of due ones. Within a page one tick of an entry is emitted.

May import: claims, guard, ticks, keys. Must never know: who leads.
"""

from collections.abc import Iterable
from typing import Any

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

WAIT = 3600.0
"""Seconds after which a tick that nobody has finished is in nobody's way any more."""


class Overlap:
    """What is under way, as of one look. One thread. `client`: answers are text. wait: seconds, see `WAIT`."""

    def __init__(self, app: Celery, client: redis.Redis, keys: Keys, wait: float = WAIT) -> None:
        self._app, self._client, self._keys, self._wait = app, client, keys, round(wait * SECOND)
        self._running: dict[str, str] = {}  # entry -> why its next tick is passed over
        self._unknown: str | None = None

    def look(self, entries: Iterable[Entry], now: int) -> None:
        """Ask about the entries of a page. now: the server's time in microseconds. Raises StoreUnreachable.

        What the store of claims raises is kept until an entry is asked for.
        """
        self._running, self._unknown = {}, None
        names = [entry.name for entry in entries if entry.overlap == "skip"]
        if not names:
            return
        with asking(self._client):
            emitted: Any = self._client.hmget(self._keys.emitted, names)
        last = {name: int(at) for name, at in zip(names, emitted, strict=True) if at and now - int(at) <= self._wait}
        try:
            _, claims = claims_of(self._app)
            ids = {name: task_id(self._keys.namespace, name, at) for name, at in last.items()}
            states = claims.look(list(ids.values()))
        except FencebeatError as error:
            self._unknown = error.what
            return
        for name, identity in ids.items():
            if (why := _under_way(states.get(identity))) is not None:
                self._running[name] = f"overlap: the tick of {instant(last[name])} {why}"

    def held(self, entry: Entry, fire_time: int) -> str | None:
        """Why this tick is passed over; None: it may be emitted, and then it is the one under way.

        Raises OverlapUnknown where nobody can tell now, UnusableEntry where nobody ever can.
        """
        if (error := refusal(self._app, entry)) is not None:
            raise error
        if self._unknown is not None:
            raise OverlapUnknown(name=entry.name, why=self._unknown)
        reason = self._running.get(entry.name)
        if reason is None:
            self._running[entry.name] = f"overlap: the tick of {instant(fire_time)} is sent just now"
        return reason


def _under_way(claim: ClaimState | None) -> str | None:
    if claim is None:
        return "waits for a worker"
    return f"is run by {claim.holder}" if claim.outcome is None else None


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
