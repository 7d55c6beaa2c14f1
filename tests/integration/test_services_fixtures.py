"""The corners that tests get in the shared servers are empty and their own."""

import httpx
import psycopg

from tests.support.servers import database


def test_each_test_has_an_empty_redis_database(redis_client, redis_url):
    assert redis_client.dbsize() == 0
    redis_client.set("left-behind", 1)


def test_nothing_is_left_of_the_test_before(redis_client):
    assert redis_client.dbsize() == 0
    redis_client.set("left-behind", 1)


def test_databases_are_apart_and_know_vectors(postgres_url):
    with database(postgres_url) as first, database(postgres_url) as second:
        with psycopg.connect(first, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("CREATE TABLE marks (place vector(3))")
            assert connection.execute("SELECT '[1,2,3]'::vector <-> '[1,2,4]'").fetchone() == (1.0,)
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT to_regclass('marks')").fetchone() == (None,)
    with psycopg.connect(postgres_url) as connection:
        names = [name for (name,) in connection.execute("SELECT datname FROM pg_database")]
    assert first.split("/")[3].split("?")[0] not in names


def test_etcd_answers(etcd_url):
    assert httpx.get(f"{etcd_url}/version", timeout=5).json()["etcdserver"].startswith("3.5")


def test_opensearch_indexes_vectors_and_searches_them(opensearch_url, index_prefix):
    with httpx.Client(base_url=opensearch_url, timeout=30) as client:
        vector = {"type": "knn_vector", "dimension": 3, "method": {"name": "hnsw", "engine": "lucene"}}
        body = {"settings": {"index.knn": True}, "mappings": {"properties": {"place": vector}}}
        client.put(f"/{index_prefix}-one", json=body).raise_for_status()
        client.put(f"/{index_prefix}-one/_doc/1?refresh=true", json={"place": [1, 2, 3]}).raise_for_status()
        query = {"query": {"knn": {"place": {"vector": [1, 2, 4], "k": 1}}}}
        hits = client.post(f"/{index_prefix}-one/_search", json=query).json()["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["1"]
