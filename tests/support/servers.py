"""Real servers for the tests: one of each for the whole run, started when the first test asks for it."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ops.services import Addresses, Services, postgres


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def absent(sentence: str):
    """A missing server: a skip on a laptop, a failure in continuous integration."""
    if in_ci():
        pytest.fail(f"CI needs every server. {sentence}", pytrace=False)
    pytest.skip(sentence)


@contextmanager
def running(name: str, folder: Path) -> Iterator[Addresses]:
    """One throw-away server, or the existing one that the environment names."""
    services = Services(folder, {name}, durable=False)
    try:
        addresses = services.start()
        if name in addresses.missing:
            absent(str(addresses.missing[name]))
        yield addresses
    finally:
        services.stop()
        postgres.remove(folder)


def unique(prefix: str) -> str:
    """A name that no other test has: lower-case letters, digits and hyphens."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """A new, empty database; yields its URI and drops it afterwards, with whoever is still connected."""
    name = unique("test")
    with psycopg.connect(server_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield _with_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _with_database(url: str, name: str) -> str:
    """The same server, another database, as a URI (SQLAlchemy and celery take no key-value strings)."""
    head, mark, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    host = rest.split("/", 1)[0]
    changed = f"{scheme}://{host}/{name}{mark}{query}"
    make_conninfo(changed)  # raises when that is no address
    return changed
