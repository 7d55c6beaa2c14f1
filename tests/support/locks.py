"""Stores of the lease for the tests: one of each kind, with what only a test may do to it."""

import secrets

import redis

from fencebeat.clock import SystemClock
from fencebeat.connection import Broker
from fencebeat.lease import LeaseTiming
from fencebeat.locks.etcd import EtcdLock
from fencebeat.locks.memory import MemoryLock, MemoryStore
from fencebeat.locks.redis import RedisLock


def nonce() -> str:
    return secrets.token_hex(16)


class MemoryLease:
    """Locks of several candidates over one memory."""

    def __init__(self, lease: float = 0.5) -> None:
        self.timing = LeaseTiming.of(lease)
        self.store = MemoryStore(SystemClock(), lease)

    def lock(self, holder: str) -> MemoryLock:
        return MemoryLock(self.store, holder)

    def lose_data(self) -> None:
        self.store.lose()

    def close(self) -> None:
        pass


class RedisLease:
    """Locks of several candidates at one broker."""

    def __init__(
        self, url: str, namespace: str, lease: float = 1.0, *, broker: Broker | None = None, admin: str = ""
    ) -> None:
        """broker: how candidates reach it, if not simply by `url`. admin: who may flush it, if not the candidates."""
        self.timing = LeaseTiming.of(lease)
        self.broker, self.namespace = broker or Broker(url), namespace
        self.keys = self.broker.keys(namespace)
        self.client = Broker(admin or url).client(5.0)
        self._locks = []

    def lock(self, holder: str) -> RedisLock:
        lock = RedisLock.of(self.broker, self.namespace, self.timing, holder)
        self._locks.append(lock)
        return lock

    def lose_data(self) -> None:
        self.client.flushdb()

    def close(self) -> None:
        for lock in self._locks:
            lock.close()
        self.client.close()


class EtcdLease(RedisLease):
    """Locks of several candidates in one etcd, fenced at one broker."""

    def __init__(self, etcd_url: str, url: str, namespace: str, lease: float = 2.0) -> None:
        super().__init__(url, namespace, lease)  # 2 s: etcd grants no shorter lease
        self._etcd_url = etcd_url

    def lock(self, holder: str) -> EtcdLock:
        lock = EtcdLock.of(self._etcd_url, self.broker, self.namespace, self.timing, holder)
        self._locks.append(lock)
        return lock

    def lose_data(self) -> None:
        """Both stores: etcd forgets this namespace, Redis everything."""
        lock = self.lock("nobody")
        lock._etcd.delete_prefix(f"{self.namespace}/")
        self.client.flushdb()


def audit(client: redis.Redis, key: str) -> list[dict[str, str]]:
    return [fields for _, fields in client.xrange(key)]
