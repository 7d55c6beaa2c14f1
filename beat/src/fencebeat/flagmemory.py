"""Flags of a project without an effect store: set in Redis alone, and remembered by every beat that lives.

Each beat reads the flags twice a second. Where Redis loses its data, the next leader begins with what its own process
last read; where a store comes back with an older copy (a lagging replica, another process's recovery), the first beat
that knows more sets it again, in union with what is there: a stop of either history holds until a human lifts it. Each
time the audit says `flags_lost`. A process that has read nothing knows nothing: then `on_unknown` decides.

    run   nothing is stopped, and the audit says so where anything shows that there was a past
    stop  everything is stopped, on a first start too, until a human lifts it: `fencebeat flags lift all`
"""

import logging
import socket
from collections.abc import Mapping
from typing import Literal

import redis

from fencebeat.effects import Flag
from fencebeat.errors import Retryable
from fencebeat.flags import FlagCopy, FlagsUnknown, read_flags
from fencebeat.keys import Keys
from fencebeat.repeated import Repeated
from fencebeat.scripts import script
from fencebeat.signals import Signal

log = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between two looks: a stop that was set a moment before a loss may be lost with it."""

OnUnknown = Literal["run", "stop"]
UNKNOWN = "nobody knows what was stopped before the store lost its past"


def stop(client: redis.Redis, keys: Keys, scope: str, flag: Flag) -> int:
    """Stop a scope (`all`, `entry:x`, `queue:x`); returns the new generation. In force with the next commit.

    For projects without an effect store: elsewhere the next renewal undoes it. `flag.until` is not looked at here.
    Raises FlagsUnknown where Redis has no generation, StoreUnreachable.
    """
    return _edit(client, keys, {scope: flag}, outcome="stopped", reason=flag.reason, author=flag.author)


def lift(client: redis.Redis, keys: Keys, scope: str, *, reason: str, author: str) -> int:
    """Lift the stop of a scope; see `stop`. A wider one stays in force."""
    return _edit(client, keys, {scope: None}, outcome="lifted", reason=reason, author=author)


def _edit(
    client: redis.Redis,
    keys: Keys,
    changes: Mapping[str, Flag | None],
    *,
    outcome: str,
    reason: str,
    author: str,
    read: int | None = None,
    above: int = 0,
) -> int:
    """One change of flags; the generation grows. -1 where it is not the one that was `read`, and nothing changed."""
    pairs = [part for scope, flag in changes.items() for part in (scope, flag.to_json() if flag else "")]
    answer, *told = script("edit_flags")(
        client, (keys.flags, keys.audit), ("" if read is None else read, above, outcome, reason, author, *pairs)
    )
    if answer == "unknown":
        raise FlagsUnknown(why="they have no generation, so the store lost its past")
    return -1 if answer == "moved" else int(told[0])


class FlagMemory(Repeated):
    """A thread that remembers the flags, in every beat. `client` is its own; its answers are text."""

    def __init__(self, client: redis.Redis, keys: Keys, *, on_unknown: OnUnknown = "run", every: float = EVERY) -> None:
        super().__init__("fencebeat-flag-memory", every)
        self.seen: Signal[int] = Signal()  # generations, for tests
        self.restored: Signal[int] = Signal()
        self._client, self._keys, self._on_unknown = client, keys, on_unknown
        self._known: FlagCopy | None = None
        self._holder = socket.gethostname()

    def look(self) -> None:
        """Read the flags once; set again what an older copy lacks. Raises StoreUnreachable and FlagsUnknown."""
        copy, known = read_flags(self._client, self._keys), self._known
        if copy is None:
            return
        older = known is not None and (
            copy.generation < known.generation
            or (copy.generation == known.generation and dict(copy.flags) != dict(known.flags))
        )
        if known is None or not older:
            self._known = copy
            self.seen.send(copy.generation)
            return
        why = f"an older copy came back: generation {copy.generation} after {known.generation}"
        log.error("the flags were lost: %s; what this process knows is set again", why)
        changes = {scope: flag for scope, flag in known.flags.items() if scope not in copy.flags}
        generation = _edit(
            self._client,
            self._keys,
            changes,
            outcome="flags_lost",
            reason=f"{why}; set again: {_listed(changes)}",
            author=self._holder,
            read=copy.generation,
            above=known.generation,
        )
        if generation >= 0:
            self._known = FlagCopy(generation, 0.0, {**copy.flags, **known.flags})
            self.restored.send(generation)

    def seed(self, *, known_past: bool) -> tuple[int, Mapping[str, Flag], str]:
        """What a recovery begins with: generation, flags, and the text of the audit record (empty: none is due)."""
        known = self._known
        if known is not None:
            return known.generation, known.flags, f"set again as this process last read them: {_listed(known.flags)}"
        if self._on_unknown == "stop":
            return 1, {"all": Flag("emit", UNKNOWN, "fencebeat_on_unknown")}, f"{UNKNOWN}: everything is stopped"
        return 1, {}, UNKNOWN if known_past else ""

    def _once(self) -> None:
        try:
            self.look()
        except Retryable as error:  # what is remembered stays remembered
            log.debug("the flags could not be read: %s", error.what)
        except Exception:  # whatever Redis holds there must not end the memory
            log.exception("the flags could not be looked at")


def _listed(flags: Mapping[str, Flag]) -> str:
    return ", ".join(f"{scope} ({flag.level})" for scope, flag in sorted(flags.items())) or "no stop"
