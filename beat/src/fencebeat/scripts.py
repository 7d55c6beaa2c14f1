"""Lua scripts by name, from the package's own files, and what their failures mean.

A script is sent by its digest; where the server does not know it (first use, SCRIPT FLUSH, a failover) the text is
sent in the same call.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError

from fencebeat.errors import StoreUnreachable, UnusableRecord


class Script:
    """One `.lua` file of the package."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = files("fencebeat").joinpath("lua", f"{name}.lua").read_text()
        self.digest = hashlib.sha1(
            self.text.encode(), usedforsecurity=False
        ).hexdigest()  # Redis names scripts by SHA-1

    def __call__(
        self,
        client: redis.Redis,
        keys: Sequence[str],
        args: Sequence[Any],
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Run it once and return its reply.

        meanwhile: called while the server works, by a client that can (`connection.Client`).
        Raises StoreUnreachable when it is not known whether it ran, UnusableRecord when it refused a key's content.
        """
        with asking(client):
            try:
                reply = client.execute_command(  # type: ignore[no-untyped-call] # untyped in redis-py
                    "EVALSHA", self.digest, len(keys), *keys, *args, meanwhile=meanwhile
                )
            except NoScriptError:
                reply = client.eval(self.text, len(keys), *keys, *args)
        if isinstance(reply, list) and reply and reply[0] == "unusable":
            raise UnusableRecord(key=reply[1], found=reply[2])
        return reply


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, read once a process."""
    return Script(name)


@contextmanager
def asking(client: redis.Redis) -> Iterator[None]:
    """Turn every failure of a Redis call into StoreUnreachable: whatever it was, the outcome is in doubt."""
    try:
        yield
    except (RedisError, OSError) as error:
        where = client.connection_pool.connection_kwargs
        raise StoreUnreachable(
            store="Redis",
            seconds=where.get("socket_timeout"),
            why=_why(error),
            address=address(client),
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, OutOfMemoryError):
        return "its memory is full (maxmemory), so it refuses writes"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def address(client: redis.Redis) -> str:
    """Where a client connects to, without secrets."""
    where = client.connection_pool.connection_kwargs
    if "path" in where:
        return f"{where['path']} database {where.get('db', 0)}"
    if primary := getattr(client.connection_pool, "service_name", None):
        return f"Sentinel's primary {primary} database {where.get('db', 0)}"
    return f"{where.get('host')}:{where.get('port')}/{where.get('db', 0)}"
