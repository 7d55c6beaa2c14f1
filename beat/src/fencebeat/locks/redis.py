"""The lease in Redis: python-redis-lock's records, with a fence beside them and all times in milliseconds.

Names, signal list and nonce are python-redis-lock's, so its own tools see our lock and a plain lock of the same name
waits for it. What takes, extends or frees the lease is ours, because it names a term and is checked in one script.
Another program's `reset_all()` deletes our lock: the next renewal or commit is refused, nothing worse.
"""

import secrets
from typing import Never, Self

import redis
import redis_lock

from fencebeat.connection import Broker
from fencebeat.errors import Refused
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, LeaseTiming, Term
from fencebeat.scripts import asking, script

STANDBYS = 16
"""Signals that one release leaves: each wakes one waiter, and a frozen waiter may swallow one."""
SIGNAL_MS = 1000
SLICE = 1.0
"""Longest wait in one request, in seconds: a standby looks at its own orders this often."""


class RedisLock(redis_lock.Lock):
    """The lock of one candidate. `client` must not retry by itself; see `connection.Broker`.

    `waiter` is a second client, whose time-out is longer than a slice of waiting.
    """

    carrier: Carrier = "lock"

    def __init__(self, client: redis.Redis, waiter: redis.Redis, keys: Keys, timing: LeaseTiming, holder: str) -> None:
        # On the base class first: registered on a subclass only, every plain lock of the process would be broken.
        redis_lock.Lock.register_scripts(client)
        super().__init__(client, f"{keys.namespace}:leader", id=secrets.token_hex(16), signal_expire=SIGNAL_MS)
        self._name, self._signal = keys.lock, keys.signal  # the library puts `lock:` before any prefix of ours
        self._keys, self._waiter, self._timing, self._holder = keys, waiter, timing, holder
        self._left = timing.lease  # what the last refused attempt said is left of the other term

    @classmethod
    def of(cls, broker: Broker, namespace: str, timing: LeaseTiming, holder: str) -> Self:
        """The lock of `namespace` at the broker, with two connections of its own; opens none yet."""
        client = broker.client(timing.call_timeout, name="fencebeat-lock")
        waiter = broker.client(timing.call_timeout + SLICE, name="fencebeat-wait")
        return cls(client, waiter, broker.keys(namespace), timing, holder)

    def acquire(self, nonce: str, floor: int = 0) -> Term | None:
        """See `lease.Lock.acquire`."""
        self._id = nonce
        keys = (self._name, self._signal, self._keys.term, self._keys.audit)
        answer, value, *_ = script("acquire")(self._client, keys, (nonce, self._holder, self._ms, floor))
        if answer == "standby":
            self._left = int(value) / 1000
            return None
        if answer == "floor":
            raise Refused(why=f"the floor of tokens is more than a day ahead of the store's time ({value}).")
        return Term(token=int(value), nonce=nonce, holder=self._holder, lease=self._timing.lease)

    def wait(self, at_most: float) -> None:
        """See `lease.Lock.wait`."""
        seconds = max(0.001, min(at_most, SLICE, self._timing.lease, self._left))  # BLPOP takes 0 for ever
        with asking(self._waiter):
            self._waiter.blpop([self._signal], timeout=seconds)

    def renew(self, term: Term) -> bool:
        """See `lease.Lock.renew`."""
        answer, _ = script("renew")(
            self._client, (self._name, self._keys.term), (term.token, term.nonce, round(term.lease * 1000))
        )
        return answer == "renewed"

    def resign(self, term: Term, *, wake: bool = True) -> bool:
        """See `lease.Lock.resign`."""
        keys = (self._name, self._signal, self._keys.term, self._keys.audit)
        args = (term.token, term.nonce, STANDBYS if wake else 0, SIGNAL_MS)
        return script("release")(self._client, keys, args)[0] == "resigned"

    def holder(self) -> Term | None:
        """See `lease.Lock.holder`."""
        with asking(self._client), self._client.pipeline(transaction=True) as both:
            both.get(self._name)
            both.hmget(self._keys.term, "token", "nonce", "holder", "lease")
            nonce, (token, sealed, holder, lease) = both.execute()
        if nonce is None or nonce != sealed:
            return None
        return Term(token=int(token), nonce=nonce, holder=holder, lease=int(lease) / 1000)

    def close(self) -> None:
        """See `lease.Lock.close`."""
        self._client.close()
        self._waiter.close()

    @property
    def _ms(self) -> int:
        return round(self._timing.lease * 1000)

    def _nameless(self, *_args: object, **_options: object) -> Never:
        raise TypeError("fencebeat's lease is taken and freed by term: use acquire(nonce), renew(term), resign(term)")

    release = extend = reset = __enter__ = _nameless
