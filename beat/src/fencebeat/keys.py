"""The keys of one namespace in the broker's database, all prefixed by us.

kombu's `global_keyprefix` prefixes only the first key of EVALSHA, so the prefix is part of every name here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Names of the records of one scheduler; `prefix` is kombu's `global_keyprefix`, empty where there is none."""

    namespace: str
    prefix: str = ""

    @property
    def lock(self) -> str:
        """String: nonce of the holder, expires with the lease. python-redis-lock's own name."""
        return f"{self.prefix}lock:{self.namespace}:leader"

    @property
    def signal(self) -> str:
        """List: wakes those who wait for the lock. python-redis-lock's own name."""
        return f"{self.prefix}lock-signal:{self.namespace}:leader"

    @property
    def term(self) -> str:
        """Hash: token, nonce, holder, since, lease: the fence."""
        return self._own("term")

    @property
    def entries(self) -> str:
        """Hash: entry -> definition as JSON, and the field `generation`."""
        return self._own("entries")

    @property
    def last(self) -> str:
        """Hash: entry -> mark, and the field `generation`."""
        return self._own("last")

    @property
    def due(self) -> str:
        """Sorted set: entry, scored by its next fire time in milliseconds."""
        return self._own("due")

    @property
    def flags(self) -> str:
        """Hash: scope -> flag as JSON, and the fields `generation` and `renewed`."""
        return self._own("flags")

    @property
    def audit(self) -> str:
        """Stream: one record for each decision."""
        return self._own("audit")

    @property
    def edits(self) -> str:
        """Stream: one record for each change of entries or pauses, with its generation: how a leader keeps up."""
        return self._own("edits")

    @property
    def paused(self) -> str:
        """Hash: entry -> who paused it, when and why, as JSON. A paused entry is not in the sorted set of due ones."""
        return self._own("paused")

    @property
    def quarantine(self) -> str:
        """Hash: entry -> why the leader leaves it alone, since when and until when, as JSON."""
        return self._own("quarantine")

    @property
    def emitted(self) -> str:
        """Hash: entry -> fire time of its last emitted tick, a space, when it was emitted; both in microseconds."""
        return self._own("emitted")

    @property
    def requests(self) -> str:
        """Hash: id -> an extra run that somebody asked for, as JSON; the step that emits it removes it."""
        return self._own("requests")

    @property
    def outbox(self) -> str:
        """Stream: messages for a broker that cannot compare a token, to be published from here."""
        return self._own("outbox")

    def _own(self, record: str) -> str:
        return f"{self.prefix}{self.namespace}:{record}"
