"""The copy of the flags in Redis: who keeps it fresh, and how a worker reads it.

The truth is the effect store's. The copy is complete, carries the truth's generation and the time of its renewal, and
is never older than a second or two while any beat lives; missing, old or damaged it is *unknown*, which is not "go".
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import redis

from fencebeat.effects import EffectStore, Flag
from fencebeat.errors import Retryable
from fencebeat.keys import Keys
from fencebeat.repeated import Repeated
from fencebeat.scripts import asking, script
from fencebeat.signals import Signal

log = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between renewals: one may be lost and the copy is still renewed once a second."""
FRESH = 2.0
"""Seconds after which a copy that nobody renewed is unknown."""


class FlagsUnknown(Retryable):
    """The flags in Redis are unknown: {why}. Nothing was emitted."""


@dataclass(frozen=True)
class FlagCopy:
    """The flags as Redis has them. `age_seconds` by the server's clock, since the last renewal."""

    generation: int
    age_seconds: float
    flags: Mapping[str, Flag]


def read_flags(client: redis.Redis, keys: Keys) -> FlagCopy | None:
    """The copy of the flags, or None when it is unknown: missing, without generation or renewal, or rubbish.

    How old a copy may be is the reader's to decide (`FRESH`). Raises StoreUnreachable.
    """
    with asking(client), client.pipeline(transaction=True) as both:
        both.time()
        both.hgetall(keys.flags)
        (seconds, microseconds), record = both.execute(raise_on_error=False)
    if not isinstance(record, dict):  # another type of key
        return None
    fields = {_text(name): _text(value) for name, value in record.items()}
    try:
        generation, renewed = int(fields.pop("generation")), int(fields.pop("renewed"))
        flags = {scope: Flag.from_json(value) for scope, value in fields.items()}
    except (KeyError, ValueError):
        return None
    # A renewal that seems to lie ahead (the server's clock was set back) is as doubtful as an old one.
    age = abs(seconds * 1_000_000 + microseconds - renewed) / 1e6
    return FlagCopy(generation, age, flags)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class FlagKeeper(Repeated):
    """A thread that copies the flags from the effect store to Redis, in every beat, leader or not.

    `client` is its own. What it writes is refused by number if another keeper knows more.
    """

    def __init__(self, effects: EffectStore, client: redis.Redis, keys: Keys, *, every: float = EVERY) -> None:
        super().__init__("fencebeat-flags", every)
        self.renewed: Signal[int] = Signal()  # generations, for tests
        self.failed: Signal[str] = Signal()
        self._effects, self._client, self._keys = effects, client, keys
        self._generation: int | None = None
        self._trouble: str | None = None

    @property
    def generation(self) -> int | None:
        """The highest generation this process has read, which a commit must not find undercut; None before that."""
        return self._generation

    @property
    def trouble(self) -> str | None:
        """Why the last renewal failed, or None."""
        return self._trouble

    def seed(self) -> int:
        """Copy once, now, and return the generation: before a term's first commit.

        Raises FlagsUnknown where Redis has no generation or a higher one than the effect store, StoreUnreachable, and
        whatever the effect store raises.
        """
        with asking(self._client):
            seconds, microseconds = self._client.time()
        # From here on the copy grows old: a process that stands still between the two stores must not make what it has
        # read before a stop look as if it had been read after it.
        read_at = seconds * 1_000_000 + microseconds
        generation, flags = self._effects.flags()
        pairs = [part for scope, flag in flags.items() for part in (scope, flag.to_json())]
        answer, *stored = script("renew_flags")(self._client, (self._keys.flags,), (generation, read_at, *pairs))
        if answer == "unknown":
            raise FlagsUnknown(why="they have no generation, so the store lost its past")
        if answer == "stale":
            # Another keeper was faster: read again. Still lower: the effect store lost changes, or is another one.
            again, _ = self._effects.flags()
            if again < int(stored[0]):
                raise FlagsUnknown(why=f"Redis has generation {stored[0]}, the effect store only {again}")
            return self.seed()
        self._generation = max(generation, self._generation or 0)
        self.renewed.send(generation)
        return generation

    def _once(self) -> None:
        try:
            self.seed()
        except Exception as error:  # noqa: BLE001 - an effect store may raise anything; the copy just grows old
            if self._trouble is None:
                log.warning("the flags cannot be renewed; nothing is emitted until they are: %s", error)
            self._trouble = str(error)
            self.failed.send(self._trouble)
        else:
            if self._trouble is not None:
                log.info("the flags are renewed again")
            self._trouble = None
