"""What the scheduler needs of this application: its store of effects, which survives the loss of Redis."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from control.switches import SwitchBoard
from fencebeat.clock import SystemClock
from fencebeat.effects import AuditRecord, EntriesCopy, Flag, Gap, Past, Version
from index.ledger.pool import connection

QUEUED = timedelta(minutes=10)
"""How long a message of an unguarded task may have waited in a queue that was lost: older ones count as delivered."""
SETTLE_EVERY = 60.0
"""Seconds between two looks at which ticks are closed: what a recovery has to read beyond those that are open."""

ENTRIES = 100
"""Entries in one statement of a recovery. With 600 open ticks each a second; more where ticks were passed over."""
ROWS = 20_000
"""Emitted ticks that one statement looks at to find those that need not be looked at again."""
SHORT = 5.0
"""Seconds for what is asked before each campaign and each copy, and is a matter of milliseconds."""


class LedgerEffects:
    """The ledger as the effect store of one namespace. Satisfies `fencebeat.effects.EffectStore`.

    Every method raises StoreUnreachable where Postgres cannot be reached, or is frozen.
    """

    def __init__(self, pool: ConnectionPool, namespace: str, *, queued: timedelta = QUEUED) -> None:
        self._pool, self._namespace, self._queued = pool, namespace, queued
        self._board = SwitchBoard(pool)
        self._clock = SystemClock()
        self._settle_at = self._clock.elapsed() + SETTLE_EVERY

    def floor(self) -> int:
        """Highest token that a tick's claim or the copied audit has seen."""
        with connection(self._pool, SHORT) as conn:
            row = conn.execute("SELECT known_floor(%s)", (self._namespace,)).fetchone()
        return int(row[0]) if row else 0

    def flags(self) -> tuple[int, Mapping[str, Flag]]:
        """Generation and stops in force; a stop whose time is over is recorded on the way."""
        return self._board.flags()

    def last_copied(self) -> str:
        """Id of the newest record of the copied audit; empty where there is none."""
        with connection(self._pool, SHORT) as conn:
            row = conn.execute(
                "SELECT stream_id FROM tick_audit WHERE namespace = %s ORDER BY position DESC LIMIT 1",
                (self._namespace,),
            ).fetchone()
        return str(row[0]) if row else ""

    def copy_audit(self, records: Sequence[AuditRecord]) -> None:
        """Keep these records and raise the marks they show; the same record twice changes nothing."""
        kept = [Jsonb({name: _storable(value) for name, value in record.fields.items()}) for record in records]
        with connection(self._pool) as conn:
            conn.execute("SELECT keep_audit(%s, %s, %s)", (self._namespace, [record.id for record in records], kept))
        if self._clock.elapsed() >= self._settle_at:
            self._settle_at = self._clock.elapsed() + SETTLE_EVERY
            self.settle()

    def settle(self) -> int:
        """Mark the emitted ticks that no recovery has to look at again, and return how many those were.

        In pages, each a transaction of its own: what waits may be a million rows, and a statement has 15 s.
        """
        total, entry, fire_time = 0, "", 0
        while entry is not None:
            with connection(self._pool) as conn:
                [(settled, entry, fire_time)] = conn.execute(
                    "SELECT settled, last_entry, last_fire_time FROM settle_page(%s, %s, %s, %s, %s)",
                    (self._namespace, self._queued, entry, fire_time, ROWS),
                ).fetchall()
            total += settled
        return total

    def copied_entries(self) -> Version:
        """The version of the definitions and pauses that are kept; zeros where there is none."""
        with connection(self._pool, SHORT) as conn:
            row = conn.execute(
                "SELECT token, generation FROM tick_entry_version WHERE namespace = %s", (self._namespace,)
            ).fetchone()
        return Version(*row) if row else Version(0, 0)

    def copy_entries(self, copy: EntriesCopy) -> bool:
        """Keep definitions and pauses; False where another copier was faster."""
        names = list(copy.entries)
        definitions = [text and _storable(text) for text in copy.entries.values()]
        pauses = [(text := copy.paused.get(name)) and _storable(text) for name in names]
        with connection(self._pool) as conn:
            row = conn.execute(
                "SELECT keep_entries(%s, %s, %s, %s, %s, %s::text[], %s::text[], %s)",
                (self._namespace, *copy.version, copy.base, names, definitions, pauses, copy.last),
            ).fetchone()
        return bool(row and row[0])

    def past(self) -> Past:
        """Marks, gaps, definitions and pauses, all of one moment; read in pages, by entry."""
        marks: dict[str, int] = {}
        gaps: list[Gap] = []
        with connection(self._pool) as conn, conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            after = ""
            while page := conn.execute(
                "SELECT entry, mark FROM recovered_marks_page(%s, %s, %s)", (self._namespace, after, ENTRIES)
            ).fetchall():
                last = page[-1][0]
                lost = conn.execute(
                    "SELECT entry, first, fire_time, count, task_id FROM lost_ticks_between(%s, %s, %s, %s)",
                    (self._namespace, self._queued, after, last),
                )
                marks.update(page)
                gaps += [Gap(*gap) for gap in lost]
                after = last
            stored = conn.execute(
                "SELECT entry, definition, pause FROM tick_entry WHERE namespace = %s", (self._namespace,)
            ).fetchall()
        return Past(
            marks=marks,
            gaps=gaps,
            entries={name: definition for name, definition, _ in stored if definition is not None},
            paused={name: pause for name, _, pause in stored if pause is not None},
        )


def _storable(text: str) -> str:
    """Postgres keeps no NUL: one rubbish value would keep every later record from being copied."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
