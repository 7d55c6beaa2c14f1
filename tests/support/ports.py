"""Ports at which nobody answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unused() -> Iterator[int]:
    """A loopback port that refuses connections: taken, and not listened at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def silent() -> Iterator[int]:
    """A loopback port that takes connections and never says anything."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]
