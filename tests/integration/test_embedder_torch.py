"""The embedder as it runs in production: its own process, MiniLM on torch, a Unix socket."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pytest

from fencebeat.clock import ManualClock
from index.chunking.headings import HeadingChunker
from index.chunking.tokens import TokenCounter
from index.embedding import calls
from index.embedding.client import EmbedderClient
from index.embedding.weights import card_of, model_folder
from index.errors import InputRefused
from index.parsing.markdown import parse_markdown
from index.pipeline import DocumentPipeline
from tests.support.texts import LIMITS, fetched, no_deadline
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120  # importing torch takes 15 s on an idle machine


@dataclass
class Embedder:
    address: str
    log: Path
    process: subprocess.Popen

    def client(self):
        return EmbedderClient(self.address, 60)


def start(address: str, log: Path) -> Embedder:
    code = "import sys; from pathlib import Path; from index.embedding.server import serve; "
    code += "serve(sys.argv[1], None, Path(sys.argv[2]))"
    return Embedder(address, log, subprocess.Popen([sys.executable, "-c", code, address, str(log)], cwd=ROOT))


@pytest.fixture(scope="module")
def embedder():
    with TemporaryDirectory(prefix="fb-") as short:
        killed = start(f"unix://{short}/e.sock", Path(short) / "calls.jsonl")
        until((Path(short) / "e.sock").exists, at_most=START_SECONDS)
        killed.process.kill()  # while it loads; what it leaves behind must not be in the way
        killed.process.wait(10)
        running = start(f"unix://{short}/e.sock", Path(short) / "calls.jsonl")
        client = running.client()
        client.wait_until_ready(START_SECONDS)
        client.close()
        yield running
        running.process.terminate()
        assert running.process.wait(30) == 0
        assert not (Path(short) / "e.sock").exists()


@pytest.fixture
def client(embedder):
    client = embedder.client()
    yield client
    client.close()


def truncated(embedder):
    transport = httpx.HTTPTransport(uds=embedder.address.removeprefix("unix://"))
    with httpx.Client(transport=transport, base_url="http://embedder", timeout=10) as http:
        lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("tokens_truncated_total "))


def test_texts_of_like_meaning_are_near(client):
    question, answer, other = client.embed(
        ["How do I stop all indexing?", "Set the kill switch to halt every write.", "Herons nest near rivers."]
    )

    assert question @ answer > question @ other + 0.1


def test_the_card_is_that_of_the_files(client):
    card = card_of(model_folder(None))

    assert client.card == card
    assert (card.name, card.dimension, card.max_tokens) == ("all-MiniLM-L6-v2", 384, 256)


def test_a_vector_does_not_depend_on_the_batch_it_is_in(client):
    inputs = [f"Sentence number {number}, " * (number + 1) for number in range(12)]

    together = client.embed(inputs)

    for text, vector in zip(inputs, together, strict=True):
        assert float(client.embed([text])[0] @ vector) > 0.99999


def test_the_limit_is_exact_and_nothing_is_ever_truncated(embedder, client):
    """D16: counts include the special tokens; the model itself confirms that it saw every token."""
    fits, over = "word " * 254, "word " * 255
    assert TokenCounter.of(model_folder(None)).count([fits, over]) == [256, 257]
    before = calls.count(embedder.log)

    assert len(client.embed([fits])) == 1
    with pytest.raises(InputRefused, match="257 tokens"):
        client.embed([over])

    assert calls.count(embedder.log) == before + 1
    assert truncated(embedder) == 0


def test_hard_texts_pass_from_bytes_to_vectors(embedder, client):
    """D16, D17: code, other scripts, broken characters, one long line; none is cut off, each sentence is found."""
    chunker = HeadingChunker(TokenCounter.of(model_folder(None)), 400)
    pipeline = DocumentPipeline(chunker, LIMITS, ManualClock())
    unique = "A zebra plays the bassoon at midnight."
    filler = "The river bends slowly past the mill. " * 66
    text = f"# Títle\0\n\n{filler}{unique} {'x1!' * 3000} {'漢字仮名。' * 600}\ud800"

    parsed, chunks = pipeline.cut(fetched(text.encode("utf-8", "surrogatepass")))
    vectors = client.embed([chunk.embed_input for chunk in chunks])
    (query,) = client.embed([unique])

    assert parsed.removed_characters == 2
    best = chunks[int(np.argmax(np.stack(vectors) @ query))]
    assert unique in best.text
    assert truncated(embedder) == 0


def test_the_projects_own_tokenizer_counts_as_the_models_does(client):
    """Nothing the chunker makes is refused."""
    text = (ROOT / "docs" / "decisions").glob("*.md")
    chunker = HeadingChunker(TokenCounter.of(model_folder(None)), 400)

    for path in text:
        chunks = chunker.split(parse_markdown(path.read_text(), no_deadline()))
        assert len(client.embed([chunk.embed_input for chunk in chunks])) == len(chunks)
