"""The doctor: compare a target with the manifests, id by id. It reports and changes nothing.

missing   a manifest names it, the index does not have it alive
extra     alive in the index, and neither in a manifest nor waiting for the collector
stale     alive in the index for another document than the manifest's
routing   stored under another routing than its document's, so that a write by the protocol would make a second copy
double    one id seen twice, which the two readings of a moving index can also cause
Documents that are dirty, claimed, or committed after the scan began are left out and counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from config import events
from config.events import emit
from fencebeat.clock import Clock
from index.ledger import Ledger
from index.ports import Source, Target
from index.sync import Syncer

EXAMPLES = 20  # ids named per kind; the counts are complete

KINDS = ("missing", "extra", "stale", "routing", "double")


@dataclass(slots=True)
class DoctorReport:
    """What the doctor found, by kind: counts, and the first ids with their documents."""

    target_id: str
    documents: int = 0
    chunks: int = 0
    tombstones: int = 0
    open_documents: int = 0  # dirty, claimed or just committed: not judged
    behind_source: int = 0  # documents whose source has another version than the one last tried
    waiting_for_collector: int = 0
    dead_letters: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    examples: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def differences(self) -> int:
        """All kinds together; 0 means that the target equals the manifests."""
        return sum(self.counts.values())

    @property
    def at_rest(self) -> bool:
        """Nothing is on its way: the comparison covers every document."""
        return self.open_documents == 0 and self.waiting_for_collector == 0

    def add(self, kind: str, index_id: str, doc_uid: str) -> None:
        """Count one difference."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(f"{doc_uid} {index_id}")

    def as_dict(self) -> dict[str, Any]:
        """For `--json`, the ledger and metrics."""
        return {**asdict(self), "differences": self.differences, "at_rest": self.at_rest}


def examine(
    ledger: Ledger,
    target: Target,
    clock: Clock,
    *,
    tenant_id: str | None = None,
    sources: Sequence[Source] = (),
    syncer: Syncer | None = None,
) -> DoctorReport:
    """Scan `target` and compare it with the ledger, for one tenant or all; `sources` are listed and compared, too.

    Raises TargetUnavailable, StoreUnreachable or SourceUnavailable.
    """
    began = clock.elapsed()
    report = DoctorReport(target.spec.target_id)
    snapshot = ledger.snapshot()  # before the scan: a later commit is not judged by an earlier listing
    found = _alive(target, report, tenant_id)
    for head in _settled(ledger, report, tenant_id, snapshot, found):
        _compare(head, report, found)
    for index_id, (_, doc_uid) in found.items():
        report.add("extra", index_id, doc_uid)
    if syncer is not None:
        report.behind_source = sum(syncer.behind(s) for s in sources if tenant_id in (None, s.tenant_id))
    emit(
        events.DOCTOR_FINISHED,
        target=report.target_id,
        documents=report.documents,
        chunks=report.chunks,
        differences=report.differences,
        seconds=clock.elapsed() - began,
    )
    return report


def _alive(target: Target, report: DoctorReport, tenant_id: str | None) -> dict[str, tuple[str, str]]:
    """Every chunk that is alive in the target: index id -> (tenant, document)."""
    found: dict[str, tuple[str, str]] = {}
    for row in target.scan(tenant_id):
        if row.dead:
            report.tombstones += 1
            continue
        if row.index_id in found:
            report.add("double", row.index_id, row.doc_uid)
        if not row.routing_ok:
            report.add("routing", row.index_id, row.doc_uid)
        found[row.index_id] = (row.tenant_id, row.doc_uid)
    return found


def _compare(head: dict[str, Any], report: DoctorReport, found: dict[str, tuple[str, str]]) -> None:
    """Judge one document; what is its own is taken out of `found`."""
    owner = (head["tenant_id"], head["doc_uid"])
    for index_id in head["manifest_ids"]:
        report.chunks += 1
        holder = found.pop(index_id, None)
        if holder is None:
            report.add("missing", index_id, head["doc_uid"])
        elif holder != owner:
            report.add("stale", index_id, head["doc_uid"])


def _settled(
    ledger: Ledger, report: DoctorReport, tenant_id: str | None, snapshot: str, found: dict[str, tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Heads that can be judged; what belongs to the others is taken out of `found`."""
    for head in ledger.manifests(report.target_id, tenant_id, snapshot):
        report.documents += 1
        report.dead_letters += head["state"] == "dead"
        report.waiting_for_collector += len(head["pending_gc"])
        for index_id in head["pending_gc"]:
            found.pop(index_id, None)
        if head["dirty"] or head["claimed"] or head["unseen"]:
            report.open_documents += 1
            for index_id in (*head["manifest_ids"], *head["staged"]):
                found.pop(index_id, None)
            continue
        yield head
