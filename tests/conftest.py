"""Fixtures for every level: one real server of each kind per run, and for each test a corner of its own in it.

REDIS_URL, POSTGRES_URL, OPENSEARCH_URL, ETCD_URL and RABBITMQ_URL name existing servers to use instead. Of an existing
Redis the tests own databases 1-15, which they empty.
"""

import itertools

import celery.app.builtins  # noqa: F401 - its shared tasks are everybody's
import httpx
import pytest
import redis
from celery import _state

from fencebeat.connection import Client
from tests.support.fences import Fence
from tests.support.servers import database, running, unique

TIMED = {
    "test_election_drive",
    "test_clocks",
    "test_elector",
    "test_elector_connection",
    "test_elector_failpoints",
    "test_elector_redis_lock",
    "test_elector_watchdog",
    "test_flags",
    "test_links",
    "test_handover_sweep",
    "test_lease_elector",
    "test_locks",
    "test_scheduler",
    "test_hung_beats",
    "test_stale_leaders",
    "test_stores",
    "test_search",
    "test_smoke",
}
"""Modules that hold promised times (takeover, hand-over, trust) against the clock: they run alone, after the others."""


def pytest_collection_modifyitems(items):
    """Mark the modules of TIMED."""
    for item in items:
        if item.path.stem in TIMED:
            item.add_marker("timed")


@pytest.fixture(autouse=True)
def _tasks_of_their_own():
    """A task of one test's application is none of the next one's: Celery shares tasks unless it is told not to."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers &= before


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory):
    """A Redis-compatible server for the whole run."""
    with running("valkey", tmp_path_factory.mktemp("valkey-server")) as addresses:
        yield addresses.redis_url


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    """URI of the superuser of a PostgreSQL with pgvector, for the whole run; tests use `database_url`."""
    with running("postgres", tmp_path_factory.mktemp("postgres-server")) as addresses:
        yield addresses.postgres_url


@pytest.fixture(scope="session")
def opensearch_url(tmp_path_factory):
    """An OpenSearch with k-NN for the whole run; tests use `index_prefix`."""
    with running("opensearch", tmp_path_factory.mktemp("opensearch-server")) as addresses:
        yield addresses.opensearch_url


@pytest.fixture(scope="session")
def etcd_url(tmp_path_factory):
    """An etcd of one member for the whole run; tests use `namespace`."""
    with running("etcd", tmp_path_factory.mktemp("etcd-server")) as addresses:
        yield addresses.etcd_url


@pytest.fixture(scope="session")
def rabbitmq_url(tmp_path_factory):
    """A RabbitMQ for the whole run; each test names its queues and exchanges after its `namespace`."""
    with running("rabbitmq", tmp_path_factory.mktemp("rabbitmq-server")) as addresses:
        yield addresses.rabbitmq_url


@pytest.fixture
def namespace():
    """A prefix of Redis and etcd keys that no other test has."""
    return unique("test")


@pytest.fixture(scope="session")
def _redis_databases():
    return itertools.cycle(range(1, 16))


@pytest.fixture
def redis_url(valkey_url, _redis_databases):
    """URL of an empty database of its own: queues have fixed names, so a namespace is not enough for them."""
    url = valkey_url.rsplit("/", 1)[0] + f"/{next(_redis_databases)}"
    client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
    client.flushdb()
    yield url
    client.flushdb()
    client.close()


@pytest.fixture
def redis_client(redis_url):
    """A client on `redis_url`; answers are bytes."""
    with redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5) as client:
        yield client


@pytest.fixture
def client(redis_url):
    """A client on `redis_url`; answers are text."""
    with Client.from_url(redis_url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5) as made:
        yield made


@pytest.fixture
def fence(client, namespace):
    """A scheduler's records in `redis_url`, with a term made by hand."""
    return Fence.sealed(client, namespace)


@pytest.fixture
def database_url(postgres_url):
    """URI of a new, empty database; dropped after the test."""
    with database(postgres_url) as url:
        yield url


@pytest.fixture
def index_prefix(opensearch_url):
    """A prefix of index names that no other test has; indices and aliases under it are removed after the test."""
    prefix = unique("test")
    yield prefix
    with httpx.Client(base_url=opensearch_url, timeout=30) as client:
        names = [entry["index"] for entry in client.get(f"/_cat/indices/{prefix}*?format=json").json()]
        if names:
            client.delete("/" + ",".join(names)).raise_for_status()
