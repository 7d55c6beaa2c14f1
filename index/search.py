"""Strict search: one tenant, one committed version of each document, within one deadline (index.md, Reading).

    snapshot of the ledger -> embed the query -> search with over-fetch -> read the hits' heads -> drop what is not in
    its manifest -> where a head was committed after the snapshot: all again, at most twice, then say `partial`

A hit that its manifest does not have is no reason to repeat: it may be waiting for the collector. The query is embedded
once. Where the embedder is late or down, words alone answer and the result is `partial`. A late step leaves a thread
behind that ends with its own time-out; where too many are still at work, the next search is answered without vectors.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from fencebeat.clock import Clock, system_clock
from fencebeat.errors import Retryable
from index.model import Found, Hit, ManifestEntry, Vector
from index.ports import Embedder, Target
from index.targets.ids import MOST_HITS, check_request

T = TypeVar("T")

REPEATS = 2  # a document committed three times within one search is no longer worth waiting for
EMBED_SHARE = 0.6  # of the deadline: what is left must suffice for words alone
STUCK_EMBEDDERS = 8  # calls of one process that may be late at the same time


class HeadView(Protocol):
    """What the ledger says of a document's committed version. unseen: it was committed after the snapshot."""

    @property
    def manifest(self) -> tuple[ManifestEntry, ...]:
        """The chunks that readers may see, in order."""
        ...

    @property
    def unseen(self) -> bool:
        """Whether the snapshot does not have the commit of this version."""
        ...


class Heads(Protocol):
    """The part of the ledger that reading needs."""

    def snapshot(self) -> str:
        """The set of transactions that are visible now."""
        ...

    def read_heads(self, tenant_id: str, target_id: str, uids: Sequence[str], snapshot: str) -> Mapping[str, HeadView]:
        """Heads of some documents of a tenant, from the primary, in one round trip."""
        ...


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A chunk that readers may see. [start, end): its place in the document's normalised text, in characters."""

    doc_uid: str
    source_id: str
    title: str
    headings: tuple[str, ...]
    text: str
    start: int
    end: int
    score: float
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first. `reason` says why a result is `partial`; took_ms is the time of the whole search."""

    hits: tuple[SearchHit, ...]
    partial: bool
    reason: str
    took_ms: float


class _OutOfTime(Exception):
    """A step did not end before the deadline."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What is searched for; deadline: in seconds of `Clock.elapsed()`."""

    tenant_id: str
    text: str
    limit: int
    filters: Mapping[str, str]
    deadline: float


@dataclass(frozen=True, slots=True)
class _Round:
    """One pass of search and check."""

    hits: list[SearchHit]
    unseen: bool
    reason: str


class Search:
    """Searches one target. Safe for threads."""

    def __init__(self, target: Target, ledger: Heads, embedder: Embedder, *, clock: Clock | None = None) -> None:
        self._target = target
        self._ledger = ledger
        self._embedder = embedder
        self._clock = clock or system_clock()
        self._embedding = threading.Semaphore(STUCK_EMBEDDERS)

    def search(
        self,
        tenant_id: str,
        query: str,
        *,
        limit: int = 10,
        filters: Mapping[str, str] | None = None,
        timeout: float = 2.0,
    ) -> SearchResult:
        """The best chunks of one tenant for `query`, at most 100, within `timeout` seconds.

        filters: field -> value, see `Target.search`. Raises Refused without a tenant, with an unknown filter or a
        limit out of range; TargetUnavailable, TargetSick or StoreUnreachable where the target or the ledger fails
        before the deadline. A deadline that passes is no error: the result is `partial` with what is certain by then.
        """
        began = self._clock.elapsed()
        asked = _Question(tenant_id, query, limit, dict(filters or {}), began + timeout)
        check_request(tenant_id, limit, asked.filters)
        best = _Round([], unseen=False, reason="")
        try:
            vector, without = self._vector(query, began + timeout * EMBED_SHARE)
            for _ in range(1 + REPEATS):
                best = self._round(asked, vector)
                if not best.unseen:
                    break
            reason = best.reason or without
            if best.unseen:
                reason = "documents were being committed while the search ran"
        except _OutOfTime as late:
            reason = f"{late} did not end within {timeout:g} s"
        took = (self._clock.elapsed() - began) * 1000
        return SearchResult(tuple(best.hits), partial=bool(reason), reason=reason, took_ms=round(took, 3))

    def _vector(self, query: str, deadline: float) -> tuple[Vector | None, str]:
        """The query's vector, or None and the reason for which words alone must do."""

        def embed() -> Vector | None:
            if not self._embedding.acquire(blocking=False):
                return None
            try:
                return self._embedder.embed([query])[0]
            finally:
                self._embedding.release()

        try:
            vector = self._within(deadline, "embedding the query", embed)
        except _OutOfTime:
            return None, "words alone were searched: the embedder is late"
        except Retryable as error:
            return None, f"words alone were searched: {error.what}"
        return vector, "" if vector is not None else "words alone were searched: the embedder is busy"

    def _round(self, asked: _Question, vector: Vector | None) -> _Round:
        """Search and check once; once more over the whole depth where too many hits were dropped."""
        depth = min(MOST_HITS, 2 * asked.limit + 10)
        first, more = self._pass(asked, vector, depth)
        if first.unseen or len(first.hits) >= asked.limit or not more:
            return first
        try:
            return self._pass(asked, vector, MOST_HITS)[0]
        except _OutOfTime as late:
            return replace(first, reason=f"{late} did not end in time for a deeper search")

    def _pass(self, asked: _Question, vector: Vector | None, depth: int) -> tuple[_Round, bool]:
        """Search for `depth` hits and keep the visible ones; also whether the target may have more."""
        snapshot = self._within(asked.deadline, "reading the ledger", self._ledger.snapshot)
        found = self._within(asked.deadline, "the target", partial(self._ask, asked, vector, depth))
        ours = [hit for hit in found.hits if hit.tenant_id == asked.tenant_id]
        uids = sorted({hit.doc_uid for hit in ours})
        read = partial(self._ledger.read_heads, asked.tenant_id, self._target.spec.target_id, uids, snapshot)
        heads = self._within(asked.deadline, "reading the ledger", read)
        unseen = any(head.unseen for head in heads.values())
        hits = _visible(ours, heads)[: asked.limit]
        return _Round(hits, unseen, found.reason if found.partial else ""), depth <= len(found.hits) < MOST_HITS

    def _ask(self, asked: _Question, vector: Vector | None, depth: int) -> Found:
        return self._target.search(
            text=asked.text,
            vector=vector,
            tenant_id=asked.tenant_id,
            limit=depth,
            filters=asked.filters,
            timeout=max(0.001, asked.deadline - self._clock.elapsed()),
        )

    def _within(self, deadline: float, step: str, call: Callable[[], T]) -> T:
        """Result of `call`, in a thread of its own: not every step can be told a time-out. Raises _OutOfTime."""
        left = deadline - self._clock.elapsed()
        if left <= 0:
            raise _OutOfTime(step)
        done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                done.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller, who waits
                done.put((None, error))

        threading.Thread(target=run, name=f"search: {step}", daemon=True).start()
        try:
            value, error = done.get(timeout=left)
        except Empty:
            raise _OutOfTime(step) from None
        if error is not None:
            if self._clock.elapsed() >= deadline:
                raise _OutOfTime(step) from error  # the step's own time-out came to the same end
            raise error
        return value  # type: ignore[return-value]  # the call's own value, None included


def _visible(hits: Sequence[Hit], heads: Mapping[str, HeadView]) -> list[SearchHit]:
    """The hits that are in their document's manifest, with the place it gives them."""
    places = {(uid, entry.index_id): (entry.start, entry.end) for uid, head in heads.items() for entry in head.manifest}
    seen = []
    for hit in hits:
        place = places.get((hit.doc_uid, hit.index_id))
        if place is not None:
            seen.append(
                SearchHit(
                    doc_uid=hit.doc_uid,
                    source_id=hit.source_id,
                    title=hit.title,
                    headings=hit.headings,
                    text=hit.text,
                    start=place[0],
                    end=place[1],
                    score=hit.score,
                    meta=hit.meta,
                )
            )
    return seen
