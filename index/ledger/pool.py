"""Connections to the ledger: autocommit, time-outs on everything, and a role that is neither owner nor superuser."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from psycopg_pool import ConnectionPool, PoolTimeout

from fencebeat.errors import StoreUnreachable
from index.errors import LedgerBusy

APP_ROLE = "fencebeat_app"
STATEMENT_MS = 15_000
LOCK_MS = 5_000
IDLE_IN_TRANSACTION_MS = 10_000


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
    return ConnectionPool(
        app_conninfo(url, connect_timeout=timeout),
        min_size=0,
        max_size=size,
        timeout=timeout + 1,
        max_idle=60,
        reconnect_timeout=5,
        kwargs={"autocommit": True},
        check=ConnectionPool.check_connection,
        open=True,
        name="ledger",
    )


@contextmanager
def connection(pool: ConnectionPool) -> Iterator[psycopg.Connection]:
    """A connection in autocommit. Raises StoreUnreachable where none is to be had or it breaks."""
    try:
        with pool.connection() as conn:
            yield conn
    except (SerializationFailure, DeadlockDetected, LockNotAvailable) as error:
        raise LedgerBusy(why=str(error).strip()) from error
    except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise StoreUnreachable(
            store="Postgres",
            seconds=pool.timeout,
            why=str(error).strip() or type(error).__name__,
            address=_public(str(pool.conninfo)),
        ) from error


def _public(conninfo: str) -> str:
    """Host, port and database of a connection string: never its user or password."""
    parts = conninfo_to_dict(conninfo)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
