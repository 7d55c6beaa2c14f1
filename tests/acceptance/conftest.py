"""Worlds on real servers: the same drives on OpenSearch, on pgvector, and on the in-memory target."""

from contextlib import ExitStack

import pytest

from tests.support import fake_embedder
from tests.support.servers import database, unique
from tests.support.smokes import distributed_lock, leader_election
from tests.support.world import world_at, write_corpus

__all__ = ["distributed_lock", "leader_election"]  # fixtures, known by their names with hyphens

KINDS = ("memory", "opensearch", "pgvector")


@pytest.fixture
def corpus(tmp_path):
    """A folder of 50 pages."""
    root = tmp_path / "corpus"
    root.mkdir()
    write_corpus(root, 50)
    return root


@pytest.fixture
def make_world(request, postgres_url, redis_url, tmp_path, monkeypatch):
    """Make worlds: each has a ledger, a target and an embedder of its own; the folder is given."""
    with ExitStack() as stack:

        def make(root, kind, **options):
            name = unique("world")
            prefix = "test"
            if kind == "opensearch":
                monkeypatch.setenv("OPENSEARCH_URL", request.getfixturevalue("opensearch_url"))
                prefix = request.getfixturevalue("index_prefix") + f"-{name.rsplit('-', 1)[-1]}"
            state = tmp_path / name
            state.mkdir()
            embedder = stack.enter_context(fake_embedder.running(state / "calls.jsonl"))
            return stack.enter_context(
                world_at(
                    database_url=stack.enter_context(database(postgres_url)),
                    redis_url=redis_url,
                    root=root,
                    state=state,
                    embedder=embedder,
                    kind=kind,
                    prefix=prefix,
                    namespace=name,
                    **options,
                )
            )

        yield make


@pytest.fixture(params=KINDS)
def kind(request):
    """The kind of target."""
    return request.param


@pytest.fixture
def world(make_world, corpus, kind):
    """A world on the folder of 50 pages, indexed."""
    made = make_world(corpus, kind)
    made.refresh_world()
    return made
