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

    def _own(self, record: str) -> str:
        return f"{self.prefix}{self.namespace}:{record}"
