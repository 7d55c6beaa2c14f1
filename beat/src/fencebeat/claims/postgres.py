"""Claims in Postgres: they survive whatever happens to the broker, and close in the transaction of the effect.

Connections are opened when they are needed and belong to one process: after a fork the child opens its own. The table
is made by `fencebeat claims install` (`sql/tick_claim.sql`). Each statement runs by itself, in autocommit.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from fencebeat.claims.bounded import NoAnswer, bounded_pool
from fencebeat.claims.port import Claimed, ClaimState, Closed, Running, Tick
from fencebeat.claims.schema import schema
from fencebeat.errors import NoTransaction, StoreUnreachable

_CLAIM = """
INSERT INTO tick_claim AS c (tick_id, entry, fire_time, token, attempt, holder, lease_until, namespace)
VALUES (%(id)s, %(entry)s, 'epoch'::timestamptz + %(fire_time)s * interval '1 microsecond', %(token)s, 1, %(holder)s,
        clock_timestamp() + %(lease)s * interval '1 second', %(namespace)s)
ON CONFLICT (tick_id) DO UPDATE
   SET attempt = c.attempt + 1, holder = excluded.holder, token = greatest(c.token, excluded.token),
       lease_until = clock_timestamp() + %(lease)s * interval '1 second'
 WHERE c.closed_at IS NULL AND c.lease_until <= clock_timestamp()
RETURNING attempt
"""
_STATE = """
SELECT tick_id::text, attempt, holder, extract(epoch FROM lease_until - clock_timestamp())::float8,
       CASE WHEN closed_at IS NOT NULL THEN coalesce(outcome, '') END
  FROM tick_claim WHERE tick_id = ANY(%s::uuid[])
"""
_EXTEND = """
UPDATE tick_claim SET lease_until = clock_timestamp() + %s * interval '1 second'
 WHERE tick_id = %s AND attempt = %s AND closed_at IS NULL
"""
_CLOSE = """
UPDATE tick_claim SET closed_at = coalesce(closed_at, clock_timestamp()), outcome = coalesce(outcome, %s)
 WHERE tick_id = %s AND attempt = %s
"""
_PURGE = """
DELETE FROM tick_claim c
 WHERE c.namespace = %s AND c.closed_at < clock_timestamp() - %s * interval '1 second'
   AND EXISTS (SELECT FROM tick_claim n WHERE n.namespace = c.namespace AND n.entry = c.entry
                  AND n.fire_time > c.fire_time AND n.closed_at IS NOT NULL)
   AND c.token < (SELECT max(token) FROM tick_claim WHERE namespace = c.namespace)
"""  # the second condition: the floor never falls

PATIENCE = 1.25
"""Of a statement's time-out, how long it is waited for on this side, where the server is too frozen to keep it."""


class Connection(Protocol):
    """A DB-API connection to the same Postgres: psycopg's, psycopg2's, Django's."""

    def cursor(self) -> Any:
        """A cursor that is a context manager and whose parameters are written %s."""
        ...


class PostgresClaims:
    """Satisfies `fencebeat.claims.ClaimStore`. Opens nothing until it is asked.

    url: a libpq URI or connection string; options in it are kept. timeout: seconds for connecting and for each
    statement, also where the server is frozen. Waiting for a row that somebody else's transaction has locked is bounded
    by half of it.
    """

    def __init__(self, url: str, namespace: str = "", timeout: float = 2.0) -> None:
        self._conninfo, self._namespace, self._timeout = _bounded(url, timeout), namespace, timeout
        self._pools: dict[int, ConnectionPool] = {}  # by process; a parent's pool is kept, for only it may close it

    def claim(self, tick: Tick, holder: str, lease: float) -> Claimed | Running | Closed:
        """See `ClaimStore.claim`."""
        facts = {
            "id": tick.task_id,
            "entry": tick.entry,
            "fire_time": tick.fire_time,
            "token": tick.token,
            "holder": holder,
            "lease": lease,
            "namespace": self._namespace,
        }
        with self._connection() as conn:
            taken = conn.execute(_CLAIM, facts).fetchone()
            if taken is not None:
                return Claimed(int(taken[0]))
            row = conn.execute(_STATE, ([tick.task_id],)).fetchone()
        if row is None or (row[4] is None and row[3] <= 0):  # purged, or its lease ended, between the two statements
            return Running(_MOMENT)
        return Running(float(row[3])) if row[4] is None else Closed(row[4])

    def extend(self, task_id: str, attempt: int, lease: float) -> bool:
        """See `ClaimStore.extend`."""
        with self._connection() as conn:
            return conn.execute(_EXTEND, (lease, task_id, attempt)).rowcount == 1

    def release(self, task_id: str, attempt: int) -> bool:
        """See `ClaimStore.release`."""
        return self.extend(task_id, attempt, 0.0)

    def close(self, task_id: str, attempt: int, outcome: str) -> bool:
        """See `ClaimStore.close`."""
        with self._connection() as conn:
            return conn.execute(_CLOSE, (outcome, task_id, attempt)).rowcount == 1

    def close_in(self, connection: Connection, task_id: str, attempt: int, outcome: str) -> bool:
        """`close` inside the caller's own transaction, so that both commit or neither does.

        Until that transaction ends, the row is locked: nobody can take the claim over. Raises NoTransaction where the
        connection is in autocommit and no transaction is open, and what the connection raises.
        """
        info = getattr(connection, "info", None)
        idle = getattr(info, "transaction_status", None) == psycopg.pq.TransactionStatus.IDLE
        if idle and getattr(connection, "autocommit", False):
            raise NoTransaction(task_id=task_id)
        with connection.cursor() as cursor:
            cursor.execute(_CLOSE, (outcome, task_id, attempt))
            return bool(cursor.rowcount == 1)

    def look(self, task_ids: Sequence[str]) -> Mapping[str, ClaimState]:
        """See `ClaimStore.look`."""
        with self._connection() as conn:
            rows = conn.execute(_STATE, (list(task_ids),)).fetchall()
        return {row[0]: ClaimState(row[1], row[2], max(0.0, row[3]), row[4]) for row in rows}

    def floor(self) -> int:
        """See `ClaimStore.floor`."""
        with self._connection() as conn:
            row = conn.execute("SELECT max(token) FROM tick_claim WHERE namespace = %s", (self._namespace,)).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    def purge(self, older: float) -> int:
        """See `ClaimStore.purge`."""
        with self._connection() as conn:
            return conn.execute(_PURGE, (self._namespace, older)).rowcount

    def install(self) -> None:
        """Make the table where it is missing. Needs a user who may create it. Raises StoreUnreachable."""
        with self._connection() as conn:
            conn.execute(schema())

    def disconnect(self) -> None:
        """Close this process's connections; the next call opens others."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close(timeout=self._timeout)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        pool = self._pools.get(os.getpid())
        if pool is None:  # no lock of ours: a fork might copy it locked
            pool = self._pools.setdefault(os.getpid(), self._make_pool())
            pool.open()
        try:
            with pool.connection() as conn:
                yield conn
        except (PoolTimeout, psycopg.Error) as error:
            raise StoreUnreachable(
                store="Postgres (claims)",
                seconds=error.seconds if isinstance(error, NoAnswer) else self._timeout,
                why=_why(error),
                address=_address(self._conninfo),
            ) from error

    def _make_pool(self) -> ConnectionPool:
        return bounded_pool(
            self._conninfo,
            name="fencebeat-claims",
            size=4,
            timeout=self._timeout,
            patience=self._timeout * PATIENCE,
        )


_MOMENT = 0.1
"""Seconds after which to ask again where the state changed while we looked."""


@cache
def _why_by_state() -> Mapping[type[psycopg.Error], str]:
    return {
        psycopg.errors.UndefinedTable: "there is no table tick_claim: run `fencebeat claims install`",
        psycopg.errors.UndefinedColumn: "its table tick_claim is an older one: run `fencebeat claims install`",
    }


def _why(error: Exception) -> str:
    for kind, sentence in _why_by_state().items():
        if isinstance(error, kind):
            return sentence
    return str(error).strip() or type(error).__name__


def _bounded(url: str, timeout: float) -> str:
    """`url` with time-outs for everything: connecting, statements, locks, and a peer that has gone."""
    given = conninfo_to_dict(url)
    milliseconds = round(timeout * 1000)
    options = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds // 2}"
    bounds: dict[str, Any] = {
        "options": f"{given.get('options') or ''} {options}".strip(),
        "connect_timeout": given.get("connect_timeout", max(1, round(timeout))),
        "application_name": given.get("application_name", "fencebeat-claims"),
        "tcp_user_timeout": given.get("tcp_user_timeout", milliseconds),
        "keepalives_idle": given.get("keepalives_idle", 5),
        "keepalives_interval": given.get("keepalives_interval", 2),
        "keepalives_count": given.get("keepalives_count", 3),
    }
    return make_conninfo(url, **bounds)


def _address(conninfo: str) -> str:
    """Host, port and database: never the user or the password."""
    parts = conninfo_to_dict(conninfo)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
