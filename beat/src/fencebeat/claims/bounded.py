"""Connections to Postgres on which nobody waits for ever, not even for a server that is frozen.

`statement_timeout` is kept by the server, which stands still with it. `tcp_user_timeout` and keepalives are answered by
the kernel of a host whose server is stopped, and a Unix socket knows neither. So each wait ends on this side too, and
its connection with it: what becomes of the statement is unknown, as after every lost reply.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool

from fencebeat.clock import SystemClock

CHECK_SECONDS = 1.0
"""Most seconds to find out whether a connection of a pool still answers: one that does not leaves time for another."""


class NoAnswer(psycopg.OperationalError):
    """The server took a request and did not answer. seconds: for how long it was waited."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took the request and was silent for {seconds:g} s: it is frozen, or the way to it is cut")
        self.seconds = seconds


class BoundedConnection(psycopg.Connection[TupleRow]):
    """A connection whose every wait ends.

    patience: most seconds for one answer; above the server's own time-outs, so that these speak first where it lives.
    """

    patience: float = 20.0

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """As psycopg's, with an end. Raises NoAnswer; the connection is closed then."""
        try:
            return super().wait(_until(gen, self.patience), *args, **options)
        except NoAnswer:
            self.pgconn.finish()  # `close` would give it back to its pool, and in this state no statement can follow
            raise


def _until(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """`gen`, which psycopg resumes when its socket is ready and some times a second besides."""
    clock = SystemClock()  # the true one: a test that moves the clock does not move the server
    end = clock.elapsed() + seconds
    try:
        wanted = next(gen)
        while True:
            wanted = gen.send((yield wanted))
            if clock.elapsed() >= end:  # after what has come was taken: it may be this process that was frozen
                raise NoAnswer(seconds)
    except StopIteration as done:
        return cast("RV", done.value)


@contextmanager
def within(connection: psycopg.Connection, seconds: float | None) -> Iterator[None]:
    """Another patience for a while, where the connection has one; None: as it is."""
    if seconds is None or not isinstance(connection, BoundedConnection):
        yield
        return
    before, connection.patience = connection.patience, seconds
    try:
        yield
    finally:
        connection.patience = before


def bounded_pool(conninfo: str, *, name: str, size: int, timeout: float, patience: float) -> ConnectionPool:
    """A pool of bounded connections in autocommit, not yet open; connections are made when they are needed.

    conninfo: with a connect_timeout. timeout: seconds to wait for a connection. patience: see BoundedConnection.
    A connection that is silent when it is taken out takes the idle ones with it: what made it so (a frozen server, a
    way that forgot its connections) has most likely made them so too, and each would cost its own wait.
    """

    def configure(connection: psycopg.Connection) -> None:
        cast("BoundedConnection", connection).patience = patience

    def check(connection: psycopg.Connection) -> None:
        try:
            with within(connection, min(CHECK_SECONDS, timeout)):
                ConnectionPool.check_connection(connection)
        except NoAnswer:
            pool.drain()
            raise

    pool: ConnectionPool = ConnectionPool(
        conninfo,
        connection_class=BoundedConnection,
        min_size=0,
        max_size=size,
        timeout=timeout,
        max_idle=60,
        reconnect_timeout=timeout,
        kwargs={"autocommit": True},
        configure=configure,
        check=check,
        open=False,
        name=name,
    )
    return pool
