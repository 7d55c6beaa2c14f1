"""Index ids and the filters of a search: what all kinds of target share."""

import base64
from collections.abc import Mapping

from fencebeat.errors import Refused

FILTERS = ("source_id", "doc_uid", "acl", "tags")
"""The fields by which a search may be narrowed, besides the tenant, which is not optional."""

MOST_HITS = 100
"""Depth of each leg, and so the most hits a target gives (index.md, Search: pagination_depth 100, k = 100)."""


def with_meta(chunk_id: str, meta_hash: bytes) -> str:
    """The index id where meta lives in the chunk's document: other meta is another document (index.md, Chunk id)."""
    return f"{chunk_id}.{base64.b32encode(meta_hash[:8]).decode().rstrip('=').lower()}"


def check_request(tenant_id: str, limit: int, filters: Mapping[str, str]) -> None:
    """Refuse a search without a tenant, with a filter nobody has, or for more hits than the legs are deep."""
    if not tenant_id:
        raise Refused(why="a search needs a tenant.")
    if not 1 <= limit <= MOST_HITS:
        raise Refused(why=f"a search gives 1 to {MOST_HITS} hits, not {limit}.")
    unknown = sorted(set(filters) - set(FILTERS))
    if unknown:
        raise Refused(why=f"there is no filter {', '.join(unknown)}; there are {', '.join(FILTERS)}.")
