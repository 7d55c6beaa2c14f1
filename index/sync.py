"""A sync: list a source, compare with the ledger, mark what differs. It reads no document and writes no index.

Deletions need a completed listing and pass a guard: a sync that would delete an unusual share of a source waits for
approval, loudly, while the rest of it goes on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from config import events
from config.events import emit
from config.settings import Settings
from config.telemetry import span
from fencebeat.clock import Clock
from fencebeat.errors import Permanent
from index.ledger import KnownDocument, Ledger
from index.model import Item
from index.ports import Source

GRACE = 10  # so few deletions need no approval, whatever their share, unless they empty the source
MARK_BATCH = 5000


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync found. pending_deletes: deletions that wait for approval."""

    tenant_id: str
    source_id: str
    listed: int
    complete: bool
    marked: int
    absent: int
    pending_deletes: int
    problems: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


class Syncer:
    """Compares sources with the ledger for one target."""

    def __init__(self, ledger: Ledger, target_id: str, settings: Settings, clock: Clock) -> None:
        self._ledger = ledger
        self._target_id = target_id
        self._settings = settings
        self._clock = clock

    def sync(self, source: Source, *, approve: bool = False) -> SyncReport:
        """List `source` and mark what differs; with `approve`, deletions are marked whatever their share.

        Raises SourceUnavailable (recorded for status; nothing is marked) or StoreUnreachable.
        """
        began = self._clock.elapsed()
        with span("sync", source=source.source_id, tenant=source.tenant_id):
            try:
                listing = source.list()
            except Exception as error:
                self._ledger.record_listing(
                    source.tenant_id,
                    source.source_id,
                    complete=False,
                    items=0,
                    problems=[],
                    pending_deletes=0,
                    error=str(error),
                )
                raise
            known = self._ledger.known(source.tenant_id, source.source_id, self._target_id)
            listed = _by_uid(source.source_id, listing.items)
            # The source's row comes first: claims are shared out among the tenants that have one.
            missing = [uid for uid, row in known.items() if not row.absent and uid not in listed]
            refused = bool(missing) and listing.complete and not approve and self._unusual(missing, known)
            self._ledger.record_listing(
                source.tenant_id,
                source.source_id,
                complete=listing.complete,
                items=len(listed),
                problems=listing.problems,
                pending_deletes=len(missing) if refused else 0,
            )
            marked = self._mark(source, listed, known)
            absent = 0
            if missing and listing.complete and not refused:
                absent = self._ledger.mark_absent(source.tenant_id, source.source_id, self._target_id, missing)
        if refused:
            emit(
                events.SYNC_REFUSED,
                tenant=source.tenant_id,
                source=source.source_id,
                absent=len(missing),
                known=len(known),
            )
        emit(
            events.SYNC_FINISHED,
            tenant=source.tenant_id,
            source=source.source_id,
            complete=listing.complete,
            listed=len(listed),
            marked=marked,
            absent=absent,
            seconds=self._clock.elapsed() - began,
        )
        return SyncReport(
            tenant_id=source.tenant_id,
            source_id=source.source_id,
            listed=len(listed),
            complete=listing.complete,
            marked=marked,
            absent=absent,
            pending_deletes=len(missing) if refused else 0,
            problems=tuple((place, reason) for place, reason in listing.problems),
        )

    def behind(self, source: Source) -> int:
        """Documents of which the source has, or lacks, something that was not tried yet. Marks nothing."""
        listing = source.list()
        known = self._ledger.known(source.tenant_id, source.source_id, self._target_id)
        listed = _by_uid(source.source_id, listing.items)
        changed = sum(_untried(known.get(uid), version) for uid, version in listed.items())
        return changed + sum(not row.absent and uid not in listed for uid, row in known.items())

    def _unusual(self, missing: Sequence[str], known: dict[str, KnownDocument]) -> bool:
        """Would these deletions be more than a source loses on an ordinary day?"""
        present = sum(not row.absent for row in known.values())
        if len(missing) > self._settings.max_delete_documents:
            return True
        if len(missing) == present and present > 1:
            return True
        return len(missing) > GRACE and len(missing) > self._settings.max_delete_share * present

    def _mark(self, source: Source, listed: dict[str, str], known: dict[str, KnownDocument]) -> int:
        changed = [(uid, version) for uid, version in sorted(listed.items()) if _differs(known.get(uid), version)]
        marked = 0
        for at in range(0, len(changed), MARK_BATCH):
            marked += self._ledger.mark_dirty(
                source.tenant_id, source.source_id, self._target_id, changed[at : at + MARK_BATCH]
            )
        return marked


def _differs(known: KnownDocument | None, version: str) -> bool:
    """Versions are compared for equality only: a file restored with an older time is another version."""
    if known is not None and not known.absent and known.dirty and known.listed_version == version:
        return False  # marked already, and not read yet
    return _untried(known, version)


def _untried(known: KnownDocument | None, version: str) -> bool:
    return known is None or known.absent or known.tried_version != version


class DuplicateUid(Permanent):
    """Source {source} lists {uid} twice; a document has one place. Nothing of this listing was marked."""


def _by_uid(source_id: str, items: Sequence[Item]) -> dict[str, str]:
    """Ledger uid -> version. The source's name is part of the uid: two sources of a tenant may have one README each."""
    listed: dict[str, str] = {}
    for item in items:
        uid = f"{source_id}/{item.uid}"
        if uid in listed:
            raise DuplicateUid(source=source_id, uid=item.uid)
        listed[uid] = item.version
    return listed
