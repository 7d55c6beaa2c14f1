"""Connections to the ledger: autocommit, time-outs on everything, and a role that is neither owner nor superuser."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from psycopg_pool import ConnectionPool, PoolTimeout

from fencebeat.claims.bounded import NoAnswer, bounded_pool, within
from fencebeat.errors import StoreUnreachable
from index.errors import LedgerBusy

APP_ROLE = "fencebeat_app"
STATEMENT_MS = 15_000
LOCK_MS = 5_000
IDLE_IN_TRANSACTION_MS = 10_000
PATIENCE = STATEMENT_MS / 1000 + 2
"""Seconds for one answer of a server that is frozen and cannot keep its own time-outs."""


def app_conninfo(url: str, *, connect_timeout: float = 2.0) -> str:
    """`url` with our time-outs, acting as the application's role; other options in it are kept."""
    given = conninfo_to_dict(url)
    options = (
        f"-c role={APP_ROLE} -c statement_timeout={STATEMENT_MS} -c lock_timeout={LOCK_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS}"
    )
    return make_conninfo(
        url,
        options=f"{given.get('options', '')} {options}".strip(),
        connect_timeout=max(1, round(connect_timeout)),
        application_name=given.get("application_name", "fencebeat"),
    )


def open_pool(url: str, *, timeout: float = 2.0, size: int = 4) -> ConnectionPool:
    """A pool that opens connections when they are needed. Make one per process, after a fork."""
    pool = bounded_pool(
        app_conninfo(url, connect_timeout=timeout), name="ledger", size=size, timeout=timeout + 1, patience=PATIENCE
    )
    pool.open()
    return pool


@contextmanager
def connection(pool: ConnectionPool, patience: float | None = None) -> Iterator[psycopg.Connection]:
    """A connection in autocommit. Raises StoreUnreachable where none is to be had, it breaks, or the server is silent.

    patience: most seconds for one answer, where the caller has less time than `PATIENCE`.
    """
    try:
        with pool.connection() as conn, within(conn, patience):
            yield conn
    except (SerializationFailure, DeadlockDetected, LockNotAvailable) as error:
        raise LedgerBusy(why=str(error).strip()) from error
    except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise StoreUnreachable(
            store="Postgres",
            seconds=error.seconds if isinstance(error, NoAnswer) else pool.timeout,
            why=str(error).strip() or type(error).__name__,
            address=_public(str(pool.conninfo)),
        ) from error


def _public(conninfo: str) -> str:
    """Host, port and database of a connection string: never its user or password."""
    parts = conninfo_to_dict(conninfo)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
