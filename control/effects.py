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

    def last_copied(self) -> str:
        """Id of the newest record of the copied audit; empty where there is none."""
        with connection(self._pool) as conn:
            row = conn.execute("SELECT max(stream_id) FROM tick_audit").fetchone()
        return str(row[0]) if row and row[0] is not None else ""

    def copy_audit(self, records: Sequence[AuditRecord]) -> None:
        """Keep these records and raise the marks they show; the same record twice changes nothing."""
        kept = [Jsonb({name: _storable(value) for name, value in record.fields.items()}) for record in records]
        with connection(self._pool) as conn:
            conn.execute("SELECT copy_audit(%s, %s)", ([record.id for record in records], kept))


def _storable(text: str) -> str:
    """JSON in Postgres has no NUL: one rubbish value would keep every later record from being copied."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
