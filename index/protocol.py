"""One batch of attempts, from claim to commit: the document protocol of docs/ARCHITECTURE.md, step by step.

    claim ── read ── cut ──┬── unchanged ─────────────────────────────── commit (0 embeddings, 0 writes)
                           └── embed ── stage ── write ── refresh ────── commit ── collect
    every step may end in   fenced (a newer attempt exists: touch nothing) · stopped (a switch: hand back)
                            handed back (a passing reason) · dead letter (never again; the old version stays)

A worker may freeze, die or be doubled between any two lines here. The ledger's functions and the version of each index
write decide what still counts; nothing here is believed because this process checked it a moment ago.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from config import events
from config.events import emit
from config.settings import Settings
from config.telemetry import span
from fencebeat.clock import Clock
from fencebeat.errors import FencebeatError, Permanent, Retryable
from fencebeat.failpoints import failpoint
from index.embedding.cached import CachedEmbedder
from index.errors import DocumentNotFound, ItemRefused, SourceUnavailable, TargetSick, TargetUnavailable
from index.ids import chunk_ids, content_hash, meta_hash
from index.ledger import Ledger
from index.model import (
    Attempt,
    Chunk,
    IndexDoc,
    ItemClass,
    ManifestEntry,
    Meta,
    Outcome,
    Parsed,
    Vector,
)
from index.pipeline import DocumentPipeline
from index.ports import Source, Switches, Target
from index.stopping import Stopped, require_writes

RETRY_SECONDS = 5.0  # before a document is tried again after a passing fault
MISSING_SECONDS = 30.0  # before one is looked for again that is not in its source: the next listing decides


class Overtaken(FencebeatError):
    """A newer attempt holds {uid} ({step}): this one stops and touches nothing."""


@dataclass(slots=True)
class Work:
    """One attempt under way and what is known of it so far."""

    attempt: Attempt
    began: float
    version: str = ""
    content: bytes = b""
    meta: Meta = field(default_factory=lambda: Meta(display_name=""))
    parsed: Parsed | None = None
    chunks: Sequence[Chunk] = ()
    ids: Sequence[str] = ()  # chunk ids, in order
    manifest: tuple[ManifestEntry, ...] = ()
    to_write: Sequence[int] = ()  # places in `chunks`
    absent: bool = False
    unchanged: bool = False
    outcome: Outcome | None = None


@dataclass(slots=True)
class BatchReport:
    """What became of one claim: documents by outcome, embeddings made and saved, index documents written."""

    outcomes: dict[Outcome, int] = field(default_factory=dict)
    embedded: int = 0
    reused: int = 0
    written: int = 0

    @property
    def claimed(self) -> int:
        """Documents that were claimed."""
        return sum(self.outcomes.values())


class Indexer:
    """Brings claimed documents up to date in one target. One instance serves one thread."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        sources: Mapping[tuple[str, str], Source],
        pipeline: DocumentPipeline,
        embedder: CachedEmbedder,
        target: Target,
        switches: Switches,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._sources = sources
        self._pipeline = pipeline
        self._embedder = embedder
        self._target = target
        self._switches = switches
        self._settings = settings
        self._clock = clock
        self._resting_until = 0.0  # the breaker: asked before an epoch is taken, so that a sick target costs no claims

    def run_batch(self) -> BatchReport:
        """Claim up to `claim_batch` documents and bring each to an end. Claims nothing where work is stopped."""
        target_id = self._target.spec.target_id
        report = BatchReport()
        resting = self._clock.elapsed() < self._resting_until
        if resting or not self._switches.permits("start", ("all", f"target:{target_id}")):
            return report
        attempts = self._ledger.acquire(target_id, self._settings.claim_batch, self._settings.claim_seconds)
        works = [Work(attempt, self._clock.elapsed()) for attempt in attempts]
        if works:
            with _renewing(self._ledger, attempts, self._settings.claim_seconds):
                self._run(works, report)
        for work in works:
            outcome = work.outcome or Outcome.HANDED_BACK
            report.outcomes[outcome] = report.outcomes.get(outcome, 0) + 1
        return report

    def _run(self, works: Sequence[Work], report: BatchReport) -> None:
        try:
            for work in works:
                self._one(work, "read", self._prepare)
            self._embed_and_write(_open(works), report)
            for work in _open(works):
                self._one(work, "commit", self._commit)
        except (Stopped, Retryable) as error:
            # The fault is not one document's: all that are still open go back, undone or to be tried again.
            for work in _open(works):
                self._hand_back(work, error)
        except BaseException as error:
            for work in _open(works):
                self._ledger.hand_back(work.attempt, reason=f"{type(error).__name__}: {error}", delay=RETRY_SECONDS)
            raise

    def _one(self, work: Work, step: str, act: Callable[[Work], None]) -> None:
        """Run one document's step; what fails in it ends this document only."""
        attempt = work.attempt
        try:
            with span("document" if step == "read" else step, doc_uid=attempt.doc_uid, epoch=attempt.epoch):
                act(work)
        except Overtaken:
            self._end(work, Outcome.FENCED, events.DOCUMENT_FENCED, step=step)
        except Stopped as error:
            self._hand_back(work, error)
        except Permanent as error:
            self._bury(work, error)
        except Retryable as error:
            self._hand_back(work, error)

    # step 2 and 3: read after the claim, cut, compare

    def _prepare(self, work: Work) -> None:
        attempt = work.attempt
        source = self._sources.get((attempt.tenant_id, attempt.source_id))
        failpoint("index.read.before")
        if source is None:  # taken out of the configuration: its documents stay until somebody decides
            self._not_found(work)
            return
        uid = attempt.doc_uid.removeprefix(f"{attempt.source_id}/")
        try:
            fetched = source.fetch(uid, self._settings.max_document_bytes)
        except DocumentNotFound:
            self._not_found(work)
            return
        failpoint("index.read.after")
        work.version, work.meta = fetched.version, fetched.meta
        failpoint("index.chunk.before")
        work.parsed, work.chunks = self._pipeline.cut(fetched)
        failpoint("index.chunk.after")
        work.content = content_hash(work.parsed.title, work.parsed.text)
        meta = meta_hash(work.meta)
        older = self._ledger.older_staged(attempt)
        if not older and attempt.content_hash == work.content and attempt.meta_hash == meta:
            work.manifest, work.unchanged = attempt.manifest, True
            return
        spec = self._target.spec
        work.ids = chunk_ids(
            tenant_id=attempt.tenant_id,
            doc_uid=attempt.doc_uid,
            chunker_fp=spec.chunker_fp,
            model_fp=spec.model_fp,
            title=work.parsed.title,
            chunks=work.chunks,
        )
        work.manifest = tuple(
            ManifestEntry(self._target.index_id(chunk_id, meta), chunk.start, chunk.end)
            for chunk_id, chunk in zip(work.ids, work.chunks, strict=True)
        )
        # An id is never left out because it is visible in the index: a frozen worker's write may still be on its way.
        settled = {entry.index_id for entry in attempt.manifest} - older
        work.to_write = [at for at, entry in enumerate(work.manifest) if entry.index_id not in settled]

    def _not_found(self, work: Work) -> None:
        """Not being found deletes nothing by itself: only an approved, completed listing does."""
        if work.attempt.manifest and not work.attempt.absent:
            self._ledger.hand_back(
                work.attempt, reason="not in its source; the next complete listing decides", delay=MISSING_SECONDS
            )
            self._end(work, Outcome.HANDED_BACK, events.DOCUMENT_HANDED_BACK, why="not_found")
            return
        work.absent, work.version = True, "absent"

    # steps 4 to 6: vectors, intent, writes, refresh

    def _embed_and_write(self, works: Sequence[Work], report: BatchReport) -> None:
        writing = [work for work in works if work.to_write]
        if not writing:
            return
        inputs = [work.chunks[at].embed_input for work in writing for at in work.to_write]
        with span("embed", inputs=len(inputs)):
            result = self._embedder.embed(inputs, before_batch=lambda: self._check(works))
        report.embedded += result.embedded
        report.reused += result.reused
        vectors = iter(result.vectors)
        with span("bulk", target=self._target.spec.target_id):
            for work in writing:
                docs = [self._index_doc(work, at, next(vectors)) for at in work.to_write]
                self._one(work, "write", lambda work, docs=docs: self._write(work, docs, report))  # type: ignore[misc]
            if any(work.outcome is None for work in writing):
                self._target.refresh()

    def _index_doc(self, work: Work, at: int, vector: Vector) -> IndexDoc:
        attempt, chunk = work.attempt, work.chunks[at]
        return IndexDoc(
            index_id=work.manifest[at].index_id,
            chunk_id=work.ids[at],
            tenant_id=attempt.tenant_id,
            source_id=attempt.source_id,
            doc_uid=attempt.doc_uid,
            title=(work.parsed.title if work.parsed else None) or "",
            headings=chunk.headings,
            text=chunk.text,
            vector=vector,
            meta=work.meta,
        )

    def _write(self, work: Work, docs: Sequence[IndexDoc], report: BatchReport) -> None:
        attempt = work.attempt
        self._accepted(work, self._ledger.stage(attempt, [doc.index_id for doc in docs]), "stage")
        results = self._target.write(
            docs, attempt.version, epoch=attempt.epoch, before_request=lambda: self._check([work])
        )
        for result in results:
            match result.outcome:
                case ItemClass.SUPERSEDED:
                    self._superseded(work)
                case ItemClass.PERMANENT:
                    raise ItemRefused(target=attempt.target_id, uid=attempt.doc_uid, reason=result.reason)
                case ItemClass.TARGET_SICK:
                    raise TargetSick(target=attempt.target_id, why=result.reason)
                case ItemClass.OK:
                    report.written += 1
                case _:
                    raise TargetUnavailable(target=attempt.target_id, why=result.reason)
        if len(results) != len(docs):
            raise TargetUnavailable(target=attempt.target_id, why="some items have no outcome")

    def _superseded(self, work: Work) -> NoReturn:
        """A higher version is there: a newer attempt, or, where the head is still ours, a write past the protocol."""
        if work.attempt.doc_uid in self._ledger.renew([work.attempt], self._settings.claim_seconds):
            raise TargetSick(
                target=work.attempt.target_id,
                why=f"{work.attempt.doc_uid} was written past the protocol; raise the target's incarnation",
            )
        raise Overtaken(uid=work.attempt.doc_uid, step="write")

    # step 7

    def _commit(self, work: Work) -> None:
        attempt = work.attempt
        self._check([work])
        state = self._ledger.commit(
            attempt,
            version=work.version,
            content_hash=work.content,
            meta_hash=meta_hash(work.meta),
            meta=work.meta,
            manifest=work.manifest,
            absent=work.absent,
        )
        self._accepted(work, state, "commit")
        seconds = self._clock.elapsed() - work.began
        if work.unchanged:
            self._end(work, Outcome.UNCHANGED, events.DOCUMENT_UNCHANGED, seconds=seconds)
            return
        new = {entry.index_id for entry in work.manifest}
        self._end(
            work,
            Outcome.COMMITTED,
            events.DOCUMENT_COMMITTED,
            chunks=len(work.manifest),
            written=len(work.to_write),
            deleted=sum(entry.index_id not in new for entry in attempt.manifest),
            seconds=seconds,
        )

    # ends

    def _check(self, works: Sequence[Work]) -> None:
        """Ask the switches over all that is still open."""
        scopes = sorted({scope for work in works if work.outcome is None for scope in work.attempt.scopes})
        require_writes(self._switches, scopes)

    def _accepted(self, work: Work, state: str, step: str) -> None:
        if state == "fenced":
            raise Overtaken(uid=work.attempt.doc_uid, step=step)
        if state == "stopped":
            raise Stopped.in_scopes(work.attempt.scopes)

    def _hand_back(self, work: Work, error: FencebeatError) -> None:
        if isinstance(error, Stopped):
            self._ledger.hand_back(work.attempt)
            self._end(work, Outcome.STOPPED, events.DOCUMENT_STOPPED, step="switch")
            return
        if not isinstance(error, SourceUnavailable):
            self._resting_until = self._clock.elapsed() + RETRY_SECONDS
        self._ledger.hand_back(work.attempt, reason=error.what, delay=RETRY_SECONDS)
        self._end(work, Outcome.HANDED_BACK, events.DOCUMENT_HANDED_BACK, why=type(error).__name__)

    def _bury(self, work: Work, error: Permanent) -> None:
        name = type(error).__name__
        version = work.version or str(error.facts.get("version") or "") or None
        state = self._ledger.dead_letter(work.attempt, version=version, reason=str(error), fingerprint=name)
        if state == "dead_lettered":
            self._end(work, Outcome.DEAD_LETTERED, events.DOCUMENT_DEAD_LETTERED, error=name, why=error.what)
        elif state == "stopped":
            self._hand_back(work, Stopped.in_scopes(work.attempt.scopes))
        else:
            self._end(work, Outcome.FENCED, events.DOCUMENT_FENCED, step="dead_letter")

    def _end(self, work: Work, outcome: Outcome, event: events.Event, **facts: object) -> None:
        attempt = work.attempt
        work.outcome = outcome
        emit(
            event,
            tenant=attempt.tenant_id,
            source=attempt.source_id,
            target=attempt.target_id,
            doc_uid=attempt.doc_uid,
            epoch=attempt.epoch,
            **facts,
        )


def _open(works: Sequence[Work]) -> list[Work]:
    return [work for work in works if work.outcome is None]


@contextmanager
def _renewing(ledger: Ledger, attempts: Sequence[Attempt], lease: float) -> Iterator[None]:
    """Renew the claims while the block runs, every third of the lease. A lost claim needs no word: its commit fails."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(lease / 3):
            try:
                ledger.renew(attempts, lease)
            except Retryable:
                continue  # the lease has room for two failed renewals; after that the ledger fences us

    thread = threading.Thread(target=renew, name="claim-renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=lease)
