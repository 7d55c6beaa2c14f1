"""Where the embedder listens: a Unix socket only its user may open, or a port."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fencebeat.errors import ImpossibleConfiguration, Refused

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_BACKLOG = 128


@contextmanager
def listening(address: str, *, has_key: bool) -> Iterator[socket.socket]:
    """A listening socket for `unix:///path` or `http://host:port` (port 0: any free one), closed at the end.

    The file of a Unix socket has mode 0600; one that a killed embedder left behind is replaced. Raises Refused when
    another embedder listens there, ImpossibleConfiguration for an address that cannot be used.
    """
    parts = urlsplit(address)
    if parts.scheme == "unix" and parts.path:
        with _unix(Path(parts.path)) as server:
            yield server
    elif parts.scheme == "http" and parts.hostname:
        if parts.hostname not in _LOOPBACK and not has_key:
            raise ImpossibleConfiguration(
                rules=f"the embedder would be open to the network at {address}: set EMBEDDER_API_KEY, or use 127.0.0.1."
            )
        with _tcp(parts.hostname, parts.port or 0) as server:
            yield server
    else:
        raise ImpossibleConfiguration(rules=f"EMBEDDER_URL must be unix:///path or http://host:port, not {address!r}.")


@contextmanager
def _tcp(host: str, port: int) -> Iterator[socket.socket]:
    try:
        server = socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise Refused(why=f"the embedder cannot listen on {host}:{port}: {error.strerror}.") from error
    with server:
        yield server


@contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock, not the socket file, says whether somebody is there: the kernel drops it when its holder dies.
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(why=f"another embedder listens on {path} already.") from None
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            _bind(server, path)
            try:
                yield server
            finally:
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _bind(server: socket.socket, path: Path) -> None:
    before = os.umask(0o177)  # the file must never exist with wider permissions, not even for a moment
    try:
        server.bind(str(path))
    except OSError as error:
        why = "its path is too long for a Unix socket" if error.errno in {None, errno.ENAMETOOLONG} else error.strerror
        raise ImpossibleConfiguration(rules=f"the embedder cannot listen on {path}: {why}.") from error
    finally:
        os.umask(before)
    server.listen(_BACKLOG)


def address_of(server: socket.socket) -> str:
    """The address a client uses for a listening socket."""
    name = server.getsockname()
    return f"unix://{name}" if server.family == socket.AF_UNIX else f"http://{name[0]}:{name[1]}"
