"""Whether the schedule in force is the one of this standby's configuration: if not, it says so, and writes nothing.

May import: keys, scripts. Must never know: who wins an election, how a schedule is written.
"""

import logging

import redis

from fencebeat.keys import Keys
from fencebeat.schedule_memory import ScheduleMemory
from fencebeat.scripts import asking

log = logging.getLogger(__name__)


class ScheduleWatch:
    """Compares digests. Called by the tick thread of a standby; logs each difference once."""

    def __init__(self, client: redis.Redis, keys: Keys, memory: ScheduleMemory) -> None:
        self._client, self._keys, self._memory = client, keys, memory
        self._told: str | None = None

    def look(self) -> bool:
        """Whether the leader's schedule is another one. Raises StoreUnreachable."""
        with asking(self._client):
            theirs: str | None = self._client.hget(self._keys.term, "digest")  # type: ignore[assignment] # redis-py leaves it open
        differs = theirs is not None and theirs != self._memory.digest
        if differs and theirs != self._told:
            log.warning(
                "the schedule in force is not the one of this configuration, which replaces it if this beat leads. "
                "After a rollout that is over, give all beats the same beat_schedule."
            )
        self._told = theirs if differs else None
        return differs
