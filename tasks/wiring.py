"""What a process of the application is made of, built once per process and on first use.

Connections and threads do not survive a fork, so a pool child builds its own.
"""

import os
from functools import cached_property
from hashlib import blake2b

import redis
from psycopg_pool import ConnectionPool

from config.settings import Settings, settings
from control.effects import LedgerEffects
from control.switches import SwitchBoard, SwitchReader
from fencebeat.claims.postgres import PostgresClaims
from fencebeat.clock import Clock, system_clock
from fencebeat.connection import Broker
from fencebeat.errors import Refused
from fencebeat.flags import FlagKeeper
from fencebeat.keys import Keys
from index.collect import collect, purge
from index.doctor import DoctorReport, examine
from index.embedding.cache import EmbeddingCache
from index.embedding.cached import CachedEmbedder
from index.embedding.client import EmbedderClient
from index.embedding.weights import ModelCard, card_of, model_folder
from index.errors import EmbedderRubbish, TargetLost
from index.ledger import Ledger, open_pool
from index.ledger.pool import app_conninfo
from index.model import TargetSpec
from index.pipeline import DocumentPipeline
from index.ports import Source, Target
from index.protocol import Indexer
from index.search import Search
from index.sources.registry import make_sources
from index.sync import Syncer, SyncReport
from index.targets import make_target


class UnknownSource(Refused):
    """There is no source {name!r}. Sources are named in FENCEBEAT_SOURCES; there are: {known}."""


class Services:
    """Everything a task or command may need. Each part is made when it is first asked for."""

    def __init__(self, configured: Settings, clock: Clock | None = None) -> None:
        self.settings = configured
        self.clock = clock or system_clock()

    # stores

    @cached_property
    def pool(self) -> ConnectionPool:
        """Connections to Postgres as the application's role."""
        return open_pool(self.settings.postgres_url, timeout=self.settings.control_timeout)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger."""
        return Ledger(self.pool)

    @cached_property
    def broker(self) -> Broker:
        """Where the broker is."""
        return Broker(self.settings.redis_url)

    @cached_property
    def redis(self) -> redis.Redis:
        """A client of the broker's database with our time-outs."""
        return self.broker.client(self.settings.control_timeout, "fencebeat-app")

    @cached_property
    def keys(self) -> Keys:
        """Names of the scheduler's records."""
        return self.broker.keys(self.settings.namespace)

    # switches

    @cached_property
    def switches(self) -> SwitchBoard:
        """The truth about switches."""
        return SwitchBoard(self.pool)

    @cached_property
    def reader(self) -> SwitchReader:
        """What this process may do now."""
        return SwitchReader(self.switches, self.redis, self.keys, self.clock, always=self.settings.kill)

    @cached_property
    def keeper(self) -> FlagKeeper:
        """Copies the switches from Postgres to Redis: `seed()` does it once, now."""
        return FlagKeeper(LedgerEffects(self.pool, self.settings.namespace), self.redis, self.keys)

    # documents

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The sources of the settings, by name."""
        return make_sources(self.settings.sources, self.clock)

    def source(self, name: str) -> Source:
        """One source. Raises UnknownSource."""
        try:
            return self.sources[name]
        except KeyError:
            raise UnknownSource(name=name, known=", ".join(sorted(self.sources)) or "none") from None

    @cached_property
    def pipeline(self) -> DocumentPipeline:
        """Bytes to chunks."""
        return DocumentPipeline.of(self.settings, self.clock)

    @cached_property
    def client(self) -> EmbedderClient:
        """The embedder."""
        return EmbedderClient(
            self.settings.embedder_address,
            self.settings.embed_timeout,
            api_key=os.environ.get("EMBEDDER_API_KEY"),
            batch_tokens=self.settings.embed_batch_tokens,
            clock=self.clock,
        )

    @cached_property
    def card(self) -> ModelCard:
        """The model: as the embedder named by EMBEDDER_URL tells it, else as its files say."""
        if self.settings.embedder_url:
            return self.client.card
        return card_of(model_folder(self.settings.model_path))

    @cached_property
    def embedder(self) -> CachedEmbedder:
        """The embedder behind the cache. Raises EmbedderRubbish where it serves another model than the target's."""
        if self.client.card.fingerprint != self.card.fingerprint:
            raise EmbedderRubbish(
                address=self.client.shown_address,
                why=f"it serves model {self.client.card.fingerprint}, the target is for {self.card.fingerprint}",
            )
        return CachedEmbedder(self.client, EmbeddingCache(self.pool))

    @cached_property
    def spec(self) -> TargetSpec:
        """The target for this chunker and this model. Another model or chunker is another target."""
        chunker_fp, model_fp = self.pipeline.chunker.fingerprint, self.card.fingerprint
        identity = f"{self.settings.target}\0{chunker_fp}\0{model_fp}"
        digest = blake2b(identity.encode(), digest_size=5).hexdigest()
        return TargetSpec(
            target_id=f"{self.settings.index_prefix}-{digest}",
            kind=self.settings.target,
            dimension=self.card.dimension,
            chunker_fp=chunker_fp,
            model_fp=model_fp,
        )

    @cached_property
    def target(self) -> Target:
        """The opened target. Raises TargetLost where the physical index is gone or not ours, and records that."""
        row = self.ledger.register_target(self.spec)
        if row.state == "lost":
            raise TargetLost(target=self.spec.target_id, why="the ledger has recorded its loss")
        target = make_target(self.spec, self.settings, self.pool)
        try:
            target.open(row.incarnation, fresh=not row.opened)
        except TargetLost:
            self.ledger.target_lost(self.spec.target_id)
            raise
        if not row.opened:
            self.ledger.target_opened(self.spec.target_id)
        return target

    # what is done with them

    @cached_property
    def indexer(self) -> Indexer:
        """Brings claimed documents up to date."""
        return Indexer(
            ledger=self.ledger,
            sources={(source.tenant_id, name): source for name, source in self.sources.items()},
            pipeline=self.pipeline,
            embedder=self.embedder,
            target=self.target,
            switches=self.reader,
            settings=self.settings,
            clock=self.clock,
        )

    @cached_property
    def syncer(self) -> Syncer:
        """Compares sources with the ledger."""
        self.ledger.register_target(self.spec)
        return Syncer(self.ledger, self.spec.target_id, self.settings, self.clock)

    def sync(self, name: str, *, approve: bool = False) -> SyncReport:
        """List one source and mark what differs."""
        return self.syncer.sync(self.source(name), approve=approve)

    def collect(self) -> int:
        """Bury what no manifest names any more; returns the number of tombstones."""
        return collect(self.ledger, self.target, self.reader)

    def purge(self) -> int:
        """Delete old tombstones; returns how many."""
        return purge(self.target, self.reader, self.settings.purge_after_seconds)

    def examine(self, tenant: str | None = None) -> DoctorReport:
        """Compare the target with the manifests and the ledger with the sources."""
        report = examine(
            self.ledger,
            self.target,
            self.clock,
            tenant_id=tenant,
            sources=list(self.sources.values()),
            syncer=self.syncer,
        )
        if tenant is None:
            self.ledger.record_doctor(report.target_id, report.as_dict())
        return report

    @cached_property
    def search(self) -> Search:
        """Strict hybrid search."""
        return Search(self.target, self.ledger, self.client)

    def close(self) -> None:
        """Close every connection that was opened."""
        opened = self.__dict__
        if "client" in opened:
            self.client.close()
        if "redis" in opened:
            self.redis.close()
        if "pool" in opened:
            self.pool.close(timeout=self.settings.control_timeout)


_made: dict[int, Services] = {}


def services() -> Services:
    """This process's services; a forked child gets its own."""
    pid = os.getpid()
    if pid not in _made:
        _made.clear()  # the parent's connections are not ours to use or to close
        _made[pid] = Services(settings())
    return _made[pid]


def effect_store(namespace: str) -> LedgerEffects:
    """The scheduler's effect store, named in `fencebeat_effect_store`."""
    return LedgerEffects(open_pool(settings().postgres_url, timeout=settings().control_timeout, size=4), namespace)


def claim_store(namespace: str) -> PostgresClaims:
    """Where the worker guard keeps its claims, named in `fencebeat_claims`: the ledger, as the application's role."""
    timeout = settings().control_timeout
    return PostgresClaims(app_conninfo(settings().postgres_url, connect_timeout=timeout), namespace, timeout)
