"""The store of claims that `app.conf` names, made once for each application."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

from celery import Celery
from kombu.utils.imports import symbol_by_name

from fencebeat.claims.port import ClaimStore
from fencebeat.errors import ImpossibleConfiguration

LEASE = 60.0
"""Seconds after which the claim of a crashed worker may be taken over."""


@dataclass(frozen=True)
class ClaimSettings:
    """What the guard is told by `app.conf`. Make it by `of`."""

    store: str
    namespace: str
    lease: float  # seconds

    @property
    def timeout(self) -> float:
        """Seconds for each call: several must fit into what is left of a lease when one has failed."""
        return min(2.0, self.lease / 5)

    @property
    def beat_every(self) -> float:
        """Seconds between two extensions: one may fail, and the next still saves the claim."""
        return self.lease / 3

    @classmethod
    def of(cls, app: Celery) -> Self:
        """Read `app.conf`. Raises ImpossibleConfiguration with one sentence for each broken rule."""
        store = str(app.conf.get("fencebeat_claims", "") or "")
        lease = app.conf.get("fencebeat_claim_lease", LEASE)
        number = not isinstance(lease, bool) and isinstance(lease, int | float)
        rules = (
            (
                store,
                "fencebeat_claims must name a store: postgresql://..., redis://..., or a function of the namespace.",
            ),
            (number and lease >= 1, f"fencebeat_claim_lease must be a number of seconds, 1 or more, not {lease!r}."),
        )
        broken = [sentence for holds, sentence in rules if not holds]
        if broken:
            raise ImpossibleConfiguration(rules=" ".join(broken))
        return cls(store, str(app.conf.get("fencebeat_namespace", "fencebeat")), float(lease))

    def open(self) -> ClaimStore:
        """The store. Opens no connection yet. Raises ImpossibleConfiguration."""
        scheme = self.store.partition("://")[0] if "://" in self.store else ""
        if scheme in ("postgresql", "postgres"):
            try:
                from fencebeat.claims.postgres import PostgresClaims  # noqa: PLC0415 - an extra
            except ImportError:
                raise ImpossibleConfiguration(
                    rules="fencebeat_claims is in Postgres, but psycopg is missing: pip install 'fencebeat[postgres]'."
                ) from None
            return PostgresClaims(self.store, self.namespace, self.timeout)
        if scheme in ("redis", "rediss", "sentinel", "redis+socket", "unix"):
            from fencebeat.claims.redis import RedisClaims  # noqa: PLC0415 - as the others: only what is asked for

            return RedisClaims(self.store, self.namespace, self.timeout)
        if scheme:  # never the whole address: it may hold a password
            raise ImpossibleConfiguration(rules=f"fencebeat_claims knows no store of kind {scheme}://.")
        return _made_by(self.store, self.namespace)


def _made_by(name: str, namespace: str) -> ClaimStore:
    try:
        factory: Callable[[str], ClaimStore] = symbol_by_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImpossibleConfiguration(rules=f"fencebeat_claims {name!r}: {error}.") from error
    return factory(namespace)


_opened: "WeakKeyDictionary[Celery, tuple[ClaimSettings, ClaimStore]]" = WeakKeyDictionary()


def claims_of(app: Celery) -> tuple[ClaimSettings, ClaimStore]:
    """The settings and the store of an application. Raises ImpossibleConfiguration."""
    settings = ClaimSettings.of(app)
    known = _opened.get(app)
    if known is None or known[0] != settings:
        known = _opened[app] = (settings, settings.open())
    return known
