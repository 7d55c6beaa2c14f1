"""Claims in Redis, for those who have no Postgres.

They die with the loss of data that they should survive: after FLUSHALL, a crash without persistence or a failover to a
replica that lagged, a tick that was run may be run again. Where an effect must not happen twice, use Postgres.

Keys, under the namespace of the schedule: `claim:{task id}` (hash), `claims:closed` (zset by time of closing),
`claims:newest` (hash, by entry), `claims:floor` (string). Closed claims stay until `purge`.
"""

from collections.abc import Mapping, Sequence

import redis

from fencebeat.claims.port import Claimed, ClaimState, Closed, Running, Tick
from fencebeat.connection import Broker
from fencebeat.scripts import asking, script

_PAGE = 500  # claims that one purge script looks at: about a millisecond of the server


class RedisClaims:
    """Satisfies `fencebeat.claims.ClaimStore`. Opens nothing until it is asked; a forked child has its own connections.

    url: as for a broker (redis, rediss, sentinel). timeout: seconds for connecting and for each reply.
    """

    def __init__(self, url: str, namespace: str = "fencebeat", timeout: float = 2.0) -> None:
        self._client: redis.Redis = Broker(url).client(timeout, "fencebeat-claims")
        self._prefix = f"{namespace}:claim:"
        self._closed, self._newest = f"{namespace}:claims:closed", f"{namespace}:claims:newest"
        self._floor = f"{namespace}:claims:floor"

    def claim(self, tick: Tick, holder: str, lease: float) -> Claimed | Running | Closed:
        """See `ClaimStore.claim`."""
        answer, value = script("claim")(
            self._client,
            [self._prefix + tick.task_id, self._floor],
            [tick.entry, tick.fire_time, tick.token, holder, _ms(lease)],
        )
        match answer:
            case "claimed":
                return Claimed(int(value))
            case "running":
                return Running(int(value) / 1e6)
            case _:
                return Closed(value)

    def extend(self, task_id: str, attempt: int, lease: float) -> bool:
        """See `ClaimStore.extend`."""
        return bool(script("claim_extend")(self._client, [self._prefix + task_id], [attempt, _ms(lease)]) == 1)

    def release(self, task_id: str, attempt: int) -> bool:
        """See `ClaimStore.release`."""
        return self.extend(task_id, attempt, 0.0)

    def close(self, task_id: str, attempt: int, outcome: str) -> bool:
        """See `ClaimStore.close`."""
        keys = [self._prefix + task_id, self._closed, self._newest]
        return bool(script("claim_close")(self._client, keys, [task_id, attempt, outcome]) == 1)

    def look(self, task_ids: Sequence[str]) -> Mapping[str, ClaimState]:
        """See `ClaimStore.look`."""
        with asking(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            for task_id in task_ids:
                pipe.hmget(self._prefix + task_id, "attempt", "holder", "until", "outcome")
            (seconds, micros), *rows = pipe.execute()
        now = seconds * 1_000_000 + micros
        return {
            task_id: ClaimState(int(attempt), holder or "", max(0, int(until) - now) / 1e6, outcome)
            for task_id, (attempt, holder, until, outcome) in zip(task_ids, rows, strict=True)
            if attempt is not None
        }

    def floor(self) -> int:
        """See `ClaimStore.floor`."""
        with asking(self._client):
            return int(self._client.get(self._floor) or 0)

    def purge(self, older: float) -> int:
        """See `ClaimStore.purge`."""
        purged = passed = 0
        while True:
            deleted, kept = script("claim_purge")(
                self._client, [self._closed, self._newest], [_ms(older), self._prefix, _PAGE, passed]
            )
            purged, passed = purged + deleted, passed + kept
            if deleted + kept < _PAGE:
                return purged

    def disconnect(self) -> None:
        """Close this process's connections; the next call opens others."""
        self._client.close()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
