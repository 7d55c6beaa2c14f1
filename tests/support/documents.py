"""Chunks made by hand, for tests of what stores and finds them."""

import hashlib
from uuid import uuid4

import numpy as np

from index.model import IndexDoc, ItemClass, Meta, TargetSpec, Vector

DIMENSION = 8
META = Meta(display_name="Guide", url="http://localhost/guide", acl=("staff",), tags=("howto",))


def make_spec(kind: str, dimension: int = DIMENSION) -> TargetSpec:
    """A target of its own for each test."""
    return TargetSpec(f"t-{uuid4().hex[:12]}", kind, dimension, chunker_fp="chunker-1", model_fp="model-1")


def vector_for(text: str, dimension: int = DIMENSION) -> Vector:
    """A unit vector that is always the same for the same text."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    raw = np.random.default_rng(seed).normal(size=dimension).astype(np.float32)
    return raw / np.float32(np.linalg.norm(raw))


def make_doc(
    text: str,
    *,
    index_id: str | None = None,
    tenant: str = "acme",
    uid: str = "guide.md",
    source: str = "docs",
    title: str = "Guide",
    meta: Meta = META,
    vector: Vector | None = None,
) -> IndexDoc:
    """A chunk whose id follows from tenant, document and text, unless given."""
    chunk_id = hashlib.blake2b(f"{tenant}/{uid}/{text}".encode(), digest_size=20).hexdigest()
    return IndexDoc(
        index_id=index_id or chunk_id,
        chunk_id=chunk_id,
        tenant_id=tenant,
        source_id=source,
        doc_uid=uid,
        title=title,
        headings=("Guide", "Setup"),
        text=text,
        vector=vector_for(text) if vector is None else vector,
        meta=meta,
    )


def version(epoch: int, incarnation: int = 1) -> int:
    """External version of an attempt's writes."""
    return incarnation << 32 | epoch


def classes(results) -> list[ItemClass]:
    """The outcomes of a write, in order."""
    return [result.outcome for result in results]
