"""What the scheduler needs of this application: its store of effects, which survives the loss of Redis."""

from collections.abc import Mapping, Sequence

from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from control.switches import SwitchBoard
from fencebeat.effects import AuditRecord, Flag
from index.ledger.pool import connection


class LedgerEffects:
    """The ledger as the scheduler's effect store. Satisfies `fencebeat.effects.EffectStore`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._board = SwitchBoard(pool)

    def floor(self) -> int:
        """Highest token that a tick's claim or the copied audit has seen."""
        with connection(self._pool) as conn:
            row = conn.execute(
                "SELECT greatest((SELECT max(token) FROM tick_claim), (SELECT token FROM token_floor))"
            ).fetchone()
        return int(row[0]) if row else 0

    def flags(self) -> tuple[int, Mapping[str, Flag]]:
        """Generation and stops in force; a stop whose time is over is recorded on the way."""
        return self._board.flags()

    def copy_audit(self, records: Sequence[AuditRecord]) -> None:
        """Keep these records and raise the marks they show; the same record twice changes nothing."""
        with connection(self._pool) as conn:
            conn.execute(
                "SELECT copy_audit(%s, %s)",
                ([record.id for record in records], [Jsonb(dict(record.fields)) for record in records]),
            )
