"""The copy of the audit in the effect store: what is still known of the past when Redis has forgotten it.

Every beat copies, not the leader alone: a leader that dies together with the data would take its last lease with it,
and the copy is made for just that case. It costs little, because the same record twice changes nothing.

A record's id is the position. All records up to a copied one are copied, for each beat begins at one that the effect
store has and goes on without a gap. Where the stream does not have that id any more (it was lost, went back in a
failover, or was trimmed past it) it begins anew at the oldest record.

While the store is unknown (no generation, see `recovery`) nothing is copied: recovery asks the effect store whether
there was a past, and the record of its own election must not look like one.

Definitions and pauses are copied too (`entrycopy`), each page of records after the definitions that it may speak of:
a copied record about an entry whose definition is not copied would let a recovery pass over what the entry missed. So a
page is dropped where the store lost its past after it was read: nobody has its definitions any more.
"""

import logging
from typing import Any

import redis

from fencebeat.effects import AuditRecord, EffectStore
from fencebeat.entries import RESERVED
from fencebeat.entrycopy import DefinitionCopier
from fencebeat.keys import Keys
from fencebeat.repeated import Repeated
from fencebeat.scripts import asking
from fencebeat.signals import Signal

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks: what a loss of Redis may take away that no copy has."""
PAGE = 500
"""Records in one call of the effect store."""


class AuditCopier(Repeated):
    """A thread that copies the audit from Redis to the effect store, in every beat. `client` is its own.

    every: seconds between looks. page: most records in one call.
    """

    def __init__(
        self, effects: EffectStore, client: redis.Redis, keys: Keys, *, every: float = EVERY, page: int = PAGE
    ) -> None:
        super().__init__("fencebeat-audit", every)
        self.copied: Signal[int] = Signal()  # records of each look that found any, for tests
        self.failed: Signal[str] = Signal()
        self._effects, self._client, self._keys, self._page = effects, client, keys, page
        self._definitions = DefinitionCopier(effects, client, keys, page=page)
        self._position: str | None = None  # id of the last record copied; empty: none; None: not asked yet
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why the last look failed, or None."""
        return self._trouble

    def copy(self) -> int:
        """Copy what is new, and return how many audit records that were; none while the store is unknown.

        Raises StoreUnreachable, and whatever the effect store raises; the next call goes on after the last record that
        the effect store has kept.
        """
        past = self._past()
        if past is None:
            return 0
        if self._position is None:
            self._position = self._effects.last_copied()
        total = 0
        while True:
            records = self._next()
            while self._definitions.copy():  # after the records were read, before they are kept
                if self._stopping.is_set():
                    return total
            if not records or self._past() != past:
                break
            self._effects.copy_audit(records)
            self._position = records[-1].id
            total += len(records)
            if len(records) < self._page or self._stopping.is_set():
                break
        return total

    def _past(self) -> str | None:
        """What tells the store from the one before a loss: written once by a recovery. None while it is unknown."""
        with asking(self._client):
            past: Any = self._client.hget(self._keys.last, RESERVED)
            return past if self._client.hexists(self._keys.entries, RESERVED) else None

    def _next(self) -> list[AuditRecord]:
        """The next page: at most `page` records after the position."""
        if not self._position:
            return self._read("-", self._page)
        found = self._read(self._position, self._page + 1)
        if found and found[0].id == self._position:
            return found[1:]
        log.info("the audit has no record %s any more; it is copied again from its oldest one", self._position)
        self._position = ""
        return self._read("-", self._page)

    def _read(self, first: str, count: int) -> list[AuditRecord]:
        with asking(self._client):
            records: Any = self._client.xrange(self._keys.audit, min=first, max="+", count=count)
        return [AuditRecord(identity, fields) for identity, fields in records]

    def _once(self) -> None:
        try:
            count = self.copy()
        except Exception as error:  # noqa: BLE001 - an effect store may raise anything; the stream keeps the records
            if self._trouble is None:
                log.warning("the audit is not copied until this is over: %s", error)
            self._trouble = str(error)
            self.failed.send(self._trouble)
        else:
            if self._trouble is not None:
                log.info("the audit is copied again")
            self._trouble = None
            if count:
                self.copied.send(count)
