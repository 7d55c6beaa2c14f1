"""RabbitMQ: a broker that cannot compare a token, for the tests of the outbox. Debian's server, run by ourselves.

Erlang's port mapper (epmd) would be started as a daemon that outlives everybody; here it is a process of the keeper's
on a port of its own, and the node may not start one. Cookie, database, plugins file and configuration are in the given
folder, which is also its HOME. Everything listens on loopback only.
"""

import os
import secrets
import socket
from pathlib import Path

from ops.services.errors import ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.launch import PROBE_SECONDS, free_ports, launch, private_folder

_START_SECONDS = 120.0  # Erlang loads for some 5 s on an idle machine, its database waits for the disk
_STOP_SECONDS = 30.0
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH wants to become the user rabbitmq
_HOST = "localhost"
_GREETING = b"AMQP\x00\x00\x09\x01"  # how a client of protocol 0-9-1 begins

_CONFIGURATION = """\
# Written at each start.
loopback_users.guest = true
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 1MB
collect_statistics_interval = 60000
"""


def script() -> Path:
    """Debian's start script. Raises ServerMissing."""
    if not _SCRIPT.is_file():
        raise ServerMissing(
            server="RabbitMQ", why="install it (Debian: apt-get install rabbitmq-server), or set RABBITMQ_URL"
        )
    return _SCRIPT


def environment(folder: Path, port: int, distribution: int, mapper: int) -> dict[str, str]:
    """What the start script reads, on top of PATH: nothing of the host's own RabbitMQ is used."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": str(folder),  # Erlang keeps its cookie there
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"fencebeat@{_HOST}",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes Erlang, so that signals reach it; its input is empty
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
    }


def prepare(folder: Path) -> None:
    """Make the folder and the files that RabbitMQ reads, so that it reads none of the host's."""
    private_folder(folder)
    for part in ("data", "log"):
        (folder / part).mkdir(exist_ok=True)
    (folder / "rabbitmq.conf").write_text(_CONFIGURATION)
    (folder / "enabled_plugins").write_text("[].\n")
    cookie = folder / ".erlang.cookie"
    if not cookie.exists():
        cookie.touch(mode=0o600)
        cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)  # Erlang refuses one that others may read


def answers(port: int) -> bool:
    """Whether it speaks AMQP: a greeting is answered by a method frame (connection.start)."""
    with socket.create_connection(("127.0.0.1", port), PROBE_SECONDS) as connection:
        connection.sendall(_GREETING)
        return connection.recv(1) == b"\x01"


def start(keeper: Keeper, folder: Path) -> tuple[str, Child]:
    """Start RabbitMQ on `folder`; returns (URL of its guest, process).

    Raises ServerMissing or ServerFailed.
    """
    program, home = script(), folder / "rabbitmq"
    prepare(home)
    logs = folder / "logs"
    port = 0
    mapper: Child | None = None

    def run() -> Child:
        nonlocal port, mapper
        if mapper is not None:
            keeper.stop(mapper)
        ports = free_ports()
        port, distribution, names = next(ports), next(ports), next(ports)
        environ = environment(home, port, distribution, names)
        mapper = keeper.start(
            "epmd",
            ["epmd", "-port", str(names), "-address", "127.0.0.1"],
            log=logs / "epmd.log",
            env=environ,
        )
        # A higher rank: it is stopped before its port mapper.
        return keeper.start(
            "rabbitmq", [program], log=logs / "rabbitmq.log", env=environ, cwd=home, grace=_STOP_SECONDS, rank=1
        )

    child = launch("RabbitMQ", run, lambda _: answers(port), _START_SECONDS)
    return f"amqp://guest:guest@127.0.0.1:{port}//", child
