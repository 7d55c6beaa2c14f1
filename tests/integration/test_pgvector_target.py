"""What only a real Postgres can show: row-level security, the staged swap, the index under filters, VACUUM."""

import threading
from dataclasses import replace
from functools import partial
from uuid import uuid4

import numpy as np
import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier

from index.errors import TargetLost, TargetSick, TargetUnavailable
from index.ledger import Ledger
from index.ledger.migrate import upgrade
from index.ledger.pool import app_conninfo, open_pool
from index.model import ItemClass, ManifestEntry, Meta
from index.targets.pgvector import PgvectorTarget
from tests.support.documents import META, classes, make_doc, make_spec, vector_for, version

OK, SICK, PERMANENT = ItemClass.OK, ItemClass.TARGET_SICK, ItemClass.PERMANENT


@pytest.fixture
def url(database_url):
    upgrade(database_url)
    return database_url


@pytest.fixture
def owner(url):
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


@pytest.fixture
def app(url):
    with psycopg.connect(app_conninfo(url), autocommit=True) as conn:
        yield conn


@pytest.fixture
def pool(url):
    pool = open_pool(url, size=12)
    yield pool
    pool.close()


@pytest.fixture
def ledger(pool):
    return Ledger(pool)


@pytest.fixture
def target(pool, ledger):
    target = PgvectorTarget(make_spec("pgvector"), pool, timeout=30)
    ledger.register_target(target.spec)
    target.open(ledger.register_target(target.spec).incarnation, fresh=True)
    return target


class Publisher:
    """Brings documents through the ledger's own steps: mark, claim, stage, write, commit."""

    def __init__(self, ledger, target):
        self.ledger, self.target = ledger, target

    def claim(self, docs):
        (key,) = {(doc.tenant_id, doc.source_id, doc.doc_uid) for doc in docs}
        tenant, source, uid = key
        self.ledger.record_listing(tenant, source, complete=True, items=1, problems=(), pending_deletes=0)
        self.ledger.mark_dirty(tenant, source, self.target.spec.target_id, [(uid, uuid4().hex)])
        (attempt,) = self.ledger.acquire(self.target.spec.target_id, 1, 60)
        return attempt

    def write(self, attempt, docs):
        self.ledger.stage(attempt, [doc.index_id for doc in docs])
        return self.target.write(docs, attempt.version, epoch=attempt.epoch)

    def commit(self, attempt, docs, meta=META):
        return self.ledger.commit(
            attempt,
            version="v",
            content_hash=b"c",
            meta_hash=b"m",
            meta=meta,
            manifest=[ManifestEntry(doc.index_id, 0, len(doc.text)) for doc in docs],
        )

    def publish(self, docs, meta=META):
        attempt = self.claim(docs)
        assert set(classes(self.write(attempt, docs))) == {OK}
        assert self.commit(attempt, docs, meta) == "committed"


@pytest.fixture
def publisher(ledger, target):
    return Publisher(ledger, target)


def table_of(conn, target):
    return conn.execute("SELECT pgvector_table(%s)", (target.spec.target_id,)).fetchone()[0]


def found(target, text, tenant="acme", **filters):
    hits = target.search(
        text=text, vector=vector_for(text), tenant_id=tenant, limit=50, filters=filters, timeout=10
    ).hits
    return [hit.text for hit in hits]


# tenants


def test_the_role_of_the_application_is_bound_by_row_level_security(app, owner, target):
    role = app.execute("SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
    table = owner.execute(
        "SELECT relrowsecurity, relforcerowsecurity, pg_get_userbyid(relowner) FROM pg_class WHERE relname = %s",
        (table_of(owner, target),),
    ).fetchone()

    assert role == ("fencebeat_app", False, False)
    assert table[:2] == (True, True)
    assert table[2] != "fencebeat_app"


def test_the_database_itself_shows_one_tenant_only(app, target, publisher):
    publisher.publish([make_doc("ours", tenant="acme")])
    publisher.publish([make_doc("theirs", tenant="globex")])
    everything = SQL("SELECT body FROM {}").format(Identifier(table_of(app, target)))

    assert app.execute(everything).fetchall() == []  # no tenant named: nothing
    for tenant, body in (("acme", "ours"), ("globex", "theirs")):
        with app.transaction():
            app.execute("SELECT set_config('fencebeat.tenant', %s, true)", (tenant,))
            assert app.execute(everything).fetchall() == [(body,)]
    assert app.execute(everything).fetchall() == []  # the setting ended with its transaction


def test_the_application_can_change_no_row_past_the_functions(app, target, publisher):
    publisher.publish([make_doc("ours")])
    table = Identifier(table_of(app, target))

    for statement in (
        SQL("DELETE FROM {}").format(table),
        SQL("UPDATE {} SET body = 'x'").format(table),
        SQL("DROP TABLE {}").format(table),
        SQL("SELECT * FROM pgvector_staged"),
    ):
        with pytest.raises(InsufficientPrivilege):
            app.execute(statement)


def test_a_search_leaves_no_tenant_behind_on_its_connection(url, target, publisher):
    publisher.publish([make_doc("ours")])

    with open_pool(url, size=1) as only:
        assert found(PgvectorTarget(target.spec, only, timeout=30), "ours") == ["ours"]

        with only.connection() as conn:
            assert not conn.execute("SELECT current_setting('fencebeat.tenant', true)").fetchone()[0]


# the table and its mark


def test_a_dropped_table_is_lost_and_not_made_again(target, owner):
    owner.execute(SQL("DROP TABLE {}").format(Identifier(table_of(owner, target))))

    with pytest.raises(TargetLost, match="missing"):
        target.open(10**9, fresh=False)
    with pytest.raises(TargetSick):
        found(target, "p")


def test_a_table_without_our_mark_is_lost(target, owner):
    owner.execute(SQL("COMMENT ON TABLE {} IS 'mine'").format(Identifier(table_of(owner, target))))

    with pytest.raises(TargetLost, match="mark"):
        target.open(10**9, fresh=True)


def test_targets_with_names_that_look_alike_or_odd_have_tables_of_their_own(owner, target, pool):
    names = ["a-b", "a_b", 'a"; DROP TABLE doc_head; --', "x" * 200, "x" * 201]
    for name in names:
        spec = replace(target.spec, target_id=name)
        PgvectorTarget(spec, pool, timeout=30).open(1, fresh=True)

    tables = owner.execute(
        "SELECT count(DISTINCT pgvector_table(n)), count(to_regclass(quote_ident(pgvector_table(n))))"
        " FROM unnest(%s::text[]) n",
        (names,),
    ).fetchone()
    assert tables == (5, 5)


# stage and swap


def test_staged_chunks_are_seen_from_the_commit_on(target, publisher):
    old = [make_doc("old text"), make_doc("kept text")]
    publisher.publish(old)
    new = [make_doc("new text"), old[1]]
    attempt = publisher.claim(new)
    publisher.write(attempt, new)
    assert sorted(found(target, "text")) == ["kept text", "old text"]

    publisher.commit(attempt, new)

    assert sorted(found(target, "text")) == ["kept text", "new text"]
    assert {row.index_id for row in target.scan()} == {doc.index_id for doc in new}


def test_both_legs_of_a_search_see_one_version(target, publisher, monkeypatch):
    publisher.publish([make_doc("old text")])
    real = target._vector_leg

    def overtaken(*args):
        publisher.publish([make_doc("new text")])
        return real(*args)

    monkeypatch.setattr(target, "_vector_leg", overtaken)

    assert found(target, "text") == ["old text"]


def test_a_version_without_all_its_chunks_cannot_be_committed(target, publisher, owner):
    docs = [make_doc("one"), make_doc("two")]
    attempt = publisher.claim(docs)
    publisher.write(attempt, docs[:1])

    with pytest.raises(psycopg.Error, match=r"1 chunks of guide\.md were not staged"):
        publisher.commit(attempt, docs)

    assert list(target.scan()) == []
    assert owner.execute("SELECT committed_epoch FROM doc_head").fetchone() == (0,)


def test_what_an_older_attempt_staged_is_never_committed(target, publisher):
    """A zombie's late write is a staged row under its own version; the newer attempt takes its own only."""
    doc = make_doc("p")
    attempt = publisher.claim([doc])
    target.write([doc], attempt.version - 1, epoch=attempt.epoch - 1)

    with pytest.raises(psycopg.Error, match="not staged"):
        publisher.commit(attempt, [doc])


def test_a_commit_clears_what_it_and_older_attempts_staged(target, publisher, owner):
    doc = make_doc("p")
    attempt = publisher.claim([doc])
    target.write([make_doc("older")], attempt.version - 1, epoch=attempt.epoch - 1)
    target.write([make_doc("newer")], attempt.version + 1, epoch=attempt.epoch + 1)
    publisher.write(attempt, [doc])

    publisher.commit(attempt, [doc])

    assert owner.execute("SELECT version, body FROM pgvector_staged").fetchall() == [(attempt.version + 1, "newer")]


def test_what_nobody_committed_is_purged_by_age(target, owner):
    target.write([make_doc("a"), make_doc("b")], version(1), epoch=1)
    assert target.purge(3600) == 0

    owner.execute("UPDATE pgvector_staged SET staged_at = staged_at - interval '2 hours' WHERE body = 'a'")

    assert target.purge(3600) == 1
    assert owner.execute("SELECT body FROM pgvector_staged").fetchall() == [("b",)]


def test_one_chunk_that_cannot_be_stored_is_refused_alone(target):
    docs = [make_doc(f"p {n}") for n in range(9)]
    docs[4] = make_doc("a NUL\0", index_id="bad")
    docs[7] = make_doc("nan", vector=np.full(8, np.nan, np.float32))

    results = target.write(docs, version(1), epoch=1)

    assert [r.outcome for r in results] == [OK] * 4 + [PERMANENT] + [OK] * 2 + [PERMANENT] + [OK]
    assert all(r.reason for r in results if r.outcome is PERMANENT)


def test_changed_access_touches_no_chunk_row(target, publisher, owner):
    """D21 (a): an update of a chunk row would insert it into the vector index again."""
    doc = make_doc("p")
    publisher.publish([doc], Meta("Guide", acl=("staff",)))
    rows = SQL("SELECT ctid, xmin FROM {}").format(Identifier(table_of(owner, target)))
    before = owner.execute(rows).fetchall()
    attempt = publisher.claim([doc])

    assert publisher.commit(attempt, [doc], Meta("Guide", acl=("boss",))) == "committed"

    assert owner.execute(rows).fetchall() == before
    assert found(target, "p", acl="boss") == ["p"]
    assert found(target, "p", acl="staff") == []


# faults


def test_a_missing_right_is_a_sick_target(target, owner):
    owner.execute("REVOKE EXECUTE ON FUNCTION pgvector_stage(text, text, text, bigint, jsonb) FROM fencebeat_app")

    assert classes(target.write([make_doc("p"), make_doc("q")], version(1), epoch=1)) == [SICK, SICK]


def test_a_passing_fault_is_tried_again(target, owner):
    """A deadlock, a serialisation failure, an index that races with VACUUM: raised by a trigger, three times."""
    owner.execute("CREATE SEQUENCE tries")
    owner.execute("GRANT USAGE ON SEQUENCE tries TO PUBLIC")
    owner.execute("""
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          CASE nextval('tries')
            WHEN 1 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01';
            WHEN 2 THEN RAISE EXCEPTION 'serialisation' USING ERRCODE = '40001';
            WHEN 3 THEN RAISE EXCEPTION 'index race' USING ERRCODE = 'XX000';
            ELSE RETURN NEW;
          END CASE;
        END $$""")
    owner.execute("CREATE TRIGGER stumble BEFORE INSERT ON pgvector_staged FOR EACH ROW EXECUTE FUNCTION stumble()")
    slept = []
    target._sleep = slept.append

    assert classes(target.write([make_doc("p")], version(1), epoch=1)) == [OK]
    assert len(slept) == 3


def test_a_fault_that_does_not_pass_is_unavailable(target, owner):
    owner.execute("""
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$""")
    owner.execute("CREATE TRIGGER stumble BEFORE INSERT ON pgvector_staged FOR EACH ROW EXECUTE FUNCTION stumble()")
    target._sleep = lambda _: None

    with pytest.raises(TargetUnavailable, match="deadlock"):
        target.write([make_doc("p")], version(1), epoch=1)


def test_a_search_ends_with_its_time_out(target, publisher, owner):
    publisher.publish([make_doc("p")])
    with owner.transaction():
        owner.execute(SQL("LOCK TABLE {}").format(Identifier(table_of(owner, target))))
        with pytest.raises(TargetUnavailable, match="timeout"):
            target.search(text="p", vector=None, tenant_id="acme", limit=1, filters={}, timeout=0.2)


# the vector index


def test_a_small_tenant_gets_its_hits_from_the_vector_index_itself(url, target, publisher):
    """Without iterative scans the index gives the nearest of all tenants, and the filter leaves nothing."""
    crowd = [make_doc(f"c {n}", tenant="crowd", uid="c.md", vector=_near(n)) for n in range(1000)]
    few = [make_doc(f"f {n}", tenant="few", uid="f.md", vector=_far(n)) for n in range(10)]
    publisher.publish(crowd)
    publisher.publish(few)
    only_hnsw = (
        "-c enable_seqscan=off -c enable_sort=off -c enable_bitmapscan=off -c enable_hashjoin=off"
        " -c enable_mergejoin=off"
    )
    with open_pool(
        f"{url}{'&' if '?' in url else '?'}options={only_hnsw.replace(' ', '%20').replace('=', '%3D')}"
    ) as pool:
        forced = PgvectorTarget(target.spec, pool, timeout=30)
        hits = forced.search(text="xyzzy", vector=_near(0), tenant_id="few", limit=10, filters={}, timeout=10).hits
        plan = _plan(pool, forced)

    assert "embedding_idx" in plan
    assert {hit.index_id for hit in hits} == {doc.index_id for doc in few}


def _plan(pool, target):
    statement, params = target._vector_leg(_near(0), "few", {})
    with pool.connection() as conn, conn.transaction():
        conn.execute("SELECT set_config('fencebeat.tenant', 'few', true)")
        return "\n".join(row[0] for row in conn.execute(SQL("EXPLAIN ") + statement, params))


def _near(n):
    raw = np.ones(8, np.float32) + np.random.default_rng(n).normal(scale=0.05, size=8).astype(np.float32)
    return raw / np.float32(np.linalg.norm(raw))


def _far(n):
    return -_near(n + 5000)


# writers beside VACUUM


def run_beside(workers, *helpers):
    """Run each worker once and the helpers again and again until then; returns what any of them raised."""
    errors, done = [], threading.Event()

    def guarded(step, *, repeat):
        try:
            step()
            while repeat and not done.is_set():
                step()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    once = [threading.Thread(target=guarded, args=(step,), kwargs={"repeat": False}) for step in workers]
    again = [threading.Thread(target=guarded, args=(step,), kwargs={"repeat": True}) for step in helpers]
    for thread in once + again:
        thread.start()
    for thread in once:
        thread.join()
    done.set()
    for thread in again:
        thread.join()
    return errors


def test_writers_beside_vacuum_lose_nothing_and_readers_see_one_version(url, target, publisher):
    """D21 (c), small: four writers replace their documents again and again while VACUUM runs and a reader looks."""
    rounds, writers = 6, 4
    claims = threading.Lock()  # `Publisher.claim` marks and claims in two calls; writing and committing run freely

    def version_of(writer, number):
        return [make_doc(f"writer {writer} round {number} part {p}", uid=f"{writer}.md") for p in range(3)]

    def write(writer):
        for number in range(1, rounds + 1):
            docs = version_of(writer, number)
            with claims:
                attempt = publisher.claim(docs)
            publisher.write(attempt, docs)
            assert publisher.commit(attempt, docs) == "committed"

    def vacuum():
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(SQL("VACUUM {}").format(Identifier(table_of(conn, target))))

    def read():
        hits = target.search(
            text="writer", vector=None, tenant_id="acme", limit=100, filters={"doc_uid": "0.md"}, timeout=30
        ).hits
        assert len(hits) == 3
        assert len({hit.text.rsplit(" part", 1)[0] for hit in hits}) == 1, "a mixture of versions"

    for writer in range(writers):
        publisher.publish(version_of(writer, 0))

    errors = run_beside([partial(write, writer) for writer in range(writers)], vacuum, read)

    assert errors == []
    expected = {doc.index_id for writer in range(writers) for doc in version_of(writer, rounds)}
    assert {row.index_id for row in target.scan()} == expected


def test_a_scan_goes_through_its_pages(target, publisher, monkeypatch):
    monkeypatch.setattr("index.targets.pgvector.PAGE", 4)
    for uid in ("a.md", "b.md"):
        publisher.publish([make_doc(f"{uid} {n}", uid=uid) for n in range(6)])

    rows = list(target.scan())

    assert len({row.index_id for row in rows}) == len(rows) == 12
    assert all(row.version == 0 and not row.dead for row in rows)
