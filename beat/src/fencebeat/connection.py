"""Clients of the broker's own Redis database, and what must be true of it before anybody leads.

The addresses, credentials, TLS and Sentinel options are kombu's: the fence has to be where the messages are. Every
client of ours has explicit time-outs and no retry of redis-py's own (by default it tries ten times: one GET with a
0.5 s time-out took 9.4 s); the loops above retry inside the time for which they are trusted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from kombu import Connection
from kombu.transport import redis as transport
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from fencebeat.clock import Clock
from fencebeat.errors import ClockJumped, ImpossibleConfiguration
from fencebeat.jumps import JumpWatch
from fencebeat.keys import Keys
from fencebeat.scripts import asking

log = logging.getLogger(__name__)

POLICY_EVERY = 5.0
"""Seconds between two looks at a running store's eviction policy."""
TOLERANCE = 2.0
"""Seconds by which the clocks of this host and of the Redis server may differ."""


class _Silent:
    """Stands where kombu's channel pings its server: we want its parameters without a connection."""

    def ping(self) -> None:
        """Do nothing."""


class _Parameters(transport.Channel):
    """A channel that is never opened, asked for the pool that kombu would use, with our time-outs in it."""

    client = _Silent()
    ours: Mapping[str, Any] = {}

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        return {**super()._connparams(asynchronous), **self.ours}


class _SentinelParameters(_Parameters, transport.SentinelChannel):
    pass


class Client(redis.Redis):
    """A client that can do something of ours between sending a command and reading its reply."""

    def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        """See `redis.Redis.parse_response`. The option `meanwhile` is called first; the command has been sent."""
        meanwhile = options.pop("meanwhile", None)
        if meanwhile is not None:
            try:
                meanwhile()
            except BaseException:
                connection.disconnect()  # the reply that nobody reads would be taken for that of the next command
                raise
        return super().parse_response(connection, command_name, **options)  # type: ignore[no-untyped-call] # untyped in redis-py


@dataclass(frozen=True)
class Broker:
    """Where the broker is, as kombu understands it. Opens nothing."""

    url: str
    transport_options: Mapping[str, Any] | None = None
    ssl: Any = None

    def keys(self, namespace: str) -> Keys:
        """The keys of `namespace`, under kombu's `global_keyprefix`."""
        return Keys(namespace, prefix=str((self.transport_options or {}).get("global_keyprefix", "")))

    def client(self, timeout: float, name: str = "fencebeat") -> redis.Redis:
        """A client with replies as text; `timeout` seconds for connecting and for each reply, no retries.

        Raises ImpossibleConfiguration for a broker that is not one Redis database.
        """
        ours = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "decode_responses": True,
            "encoding_errors": "replace",  # rubbish in a record must reach the check that names it
            "client_name": name,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),  # it may stretch time-outs to 10 s
        }
        connection = Connection(self.url, transport_options=dict(self.transport_options or {}), ssl=self.ssl)
        kombu_transport = connection.transport
        if not isinstance(kombu_transport, transport.Transport):
            raise ImpossibleConfiguration(rules="the broker must be Redis or Valkey: its scripts check the fence.")
        sentinel = isinstance(kombu_transport, transport.SentinelTransport)
        if len(connection.alt) > 1 and not sentinel:
            raise ImpossibleConfiguration(rules="several brokers share no fence: name one, or use Sentinel.")
        channel = (_SentinelParameters if sentinel else _Parameters)(kombu_transport)
        channel.ours = ours
        try:
            return Client(connection_pool=channel._get_pool())  # noqa: SLF001 - the one place where kombu makes it
        finally:
            kombu_transport.cycle.close()
            connection.release()


@dataclass(frozen=True)
class StoreReport:
    """What is wrong with a store, a sentence each: `refusals` keep everybody from leading, `warnings` do not."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def clock_difference(client: redis.Redis, clock: Clock) -> float:
    """Seconds by which this host's clock is ahead of the server's, sure to half a round trip.

    Raises StoreUnreachable.
    """
    return _times(client, clock)[0]


def clock_refusal(
    client: redis.Redis, clock: Clock, tolerance: float = TOLERANCE, jumps: JumpWatch | None = None
) -> str | None:
    """Why this host may not lead, or None.

    Its clock differs from the server's by more than `tolerance` seconds, or both went forward by more than a day.
    """
    ahead, now = _times(client, clock)
    if abs(ahead) > tolerance:
        return (
            f"this host's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the store's, "
            f"more than the tolerance of {tolerance:g} s."
        )
    try:
        if jumps is not None:
            jumps.look(now)
    except ClockJumped as error:
        return str(error)
    return None


def _times(client: redis.Redis, clock: Clock) -> tuple[float, int]:
    before = clock.wall()
    with asking(client):
        seconds, microseconds = client.time()
    return (before + clock.wall()) / 2 - (seconds + microseconds / 1e6), seconds * 1_000_000 + microseconds


def examine(
    client: redis.Redis, clock: Clock, *, tolerance: float = TOLERANCE, allow_eviction: bool = False
) -> StoreReport:
    """Look for what would break promises later. Raises StoreUnreachable."""
    with asking(client):
        memory, server = client.info("memory"), client.info("cluster")
    refusals: list[str] = []
    warnings: list[str] = []
    if str(server.get("cluster_enabled", 0)) == "1":
        refusals.append("the store runs in cluster mode, for which kombu has no transport: use one primary.")
    if (policy := memory.get("maxmemory_policy", "noeviction")) != "noeviction":
        sentence = f"maxmemory-policy is {policy}, so the store may drop the fence: set it to noeviction."
        (warnings if allow_eviction else refusals).append(sentence)
    if difference := clock_refusal(client, clock, tolerance):
        refusals.append(difference)
    return StoreReport(tuple(refusals), tuple(warnings))


class PolicyWatch:
    """Tells when a running store is set to evict keys: too late to refuse a start, early enough to undo it."""

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._looked: float | None = None
        self._told = "noeviction"

    def look(self) -> None:
        """Ask at most every POLICY_EVERY seconds; log each change once. Raises StoreUnreachable."""
        now = self._clock.elapsed()
        if self._looked is not None and now - self._looked < POLICY_EVERY:
            return
        self._looked = now
        with asking(self._client):
            policy = self._client.info("memory").get("maxmemory_policy", "noeviction")
        if policy == self._told:
            return
        self._told = policy
        if policy == "noeviction":
            log.warning("maxmemory-policy is noeviction again")
        else:
            log.error(
                "maxmemory-policy is %s now: the store may drop the fence, the schedule and messages. "
                "Set it back: CONFIG SET maxmemory-policy noeviction",
                policy,
            )
