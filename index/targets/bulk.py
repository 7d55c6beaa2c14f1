"""The bulk loop: every item of every reply is put into one class, and only what may still succeed is sent again.

    ok, superseded, permanent        final for the item
    transient (or unknown outcome)   the item alone is sent again, after full jitter and never before Retry-After
    split                            the request is halved; an item that is too large alone is permanent
    target sick                      nothing more is sent; all items without a result get this class

Sending an item again is safe: it carries its version, and the same or a higher one of its own is accepted. Bounds: a
deadline over everything, and a number of requests in a row that finished no item; beyond either, TargetUnavailable.
After a request that timed out or broke, the next ones are half as large, and grow again with each success.
`opensearchpy.helpers.bulk` is not used: it raises before its own retry of rejected items applies.
"""

import email.utils
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from config import events
from fencebeat.clock import Clock
from fencebeat.failpoints import failpoint
from index.errors import TargetUnavailable
from index.model import ItemClass, ItemResult
from index.targets.classify import Fault, classify_item, fault_of

Send = Callable[[bytes, float], Mapping[str, Any]]
"""Posts one bulk body (NDJSON) with a time-out in seconds; returns the reply or raises what opensearch-py raises."""

Observe = Callable[[Mapping[ItemClass, int]], None]
"""Told the classes of each reply's items, for counters."""


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One operation of a bulk request. `body` None deletes."""

    index_id: str
    routing: str
    version: int
    body: Mapping[str, Any] | None

    def encode(self) -> bytes:
        """The item's lines of the request, with the external version that fences it."""
        action = {
            "delete" if self.body is None else "index": {
                "_id": self.index_id,
                "routing": self.routing,
                "version": self.version,
                "version_type": "external_gte",
            }
        }
        lines = [action] if self.body is None else [action, self.body]
        return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLimits:
    """How large and how patient the loop is."""

    items: int = 500  # about 1.5 MB of 384-d vectors: larger requests were no faster
    size: int = 5_000_000  # bytes of a body; far below the server's limit of 100 MB
    request_seconds: float = 30.0
    deadline_seconds: float = 120.0  # of a whole run; shorter than any sensible lease renewal cycle would miss
    stalled_requests: int = 8  # in a row without one finished item
    first_wait: float = 0.1  # upper bound of the first jittered wait; doubles
    longest_wait: float = 10.0


@dataclass
class _Run:
    """One run of the loop: what is still to send, what is known, and how much pressure the server bears."""

    waiting: deque[tuple[int, BulkItem, bytes]]
    results: list[ItemResult | None]
    began: float
    most_items: int
    stalled: int = 0
    failed_in_row: int = 0
    last_fault: str = ""
    counts: Counter[ItemClass] = field(default_factory=Counter)


class BulkWriter:
    """Sends items to the end. Sleep, clock and dice are injected; one instance serves one thread at a time."""

    def __init__(
        self,
        send: Send,
        *,
        target_id: str,
        clock: Clock,
        limits: BulkLimits | None = None,
        sleep: Callable[[float], None] = time.sleep,
        dice: random.Random | None = None,
        observe: Observe | None = None,
    ) -> None:
        self._send = send
        self._target_id = target_id
        self._clock = clock
        self._limits = limits or BulkLimits()
        self._sleep = sleep
        self._dice = dice or random.Random()
        self._observe = observe
        self.counts: Counter[ItemClass] = Counter()
        """Items of all replies so far by class: an item sent three times is counted three times."""

    def run(self, items: Sequence[BulkItem], before_request: Callable[[], None]) -> list[ItemResult]:
        """Send all items; results in their order, each OK, SUPERSEDED, TARGET_SICK or PERMANENT.

        before_request is called before each request; what it raises ends the run. Raises TargetUnavailable when
        items still have no known outcome at a bound.
        """
        run = _Run(
            waiting=deque((at, item, item.encode()) for at, item in enumerate(items)),
            results=[None] * len(items),
            began=self._clock.elapsed(),
            most_items=self._limits.items,
        )
        while run.waiting:
            batch = self._take(run)
            self._check_bounds(run)
            before_request()
            failpoint("index.write.before")
            fault, reply = self._request(run, batch)
            failpoint("index.write.after")
            wait = self._settle(run, batch, reply) if fault is None else self._fail(run, batch, fault)
            if wait is not None:
                self._pause(run, wait)
        results = [result for result in run.results if result is not None]
        if results:
            refused = sum(result.outcome not in (ItemClass.OK, ItemClass.SUPERSEDED) for result in results)
            seconds = self._clock.elapsed() - run.began
            events.emit(
                events.BULK_WRITTEN, items=len(results), refused=refused, seconds=seconds, target=self._target_id
            )
        return results

    def _take(self, run: _Run) -> list[tuple[int, BulkItem, bytes]]:
        batch: list[tuple[int, BulkItem, bytes]] = []
        size = 0
        while run.waiting and len(batch) < run.most_items:
            size += len(run.waiting[0][2])
            if batch and size > self._limits.size:
                break
            batch.append(run.waiting.popleft())
        return batch

    def _left(self, run: _Run) -> float:
        return self._limits.deadline_seconds - (self._clock.elapsed() - run.began)

    def _check_bounds(self, run: _Run) -> None:
        if self._left(run) <= 0 or run.stalled >= self._limits.stalled_requests:
            raise TargetUnavailable(target=self._target_id, why=run.last_fault or "the deadline has passed")

    def _request(
        self, run: _Run, batch: Sequence[tuple[int, BulkItem, bytes]]
    ) -> tuple[Fault | None, Mapping[str, Any]]:
        body = b"".join(encoded for _, _, encoded in batch)
        try:
            return None, self._send(body, min(self._limits.request_seconds, self._left(run)))
        except Exception as error:
            fault = fault_of(error)
            if fault is None:
                raise  # not a failed request: a bug, or a hook that stops us
            return fault, {}

    def _settle(
        self, run: _Run, batch: Sequence[tuple[int, BulkItem, bytes]], reply: Mapping[str, Any]
    ) -> float | None:
        """Class each item of a reply. Returns the shortest wait before the next request, None for no wait."""
        answers = reply.get("items") or []
        again, seen = [], Counter[ItemClass]()
        for place, (at, item, encoded) in enumerate(batch):
            outcome, reason = _answer_for(item, answers[place] if place < len(answers) else None)
            if outcome is ItemClass.SPLIT:  # said of one item: it is alone already
                outcome = ItemClass.PERMANENT
            seen[outcome] += 1
            if outcome is ItemClass.TRANSIENT:
                run.last_fault = reason
                again.append((at, item, encoded))
            else:
                run.results[at] = ItemResult(item.index_id, outcome, reason)
        run.waiting.extend(again)
        if seen[ItemClass.TARGET_SICK]:
            reason = next(r.reason for r in run.results if r is not None and r.outcome is ItemClass.TARGET_SICK)
            seen.update(self._give_up(run, reason))
        self._count(seen)
        finished = len(batch) - len(again)
        run.stalled = 0 if finished else run.stalled + 1
        if again:
            run.failed_in_row += 1
            return 0.0
        run.failed_in_row = 0
        run.most_items = min(self._limits.items, run.most_items * 2)
        return None

    def _fail(self, run: _Run, batch: Sequence[tuple[int, BulkItem, bytes]], fault: Fault) -> float | None:
        """Class a whole request that failed. Returns the shortest wait before the next one, None for no wait."""
        run.last_fault = fault.reason
        if fault.outcome is ItemClass.SPLIT and len(batch) == 1:
            at, item, _ = batch[0]
            run.results[at] = ItemResult(item.index_id, ItemClass.PERMANENT, fault.reason)
            self._count({ItemClass.PERMANENT: 1})
            run.stalled = 0
            return None
        run.waiting.extendleft(reversed(batch))
        if fault.outcome is ItemClass.TARGET_SICK:
            self._count(self._give_up(run, fault.reason))
            return None
        self._count({fault.outcome: len(batch)})
        if fault.outcome is ItemClass.SPLIT:
            run.most_items = len(batch) // 2
            return None
        if fault.outcome_unknown:  # it may have been too much at once
            run.most_items = max(1, len(batch) // 2)
        run.stalled += 1
        run.failed_in_row += 1
        return self._announced(fault)

    def _give_up(self, run: _Run, reason: str) -> Mapping[ItemClass, int]:
        for at, item, _ in run.waiting:
            run.results[at] = ItemResult(item.index_id, ItemClass.TARGET_SICK, reason)
        given_up = len(run.waiting)
        run.waiting.clear()
        return {ItemClass.TARGET_SICK: given_up}

    def _announced(self, fault: Fault) -> float:
        """The server's Retry-After in seconds, given as seconds or as a date; 0 where there is none or rubbish."""
        if fault.retry_after is None:
            return 0.0
        if fault.retry_after.strip().isdigit():
            return float(fault.retry_after)
        try:
            moment = email.utils.parsedate_to_datetime(fault.retry_after)
        except ValueError:
            return 0.0
        return max(0.0, moment.timestamp() - self._clock.wall())

    def _pause(self, run: _Run, at_least: float) -> None:
        ceiling = min(self._limits.longest_wait, self._limits.first_wait * 2 ** (run.failed_in_row - 1))
        wait = at_least + self._dice.uniform(0, ceiling)
        if wait >= self._left(run):
            raise TargetUnavailable(target=self._target_id, why=run.last_fault)
        self._sleep(wait)

    def _count(self, seen: Mapping[ItemClass, int]) -> None:
        self.counts.update(seen)
        if self._observe is not None:
            self._observe(seen)


def _answer_for(item: BulkItem, answer: Any) -> tuple[ItemClass, str]:
    """Class and reason of one item of a reply; an answer that is missing or about another id is an unknown outcome."""
    if not isinstance(answer, Mapping) or len(answer) != 1:
        return ItemClass.TRANSIENT, "the reply has fewer items than the request"
    (said,) = answer.values()
    if said.get("_id") != item.index_id:
        return ItemClass.TRANSIENT, f"the reply is about {said.get('_id')!r} instead of {item.index_id!r}"
    if item.body is None and said.get("status") == 404 and "error" not in said:
        return ItemClass.OK, ""  # gone already
    return classify_item(int(said.get("status", 0)), said.get("error"))
