"""Workers frozen between two steps of the protocol while the world moves on: the newer text stays."""

import pytest

from tests.support.processes import batches
from tests.support.world import write_corpus

STEPS = (
    "index.acquire.after",
    "index.read.after",
    "index.embed.after",
    "index.stage.after",
    "index.write.before",
    "index.write.after",
    "index.refresh.after",
    "index.commit.before",
)


CASES = [
    (kind, step)
    for kind in ("opensearch", "pgvector")
    for step in STEPS
    if not (kind == "pgvector" and step.startswith("index.refresh"))  # there a commit is visible at once
]


@pytest.fixture
def world(make_world, tmp_path, kind):
    root = tmp_path / "few"
    root.mkdir()
    write_corpus(root, 3)
    made = make_world(root, kind, claim_seconds=1.0)
    made.root = root
    made.refresh_world()
    return made


def change(world, text):
    (world.root / "part-0" / "page-000.md").write_text(f"# Topic number 0\n\n{text}\n\n## Details\n\nMore on that.\n")
    world.sync()


def texts(world):
    return " ".join(entry[7] for entry in world.live() if entry[0] == "docs/part-0/page-000.md")


@pytest.mark.parametrize(("kind", "step"), CASES)
def test_the_newer_text_stays_and_the_frozen_worker_is_fenced(world, step, kind):
    change(world, "The second text, of a worker that freezes.")
    with batches(world, "frozen", failpoints=f"{step}=stop@1") as frozen:
        frozen.wait_until_frozen(step)
        change(world, "The third text, of a worker that works.")
        world.settle()
        assert "third text" in texts(world)
        after = world.live()

        frozen.thaw()
        frozen.wait_until_ended(60)

    assert frozen.said(kind="event", event="document.fenced"), frozen.log.read_text()
    world.services.collect()
    assert world.live() == after
    report = world.doctor()
    assert (report.differences, report.at_rest) == (0, True), report.as_dict()


@pytest.mark.parametrize("kind", ["opensearch", "pgvector"])
def test_f04_a_worker_killed_at_each_step_leaves_nothing_behind(world, kind):
    for n, step in enumerate(step for case, step in CASES if case == kind):
        change(world, f"Text number {n}, of a worker that dies at {step}.")
        with batches(world, f"dies-{n}", failpoints=f"{step}=kill") as dying:
            assert dying.wait_until_ended() == -9
        world.settle()
        assert f"Text number {n}" in texts(world)
    assert world.ledger.dead_letters(world.services.spec.target_id) == []
    report = world.doctor()
    assert (report.differences, report.at_rest) == (0, True), report.as_dict()
    with world.ledger.pool.connection() as conn:
        assert conn.execute("SELECT count(*) FROM doc_staged").fetchone() == (0,)
