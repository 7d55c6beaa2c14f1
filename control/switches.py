"""The kill switch: what the operator sets, and what a worker asks before each costly or lasting step.

Truth is a row per scope in Postgres; Redis carries a copy for speed. A worker believes the copy while it is complete
and fresh, else asks Postgres, else acts on the last known value for `GRACE` seconds, and then stops writing. The proof
that a stopped write cannot commit is not here: the ledger's functions read the same rows under a lock.

    levels, each with those before it:  emit (no new ticks)  start (no new tasks or claims)  write (nothing is written)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from config import events
from config.events import emit
from fencebeat.clock import Clock
from fencebeat.effects import LEVELS, Flag
from fencebeat.errors import FencebeatError, Refused, Retryable
from fencebeat.failpoints import failpoint
from fencebeat.flags import FRESH, read_flags
from fencebeat.keys import Keys
from index.ledger.pool import connection

GRACE = 2.0  # seconds for which the last known value counts when no store can tell
REREAD = 0.2  # seconds for which an answer is used again: a batch of documents asks many times

SCOPE_KINDS = ("tenant", "source", "target", "queue", "entry")


class UnknownScope(Refused):
    """There is no scope {scope!r}.

    A scope is `all`, or one of tenant:x, source:tenant/x, target:x, queue:x, entry:x.
    """


@dataclass(frozen=True, slots=True)
class Switch:
    """One scope that is stopped, as Postgres has it."""

    scope: str
    level: str
    change: int
    reason: str
    author: str
    since: datetime
    until: datetime | None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "since": self.since.isoformat(), "until": self.until and self.until.isoformat()}


@dataclass(frozen=True, slots=True)
class Change:
    """A switch that was just set. change: its number; workers acknowledge it by that."""

    change: int
    scope: str
    before: str
    after: str
    until: datetime | None


def check_scope(scope: str) -> str:
    """The scope, if it is one. Raises UnknownScope."""
    kind, _, name = scope.partition(":")
    if scope == "all" or (kind in SCOPE_KINDS and name):
        return scope
    raise UnknownScope(scope=scope)


class SwitchBoard:
    """The truth about switches, in Postgres. Every method raises StoreUnreachable where it cannot be reached."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def on(
        self, scope: str, level: str, *, reason: str, author: str, origin: str, lasts: timedelta | None = None
    ) -> Change:
        """Stop `scope` at `level`, until lifted or for `lasts`. Raises UnknownScope, or Refused for a bad level."""
        if level not in LEVELS:
            raise Refused(why=f"there is no level {level!r}: use {', '.join(LEVELS)}.")
        if not reason.strip():
            raise Refused(why="a stop needs a reason: whoever finds it at night must know why.")
        return self._apply(scope, level, reason=reason, author=author, origin=origin, lasts=lasts)

    def off(self, scope: str, *, reason: str, author: str, origin: str) -> Change:
        """Lift the stop of `scope`. A wider stop stays in force."""
        return self._apply(scope, "run", reason=reason, author=author, origin=origin, lasts=None)

    def _apply(
        self, scope: str, level: str, *, reason: str, author: str, origin: str, lasts: timedelta | None
    ) -> Change:
        check_scope(scope)
        failpoint("switch.apply.before")
        with connection(self._pool) as conn:
            row = conn.execute(
                "SELECT change, before, until FROM apply_switch(%s, %s, %s, %s, %s, %s)",
                (scope, level, reason, author, origin, lasts),
            ).fetchone()
        failpoint("switch.apply.after")
        if row is None:  # the function always returns one row; a driver that loses it must not look like success
            raise Refused(why="Postgres did not say whether the switch was set; look with `fencebeat kill status`.")
        change, before, until = row
        emit(events.SWITCH_CHANGED, scope=scope, stop_level=level, change=change, author=author, why=reason)
        return Change(change=change, scope=scope, before=before, after=level, until=until)

    def status(self) -> list[Switch]:
        """Every scope that is stopped now, by Postgres' clock."""
        with connection(self._pool) as conn, conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute("SELECT * FROM switches_in_force()").fetchall()
        return [Switch(**row) for row in rows]

    def generation(self) -> int:
        """The number of the last change."""
        with connection(self._pool) as conn:
            row = conn.execute("SELECT counter FROM control WHERE scope = 'all'").fetchone()
        return int(row[0]) if row else 0

    def flags(self) -> tuple[int, Mapping[str, Flag]]:
        """Generation and every stop in force, read in one step, expired stops recorded first.

        Who asks has no use for an answer that is older than `FRESH`, so it is not waited for any longer.
        """
        with connection(self._pool, FRESH) as conn, conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT expire_switches()")
            rows = cursor.execute(
                "SELECT c.counter, s.* FROM control c LEFT JOIN switches_in_force() s ON true WHERE c.scope = 'all'"
            ).fetchall()
        flags = {row["scope"]: _flag(row) for row in rows if row["scope"] is not None}
        return (int(rows[0]["counter"]) if rows else 0), flags

    def audit(self, limit: int = 50) -> list[dict[str, Any]]:
        """The newest changes: who, when, what, why, until, from where."""
        with connection(self._pool) as conn, conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute("SELECT * FROM audit ORDER BY id DESC LIMIT %s", (limit,)).fetchall()


def _flag(row: Mapping[str, Any]) -> Flag:
    until: datetime | None = row["until"]
    ends = None if until is None else until.timestamp()
    return Flag(level=row["level"], reason=row["reason"], author=row["author"], until=ends)


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker knows of the switches, since when, and from where."""

    generation: int
    flags: Mapping[str, Flag]
    at: float
    origin: str


class SwitchReader:
    """A worker's view. Satisfies `index.ports.Switches`. One instance serves one thread."""

    def __init__(self, board: SwitchBoard, client: redis.Redis, keys: Keys, clock: Clock, *, always: str = "") -> None:
        """`always`: a level at which everything is stopped whatever the stores say (FENCEBEAT_KILL)."""
        self._board = board
        self._client = client
        self._keys = keys
        self._clock = clock
        self._always = always
        self._known: Known | None = None
        self._reread = 0.0

    def permits(self, level: str, scopes: Sequence[str]) -> bool:
        """See `index.ports.Switches.permits`; unknown means no."""
        known = self.known()
        if known is None or _reaches(self._always, level):
            return False
        return not any(_reaches(known.flags[scope].level, level) for scope in scopes if scope in known.flags)

    def known(self) -> Known | None:
        """What is in force now; None where no store has been able to tell for GRACE seconds."""
        now = self._clock.elapsed()
        if self._known is not None and now < self._reread:
            return self._known
        failpoint("switch.read.before")
        fresh = self._copy(now) or self._truth(now)
        failpoint("switch.read.after")
        if fresh is not None:
            self._known, self._reread = fresh, now + REREAD
        elif self._known is not None and now - self._known.at > GRACE:
            self._known = None
        return self._known

    def _copy(self, now: float) -> Known | None:
        try:
            copy = read_flags(self._client, self._keys)
        except Retryable:
            return None
        if copy is None or copy.age_seconds > FRESH:
            return None
        if self._known is not None and copy.generation < self._known.generation:
            return None  # an old copy came back, as after a failover
        return Known(copy.generation, copy.flags, now, "redis")

    def _truth(self, now: float) -> Known | None:
        try:
            generation, flags = self._board.flags()
        except FencebeatError:
            return None
        return Known(generation, flags, now, "postgres")


def _reaches(stopped: str, asked: str) -> bool:
    """Does a stop at one level cover an act of another? write covers start, start covers emit."""
    order = ("", *LEVELS)
    return bool(stopped) and order.index(stopped) >= order.index(asked)
