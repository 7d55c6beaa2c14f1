"""What the leader knows of the schedule: static entries from its configuration, stored ones as they were last read.

`generation` says of which state of the store that is; while the store still has it, nothing needs to be read again. It
belongs to one term: a lost leader forgets all but its configuration.

May import: entries. Must never know: Redis.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fencebeat.entries import Entry, schedule_digest
from fencebeat.errors import UnusableEntry


@dataclass
class ScheduleMemory:
    """The entries of one leader. `static` never changes; the rest is empty until a term's first synchronisation."""

    static: Mapping[str, Entry]
    stored: dict[str, Entry] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)  # stored entry -> why it cannot be run
    lost: dict[str, str] = field(default_factory=dict)  # entry whose definition disappeared -> what is known of it
    generation: int | None = None  # of the store's entries; None: not known

    def get(self, name: str) -> Entry | None:
        """The entry that would be run under this name, or None."""
        return self.static.get(name) or self.stored.get(name)

    @property
    def count(self) -> int:
        """How many definitions the store has if nothing was lost."""
        return len(self.static) + len(self.stored) + len(self.unreadable)

    @cached_property
    def digest(self) -> str:
        """Of the static entries."""
        return schedule_digest(self.static)

    def forget(self) -> None:
        """Drop what belongs to a term."""
        self.stored, self.unreadable, self.lost, self.generation = {}, {}, {}, None

    def take(self, texts: Iterable[tuple[str, str | None]]) -> list[str]:
        """Learn stored definitions (None: there is none any more); returns those that are static and not of ours."""
        foreign = []
        for name, text in texts:
            if name in self.static:
                continue
            self.stored.pop(name, None)
            self.unreadable.pop(name, None)
            if text is None:
                continue
            self.lost.pop(name, None)
            if source_of(text) == "static":
                foreign.append(name)
                continue
            try:
                self.stored[name] = Entry.of_definition(name, text)
            except UnusableEntry as error:
                self.unreadable[name] = error.what
        return foreign

    def miss(self, names: Iterable[str]) -> None:
        """These definitions were there and are not any more, though nobody removed them."""
        for name in names:
            self.unreadable.pop(name, None)
            entry = self.stored.pop(name, None)
            what = f"it ran {entry.task} ({entry.shown})" if entry is not None else "it could not be read before either"
            self.lost[name] = f"its stored definition disappeared, though nobody removed it; {what}. Add it again."


def source_of(text: str) -> str | None:
    """Where a stored definition comes from, `static` or `stored`; None for rubbish."""
    try:
        definition = json.loads(text)
    except ValueError:
        return None
    return definition.get("source") if isinstance(definition, dict) else None
