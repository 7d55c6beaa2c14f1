"""The scheduler's settings, read from `app.conf` and checked as one: every broken rule is reported, a sentence each."""

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

from celery import Celery
from kombu import Connection
from kombu.transport import redis as redis_transport

from fencebeat.connection import TOLERANCE, Broker
from fencebeat.effects import EffectStore
from fencebeat.errors import ImpossibleConfiguration
from fencebeat.flagmemory import OnUnknown
from fencebeat.keys import Keys
from fencebeat.lease import LeaseTiming, Lock
from fencebeat.locks.redis import RedisLock
from fencebeat.overlap import WAIT

OUTBOX_LIMIT = 10_000
"""Rows that may wait in the outbox before emission waits, too: about 20 MB of Redis."""
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What one beat is told by its Celery application. Make it by `of`."""

    namespace: str
    timing: LeaseTiming
    lock: str
    etcd_url: str
    effect_store: str
    tolerance: float  # seconds by which this host's clock and the store's may differ
    allow_eviction: bool
    zone: str  # of entries that name none
    on_unknown: OnUnknown  # without an effect store: what holds when nobody knows what was stopped
    broker: Broker  # the Redis of lock, schedule and outbox: the broker itself, where that is Redis
    outbox: bool = False  # the broker is another one, so messages go through the outbox
    outbox_limit: int = OUTBOX_LIMIT  # rows
    overlap_wait: float = WAIT  # seconds; see `overlap`
    fast_path: bool = True  # messages from proven templates (see `templates`)

    @classmethod
    def of(cls, app: Celery) -> Self:
        """Read `app.conf`. Raises ImpossibleConfiguration with one sentence for each broken rule."""
        conf = app.conf
        broken: list[str] = []

        def number(name: str, default: float, of: str = "seconds") -> float:
            value = conf.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                broken.append(f"{name} must be a number of {of} above 0, not {value!r}.")
                return default
            return float(value)

        namespace = str(conf.get("fencebeat_namespace", "fencebeat"))
        lock = str(conf.get("fencebeat_lock", "redis"))
        etcd_url = str(conf.get("fencebeat_etcd_url", "") or "")
        on_unknown = conf.get("fencebeat_on_unknown", "run")
        rules = (
            (_NAMESPACE.fullmatch(namespace), "fencebeat_namespace may have letters, digits, '_', '.' and '-' only."),
            (lock in ("redis", "etcd"), f"fencebeat_lock must be redis or etcd, not {lock!r}."),
            (lock != "etcd" or etcd_url, "fencebeat_lock is etcd, so fencebeat_etcd_url must say where it is."),
            (on_unknown in ("run", "stop"), f"fencebeat_on_unknown must be run or stop, not {on_unknown!r}."),
            (not conf.task_always_eager, "task_always_eager would run every tick inside the beat: turn it off."),
        )
        broken += [sentence for holds, sentence in rules if not holds]
        records, outbox, refusal = _where_records_are(conf)
        broken += filter(None, [refusal])
        tolerance = number("fencebeat_clock_tolerance", TOLERANCE)
        lease = number("fencebeat_lease", 5.0)
        overlap_wait = number("fencebeat_overlap_wait", WAIT)
        limit = round(number("fencebeat_outbox_limit", OUTBOX_LIMIT, of="rows"))
        apart = {
            name: number(f"fencebeat_{name}", lease)
            for name in ("renew_every", "margin", "call_timeout")
            if conf.get(f"fencebeat_{name}") is not None
        }
        try:
            timing = LeaseTiming.of(lease, **apart)
        except ImpossibleConfiguration as error:
            raise ImpossibleConfiguration(rules=" ".join([*broken, str(error.facts["rules"])])) from None
        if broken:
            raise ImpossibleConfiguration(rules=" ".join(broken))
        return cls(
            namespace=namespace,
            timing=timing,
            lock=lock,
            etcd_url=etcd_url,
            effect_store=str(conf.get("fencebeat_effect_store", "") or ""),
            tolerance=tolerance,
            allow_eviction=bool(conf.get("fencebeat_allow_eviction", False)),
            zone=str(conf.timezone or "UTC"),
            on_unknown=on_unknown,
            broker=records,
            outbox=outbox,
            outbox_limit=limit,
            overlap_wait=overlap_wait,
            fast_path=bool(conf.get("fencebeat_fast_path", os.environ.get("FENCEBEAT_FAST_PATH", "1") != "0")),
        )

    @property
    def keys(self) -> Keys:
        """The names of this scheduler's records."""
        return self.broker.keys(self.namespace)

    def make_lock(self) -> Lock:
        """The lock of this process, in Redis or etcd. Opens no connection yet.

        Raises ImpossibleConfiguration where the etcd client is not installed.
        """
        holder = f"{socket.gethostname()}:{os.getpid()}"
        if self.lock == "redis":
            return RedisLock.of(self.broker, self.namespace, self.timing, holder)
        try:
            from fencebeat.locks.etcd import EtcdLock  # noqa: PLC0415 - an extra: only who asks for etcd needs it
        except ImportError:
            raise ImpossibleConfiguration(
                rules="fencebeat_lock is etcd, but its client is missing: pip install 'fencebeat[etcd]'."
            ) from None
        return EtcdLock.of(self.etcd_url, self.broker, self.namespace, self.timing, holder)

    def make_effects(self) -> EffectStore | None:
        """The application's store of effects, or None: `fencebeat_effect_store` names a factory.

        It is called with the namespace: schedulers that share one store must not take each other's past for theirs.

        Raises ImpossibleConfiguration where there is no such factory.
        """
        if not self.effect_store:
            return None
        module, _, name = self.effect_store.replace(":", ".").rpartition(".")
        try:
            factory: Callable[[str], EffectStore] = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ImpossibleConfiguration(rules=f"fencebeat_effect_store {self.effect_store!r}: {error}.") from error
        return factory(self.namespace)

    def describe(self) -> dict[str, Any]:
        """The settings as text for people, without addresses."""
        return {"namespace": self.namespace, "lock": self.lock, "lease": f"{self.timing.lease:g} s"}


def _where_records_are(conf: Any) -> tuple[Broker, bool, str]:
    """The Redis of the records, whether messages go through the outbox, and why this cannot work (empty: it can)."""
    theirs = Broker(url=conf.broker_write_url, transport_options=conf.broker_transport_options, ssl=conf.broker_use_ssl)
    url = str(conf.get("fencebeat_redis_url", "") or "")
    try:
        redis_broker = issubclass(Connection(theirs.url).get_transport_cls(), redis_transport.Transport)
    except (ImportError, KeyError) as error:
        return theirs, False, f"the broker's transport cannot be loaded: {error}."
    if redis_broker:
        elsewhere = url not in ("", theirs.url)
        return theirs, False, _ELSEWHERE if elsewhere else ""
    if not url:
        return theirs, False, _NO_RECORDS
    records = Broker(url=url, transport_options=conf.get("fencebeat_redis_transport_options"))
    if not issubclass(Connection(url).get_transport_cls(), redis_transport.Transport):
        return records, True, "fencebeat_redis_url must be the address of a Redis or Valkey (redis://...)."
    return records, True, ""


_ELSEWHERE = (
    "the broker is Redis, so the records are in its own database, where one step can compare and send: "
    "remove fencebeat_redis_url."
)
_NO_RECORDS = (
    "the broker cannot compare a token, so fencebeat_redis_url must say which Redis or Valkey keeps "
    "the lock, the schedule and the outbox."
)
