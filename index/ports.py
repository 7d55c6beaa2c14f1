"""What is pluggable, as protocols: sources, embedder, targets, switches. Each has one conformance suite in tests/."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from index.model import (
    Chunk,
    Fetched,
    Found,
    IndexDoc,
    ItemResult,
    Listing,
    Parsed,
    ScanRow,
    TargetSpec,
    Tombstone,
    Vector,
)

Hook = Callable[[], None]


class Source(Protocol):
    """A place documents come from."""

    tenant_id: str
    source_id: str

    def list(self) -> Listing:
        """Everything the source holds. Raises SourceUnavailable when it cannot be listed at all."""
        ...

    def fetch(self, uid: str, limit: int) -> Fetched:
        """One document of at most `limit` bytes.

        Raises DocumentNotFound, DocumentTooLarge, DocumentUnreadable (permission) or SourceUnavailable.
        """
        ...


class Chunker(Protocol):
    """Cuts a parsed document into chunks within the model's token budget."""

    fingerprint: str  # covers code version, parameters and tokenizer

    def split(self, parsed: Parsed) -> Sequence[Chunk]:
        """The chunks in order. No chunk's `tokens` is above the budget; every character but white space is in one."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors. Raises EmbedderUnavailable, or EmbedderRubbish when a check of the vectors fails."""

    @property
    def fingerprint(self) -> str:
        """Names the model by its weights, tokenizer, pooling, normalisation, prefix, max length, dtype, backend."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, inputs: Sequence[str]) -> Sequence[Vector]:
        """One unit-length float32 vector for each input, in order."""
        ...


def nothing() -> None:
    """Permit whatever comes next: the hook of callers that have nothing to check before a request."""


class Target(Protocol):
    """One physical index. Writes carry a version; a lower one than what is there changes nothing (SUPERSEDED)."""

    spec: TargetSpec

    def open(self, incarnation: int, *, fresh: bool) -> None:
        """Check the index's mark; `fresh`: the ledger has never seen it open, so create it where there is none.

        A mark of an older incarnation is raised to this one. Raises TargetLost when the index is missing though not
        `fresh`, or has no or another mark; IncarnationBehind when its mark is newer than the ledger's incarnation.
        """
        ...

    def index_id(self, chunk_id: str, meta_hash: bytes) -> str:
        """The id under which a chunk with this meta is stored here."""
        ...

    def write(
        self, docs: Sequence[IndexDoc], version: int, *, epoch: int, before_request: Hook = nothing
    ) -> Sequence[ItemResult]:
        """Write all docs at `version`, to the end: each result is OK, SUPERSEDED, TARGET_SICK or PERMANENT.

        Results are in the order of `docs`. `before_request` is called before each request and may raise to stop.
        Raises TargetUnavailable when items still have an unknown outcome after all retries.
        """
        ...

    def refresh(self) -> None:
        """Make every acknowledged write visible to searches that begin from now on."""
        ...

    def bury(self, tombstones: Sequence[Tombstone], *, before_request: Hook = nothing) -> Sequence[ItemResult]:
        """Write tombstone documents. SUPERSEDED is normal: an open attempt has written the id anew.

        Where a commit removes chunks itself (pgvector), nothing is left to bury and every result is OK.
        """
        ...

    def purge(self, older_than_seconds: float, *, before_request: Hook = nothing) -> int:
        """Delete tombstones older than that, each with the version read from itself. Returns how many.

        Where there are none (pgvector), the staged rows of attempts that old are deleted instead.
        """
        ...

    def scan(self, tenant_id: str | None = None) -> Iterator[ScanRow]:
        """Every document in the index by id and version, tombstones included, after a refresh."""
        ...

    def search(
        self,
        *,
        text: str,
        vector: Vector | None,
        tenant_id: str,
        limit: int,
        filters: Mapping[str, str],
        timeout: float,
    ) -> Found:
        """The best chunks of one tenant, best first, at most 100; by words alone where `vector` is None.

        filters: field -> value, of source_id, doc_uid, acl and tags. Raises Refused for another field,
        TargetUnavailable when no answer comes in `timeout` seconds.
        """
        ...

    def write_count(self) -> int | None:
        """The store's own counter of index operations (OpenSearch: index_total); None where there is none."""
        ...


class Switches(Protocol):
    """The kill switch as the index sees it: asked before each embedding batch, bulk and commit."""

    def permits(self, level: str, scopes: Sequence[str]) -> bool:
        """False where `level` (start or write) is stopped in one of `scopes`, or where nobody can tell."""
        ...
