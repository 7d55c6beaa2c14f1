"""What the scheduler's records in Redis say: who leads, what is due, how late, what was decided. Reads only."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from config.settings import Settings
from fencebeat.connection import Broker
from fencebeat.flags import FRESH, FlagCopy, read_flags
from fencebeat.keys import Keys
from fencebeat.scripts import asking
from ops.schedules import Schedule, read

PAGE: Final = 1000  # audit records read at a time
OVERDUE: Final = 0.6  # share of the lease: a leader that renews at each third has never less left


@dataclass(frozen=True)
class Leader:
    """The term in force. lease_left_seconds: None where the lock is not in Redis, so that it cannot be seen here."""

    token: int
    holder: str
    since: float  # seconds since the epoch, by the store's clock
    lease_left_seconds: float | None
    overdue: bool = False  # its renewals have stopped: it is frozen, hung or cut off, and its lease runs out


@dataclass(frozen=True)
class LostPast:
    """Redis lost its data before `until` (seconds since the epoch); `ticks` of unguarded tasks may have been lost."""

    until: float
    ticks: int


@dataclass(frozen=True)
class EntryView:
    """An entry's last decided and next fire time, in seconds since the epoch; late_seconds is 0 while it is in time.

    kept: why it is not emitted: `paused`, `left alone`, `undefined`; empty while it is. Nothing that is paused is late.
    """

    name: str
    last: float | None
    next: float | None
    late_seconds: float
    kept: str = ""


@dataclass(frozen=True)
class Beats:
    """The scheduler as its store sees it at `now` (seconds since the epoch, the store's clock)."""

    now: float
    leader: Leader | None
    entries: tuple[EntryView, ...]
    flags: FlagCopy | None
    queues: dict[str, int] = field(default_factory=dict)
    lost: LostPast | None = None  # the last one, however long ago
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def flags_fresh(self) -> bool:
        """Whether workers may believe the copy of the switches."""
        return self.flags is not None and self.flags.age_seconds <= FRESH


def client(settings: Settings) -> tuple[redis.Redis, Keys]:
    """A client of the broker's database, with our time-out, and the names of our keys."""
    broker = Broker(settings.redis_url)
    return broker.client(settings.control_timeout, "fencebeat-status"), broker.keys(settings.namespace)


def look(connected: redis.Redis, keys: Keys, *, lock_in_redis: bool = True, queues: tuple[str, ...] = ()) -> Beats:
    """Read it all in one round trip. Raises StoreUnreachable."""
    with asking(connected), connected.pipeline(transaction=True) as asked:
        asked.time()
        asked.hgetall(keys.term)
        asked.get(keys.lock)
        asked.pttl(keys.lock)
        asked.hgetall(keys.last)
        asked.zrange(keys.due, 0, -1, withscores=True)
        asked.hgetall(keys.paused)
        asked.hgetall(keys.quarantine)
        asked.hkeys(keys.entries)
        asked.xlen(keys.outbox)
        asked.xrange(keys.outbox, count=1)
        for queue in queues:
            asked.llen(queue)
        (seconds, micro), term, held, left, marks, due, *records = asked.execute()
    paused, quarantine, defined, rows, first, *lengths = records
    now = seconds + micro / 1e6
    leader = None
    if term and (not lock_in_redis or held == term.get("nonce")):
        leader = Leader(
            token=int(term.get("token", 0)),
            holder=term.get("holder", "?"),
            since=int(term.get("since", 0)) / 1e6,
            lease_left_seconds=max(0, left) / 1000 if lock_in_redis else None,
            overdue=lock_in_redis and left < OVERDUE * int(term.get("lease", 0)),
        )
    marks.pop("generation", None)
    following = {name: score / 1000 for name, score in due}
    schedule = read(
        now,
        paused=paused,
        quarantine=quarantine,
        defined=defined,
        due=following,
        outbox=(rows, first),
        digest=term.get("digest"),
    )
    kept = dict.fromkeys(quarantine, "left alone") | dict.fromkeys(schedule.undefined, "undefined")
    kept |= dict.fromkeys(paused, "paused")
    entries = tuple(
        EntryView(
            name=name,
            last=int(marks[name]) / 1e6 if name in marks else None,
            next=following.get(name),
            late_seconds=max(0.0, now - following[name]) if name in following else 0.0,
            kept=kept.get(name, ""),
        )
        for name in sorted(following.keys() | paused.keys())  # a mark alone belongs to an entry that was removed
    )
    lost = None
    if "lost_past" in term:
        lost = LostPast(until=int(term["lost_past"]) / 1e6, ticks=int(term.get("lost_ticks", 0)))
    flags = read_flags(connected, keys)
    return Beats(now, leader, entries, flags, dict(zip(queues, lengths, strict=True)), lost, schedule)


class Decisions:
    """Counts decisions by reading on in the audit stream: for a process that stays, and asks from time to time.

    Counting starts with what the stream still holds. Counts only grow while this process lives.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last_lag_seconds: float | None = None  # of the newest emitted tick: its record's time minus fire time
        self._after = "-"

    def read(self, connected: redis.Redis, keys: Keys) -> Counter[str]:
        """Read what is new and return the counts by outcome. Raises StoreUnreachable."""
        while True:
            with asking(connected):
                records: Any = connected.xrange(keys.audit, min=self._after, max="+", count=PAGE)
            for identity, fields in records:
                self._after = f"({identity}"
                outcome = fields.get("outcome", "?")
                self.counts[outcome] += int(fields.get("count", 1))
                if outcome == "emitted":
                    self.last_lag_seconds = int(identity.partition("-")[0]) / 1000 - int(fields["fire_time"]) / 1e6
            if len(records) < PAGE:
                return self.counts
