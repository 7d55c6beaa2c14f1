"""Bring the stored schedule and the leader's memory together: only what differs is read, sent and written.

    term's digest is ours ──▶ names alone are compared ──▶ what is not static is read
    another digest        ──▶ every definition is compared, page by page
                          ──▶ static ones that differ, are missing or are no longer configured: `sync_entries.lua`,
                              in one step up to 1,000 of them, else in pages, the digest with the last one
    afterwards            ──▶ `follow`: the edits since the generation in memory; with a hole in them, names again

Both are generators: they hand the thread back between pages, so that a large schedule never looks like a hung process.
Lost definitions (deleted behind our back) are told from removed ones by the digest and by the generation, which only
our scripts change: a static one comes back with its mark, a stored one is named in `ScheduleMemory.lost`.
"""

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import redis

from fencebeat.entries import RESERVED, Entry
from fencebeat.errors import StoreUnknown
from fencebeat.history import record
from fencebeat.keys import Keys
from fencebeat.lease import Term
from fencebeat.schedule_memory import ScheduleMemory
from fencebeat.scripts import asking

log = logging.getLogger(__name__)

Ask = Callable[[str, Term, Sequence[str], Sequence[Any]], list[str]]
"""Runs a script under a term: name, term, keys, arguments after the term's own; raises what `Store` raises."""

ONE_STEP = 1000
"""Differing entries that are written in one step; more of them would hold the server's other clients for too long."""
PAGE = 500
READ = 1000
"""Definitions of one reply."""
FOLLOWED = 1000
"""Most edits that are followed one by one; after more of them the names are compared again."""


@dataclass(frozen=True)
class _Facts:
    """The store as a synchronisation found it."""

    now: int
    generation: str
    digest: str | None
    replaced: str | None  # the digest before this one
    paused: frozenset[str]


class Synchroniser:
    """Synchronises one memory with the store. `complete`: compare every definition, whatever the digest says."""

    def __init__(self, client: redis.Redis, keys: Keys, ask: Ask, audit_length: int) -> None:
        self._client, self._keys, self._ask, self._keep = client, keys, ask, audit_length
        self.removed = 0  # static entries that the last run removed

    def synchronise(self, term: Term, memory: ScheduleMemory, *, complete: bool, attempts: int = 3) -> Iterator[None]:
        """Make the stored static entries those of `memory` and load the others into it.

        A new entry and one whose timing was edited get a mark of now: neither fires for the past. An entry whose
        arguments alone changed keeps its mark and its next fire time. Marks of removed entries stay. Raises what
        `Store` raises, StoreUnknown when the schedule went on changing meanwhile.
        """
        for _ in range(attempts):
            if (yield from self._attempt(term, memory, complete)):
                return
        raise StoreUnknown(record=self._keys.entries, why="entries went on changing while the schedule was compared")

    def follow(self, term: Term, memory: ScheduleMemory, generation: int) -> Iterator[None]:
        """Learn the edits up to `generation`, or synchronise where they are not all there."""
        missing = generation - (memory.generation or 0)
        edits: list[tuple[str, dict[str, str]]] = []
        if memory.generation is not None and 0 < missing <= FOLLOWED:
            with asking(self._client):
                edits = self._client.xrevrange(self._keys.edits, count=missing + READ)  # type: ignore[assignment] # redis-py leaves it open
        news = {
            int(fields.get("generation", "0")): fields
            for _, fields in edits
            if fields.get("generation", "").isdigit()
            and (memory.generation or 0) < int(fields["generation"]) <= generation
        }
        if len(news) != missing or any(fields.get("op") == "sync" for fields in news.values()):
            yield from self.synchronise(term, memory, complete=False)
            return
        names = {fields.get("entry", "") for fields in news.values()} - {"", RESERVED}
        for some in _pages(names):
            memory.take(zip(some, self._definitions(some), strict=True))
        memory.generation = generation

    def _attempt(self, term: Term, memory: ScheduleMemory, complete: bool) -> Generator[None, None, bool]:
        facts = self._facts()
        ours = facts.digest == memory.digest  # so what is missing or damaged was stored, and is not a new entry
        differing: dict[str, str | None] = {}
        unseen = set(memory.static)
        others: set[str] = set()
        for page in self._names() if ours and not complete else self._texts():
            for name, text in page:
                if name not in memory.static:
                    others.add(name)
                    continue
                unseen.discard(name)
                if text is not None and text != memory.static[name].definition:
                    differing[name] = text
            yield
        if ours and unseen:
            log.error("definitions disappeared and are restored: %s", ", ".join(sorted(unseen)[:20]))
        differing |= dict.fromkeys(
            name for name in memory.static if name in unseen
        )  # in the order of the configuration
        left = (memory.stored.keys() | memory.unreadable.keys()) - others
        if memory.generation == int(facts.generation):
            memory.miss(left)
        else:
            memory.take((name, None) for name in left)
        gone: list[str] = []
        for some in _pages(others):
            gone.extend(memory.take(zip(some, self._definitions(some), strict=True)))
            yield
        found = facts
        facts, moved = yield from self._write(term, memory, facts, differing, gone, restoring=ours)
        if not moved:
            _tell(term, memory, found, len(differing), len(gone))
        if moved or not (yield from self._make_due(term, memory, facts)):
            return False
        memory.generation = int(facts.generation)
        return True

    def _write(
        self,
        term: Term,
        memory: ScheduleMemory,
        facts: _Facts,
        differing: Mapping[str, str | None],
        gone: Sequence[str],
        *,
        restoring: bool,
    ) -> Generator[None, None, tuple[_Facts, bool]]:
        self.removed = 0
        total = len(differing) + len(gone)
        if total == 0 and facts.digest == memory.digest:
            return facts, False
        size = ONE_STEP if total <= ONE_STEP else PAGE
        work: list[tuple[str, bool]] = [*((name, True) for name in differing), *((name, False) for name in gone)]
        generation = facts.generation
        for at in range(0, max(total, 1), size):
            page = work[at : at + size]
            names = [name for name, wanted in page if wanted]
            lines: list[Any] = []
            for name, mark in zip(names, self._marks(names), strict=True):
                lines.extend(_line(memory.static[name], differing[name], mark, facts.now, restoring=restoring))
            leaving = [name for name, wanted in page if not wanted]
            answer = self._send(
                term,
                memory.digest if at + size >= total else "",
                generation,
                [len(names), *lines, 0, len(leaving), *leaving],
            )
            if answer[0] == "moved":
                return facts, True
            self.removed += int(answer[1])
            generation = answer[2]
            yield
        return replace(facts, generation=generation), False

    def _make_due(self, term: Term, memory: ScheduleMemory, facts: _Facts) -> Generator[None, None, bool]:
        """Put back among the due ones whatever has a definition and is neither paused nor there."""
        wanted = len(memory.static) + len(memory.stored) - len(facts.paused)
        with asking(self._client):
            if self._client.zcard(self._keys.due) >= wanted:
                return True
            there = set(self._client.zrange(self._keys.due, 0, -1))
        missing = [
            name
            for entries in (memory.static, memory.stored)
            for name in entries
            if name not in there and name not in facts.paused
        ]
        for page in _pages(missing, PAGE):
            lines: list[Any] = []
            for name, mark in zip(page, self._marks(page), strict=True):
                entry = memory.get(name)
                following = _due_after(entry, int(mark)) if entry is not None and mark and mark.isdigit() else None
                if following is not None:
                    lines.append((name, mark, following))
            if lines:
                repairs = [len(lines), *(part for line in lines for part in line)]
                if self._send(term, memory.digest, facts.generation, [0, *repairs, 0])[0] == "moved":
                    return False
            yield
        return True

    def _send(self, term: Term, digest: str, generation: str, parts: Sequence[Any]) -> list[str]:
        keys = self._keys
        return self._ask(
            "sync_entries",
            term,
            [keys.lock, keys.term, keys.entries, keys.last, keys.due, keys.audit, keys.paused, keys.edits],
            [self._keep, digest, generation, *parts],
        )

    def _facts(self) -> _Facts:
        keys = self._keys
        with asking(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            pipe.hget(keys.entries, "generation")
            pipe.hmget(keys.term, "digest", "digest_before")
            pipe.hkeys(keys.paused)
            (seconds, microseconds), generation, (digest, replaced), paused = pipe.execute()
        if generation is None or not generation.isdigit():
            raise StoreUnknown(record=keys.entries, why="it has no generation")
        return _Facts(seconds * 1_000_000 + microseconds, generation, digest, replaced, frozenset(paused))

    def _names(self) -> Iterator[list[tuple[str, str | None]]]:
        with asking(self._client):
            names: list[str] = self._client.hkeys(self._keys.entries)  # type: ignore[assignment] # redis-py leaves it open
        yield [(name, None) for name in names if name != RESERVED]

    def _texts(self) -> Iterator[list[tuple[str, str | None]]]:
        cursor = 0
        while True:
            with asking(self._client):
                answer: Any = self._client.hscan(self._keys.entries, cursor, count=READ)
            cursor, found = answer
            yield [(name, text) for name, text in found.items() if name != RESERVED]
            if cursor == 0:
                return

    def _definitions(self, names: Sequence[str]) -> list[str | None]:
        with asking(self._client):
            return self._client.hmget(self._keys.entries, names)  # type: ignore[return-value] # redis-py leaves it open

    def _marks(self, names: Sequence[str]) -> list[str | None]:
        if not names:
            return []
        with asking(self._client):
            return self._client.hmget(self._keys.last, names)  # type: ignore[return-value] # redis-py leaves it open


def _tell(term: Term, memory: ScheduleMemory, found: _Facts, changed: int, removed: int) -> None:
    """Say that a configuration replaced another one: a rollout, or two that take turns."""
    if found.digest in (None, memory.digest):
        return
    back = found.replaced == memory.digest
    record("event", event="schedule.changed", token=term.token, digest=memory.digest, before=found.digest, back=back)
    log.warning("this configuration replaced the schedule: %d entries changed, %d removed", changed, removed)
    if back:
        log.error(
            "the schedule went back to the one before: unless this was a rollback, beats with different configurations "
            "take turns. Give all of them the same beat_schedule."
        )


def _pages(names: Iterable[str], size: int = READ) -> Iterator[list[str]]:
    rest = iter(names)
    while page := list(islice(rest, size)):
        yield page


def _due_after(entry: Entry, mark: int) -> int | None:
    following = entry.next_after(mark)
    return None if following is None else entry.due_at(following)


def _line(entry: Entry, text: str | None, read: str | None, now: int, *, restoring: bool) -> list[Any]:
    stored: Mapping[str, Any] = {}
    if text is not None:
        try:
            stored = json.loads(text)
        except ValueError:
            log.exception("the definition of %s cannot be read and is made anew: %.200r", entry.name, text)
        if not isinstance(stored, dict):
            stored = {}
    mark = int(read) if read is not None and read.isdigit() else None
    kept = mark is not None and (stored.get("timing") == entry.timing or (restoring and not stored))
    new_mark = mark if kept and mark is not None else max(mark or 0, now)
    following = _due_after(entry, new_mark)
    reason = ""
    if stored and mark is not None and not kept:
        reason = f"the schedule was edited: {stored.get('schedule')} -> {entry.shown}"
    return [
        *(entry.name, entry.definition, read or "", new_mark),
        *("" if following is None else following, reason),
    ]
