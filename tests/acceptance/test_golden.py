"""Retrieval on our own docs, as a first user meets it: the packaged model, OpenSearch, and the golden set."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from index.embedding.client import EmbedderClient
from tests.support.golden import DOCS, questions
from tests.support.servers import unique
from tests.support.world import world_at

ROOT = Path(__file__).parents[2]
START_SECONDS = 120  # importing torch takes 15 s on an idle machine
HITS = 5
LEAST_RECALL = 0.8


@dataclass
class Embedder:
    """What a world asks of its embedder."""

    address: str
    call_log: Path


@contextmanager
def real_embedder():
    """The embedder as it runs in production: its own process, with the packaged model."""
    with TemporaryDirectory(prefix="fb-") as short:  # the path of a Unix socket must be short
        made = Embedder(f"unix://{short}/e.sock", Path(short) / "calls.jsonl")
        code = "import sys; from pathlib import Path; from index.embedding.server import serve; "
        code += "serve(sys.argv[1], None, Path(sys.argv[2]))"
        process = subprocess.Popen([sys.executable, "-c", code, made.address, made.call_log], cwd=ROOT)
        try:
            client = EmbedderClient(made.address, 60)
            client.wait_until_ready(START_SECONDS)
            client.close()
            yield made
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def world(request, database_url, redis_url, tmp_path, monkeypatch):
    """Our docs, indexed in OpenSearch."""
    monkeypatch.setenv("OPENSEARCH_URL", request.getfixturevalue("opensearch_url"))
    with (
        real_embedder() as embedder,
        world_at(
            database_url=database_url,
            redis_url=redis_url,
            root=DOCS,
            state=tmp_path,
            embedder=embedder,
            kind="opensearch",
            prefix=request.getfixturevalue("index_prefix"),
            namespace=unique("golden"),
        ) as made,
    ):
        made.refresh_world()
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_golden_set_is_answered(world, record_property):
    documents, spans, missed = 0, 0, []
    asked = questions()
    for question in asked:
        result = world.services.search.search("acme", question.query, limit=HITS, timeout=30.0)
        assert not result.partial, result.reason
        found = any(place.answered_by(hit) for place in question.places for hit in result.hits)
        spans += found
        documents += any(place.doc_uid == hit.doc_uid for place in question.places for hit in result.hits)
        if not found:
            missed.append((question.query, [(hit.doc_uid, hit.headings[-1:]) for hit in result.hits]))
    recall, by_document = spans / len(asked), documents / len(asked)
    record_property("recall_at_5", recall)
    print(f"golden set: recall@{HITS} {recall:.3f} by span, {by_document:.3f} by document; missed: {missed}")  # noqa: T201 - the figure is what a reader of the run wants
    assert recall >= LEAST_RECALL, missed
