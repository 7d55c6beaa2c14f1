"""What an application may implement, so that the scheduler survives the loss of Redis: its store of effects.

The scheduler never asks who implements it. Without one, entries count as new after a loss, and flags live in Redis
alone (see `flagmemory`). A new implementation passes the suite in tests/conformance/test_effect_stores.py.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, Protocol, Self, cast

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


@dataclass(frozen=True)
class Gap:
    """Emitted ticks of an unguarded task of which nobody can say whether they ran: they may have been lost.

    A run of one entry with nothing else decided in it. first, fire_time: its first and last tick, microseconds.
    """

    entry: str
    first: int
    fire_time: int
    count: int
    task_id: str  # of the last tick


@dataclass(frozen=True)
class Past:
    """What is known of one namespace without Redis.

    marks: entry -> highest fire time (microseconds) up to which every tick was decided without emission or has a
    closed claim; an emitted tick of a guarded task without a closed claim lies above it, so it is due again.
    entries: entry -> definition as JSON. paused: entry -> who paused it, when and why, as JSON.
    """

    marks: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[Gap] = ()
    entries: Mapping[str, str] = field(default_factory=dict)
    paused: Mapping[str, str] = field(default_factory=dict)


class Version(NamedTuple):
    """Of definitions and pauses: the sealed token, and the generation of the entries, which grows with each change."""

    token: int
    generation: int


@dataclass(frozen=True)
class EntriesCopy:
    """Definitions and pauses of one version, or a page of them.

    base: the generation that this is the change from; None: a page of a complete copy. entries: name -> definition,
    None where it was removed. paused: name -> pause of those among `entries` that are paused. last: with it the copy
    is of `version`; of a complete one, whatever no page named is forgotten.
    """

    version: Version
    base: int | None
    entries: Mapping[str, str | None]
    paused: Mapping[str, str]
    last: bool = True


class EffectStore(Protocol):
    """The application's store of effects (its Postgres), for one namespace.

    Each call has its own time-out and raises when in doubt.
    """

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

    def copied_entries(self) -> Version:
        """The version of which definitions and pauses are kept completely; zeros where there is none."""
        ...

    def copy_entries(self, copy: EntriesCopy) -> bool:
        """Keep definitions and pauses. False, and nothing changed, where a newer version is kept or the base is not."""
        ...

    def past(self) -> Past:
        """What a recovery has to know, from the copies and the claims."""
        ...
