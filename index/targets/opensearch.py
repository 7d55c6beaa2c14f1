"""An OpenSearch index as a target (index.md, Protocol for OpenSearch).

Every write names its version (`external_gte`), its routing (the document) and the write alias with `require_alias`.
The store therefore refuses an older attempt's write item by item, and a write to an index that is gone fails instead
of creating an index without our mapping. Nothing here reads before it writes, and nothing is deleted by query.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, OpenSearchException, RequestError

from fencebeat.clock import Clock, system_clock
from fencebeat.errors import Retryable
from fencebeat.failpoints import failpoint
from index.errors import TargetLost, TargetSick, TargetUnavailable
from index.fusion import fuse
from index.model import (
    Found,
    IndexDoc,
    ItemClass,
    ItemResult,
    ScanRow,
    TargetSpec,
    Tombstone,
    Vector,
)
from index.ports import Hook, nothing
from index.targets import query
from index.targets.bulk import BulkItem, BulkLimits, BulkWriter, Observe
from index.targets.classify import fault_of
from index.targets.ids import MOST_HITS, check_request, with_meta
from index.targets.mapping import check_mark, dead_body, index_body, live_body, mark_of, write_alias

PAGE = 10_000  # documents of a scan's page: the server's own limit, and the fastest (230,000 ids/s)
KEEP_ALIVE = "5m"  # of a scan between two pages; the doctor compares in between
_IDS = ["tenant_id", "doc_uid", "dead"]


class OpenSearchTarget:
    """One index. A client belongs to one process: make targets after forking.

    observe: told the item classes of every bulk reply. hybrid: False merges the legs here, as is done by itself where
    the server has no neural-search plug-in.
    """

    def __init__(
        self,
        spec: TargetSpec,
        client: OpenSearch,
        *,
        timeout: float,
        clock: Clock | None = None,
        limits: BulkLimits | None = None,
        sleep: Callable[[float], None] = time.sleep,
        dice: random.Random | None = None,
        observe: Observe | None = None,
        hybrid: bool = True,
    ) -> None:
        self.spec = spec
        self._client = client
        self._timeout = timeout
        self._clock = clock or system_clock()
        self._hybrid = hybrid
        self._bulk = BulkWriter(
            self._send,
            target_id=spec.target_id,
            clock=self._clock,
            limits=limits or BulkLimits(request_seconds=timeout),
            sleep=sleep,
            dice=dice,
            observe=observe,
        )

    @property
    def counts(self) -> Counter[ItemClass]:
        """Items of all bulk replies so far, by class."""
        return self._bulk.counts

    def open(self, incarnation: int, *, fresh: bool) -> None:
        """See `Target.open`."""
        name = self.spec.target_id
        with self._named():
            if fresh and not self._client.indices.exists(index=name, request_timeout=self._timeout):
                try:
                    self._client.indices.create(
                        index=name, body=index_body(self.spec, incarnation), request_timeout=self._timeout
                    )
                except RequestError as error:
                    if error.error != "resource_already_exists_exception":
                        raise  # somebody else's creation at the same moment is as good as ours
            try:
                found = self._client.indices.get(index=name, request_timeout=self._timeout)
            except NotFoundError:
                raise TargetLost(target=name, why="the index is missing.") from None
            if name not in found:
                raise TargetLost(target=name, why="an alias stands in its place.")
            if write_alias(name) not in found[name]["aliases"]:
                raise TargetLost(target=name, why="it has no write alias.")
            if check_mark(self.spec, incarnation, found[name]["mappings"].get("_meta", {})):
                self._client.indices.put_mapping(
                    index=name, body={"_meta": mark_of(self.spec, incarnation)}, request_timeout=self._timeout
                )

    def index_id(self, chunk_id: str, meta_hash: bytes) -> str:
        """Chunk id and the first 8 bytes of the meta's hash."""
        return with_meta(chunk_id, meta_hash)

    def write(
        self, docs: Sequence[IndexDoc], version: int, *, epoch: int, before_request: Hook = nothing
    ) -> Sequence[ItemResult]:
        """See `Target.write`. Vectors of a wrong length are found here: all of them means a sick target."""
        wrong = {doc.index_id: reason for doc in docs if (reason := self._wrong_vector(doc))}
        if docs and len(wrong) == len(docs):
            return [ItemResult(doc.index_id, ItemClass.TARGET_SICK, wrong[doc.index_id]) for doc in docs]
        items = [
            BulkItem(doc.index_id, doc.doc_uid, version, live_body(doc, epoch))
            for doc in docs
            if doc.index_id not in wrong
        ]
        results = self._bulk.run(items, before_request)
        if results and all(r.outcome is ItemClass.PERMANENT and "dimension mismatch" in r.reason for r in results):
            # the mapping is not the one we made: no document is to blame
            results = [ItemResult(r.index_id, ItemClass.TARGET_SICK, r.reason) for r in results]
        known = {result.index_id: result for result in results}
        known |= {index_id: ItemResult(index_id, ItemClass.PERMANENT, reason) for index_id, reason in wrong.items()}
        return [known[doc.index_id] for doc in docs]

    def refresh(self) -> None:
        """See `Target.refresh`."""
        failpoint("index.refresh.before")
        with self._named():
            self._client.indices.refresh(index=self.spec.target_id, request_timeout=self._timeout)
        failpoint("index.refresh.after")

    def bury(self, tombstones: Sequence[Tombstone], *, before_request: Hook = nothing) -> Sequence[ItemResult]:
        """See `Target.bury`."""
        now = self._clock.wall()
        items = [BulkItem(t.index_id, t.doc_uid, t.version, dead_body(t, now)) for t in tombstones]
        return self._bulk.run(items, before_request)

    def purge(self, older_than_seconds: float, *, before_request: Hook = nothing) -> int:
        """See `Target.purge`. A tombstone that was overwritten meanwhile has a higher version and stays."""
        before = int(self._clock.wall() - older_than_seconds)
        old = {"bool": {"filter": [{"term": {"dead": True}}, {"range": {"buried_at": {"lt": before}}}]}}
        purged = 0
        for page in self._pages(old):
            items = [BulkItem(row["_id"], row["_routing"], row["_version"], None) for row in page]
            results = self._bulk.run(items, before_request)
            sick = next((r.reason for r in results if r.outcome is ItemClass.TARGET_SICK), None)
            if sick is not None:
                raise TargetSick(target=self.spec.target_id, why=sick)
            purged += sum(result.outcome is ItemClass.OK for result in results)
        return purged

    def scan(self, tenant_id: str | None = None) -> Iterator[ScanRow]:
        """See `Target.scan`."""
        self.refresh()
        wanted = {"match_all": {}} if tenant_id is None else {"term": {"tenant_id": tenant_id}}
        for page in self._pages(wanted):
            for row in page:
                fields = row.get("fields", {})
                uid = fields.get("doc_uid", [""])[0]
                yield ScanRow(
                    index_id=row["_id"],
                    tenant_id=fields.get("tenant_id", [""])[0],
                    doc_uid=uid,
                    version=row["_version"],
                    dead=fields.get("dead", [False])[0],
                    routing_ok=row.get("_routing") == uid,
                )

    def search(
        self,
        *,
        text: str,
        vector: Vector | None,
        tenant_id: str,
        limit: int,
        filters: Mapping[str, str],
        timeout: float,
    ) -> Found:
        """See `Target.search`."""
        check_request(tenant_id, limit, filters)
        legs = [query.word_leg(text, tenant_id, filters)]
        if vector is not None:
            legs.append(query.vector_leg(vector, tenant_id, filters))
        with self._named():
            if len(legs) == 1:
                return self._ask(query.leg_body(legs[0], limit, timeout), timeout)
            if self._hybrid:
                try:
                    return self._ask(query.hybrid_body(legs, limit, timeout), timeout)
                except RequestError as error:
                    if "[hybrid]" not in str(error.info):
                        raise
                    self._hybrid = False  # no neural-search plug-in: remembered for this process
            return self._merge(legs, limit, timeout)

    def write_count(self) -> int | None:
        """Index operations on primaries since the node started, tombstones included; deletes are not in it."""
        with self._named():
            stats = self._client.indices.stats(
                index=self.spec.target_id, metric="indexing", request_timeout=self._timeout
            )
        return int(stats["_all"]["primaries"]["indexing"]["index_total"])

    def _ask(self, body: Mapping[str, Any], timeout: float) -> Found:
        reply = self._client.search(index=self.spec.target_id, body=body, request_timeout=timeout)
        why = query.why_partial(reply)
        hits = [query.hit_of(row, row["_score"]) for row in reply["hits"]["hits"]]
        return Found(hits, partial=bool(why), reason=why)

    def _merge(self, legs: Sequence[Mapping[str, Any]], limit: int, timeout: float) -> Found:
        """Both legs in one request, merged here."""
        lines: list[Mapping[str, Any]] = []
        for leg in legs:
            lines += [{}, query.leg_body(leg, MOST_HITS, timeout)]
        reply = self._client.msearch(index=self.spec.target_id, body=lines, request_timeout=timeout)
        rows: dict[str, Mapping[str, Any]] = {}
        scores: list[dict[str, float]] = []
        why = ""
        for answer in reply["responses"]:
            if "error" in answer:
                raise TargetUnavailable(target=self.spec.target_id, why=answer["error"].get("reason", "a leg failed"))
            why = why or query.why_partial(answer)
            scores.append({row["_id"]: row["_score"] for row in answer["hits"]["hits"]})
            rows |= {row["_id"]: row for row in answer["hits"]["hits"]}
        best = fuse(scores, query.WEIGHTS)[:limit]
        return Found([query.hit_of(rows[key], score) for key, score in best], partial=bool(why), reason=why)

    def _pages(self, wanted: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
        """Everything that matches, by ids, versions and a few fields, from one point in time, page by page."""
        with self._named():
            pit = self._client.create_pit(
                index=self.spec.target_id, params={"keep_alive": KEEP_ALIVE}, request_timeout=self._timeout
            )["pit_id"]
        try:
            after = None
            while True:
                body = {
                    "size": PAGE,
                    "query": wanted,
                    "pit": {"id": pit, "keep_alive": KEEP_ALIVE},
                    "sort": [{"_shard_doc": "asc"}],
                    "version": True,
                    "_source": False,
                    "docvalue_fields": _IDS,
                    "track_total_hits": False,
                    **({"search_after": after} if after else {}),
                }
                with self._named():
                    reply = self._client.search(body=body, request_timeout=self._timeout)
                if why := query.why_partial(reply):
                    raise TargetUnavailable(target=self.spec.target_id, why=why)  # a scan with holes finds "missing"
                page = reply["hits"]["hits"]
                if page:
                    yield page
                if len(page) < PAGE:
                    return
                after = page[-1]["sort"]
        finally:
            with self._named():
                self._client.delete_pit(body={"pit_id": [pit]}, request_timeout=self._timeout)

    def _send(self, body: bytes, timeout: float) -> Mapping[str, Any]:
        return self._client.bulk(
            index=write_alias(self.spec.target_id),
            body=body,
            params={"require_alias": "true"},
            request_timeout=timeout,
        )

    def _wrong_vector(self, doc: IndexDoc) -> str:
        if doc.vector.shape == (self.spec.dimension,):
            return ""
        return f"dimension mismatch: the vector has {doc.vector.size}, the target {self.spec.dimension}"

    def _named(self) -> "_Named":
        return _Named(self.spec.target_id)


class _Named:
    """Turns what the client raises into our words: TargetSick for a refusal, TargetUnavailable for a passing fault."""

    def __init__(self, target_id: str) -> None:
        self._target_id = target_id

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OpenSearchException):
            return
        fault = fault_of(error)
        if fault is None or fault.outcome is ItemClass.TRANSIENT:
            named: Retryable = TargetUnavailable(target=self._target_id, why=fault.reason if fault else str(error))
        else:
            named = TargetSick(target=self._target_id, why=fault.reason)
        raise named from error
