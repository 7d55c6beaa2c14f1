"""What an error of OpenSearch means for the item it is about. Pure functions, tested with recorded replies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy.exceptions import (
    ConnectionError as RequestBroken,
)
from opensearchpy.exceptions import (
    ConnectionTimeout,
    SerializationError,
    SSLError,
    TransportError,
)

from index.model import ItemClass

# The whole index is at fault, whatever status comes with it.
_SICK = frozenset(
    {
        "index_not_found_exception",
        "index_closed_exception",
        "security_exception",
        "alias_not_found_exception",
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A whole request that failed. outcome_unknown: it may have been carried out all the same."""

    outcome: ItemClass
    reason: str
    outcome_unknown: bool = False
    retry_after: str | None = None


def classify_item(status: int, error: object) -> tuple[ItemClass, str]:
    """Class and reason of an item by its HTTP status and its `error` object (or text, or None).

    A cluster block is a sick target at any status but 503, where the cluster is only starting or electing; the
    flood-stage watermark's block comes as 429 and does not pass by itself. An unknown 5xx is transient: the bounds
    of the loop end it.
    """
    kind, reason = _explained(error)
    if 200 <= status < 300:
        return ItemClass.OK, ""
    if status == 409:
        return ItemClass.SUPERSEDED, reason
    if kind == "cluster_block_exception" and status != 503:
        return ItemClass.TARGET_SICK, reason
    if kind in _SICK or status in (401, 403, 404):
        return ItemClass.TARGET_SICK, reason
    if status == 413:
        return ItemClass.SPLIT, reason
    if status in (0, 408, 429) or status >= 500:
        return ItemClass.TRANSIENT, reason or f"status {status}"
    return ItemClass.PERMANENT, reason or f"status {status}"


def fault_of(error: Exception) -> Fault | None:
    """What a failed request means for all its items; None for an exception that is not about a request."""
    if isinstance(error, SSLError):
        return Fault(ItemClass.TARGET_SICK, f"TLS: {error.error}")
    if isinstance(error, ConnectionTimeout):
        return Fault(ItemClass.TRANSIENT, "no answer in time", outcome_unknown=True)
    if isinstance(error, RequestBroken):
        return Fault(ItemClass.TRANSIENT, f"the connection broke: {error.error}", outcome_unknown=True)
    if isinstance(error, SerializationError):
        return Fault(ItemClass.TRANSIENT, "the reply was cut off", outcome_unknown=True)
    if not isinstance(error, TransportError):
        return None
    info = error.info
    outcome, reason = classify_item(int(error.status_code), info.get("error") if isinstance(info, Mapping) else info)
    if outcome in (ItemClass.PERMANENT, ItemClass.SUPERSEDED):
        outcome = ItemClass.SPLIT  # one item that the server cannot read fails all; halving finds it
    return Fault(outcome, reason or f"status {error.status_code}", retry_after=getattr(error, "retry_after", None))


def _explained(error: object) -> tuple[str, str]:
    """Type and a readable reason with its innermost cause."""
    if not isinstance(error, Mapping):
        return "", str(error or "")
    kind = str(error.get("type", ""))
    inner: Mapping[str, Any] = error
    while isinstance(inner.get("caused_by"), Mapping):
        inner = inner["caused_by"]
    reason = f"{kind}: {error.get('reason', '')}"
    if inner is not error:
        reason += f" ({inner.get('reason', '')})"
    return kind, reason


def classify_sqlstate(state: str | None) -> ItemClass:
    """Class of a Postgres error by its SQLSTATE (None: the connection broke).

    Serialisation, deadlock, lock time-out, cancel, shutdown, too many connections and internal errors (an index that
    races with VACUUM) pass; a full disk, missing tables or rights and a read-only server do not pass by themselves;
    data that the server cannot store is the item's fault. Source: PostgreSQL, Appendix A, Error Codes.
    """
    if state is None or state[:2] in ("08", "40", "57", "XX") or state in ("55P03", "53300", "53400"):
        return ItemClass.TRANSIENT
    if state[:2] in ("22", "54"):
        return ItemClass.PERMANENT
    return ItemClass.TARGET_SICK
