"""Names derived from content. Every hash is over length-prefixed parts, so no two lists of parts look the same.

chunk id = base32(blake2b-160(tenant, document, chunker, model, title, headings, embedder input, text, occurrence)). It
covers everything of a chunk that a target stores apart from meta: a chunk that looks different to a reader never has
the id of another, also where the embedder sees the same (a long title is shortened for the embedder).
"""

import json
from base64 import b32encode
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from hashlib import blake2b

from index.model import Chunk, Meta

CHUNK_ID_BYTES = 20
META_HASH_BYTES = 8
INPUT_HASH_BYTES = 32


def pack(parts: Iterable[bytes]) -> bytes:
    """Parts as one string of bytes that tells where each ends: 8 bytes of length, big-endian, before each."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def input_hash(text: str) -> bytes:
    """The 32 bytes under which the vector of this exact embedder input is kept. `text` has no lone surrogates."""
    return blake2b(text.encode(), digest_size=INPUT_HASH_BYTES).digest()


def content_hash(title: str | None, text: str) -> bytes:
    """32 bytes for a document's whole normalised content; no title and an empty one are different."""
    parts = [b"" if title is None else b"\x01" + title.encode(), text.encode()]
    return blake2b(pack(parts), digest_size=INPUT_HASH_BYTES).digest()


def meta_hash(meta: Meta) -> bytes:
    """8 bytes for the meta: blake2b of its JSON with sorted keys. The order of ACL entries and tags does not count."""
    facts = asdict(meta) | {"acl": sorted(set(meta.acl)), "tags": sorted(set(meta.tags))}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=META_HASH_BYTES).digest()


def chunk_ids(
    *, tenant_id: str, doc_uid: str, chunker_fp: str, model_fp: str, title: str | None, chunks: Sequence[Chunk]
) -> list[str]:
    """The id of each chunk of a document, in order; equal chunks are told apart by their occurrence, from 0."""
    owner = [tenant_id, doc_uid, chunker_fp, model_fp, "" if title is None else f"\x01{title}"]
    prefix = pack(part.encode() for part in owner)
    seen: Counter[bytes] = Counter()
    ids = []
    for chunk in chunks:
        content = pack(part.encode() for part in (chunk.embed_input, chunk.text, *chunk.headings))
        digest = blake2b(prefix + pack([content, str(seen[content]).encode()]), digest_size=CHUNK_ID_BYTES).digest()
        ids.append(b32encode(digest).decode().lower())
        seen[content] += 1
    return ids
