"""A ledger of its own for a test, and short words for what happens in it."""

from contextlib import contextmanager

from psycopg_pool import ConnectionPool

from index.ledger import Ledger, open_pool
from index.ledger.migrate import upgrade
from index.model import ManifestEntry, Meta, TargetSpec

SPEC = TargetSpec(target_id="t1", kind="memory", dimension=4, chunker_fp="chunker", model_fp="model")
META = Meta(display_name="a page")


@contextmanager
def ledger_at(url, *, specs=(SPEC,), tenants=("acme",)):
    """A migrated ledger with targets registered and a source `docs` for each tenant."""
    upgrade(url)
    pool: ConnectionPool = open_pool(url, size=8)
    try:
        ledger = Ledger(pool)
        for spec in specs:
            ledger.register_target(spec)
        for tenant in tenants:
            ledger.record_listing(tenant, "docs", complete=True, items=0, problems=[], pending_deletes=0)
        yield ledger
    finally:
        pool.close()


def mark(ledger, *uids, version="v1", tenant="acme", target="t1"):
    """Mark documents as listed with a version; returns the number of marks."""
    return ledger.mark_dirty(tenant, "docs", target, [(uid, version) for uid in uids])


def claim(ledger, limit=10, lease=60.0, target="t1"):
    """Claim documents."""
    return ledger.acquire(target, limit, lease)


def commit(ledger, attempt, ids, *, version="v1", absent=False):
    """Commit an attempt with these index ids as its manifest."""
    return ledger.commit(
        attempt,
        version=version,
        content_hash=b"content",
        meta_hash=b"metameta",
        meta=META,
        manifest=[ManifestEntry(index_id, n, n + 1) for n, index_id in enumerate(ids)],
        absent=absent,
    )


def execute(ledger, query, *params):
    """One statement, its rows."""
    with ledger.pool.connection() as conn:
        cursor = conn.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def expire_leases(ledger):
    """Let every open claim have run out long ago, as if its worker had died."""
    execute(
        ledger, "UPDATE doc_head SET lease_until = clock_timestamp() - interval '1 hour' WHERE lease_until IS NOT NULL"
    )
