"""The ledger's functions: who may claim, who may commit, what is left behind."""

import threading

import psycopg
import pytest

from fencebeat.errors import StoreUnreachable
from index.ledger import open_pool
from index.ledger.migrate import upgrade
from tests.support.ledgers import SPEC, claim, commit, execute, expire_leases, ledger_at, mark


@pytest.fixture
def ledger(database_url):
    with ledger_at(database_url) as made:
        yield made


def head(ledger, uid="a"):
    names = (
        "state, epoch, committed_epoch, pending_gc, crashes, failures, dirty_seq, done_seq, manifest_ids, tried_version"
    )
    (row,) = execute(ledger, f"SELECT {names} FROM doc_head WHERE doc_uid = %s", uid)
    return dict(zip(names.split(", "), row, strict=True))


def test_migrating_twice_is_migrating_once(database_url):
    assert upgrade(database_url) == upgrade(database_url)


def test_the_application_is_neither_owner_nor_superuser(ledger):
    ((user, is_super),) = execute(ledger, "SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
    ((owner,),) = execute(ledger, "SELECT tableowner FROM pg_tables WHERE tablename = 'doc_head'")
    assert (user, is_super) == ("fencebeat_app", False)
    assert owner != user


def test_the_application_cannot_rewrite_the_audit(ledger):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(ledger, "UPDATE audit SET reason = 'nothing happened'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(ledger, "DELETE FROM audit")


def test_an_unreachable_server_is_named_without_its_password():
    pool = open_pool("postgresql://me:hunter2@127.0.0.1:1/db", timeout=0.5)
    try:
        with pytest.raises(StoreUnreachable) as failure, ledger_at_pool(pool) as ledger:
            ledger.tenants()
    finally:
        pool.close()
    assert "127.0.0.1" in str(failure.value)
    assert "hunter2" not in str(failure.value)


class ledger_at_pool:  # noqa: N801 - reads as a function
    def __init__(self, pool):
        self.pool = pool

    def __enter__(self):
        from index.ledger import Ledger

        return Ledger(self.pool)

    def __exit__(self, *_):
        return False


def test_a_mark_for_a_version_that_was_tried_is_no_mark(ledger):
    assert mark(ledger, "a") == 1
    assert mark(ledger, "a") == 0  # marked already
    (attempt,) = claim(ledger)
    commit(ledger, attempt, ["x"])
    assert mark(ledger, "a") == 0
    assert mark(ledger, "a", version="v0") == 1  # an older version is another version


def test_a_mark_set_during_an_attempt_is_not_lost(ledger):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    mark(ledger, "a", version="v2")
    assert commit(ledger, attempt, ["x"]) == "committed"
    (again,) = claim(ledger)
    assert again.dirty_seq == attempt.dirty_seq + 1


def test_a_claimed_document_is_not_claimed_again(ledger):
    mark(ledger, "a", "b")
    assert len(claim(ledger)) == 2
    assert claim(ledger) == []


def test_tenants_take_turns(database_url):
    with ledger_at(database_url, tenants=("big", "small")) as ledger:
        mark(ledger, *(f"doc-{n:03}" for n in range(50)), tenant="big")
        mark(ledger, "only", tenant="small")
        assert "small" in {attempt.tenant_id for attempt in claim(ledger, limit=2)}


def test_an_older_attempt_is_fenced_by_its_epoch(ledger):
    mark(ledger, "a")
    (first,) = claim(ledger)
    expire_leases(ledger)
    (second,) = claim(ledger)
    assert second.epoch == first.epoch + 1
    assert ledger.stage(first, ["x"]) == "fenced"
    assert commit(ledger, first, ["x"]) == "fenced"
    assert ledger.dead_letter(first, version="v1", reason="r", fingerprint="f") == "fenced"
    assert ledger.hand_back(first) == "fenced"
    assert ledger.renew([first], 60) == set()
    assert commit(ledger, second, ["y"]) == "committed"
    assert head(ledger)["manifest_ids"] == ["y"]


def test_an_attempt_with_a_repeated_epoch_is_fenced_by_its_nonce(ledger):
    mark(ledger, "a")
    (first,) = claim(ledger)
    expire_leases(ledger)
    execute(ledger, "UPDATE doc_head SET epoch = epoch - 1")  # as after a restored backup
    (second,) = claim(ledger)
    assert second.epoch == first.epoch
    assert commit(ledger, first, ["x"]) == "fenced"
    assert commit(ledger, second, ["y"]) == "committed"


def test_an_attempt_of_an_older_incarnation_is_fenced(ledger):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    execute(ledger, "UPDATE target SET incarnation = incarnation + 1")
    assert ledger.stage(attempt, ["x"]) == "fenced"
    assert commit(ledger, attempt, ["x"]) == "fenced"


def test_a_document_whose_worker_died_is_claimed_alone_and_ends_as_a_dead_letter(ledger):
    mark(ledger, "a")
    claim(ledger)
    mark(ledger, "b", "c")
    for _ in range(3):
        expire_leases(ledger)
        (suspect,) = claim(ledger)
        assert (suspect.doc_uid, suspect.alone) == ("a", True)
    expire_leases(ledger)
    assert sorted(attempt.doc_uid for attempt in claim(ledger)) == ["b", "c"]  # innocent neighbours go on
    assert head(ledger)["state"] == "dead"
    (letter,) = ledger.dead_letters("t1")
    assert (letter["doc_uid"], letter["fingerprint"]) == ("a", "worker_killed")


def test_a_suspect_in_its_back_off_is_not_claimed_with_others(ledger):
    mark(ledger, "a")
    claim(ledger)
    mark(ledger, "b")
    execute(ledger, "UPDATE doc_head SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
    assert [attempt.doc_uid for attempt in claim(ledger)] == ["b"]


def test_a_hand_back_without_reason_undoes_the_claim(ledger):
    mark(ledger, "a")
    for _ in range(10):
        (attempt,) = claim(ledger)
        assert not attempt.alone
        assert ledger.hand_back(attempt) == "handed_back"
    assert head(ledger)["crashes"] == 0


def test_a_failure_with_a_reason_is_counted_apart_and_waits(ledger):
    mark(ledger, "a")
    (attempt,) = claim(ledger)
    ledger.hand_back(attempt, reason="the embedder is down", delay=3600)
    assert (head(ledger)["failures"], head(ledger)["crashes"]) == (1, 0)
    assert claim(ledger) == []


def test_a_commit_collects_what_it_replaces_and_what_earlier_attempts_staged(ledger):
    mark(ledger, "a")
    (first,) = claim(ledger)
    ledger.stage(first, ["x", "y"])
    commit(ledger, first, ["x", "y"])
    mark(ledger, "a", version="v2")
    (lost,) = claim(ledger)
    ledger.stage(lost, ["z1", "z2"])
    expire_leases(ledger)
    (third,) = claim(ledger)
    assert ledger.older_staged(third) == {"z1", "z2"}
    ledger.stage(third, ["z2"])
    commit(ledger, third, ["y", "z2"], version="v2")
    (garbage,) = ledger.garbage("t1")
    assert set(garbage.ids) == {"x", "z1"}
    assert garbage.version == third.incarnation << 32 | third.epoch
    assert execute(ledger, "SELECT count(*) FROM doc_staged") == [(0,)]


def test_collected_ids_are_forgotten_only_under_the_epoch_they_were_buried_with(ledger):
    mark(ledger, "a")
    commit(ledger, claim(ledger)[0], ["x"])
    mark(ledger, "a", version="v2")
    commit(ledger, claim(ledger)[0], ["y"], version="v2")
    (garbage,) = ledger.garbage("t1")
    mark(ledger, "a", version="v3")
    commit(ledger, claim(ledger)[0], ["y"], version="v3")
    assert not ledger.collected("t1", garbage, ["x"])  # committed again: the tombstone lies too low
    (again,) = ledger.garbage("t1")
    assert ledger.collected("t1", again, ["x"])
    assert ledger.garbage("t1") == []


def test_a_dead_letter_keeps_the_old_version_and_lies_above_its_own_writes(ledger):
    mark(ledger, "a")
    commit(ledger, claim(ledger)[0], ["x"])
    mark(ledger, "a", version="v2")
    (attempt,) = claim(ledger)
    ledger.stage(attempt, ["x", "bad"])
    assert ledger.dead_letter(attempt, version="v2", reason="immense term", fingerprint="F") == "dead_lettered"
    after = head(ledger)
    assert after["manifest_ids"] == ["x"]
    assert after["pending_gc"] == ["bad"]
    assert after["committed_epoch"] == after["epoch"] == attempt.epoch + 1
    assert mark(ledger, "a", version="v2") == 0  # not tried again until it changes
    assert mark(ledger, "a", version="v3") == 1
    commit(ledger, claim(ledger)[0], ["x"], version="v3")
    assert ledger.dead_letters("t1") == []


def test_a_dead_letter_that_could_not_tell_its_version_counts_as_the_listed_one(ledger):
    mark(ledger, "a", version="v7")
    (attempt,) = claim(ledger)
    ledger.dead_letter(attempt, version=None, reason="no permission", fingerprint="F")
    assert head(ledger)["tried_version"] == "v7"


def test_a_deleted_document_keeps_its_head_and_is_not_marked_absent_again(ledger):
    mark(ledger, "a")
    commit(ledger, claim(ledger)[0], ["x"])
    assert ledger.mark_absent("acme", "docs", "t1", ["a"]) == 1
    (attempt,) = claim(ledger)
    assert attempt.absent
    commit(ledger, attempt, [], version="absent", absent=True)
    assert head(ledger)["state"] == "absent"
    assert ledger.mark_absent("acme", "docs", "t1", ["a"]) == 0
    assert mark(ledger, "a") == 1  # it came back
    assert not claim(ledger)[0].absent


def test_a_newer_listing_wins_over_the_absence_an_attempt_saw(ledger):
    mark(ledger, "a")
    commit(ledger, claim(ledger)[0], ["x"])
    ledger.mark_absent("acme", "docs", "t1", ["a"])
    (attempt,) = claim(ledger)
    mark(ledger, "a", version="v2")
    commit(ledger, attempt, [], version="absent", absent=True)
    (again,) = claim(ledger)
    assert not again.absent


def test_heads_committed_after_a_snapshot_are_unseen(ledger):
    mark(ledger, "a")
    before = ledger.snapshot()
    commit(ledger, claim(ledger)[0], ["x"])
    assert ledger.read_heads("acme", "t1", ["a"], before)["a"].unseen
    assert not ledger.read_heads("acme", "t1", ["a"], ledger.snapshot())["a"].unseen
    assert ledger.read_heads("other", "t1", ["a"], before) == {}


def test_two_claimers_never_get_the_same_document(ledger):
    mark(ledger, *(f"doc-{n:03}" for n in range(60)))
    got, start = [], threading.Barrier(4)

    def work():
        start.wait()
        while batch := claim(ledger, limit=3):
            got.extend(attempt.doc_uid for attempt in batch)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got))
    while rest := claim(ledger, limit=50):  # a claimer stops early where another holds the rows it looked at
        got.extend(attempt.doc_uid for attempt in rest)
    assert len(got) == 60


def test_a_target_keeps_its_incarnation(ledger):
    assert ledger.register_target(SPEC) == ledger.register_target(SPEC)
    assert ledger.register_target(SPEC).incarnation > 60_000_000  # seconds since 2025: above any earlier life
