"""An effect store in memory: for tests of what uses one, and the reading of the port that a newcomer can follow.

Claims and switches, which an application keeps elsewhere, are set by hand.
"""

from collections.abc import Mapping, Sequence

from fencebeat.effects import AuditRecord, EntriesCopy, Flag, Gap, Past, Version

_BY_COMMIT = ("emitted", "unroutable", "paused", "skipped", "superseded")
_BY_EDIT = ("added", "changed", "removed", "held", "resumed")  # a commit's own `changed` and `held` name their holder
_PASSES = ("unroutable", "paused", "skipped", "superseded", "changed", "resumed", "gap")


class MemoryEffects:
    """Satisfies `fencebeat.effects.EffectStore`.

    claims: task id -> whether that claim is closed. queued: seconds for which a message of an unguarded task may have
    waited in a queue that was lost. fails: raised by every call while it is set.
    """

    def __init__(self, *, queued: float = 600.0) -> None:
        self.claims: dict[str, bool] = {}
        self.highest = 0  # token that a claim has seen
        self.generation, self.stops = 1, dict[str, Flag]()
        self.fails: Exception | None = None
        self._queued = queued
        self._records: dict[str, Mapping[str, str]] = {}
        self._entries: dict[str, str | None] = {}
        self._paused: dict[str, str] = {}
        self._stamps: dict[str, Version] = {}
        self._version = Version(0, 0)

    def stop(self, scope: str, flag: Flag) -> None:
        """Set a stop."""
        self.generation += 1
        self.stops[scope] = flag

    def lift(self, scope: str) -> None:
        """Lift a stop."""
        self.generation += 1
        del self.stops[scope]

    def floor(self) -> int:
        """See `EffectStore.floor`."""
        self._answer()
        tokens = (fields.get("token", "") for fields in self._records.values())
        return max([self.highest, *(int(token) for token in tokens if token.isdecimal())])

    def flags(self) -> tuple[int, Mapping[str, Flag]]:
        """See `EffectStore.flags`."""
        self._answer()
        return self.generation, dict(self.stops)

    def last_copied(self) -> str:
        """See `EffectStore.last_copied`."""
        self._answer()
        return next(reversed(self._records), "")

    def copy_audit(self, records: Sequence[AuditRecord]) -> None:
        """See `EffectStore.copy_audit`."""
        self._answer()
        for record in records:
            self._records.setdefault(record.id, dict(record.fields))

    def copied_entries(self) -> Version:
        """See `EffectStore.copied_entries`."""
        self._answer()
        return self._version

    def copy_entries(self, copy: EntriesCopy) -> bool:
        """See `EffectStore.copy_entries`."""
        self._answer()
        if copy.base is not None and self._version != (copy.version.token, copy.base):
            return False
        if self._version >= copy.version:
            return False
        for name, definition in copy.entries.items():
            self._forget(name)
            if definition is not None:
                self._entries[name], self._stamps[name] = definition, copy.version
            if name in copy.paused:
                self._paused[name], self._stamps[name] = copy.paused[name], copy.version
        if copy.last:
            self._version = copy.version
            for name in [name for name, stamp in self._stamps.items() if copy.base is None and stamp < copy.version]:
                self._forget(name)
        return True

    def past(self) -> Past:
        """See `EffectStore.past`."""
        self._answer()
        marks: dict[str, int] = {}
        for fields in self._records.values():
            if _decides(fields):
                marks[fields["entry"]] = max(marks.get(fields["entry"], 0), int(fields["fire_time"]))
        sent = self._sent()
        for entry, fire_time in [tick for tick, fields in sent.items() if _due_again(fields)]:
            marks[entry] = min(marks[entry], fire_time - 1)
        return Past(
            marks=marks,
            gaps=self._gaps(sent),
            entries={name: text for name, text in self._entries.items() if text is not None},
            paused=dict(self._paused),
        )

    def _answer(self) -> None:
        if self.fails is not None:
            raise self.fails

    def _forget(self, name: str) -> None:
        for kept in (self._entries, self._paused, self._stamps):
            kept.pop(name, None)

    def _sent(self) -> dict[tuple[str, int], dict[str, str]]:
        """Emitted ticks that nothing has closed, in order of their fire times; `ms` is when they were sent."""
        sent: dict[tuple[str, int], dict[str, str]] = {}
        for identity, fields in self._records.items():
            if not _is_tick(fields):
                continue
            entry, last = fields["entry"], int(fields["fire_time"])
            if fields["outcome"] == "emitted":
                if "request" in fields and (entry, last) in sent:
                    continue
                sent[entry, last] = {**fields, "ms": identity.partition("-")[0]}
            elif fields["outcome"] in _PASSES and "request" not in fields:
                for tick in [tick for tick in sent if tick[0] == entry and _passes(fields, tick[1])]:
                    del sent[tick]
        closed = {task_id for task_id, closed in self.claims.items() if closed}
        return {tick: sent[tick] for tick in sorted(sent) if sent[tick].get("task_id") not in closed}

    def _gaps(self, sent: Mapping[tuple[str, int], Mapping[str, str]]) -> list[Gap]:
        newest = int(next(reversed(self._records), "0").partition("-")[0])
        gaps: list[Gap] = []
        for (entry, fire_time), fields in sent.items():
            if _due_again(fields) or int(fields["ms"]) < newest - self._queued * 1000:
                continue
            before = gaps[-1] if gaps else None
            joins = before is not None and before.entry == entry
            if before is not None and joins and not self._between(entry, before.fire_time, fire_time):
                gaps[-1] = Gap(entry, before.first, fire_time, before.count + 1, fields.get("task_id", ""))
            else:
                gaps.append(Gap(entry, fire_time, fire_time, 1, fields.get("task_id", "")))
        return gaps

    def _between(self, entry: str, first: int, last: int) -> bool:
        """Whether anything but an emission was decided about the entry between two fire times."""
        return any(
            fields["entry"] == entry and fields["outcome"] in _PASSES and first < int(fields["fire_time"]) < last
            for fields in self._records.values()
            if _is_tick(fields)
        )


def _is_tick(fields: Mapping[str, str]) -> bool:
    return "entry" in fields and fields.get("fire_time", "").isdecimal()


def _due_again(fields: Mapping[str, str]) -> bool:
    """Whether an open tick is due again: a guarded one, but no backfill (`request`), which lies below the mark."""
    return fields.get("guarded") == "1" and "request" not in fields


def _decides(fields: Mapping[str, str]) -> bool:
    if not _is_tick(fields):
        return False
    return fields["outcome"] in _BY_COMMIT or (fields["outcome"] in _BY_EDIT and "holder" not in fields)


def _passes(fields: Mapping[str, str], fire_time: int) -> bool:
    """Whether a record closes the tick without emission; an edit's `first` is the mark before it, still decided."""
    last, first = int(fields["fire_time"]), fields.get("first", "")
    if fields["outcome"] in ("changed", "resumed") and "count" not in fields:
        return "holder" not in fields and first.isdecimal() and int(first) < fire_time <= last
    return (int(first) if first.isdecimal() else last) <= fire_time <= last
