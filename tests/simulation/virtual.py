"""A real server under a virtual clock: the product's own scripts, on a real Valkey, in time that a test moves.

Each script runs behind a short prelude that answers TIME from a key and keeps the time limits of keys itself, so a
lease ends when virtual time says so and a run of minutes takes a second. Nothing of the product is changed: the client
sends the prelude and the script where the product asks for the script, and answers TIME where it asks for that.
"""

import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Protocol

import redis
from redis.client import Pipeline
from redis.exceptions import NoScriptError

NOW, ENDS = "sim:now", "sim:ends"
PRELUDE = """
local server = redis
local function now() return tonumber(server.call('GET', 'sim:now')) end
local function keep(key, ms)
  server.call('HSET', 'sim:ends', key, string.format('%.0f', now() + tonumber(ms) * 1000))
end
local held = server.call('HGETALL', 'sim:ends')
for i = 1, #held, 2 do
  if tonumber(held[i + 1]) <= now() then
    server.call('DEL', held[i])
    server.call('HDEL', 'sim:ends', held[i])
  end
end
local redis = setmetatable({}, {__index = server})
function redis.call(name, key, ...)
  local more = {...}
  if name == 'TIME' then
    local seconds = math.floor(now() / 1000000)
    return {string.format('%.0f', seconds), string.format('%.0f', now() - seconds * 1000000)}
  elseif name == 'PEXPIRE' then
    if server.call('EXISTS', key) == 0 then return 0 end
    keep(key, more[1])
    return 1
  elseif name == 'PTTL' then
    if server.call('EXISTS', key) == 0 then return -2 end
    local ends = server.call('HGET', 'sim:ends', key)
    if not ends then return -1 end
    return math.floor((tonumber(ends) - now()) / 1000)
  elseif name == 'SET' and more[2] == 'PX' then
    keep(key, more[3])
    return server.call('SET', key, more[1])
  elseif name == 'DEL' then
    server.call('HDEL', 'sim:ends', key)
  end
  return server.call(name, key, ...)
end
"""


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _scripts() -> dict[str, tuple[str, str]]:
    """SHA-1 of each script of the product -> its name and text."""
    found = [path for path in files("fencebeat").joinpath("lua").iterdir() if path.name.endswith(".lua")]
    texts = [(path.name.removesuffix(".lua"), path.read_text()) for path in found]
    return {_digest(text): (name, text) for name, text in texts}


SCRIPTS = _scripts()


class Port(Protocol):
    """Who may stop, delay or break a call: `ask` is the call itself."""

    def port(self, name: str, ask: Callable[[], Any]) -> Any:
        """Make the call, or not."""
        ...

    def server_time(self) -> float:
        """Seconds since the epoch by the server's clock."""
        ...


class SimPipeline(Pipeline):
    """One call, whatever is in it."""

    port: Port

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        names = [str(command[0][0]).upper() for command in self.command_stack]

        def ask() -> list[Any]:
            answers = super(SimPipeline, self).execute(raise_on_error)
            seconds, rest = divmod(round(self.port.server_time() * 1_000_000), 1_000_000)
            return [(seconds, rest) if n == "TIME" else a for n, a in zip(names, answers, strict=True)]

        return self.port.port("+".join(dict.fromkeys(names)).lower(), ask)


class SimClient(redis.Redis):
    """The product's client, with virtual time and somebody at its port."""

    def __init__(self, pool: redis.ConnectionPool, port: Port) -> None:
        super().__init__(connection_pool=pool)
        self.sim_port = port

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> SimPipeline:
        made = SimPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.port = self.sim_port
        return made

    def close(self) -> None:
        """The pool is everybody's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        name = str(args[0]).upper()
        if name == "TIME":
            return self.sim_port.port("time", self._time)
        if name == "EVALSHA":
            script, text = SCRIPTS[args[1]]
            return self.sim_port.port(script, lambda: self._run(text, args[2:], options.get("meanwhile")))
        return self.sim_port.port(name.lower(), lambda: self._plain(*args, **options))

    def _plain(self, *args: Any, **options: Any) -> Any:
        return super().execute_command(*args, **options)

    def _time(self) -> tuple[int, int]:
        return divmod(round(self.sim_port.server_time() * 1_000_000), 1_000_000)

    def _run(self, text: str, rest: tuple[Any, ...], meanwhile: Callable[[], None] | None) -> Any:
        if meanwhile is not None:
            meanwhile()
        whole = PRELUDE + text
        try:
            return self._plain("EVALSHA", _digest(whole), *rest)
        except NoScriptError:
            return self._plain("EVAL", whole, *rest)


class Server:
    """One database of a real server. Losing data and failing over are what they are: keys that go, or come back."""

    def __init__(self, url: str) -> None:
        self.pool = redis.ConnectionPool.from_url(
            url, decode_responses=True, encoding_errors="replace", socket_timeout=10, socket_connect_timeout=10
        )
        self.client = redis.Redis(connection_pool=self.pool)
        self._raw = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=10)
        self.replica: dict[bytes, bytes] | None = None

    def tell_time(self, seconds: float) -> None:
        """Its clock, in seconds since the epoch."""
        self.client.set(NOW, round(seconds * 1_000_000))

    def lose_data(self, seconds: float) -> None:
        """Everything is gone."""
        self.client.flushdb()
        self.tell_time(seconds)

    def lag(self) -> None:
        """From now on the replica follows no more."""
        self.replica = {key: self._raw.dump(key) for key in self._raw.scan_iter()}

    def failover(self, seconds: float) -> None:
        """The replica becomes the primary, with what it has."""
        assert self.replica is not None
        self.client.flushdb()
        for key, value in self.replica.items():
            self._raw.restore(key, 0, value)
        self.replica = None
        self.tell_time(seconds)

    def close(self) -> None:
        """Give the connections back."""
        self.pool.disconnect()
        self._raw.close()
