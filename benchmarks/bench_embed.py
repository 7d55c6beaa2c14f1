"""How fast 300 real chunks of mixed length become vectors, against one `encode` per document in the same run.

Ours: `Batcher` as the embedder process runs it, with its default budget of padded tokens: the chunks of all documents
are asked for at once, one caller for each document, and run in batches of like length.

Peer: one `SentenceTransformer.encode` (its defaults, which sort within the call) for each document, in the order in
which the documents come, which is what an indexing task without an embedder of its own does.

Both have the same model, process and threads, and must give the same vectors. The documents are from the recorded
history of the Rust book in `../shared/data` (or FENCEBEAT_DATA_DIR), else this repository's own pages. Each is measured
ROUNDS times, in turn; the fastest counts. The padded tokens tell on any machine what the seconds tell on this one. The
last line is `embed ours peer ratio`: seconds, seconds, and how many times faster we are.
"""

import asyncio
import gzip
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from config.settings import settings
from fencebeat.clock import SystemClock
from index.embedding.batcher import Batcher
from index.embedding.calls import CallLog
from index.embedding.metrics import EmbedderMetrics
from index.embedding.model import TorchModel
from index.embedding.weights import model_folder
from index.model import Chunk, Fetched, Meta
from index.pipeline import DocumentPipeline

CHUNKS = 300
ROUNDS = 2
BATCH_TOKENS = 4096
ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FENCEBEAT_DATA_DIR") or ROOT.parent / "shared" / "data") / "workload-rust-book"

Rows = npt.NDArray[np.float32]
Documents = Sequence[Sequence[Chunk]]


class Counting(TorchModel):
    """The embedder's model, which also counts the tokens it was padded to."""

    def __init__(self, folder: Path) -> None:
        self.padded = 0
        super().__init__(folder)

    def encode(self, inputs: Sequence[str]) -> Rows:
        """See `Model.encode`."""
        self.padded += max(self.count_tokens(inputs)) * len(inputs)
        return super().encode(inputs)


def main() -> None:
    """Measure and print."""
    documents = _documents()
    chunks = [chunk for document in documents for chunk in document]
    model = Counting(model_folder(None))
    ways: dict[str, Callable[[], tuple[float, int, Rows]]] = {
        "fencebeat": lambda: asyncio.run(_ours(model, documents)),
        "encode per document": lambda: _peer(model, documents),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    padded, rows = dict.fromkeys(ways, 0), dict[str, Rows]()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            took, padded[name], rows[name] = way()
            seconds[name] = min(seconds[name], took)
    ours, peer = seconds
    assert np.allclose(rows[ours], rows[peer], atol=1e-4), "not the same vectors"
    tokens = sum(chunk.tokens for chunk in chunks)
    table = Table("embedding", "seconds", "chunks a second", "padded tokens", title=_title(documents, tokens))
    for name, took in seconds.items():
        table.add_row(name, f"{took:.1f}", f"{len(chunks) / took:.1f}", f"{padded[name]:,}")
    Console().print(table)
    print(f"embed {seconds[ours]:.2f} {seconds[peer]:.2f} {seconds[peer] / seconds[ours]:.2f}")


def _title(documents: Documents, tokens: int) -> str:
    sizes = sorted(chunk.tokens for document in documents for chunk in document)
    return (
        f"{len(sizes)} chunks of {len(documents)} documents, {sizes[0]} to {sizes[-1]} tokens, {tokens:,} in all; "
        f"the fastest of {ROUNDS}"
    )


def _documents() -> Documents:
    """The chunks of real pages, document by document, CHUNKS of them where there are as many."""
    pages = _recorded() if DATA.is_dir() else {path.name: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    names = sorted(pages)
    random.Random(1).shuffle(names)  # neighbours in a book have like lengths; what comes to an index is mixed
    pipeline = DocumentPipeline.of(settings(), SystemClock())
    documents: list[list[Chunk]] = []
    missing = CHUNKS
    for name in names:
        page = Fetched(name, pages[name].encode(), "text/markdown", "1", Meta(display_name=name))
        documents.append(pipeline.cut(page)[1][:missing])
        missing -= len(documents[-1])
        if missing == 0:
            break
    return [document for document in documents if document]


def _recorded() -> dict[str, str]:
    with gzip.open(DATA / "base.jsonl.gz", "rt", encoding="utf-8") as lines:
        files = [json.loads(line) for line in lines]
    return {file["path"]: file["text"] for file in files if file["path"].endswith(".md")}


async def _ours(model: Counting, documents: Documents) -> tuple[float, int, Rows]:
    model.padded = 0
    with tempfile.TemporaryDirectory(prefix="fencebeat-bench-") as folder:
        log = CallLog(Path(folder) / "calls.jsonl")
        batcher = Batcher(model, log, EmbedderMetrics(), batch_tokens=BATCH_TOKENS, queue_inputs=2 * CHUNKS)
        running = asyncio.create_task(batcher.run())
        began = time.perf_counter()
        vectors = await asyncio.gather(
            *(batcher.embed([c.embed_input for c in document], [c.tokens for c in document]) for document in documents)
        )
        took = time.perf_counter() - began
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        log.close()
    return took, model.padded, np.stack([vector for document in vectors for vector in document])


def _peer(model: Counting, documents: Documents) -> tuple[float, int, Rows]:
    transformer = model._model  # noqa: SLF001 - the same weights in the same process, past everything of ours
    rows: list[Rows] = []
    began = time.perf_counter()
    for document in documents:
        inputs = [chunk.embed_input for chunk in document]
        rows.append(transformer.encode(inputs, normalize_embeddings=True, show_progress_bar=False))
    took = time.perf_counter() - began
    return took, sum(_padded_by_encode(document) for document in documents), np.concatenate(rows)


def _padded_by_encode(document: Sequence[Chunk], batch: int = 32) -> int:
    """Tokens of one `encode`, which runs its inputs from long to short in batches of 32."""
    sizes = sorted((chunk.tokens for chunk in document), reverse=True)
    return sum(sizes[at] * len(sizes[at : at + batch]) for at in range(0, len(sizes), batch))


if __name__ == "__main__":
    main()
