"""A target in memory with the semantics of the OpenSearch one, for tests and simulations; it passes the same suite.

Writes are acknowledged at once and seen by searches after a refresh. A removed id remembers its version until
`forget_deletes`, as OpenSearch does until `index.gc_deletes`. `drop` loses the index, mark and all.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fencebeat.clock import Clock, system_clock
from fencebeat.failpoints import failpoint
from index.errors import TargetLost, TargetSick
from index.fusion import fuse
from index.model import Found, Hit, IndexDoc, ItemClass, ItemResult, ScanRow, TargetSpec, Tombstone, Vector
from index.ports import Hook, nothing
from index.targets.ids import MOST_HITS, check_request, with_meta
from index.targets.mapping import MARK, check_mark, mark_of


@dataclass(frozen=True, slots=True)
class _Stored:
    """One document of the index: a chunk, or a tombstone where `doc` is None."""

    version: int
    tenant_id: str
    doc_uid: str
    doc: IndexDoc | None
    buried_at: float = 0.0


class MemoryTarget:
    """One index in this process. Safe for threads."""

    def __init__(self, spec: TargetSpec, *, clock: Clock | None = None) -> None:
        self.spec = spec
        self._clock = clock or system_clock()
        self._lock = threading.RLock()
        self._mark: dict[str, object] | None = None
        self._stored: dict[str, _Stored] = {}
        self._removed: dict[str, int] = {}
        self._visible: dict[str, _Stored] = {}
        self._writes = 0

    def open(self, incarnation: int, *, fresh: bool) -> None:
        """See `Target.open`."""
        with self._lock:
            if self._mark is None:
                if not fresh:
                    raise TargetLost(target=self.spec.target_id, why="the index is missing.")
                self._mark = mark_of(self.spec, incarnation)
            if check_mark(self.spec, incarnation, self._mark):
                self._mark = mark_of(self.spec, incarnation)

    def drop(self) -> None:
        """Lose the index and everything in it."""
        with self._lock:
            self._mark = None
            for store in (self._stored, self._removed, self._visible):
                store.clear()

    def forget_deletes(self) -> None:
        """Forget the versions of removed ids: from now on a late lower version is accepted there."""
        with self._lock:
            self._removed.clear()

    @property
    def marked_incarnation(self) -> int | None:
        """The incarnation in the index's mark; None where there is no index."""
        mark = (self._mark or {}).get(MARK)
        return int(mark["incarnation"]) if isinstance(mark, Mapping) else None

    def index_id(self, chunk_id: str, meta_hash: bytes) -> str:
        """Chunk id and the first 8 bytes of the meta's hash."""
        return with_meta(chunk_id, meta_hash)

    def write(
        self, docs: Sequence[IndexDoc], version: int, *, epoch: int, before_request: Hook = nothing
    ) -> Sequence[ItemResult]:
        """See `Target.write`."""
        del epoch  # stored by OpenSearch for people; the version decides
        if not docs:
            return []
        before_request()
        failpoint("index.write.before")
        wrong = [doc.vector.shape != (self.spec.dimension,) for doc in docs]
        refusal = ItemClass.TARGET_SICK if all(wrong) else ItemClass.PERMANENT
        results = [
            ItemResult(doc.index_id, refusal, f"dimension mismatch: {doc.vector.size}")
            if bad
            else self._put(doc.index_id, _Stored(version, doc.tenant_id, doc.doc_uid, doc))
            for doc, bad in zip(docs, wrong, strict=True)
        ]
        failpoint("index.write.after")
        return results

    def refresh(self) -> None:
        """See `Target.refresh`."""
        failpoint("index.refresh.before")
        with self._lock:
            if self._mark is None:
                raise TargetSick(target=self.spec.target_id, why="the index is missing.")
            self._visible = dict(self._stored)
        failpoint("index.refresh.after")

    def bury(self, tombstones: Sequence[Tombstone], *, before_request: Hook = nothing) -> Sequence[ItemResult]:
        """See `Target.bury`."""
        if not tombstones:
            return []
        before_request()
        now = self._clock.wall()
        return [self._put(t.index_id, _Stored(t.version, t.tenant_id, t.doc_uid, None, now)) for t in tombstones]

    def purge(self, older_than_seconds: float, *, before_request: Hook = nothing) -> int:
        """See `Target.purge`. Finds what a search can see, as OpenSearch does."""
        before = self._clock.wall() - older_than_seconds
        old = {key: row for key, row in self._visible.items() if row.doc is None and row.buried_at < before}
        if not old:
            return 0
        before_request()
        purged = 0
        with self._lock:
            for key, row in old.items():
                current = self._stored.get(key)
                if current is not None and current.version <= row.version:
                    del self._stored[key]
                    self._removed[key] = row.version
                    purged += 1
        return purged

    def scan(self, tenant_id: str | None = None) -> Iterator[ScanRow]:
        """See `Target.scan`."""
        self.refresh()
        for key, row in list(self._visible.items()):
            if tenant_id in (None, row.tenant_id):
                yield ScanRow(key, row.tenant_id, row.doc_uid, row.version, dead=row.doc is None)

    def search(
        self,
        *,
        text: str,
        vector: Vector | None,
        tenant_id: str,
        limit: int,
        filters: Mapping[str, str],
        timeout: float,  # noqa: ARG002 - the port's; nothing here can be late
    ) -> Found:
        """See `Target.search`. Words count by how many of the query's a chunk has."""
        check_request(tenant_id, limit, filters)
        docs = {
            key: row.doc
            for key, row in self._visible.items()
            if row.doc is not None and row.tenant_id == tenant_id and _passes(row.doc, filters)
        }
        asked = set(text.lower().split())
        words = {key: float(len(asked & set(f"{doc.title} {doc.text}".lower().split()))) for key, doc in docs.items()}
        legs = [_deepest({key: score for key, score in words.items() if score})]
        if vector is not None:
            legs.append(_deepest({key: float(np.dot(vector, doc.vector)) for key, doc in docs.items()}))
        best = fuse(legs, [1.0] * len(legs))[:limit]
        return Found([_hit(docs[key], score) for key, score in best])

    def write_count(self) -> int | None:
        """Acknowledged index operations so far."""
        return self._writes

    def _put(self, key: str, row: _Stored) -> ItemResult:
        with self._lock:
            if self._mark is None:
                return ItemResult(key, ItemClass.TARGET_SICK, "the index is missing.")
            there = self._stored[key].version if key in self._stored else self._removed.get(key, 0)
            if row.version < there:
                return ItemResult(key, ItemClass.SUPERSEDED, f"version {there} is there")
            self._stored[key] = row
            self._writes += 1
            return ItemResult(key, ItemClass.OK)


def _passes(doc: IndexDoc, filters: Mapping[str, str]) -> bool:
    fields = {"source_id": (doc.source_id,), "doc_uid": (doc.doc_uid,), "acl": doc.meta.acl, "tags": doc.meta.tags}
    return all(value in fields[name] for name, value in filters.items())


def _deepest(scores: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_HITS])


def _hit(doc: IndexDoc, score: float) -> Hit:
    meta = {"display_name": doc.meta.display_name, "url": doc.meta.url, "acl": doc.meta.acl, "tags": doc.meta.tags}
    return Hit(
        index_id=doc.index_id,
        tenant_id=doc.tenant_id,
        source_id=doc.source_id,
        doc_uid=doc.doc_uid,
        score=score,
        title=doc.title,
        headings=doc.headings,
        text=doc.text,
        meta=meta,
    )
