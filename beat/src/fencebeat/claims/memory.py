"""Claims of one process, for tests and examples. Nothing survives the process, so it guards nothing beyond it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fencebeat.claims.port import Claimed, ClaimState, Closed, Running, Tick
from fencebeat.clock import Clock, system_clock


@dataclass
class _Record:
    tick: Tick
    attempt: int
    holder: str
    until: float
    closed_at: float | None = None
    outcome: str | None = None


class MemoryClaims:
    """Satisfies `fencebeat.claims.ClaimStore`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or system_clock()
        self._records: dict[str, _Record] = {}
        self._floor = 0
        self._lock = threading.Lock()

    def claim(self, tick: Tick, holder: str, lease: float) -> Claimed | Running | Closed:
        """See `ClaimStore.claim`."""
        with self._lock:
            now = self._clock.elapsed()
            known = self._records.get(tick.task_id)
            if known is None:
                self._floor = max(self._floor, tick.token)
                self._records[tick.task_id] = _Record(tick, 1, holder, now + lease)
                return Claimed(1)
            if known.outcome is not None:
                return Closed(known.outcome)
            if known.until > now:
                return Running(known.until - now)
            known.attempt, known.holder, known.until = known.attempt + 1, holder, now + lease
            self._floor = max(self._floor, tick.token)
            return Claimed(known.attempt)

    def extend(self, task_id: str, attempt: int, lease: float) -> bool:
        """See `ClaimStore.extend`."""
        with self._lock:
            known = self._open(task_id, attempt)
            if known is not None:
                known.until = self._clock.elapsed() + lease
            return known is not None

    def release(self, task_id: str, attempt: int) -> bool:
        """See `ClaimStore.release`."""
        return self.extend(task_id, attempt, 0.0)

    def close(self, task_id: str, attempt: int, outcome: str) -> bool:
        """See `ClaimStore.close`."""
        with self._lock:
            known = self._records.get(task_id)
            if known is None or known.attempt != attempt:
                return False
            if known.outcome is None:
                known.outcome, known.closed_at = outcome, self._clock.elapsed()
            return True

    def look(self, task_ids: Sequence[str]) -> Mapping[str, ClaimState]:
        """See `ClaimStore.look`."""
        with self._lock:
            now = self._clock.elapsed()
            return {
                task_id: ClaimState(known.attempt, known.holder, max(0.0, known.until - now), known.outcome)
                for task_id in task_ids
                if (known := self._records.get(task_id)) is not None
            }

    def floor(self) -> int:
        """See `ClaimStore.floor`."""
        with self._lock:
            return self._floor

    def purge(self, older: float) -> int:
        """See `ClaimStore.purge`."""
        with self._lock:
            before = self._clock.elapsed() - older
            closed = {task_id: known for task_id, known in self._records.items() if known.closed_at is not None}
            newest: dict[str, int] = {}
            for known in closed.values():
                newest[known.tick.entry] = max(known.tick.fire_time, newest.get(known.tick.entry, known.tick.fire_time))
            old = [
                task_id
                for task_id, known in closed.items()
                if known.closed_at is not None
                and known.closed_at < before
                and known.tick.fire_time < newest[known.tick.entry]
            ]
            for task_id in old:
                del self._records[task_id]
            return len(old)

    def disconnect(self) -> None:
        """See `ClaimStore.disconnect`: there is nothing to close."""

    def _open(self, task_id: str, attempt: int) -> _Record | None:
        known = self._records.get(task_id)
        return known if known is not None and known.attempt == attempt and known.outcome is None else None
