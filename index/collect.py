"""After the commit: ids that no manifest names any more become tombstones, and old tombstones are purged.

A tombstone is a document with the version of the epoch its chunk is gone under, so that a late write of an older
attempt is refused; a physical delete would be forgotten by the engine after a while.
"""

from collections.abc import Sequence
from functools import partial

from config import events
from config.events import emit
from config.telemetry import span
from fencebeat.failpoints import failpoint
from index.errors import TargetSick
from index.ledger import Ledger
from index.ledger.documents import Garbage
from index.model import ItemClass, ItemResult, Tombstone
from index.ports import Switches, Target
from index.stopping import Stopped, require_writes

BATCH = 200  # documents per round


def collect(ledger: Ledger, target: Target, switches: Switches) -> int:
    """Bury everything that waits in this target; returns the number of tombstones written.

    An id whose tombstone is refused (409) was rewritten by an open attempt and stays; so does every id of a document
    that has committed again meanwhile. Raises TargetUnavailable, TargetSick or StoreUnreachable; the rest then waits.
    """
    target_id = target.spec.target_id
    buried = kept = 0
    with span("collect", target=target_id):
        for garbage in ledger.garbage(target_id, BATCH):
            scopes = ("all", f"tenant:{garbage.tenant_id}", f"target:{target_id}")
            if not switches.permits("write", scopes):
                continue
            failpoint("index.collect.before")
            try:
                results = target.bury(_tombstones(garbage), before_request=partial(require_writes, switches, scopes))
            except Stopped:
                continue  # what was written so far is written again later, with the same version
            done = _settled(target_id, results)
            failpoint("index.collect.after")
            if ledger.collected(target_id, garbage, done):
                buried += len(done)
            kept += len(garbage.ids) - len(done)
        if buried:
            target.refresh()  # readers of the bare alias see the old chunks until now
    if buried or kept:
        emit(events.CHUNKS_COLLECTED, target=target_id, buried=buried, kept=kept)
    return buried


def _tombstones(garbage: Garbage) -> list[Tombstone]:
    return [Tombstone(index_id, garbage.tenant_id, garbage.doc_uid, garbage.version) for index_id in garbage.ids]


def _settled(target_id: str, results: Sequence[ItemResult]) -> list[str]:
    sick = next((result for result in results if result.outcome is ItemClass.TARGET_SICK), None)
    if sick is not None:
        raise TargetSick(target=target_id, why=sick.reason)
    return [result.index_id for result in results if result.outcome is ItemClass.OK]


def purge(target: Target, switches: Switches, older_than_seconds: float) -> int:
    """Delete tombstones older than any write that may still be on its way; returns how many.

    The age is an assumption about the longest freeze of a worker; the doctor finds where it was broken.
    """
    target_id = target.spec.target_id
    failpoint("index.purge.before")
    try:
        purged = target.purge(
            older_than_seconds, before_request=partial(require_writes, switches, ("all", f"target:{target_id}"))
        )
    except Stopped:
        return 0  # what is left is purged another day
    failpoint("index.purge.after")
    if purged:
        emit(events.TOMBSTONES_PURGED, target=target_id, purged=purged)
    return purged
