"""The index follows its source: edits, renames, deletions, restored files; at the end it equals a fresh build."""

import os
import shutil

import pytest

from index.model import Outcome
from tests.support.world import World


def assert_equals_a_fresh_build(world, make_world, root, kind):
    """The live index is that of a new ledger, target and cache over the same folder, and the doctor is clean."""
    fresh: World = make_world(root, kind)
    fresh.refresh_world()
    assert world.live() == fresh.live()
    report = world.doctor()
    assert (report.differences, report.at_rest, report.behind_source) == (0, True, 0), report.as_dict()


def page(root, n):
    return root / f"part-{n % 5}" / f"page-{n:03}.md"


def test_a_first_sync_indexes_everything_and_a_second_one_does_nothing(world, make_world, corpus, kind):
    before, writes = world.embedded(), world.target.write_count()
    assert before > 50
    (report,) = world.sync()
    assert (report.listed, report.marked) == (50, 0)
    assert world.index()["outcomes"] == {}
    assert world.embedded() == before
    assert world.target.write_count() == writes
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_one_edited_sentence_costs_at_most_two_embeddings(world, make_world, corpus, kind):
    before = world.embedded()
    path = page(corpus, 7)
    path.write_text(path.read_text().replace("They are longer than one line", "They are shorter than you think"))
    totals = world.refresh_world()
    assert 1 <= world.embedded() - before <= 2
    assert totals["outcomes"] == {Outcome.COMMITTED: 1}
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_a_touched_file_costs_nothing(world, corpus, kind):
    before, writes = world.embedded(), world.target.write_count()
    os.utime(page(corpus, 3))
    assert world.refresh_world()["outcomes"] == {Outcome.UNCHANGED: 1}
    assert world.embedded() == before
    assert world.target.write_count() == writes


def test_a_renamed_file_costs_no_embeddings(world, make_world, corpus, kind):
    before = world.embedded()
    page(corpus, 1).rename(corpus / "elsewhere.md")
    totals = world.refresh_world()
    assert totals["outcomes"] == {Outcome.COMMITTED: 2}  # the new place, and the old one gone
    assert world.embedded() == before
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_a_deleted_and_an_emptied_file_leave_the_index(world, make_world, corpus, kind):
    page(corpus, 2).unlink()
    page(corpus, 4).write_text("")
    world.refresh_world()
    uids = {entry[0] for entry in world.live()}
    assert "docs/part-2/page-002.md" not in uids
    assert "docs/part-4/page-004.md" not in uids
    assert world.ledger.progress(world.services.spec.target_id).absent == 1
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_a_file_that_comes_back_is_indexed_again_without_embeddings(world, make_world, corpus, kind):
    text = page(corpus, 2).read_text()
    page(corpus, 2).unlink()
    world.refresh_world()
    before = world.embedded()
    page(corpus, 2).write_text(text)
    world.refresh_world()
    assert world.embedded() == before
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_a_file_restored_with_an_older_time_is_indexed(world, make_world, corpus, kind):
    path = page(corpus, 9)
    path.write_text("# Restored\n\nThis is the text of long ago.\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    world.refresh_world()
    assert any(entry[0].endswith("page-009.md") and "long ago" in entry[7] for entry in world.live())
    assert_equals_a_fresh_build(world, make_world, corpus, kind)


def test_changed_access_costs_no_embeddings_and_replaces_the_chunks(make_world, corpus, kind):
    first = make_world(corpus, kind)
    first.refresh_world()
    before = first.embedded()
    source = first.services.source("docs")
    source._acl = ("staff",)
    totals = first.refresh_world()
    assert totals["outcomes"] == {Outcome.COMMITTED: 50}
    assert first.embedded() == before
    assert {entry[-1] for entry in first.live()} == {("staff",)}
    assert first.doctor().differences == 0


def test_repeated_paragraphs_are_kept_apart(make_world, tmp_path, kind):
    root = tmp_path / "repeats"
    root.mkdir()
    (root / "twice.md").write_text(
        "# Same\n\n" + "Exactly the same words stand here, again and again. " * 8 + "\n\n## Same\n\n" * 3
    )
    world = make_world(root, kind)
    world.refresh_world()
    ids = [entry[4] for entry in world.live()]
    assert len(ids) == len(set(ids))
    assert world.doctor().differences == 0


class TestDeletionsNeedProof:
    """A listing that is not complete deletes nothing, and an unusual number of deletions waits for approval."""

    @pytest.fixture
    def kind(self):
        return "memory"

    def test_a_missing_folder_deletes_nothing(self, world, corpus):
        from index.errors import SourceUnavailable

        before = world.live()
        corpus.rename(corpus.with_name("moved"))
        with pytest.raises(SourceUnavailable):
            world.sync()
        world.index()
        assert world.live() == before
        assert "moved" not in str(world.ledger.sources()[0]["last_error"])
        assert world.ledger.sources()[0]["last_error"]

    def test_an_emptied_folder_waits_for_approval(self, world, corpus):
        before = world.live()
        shutil.rmtree(corpus)
        corpus.mkdir()
        (report,) = world.sync()
        assert (report.absent, report.pending_deletes) == (0, 50)
        world.index()
        assert world.live() == before
        (approved,) = world.sync(approve=True)
        assert approved.absent == 50
        world.index()
        assert world.live() == set()

    def test_more_than_a_fifth_waits_and_the_rest_goes_on(self, world, corpus):
        for n in range(15):
            page(corpus, n).unlink()
        (corpus / "new.md").write_text("# New\n\nA new page.\n")
        (report,) = world.sync()
        assert (report.marked, report.absent, report.pending_deletes) == (1, 0, 15)
        world.index()
        assert any(entry[0] == "docs/new.md" for entry in world.live())
        (again,) = world.sync(approve=True)
        assert again.absent == 15

    def test_a_file_that_vanished_after_the_listing_is_not_deleted_by_that(self, world, corpus):
        page(corpus, 5).write_text("# Changed\n\nNew words.\n")
        world.sync()
        page(corpus, 5).unlink()
        totals = world.index()
        assert totals["outcomes"] == {Outcome.HANDED_BACK: 1}
        assert any(entry[0].endswith("page-005.md") for entry in world.live())
        world.sync()
        world.index()
        assert not any(entry[0].endswith("page-005.md") for entry in world.live())


class TestBadDocuments:
    """A document that cannot be indexed is a dead letter with its reason; its old version stays, the rest goes on."""

    @pytest.fixture(params=["memory", "opensearch"])
    def kind(self, request):
        return request.param

    def test_it_keeps_its_old_version_and_says_why(self, world, corpus, kind):
        before = {entry for entry in world.live() if entry[0].endswith("page-006.md")}
        page(corpus, 6).write_bytes(b"# Broken\n\n\xff\xfe not UTF-8 \x80\n")
        page(corpus, 8).write_text("# Fine\n\nThis one changed too.\n")
        totals = world.refresh_world()
        assert totals["outcomes"] == {Outcome.DEAD_LETTERED: 1, Outcome.COMMITTED: 1}
        assert {entry for entry in world.live() if entry[0].endswith("page-006.md")} == before
        (letter,) = world.ledger.dead_letters(world.services.spec.target_id)
        assert letter["doc_uid"] == "docs/part-1/page-006.md"
        assert "UTF-8" in letter["reason"]
        assert world.refresh_world()["outcomes"] == {}  # not tried again until it changes
        page(corpus, 6).write_text("# Mended\n\nNow it can be read.\n")
        assert world.refresh_world()["outcomes"] == {Outcome.COMMITTED: 1}
        assert world.ledger.dead_letters(world.services.spec.target_id) == []
        assert world.doctor().differences == 0

    def test_one_that_is_too_large_is_named_with_the_limit(self, make_world, corpus, kind):
        world = make_world(corpus, kind, max_document_bytes=2000)
        (corpus / "large.md").write_text("# Large\n\n" + "many words " * 400)
        world.refresh_world()
        (letter,) = world.ledger.dead_letters(world.services.spec.target_id)
        assert "2000" in letter["reason"]
        assert letter["fingerprint"] == "DocumentTooLarge"
        assert world.refresh_world()["outcomes"] == {}


def test_an_embedder_that_is_down_changes_nothing(make_world, corpus):
    world = make_world(corpus, "memory")
    world.refresh_world()
    before = world.live()
    page(corpus, 5).write_text("# Changed\n\nEntirely new words.\n")
    world.services.client._address = "http://127.0.0.1:9"
    world.services.client.close()
    assert world.refresh_world()["outcomes"] == {Outcome.HANDED_BACK: 1}
    assert world.live() == before
    assert world.ledger.dead_letters(world.services.spec.target_id) == []
    assert world.services.indexer.run_batch().claimed == 0  # the breaker: no claim while it rests
