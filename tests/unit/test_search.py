"""Strict search against a target in memory and a ledger whose answers are scripted."""

import threading
from dataclasses import dataclass

import pytest

from fencebeat.clock import ManualClock
from fencebeat.errors import Refused, StoreUnreachable
from index.errors import EmbedderUnavailable, TargetUnavailable
from index.model import Found, ManifestEntry
from index.search import Search
from index.targets.memory import MemoryTarget
from tests.support.documents import make_doc, make_spec, vector_for, version


@dataclass
class View:
    manifest: tuple[ManifestEntry, ...]
    unseen: bool = False


class Ledger:
    """Heads by uid; `unseen_for`: so many readings find a commit that the snapshot does not have."""

    def __init__(self):
        self.heads = {}
        self.unseen_for = 0
        self.snapshots = 0
        self.before_read = lambda: None

    def commit(self, *docs):
        for doc in docs:
            self.heads.setdefault(doc.doc_uid, []).append(ManifestEntry(doc.index_id, 100, 100 + len(doc.text)))

    def snapshot(self):
        self.snapshots += 1
        return str(self.snapshots)

    def read_heads(self, tenant_id, target_id, uids, snapshot):
        assert snapshot == str(self.snapshots)
        self.before_read()
        unseen = self.unseen_for > 0
        self.unseen_for -= 1
        return {uid: View(tuple(self.heads[uid]), unseen) for uid in uids if uid in self.heads}


class Embedder:
    fingerprint, dimension = "model-1", 8

    def __init__(self):
        self.calls = []
        self.do = lambda: None

    def embed(self, inputs):
        self.calls.append(list(inputs))
        self.do()
        return [vector_for(text) for text in inputs]


@pytest.fixture
def target():
    target = MemoryTarget(make_spec("memory"))
    target.open(1, fresh=True)
    return target


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def embedder():
    return Embedder()


@pytest.fixture
def search(target, ledger, embedder):
    return Search(target, ledger, embedder)


def publish(target, ledger, *docs):
    target.write(docs, version(1), epoch=1)
    target.refresh()
    ledger.commit(*docs)


def test_a_hit_carries_the_place_its_manifest_gives_it(search, target, ledger):
    doc = make_doc("rotate the keys", uid="keys.md")
    publish(target, ledger, doc)

    result = search.search("acme", "rotate the keys")

    (hit,) = result.hits
    assert (hit.doc_uid, hit.source_id, hit.title, hit.headings) == ("keys.md", "docs", doc.title, doc.headings)
    assert (hit.text, hit.start, hit.end) == ("rotate the keys", 100, 115)
    assert (result.partial, result.reason) == (False, "")
    assert result.took_ms > 0


def test_what_is_in_no_manifest_is_not_shown_and_is_no_reason_to_repeat(search, target, ledger):
    old, new = make_doc("the old text"), make_doc("the new text")
    target.write([old, new], version(1), epoch=1)
    target.refresh()
    ledger.commit(new)

    result = search.search("acme", "the text")

    assert [hit.text for hit in result.hits] == ["the new text"]
    assert not result.partial
    assert ledger.snapshots == 1


def test_a_document_without_a_head_is_not_shown(search, target):
    target.write([make_doc("never committed")], version(1), epoch=1)
    target.refresh()

    assert search.search("acme", "never committed").hits == ()


def test_dropped_hits_do_not_crowd_out_the_rest(search, target, ledger):
    waste = [make_doc(f"status report {n}", uid="waste.md") for n in range(60)]
    good = make_doc("status of something", uid="good.md")
    target.write(waste, version(1), epoch=1)
    publish(target, ledger, good)

    result = search.search("acme", "status report", limit=3)

    assert [hit.doc_uid for hit in result.hits] == ["good.md"]


def test_a_commit_during_the_search_is_searched_again(search, target, ledger, embedder):
    publish(target, ledger, make_doc("p"))
    ledger.unseen_for = 2

    result = search.search("acme", "p", limit=1)

    assert len(result.hits) == 1
    assert not result.partial
    assert ledger.snapshots == 3
    assert embedder.calls == [["p"]]


def test_commits_without_end_make_it_partial(search, target, ledger):
    publish(target, ledger, make_doc("p"))
    ledger.unseen_for = 99

    result = search.search("acme", "p", limit=1)

    assert result.partial
    assert "committed" in result.reason
    assert ledger.snapshots == 3


@pytest.mark.parametrize("tenant", ["", None])
def test_no_tenant_no_answer(search, embedder, tenant):
    with pytest.raises(Refused, match="tenant"):
        search.search(tenant, "p")

    assert embedder.calls == []


def test_a_target_that_gives_another_tenants_hit_shows_it_to_nobody(search, target, ledger, monkeypatch):
    publish(target, ledger, make_doc("theirs", tenant="globex"))
    theirs = target.search(text="theirs", vector=None, tenant_id="globex", limit=9, filters={}, timeout=1)
    assert len(theirs.hits) == 1
    monkeypatch.setattr(target, "search", lambda **_: theirs)

    assert search.search("acme", "theirs").hits == ()


def test_what_the_target_calls_partial_is_partial(search, target, ledger, monkeypatch):
    monkeypatch.setattr(target, "search", lambda **_: Found([], partial=True, reason="1 of 2 shards did not answer"))

    result = search.search("acme", "p")

    assert (result.partial, result.reason) == (True, "1 of 2 shards did not answer")


def test_without_an_embedder_words_answer(search, target, ledger, embedder):
    publish(target, ledger, make_doc("rotate the keys"))

    def down():
        raise EmbedderUnavailable(address="unix:///x", why="refused")

    embedder.do = down

    result = search.search("acme", "keys")

    assert [hit.text for hit in result.hits] == ["rotate the keys"]
    assert result.partial
    assert "words alone" in result.reason


def test_a_late_embedder_does_not_make_the_search_late(search, target, ledger, embedder):
    publish(target, ledger, make_doc("rotate the keys"))
    freed = threading.Event()
    embedder.do = lambda: freed.wait(60)

    result = search.search("acme", "keys", timeout=1.0)
    freed.set()

    assert [hit.text for hit in result.hits] == ["rotate the keys"]
    assert "late" in result.reason
    assert result.took_ms < 1500


def test_searches_behind_a_stuck_embedder_do_not_pile_up(search, target, ledger, embedder):
    freed = threading.Event()
    embedder.do = lambda: freed.wait(60)

    reasons = [search.search("acme", "keys", timeout=0.05).reason for _ in range(10)]
    freed.set()

    assert len(embedder.calls) == 8
    assert all("late" in reason for reason in reasons[:8])
    assert all("busy" in reason for reason in reasons[8:])


@pytest.mark.parametrize("step", ["snapshot", "read_heads"])
def test_the_deadline_covers_the_ledger(search, target, ledger, monkeypatch, step):
    publish(target, ledger, make_doc("p"))
    freed = threading.Event()
    monkeypatch.setattr(ledger, step, lambda *_: freed.wait(60))

    result = search.search("acme", "p", timeout=0.3)
    freed.set()

    assert result.hits == ()
    assert result.partial
    assert "reading the ledger" in result.reason


def test_the_target_is_told_what_is_left_of_the_deadline(target, ledger, embedder, monkeypatch):
    clock = ManualClock()
    told = []

    def ask(**request):
        told.append(request["timeout"])
        return Found([])

    monkeypatch.setattr(target, "search", ask)
    embedder.do = lambda: clock.advance(0.5)

    Search(target, ledger, embedder, clock=clock).search("acme", "p", timeout=2.0)

    assert told[0] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("target", TargetUnavailable(target="t", why="down")),
        ("ledger", StoreUnreachable(store="Postgres", seconds=2, why="down", address="x")),
    ],
)
def test_a_store_that_fails_in_time_is_an_error_and_not_an_empty_answer(target, ledger, monkeypatch, broken, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(*((target, "search") if broken == "target" else (ledger, "snapshot")), fail)

    with pytest.raises(type(error)):
        Search(target, ledger, Embedder()).search("acme", "p", timeout=30)


def test_a_store_that_fails_at_the_deadline_is_out_of_time(target, ledger, embedder, monkeypatch):
    clock = ManualClock()

    def fail(**_):
        clock.advance(5)
        raise TargetUnavailable(target="t", why="no answer in time")

    monkeypatch.setattr(target, "search", fail)

    result = Search(target, ledger, embedder, clock=clock).search("acme", "p", timeout=2.0)

    assert result.partial
    assert "the target" in result.reason


def test_what_was_certain_at_the_deadline_is_given(target, ledger, embedder):
    clock = ManualClock()
    publish(target, ledger, make_doc("p"))
    ledger.unseen_for = 1
    ledger.before_read = lambda: clock.advance(2.5)

    result = Search(target, ledger, embedder, clock=clock).search("acme", "p", limit=1, timeout=2.0)

    assert len(result.hits) == 1
    assert result.partial


def test_a_deeper_search_that_is_late_leaves_what_the_first_one_found(target, ledger, embedder):
    clock = ManualClock()
    waste = [make_doc(f"status report {n}", uid="waste.md") for n in range(60)]
    target.write(waste, version(1), epoch=1)
    publish(target, ledger, make_doc("status report", uid="good.md"))
    ledger.before_read = lambda: clock.advance(2.5)

    result = Search(target, ledger, embedder, clock=clock).search("acme", "status report", limit=3, timeout=2.0)

    assert [hit.doc_uid for hit in result.hits] == ["good.md"]
    assert result.partial
    assert "deeper" in result.reason
