"""The scheduler's records in the broker's own database, each step of them one script: due, commit, quarantine.

Every method takes the term it acts under; the scripts compare it. Times are microseconds since the epoch by the
server's clock. Each method is one bounded request and raises StoreUnreachable where its outcome is unknown,
UnusableRecord where a record cannot be read, Fenced where the term is over, Unknown where the store lost its past,
ClockRefused where this host's clock is ahead.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from fencebeat.capture import Captured
from fencebeat.entries import RESERVED
from fencebeat.errors import ClockRefused, Fenced, StoreUnknown
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.scripts import asking, script
from fencebeat.sync import Synchroniser

AUDIT_LENGTH = 100_000
"""Records kept in the audit stream, about: the server cuts whole blocks."""


@dataclass(frozen=True)
class DueEntries:
    """What is due: entry -> mark (None where the store has none), the server's time, and when to look again."""

    now: int
    following: int | None  # milliseconds, the earliest fire time that is not due yet
    marks: Mapping[str, int | None]
    generation: int  # of the entries: another one means that somebody edited them
    entries: int  # how many there are


@dataclass(slots=True)  # not frozen: making one would cost three times as much, ten thousand times in a drain
class Emission:
    """One tick with its message, ready to be put on the queue."""

    entry: str
    version: str
    fire_time: int
    following: int | None  # when the entry is next due; None when it never fires again
    task_id: str
    message: Captured
    guarded: bool = False  # a copy of it would find the worker's claim
    note: str = ""  # what its audit record has to tell besides; of guarded ones only


@dataclass(frozen=True)
class Pass:
    """A run of ticks of one entry that is decided without emission."""

    entry: str
    version: str
    first: int
    last: int
    count: int
    following: int | None
    outcome: str
    reason: str


Decision = Emission | Pass


@dataclass(frozen=True)
class Committed:
    """The server's time of a commit and the outcome of each decision, in order."""

    now: int
    outcomes: tuple[str, ...]


class Store:
    """The records of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, *, carrier: Carrier = "lock", tolerance: float = 2.0) -> None:
        self._client, self._keys, self._carrier = client, keys, carrier
        self._tolerance = round(tolerance * 1_000_000)

    def due(self, term: Term, limit: int) -> DueEntries:
        """Entries due now, at most `limit`."""
        keys = self._keys
        reply = self._run(
            "due",
            term,
            [keys.lock, keys.term, keys.entries, keys.last, keys.due, keys.flags],
            [str(term.token), term.nonce, self._carrier, limit],
        )
        names = reply[5:]
        return DueEntries(
            now=int(reply[1]),
            following=int(float(reply[2])) if reply[2] else None,
            marks={name: int(mark) if mark else None for name, mark in zip(names[::2], names[1::2], strict=True)},
            generation=int(reply[3]),
            entries=int(reply[4]),
        )

    def commit(
        self,
        term: Term,
        decisions: Sequence[Decision],
        *,
        sender_now: int,
        flags_generation: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Committed:
        """Enqueue, advance and record `decisions` in one step; extends the lease.

        sender_now: this host's clock in microseconds. flags_generation: what the sender read from the effect store.
        meanwhile: called while the server works, where the client can.
        """
        keys = self._keys
        queues = _Queues()
        ticks: list[Any] = []
        for decision in decisions:
            ticks.extend(_emission(decision, queues) if isinstance(decision, Emission) else _pass(decision))
        reply = self._run(
            "commit",
            term,
            [
                *(keys.lock, keys.term, keys.entries, keys.last, keys.due, keys.flags, keys.audit),
                *(keys.paused, keys.emitted, *queues.keys),
            ],
            [
                *(str(term.token), term.nonce, self._carrier, round(term.lease * 1000), term.holder),
                *(sender_now, self._tolerance, "" if flags_generation is None else flags_generation, AUDIT_LENGTH),
                *(len(decisions), *ticks),
            ],
            meanwhile,
        )
        return Committed(now=int(reply[1]), outcomes=tuple(reply[2:]))

    def synchroniser(self) -> Synchroniser:
        """What brings the stored schedule and a leader's memory together."""
        return Synchroniser(self._client, self._keys, self._under, AUDIT_LENGTH)

    def quarantined(self) -> dict[str, str]:
        """The entries that the leader leaves alone, for display: entry -> JSON with reason, since and until (us)."""
        with asking(self._client):
            return self._client.hgetall(self._keys.quarantine)  # type: ignore[return-value] # redis-py leaves it open

    def quarantine(self, term: Term, records: Mapping[str, str], released: Collection[str] = ()) -> None:
        """Show which entries the leader leaves alone (entry -> JSON), and which it does not any more."""
        pairs = [part for pair in records.items() for part in pair]
        keys = self._keys
        self._under("quarantine", term, [keys.lock, keys.term, keys.quarantine], [len(records), *pairs, *released])

    def entries(self) -> dict[str, dict[str, Any]]:
        """The stored definitions, for display: name -> definition; what cannot be read is {"unreadable": text}."""
        return self._read()[1]

    def marks(self) -> dict[str, int]:
        """The mark of each entry, for display; also of entries that were removed."""
        return self._read()[2]

    def term(self) -> dict[str, str]:
        """The record of the fence (token, nonce, holder, since, lease, digest) and `left`: ms the lock still has."""
        with asking(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.hgetall(self._keys.term)
            pipe.pttl(self._keys.lock)
            record, left = pipe.execute()
        return {**record, "left": str(left)} if record else {}

    def audit(self, *, page: int = 1000) -> Iterator[tuple[str, dict[str, str]]]:
        """The audit records, newest first: (id, fields)."""
        newest = "+"
        while True:
            with asking(self._client):
                records: Any = self._client.xrevrange(self._keys.audit, max=newest, min="-", count=page)
            yield from records
            if len(records) < page:
                return
            newest = f"({records[-1][0]}"

    def _read(self) -> tuple[int, dict[str, dict[str, Any]], dict[str, int]]:
        with asking(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            pipe.hgetall(self._keys.entries)
            pipe.hgetall(self._keys.last)
            (seconds, microseconds), stored, marks = pipe.execute()
        definitions = {name: _definition(text) for name, text in stored.items() if name != RESERVED}
        return (
            seconds * 1_000_000 + microseconds,
            definitions,
            {name: int(mark) for name, mark in marks.items() if name != RESERVED and mark.isdigit()},
        )

    def _under(self, name: str, term: Term, keys: Sequence[str], args: Sequence[Any]) -> list[str]:
        return self._run(name, term, keys, [str(term.token), term.nonce, self._carrier, *args])

    def _run(
        self,
        name: str,
        term: Term,
        keys: Sequence[str],
        args: Sequence[Any],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[str]:
        return accepted(script(name)(self._client, keys, args, meanwhile), term)


def accepted(reply: list[str], term: Term) -> list[str]:
    """The reply of a script that ran under `term`. Raises Fenced, StoreUnknown and ClockRefused where it refused."""
    match reply[0]:
        case "fenced":
            raise Fenced(token=term.token, newest=reply[1] or "nothing: the record is gone")
        case "unknown":
            raise StoreUnknown(record=reply[1], why="it has no generation, or flags that nobody renews")
        case "clock":
            raise ClockRefused(server=int(reply[1]))
    return reply


class _Queues:
    """The keys of the queues of a batch, each named once; commands name them by index, counted from 1."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, key: str) -> int:
        if key not in self._index:
            self.keys.append(key)
            self._index[key] = len(self.keys)
        return self._index[key]


def _time(value: int | None) -> str:
    return "" if value is None else str(value)


def _emission(tick: Emission, queues: _Queues) -> list[Any]:
    commands: list[Any] = []
    for command in tick.message.commands:
        where = command.key if command.name == "publish" else queues.index(command.key)
        commands.extend((command.name, where, command.value))
    return [
        *("emit", tick.entry, tick.version, tick.fire_time, _time(tick.following), tick.task_id),
        *(tick.message.message_id, "1" if tick.guarded else "", tick.note),
        *(len(tick.message.queues), *tick.message.queues),
        *(len(tick.message.commands), *commands),
    ]


def _pass(run: Pass) -> list[Any]:
    return [
        *("pass", run.entry, run.version, run.first, run.last, run.count, _time(run.following)),
        *(run.outcome, run.reason),
    ]


def _definition(text: str) -> dict[str, Any]:
    try:
        definition = json.loads(text)
    except ValueError:
        return {"unreadable": text[:200]}
    return definition if isinstance(definition, dict) else {"unreadable": text[:200]}
