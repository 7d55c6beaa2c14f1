"""An embedder for tests: the real server with a model that hashes words instead of torch.

Same protocol, queue, joining and call log as the real one; starts in well under a second. Texts that share words get
near vectors, so searches behave sensibly. Use `running(folder)` in a test, or as a process:

    python -m tests.support.fake_embedder unix:///path/embedder.sock /path/calls.jsonl
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import numpy as np

from index.chunking.tokens import TokenCounter
from index.embedding.client import EmbedderClient
from index.embedding.server import EmbedderServer, run
from index.embedding.weights import ModelCard, model_folder

DIMENSION = 384


@lru_cache(maxsize=100_000)
def _word_vector(word: str, dimension: int, seed: str) -> np.ndarray:
    digest = blake2b(f"{seed}:{word}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(dimension)


@lru_cache(maxsize=1)
def _packaged_tokens() -> TokenCounter:
    return TokenCounter.of(model_folder(None))


class HashModel:
    """Vector of a text = normalised sum of fixed random vectors of its words; word order counts a little.

    Another `seed` is another model with another fingerprint. `before` is called in the model's thread before each
    batch and may wait (to hold the queue) or raise (to fail the batch).
    """

    def __init__(
        self, seed: str = "fake", dimension: int = DIMENSION, before: Callable[[Sequence[str]], None] | None = None
    ) -> None:
        self._seed = seed
        self._before = before
        self._tokens = _packaged_tokens()
        self.truncated = 0
        self.card = ModelCard(
            name=f"hash-{seed}",
            fingerprint=f"hash-{seed}-{dimension}",
            dimension=dimension,
            max_tokens=self._tokens.max_tokens,
        )

    def count_tokens(self, inputs):
        return self._tokens.count(inputs)

    def encode(self, inputs):
        if self._before is not None:
            self._before(inputs)
        rows = np.stack([self._vector(text) for text in inputs])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def _vector(self, text):
        words = text.lower().split()
        whole = _word_vector(f"\0{text}", self.card.dimension, self._seed) * 0.05  # equal only for equal texts
        return sum(
            (_word_vector(word.strip(".,;:!?()[]`*#\"'"), self.card.dimension, self._seed) for word in words), whole
        )


class FakeEmbedder:
    """A running fake: its address, its call log, and how to talk to it."""

    def __init__(self, address: str, call_log: Path) -> None:
        self.address = address
        self.call_log = call_log
        self._clients: list[EmbedderClient] = []

    def client(self, timeout: float = 10.0, **options) -> EmbedderClient:
        """A client that is closed with the fake."""
        self._clients.append(EmbedderClient(self.address, timeout, **options))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def running(
    call_log: Path,
    *,
    address: str | None = None,
    load: Callable[[], HashModel] = HashModel,
    wait: bool = True,
    **options,
) -> Iterator[FakeEmbedder]:
    """A fake embedder in a thread of this process, ready when the block begins (but for `wait=False`)."""
    with TemporaryDirectory(prefix="fb-") as short:  # the path of a Unix socket must be short
        started: SimpleQueue[EmbedderServer | BaseException] = SimpleQueue()

        def serve() -> None:
            try:
                run(address or f"unix://{short}/embedder.sock", load, call_log, started=started.put, **options)
            except BaseException as error:  # noqa: BLE001 - handed to the test's thread
                started.put(error)

        thread = threading.Thread(target=serve, name="fake-embedder")
        thread.start()
        server = started.get(timeout=10)
        if isinstance(server, BaseException):
            thread.join()
            raise server
        fake = FakeEmbedder(server.address, call_log)
        try:
            if wait:
                fake.client().wait_until_ready(10)
            yield fake
        finally:
            fake.close()
            server.stop()
            thread.join(timeout=20)
            assert not thread.is_alive(), "the fake embedder did not stop"


if __name__ == "__main__":
    run(sys.argv[1], HashModel, Path(sys.argv[2]))
