"""Bring the ledger's schema to this version: alembic for tables, then the functions, which are replaced each time.

Functions are code: they are applied whole after the last migration, in one transaction with it, under a lock that makes
a second `migrate` wait. Old code may still call them: a function that changes its arguments gets a new name.
"""

from contextlib import suppress
from importlib.resources import files

import psycopg
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from psycopg.sql import SQL, Identifier
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from config.settings import redacted
from fencebeat.errors import StoreUnreachable
from index.ledger.pool import APP_ROLE

_LOCK = 0x66656E6365  # "fence": advisory lock of this database while a schema changes


def upgrade(url: str, *, timeout: float = 10.0) -> str:
    """Upgrade the ledger at `url` (a role that may create tables) to the newest schema; returns its revision.

    Raises StoreUnreachable when the server cannot be reached.
    """
    try:
        with psycopg.connect(url, connect_timeout=round(timeout), autocommit=True) as conn:
            _make_role(conn)
    except psycopg.OperationalError as error:
        raise StoreUnreachable(
            store="Postgres", seconds=timeout, why=str(error).strip(), address=redacted(url)
        ) from error
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, connect_timeout=round(timeout)),
        poolclass=NullPool,
    )
    scripts = ScriptDirectory(str(files("index.ledger").joinpath("migrations")))
    with engine.begin() as conn:
        conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        context = MigrationContext.configure(
            conn,
            opts={"fn": lambda rev, _: scripts._upgrade_revs("head", rev)},  # noqa: SLF001 - alembic's own command does this
        )
        with Operations.context(context):
            context.run_migrations()
        for name in function_files():
            conn.exec_driver_sql(_literal(sql(name)))
        revision = context.get_current_revision()
    engine.dispose()
    return str(revision)


def sql(name: str) -> str:
    """Text of a file in index/ledger/sql."""
    return files("index.ledger").joinpath("sql", name).read_text(encoding="utf-8")


def function_files() -> list[str]:
    """The files of functions, in the order in which they are applied."""
    return sorted(
        entry.name for entry in files("index.ledger").joinpath("sql").iterdir() if entry.name.startswith("functions_")
    )


def _literal(text: str) -> str:
    return text.replace("%", "%%")  # psycopg reads % as a placeholder when SQLAlchemy passes parameters


def _make_role(conn: psycopg.Connection) -> None:
    """The application's role, and this user's membership in it. Roles are shared by all databases of a server."""
    exists = conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (APP_ROLE,)).fetchone()
    if exists is None:
        # Another migrate of another database may be faster; then the role is there, which is what we want.
        with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            conn.execute(SQL("CREATE ROLE {} NOLOGIN").format(Identifier(APP_ROLE)))
    member = conn.execute("SELECT pg_has_role(current_user, %s, 'MEMBER')", (APP_ROLE,)).fetchone()
    if member is None or not member[0]:
        conn.execute(SQL("GRANT {} TO CURRENT_USER").format(Identifier(APP_ROLE)))
