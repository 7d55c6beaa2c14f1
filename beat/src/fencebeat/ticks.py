"""A tick's identity: (entry, fire time), its names, and the trace it begins. Pure functions.

Identity comes first, leadership second: two processes that compute the same tick give it the same task id, so a
duplicate can be refused whoever sends it.
"""

import hashlib
import uuid
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as as_json

from fencebeat.firetimes import SECOND

_NAMESPACE = uuid.UUID("7d6bfb36-3c51-5b0e-9a2f-6f1f3f0c8d11")  # chosen once; another one would rename every tick


def tick_id(entry: str, fire_time: int) -> str:
    """The tick as text: entry@seconds since the epoch, with as many decimals as it needs. fire_time in microseconds."""
    seconds, rest = divmod(fire_time, SECOND)
    return f"{entry}@{seconds}" + (f".{rest:06d}".rstrip("0") if rest else "")


def task_id(namespace: str, entry: str, fire_time: int) -> str:
    """The Celery task id of a tick: the same in every process and after every loss of data."""
    name = f"[{as_json(namespace)}, {as_json(entry)}, {fire_time}]"
    digest = hashlib.sha1(_NAMESPACE.bytes + name.encode(), usedforsecurity=False)
    return as_uuid(digest.digest()[:16], version=5)  # `uuid.uuid5`, without an object for each


def as_uuid(value: bytes, *, version: int) -> str:
    """Sixteen bytes as the text of a UUID of that version (RFC 9562, section 4)."""
    text = value.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-{version}{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def traceparent(of: str) -> str:
    """A W3C traceparent header whose trace belongs to the tick with task id `of`, so a repeated tick is in one trace.

    Source: https://www.w3.org/TR/trace-context/ , version 00, sampled.
    """
    digest = hashlib.sha256(of.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def instant(fire_time: int) -> str:
    """A fire time (microseconds since the epoch) as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(fire_time // SECOND, UTC).replace(microsecond=fire_time % SECOND)
    return moment.isoformat().replace("+00:00", "Z")
