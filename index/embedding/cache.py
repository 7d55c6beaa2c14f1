"""Vectors already computed, in Postgres: derived data, so losing it costs embeddings and never correctness."""

from collections.abc import Mapping, Sequence

import numpy as np
from psycopg_pool import ConnectionPool

from index.ledger.pool import connection
from index.model import Vector

_PAGE = 1000  # rows of one statement: 1.5 MB of vectors; the keys go as one array, so no statement has more parameters
_TOUCH = "1 hour"  # `used_at` need not be finer than the clean-up that reads it; a hot row is not rewritten at each use

_GET = f"""
WITH found AS (
    SELECT input_hash, vector, used_at FROM embedding_cache WHERE model_fp = %s AND input_hash = ANY (%s)
), touched AS (
    UPDATE embedding_cache AS cache SET used_at = clock_timestamp() FROM found
    WHERE cache.model_fp = %s AND cache.input_hash = found.input_hash
      AND found.used_at < clock_timestamp() - interval '{_TOUCH}'
)
SELECT input_hash, vector FROM found
"""  # noqa: S608 - the only thing filled in is the constant above

_PUT = """
INSERT INTO embedding_cache (model_fp, input_hash, vector)
SELECT %s, input_hash, vector FROM unnest(%s::bytea[], %s::bytea[]) AS given (input_hash, vector)
ORDER BY input_hash
ON CONFLICT (model_fp, input_hash) DO NOTHING
"""  # sorted, so that two writers of the same rows cannot deadlock


class EmbeddingCache:
    """The table `embedding_cache`: (model fingerprint, blake2b-256 of the exact input) -> float32, little-endian.

    pool: connections in autocommit. Both methods raise StoreUnreachable.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def get_many(self, model_fp: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """The vectors that are there, by input hash."""
        found: dict[bytes, Vector] = {}
        for start in range(0, len(hashes), _PAGE):
            page = list(hashes[start : start + _PAGE])
            with connection(self._pool) as conn:
                rows = conn.execute(_GET, (model_fp, page, model_fp)).fetchall()
            found.update({bytes(key): np.frombuffer(vector, dtype="<f4").astype(np.float32) for key, vector in rows})
        return found

    def put_many(self, model_fp: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors by input hash; one that is there already stays."""
        keys = list(vectors)
        for start in range(0, len(keys), _PAGE):
            page = keys[start : start + _PAGE]
            values = [np.ascontiguousarray(vectors[key], dtype="<f4").tobytes() for key in page]
            with connection(self._pool) as conn:
                conn.execute(_PUT, (model_fp, page, values))
