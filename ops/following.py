"""Follows a run of `fencebeat up` until the index equals its sources: progress, the first answer, the figures.

Everything is measured by somebody else's count: documents by the ledger, embeddings by the embedder's own call log,
writes by OpenSearch's own counter.
"""

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fencebeat.clock import Clock
from fencebeat.errors import Retryable
from index.doctor import DoctorReport
from index.embedding.calls import read
from index.ids import input_hash
from index.ledger import Progress
from index.search import SearchHit
from ops.services.errors import SourceFailed, Stalled
from tasks.wiring import Services

STALLED_SECONDS = 600.0  # a first build that stands still so long will not end by itself
_HEAD_BYTES = 8192  # of a document, in which a question is looked for
_READABLE = (".md", ".markdown", ".html", ".htm", ".txt", ".rst")


@dataclass(frozen=True)
class Figures:
    """What a run has done. writes: index operations counted by OpenSearch since the start; None on pgvector."""

    documents: int
    chunks: int
    dead: int
    embeddings: int
    writes: int | None
    first_hit_seconds: float | None
    seconds: float
    question: str
    answer: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def question_of(folder: Path) -> str:
    """Words of the first heading or line in a folder of documents: a question that it can answer."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.suffix.lower() not in _READABLE:
            continue
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES).decode(errors="ignore")
        except OSError:  # a folder of that name, or no permission; the next one may be read
            continue
        text = re.sub(r"<!--.*?-->|<[^>]*>|[#*_`=]+|\0", " ", head, flags=re.DOTALL)
        for line in text.splitlines():
            words = " ".join(line.split())
            if len(words) > 5:
                return words[:100]
    return folder.name


class Following:
    """One run, seen from outside. Make it after the migration and before any process that writes.

    Args:
        made: the application's parts, in this process.
        question: asked until it has an answer.
        tenant: who asks.
        began: elapsed time at which the run began, in seconds.
    """

    def __init__(self, made: Services, question: str, tenant: str, began: float) -> None:
        self._made = made
        self._clock: Clock = made.clock
        self._tenant = tenant
        self._began = began
        self.question = question
        self._own = input_hash(question).hex()
        self._listed = {key: at for key, at, _ in self._listings()}
        self._embeddings = self._count_embeddings()
        self._writes = self._count_writes()
        self._moved_at, self._seen = began, (-1, -1, -1, -1, -1)
        self.hit: SearchHit | None = None
        self.first_hit_seconds: float | None = None

    def progress(self) -> Progress:
        """Where the documents stand. Raises StoreUnreachable."""
        return self._made.ledger.progress(self._made.spec.target_id)

    @property
    def embeddings(self) -> int:
        """Texts embedded in this run, but for our own question, by the embedder's call log."""
        return self._count_embeddings() - self._embeddings

    def ask(self) -> SearchHit | None:
        """Ask the question, unless it has been answered; returns its first answer, once."""
        if self.hit is not None:
            return None
        try:
            found = self._made.search.search(
                self._tenant, self.question, limit=1, timeout=self._made.settings.search_timeout
            )
        except Retryable:  # the embedder is loading, the target opening: asked again at the next look
            return None
        if not found.hits or found.partial:
            return None
        self.hit = found.hits[0]
        self.first_hit_seconds = self._clock.elapsed() - self._began
        return self.hit

    def compared(self, progress: Progress) -> DoctorReport | None:
        """The doctor's report once nothing is left to do and every source was listed in this run; else None.

        Raises SourceFailed when a listing failed.
        """
        if progress.dirty or progress.claimed or progress.garbage or not self._all_listed():
            return None
        report = self._made.examine()
        return report if report.at_rest and not report.behind_source else None

    def check_moves(self, progress: Progress, logs: Path) -> None:
        """Raise Stalled when nothing has changed for STALLED_SECONDS."""
        state = (progress.indexed, progress.dirty, progress.chunks, progress.garbage, self.embeddings)
        now = self._clock.elapsed()
        if state != self._seen:
            self._moved_at, self._seen = now, state
        elif now - self._moved_at > STALLED_SECONDS:
            from ops.status import Observer  # noqa: PLC0415 - only to say what is wrong

            observer = Observer(self._made.settings)
            try:
                problems = " ".join(problem.says for problem in observer.look().problems)
            finally:
                observer.close()
            raise Stalled(
                seconds=STALLED_SECONDS, dirty=progress.dirty, problems=problems or "nothing wrong.", logs=logs
            )

    def figures(self) -> Figures:
        """What this run has done so far."""
        progress = self.progress()
        writes = self._count_writes()
        return Figures(
            documents=progress.documents - progress.absent,
            chunks=progress.chunks,
            dead=progress.dead,
            embeddings=self.embeddings,
            writes=None if writes is None or self._writes is None else writes - self._writes,
            first_hit_seconds=self.first_hit_seconds,
            seconds=self._clock.elapsed() - self._began,
            question=self.question,
            answer=None if self.hit is None else asdict(self.hit),
        )

    def _listings(self) -> list[tuple[tuple[str, str], datetime | None, str | None]]:
        return [
            ((row["tenant_id"], row["source_id"]), row["listed_at"], row["last_error"])
            for row in self._made.ledger.sources()
        ]

    def _all_listed(self) -> bool:
        ours = {(source.tenant_id, name) for name, source in self._made.sources.items()}
        fresh = set()
        for key, at, error in self._listings():
            if key in ours and at is not None and at != self._listed.get(key):
                if error:
                    raise SourceFailed(source="/".join(key), why=error)
                fresh.add(key)
        return fresh == ours

    def _count_embeddings(self) -> int:
        lines = read(self._made.settings.state_dir / "embedder-calls.jsonl")
        return sum(digest != self._own for line in lines for digest in line["inputs"])

    def _count_writes(self) -> int | None:
        """Index operations of the target since its server started, by the server's own counter."""
        if self._made.settings.target != "opensearch":
            return None
        from index.targets.connection import connect  # noqa: PLC0415 - the driver, only where it is the target

        client = connect(self._made.settings)
        try:
            found = client.indices.stats(
                index=f"{self._made.spec.target_id}*",
                metric="indexing",
                params={"request_timeout": self._made.settings.target_timeout},
            )
        finally:
            client.close()
        return int(found["_all"]["primaries"].get("indexing", {}).get("index_total", 0))
