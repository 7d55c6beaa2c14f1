"""A fault at every step of the document protocol: nothing is lost, nothing is doubled, the next attempt heals it."""

import pytest

from fencebeat import failpoints
from index.model import ItemClass, ItemResult, Outcome
from tests.support.world import write_corpus

POINTS = (
    "index.acquire.before",
    "index.acquire.after",
    "index.read.before",
    "index.read.after",
    "index.chunk.before",
    "index.chunk.after",
    "index.embed.before",
    "index.embed.after",
    "index.stage.before",
    "index.stage.after",
    "index.write.before",
    "index.write.after",
    "index.refresh.before",
    "index.refresh.after",
    "index.commit.before",
    "index.commit.after",
    "index.collect.before",
    "index.collect.after",
    "index.purge.before",
    "index.purge.after",
)


@pytest.fixture
def purge_after():
    return 3600.0


@pytest.fixture
def world(make_world, tmp_path, purge_after):
    root = tmp_path / "few"
    root.mkdir()
    write_corpus(root, 6)
    made = make_world(root, "memory", claim_seconds=0.5, claim_batch=3, purge_after_seconds=purge_after)
    made.root = root
    made.refresh_world()
    return made


@pytest.fixture
def armed(monkeypatch):
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    yield failpoints.arm
    failpoints.arm("")


def change(world, text="Other words stand here now."):
    for path in sorted(world.root.rglob("*.md"))[:4]:
        path.write_text(f"# {path.stem}\n\n{text}\n\n## More\n\nAnd {text.lower()}\n")
    max(world.root.rglob("*.md")).unlink()
    world.sync()


def everything(world):
    """One round of all steps, purge included."""
    world.index()
    world.services.collect()
    world.services.purge()


@pytest.mark.parametrize("purge_after", [1e-6])
@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_this_step_is_healed_by_the_next_attempt(world, armed, point, make_world, purge_after):
    before = world.embedded()
    change(world)
    armed(f"{point}=raise:ConnectionError@1")
    with pytest.raises(ConnectionError, match=point):
        everything(world)
    armed("")
    world.services.indexer._resting_until = 0.0
    with world.ledger.pool.connection() as conn:  # the back-off after a failure is over
        conn.execute("UPDATE doc_head SET not_before = '-infinity'")
    world.settle()
    everything(world)

    fresh = make_world(world.root, "memory")
    fresh.refresh_world()
    assert world.live() == fresh.live()
    report = world.doctor()
    assert (report.differences, report.at_rest) == (0, True), report.as_dict()
    assert world.ledger.dead_letters(world.services.spec.target_id) == []
    lost_batch = 9 if point == "index.embed.after" else 0  # arrived, and not yet in the cache
    assert world.embedded() - before <= 8 + lost_batch


def spoil(world, monkeypatch, outcome, reason="because of the test"):
    """Let the target answer the first chunk of each write with `outcome`."""
    write = world.target.write

    def spoiled(docs, version, **more):
        results = list(write(docs, version, **more))
        return [ItemResult(results[0].index_id, outcome, reason), *results[1:]]

    monkeypatch.setattr(world.target, "write", spoiled)


def test_no_version_is_committed_before_every_chunk_is_acknowledged(world, monkeypatch):
    before = world.live()
    change(world)
    for outcome in (ItemClass.TRANSIENT, ItemClass.TARGET_SICK):
        with monkeypatch.context() as patch:
            spoil(world, patch, outcome)
            totals = world.index()
            assert totals["outcomes"].get(Outcome.COMMITTED, 0) <= 1  # the deleted page has nothing to write
            assert {entry for entry in world.live() if entry in before or "Other words" not in entry[7]} <= before
        world.services.indexer._resting_until = 0.0
        with world.ledger.pool.connection() as conn:
            conn.execute("UPDATE doc_head SET not_before = '-infinity'")
    assert world.ledger.dead_letters(world.services.spec.target_id) == []


def test_a_short_answer_is_not_an_acknowledgement(world, monkeypatch):
    change(world)
    monkeypatch.setattr(world.target, "write", lambda docs, version, **more: [])
    assert Outcome.HANDED_BACK in world.index()["outcomes"]
    assert not any("Other words" in entry[7] for entry in world.live())


def test_a_chunk_that_can_never_be_written_is_a_dead_letter_and_the_old_version_stays(world, monkeypatch):
    before = {entry for entry in world.live() if entry[0].endswith("page-000.md")}
    change(world)
    spoil(world, monkeypatch, ItemClass.PERMANENT, "immense term")
    totals = world.index()
    assert totals["outcomes"][Outcome.DEAD_LETTERED] == 4
    assert {entry for entry in world.live() if entry[0].endswith("page-000.md")} == before
    letters = world.ledger.dead_letters(world.services.spec.target_id)
    assert all("immense term" in letter["reason"] for letter in letters)
    world.services.collect()
    assert world.doctor().differences == 0  # what the attempts had written is buried


def test_a_write_past_the_protocol_is_no_fence_and_is_told(world, monkeypatch):
    change(world)
    spoil(world, monkeypatch, ItemClass.SUPERSEDED)
    assert set(world.index()["outcomes"]) <= {Outcome.HANDED_BACK, Outcome.COMMITTED}
    with world.ledger.pool.connection() as conn:
        (said,) = conn.execute("SELECT max(last_error) FROM doc_head").fetchone()
    assert "past the protocol" in said or "incarnation" in said


def test_what_a_dead_attempt_staged_is_collected_by_its_successor(world, armed):
    """Its writes may still be on their way: their ids get tombstones above them, whether they are there or not."""
    change(world, "The words of an attempt that dies after staging.")
    armed("index.write.before=raise:ConnectionError@1")
    with pytest.raises(ConnectionError):
        world.index()
    armed("")
    with world.ledger.pool.connection() as conn:
        ((uid, ids),) = conn.execute("SELECT doc_uid, ids FROM doc_staged").fetchall()
        conn.execute("UPDATE doc_head SET not_before = '-infinity'")
    world.services.indexer._resting_until = 0.0
    path = world.root / uid.removeprefix("docs/")
    path.write_text("# Entirely\n\nDifferent words of the successor.\n")
    world.sync()
    world.settle()
    everything(world)
    tombstones = {row.index_id for row in world.target.scan() if row.dead}
    assert set(ids) <= tombstones
    assert world.doctor().differences == 0


def test_a_staged_id_is_written_again_although_nothing_changed_and_it_is_visible(world):
    """A staged row says that the index may hold something else there: a frozen worker's write, or a loss."""
    uid, ids = world._manifests()[0][:2]
    lost = world.target._stored.pop(ids[0])
    before = world.embedded()
    with world.ledger.pool.connection() as conn:
        conn.execute(
            "INSERT INTO doc_staged SELECT tenant_id, target_id, doc_uid, epoch, %s FROM doc_head WHERE doc_uid = %s",
            ([ids[0]], uid),
        )
        conn.execute("UPDATE doc_head SET dirty_seq = dirty_seq + 1 WHERE doc_uid = %s", (uid,))
    assert world.doctor().open_documents == 1
    world.index()
    assert world.target._stored[ids[0]].version > lost.version
    assert world.embedded() == before
    assert world.doctor().differences == 0
