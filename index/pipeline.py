"""From fetched bytes to chunks: parse within the limits, then cut. No I/O, so the same bytes give the same chunks."""

from typing import Self

from config.settings import Settings
from fencebeat.clock import Clock
from index.chunking.headings import HeadingChunker
from index.chunking.tokens import TokenCounter
from index.embedding.weights import model_folder
from index.model import Chunk, Fetched, Parsed
from index.parsing.parse import Limits, parse
from index.ports import Chunker


class DocumentPipeline:
    """A parser with its limits and a chunker."""

    def __init__(self, chunker: Chunker, limits: Limits, clock: Clock) -> None:
        self.chunker = chunker
        self.limits = limits
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings, clock: Clock) -> Self:
        """The pipeline that the settings describe. Raises ImpossibleConfiguration when the model's folder is none."""
        tokens = TokenCounter.of(model_folder(settings.model_path))
        limits = Limits(
            max_bytes=settings.max_document_bytes,
            max_characters=settings.max_document_characters,
            seconds=settings.parse_seconds,
        )
        return cls(HeadingChunker(tokens, settings.chunk_characters), limits, clock)

    def cut(self, fetched: Fetched) -> tuple[Parsed, list[Chunk]]:
        """The document's text and its chunks. Raises DocumentTooLarge or DocumentUnparsable."""
        parsed = parse(fetched, self.limits, self._clock)
        return parsed, list(self.chunker.split(parsed))
