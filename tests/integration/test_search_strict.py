"""Strict search with a real ledger and real targets: one committed version of each document, at every moment."""

from uuid import uuid4

import pytest

from config.settings import Settings
from index.ledger import Ledger
from index.ledger.migrate import upgrade
from index.ledger.pool import open_pool
from index.model import ManifestEntry, Tombstone
from index.search import Search
from index.targets import make_target
from tests.support.documents import META, make_doc, make_spec, vector_for


class Embedder:
    fingerprint, dimension = "model-1", 8

    def embed(self, inputs):
        return [vector_for(text) for text in inputs]


class Documents:
    """Brings documents through the protocol's steps, one by one."""

    def __init__(self, ledger, target):
        self.ledger, self.target = ledger, target

    def claim(self, uid, tenant):
        self.ledger.record_listing(tenant, "docs", complete=True, items=1, problems=(), pending_deletes=0)
        self.ledger.mark_dirty(tenant, "docs", self.target.spec.target_id, [(uid, uuid4().hex)])
        (attempt,) = self.ledger.acquire(self.target.spec.target_id, 1, 60)
        return attempt

    def write(self, attempt, docs):
        self.ledger.stage(attempt, [doc.index_id for doc in docs])
        self.target.write(docs, attempt.version, epoch=attempt.epoch)
        self.target.refresh()

    def commit(self, attempt, docs):
        manifest, at = [], 0
        for doc in docs:
            manifest.append(ManifestEntry(doc.index_id, at, at + len(doc.text)))
            at += len(doc.text) + 1
        state = self.ledger.commit(
            attempt, version="v", content_hash=b"c", meta_hash=b"m", meta=META, manifest=manifest, absent=not docs
        )
        assert state == "committed"

    def publish(self, *texts, uid="a.md", tenant="acme"):
        docs = [make_doc(text, uid=uid, tenant=tenant) for text in texts]
        attempt = self.claim(uid, tenant)
        self.write(attempt, docs)
        self.commit(attempt, docs)
        return docs

    def collect(self):
        for garbage in self.ledger.garbage(self.target.spec.target_id):
            stones = [Tombstone(i, garbage.tenant_id, garbage.doc_uid, garbage.version) for i in garbage.ids]
            self.target.bury(stones)
            self.ledger.collected(self.target.spec.target_id, garbage, garbage.ids)
        self.target.refresh()


@pytest.fixture(params=["opensearch", "pgvector"])
def target(request, database_url, monkeypatch):
    upgrade(database_url)
    if request.param == "opensearch":
        monkeypatch.setenv("OPENSEARCH_URL", request.getfixturevalue("opensearch_url"))
    with open_pool(database_url) as pool:
        target = make_target(make_spec(request.param), Settings(), pool)
        target.open(Ledger(pool).register_target(target.spec).incarnation, fresh=True)
        target.pool = pool
        yield target
    if request.param == "opensearch":
        target._client.indices.delete(index=target.spec.target_id, request_timeout=30)
        target._client.close()


@pytest.fixture
def ledger(target):
    return Ledger(target.pool)


@pytest.fixture
def documents(ledger, target):
    return Documents(ledger, target)


@pytest.fixture
def search(target, ledger):
    return Search(target, ledger, Embedder())


def texts(result):
    return sorted(hit.text for hit in result.hits)


def test_hits_cite_their_place(search, documents):
    documents.publish("install the package", "configure the server")

    result = search.search("acme", "configure the server", limit=1, timeout=30)

    (hit,) = result.hits
    assert (hit.doc_uid, hit.text, hit.start, hit.end) == ("a.md", "configure the server", 20, 40)
    assert not result.partial


def test_the_old_version_is_served_whole_until_the_commit_and_the_new_one_from_then_on(search, documents):
    old = documents.publish("red apple", "red pear")
    new = [old[0], make_doc("red plum", uid="a.md")]

    def seen():
        result = search.search("acme", "red", timeout=30)
        assert not result.partial
        return texts(result)

    attempt = documents.claim("a.md", "acme")
    assert seen() == ["red apple", "red pear"]
    documents.write(attempt, new)
    assert seen() == ["red apple", "red pear"]
    documents.commit(attempt, new)
    assert seen() == ["red apple", "red plum"]
    documents.collect()
    assert seen() == ["red apple", "red plum"]


def test_a_commit_between_search_and_heads_is_searched_again(search, documents, target, monkeypatch):
    documents.publish("red apple")
    real, searches = target.search, []

    def overtaken(**request):
        found = real(**request)
        searches.append(len(found.hits))
        if len(searches) == 1:
            documents.publish("red plum")
        return found

    monkeypatch.setattr(target, "search", overtaken)

    result = search.search("acme", "red", limit=1, timeout=30)

    assert texts(result) == ["red plum"]
    assert not result.partial
    assert len(searches) == 2


def test_a_deleted_document_is_gone_with_its_commit(search, documents):
    documents.publish("red apple")

    attempt = documents.claim("a.md", "acme")
    documents.commit(attempt, [])

    assert search.search("acme", "red apple", timeout=30).hits == ()


def test_equal_text_of_two_tenants_stays_apart(search, documents):
    documents.publish("the same paragraph", uid="a.md", tenant="acme")
    documents.publish("the same paragraph", uid="b.md", tenant="globex")

    assert [hit.doc_uid for hit in search.search("acme", "the same paragraph", timeout=30).hits] == ["a.md"]
    assert [hit.doc_uid for hit in search.search("globex", "the same paragraph", timeout=30).hits] == ["b.md"]
    assert search.search("nobody", "the same paragraph", timeout=30).hits == ()
