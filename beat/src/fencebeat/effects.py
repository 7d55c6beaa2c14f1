"""What an application may implement, so that the scheduler survives the loss of Redis: its store of effects.

The scheduler never asks who implements it. Without one, entries count as new after a loss, and flags live in Redis
alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, Self, cast

Level = Literal["emit", "start", "write"]
LEVELS: tuple[Level, ...] = ("emit", "start", "write")
"""Of a stop: no new ticks; no new tasks either; nothing is written either."""


@dataclass(frozen=True)
class Flag:
    """A stop in force for one scope (`all`, `entry:x`, `queue:x`, `tenant:x`)."""

    level: Level
    reason: str = ""
    author: str = ""
    until: float | None = None  # seconds since the epoch by the effect store's clock; None: until it is lifted

    def to_json(self) -> str:
        """The flag as the copy in Redis holds it."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a flag. Raises ValueError for anything that is not one: rubbish is unknown, never `run`."""
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.get("level") not in LEVELS:
            raise ValueError(f"not a flag: {text[:80]!r}")
        until = fields.get("until")
        if until is not None and (isinstance(until, bool) or not isinstance(until, int | float)):
            raise ValueError(f"a flag's end is a number of seconds, not {until!r}")
        return cls(
            level=cast("Level", fields["level"]),
            reason=str(fields.get("reason", "")),
            author=str(fields.get("author", "")),
            until=until,
        )


@dataclass(frozen=True)
class AuditRecord:
    """One record of the audit stream. `id` is the stream's own and orders the records."""

    id: str
    fields: Mapping[str, str]


class EffectStore(Protocol):
    """The application's store of effects (its Postgres). Each call has its own time-out and raises when in doubt."""

    def floor(self) -> int:
        """Highest token any place of effects has seen; 0 where there was none."""
        ...

    def flags(self) -> tuple[int, Mapping[str, Flag]]:
        """The generation, which only grows, and every flag in force, by scope."""
        ...

    def last_copied(self) -> str:
        """Id of a record that is kept, best the newest, so that copying can go on there; empty where there is none."""
        ...

    def copy_audit(self, records: Sequence[AuditRecord]) -> None:
        """Keep these records. The same record may come twice: `id` tells."""
        ...
