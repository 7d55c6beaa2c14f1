"""Where chunks are kept and found: OpenSearch, pgvector, and memory for tests. One conformance suite for all.

May import: `index.model`, `.ports`, `.errors`, `.fusion`, `config`, the leaf modules of `fencebeat`.
Must never know: the ledger's tables, sources, embedders; a target is told versions and never decides one.
"""

from typing import TYPE_CHECKING

from config.settings import Settings
from fencebeat.errors import ImpossibleConfiguration
from index.model import TargetSpec
from index.ports import Target

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


def make_target(spec: TargetSpec, settings: Settings, pool: "ConnectionPool | None" = None) -> Target:
    """The target of `spec.kind`. No request is sent yet; call it after a worker has forked, never before.

    pool: connections to Postgres as the application's role, needed for pgvector only. Raises ImpossibleConfiguration
    for a kind nobody knows, or pgvector without a pool.
    """
    if spec.kind == "opensearch":
        from index.targets.connection import connect  # noqa: PLC0415 - only one kind's client is loaded
        from index.targets.opensearch import OpenSearchTarget  # noqa: PLC0415 - as above

        return OpenSearchTarget(spec, connect(settings), timeout=settings.target_timeout)
    if spec.kind == "pgvector" and pool is not None:
        from index.targets.pgvector import PgvectorTarget  # noqa: PLC0415 - as above

        return PgvectorTarget(spec, pool, timeout=settings.target_timeout)
    if spec.kind == "memory":
        from index.targets.memory import MemoryTarget  # noqa: PLC0415 - as above

        return MemoryTarget(spec)
    raise ImpossibleConfiguration(
        rules=f"target {spec.target_id} is of kind {spec.kind!r}; there are opensearch, and pgvector with Postgres."
    )
