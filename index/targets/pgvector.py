"""A table of chunks with pgvector as a target (index.md, Protocol for pgvector).

`write` only loads chunks into the staging table, at the attempt's version; the ledger's commit swaps them in, in the
same transaction that swaps the manifest. So nothing is ever superseded here, there are no tombstones, and a late write
of a zombie is a staged row that no commit takes. Searches run as a role that row-level security binds, one tenant a
transaction; `open` refuses a role that it would not bind.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

import psycopg
from pgvector import Vector as PgVector
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed, Identifier
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool, PoolTimeout

from fencebeat.claims.bounded import within
from fencebeat.errors import ImpossibleConfiguration
from fencebeat.failpoints import failpoint
from index.errors import TargetLost, TargetSick, TargetUnavailable
from index.fusion import fuse
from index.model import Found, Hit, IndexDoc, ItemClass, ItemResult, ScanRow, TargetSpec, Tombstone, Vector
from index.ports import Hook, nothing
from index.targets.classify import classify_sqlstate
from index.targets.ids import MOST_HITS, check_request
from index.targets.mapping import MARK, check_mark, mark_of
from index.targets.query import WEIGHTS

PAGE = 10_000  # rows of a scan's page
BATCH = 200  # chunks a staging call: about 2 MB of JSON at 384 dimensions
ATTEMPTS = 6  # of one call; the waits between them add up to some 3 s
FIRST_WAIT = 0.1  # upper bound of the first jittered wait in seconds; doubles

_FILTERS = {
    "source_id": SQL("h.source_id = %s"),
    "doc_uid": SQL("c.doc_uid = %s"),
    "acl": SQL("h.meta->'acl' ? %s"),
    "tags": SQL("h.meta->'tags' ? %s"),
}
_LEG = SQL("""
    SELECT c.chunk_id, c.doc_uid, c.title, c.headings, c.body, h.source_id, h.meta, {score} AS score
      FROM {table} c JOIN doc_head h ON h.tenant_id = c.tenant_id AND h.target_id = %s AND h.doc_uid = c.doc_uid
     WHERE c.tenant_id = %s AND {narrow} ORDER BY {order} LIMIT %s""")
# The words of a query, any of them; websearch_to_tsquery would ask for all.
_ANY_WORD = "replace(plainto_tsquery('pg_catalog.english', %s)::text, '&', '|')::tsquery"


class PgvectorTarget:
    """One table. `pool` connects as the application's role in autocommit; sleep and dice are injected."""

    def __init__(
        self,
        spec: TargetSpec,
        pool: ConnectionPool,
        *,
        timeout: float,
        sleep: Callable[[float], None] = time.sleep,
        dice: random.Random | None = None,
    ) -> None:
        self.spec = spec
        self._pool = pool
        self._timeout = timeout
        self._sleep = sleep
        self._dice = dice or random.Random()
        self._table: str | None = None
        self.counts: Counter[ItemClass] = Counter()
        """Chunks written so far, by class."""

    def open(self, incarnation: int, *, fresh: bool) -> None:
        """See `Target.open`. Raises ImpossibleConfiguration for a role that row-level security does not bind."""
        name = self.spec.target_id
        mark = Jsonb(mark_of(self.spec, incarnation)[MARK])
        with self._connection(self._timeout) as conn:
            self._check_role(conn)
            if fresh:
                conn.execute("SELECT pgvector_create(%s, %s, %s)", (name, self.spec.dimension, mark))
            found = self._mark(conn)
            if found is None:
                raise TargetLost(target=name, why="the table is missing.")
            if check_mark(self.spec, incarnation, {MARK: found}):
                conn.execute("SELECT pgvector_raise_mark(%s, %s)", (name, mark))

    def index_id(self, chunk_id: str, meta_hash: bytes) -> str:  # noqa: ARG002 - meta is not part of a row here
        """The chunk id alone: meta lives in the document's head."""
        return chunk_id

    def write(
        self, docs: Sequence[IndexDoc], version: int, *, epoch: int, before_request: Hook = nothing
    ) -> Sequence[ItemResult]:
        """Stage all docs at `version`; see `Target.write`. They are seen from the ledger's commit on."""
        del epoch  # the version has it
        known: dict[str, ItemResult] = {}
        good = [doc for doc in docs if doc.vector.shape == (self.spec.dimension,)]
        refusal = ItemClass.PERMANENT if good else ItemClass.TARGET_SICK
        for doc in docs:
            if doc.vector.shape != (self.spec.dimension,):
                why = f"dimension mismatch: the vector has {doc.vector.size}, the target {self.spec.dimension}"
                known[doc.index_id] = ItemResult(doc.index_id, refusal, why)
        for _, same in groupby(sorted(good, key=_owner), key=_owner):
            owned = list(same)
            for start in range(0, len(owned), BATCH):
                self._stage(owned[start : start + BATCH], version, before_request, known)
        results = [known[doc.index_id] for doc in docs]
        self.counts.update(result.outcome for result in results)
        return results

    def refresh(self) -> None:
        """Nothing to do: a commit is visible at once."""
        failpoint("index.refresh.before")
        failpoint("index.refresh.after")

    def bury(self, tombstones: Sequence[Tombstone], *, before_request: Hook = nothing) -> Sequence[ItemResult]:  # noqa: ARG002 - no request is sent
        """Nothing to do: the commit has removed the rows."""
        return [ItemResult(tombstone.index_id, ItemClass.OK) for tombstone in tombstones]

    def purge(self, older_than_seconds: float, *, before_request: Hook = nothing) -> int:
        """Delete what attempts staged that long ago and never committed; returns how many rows."""
        before_request()
        age = timedelta(seconds=older_than_seconds)
        return int(self._call("SELECT pgvector_purge(%s, %s)", (self.spec.target_id, age))[0][0])

    def scan(self, tenant_id: str | None = None) -> Iterator[ScanRow]:
        """See `Target.scan`; versions are 0."""
        after = ["", "", ""]
        while True:
            page = self._call(
                "SELECT * FROM pgvector_scan(%s, %s, %s, %s)", (self.spec.target_id, tenant_id, after, PAGE)
            )
            for tenant, uid, chunk_id in page:
                yield ScanRow(chunk_id, tenant, uid, version=0, dead=False)
            if len(page) < PAGE:
                return
            after = list(page[-1])

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
        """See `Target.search`. Both legs read one snapshot, so a document is seen in one version."""
        check_request(tenant_id, limit, filters)
        self._table_name()  # asked for once, before a connection is held: a pool of one must do
        with (
            self._connection(timeout) as conn,
            within(conn, timeout + 1),  # the server's own time-out speaks first, but for a server that is frozen
            conn.transaction(),
            conn.cursor(row_factory=dict_row) as cursor,
        ):
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(
                "SELECT set_config('fencebeat.tenant', %s, true), set_config('statement_timeout', %s, true),"
                # without it the index gives the nearest of all tenants, and a small one gets nothing
                " set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', %s, true)",
                (tenant_id, str(max(1, int(timeout * 1000))), str(MOST_HITS)),
            )
            legs = [cursor.execute(*self._word_leg(text, tenant_id, filters)).fetchall()]
            if vector is not None:
                legs.append(cursor.execute(*self._vector_leg(vector, tenant_id, filters)).fetchall())
        rows = {row["chunk_id"]: row for leg in legs for row in leg}
        scores = [{row["chunk_id"]: float(row["score"]) for row in leg} for leg in legs]
        best = fuse(scores, WEIGHTS[: len(legs)])[:limit]
        return Found([_hit(rows[key], tenant_id, score) for key, score in best])

    def write_count(self) -> int | None:
        """None: Postgres' counters lag, and a staged row is not yet an indexed one."""
        return None

    def _stage(
        self, docs: Sequence[IndexDoc], version: int, before_request: Hook, known: dict[str, ItemResult]
    ) -> None:
        """Load chunks of one document, halving where one of them cannot be stored."""
        chunks = [
            {
                "chunk_id": doc.index_id,
                "title": doc.title,
                "headings": list(doc.headings),
                "body": doc.text,
                "embedding": PgVector(doc.vector).to_text(),
            }
            for doc in docs
        ]
        key = (self.spec.target_id, docs[0].tenant_id, docs[0].doc_uid, version)
        before_request()
        failpoint("index.write.before")
        try:
            self._call("SELECT pgvector_stage(%s, %s, %s, %s, %s::jsonb)", (*key, json.dumps(chunks)))
        except psycopg.Error as error:  # what `_call` leaves: refused for these chunks
            why = str(error).split("\n", 1)[0]
            if len(docs) == 1:
                known[docs[0].index_id] = ItemResult(docs[0].index_id, ItemClass.PERMANENT, why)
                return
            half = len(docs) // 2
            self._stage(docs[:half], version, before_request, known)
            self._stage(docs[half:], version, before_request, known)
            return
        except TargetSick as sick:
            known |= {d.index_id: ItemResult(d.index_id, ItemClass.TARGET_SICK, str(sick.facts["why"])) for d in docs}
            return
        failpoint("index.write.after")
        known |= {doc.index_id: ItemResult(doc.index_id, ItemClass.OK) for doc in docs}

    def _call(self, statement: str, params: Sequence[object]) -> list[tuple[Any, ...]]:
        """One statement, which is one transaction, again while the fault may pass."""
        for attempt in range(ATTEMPTS):
            try:
                with self._connection(self._timeout) as conn:
                    return conn.execute(statement.encode(), params).fetchall()
            except TargetUnavailable:
                if attempt + 1 == ATTEMPTS:
                    raise
                self._sleep(self._dice.uniform(0, FIRST_WAIT * 2**attempt))
        raise AssertionError("the loop returns or raises")  # pragma: no cover - for the type checker

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[psycopg.Connection]:
        """A connection; what fails on it comes as TargetUnavailable or TargetSick, except faults of the data."""
        try:
            with self._pool.connection(timeout=timeout) as conn:
                yield conn
        except PoolTimeout as error:
            raise TargetUnavailable(target=self.spec.target_id, why="no connection in time") from error
        except psycopg.Error as error:
            why = str(error).split("\n", 1)[0] or type(error).__name__
            outcome = classify_sqlstate(error.sqlstate)
            if outcome is ItemClass.PERMANENT:
                raise
            if outcome is ItemClass.TRANSIENT:
                raise TargetUnavailable(target=self.spec.target_id, why=why) from error
            raise TargetSick(target=self.spec.target_id, why=why) from error

    def _check_role(self, conn: psycopg.Connection) -> None:
        row = conn.execute(
            "SELECT current_user, r.rolsuper OR r.rolbypassrls OR r.oid IN"
            " (SELECT relowner FROM pg_class WHERE oid = to_regclass('doc_head'))"
            " FROM pg_roles r WHERE r.rolname = current_user"
        ).fetchone()
        if row is None or row[1]:
            raise ImpossibleConfiguration(
                rules=f"role {row[0] if row else None} is owner or superuser: row-level security would not bind it."
            )

    def _mark(self, conn: psycopg.Connection) -> Any:
        """The table's mark; None where there is no table, an empty one where it is not ours."""
        row = conn.execute(
            "SELECT t.name, to_regclass(quote_ident(t.name)),"
            " obj_description(to_regclass(quote_ident(t.name)), 'pg_class')"
            " FROM pgvector_table(%s) AS t(name)",
            (self.spec.target_id,),
        ).fetchone()
        if row is None or row[1] is None:
            return None
        try:
            return json.loads(row[2] or "")
        except json.JSONDecodeError:
            return ""

    def _word_leg(self, text: str, tenant_id: str, filters: Mapping[str, str]) -> tuple[Composed, tuple[object, ...]]:
        narrow = SQL(f"c.words @@ {_ANY_WORD}")
        score = SQL(f"ts_rank_cd(c.words, {_ANY_WORD})")
        statement, narrowed = self._leg(score, narrow, SQL("score DESC, c.chunk_id"), filters)
        return statement, (text, self.spec.target_id, tenant_id, text, *narrowed, MOST_HITS)

    def _vector_leg(
        self, vector: Vector, tenant_id: str, filters: Mapping[str, str]
    ) -> tuple[Composed, tuple[object, ...]]:
        near = PgVector(vector).to_text()
        statement, narrowed = self._leg(
            SQL("1 - (c.embedding <=> %s::vector)"), SQL("true"), SQL("c.embedding <=> %s::vector"), filters
        )
        return statement, (near, self.spec.target_id, tenant_id, *narrowed, near, MOST_HITS)

    def _leg(
        self, score: SQL, narrow: SQL, order: SQL, filters: Mapping[str, str]
    ) -> tuple[Composed, tuple[object, ...]]:
        conditions = SQL(" AND ").join([narrow, *(_FILTERS[name] for name in filters)])
        table = Identifier(self._table_name())
        return _LEG.format(score=score, table=table, narrow=conditions, order=order), tuple(filters.values())

    def _table_name(self) -> str:
        if self._table is None:
            self._table = str(self._call("SELECT pgvector_table(%s)", (self.spec.target_id,))[0][0])
        return self._table


def _owner(doc: IndexDoc) -> tuple[str, str]:
    return doc.tenant_id, doc.doc_uid


def _hit(row: Mapping[str, Any], tenant_id: str, score: float) -> Hit:
    meta = row["meta"]
    return Hit(
        index_id=row["chunk_id"],
        tenant_id=tenant_id,
        source_id=row["source_id"],
        doc_uid=row["doc_uid"],
        score=score,
        title=row["title"],
        headings=tuple(row["headings"]),
        text=row["body"],
        meta={
            "display_name": meta.get("display_name", ""),
            "url": meta.get("url"),
            "acl": tuple(meta.get("acl", ())),
            "tags": tuple(meta.get("tags", ())),
        },
    )
