"""The status endpoint as a process, on real servers."""

import re
import sys

import httpx
import pytest

from tests.support.processes import Process
from tests.support.waiting import until


@pytest.fixture
def world(make_world, tmp_path):
    """One page, indexed."""
    root = tmp_path / "docs"
    root.mkdir()
    (root / "a.md").write_text("# Alpha\n\nThe lease ends by itself.\n")
    made = make_world(root, "pgvector")
    made.refresh_world()
    return made


@pytest.fixture
def page(world):
    """A client of `fencebeat page`."""
    command = [sys.executable, "-m", "tests.support.commands", "page", "--port", "0"]
    with Process(world, "page", command) as process:
        found = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", process.log.read_text()), at_most=60)
        with httpx.Client(base_url=found[0], timeout=20) as client:
            yield client


def test_the_page_says_what_is_wrong_since_when_and_searches(world, page):
    health = page.get("/healthz")
    assert health.status_code == 200
    problems = {problem["kind"]: problem for problem in health.json()["problems"]}
    assert health.json()["status"] == "degraded"
    since = problems["leader"]["since"]
    assert since

    again = until(lambda: _later(page, health.json()), what="a second look at the stores")
    assert {p["kind"]: p["since"] for p in again["problems"]}["leader"] == since, "it began when it was first seen"

    shown = page.get("/", params={"q": "lease", "tenant": "acme"}).text
    assert "No beat leads" in shown
    assert "The lease ends by itself." in shown
    refused = page.get("/", params={"q": "<script>", "tenant": "nobody"}).text
    assert "There is no tenant nobody" in refused
    assert "<script>" not in refused
    assert "Name a tenant" in page.get("/", params={"q": "lease"}).text


def _later(page, before):
    seen = page.get("/status.json").json()
    return seen if "at" in seen and seen["problems"] and before["problems"] else None


def test_metrics_come_from_the_stores_and_from_the_processes(world, page):
    world.services.switches.on("tenant:acme", "write", reason="a test", author="me", origin="test")
    with world.ledger.pool.connection() as connection:
        connection.execute(
            "INSERT INTO dead_letter (tenant_id, target_id, doc_uid, source_id, reason, fingerprint)"
            " VALUES ('acme', 't', 'x', 'docs', 'r', 'DocumentTooLarge')"
        )

    text = page.get("/metrics").text

    target = world.services.spec.target_id
    for line in (
        "fencebeat_leader 0.0",
        "fencebeat_degraded 1.0",
        "killswitch_active 1.0",
        'dlq_size{fingerprint="DocumentTooLarge"} 1.0',
        f'index_documents{{state="indexed",target="{target}"}} 1.0',
        f'index_chunks{{target="{target}"}} 1.0',
    ):
        assert line in text, text
