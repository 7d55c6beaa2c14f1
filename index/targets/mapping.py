"""How an OpenSearch index of ours looks: settings, strict mapping, and the mark that tells it from any other index."""

from collections.abc import Mapping
from typing import Any

from index.errors import IncarnationBehind, TargetLost
from index.model import IndexDoc, TargetSpec, Tombstone

MARK = "fencebeat"
EPOCH_MASK = 0xFFFFFFFF


def write_alias(target_id: str) -> str:
    """The alias all writes go through, with require_alias: it exists only on our index, so no write creates one."""
    return f"{target_id}-w"


def mark_of(spec: TargetSpec, incarnation: int) -> dict[str, Any]:
    """What `_meta` says about an index of ours."""
    return {
        MARK: {
            "target_id": spec.target_id,
            "incarnation": incarnation,
            "dimension": spec.dimension,
            "chunker_fp": spec.chunker_fp,
            "model_fp": spec.model_fp,
        }
    }


def check_mark(spec: TargetSpec, incarnation: int, meta: Mapping[str, Any]) -> bool:
    """Whether the mark must be raised to `incarnation`. Raises TargetLost or IncarnationBehind, see `Target.open`."""
    mark = meta.get(MARK)
    if not isinstance(mark, Mapping):
        raise TargetLost(target=spec.target_id, why="the index has no mark of fencebeat.")
    expected = mark_of(spec, incarnation)[MARK]
    other = [name for name in expected if name != "incarnation" and mark.get(name) != expected[name]]
    if other:
        raise TargetLost(target=spec.target_id, why=f"its mark has another {', '.join(other)}.")
    marked = int(mark["incarnation"])
    if marked > incarnation:
        raise IncarnationBehind(target=spec.target_id, marked=marked, incarnation=incarnation)
    return marked < incarnation


def index_body(spec: TargetSpec, incarnation: int) -> dict[str, Any]:
    """Body of the request that creates the index, mark and write alias included, in one step."""
    keyword, english = {"type": "keyword"}, {"type": "text", "analyzer": "english"}
    shown_only = {"type": "keyword", "index": False, "doc_values": False}  # any length, never searched
    return {
        "aliases": {write_alias(spec.target_id): {"is_write_index": True}},
        "settings": {
            "index": {
                "number_of_shards": 1,  # a few million chunks fit; scores of one shard need no merging
                "auto_expand_replicas": "0-1",
                "knn": True,
                "translog.durability": "request",  # an acknowledged write survives a crash
                "refresh_interval": "30s",  # each commit refreshes; this is for plain readers of removals
            }
        },
        "mappings": {
            "dynamic": "strict",
            "_meta": mark_of(spec, incarnation),
            "_routing": {"required": True},
            "properties": {
                "tenant_id": keyword,
                "source_id": keyword,
                "doc_uid": keyword,
                "chunk_id": keyword,
                "acl": keyword,
                "tags": keyword,
                "display_name": shown_only,
                "url": shown_only,
                "title": english,
                "headings": english,
                "text": english,
                "dead": {"type": "boolean"},
                "epoch": {"type": "long"},
                "buried_at": {"type": "date", "format": "epoch_second"},
                "vector": {
                    "type": "knn_vector",
                    "dimension": spec.dimension,
                    "data_type": "float",
                    "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"},
                },
            },
        },
    }


def live_body(doc: IndexDoc, epoch: int) -> dict[str, Any]:
    """A chunk as it is stored."""
    return {
        "tenant_id": doc.tenant_id,
        "source_id": doc.source_id,
        "doc_uid": doc.doc_uid,
        "chunk_id": doc.chunk_id,
        "acl": doc.meta.acl,
        "tags": doc.meta.tags,
        "display_name": doc.meta.display_name,
        "url": doc.meta.url,
        "title": doc.title,
        "headings": doc.headings,
        "text": doc.text,
        "dead": False,
        "epoch": epoch,
        "vector": doc.vector.tolist(),
    }


def dead_body(tombstone: Tombstone, now: float) -> dict[str, Any]:
    """A tombstone as it is stored: no text, no vector, so no search matches it. now: wall time in seconds."""
    return {
        "tenant_id": tombstone.tenant_id,
        "doc_uid": tombstone.doc_uid,
        "dead": True,
        "epoch": tombstone.version & EPOCH_MASK,
        "buried_at": int(now),
    }
