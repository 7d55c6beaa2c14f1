"""A real edit history, commit by commit through folder syncs: at the end the index equals a fresh build."""

import sys
from statistics import median

import pytest

from tests.acceptance.test_index_follows import assert_equals_a_fresh_build
from tests.support.workloads import Workload


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rust_book_commit_by_commit(make_world, tmp_path, record_property, capsys):
    def say(line):
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    workload = Workload("workload-rust-book")
    root = tmp_path / "book"
    root.mkdir()
    assert workload.write_base(root) >= 100
    world = make_world(root, "opensearch")
    world.refresh_world()
    base = world.embedded()
    per_commit = []
    for commit in workload.commits:
        before = world.embedded()
        workload.apply(root, commit)
        world.sync(approve=True)
        world.index()
        per_commit.append(world.embedded() - before)
    assert workload.state(root) == workload.manifest["final_state_sha256"]
    assert world.ledger.dead_letters(world.services.spec.target_id) == []
    total = sum(per_commit)
    record_property("embeddings", f"base {base}, history {total}")
    record_property("per_commit", str(per_commit))
    spread = (
        f"median {median(per_commit)}, p90 {sorted(per_commit)[int(0.9 * len(per_commit))]}, most {max(per_commit)}"
    )
    say(f"embeddings: base {base}, {len(per_commit)} commits {total} ({spread}), per commit: {per_commit}")
    assert total < base * 2, "a history of edits costs less than two builds"
    assert_equals_a_fresh_build(world, make_world, root, "opensearch")
