"""What only a real OpenSearch can show: marks, missing indices, versions, blocks, routing, ranking."""

import json

import httpx
import pytest

from config.settings import Settings
from fencebeat.clock import ManualClock, SystemClock
from index.errors import TargetLost, TargetSick, TargetUnavailable
from index.model import ItemClass, Tombstone
from index.targets.bulk import BulkLimits
from index.targets.connection import connect
from index.targets.opensearch import OpenSearchTarget
from tests.support.documents import classes, make_doc, make_spec, vector_for, version

OK, SUPERSEDED, SICK, PERMANENT = ItemClass.OK, ItemClass.SUPERSEDED, ItemClass.TARGET_SICK, ItemClass.PERMANENT
NOW = 1_800_000_000.0


@pytest.fixture
def http(opensearch_url):
    with httpx.Client(base_url=opensearch_url, timeout=30) as client:
        yield client


@pytest.fixture
def client(opensearch_url, monkeypatch):
    monkeypatch.setenv("OPENSEARCH_URL", opensearch_url)
    client = connect(Settings())
    yield client
    client.close()


@pytest.fixture
def unopened(client, http):
    target = OpenSearchTarget(make_spec("opensearch"), client, timeout=30, clock=ManualClock(wall=NOW))
    yield target
    http.delete(f"/{target.spec.target_id}?ignore_unavailable=true")


@pytest.fixture
def target(unopened):
    unopened.open(1, fresh=True)
    return unopened


def bury(target, doc, epoch):
    return classes(target.bury([Tombstone(doc.index_id, doc.tenant_id, doc.doc_uid, version(epoch))]))


def write(target, doc, epoch):
    return classes(target.write([doc], version(epoch), epoch=epoch))


# the index and its mark


def test_the_index_is_strict_durable_and_marked(target, http):
    found = http.get(f"/{target.spec.target_id}").json()[target.spec.target_id]

    assert found["mappings"]["dynamic"] == "strict"
    assert found["mappings"]["_routing"] == {"required": True}
    assert found["settings"]["index"]["translog"]["durability"] == "request"
    assert found["mappings"]["_meta"]["fencebeat"] == {
        "target_id": target.spec.target_id,
        "incarnation": 1,
        "dimension": target.spec.dimension,
        "chunker_fp": "chunker-1",
        "model_fp": "model-1",
    }


def test_a_missing_index_that_was_open_before_is_lost_and_not_made_again(unopened, http):
    with pytest.raises(TargetLost, match="missing"):
        unopened.open(1, fresh=False)

    assert http.head(f"/{unopened.spec.target_id}").status_code == 404


def test_an_index_without_our_mark_is_lost(unopened, http):
    alias = {"aliases": {f"{unopened.spec.target_id}-w": {}}}
    http.put(f"/{unopened.spec.target_id}", json=alias).raise_for_status()

    with pytest.raises(TargetLost, match="no mark"):
        unopened.open(1, fresh=True)


def test_an_index_without_its_write_alias_is_lost(target, http):
    name = target.spec.target_id
    http.delete(f"/{name}/_alias/{name}-w").raise_for_status()

    with pytest.raises(TargetLost, match="alias"):
        target.open(1, fresh=False)


def test_another_index_behind_an_alias_of_the_same_name_is_lost(target, http):
    name = target.spec.target_id
    http.delete(f"/{name}").raise_for_status()
    http.put(f"/{name}-other", json={"aliases": {name: {}}}).raise_for_status()

    with pytest.raises(TargetLost, match="alias"):
        target.open(1, fresh=False)

    http.delete(f"/{name}-other").raise_for_status()


def test_the_mark_is_raised_with_the_incarnation_and_the_mapping_stays(target, http):
    target.open(9, fresh=False)

    mappings = http.get(f"/{target.spec.target_id}").json()[target.spec.target_id]["mappings"]
    assert mappings["_meta"]["fencebeat"]["incarnation"] == 9
    assert mappings["dynamic"] == "strict"


def test_a_write_after_the_index_was_dropped_creates_nothing(target, http):
    """A server creates a missing index by itself, without our mapping: only `require_alias` keeps it from that."""
    name = target.spec.target_id
    http.delete(f"/{name}").raise_for_status()

    assert write(target, make_doc("p"), 1) == [SICK]
    assert bury(target, make_doc("p"), 2) == [SICK]

    for missing in (name, f"{name}-w"):
        assert http.head(f"/{missing}").status_code == 404
    with pytest.raises(TargetSick):
        target.refresh()
    with pytest.raises(TargetLost):
        target.open(1, fresh=False)


# versions: the facts the protocol stands on


def test_an_equal_version_is_accepted_and_a_lower_one_is_not(target):
    doc = make_doc("p")

    assert [write(target, doc, epoch) for epoch in (5, 5, 4, 6)] == [[OK], [OK], [SUPERSEDED], [OK]]


def test_a_physical_delete_is_forgotten_and_a_tombstone_is_not(target, http):
    """D11: after index.gc_deletes a late lower version brings a deleted chunk back; a tombstone keeps its place."""
    name = target.spec.target_id
    http.put(f"/{name}/_settings", json={"index.gc_deletes": "0ms"}).raise_for_status()
    deleted, buried = make_doc("deleted"), make_doc("buried")
    target.write([deleted, buried], version(8), epoch=8)
    route = {"routing": deleted.doc_uid, "version": version(9), "version_type": "external_gte"}
    http.delete(f"/{name}/_doc/{deleted.index_id}", params=route).raise_for_status()
    bury(target, buried, 9)
    deadline = SystemClock().elapsed() + 30
    forgotten = False
    while not forgotten and SystemClock().elapsed() < deadline:
        write(target, make_doc("something new"), 8)  # a refresh forgets only where there is something to refresh
        target.refresh()
        forgotten = write(target, deleted, 8) == [OK]

    assert forgotten  # why tombstones are documents
    assert write(target, buried, 8) == [SUPERSEDED]


def test_a_tombstone_holds_no_text_and_no_vector(target, http):
    doc = make_doc("secret text")
    write(target, doc, 1)
    bury(target, doc, 2)
    target.refresh()

    source = http.get(f"/{target.spec.target_id}/_doc/{doc.index_id}", params={"routing": doc.doc_uid}).json()[
        "_source"
    ]

    assert source == {
        "tenant_id": "acme",
        "doc_uid": "guide.md",
        "dead": True,
        "epoch": 2,
        "buried_at": int(NOW),
    }


# classes of real refusals


def test_a_read_only_index_is_a_sick_target(target, http):
    """D10 (e)"""
    http.put(f"/{target.spec.target_id}/_settings", json={"index.blocks.write": True}).raise_for_status()

    results = target.write([make_doc(f"p {n}") for n in range(3)], version(1), epoch=1)

    assert classes(results) == [SICK] * 3
    assert "blocked" in results[0].reason


def test_a_closed_index_is_a_sick_target(target, http):
    http.post(f"/{target.spec.target_id}/_close").raise_for_status()

    assert write(target, make_doc("p"), 1) == [SICK]


def test_one_immense_term_and_one_zero_vector_are_refused_alone(target):
    """D10 (a)"""
    docs = [
        make_doc("good"),
        make_doc("zero", vector=vector_for("zero") * 0),
        make_doc("tenant", tenant="t" * 40_000),
    ]

    results = target.write(docs, version(1), epoch=1)

    assert classes(results) == [OK, PERMANENT, PERMANENT]
    assert "zero vector" in results[1].reason
    assert "immense term" in results[2].reason


def test_an_id_the_server_refuses_does_not_take_the_request_with_it(target):
    docs = [make_doc(f"p {n}") for n in range(9)]
    docs[4] = make_doc("p", index_id="x" * 600)

    results = target.write(docs, version(1), epoch=1)

    assert classes(results) == [OK] * 4 + [PERMANENT] + [OK] * 4


def test_a_server_that_does_not_answer_is_unavailable(monkeypatch, unused_address):
    monkeypatch.setenv("OPENSEARCH_URL", unused_address)
    client = connect(Settings())
    target = OpenSearchTarget(
        make_spec("opensearch"),
        client,
        timeout=1,
        limits=BulkLimits(stalled_requests=2, first_wait=0.001),
    )

    for call in (
        lambda: target.open(1, fresh=True),
        lambda: write(target, make_doc("p"), 1),
        target.refresh,
        lambda: list(target.scan()),
        target.write_count,
        lambda: target.search(text="p", vector=None, tenant_id="a", limit=1, filters={}, timeout=1),
    ):
        with pytest.raises(TargetUnavailable):
            call()
    client.close()


@pytest.fixture
def unused_address():
    import socket

    with socket.socket() as held:  # bound and never listening: nobody else gets the port
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


# scan


def test_a_document_under_a_wrong_routing_is_told(target, http):
    name = target.spec.target_id
    write(target, make_doc("right"), 1)
    body = {"tenant_id": "acme", "doc_uid": "guide.md", "dead": False}
    http.put(f"/{name}/_doc/stray", params={"routing": "other.md"}, json=body).raise_for_status()

    assert {row.index_id: row.routing_ok for row in target.scan()} == {
        make_doc("right").index_id: True,
        "stray": False,
    }


def test_a_scan_goes_through_its_pages_and_leaves_no_reader_behind(target, http, monkeypatch):
    monkeypatch.setattr("index.targets.opensearch.PAGE", 7)
    docs = [make_doc(f"p {n}", uid=f"{n}.md") for n in range(21)]  # the last page is full: one more request, empty
    target.write(docs, version(1), epoch=1)

    assert sorted(row.index_id for row in target.scan()) == sorted(doc.index_id for doc in docs)

    scan = target.scan()
    next(scan)
    scan.close()
    open_readers = http.get(f"/{target.spec.target_id}/_stats/search").json()["_all"]["primaries"]["search"]
    assert open_readers["point_in_time_current"] == 0


# search

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"]


@pytest.mark.parametrize("query", ["alpha beta", "zeta mu nu", "guide", "kappa kappa delta", "nothing of it"])
def test_the_order_is_the_same_with_and_without_the_servers_hybrid_query(target, client, query):
    docs = [
        make_doc(" ".join(WORDS[(n * step) % 13] for step in (1, 3, 5, 7)) + f" {n}", title=WORDS[n % 13])
        for n in range(60)
    ]
    target.write(docs, version(1), epoch=1)
    target.refresh()
    merged_here = OpenSearchTarget(target.spec, client, timeout=30, hybrid=False)

    def ask(which):
        found = which.search(text=query, vector=vector_for(query), tenant_id="acme", limit=30, filters={}, timeout=10)
        return found.hits

    theirs, ours = ask(target), ask(merged_here)

    assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-4)
    assert _order(ours) == _order(theirs)


def _order(hits):
    """Ids best first; hits of the same score in any order."""
    groups = {}
    for hit in hits[:-1]:  # the last score may be shared with hits beyond the limit
        groups.setdefault(round(hit.score, 3), set()).add(hit.index_id)
    return [groups[score] for score in sorted(groups, reverse=True)][:-1]


def test_without_the_plug_in_the_client_merges_and_remembers(target, monkeypatch):
    """A server without neural-search answers a hybrid query as recorded here."""
    from opensearchpy.exceptions import RequestError

    target.write([make_doc("alpha")], version(1), epoch=1)
    target.refresh()
    real, asked = target._client.search, []

    def without_plug_in(**request):
        asked.append(json.dumps(request["body"]))
        if "hybrid" in request["body"]["query"]:
            info = {"error": {"type": "parsing_exception", "reason": "unknown query [hybrid]"}, "status": 400}
            raise RequestError(400, "parsing_exception", info)
        return real(**request)

    monkeypatch.setattr(target._client, "search", without_plug_in)
    for _ in range(2):
        found = target.search(
            text="alpha", vector=vector_for("alpha"), tenant_id="acme", limit=5, filters={}, timeout=10
        )
        assert [hit.text for hit in found.hits] == ["alpha"]

    assert len(asked) == 1


def test_both_legs_are_filtered_inside(target):
    """A filter around the legs would let a crowd push a small tenant out of the k nearest."""
    from index.targets import query

    for leg in (
        query.word_leg("x", "acme", {"tags": "faq"})["bool"],
        query.vector_leg(vector_for("x"), "acme", {"tags": "faq"})["knn"]["vector"]["filter"]["bool"],
    ):
        assert leg["filter"] == [
            {"term": {"tenant_id": "acme"}},
            {"term": {"dead": False}},
            {"term": {"tags": "faq"}},
        ]


def test_a_time_out_on_the_server_is_told_as_partial():
    from index.targets.query import why_partial

    shards = {"total": 3, "failed": 0}
    assert why_partial({"timed_out": False, "_shards": shards}) == ""
    assert "in time" in why_partial({"timed_out": True, "_shards": shards})
    assert "1 of 3" in why_partial({"timed_out": False, "_shards": {"total": 3, "failed": 1}})
