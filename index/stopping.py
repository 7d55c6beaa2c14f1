"""Asking the switches before something costly or lasting. The ledger asks again where it counts."""

from collections.abc import Sequence

from fencebeat.errors import FencebeatError
from index.ports import Switches


class Stopped(FencebeatError):
    """A switch stops writes in scope {scopes}."""

    @classmethod
    def in_scopes(cls, scopes: Sequence[str]) -> "Stopped":
        """The error for these scopes."""
        return cls(scopes=", ".join(scopes))


def require_writes(switches: Switches, scopes: Sequence[str]) -> None:
    """Raise Stopped where writes are stopped in one of `scopes`, or where nobody can tell."""
    if not switches.permits("write", scopes):
        raise Stopped.in_scopes(scopes)
