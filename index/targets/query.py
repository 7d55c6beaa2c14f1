"""Search requests to OpenSearch and their replies. Pure.

The tenant's filter goes into the k-NN clause and into the word leg: around a k-NN clause it would filter afterwards,
and a small tenant would get nothing. The pipeline is always sent inline: a hybrid query without one returns duplicates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from index.model import Hit, Vector
from index.targets.ids import MOST_HITS

WEIGHTS = (0.5, 0.5)  # words, vectors; with min_max the best of all that were measured (index.md, Search)
_FIELDS = {"excludes": ["vector", "chunk_id", "dead", "epoch"]}  # returning vectors doubles the time


def _filter(tenant_id: str, filters: Mapping[str, str]) -> list[dict[str, Any]]:
    terms = {"tenant_id": tenant_id, "dead": False, **filters}
    return [{"term": {name: value}} for name, value in terms.items()]


def word_leg(text: str, tenant_id: str, filters: Mapping[str, str]) -> dict[str, Any]:
    """BM25 over title (twice) and text, within the tenant."""
    words = {"combined_fields": {"query": text, "fields": ["title^2", "text"]}}
    return {"bool": {"must": [words], "filter": _filter(tenant_id, filters)}}


def vector_leg(vector: Vector, tenant_id: str, filters: Mapping[str, str]) -> dict[str, Any]:
    """The nearest chunks within the tenant."""
    within = {"bool": {"filter": _filter(tenant_id, filters)}}
    return {"knn": {"vector": {"vector": vector.tolist(), "k": MOST_HITS, "filter": within}}}


def leg_body(leg: Mapping[str, Any], size: int, timeout: float) -> dict[str, Any]:
    """One leg alone. timeout: seconds the server may take; after that it answers with what it has."""
    return {"size": size, "query": leg, "_source": _FIELDS, "timeout": f"{max(1, int(timeout * 1000))}ms"}


def hybrid_body(legs: Sequence[Mapping[str, Any]], size: int, timeout: float) -> dict[str, Any]:
    """Both legs merged by the server: min_max, then the mean."""
    return {
        **leg_body({"hybrid": {"queries": list(legs), "pagination_depth": MOST_HITS}}, size, timeout),
        "search_pipeline": {
            "phase_results_processors": [
                {
                    "normalization-processor": {
                        "normalization": {"technique": "min_max"},
                        "combination": {"technique": "arithmetic_mean", "parameters": {"weights": list(WEIGHTS)}},
                    }
                }
            ]
        },
    }


def hit_of(row: Mapping[str, Any], score: float) -> Hit:
    """A hit from a row of the reply."""
    source = row["_source"]
    return Hit(
        index_id=row["_id"],
        tenant_id=source["tenant_id"],
        source_id=source["source_id"],
        doc_uid=source["doc_uid"],
        score=score,
        title=source["title"],
        headings=tuple(source["headings"]),
        text=source["text"],
        meta={
            "display_name": source["display_name"],
            "url": source["url"],
            "acl": tuple(source["acl"]),
            "tags": tuple(source["tags"]),
        },
    )


def why_partial(reply: Mapping[str, Any]) -> str:
    """Why a reply is not the whole answer; empty where it is."""
    if reply.get("timed_out"):
        return "the index did not finish in time"
    failed = reply.get("_shards", {}).get("failed", 0)
    return f"{failed} of {reply['_shards']['total']} shards did not answer" if failed else ""
