"""The lease and its terms: what a lock must offer, and how long an answer of it may be trusted.

A term is one uninterrupted holding of the lease, named by (token, nonce). Renewing, resigning and committing name
their term, so that a late request of an older one changes nothing. The store is the authority; this module only says
when to stop trusting its last answer.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, Self

from fencebeat.errors import ImpossibleConfiguration

Carrier = Literal["lock", "term"]
"""What carries the term on the broker: the Redis lock and the term, or the term alone where etcd keeps the lock."""


@dataclass(frozen=True)
class Term:
    """One uninterrupted holding of the lease."""

    token: int  # fencing token: larger than that of every earlier term, below 2**53 so that Lua can hold it
    nonce: str  # made for this term alone; tells two terms apart should a token ever be issued twice
    holder: str  # host, process and the like; for people
    lease: float  # seconds the store believes the holder without a renewal


@dataclass(frozen=True, kw_only=True)
class LeaseTiming:
    """Times of the leader's lease, in seconds. `LeaseTiming.of(lease)` has the defaults.

    Raises ImpossibleConfiguration with one sentence for each broken rule.
    """

    lease: float  # how long the store believes us; shorter means faster takeover and more renewals
    renew_every: float  # one renewal may fail and the next still saves the term
    margin: float  # trust ends this long before the lease; a tenth bears a local clock that runs up to 10 % slow
    call_timeout: float  # one hanging call must not outlive our trust
    progress_within: float = 3.0  # renewals stop when the tick thread was silent for this long

    @classmethod
    def of(
        cls,
        lease: float = 5.0,
        *,
        renew_every: float | None = None,
        margin: float | None = None,
        call_timeout: float | None = None,
    ) -> Self:
        """Defaults in proportion to the lease, so that a short lease is as sound as a long one."""
        return cls(
            lease=lease,
            renew_every=lease / 3 if renew_every is None else renew_every,
            margin=lease / 10 if margin is None else margin,
            call_timeout=min(2.0, 0.4 * lease) if call_timeout is None else call_timeout,
        )

    @property
    def trust(self) -> float:
        """Seconds for which a successful attempt is trusted, counted from its start."""
        return self.lease - self.margin

    def __post_init__(self) -> None:
        trust = self.trust
        trusted = f"lease ({self.lease:g} s) less margin ({self.margin:g} s)"
        rules = (
            (self.margin > 0, "margin must be positive, or trust ends no earlier than the lease."),
            (self.renew_every > 0, "renew_every must be positive."),
            (self.call_timeout > 0, "call_timeout must be positive."),
            (
                trust > 2 * self.renew_every,
                f"{trusted} must leave room for two renewals, {self.renew_every:g} s each (renew_every).",
            ),
            (
                self.call_timeout < trust,
                f"call_timeout ({self.call_timeout:g} s) must be shorter than the time of trust: {trusted}.",
            ),
            (
                self.progress_within > 1.0,
                "progress_within must be longer than 1 s, which an idle tick may take.",
            ),
        )
        broken = [sentence for holds, sentence in rules if not holds]
        if broken:
            raise ImpossibleConfiguration(rules=" ".join(broken))


def trusted_until(attempt_started: float, lease: float, margin: float) -> float:
    """Last moment to act on a successful acquire or renew, in seconds of `Clock.elapsed()`.

    Counted from the moment the attempt began, so a slow reply shortens trust and never stretches it.
    """
    return attempt_started + lease - margin


class Lock(Protocol):
    """A store's record of who holds the lease. Every method is one bounded request; none retries by itself."""

    carrier: Carrier

    def acquire(self, nonce: str, floor: int = 0) -> Term | None:
        """Try once to begin the term `nonce`; None while another term holds the lease.

        Asked again with the nonce of the running term it answers the same term and extends the lease, so an attempt
        whose reply was lost can be repeated. The new token is above `floor`, the highest token any effect store saw.
        Raises StoreUnreachable when the outcome is unknown, Refused for a floor that no clock can explain.
        """
        ...

    def wait(self, at_most: float) -> None:
        """Wait for the holder to resign: at most `at_most`, 1 s, one lease, or what is left of the lock's time.

        Raises StoreUnreachable.
        """
        ...

    def renew(self, term: Term) -> bool:
        """Extend the lease of `term`. False is final: the term is over. Raises StoreUnreachable."""
        ...

    def resign(self, term: Term, *, wake: bool = True) -> bool:
        """End `term` and, unless told not to, wake those who wait.

        False, and nothing changes, when it is over. Raises StoreUnreachable.
        """
        ...

    def holder(self) -> Term | None:
        """The term the store names now, for display only. Raises StoreUnreachable."""
        ...

    def close(self) -> None:
        """Give the connections back. Called again it does nothing."""
        ...
