"""The lease in etcd, for those who will not trust Redis replication with the token; the fence stays in the broker.

    {ns}/leader   nonce and holder, attached to an etcd lease; there is at most one, by transaction on its creation
    {ns}/base     written once: the highest of the broker's token, the floor and Redis TIME in microseconds

token = base + revision in which `leader` was created, so tokens grow with etcd's own history, and above everything
older when etcd lost it. The first act on the broker is `seal.lua`. Where it refuses the number (etcd was restored from
a backup), the base is raised by transaction and the campaign begins again. The broker wakes those who wait.
"""

import base64
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from etcd3gw import Etcd3Client, Lease
from etcd3gw.exceptions import Etcd3Exception

from fencebeat.connection import Broker
from fencebeat.errors import Refused, StoreUnreachable
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, LeaseTiming, Term
from fencebeat.locks.redis import SIGNAL_MS, SLICE, STANDBYS
from fencebeat.scripts import asking, script

POLL = 0.25
"""Longest wait in one request, in seconds: etcd does not tell how much of another's lease is left."""


@dataclass(frozen=True)
class _Leader:
    nonce: str
    holder: str
    lease: float
    revision: int  # in which the record was created
    etcd_lease: int


class EtcdLock:
    """The lock of one candidate. Neither client may retry by itself; `waiter` has a longer time-out than `POLL`."""

    carrier: Carrier = "term"

    def __init__(
        self,
        etcd: Etcd3Client,
        client: redis.Redis,
        waiter: redis.Redis,
        keys: Keys,
        *,
        timing: LeaseTiming,
        holder: str,
    ) -> None:
        self._etcd, self._client, self._waiter = etcd, client, waiter
        self._keys, self._timing, self._holder = keys, timing, holder
        self._leader_key, self._base_key = (f"{keys.prefix}{keys.namespace}/{name}" for name in ("leader", "base"))

    @classmethod
    def of(cls, url: str, broker: Broker, namespace: str, timing: LeaseTiming, holder: str) -> Self:
        """The lock of `namespace` in the etcd at `url`, fenced at the broker; opens no connection yet."""
        at = urlsplit(url)
        etcd = Etcd3Client(
            host=at.hostname or "127.0.0.1",
            port=at.port or 2379,
            protocol=at.scheme or "http",
            timeout=timing.call_timeout,
            api_path="/v3/",
        )
        client = broker.client(timing.call_timeout, name="fencebeat-lock")
        waiter = broker.client(timing.call_timeout + SLICE, name="fencebeat-wait")
        return cls(etcd, client, waiter, broker.keys(namespace), timing=timing, holder=holder)

    def acquire(self, nonce: str, floor: int = 0) -> Term | None:
        """See `lease.Lock.acquire`."""
        with self._asking():
            leader, base = self._look()
        if leader is None:
            with self._asking():
                leader, base = self._campaign(nonce, floor if base is None else 0, base)
        elif leader.nonce == nonce:
            with self._asking():
                if Lease(leader.etcd_lease, self._etcd).refresh() <= 0:
                    return None  # ran out just now
        if leader is None or leader.nonce != nonce or base is None:
            return None
        term = self._term(leader, base)
        known = self._seal(term, floor)
        if known is None:
            return term
        with self._asking():  # our number is too low: make way, and let the next campaign start above what is known
            self._transact(_same(self._base_key, str(base)), [_put(self._base_key, str(known))])
            self._remove(leader)
        return None

    def wait(self, at_most: float) -> None:
        """See `lease.Lock.wait`."""
        with asking(self._waiter):
            self._waiter.blpop([self._keys.signal], timeout=max(0.001, min(at_most, POLL, self._timing.lease)))

    def renew(self, term: Term) -> bool:
        """See `lease.Lock.renew`."""
        with self._asking():
            leader, base = self._look()
            if leader is None or base is None or self._term(leader, base) != term:
                return False
            return Lease(leader.etcd_lease, self._etcd).refresh() > 0

    def resign(self, term: Term, *, wake: bool = True) -> bool:
        """See `lease.Lock.resign`."""
        with self._asking():
            leader, base = self._look()
            if leader is None or base is None or self._term(leader, base) != term or not self._remove(leader):
                return False
        with asking(self._client), self._client.pipeline(transaction=True) as several:
            if wake:
                several.delete(self._keys.signal)
                several.lpush(self._keys.signal, *["1"] * STANDBYS)
                several.pexpire(self._keys.signal, SIGNAL_MS)
            several.xadd(self._keys.audit, {"outcome": "resigned", "token": term.token, "nonce": term.nonce})
            several.execute()
        return True

    def holder(self) -> Term | None:
        """See `lease.Lock.holder`."""
        with self._asking():
            leader, base = self._look()
        return None if leader is None or base is None else self._term(leader, base)

    def close(self) -> None:
        """See `lease.Lock.close`."""
        self._etcd.session.close()
        self._client.close()
        self._waiter.close()

    def _campaign(self, nonce: str, floor: int, base: int | None) -> tuple[_Leader | None, int | None]:
        if base is None:
            self._transact(_absent(self._base_key), [_put(self._base_key, str(self._first_base(floor)))])
            base = self._look()[1]
        etcd_lease = self._etcd.lease(math.ceil(self._timing.lease))
        value = json.dumps({"nonce": nonce, "holder": self._holder, "lease": self._timing.lease})
        put = _put(self._leader_key, value, etcd_lease.id)
        if not self._transact([*_absent(self._leader_key), *_same(self._base_key, str(base))], [put]):
            etcd_lease.revoke()
        return self._look()

    def _first_base(self, floor: int) -> int:
        with asking(self._client), self._client.pipeline(transaction=True) as both:
            both.time()
            both.hget(self._keys.term, "token")
            (seconds, microseconds), token = both.execute()
        return max(int(token or 0), floor, seconds * 1_000_000 + microseconds)

    def _seal(self, term: Term, floor: int) -> int | None:
        """None once the broker refuses every older term; else the number that it knows and ours is not above."""
        keys = (self._keys.term, self._keys.audit, self._keys.signal)
        args = (term.token, term.nonce, term.holder, round(term.lease * 1000), floor)
        answer, *facts = script("seal")(self._client, keys, args)
        if answer == "floor":
            raise Refused(why=f"the floor of tokens is more than a day ahead of the store's time ({facts[0]}).")
        return int(facts[0]) if answer == "refused" else None

    def _term(self, leader: _Leader, base: int) -> Term:
        return Term(token=base + leader.revision, nonce=leader.nonce, holder=leader.holder, lease=leader.lease)

    def _look(self) -> tuple[_Leader | None, int | None]:
        """Both records as of one revision."""
        ranges = [{"request_range": {"key": _b64(key)}} for key in (self._leader_key, self._base_key)]
        answer = self._etcd.transaction({"compare": [], "success": ranges, "failure": []})
        found = [response["response_range"].get("kvs", [None])[0] for response in answer["responses"]]
        leader, base = None, None
        if found[0] is not None:
            value = json.loads(base64.b64decode(found[0]["value"]))
            revision, etcd_lease = int(found[0]["create_revision"]), int(found[0].get("lease", 0))
            leader = _Leader(value["nonce"], value["holder"], float(value["lease"]), revision, etcd_lease)
        if found[1] is not None:
            base = int(base64.b64decode(found[1]["value"]))
        return leader, base

    def _remove(self, leader: _Leader) -> bool:
        mine = [{"key": _b64(self._leader_key), "target": "CREATE", "create_revision": leader.revision}]
        delete = {"request_delete_range": {"key": _b64(self._leader_key)}}
        removed = self._transact(mine, [delete])
        Lease(leader.etcd_lease, self._etcd).revoke()
        return removed

    def _transact(self, compare: list[dict[str, Any]], success: list[dict[str, Any]]) -> bool:
        answer = self._etcd.transaction({"compare": compare, "success": success, "failure": []})
        return bool(answer.get("succeeded", False))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn every failure of an etcd call into StoreUnreachable: whatever it was, the outcome is in doubt."""
        try:
            yield
        except (Etcd3Exception, OSError, ValueError, KeyError) as error:  # the last two: an answer that is none
            raise StoreUnreachable(
                store="etcd",
                seconds=self._timing.call_timeout,
                why=f"{type(error).__name__}: {getattr(error, 'detail_text', None) or error}",
                address=f"{self._etcd.host}:{self._etcd.port}",
            ) from error


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _put(key: str, value: str, etcd_lease: int = 0) -> dict[str, Any]:
    return {"request_put": {"key": _b64(key), "value": _b64(value), "lease": etcd_lease}}


def _absent(key: str) -> list[dict[str, Any]]:
    return [{"key": _b64(key), "target": "CREATE", "create_revision": 0}]


def _same(key: str, value: str) -> list[dict[str, Any]]:
    return [{"key": _b64(key), "target": "VALUE", "value": _b64(value)}]
