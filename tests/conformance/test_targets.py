"""What every target promises, in one suite: memory, OpenSearch and pgvector.

A pgvector target stages, and the ledger's commit publishes; so the suite publishes through the ledger's own function.
What follows from versions in the index (superseded writes, tombstones) holds for the other two only.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from config.settings import Settings
from fencebeat.clock import ManualClock
from fencebeat.errors import ImpossibleConfiguration, Refused
from index.errors import IncarnationBehind, TargetLost
from index.ledger.migrate import upgrade
from index.ledger.pool import open_pool
from index.model import ItemClass, Meta, Tombstone
from index.targets import make_target
from index.targets.connection import connect
from index.targets.memory import MemoryTarget
from index.targets.opensearch import OpenSearchTarget
from index.targets.pgvector import PgvectorTarget
from tests.support.documents import META, classes, make_doc, make_spec, vector_for, version

OK, SUPERSEDED = ItemClass.OK, ItemClass.SUPERSEDED
NOW = 1_800_000_000.0


class TargetConformance:
    """Subclass it with a fixture `target` (opened fresh at incarnation 1) and a way to `publish`."""

    def publish(self, target, docs, epoch):
        """Make `docs` what readers see of their documents."""
        results = target.write(docs, version(epoch), epoch=epoch)
        target.refresh()
        return results

    def reopen(self, target, spec):
        """Another process's target for the same index."""
        raise NotImplementedError

    def search(self, target, text, *, tenant="acme", limit=10, vector=True, filters=None):
        near = vector_for(text) if vector else None
        return target.search(
            text=text, vector=near, tenant_id=tenant, limit=limit, filters=filters or {}, timeout=10
        ).hits

    def test_what_was_published_is_found_whole(self, target):
        doc = make_doc("install the package", tenant="acme", uid="a.md", source="docs")

        assert classes(self.publish(target, [doc], 1)) == [OK]

        (hit,) = self.search(target, "install the package")
        assert (hit.index_id, hit.tenant_id, hit.doc_uid, hit.source_id) == (doc.index_id, "acme", "a.md", "docs")
        assert (hit.title, hit.headings, hit.text) == (doc.title, doc.headings, doc.text)
        assert hit.meta == {"display_name": META.display_name, "url": META.url, "acl": META.acl, "tags": META.tags}

    def test_results_are_in_the_order_of_the_documents(self, target):
        docs = [make_doc(f"paragraph {n}", uid=f"{n % 3}.md") for n in range(40)]

        results = target.write(docs, version(1), epoch=1)

        assert [result.index_id for result in results] == [doc.index_id for doc in docs]

    def test_the_same_write_again_changes_nothing(self, target):
        docs = [make_doc(f"paragraph {n}") for n in range(3)]
        self.publish(target, docs, 1)
        before = sorted(target.scan(), key=lambda row: row.index_id)

        assert classes(self.publish(target, docs, 1)) == [OK] * 3

        assert sorted(target.scan(), key=lambda row: row.index_id) == before

    def test_an_id_given_twice_is_one_document(self, target):
        doc = make_doc("said twice")

        assert classes(self.publish(target, [doc, doc], 1)) == [OK, OK]

        assert [row.index_id for row in target.scan()] == [doc.index_id]

    def test_a_tenant_finds_only_its_own(self, target):
        self.publish(target, [make_doc("our secret plan", tenant="acme", uid="a.md")], 1)
        self.publish(target, [make_doc("our secret plan", tenant="globex", uid="b.md")], 1)

        for tenant, uid in (("acme", "a.md"), ("globex", "b.md")):
            hits = self.search(target, "our secret plan", tenant=tenant)
            assert [(hit.tenant_id, hit.doc_uid) for hit in hits] == [(tenant, uid)]
        assert self.search(target, "our secret plan", tenant="nobody") == []

    def test_a_tenant_of_one_percent_gets_all_its_hits(self, target):
        crowd = [make_doc(f"release notes {n}", tenant="crowd", uid=f"{n // 100}.md") for n in range(990)]
        few = [make_doc(f"release notes {n}", tenant="few", uid="few.md") for n in range(10)]
        self.publish(target, crowd, 1)
        self.publish(target, few, 1)

        # by vectors alone: no word of the query is in any text
        near = vector_for("release notes 3")
        hits = target.search(text="xyzzy", vector=near, tenant_id="few", limit=10, filters={}, timeout=10).hits

        assert {hit.index_id for hit in hits} == {doc.index_id for doc in few}
        assert hits[0].text == "release notes 3"

    def test_words_alone_answer_where_there_is_no_vector(self, target):
        self.publish(target, [make_doc("rotate the certificates"), make_doc("drink the coffee")], 1)

        hits = self.search(target, "certificates", vector=False)

        assert [hit.text for hit in hits] == ["rotate the certificates"]

    @pytest.mark.parametrize(
        ("name", "value"), [("source_id", "wiki"), ("doc_uid", "w.md"), ("acl", "boss"), ("tags", "faq")]
    )
    def test_filters_narrow(self, target, name, value):
        boss = Meta("Wiki", acl=("boss", "staff"), tags=("faq",))
        self.publish(target, [make_doc("vacation days", uid="d.md", source="docs")], 1)
        self.publish(target, [make_doc("vacation days", uid="w.md", source="wiki", meta=boss)], 1)

        hits = self.search(target, "vacation days", filters={name: value})

        assert [hit.doc_uid for hit in hits] == ["w.md"]

    def test_at_most_the_hits_that_were_asked_for_best_first(self, target):
        self.publish(target, [make_doc(f"step {n}") for n in range(20)], 1)

        hits = self.search(target, "step 7", limit=5)

        assert len(hits) == 5
        assert hits[0].text == "step 7"
        assert all(one.score >= other.score for one, other in pairwise(hits))

    @pytest.mark.parametrize("request_", [{"tenant": ""}, {"limit": 0}, {"limit": 101}, {"filters": {"x": "y"}}])
    def test_a_search_that_cannot_be_meant_is_refused(self, target, request_):
        with pytest.raises(Refused):
            self.search(target, "anything", **request_)

    def test_vectors_of_another_dimension_mean_a_sick_target(self, target):
        docs = [make_doc(f"p {n}", vector=np.ones(3, np.float32)) for n in range(2)]

        results = target.write(docs, version(1), epoch=1)

        assert classes(results) == [ItemClass.TARGET_SICK] * 2
        assert "dimension" in results[0].reason

    def test_one_vector_of_another_dimension_is_that_documents_fault(self, target):
        docs = [make_doc("good"), make_doc("bad", vector=np.ones(3, np.float32))]

        assert classes(target.write(docs, version(1), epoch=1)) == [OK, ItemClass.PERMANENT]

    def test_a_scan_reads_every_document_once_and_one_tenant_where_asked(self, target):
        ours = [make_doc(f"p {n}", tenant="acme") for n in range(5)]
        theirs = [make_doc(f"p {n}", tenant="globex") for n in range(3)]
        self.publish(target, ours, 1)
        self.publish(target, theirs, 1)

        rows = list(target.scan())

        assert sorted(row.index_id for row in rows) == sorted(doc.index_id for doc in ours + theirs)
        assert all(row.routing_ok and not row.dead for row in rows)
        assert {row.index_id for row in target.scan("globex")} == {doc.index_id for doc in theirs}

    def test_nothing_is_sent_where_the_hook_refuses(self, target):
        def refuse():
            raise Refused(why="the switch is on")

        with pytest.raises(Refused):
            target.write([make_doc("p")], version(1), epoch=1, before_request=refuse)

        self.publish(target, [], 1)
        assert list(target.scan()) == []

    def test_opening_again_finds_the_mark(self, target):
        other = self.reopen(target, target.spec)

        other.open(1, fresh=False)
        other.open(1, fresh=True)  # a crash may lie between the creation and its record
        other.open(2, fresh=False)

        with pytest.raises(IncarnationBehind, match="2"):
            other.open(1, fresh=False)

    @pytest.mark.parametrize("change", [{"dimension": 16}, {"model_fp": "model-2"}, {"chunker_fp": "chunker-2"}])
    def test_an_index_made_for_something_else_is_not_ours(self, target, change):
        (name,) = change
        other = self.reopen(target, replace(target.spec, **change))

        with pytest.raises(TargetLost, match=name):
            other.open(1, fresh=True)


class VersionConformance(TargetConformance):
    """Where the index itself refuses older versions."""

    def clock_of(self, target):
        """The manual clock the target was made with."""
        return target._clock

    def bury(self, target, doc, epoch):
        results = target.bury([Tombstone(doc.index_id, doc.tenant_id, doc.doc_uid, version(epoch))])
        target.refresh()
        return results

    def test_a_lower_version_is_superseded_item_by_item(self, target):
        old, new = make_doc("old"), make_doc("new")
        target.write([old], version(5), epoch=5)

        results = target.write([old, new], version(4), epoch=4)

        assert classes(results) == [SUPERSEDED, OK]

    def test_an_incarnation_outranks_every_epoch_before_it(self, target):
        doc = make_doc("p")
        target.write([doc], version(2**31, incarnation=1), epoch=2**31)

        assert classes(target.write([doc], version(1, incarnation=2), epoch=1)) == [OK]
        assert classes(target.write([doc], version(2**32 - 1, incarnation=1), epoch=2**32 - 1)) == [SUPERSEDED]

    def test_writes_are_seen_after_a_refresh_only(self, target):
        target.write([make_doc("p")], version(1), epoch=1)
        assert self.search(target, "p") == []

        target.refresh()
        assert len(self.search(target, "p")) == 1

    def test_a_tombstone_is_found_by_no_search_and_seen_by_a_scan(self, target):
        doc = make_doc("gone soon")
        self.publish(target, [doc], 1)

        assert classes(self.bury(target, doc, 2)) == [OK]

        assert self.search(target, "gone soon") == []
        assert self.search(target, "gone soon", vector=False) == []
        (row,) = target.scan()
        assert (row.index_id, row.doc_uid, row.version, row.dead) == (doc.index_id, doc.doc_uid, version(2), True)
        assert row.routing_ok

    def test_a_late_lower_version_does_not_wake_the_dead(self, target):
        doc = make_doc("zombie")
        self.publish(target, [doc], 8)
        self.bury(target, doc, 9)

        assert classes(target.write([doc], version(8), epoch=8)) == [SUPERSEDED]

        target.refresh()
        assert self.search(target, "zombie") == []

    def test_an_attempt_that_wrote_the_id_anew_keeps_it(self, target):
        doc = make_doc("back again")
        self.publish(target, [doc], 3)

        assert classes(self.bury(target, doc, 2)) == [SUPERSEDED]

        assert len(self.search(target, "back again")) == 1

    def test_only_tombstones_of_that_age_are_purged(self, target):
        old, young, live = make_doc("old"), make_doc("young"), make_doc("live")
        self.publish(target, [old, young, live], 1)
        self.bury(target, old, 2)
        self.clock_of(target).advance(3600)
        self.bury(target, young, 2)

        assert target.purge(1800) == 1

        assert {row.index_id: row.dead for row in target.scan()} == {young.index_id: True, live.index_id: False}

    def test_a_purge_does_not_take_what_was_written_anew_meanwhile(self, target):
        doc = make_doc("p")
        self.publish(target, [doc], 1)
        self.bury(target, doc, 2)
        self.clock_of(target).advance(3600)

        def rewrite():
            target.write([doc], version(3), epoch=3)

        assert target.purge(1800, before_request=rewrite) == 0

        assert [(row.version, row.dead) for row in target.scan()] == [(version(3), False)]

    def test_the_store_counts_its_writes(self, target):
        before = target.write_count()

        target.write([make_doc("a"), make_doc("b")], version(2), epoch=2)
        target.write([make_doc("a")], version(1), epoch=1)  # superseded: nothing was written

        assert target.write_count() - before == 2


class TestMemoryTarget(VersionConformance):
    @pytest.fixture
    def target(self):
        target = MemoryTarget(make_spec("memory"), clock=ManualClock(wall=NOW))
        target.open(1, fresh=True)
        return target

    def reopen(self, target, spec):
        target.spec = spec
        return target


class TestOpenSearchTarget(VersionConformance):
    hybrid = True

    @pytest.fixture
    def target(self, opensearch_url, monkeypatch):
        monkeypatch.setenv("OPENSEARCH_URL", opensearch_url)
        settings = Settings()
        client = connect(settings)
        target = OpenSearchTarget(
            make_spec("opensearch"), client, timeout=30, clock=ManualClock(wall=NOW), hybrid=self.hybrid
        )
        target.open(1, fresh=True)
        yield target
        client.indices.delete(index=target.spec.target_id, request_timeout=30)
        client.close()

    def reopen(self, target, spec):
        return OpenSearchTarget(spec, target._client, timeout=30, hybrid=self.hybrid)


class TestOpenSearchTargetMergedByTheClient(TestOpenSearchTarget):
    hybrid = False


class TestPgvectorTarget(TargetConformance):
    @pytest.fixture
    def target(self, database_url):
        upgrade(database_url)
        self.owner = psycopg.connect(database_url, autocommit=True)
        pool = open_pool(database_url)
        spec = make_spec("pgvector")
        target = make_target(spec, Settings(), pool)
        self.owner.execute(
            "INSERT INTO target (target_id, kind, dimension, chunker_fp, model_fp, incarnation)"
            " VALUES (%s, 'pgvector', %s, 'c', 'm', 1)",
            (spec.target_id, spec.dimension),
        )
        target.open(1, fresh=True)
        yield target
        pool.close()
        self.owner.close()

    def reopen(self, target, spec):
        return PgvectorTarget(spec, target._pool, timeout=30)

    def publish(self, target, docs, epoch):
        results = target.write(docs, version(epoch), epoch=epoch)
        swap(self.owner, target.spec.target_id, docs, epoch)
        return results

    def test_a_superuser_is_refused(self, database_url, target):
        superuser = ConnectionPool(database_url, min_size=0, max_size=1, kwargs={"autocommit": True}, open=False)
        with superuser, pytest.raises(ImpossibleConfiguration, match="superuser"):
            PgvectorTarget(target.spec, superuser, timeout=30).open(1, fresh=False)


def swap(conn, target_id, docs, epoch):
    """Publish staged chunks as the ledger's commit does: head with meta, and the swap, in one transaction."""
    heads = {}
    for doc in docs:
        heads.setdefault((doc.tenant_id, doc.doc_uid, doc.source_id), (doc.meta, []))[1].append(doc.index_id)
    for (tenant, uid, source), (meta, ids) in heads.items():
        facts = {"display_name": meta.display_name, "url": meta.url, "acl": list(meta.acl), "tags": list(meta.tags)}
        with conn.transaction():
            conn.execute(
                "INSERT INTO doc_head (tenant_id, target_id, doc_uid, source_id, meta) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (tenant_id, target_id, doc_uid) DO UPDATE SET meta = excluded.meta",
                (tenant, target_id, uid, source, Jsonb(facts)),
            )
            conn.execute("SELECT pgvector_swap(%s, %s, %s, %s, %s)", (target_id, tenant, uid, epoch, ids))
