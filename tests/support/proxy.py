"""A TCP proxy that breaks one link on purpose: `with Proxy.before(url) as proxy`, then `proxy.url` instead of `url`.

    word                      what the link does until `heal()`
    latency(ms, jitter)       each piece of data comes later
    slow(bytes_per_s)         each piece of data takes as long as its size says
    silence()                 takes bytes, passes nothing on, keeps the connection; it stays mute when healed, as a
                              connection does whose peer has forgotten it: new connections work again
    hold()                    keeps data until it is released, then passes it on, however late; tells when it has some
    cut_after(n)              passes n bytes of each connection, then closes it
    reset()                   answers data with a reset; without a direction: resets all connections now
    refuse()                  nobody listens; connections that are open stay

Each takes `up` (to the server), `down` (to the client) or `both`, except `refuse`. `about` limits a fault to
connections whose request at that moment contains these bytes, for example a script's digest (not under TLS); `times`
to so many bites. `bites` counts by word, so that a test can assert that its fault bit. A held request is passed on
although its client has given up meanwhile: that is the late write against which a fence stands.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import urlsplit

Direction = Literal["up", "down", "both"]
PORTS = {"redis": 6379, "rediss": 6379, "sentinel": 26379, "http": 80, "https": 443, "postgresql": 5432, "amqp": 5672}
_CHUNK = 65536
_PATIENCE = 10.0


class Cut(Exception):
    """The link ends here; `hard` by a reset."""

    def __init__(self, *, hard: bool) -> None:
        super().__init__()
        self.hard = hard


@dataclass(eq=False)
class _Fault:
    word: str
    direction: Direction
    about: bytes = b""
    times: int | None = None
    number: float = 0.0  # seconds, bytes or bytes a second
    jitter: float = 0.0
    bitten: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, link: "_Link", direction: str) -> bool:
        return (
            self.direction in (direction, "both")
            and self.about in link.request
            and (self.times is None or self.times > 0)
            and not self.over.is_set()
        )


@dataclass(frozen=True)
class Held:
    """Data that a `hold` keeps."""

    _fault: _Fault
    _loop: asyncio.AbstractEventLoop

    def wait(self, at_most: float = _PATIENCE) -> None:
        """Until something is held: with `down`, until a request has been answered and its reply is here."""
        assert self._fault.bitten.wait(at_most), f"the proxy held nothing within {at_most:g} s"

    def answered(self, at_most: float = _PATIENCE) -> None:
        """After the release of a held request: until the server has answered it, whoever hears of it."""
        assert self._fault.answered.wait(at_most), f"the held request was not answered within {at_most:g} s"

    def release(self) -> None:
        """Pass on what was held, and hold no more."""
        self._loop.call_soon_threadsafe(self._fault.over.set)


@dataclass(eq=False)
class _Link:
    """One connection of a client and its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    request: bytes = b""  # the first bytes sent up since the last answer
    answered: bool = False
    mute: set[str] = field(default_factory=set)
    late: list[_Fault] = field(default_factory=list)  # held requests that were passed on and not answered yet
    passed: Counter[_Fault] = field(default_factory=Counter)  # bytes since each cut_after was set

    def saw(self, direction: str, data: bytes) -> None:
        if direction == "up":
            self.request = data if self.answered else (self.request + data)[:4096]
        self.answered = direction == "down"
        while self.answered and self.late:
            self.late.pop().answered.set()

    def end(self, *, hard: bool) -> None:
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if hard and sock is not None:  # lingering for 0 s is how a reset is asked for
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if hard:
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """One link to `host`:`port` (or to a Unix socket: its path, 0), on a loopback port and in a thread of its own."""

    def __init__(self, host: str, port: int, url: str = "") -> None:
        self._target, self._url = (host, port), url
        self.bites: Counter[str] = Counter()
        self.connections = 0  # accepted so far
        self._faults: list[_Fault] = []
        self._links: set[_Link] = set()
        self._pumps: set[asyncio.Task] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        # Bound and never listened at: it keeps the port ours while nobody listens (`refuse`).
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy before the server of this URL."""
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or PORTS[parts.scheme], url)

    @property
    def url(self) -> str:
        """The URL given to `before`, through this proxy."""
        parts = urlsplit(self._url)
        credentials = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{credentials}{'@' if credentials else ''}127.0.0.1:{self.port}").geturl()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()
        self._reserved.close()

    # -- the words

    def latency(
        self, ms: float, jitter: float = 0.0, direction: Direction = "both", *, about: bytes | str = b""
    ) -> None:
        self._add("latency", direction, about, number=ms / 1000, jitter=jitter / 1000)

    def slow(self, bytes_per_s: float, direction: Direction = "both", *, about: bytes | str = b"") -> None:
        self._add("slow", direction, about, number=bytes_per_s)

    def silence(self, direction: Direction = "both", *, about: bytes | str = b"", times: int | None = None) -> None:
        self._add("silence", direction, about, times)

    def cut_after(
        self, count: int, direction: Direction, *, about: bytes | str = b"", times: int | None = None
    ) -> None:
        self._add("cut_after", direction, about, times, number=count)

    def reset(self, direction: Direction | None = None, *, about: bytes | str = b"", times: int | None = None) -> None:
        if direction is not None:
            self._add("reset", direction, about, times)
        else:
            self._do(self._reset())

    def hold(self, direction: Direction, *, about: bytes | str = b"") -> Held:
        return Held(self._add("hold", direction, about), self._loop)

    def refuse(self) -> None:
        self._do(self._deaf())

    def heal(self) -> None:
        """End every fault. What is held or delayed is passed on."""
        self._do(self._heal())

    # -- the loop's own thread

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def _add(
        self, word: str, direction: Direction, about: bytes | str, times: int | None = None, **more: Any
    ) -> _Fault:
        needle = about.encode() if isinstance(about, str) else about
        fault = _Fault(word, direction, needle, times, **more)

        async def add() -> None:
            self._faults.append(fault)

        self._do(add())
        return fault

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_port=True)

    async def _deaf(self) -> None:
        self.bites["refuse"] += 1
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _reset(self) -> None:
        for link in list(self._links):
            self.bites["reset"] += 1
            link.end(hard=True)

    async def _heal(self) -> None:
        faults, self._faults = self._faults, []
        for fault in faults:
            fault.over.set()
        if self._server is None:
            await self._listen()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.end(hard=True)
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for _ in range(3):  # who waited for them aborts its transports, and these close
            await asyncio.sleep(0)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target
        if host.startswith("/"):
            return await asyncio.open_unix_connection(host)
        return await asyncio.open_connection(host, port)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        opening = asyncio.ensure_future(self._open())
        self._pumps.add(opening)
        try:
            answers, server = await opening
        except (OSError, asyncio.CancelledError):  # cancelled at the end of the proxy
            client.transport.abort()
            return
        finally:
            self._pumps.discard(opening)
        link = _Link(client, server)
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._pump(link, "up", reader, server)),
            asyncio.create_task(self._pump(link, "down", answers, client)),
        ]
        self._pumps.update(pumps)
        try:
            await asyncio.gather(*pumps, return_exceptions=True)  # cancelled at the end of the proxy
        finally:
            self._pumps.difference_update(pumps)
            self._links.discard(link)
            link.end(hard=False)

    async def _pump(
        self, link: _Link, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass one direction on. Its end is passed on in its turn, so held data goes before it."""
        try:
            while data := await reader.read(_CHUNK):
                link.saw(direction, data)
                for fault in self._biting(link, direction):
                    await self._bite(fault, link, direction, data)
                if direction not in link.mute:
                    writer.write(data)
                    await writer.drain()
        except Cut as cut:
            link.end(hard=cut.hard)
        except OSError:
            pass  # this side has gone; below, the other side hears of it
        if direction not in link.mute:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()

    def _biting(self, link: _Link, direction: str) -> Iterator[_Fault]:
        for fault in list(self._faults):
            if fault.concerns(link, direction):
                yield fault

    async def _bite(self, fault: _Fault, link: _Link, direction: str, data: bytes) -> None:
        room = int(fault.number) - link.passed[fault]
        link.passed[fault] += len(data)
        if fault.word == "cut_after" and len(data) < room:
            return
        self.bites[fault.word] += 1
        if fault.times is not None:
            fault.times -= 1
        fault.bitten.set()
        match fault.word:
            case "latency":
                await _wait(fault, fault.number + random.uniform(-fault.jitter, fault.jitter))
            case "slow":
                await _wait(fault, len(data) / fault.number)
            case "hold":
                await fault.over.wait()
                link.late += [fault] if direction == "up" else []
            case "silence":
                link.mute.add(direction)
            case "reset":
                raise Cut(hard=True)
            case "cut_after":
                writer = link.server if direction == "up" else link.client
                writer.write(data[:room])
                await writer.drain()
                raise Cut(hard=False)


async def _wait(fault: _Fault, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(fault.over.wait(), max(0.0, seconds))
