"""The typed face of the ledger's functions: one method a step of the protocol, one call each, in autocommit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from fencebeat.failpoints import failpoint
from index.ledger.pool import connection
from index.model import Attempt, ManifestEntry, Meta, TargetSpec


@dataclass(frozen=True, slots=True)
class KnownDocument:
    """What a listing is compared with."""

    doc_uid: str
    tried_version: str | None
    listed_version: str | None
    dirty: bool
    absent: bool


@dataclass(frozen=True, slots=True)
class HeadView:
    """What a strict reader needs of a head. unseen: it was committed after the reader's snapshot."""

    source_id: str
    manifest: tuple[ManifestEntry, ...]
    unseen: bool


@dataclass(frozen=True, slots=True)
class Garbage:
    """Ids of one document that wait for tombstones under its committed epoch."""

    tenant_id: str
    doc_uid: str
    committed_epoch: int
    incarnation: int
    ids: tuple[str, ...]

    @property
    def version(self) -> int:
        """External version of the tombstones."""
        return self.incarnation << 32 | self.committed_epoch


@dataclass(frozen=True, slots=True)
class TargetRow:
    """The ledger's record of a target."""

    incarnation: int
    state: str
    opened: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the documents of a target stand."""

    documents: int
    indexed: int
    dirty: int
    claimed: int
    dead: int
    absent: int
    chunks: int
    garbage: int
    oldest_dirty: datetime | None


def _manifest(ids: Sequence[str], starts: Sequence[int], ends: Sequence[int]) -> tuple[ManifestEntry, ...]:
    return tuple(ManifestEntry(*entry) for entry in zip(ids, starts, ends, strict=True))


class Ledger:
    """The ledger's steps. Every method raises StoreUnreachable where Postgres cannot be reached."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool

    def _rows(self, query: str, params: Sequence[object] = ()) -> list[dict[str, Any]]:
        with connection(self.pool) as conn, conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode(), params).fetchall()

    def _value(self, query: str, params: Sequence[object] = ()) -> Any:
        with connection(self.pool) as conn:
            row = conn.execute(query.encode(), params).fetchone()
        return row[0] if row else None

    # targets

    def register_target(self, spec: TargetSpec) -> TargetRow:
        """The row of this target, made on first use."""
        with connection(self.pool) as conn, conn.cursor(row_factory=class_row(TargetRow)) as cursor:
            row = cursor.execute(
                "SELECT * FROM register_target(%s, %s, %s, %s, %s)",
                (spec.target_id, spec.kind, spec.dimension, spec.chunker_fp, spec.model_fp),
            ).fetchone()
        assert row is not None  # noqa: S101 - the function always returns one row
        return row

    def target_opened(self, target_id: str) -> None:
        """Record that the physical index has been seen with our mark; from now on its absence is a loss."""
        self._value("UPDATE target SET opened = true WHERE target_id = %s AND NOT opened RETURNING 1", (target_id,))

    def target_lost(self, target_id: str) -> None:
        """Record that the physical index is gone or not ours; claims on it end here."""
        self._value("UPDATE target SET state = 'lost' WHERE target_id = %s RETURNING 1", (target_id,))

    # marks

    def known(self, tenant_id: str, source_id: str, target_id: str) -> dict[str, KnownDocument]:
        """Every document of a source that the ledger knows in a target, by uid."""
        with connection(self.pool) as conn, conn.cursor(row_factory=class_row(KnownDocument)) as cursor:
            cursor.execute(
                "SELECT doc_uid, tried_version, listed_version, dirty_seq > done_seq AS dirty, absent FROM doc_head"
                " WHERE tenant_id = %s AND source_id = %s AND target_id = %s",
                (tenant_id, source_id, target_id),
            )
            return {row.doc_uid: row for row in cursor}

    def mark_dirty(self, tenant_id: str, source_id: str, target_id: str, versions: Sequence[tuple[str, str]]) -> int:
        """Mark listed (uid, version) pairs, each uid once; returns how many marks were made."""
        uids, seen = [uid for uid, _ in versions], [version for _, version in versions]
        return int(self._value("SELECT mark_dirty(%s, %s, %s, %s, %s)", (tenant_id, source_id, target_id, uids, seen)))

    def mark_absent(self, tenant_id: str, source_id: str, target_id: str, uids: Sequence[str]) -> int:
        """Mark documents that an approved, completed listing did not have; returns how many marks were made."""
        return int(self._value("SELECT mark_absent(%s, %s, %s, %s)", (tenant_id, source_id, target_id, list(uids))))

    def record_listing(
        self,
        tenant_id: str,
        source_id: str,
        *,
        complete: bool,
        items: int,
        problems: Sequence[tuple[str, str]],
        pending_deletes: int,
        error: str | None = None,
    ) -> None:
        """Remember the outcome of a listing for status; makes the source's row on first use."""
        self._value(
            "SELECT record_listing(%s, %s, %s, %s, %s, %s, %s)",
            (tenant_id, source_id, complete, items, Jsonb([list(p) for p in problems[:100]]), pending_deletes, error),
        )

    # attempts

    def acquire(self, target_id: str, limit: int, lease: float) -> list[Attempt]:
        """Claim up to `limit` dirty documents for `lease` seconds; a suspect comes alone."""
        failpoint("index.acquire.before")
        rows = self._rows("SELECT * FROM acquire_documents(%s, %s, %s)", (target_id, limit, timedelta(seconds=lease)))
        failpoint("index.acquire.after")
        return [
            Attempt(
                target_id=target_id,
                manifest=_manifest(row.pop("manifest_ids"), row.pop("manifest_starts"), row.pop("manifest_ends")),
                **row,
            )
            for row in rows
        ]

    def older_staged(self, attempt: Attempt) -> set[str]:
        """Ids that earlier attempts on this document meant to write and did not account for."""
        rows = self._rows(
            "SELECT DISTINCT unnest(ids) AS id FROM doc_staged"
            " WHERE tenant_id = %s AND target_id = %s AND doc_uid = %s AND epoch < %s",
            (attempt.tenant_id, attempt.target_id, attempt.doc_uid, attempt.epoch),
        )
        return {row["id"] for row in rows}

    def _key(self, attempt: Attempt) -> tuple[object, ...]:
        return (
            attempt.tenant_id,
            attempt.target_id,
            attempt.doc_uid,
            attempt.epoch,
            attempt.nonce,
            attempt.incarnation,
        )

    def stage(self, attempt: Attempt, ids: Sequence[str]) -> str:
        """Record what the attempt is about to write: `ok`, `fenced` or `stopped`."""
        failpoint("index.stage.before")
        state = self._value("SELECT stage_document(%s, %s, %s, %s, %s, %s, %s)", (*self._key(attempt), list(ids)))
        failpoint("index.stage.after")
        return str(state)

    def commit(
        self,
        attempt: Attempt,
        *,
        version: str,
        content_hash: bytes,
        meta_hash: bytes,
        meta: Meta,
        manifest: Sequence[ManifestEntry],
        absent: bool = False,
    ) -> str:
        """Make this version the one that readers see: `committed`, `fenced` or `stopped`."""
        failpoint("index.commit.before")
        state = self._value(
            "SELECT commit_document(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                *self._key(attempt),
                attempt.dirty_seq,
                version,
                content_hash,
                meta_hash,
                Jsonb(asdict(meta)),
                [entry.index_id for entry in manifest],
                [entry.start for entry in manifest],
                [entry.end for entry in manifest],
                absent,
            ),
        )
        failpoint("index.commit.after")
        return str(state)

    def dead_letter(self, attempt: Attempt, *, version: str | None, reason: str, fingerprint: str) -> str:
        """End the attempt for good, its old version stays: `dead_lettered`, `fenced` or `stopped`."""
        return str(
            self._value(
                "SELECT dead_letter_document(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (*self._key(attempt), attempt.dirty_seq, version, reason, fingerprint),
            )
        )

    def hand_back(self, attempt: Attempt, *, reason: str | None = None, delay: float = 0.0) -> str:
        """Give the claim back for `delay` seconds; with a `reason` it counts as a failure: `handed_back`, `fenced`."""
        key = self._key(attempt)[:-1]
        return str(
            self._value(
                "SELECT hand_back_document(%s, %s, %s, %s, %s, %s, %s)", (*key, reason, timedelta(seconds=delay))
            )
        )

    def renew(self, attempts: Sequence[Attempt], lease: float) -> set[str]:
        """Extend the claims by `lease` seconds; returns the uids that are still ours."""
        if not attempts:
            return set()
        rows = self._rows(
            "SELECT uid FROM renew_claims(%s, %s, %s, %s, %s, %s) AS uid",
            (
                attempts[0].target_id,
                [a.tenant_id for a in attempts],
                [a.doc_uid for a in attempts],
                [a.epoch for a in attempts],
                [a.nonce for a in attempts],
                timedelta(seconds=lease),
            ),
        )
        return {row["uid"] for row in rows}

    # after the commit

    def garbage(self, target_id: str, limit: int = 200) -> list[Garbage]:
        """Documents with ids that wait for tombstones."""
        return [
            Garbage(**{**row, "ids": tuple(row["ids"])})
            for row in self._rows("SELECT * FROM collect_candidates(%s, %s)", (target_id, limit))
        ]

    def collected(self, target_id: str, garbage: Garbage, ids: Sequence[str]) -> bool:
        """Forget ids whose tombstones are written; False where the document has moved on and they stay."""
        return bool(
            self._value(
                "SELECT collect_done(%s, %s, %s, %s, %s, %s)",
                (
                    target_id,
                    garbage.tenant_id,
                    garbage.doc_uid,
                    garbage.committed_epoch,
                    garbage.incarnation,
                    list(ids),
                ),
            )
        )

    # readers

    def snapshot(self) -> str:
        """The commits visible now, to be taken before a search."""
        return str(self._value("SELECT pg_current_snapshot()"))

    def read_heads(self, tenant_id: str, target_id: str, uids: Sequence[str], snapshot: str) -> dict[str, HeadView]:
        """The heads of some documents of one tenant, by uid."""
        rows = self._rows(
            "SELECT doc_uid, source_id, manifest_ids, manifest_starts, manifest_ends,"
            " coalesce(NOT pg_visible_in_snapshot(committed_xid, %s::pg_snapshot), false) AS unseen"
            " FROM doc_head WHERE tenant_id = %s AND target_id = %s AND doc_uid = ANY (%s)",
            (snapshot, tenant_id, target_id, list(uids)),
        )
        return {
            row["doc_uid"]: HeadView(
                source_id=row["source_id"],
                manifest=_manifest(row["manifest_ids"], row["manifest_starts"], row["manifest_ends"]),
                unseen=row["unseen"],
            )
            for row in rows
        }

    def tenants(self) -> set[str]:
        """Every tenant that has a source or a document."""
        rows = self._rows("SELECT tenant_id FROM source UNION SELECT DISTINCT tenant_id FROM doc_head")
        return {row["tenant_id"] for row in rows}

    def manifests(self, target_id: str, tenant_id: str | None, snapshot: str) -> Iterator[dict[str, Any]]:
        """Every head of a target for the doctor, manifest, garbage and staged ids; `unseen` as of `snapshot`."""
        query = b"SELECT * FROM doctor_heads(%s, %s, %s::pg_snapshot)"
        with connection(self.pool) as conn, conn.transaction(), conn.cursor("heads", row_factory=dict_row) as cursor:
            cursor.itersize = 2000
            yield from cursor.execute(query, (target_id, tenant_id, snapshot))

    def progress(self, target_id: str) -> Progress:
        """Where the documents of a target stand."""
        (row,) = self._rows("SELECT * FROM target_progress(%s)", (target_id,))
        return Progress(**row)

    def sources(self) -> list[dict[str, Any]]:
        """The outcome of the last listing of each source."""
        return self._rows("SELECT * FROM source ORDER BY tenant_id, source_id")

    def record_doctor(self, target_id: str, report: dict[str, Any]) -> None:
        """Keep the doctor's result for status and metrics."""
        self._value(
            "INSERT INTO doctor_report (target_id, report) VALUES (%s, %s) RETURNING 1", (target_id, Jsonb(report))
        )

    def trim_audit(self, days: float) -> int:
        """Forget copies of the scheduler's audit older than that many days."""
        return int(self._value("SELECT trim_audit(%s)", (timedelta(days=days),)))

    def dead_letters(self, target_id: str, limit: int = 100) -> list[dict[str, Any]]:
        """The newest dead letters."""
        return self._rows(
            "SELECT * FROM dead_letter WHERE target_id = %s ORDER BY at DESC, doc_uid LIMIT %s", (target_id, limit)
        )
