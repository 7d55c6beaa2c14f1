"""The copy of definitions and pauses in the effect store, kept up by the record of edits.

Each look compares one number, the generation of the entries. Where it grew, the edits since the copied generation are
read; where they are all there, one after another, only what they name is copied. Else (the first look of a term, a
schedule that was synchronised, edits that were trimmed) everything is, in pages.

A version is (token, generation): a promoted replica may count generations again from an earlier one, but its next term
has a higher token. While the term stays the same, such a replica's edits are copied once their number is higher again.

May import: the port of the effect store, Redis. Must never know: who leads, what a definition says.
"""

from collections.abc import Iterable
from typing import Any

import redis

from fencebeat.effects import EffectStore, EntriesCopy, Version
from fencebeat.entries import RESERVED
from fencebeat.keys import Keys
from fencebeat.scripts import asking

EDITS = 500
"""Most edits that are copied one by one: beyond them a complete copy is less work."""


class DefinitionCopier:
    """Copies definitions and pauses; one thread's. `client`'s answers are text. page: most entries in one call."""

    def __init__(self, effects: EffectStore, client: redis.Redis, keys: Keys, *, page: int = 500) -> None:
        self._effects, self._client, self._keys, self._page = effects, client, keys, page
        self._kept: Version | None = None  # version that the effect store has; None: to be asked

    def copy(self) -> bool:
        """Copy what changed since the last look; returns whether anything did. Nothing while the store is unknown.

        Raises StoreUnreachable, and whatever the effect store raises; the next look begins again.
        """
        with asking(self._client), self._client.pipeline(transaction=True) as both:
            both.hget(self._keys.entries, RESERVED)
            both.hget(self._keys.term, "token")
            both.xrevrange(self._keys.edits, count=1)
            generation, token, newest = both.execute()
        if not _number(generation) or not _number(token):
            return False
        version = Version(int(token), int(generation))
        if self._kept is not None and self._kept >= version:
            return False
        self._kept, kept = None, self._effects.copied_entries()
        if kept < version:
            names = self._edited(kept, version) if newest else None
            done = self._complete(version) if names is None else self._change(kept, version, names)
            if not done:  # another copier was faster: look again next time
                return True
            kept = version
        self._kept = kept
        return True

    def _edited(self, kept: Version, version: Version) -> set[str] | None:
        """The entries that the edits between two versions name; None where that is not all that happened."""
        if kept.token != version.token:
            return None
        wanted = set(range(kept.generation + 1, version.generation + 1))
        names: set[str] = set()
        with asking(self._client):
            edits: Any = self._client.xrevrange(self._keys.edits, count=EDITS)
        for _, edit in edits:
            generation = int(edit.get("generation", 0))
            if generation in wanted:
                if not edit.get("entry"):  # a synchronisation
                    return None
                wanted.discard(generation)
                names.add(edit["entry"])
        return None if wanted else names

    def _change(self, kept: Version, version: Version, names: Iterable[str]) -> bool:
        return self._keep(version, kept.generation, sorted(names), last=True)

    def _complete(self, version: Version) -> bool:
        cursor, going = 0, True
        while going:
            with asking(self._client):
                found: Any = self._client.hscan(self._keys.entries, cursor, count=self._page)
            cursor, page = found
            names = [name for name in page if name != RESERVED]
            going = cursor != 0
            # A small hash comes as one page whatever was asked for.
            for first in range(0, max(1, len(names)), self._page):
                part, last = names[first : first + self._page], not going and first + self._page >= len(names)
                if not self._keep(version, None, part, last=last):
                    return False
        return True

    def _keep(self, version: Version, base: int | None, names: list[str], *, last: bool) -> bool:
        """Read these entries as they are now, which may be newer than `version`, and keep them.

        In the step that reads them the store must still know its past: one that was flushed a moment ago has no
        entries, and to copy that would take them from the effect store just before they are needed.
        """
        with asking(self._client), self._client.pipeline(transaction=True) as both:
            both.hget(self._keys.entries, RESERVED)
            both.hget(self._keys.term, "token")
            if names:
                both.hmget(self._keys.entries, names)
                both.hmget(self._keys.paused, names)
            generation, token, *texts = both.execute()
        if token != str(version.token) or not _number(generation) or int(generation) < version.generation:
            return False
        definitions, pauses = texts or ([], [])
        return self._effects.copy_entries(
            EntriesCopy(
                version=version,
                base=base,
                entries=dict(zip(names, definitions, strict=True)),
                paused={name: pause for name, pause in zip(names, pauses, strict=True) if pause is not None},
                last=last,
            )
        )


def _number(value: Any) -> bool:
    return isinstance(value, str) and value.isdecimal()
