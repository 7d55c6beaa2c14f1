"""The two smoke runs as fixtures: each runs once a session, on servers of its own, and gives what it has seen."""

import pytest

from ops import smoke
from ops.services import ServerMissing
from tests.support.servers import absent, in_ci
from tests.support.world_fixtures import corpus, kind, make_world, world

__all__ = ["corpus", "kind", "make_world", "world"]


def passed(name):
    try:
        result = smoke.run(name)
    except ServerMissing as missing:
        absent(str(missing))
    if in_ci() and result.facts["target"] != "opensearch":
        pytest.fail("CI needs every server, and OpenSearch did not start.", pytrace=False)
    return result


@pytest.fixture(scope="session", name="rag-scheduled-job-leader-election-smoke")
def leader_election():
    """Three beats, ticks each second, the leader killed and frozen; searches meanwhile."""
    return passed("rag-scheduled-job-leader-election-smoke")


@pytest.fixture(scope="session", name="rag-distributed-lock-redis-etcd-smoke")
def distributed_lock():
    """Two workers race for one document, on the Redis lock and on the etcd lock."""
    return passed("rag-distributed-lock-redis-etcd-smoke")
