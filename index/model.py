"""The words of the index as types: items, documents, chunks, attempts. Frozen values; nothing here does I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a source's listing: a document's identity, its version and its size in bytes."""

    uid: str
    version: str
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds. Deletions may be concluded only from one with `complete`.

    problems: (uid or place, reason) of what could not be listed.
    """

    items: Sequence[Item]
    complete: bool
    problems: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Meta:
    """What belongs to a document and is not embedded; changing it costs no embeddings."""

    display_name: str
    url: str | None = None
    acl: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A document's bytes. `version` was taken before them and covers bytes and meta."""

    uid: str
    data: bytes
    media_type: str
    version: str
    meta: Meta


class BlockKind(StrEnum):
    """What a stretch of text is; code and tables are kept whole where they fit."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    CODE = "code"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch [start, end) of a parsed text, in characters, under its path of headings (outermost first)."""

    kind: BlockKind
    start: int
    end: int
    headings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document as text. All spans, here and later, are character offsets into `text`, which is normalised."""

    title: str | None
    text: str
    blocks: Sequence[Block]
    removed_characters: int = 0  # NUL and lone surrogates taken out by normalisation


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document that is embedded and searched as one.

    text: what a reader sees, equal to the parsed text at [start, end). embed_input: title + heading path + text.
    """

    text: str
    embed_input: str
    headings: tuple[str, ...]
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class IndexDoc:
    """A chunk as it is written to a target. `index_id` is the `_id` there; no order and no spans (manifest only)."""

    index_id: str
    chunk_id: str
    tenant_id: str
    source_id: str
    doc_uid: str
    title: str
    headings: tuple[str, ...]
    text: str
    vector: Vector
    meta: Meta


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One chunk of a committed version: its index id and its span in the normalised text."""

    index_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A physical index: for one chunker and one model. kind is opensearch, pgvector or memory."""

    target_id: str
    kind: str
    dimension: int
    chunker_fp: str
    model_fp: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim on a document: (epoch, nonce) own the lease, and every later call names them."""

    tenant_id: str
    source_id: str
    target_id: str
    doc_uid: str
    epoch: int
    nonce: UUID
    dirty_seq: int  # the number this claim answers for
    incarnation: int
    alone: bool  # its last claim ended without an outcome
    source_version: str | None  # of the committed version
    content_hash: bytes | None
    meta_hash: bytes | None
    manifest: tuple[ManifestEntry, ...]
    absent: bool  # an approved, completed listing did not have it: this attempt deletes

    @property
    def version(self) -> int:
        """External version of every index write of this attempt."""
        return self.incarnation << 32 | self.epoch

    @property
    def scopes(self) -> tuple[str, ...]:
        """The switch scopes that cover this document."""
        return scopes_of(self.tenant_id, self.source_id, self.target_id)


def scopes_of(tenant_id: str, source_id: str, target_id: str) -> tuple[str, ...]:
    """The switch scopes over a document, widest first."""
    return ("all", f"tenant:{tenant_id}", f"source:{tenant_id}/{source_id}", f"target:{target_id}")


class Outcome(StrEnum):
    """How an attempt ended; events, metrics and the ledger use the same words."""

    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    FENCED = "fenced"
    STOPPED = "stopped"  # a switch is in force, or changed since the claim
    HANDED_BACK = "handed_back"
    DEAD_LETTERED = "dead_lettered"


class ItemClass(StrEnum):
    """Every item of every bulk ends in exactly one of these."""

    OK = "ok"
    SUPERSEDED = "superseded"  # a higher version is there
    TRANSIENT = "transient"  # or unknown: the same item is sent again
    TARGET_SICK = "target_sick"  # nothing of the document's fault: breaker, hand back
    SPLIT = "split"  # too large together
    PERMANENT = "permanent"  # this item can never be written


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of one item of a write."""

    index_id: str
    outcome: ItemClass
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What stands where a chunk was. version = incarnation << 32 | committed epoch."""

    index_id: str
    tenant_id: str
    doc_uid: str
    version: int


@dataclass(frozen=True, slots=True)
class ScanRow:
    """One document of a target as the doctor sees it; version 0 where the target has none (pgvector)."""

    index_id: str
    tenant_id: str
    doc_uid: str
    version: int
    dead: bool
    routing_ok: bool = True


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found by a target, before the ledger was asked whether readers may see it."""

    index_id: str
    tenant_id: str
    source_id: str
    doc_uid: str
    score: float
    title: str
    headings: tuple[str, ...]
    text: str
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What a target answered to a search: hits best first; `reason` says why an answer is `partial`."""

    hits: Sequence[Hit]
    partial: bool = False
    reason: str = ""
