"""A small world for a test: a folder, a ledger, a target, a fake embedder, and what is really stored in the end."""

from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from config.settings import Settings
from fencebeat.clock import SystemClock
from index.embedding import calls
from index.ledger.migrate import upgrade
from index.model import Outcome
from index.targets.connection import connect
from index.targets.memory import MemoryTarget
from tasks.wiring import Services
from tests.support.waiting import until

PAGE = """# {title}

{title} starts here. It has a first paragraph with several sentences. Each of them says something about {title}.

## Details

The details of {title} fill a section of their own. They are longer than one line, and they end here.

```python
print("{title}")
```

## Notes

Notes on {title} come last. Nothing follows them.
"""


def write_corpus(root: Path, count: int) -> None:
    """Write `count` different pages below `root`."""
    for n in range(count):
        path = root / f"part-{n % 5}" / f"page-{n:03}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(title=f"Topic number {n}"))


class World:
    """One source, one ledger, one target, and the steps of the product on them."""

    def __init__(self, settings: Settings, services: Services, call_log: Path) -> None:
        self.settings = settings
        self.services = services
        self.call_log = call_log
        self.history = settings.state_dir / "history.jsonl"

    @property
    def ledger(self):
        return self.services.ledger

    @property
    def target(self):
        return self.services.target

    def sync(self, **options):
        """Sync every source."""
        return [self.services.sync(name, **options) for name in self.settings.sources]

    def index(self):
        """Run batches until nothing is claimable, and collect; outcomes and counts, added up."""
        totals = {"embedded": 0, "reused": 0, "written": 0, "outcomes": {}}
        while (report := self.services.indexer.run_batch()).claimed:
            for key in ("embedded", "reused", "written"):
                totals[key] += getattr(report, key)
            for outcome, count in report.outcomes.items():
                totals["outcomes"][outcome] = totals["outcomes"].get(outcome, 0) + count
            if set(report.outcomes) <= {Outcome.STOPPED}:
                break
        self.services.collect()
        return totals

    def settle(self, seconds: float = 30.0):
        """Until nothing is dirty: waits for leases and back-offs to run out, and indexes what comes free."""

        def nothing_is_dirty():
            self.index()
            return self.ledger.progress(self.services.spec.target_id).dirty == 0

        until(nothing_is_dirty, at_most=seconds, what="an index at rest")

    def refresh_world(self):
        """Sync, index, collect."""
        self.sync()
        return self.index()

    def embedded(self) -> int:
        """Texts the embedder has worked on, by its own call log."""
        return calls.count(self.call_log)

    def doctor(self):
        return self.services.examine()

    def live(self) -> set[tuple]:
        """What readers may see, from the stores: document, place, span, chunk id, title, headings, text, meta."""
        stored = stored_chunks(self)
        seen = set()
        for uid, ids, starts, ends in self._manifests():
            for place, (index_id, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
                seen.add((uid, place, start, end, index_id.partition(".")[0], *stored[index_id]))
        return seen

    def _manifests(self):
        with self.ledger.pool.connection() as conn:
            return conn.execute(
                "SELECT doc_uid, manifest_ids, manifest_starts, manifest_ends FROM doc_head WHERE target_id = %s",
                (self.services.spec.target_id,),
            ).fetchall()

    def close(self):
        self.services.close()


def stored_chunks(world) -> dict[str, tuple]:
    """Every live chunk of the target by index id, past the product's own readers: (title, headings, text, meta)."""
    kind = world.services.spec.kind
    if kind == "memory":
        docs = {key: row.doc for key, row in world.target._stored.items() if row.doc is not None}
        return {i: (d.title, d.headings, d.text, d.meta.display_name, d.meta.acl) for i, d in docs.items()}
    if kind == "opensearch":
        return _opensearch_chunks(world)
    with psycopg.connect(world.admin_url, row_factory=dict_row) as conn:
        table = conn.execute("SELECT pgvector_table(%s) AS name", (world.services.spec.target_id,)).fetchone()["name"]
        rows = conn.execute(
            f'SELECT c.*, h.meta FROM "{table}" c JOIN doc_head h USING (tenant_id, doc_uid) WHERE h.target_id = %s',
            (world.services.spec.target_id,),
        ).fetchall()
    return {
        r["chunk_id"]: (r["title"], tuple(r["headings"]), r["body"], r["meta"]["display_name"], tuple(r["meta"]["acl"]))
        for r in rows
    }


def _opensearch_chunks(world) -> dict[str, tuple]:
    client = connect(world.settings)
    index = world.services.spec.target_id
    client.indices.refresh(index=index)
    found, after = {}, None
    while True:
        body = {
            "size": 1000,
            "query": {"term": {"dead": False}},
            "sort": [{"chunk_id": "asc"}, {"doc_uid": "asc"}],
            "_source": {"excludes": ["vector"]},
            **({"search_after": after} if after else {}),
        }
        hits = client.search(index=index, body=body)["hits"]["hits"]
        if not hits:
            return found
        after = hits[-1]["sort"]
        for hit in hits:
            s = hit["_source"]
            found[hit["_id"]] = (
                s["title"], tuple(s.get("headings") or ()), s["text"], s.get("display_name"), tuple(s.get("acl") or ()),
            )  # fmt: skip


class LaterClock(SystemClock):
    """A wall clock ten seconds ahead: no file looks freshly written, so versions are settled at once."""

    def wall(self):
        return super().wall() + 10.0


@contextmanager
def world_at(
    *,
    database_url,
    redis_url,
    root,
    state,
    embedder,
    kind="memory",
    prefix="test",
    namespace="test",
    clock=None,
    **options,
):
    """A world on these servers. `embedder` is a running fake; `options` are further settings."""
    upgrade(database_url)
    settings = Settings(
        REDIS_URL=redis_url,
        POSTGRES_URL=database_url,
        EMBEDDER_URL=embedder.address,
        state_dir=state,
        namespace=namespace,
        index_prefix=prefix,
        sources={"docs": {"tenant": "acme", "path": str(root)}},
        target="opensearch" if kind == "memory" else kind,
        **options,
    )
    services = Services(settings, clock or LaterClock())
    if kind == "memory":
        spec = services.spec.__class__(
            target_id=services.spec.target_id,
            kind="memory",
            dimension=services.spec.dimension,
            chunker_fp=services.spec.chunker_fp,
            model_fp=services.spec.model_fp,
        )
        row = services.ledger.register_target(spec)
        target = MemoryTarget(spec)
        target.open(row.incarnation, fresh=True)
        services.ledger.target_opened(spec.target_id)
        services.__dict__.update(spec=spec, target=target)
    world = World(settings, services, embedder.call_log)
    world.admin_url = database_url
    try:
        yield world
    finally:
        world.close()
