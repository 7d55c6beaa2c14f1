from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest

from fencebeat.errors import StoreUnreachable
from index.embedding import calls
from index.embedding.cache import EmbeddingCache
from index.embedding.cached import CachedEmbedder
from index.ids import input_hash
from index.ledger import open_pool
from index.ledger.migrate import upgrade
from tests.support import ports
from tests.support.fake_embedder import running


@pytest.fixture
def pool(database_url):
    upgrade(database_url)
    pool = open_pool(database_url, size=4)
    yield pool
    pool.close()


@pytest.fixture
def cache(pool):
    return EmbeddingCache(pool)


def vectors(count, seed=0):
    dice = np.random.default_rng(seed)
    return {input_hash(f"{number}"): dice.standard_normal(384).astype(np.float32) for number in range(count)}


def test_vectors_come_back_bit_by_bit(cache):
    kept = vectors(3) | {input_hash("hard"): np.float32([-0.0, 1e-45, 3.4e38, np.pi])}

    cache.put_many("m", kept)
    found = cache.get_many("m", [*kept, input_hash("absent")])

    assert found.keys() == kept.keys()
    for key, vector in kept.items():
        assert found[key].tobytes() == vector.tobytes()
        assert found[key].dtype == np.float32
        found[key][0] = 1  # a caller's own copy


def test_each_model_has_its_own(cache):
    cache.put_many("one", vectors(1))

    assert cache.get_many("two", list(vectors(1))) == {}
    assert cache.get_many("one", []) == {}


def test_a_vector_that_is_there_stays(cache):
    cache.put_many("m", vectors(1, seed=0))
    cache.put_many("m", vectors(1, seed=1))

    (found,) = cache.get_many("m", list(vectors(1))).values()
    np.testing.assert_array_equal(found, vectors(1, seed=0)[input_hash("0")])


def test_no_statement_grows_with_the_number_of_chunks(cache):
    """D24: a parameter for each id fails above 65,535 of them."""
    few = np.float32([1, 2])
    many = {input_hash(f"{number}"): few for number in range(70_000)}

    cache.put_many("m", many)

    assert len(cache.get_many("m", list(many))) == 70_000


def test_use_is_noted_at_most_once_an_hour(cache, database_url):
    cache.put_many("m", vectors(2))
    fresh, old = vectors(2)
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("UPDATE embedding_cache SET used_at = now() - interval '2 hours' WHERE input_hash = %s", (old,))
        before = dict(admin.execute("SELECT input_hash, used_at FROM embedding_cache").fetchall())

        assert len(cache.get_many("m", [fresh, old])) == 2

        after = dict(admin.execute("SELECT input_hash, used_at FROM embedding_cache").fetchall())
    assert after[fresh] == before[fresh]
    assert (after[old] - before[old]).total_seconds() > 7000


def test_writers_of_the_same_rows_do_not_block_each_other_for_ever(cache):
    rows = vectors(400)
    shuffled = [dict(sorted(rows.items(), reverse=number % 2 == 1)) for number in range(8)]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda part: cache.put_many("m", part), shuffled))

    assert len(cache.get_many("m", list(rows))) == 400


def test_an_unreachable_ledger_is_said_so_without_its_password():
    with ports.unused() as port:
        pool = open_pool(f"postgresql://user:s3cret@127.0.0.1:{port}/db", timeout=0.5)
        try:
            with pytest.raises(StoreUnreachable, match="Postgres") as error:
                EmbeddingCache(pool).get_many("m", [b"x"])
            assert "s3cret" not in str(error.value)
            with pytest.raises(StoreUnreachable):
                EmbeddingCache(pool).put_many("m", vectors(1))
        finally:
            pool.close()


def test_workers_with_the_same_ledger_embed_each_text_once(cache, tmp_path):
    texts = [f"text {number}" for number in range(20)]
    with running(tmp_path / "calls.jsonl") as fake:
        first = CachedEmbedder(fake.client(), cache).embed(texts)
        second = CachedEmbedder(fake.client(), cache).embed(texts[::-1])

        assert calls.count(fake.call_log) == 20
    assert (first.embedded, second.embedded, second.reused) == (20, 0, 20)
    np.testing.assert_array_equal(first.vectors, second.vectors[::-1])
