"""Embed once: the cache is asked first, each distinct text goes out once, each batch is kept as soon as it arrived."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from config.events import BATCH_EMBEDDED, emit
from fencebeat.clock import Clock, SystemClock
from fencebeat.failpoints import failpoint
from index.embedding.cache import EmbeddingCache
from index.embedding.checks import plan
from index.embedding.weights import ModelCard
from index.ids import input_hash
from index.model import Vector
from index.ports import nothing


class CardedEmbedder(Protocol):
    """An embedder that tells its model's card, as `EmbedderClient` does."""

    @property
    def card(self) -> ModelCard:
        """The model."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Padded tokens of one request."""
        ...

    def embed(self, inputs: Sequence[str]) -> Sequence[Vector]:
        """See `index.ports.Embedder.embed`."""
        ...


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """Vectors in the order of the inputs. embedded: distinct texts computed now; reused: inputs that cost nothing."""

    vectors: Sequence[Vector]
    embedded: int
    reused: int


class CachedEmbedder:
    """An embedder behind the cache. One instance serves one thread."""

    def __init__(
        self,
        embedder: CardedEmbedder,
        cache: EmbeddingCache,
        *,
        before_batch: Callable[[], None] = nothing,
        clock: Clock | None = None,
    ) -> None:
        self._embedder = embedder
        self._cache = cache
        self._before_batch = before_batch
        self._clock = clock or SystemClock()

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._embedder.card.fingerprint

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._embedder.card.dimension

    def embed(self, inputs: Sequence[str], *, before_batch: Callable[[], None] | None = None) -> EmbedResult:
        """The vector of every input. `before_batch` is called before each request and may raise to stop.

        What had arrived before an error or a crash is in the cache: the next try pays for the rest only. Raises what
        the embedder, the cache and `before_batch` raise.
        """
        if not inputs:
            return EmbedResult((), 0, 0)
        began = self._clock.elapsed()
        card = self._embedder.card
        keys = [input_hash(text) for text in inputs]
        wanted = dict(zip(keys, inputs, strict=True))
        known = self._cache.get_many(card.fingerprint, list(wanted))
        missing = [key for key in wanted if key not in known]
        for batch in plan([wanted[key] for key in missing], self._embedder.batch_tokens, card.max_tokens):
            part = [missing[position] for position in batch]
            (before_batch or self._before_batch)()
            failpoint("index.embed.before")
            arrived = dict(zip(part, self._embedder.embed([wanted[key] for key in part]), strict=True))
            failpoint("index.embed.after")
            self._cache.put_many(card.fingerprint, arrived)
            known |= arrived
        reused = len(inputs) - len(missing)
        emit(BATCH_EMBEDDED, inputs=len(inputs), cached=reused, seconds=self._clock.elapsed() - began)
        return EmbedResult([known[key] for key in keys], len(missing), reused)
