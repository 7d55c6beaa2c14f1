"""Entries that the leader leaves alone for a while, and why. They stay due; the others go on.

Memory of one term. What is shown (`{ns}:quarantine`, by CLI and status) is a copy that `flush` brings up to date.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fencebeat.clock import Clock
from fencebeat.firetimes import SECOND
from fencebeat.lease import Term
from fencebeat.store import Store

log = logging.getLogger(__name__)

SECONDS = 30.0
"""For how long an entry is left alone; then it is tried again."""


@dataclass(frozen=True, slots=True)
class _Case:
    reason: str
    until: float  # by elapsed time
    record: str  # as it is shown


class Quarantine:
    """What is left alone. One thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cases: dict[str, _Case] = {}
        self._shown: dict[str, str] = {}
        self._stale = False

    def __len__(self) -> int:
        return len(self._cases)

    def begin(self, shown: Iterable[str]) -> None:
        """A new term: whatever an earlier leader left alone gets its chance; its records are taken away."""
        self._cases.clear()
        self._shown = dict.fromkeys(shown, "")
        self._stale = bool(self._shown)

    def put(self, name: str, reason: str, seconds: float = SECONDS) -> None:
        """Leave an entry alone from now on."""
        now = round(self._clock.wall() * SECOND)
        known = self._cases.get(name)
        since = json.loads(known.record)["since"] if known is not None and known.reason == reason else now
        facts = {"reason": reason, "since": since, "until": now + round(seconds * SECOND)}
        self._cases[name] = _Case(reason, self._clock.elapsed() + seconds, json.dumps(facts))
        self._stale = True

    def holds(self, name: str) -> bool:
        """Whether an entry is to be left alone now."""
        case = self._cases.get(name)
        return case is not None and self._clock.elapsed() < case.until

    def release(self, name: str) -> None:
        """It is well again."""
        if self._cases.pop(name, None) is not None:
            self._stale = True

    def names(self) -> list[str]:
        """Those that are left alone or have not shown yet that they are well."""
        return list(self._cases)

    def flush(self, store: Store, term: Term) -> None:
        """Show what changed. Raises what `Store.quarantine` raises; what was not shown is shown by the next call."""
        if not self._stale:
            return
        wanted = {name: case.record for name, case in self._cases.items()}
        news = {name: record for name, record in wanted.items() if self._shown.get(name) != record}
        store.quarantine(term, news, self._shown.keys() - wanted.keys())
        self._shown, self._stale = wanted, False
