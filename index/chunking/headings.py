"""The chunker: sections by headings, cut where their content says, within the model's tokens.

A section is a heading and what follows up to the next one; headings that follow each other directly, each deeper than
the one before, open one section together. Chunks never reach over a section's end, so an edit stays in its section.

What the embedder sees is `embed_input`: title, heading path and text. It is measured with the model's own tokenizer,
special tokens included, and is never above the limit: text is split, and only the heading path, which stands in the
text as well, is shortened where it would take more than a quarter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from index.chunking.cuts import cut
from index.chunking.tokens import TokenCounter
from index.chunking.units import Fits, Unit, units_of
from index.model import Block, BlockKind, Chunk, Parsed

CODE_VERSION = 1
"""Raised with every change here, in `cuts`, in `units` or in `index.parsing` that may move a cut: the chunks before and
after it are of two chunkers, and an index holds those of one."""

_MOST = 1.5  # a chunk is at most this many times the size aimed at: halves of what is longer average about that size
_LEAST = 1 / 3  # and at least this share of it, where boundaries allow
_WHOLE = 3  # code and tables stay whole up to this many times the size aimed at
_PATH_SHARE = 4  # title and headings may take one token in four


@dataclass(frozen=True, slots=True)
class _Section:
    headings: tuple[str, ...]
    blocks: list[Block]


class HeadingChunker:
    """Satisfies `index.ports.Chunker`. characters: the size aimed at."""

    def __init__(self, tokens: TokenCounter, characters: int) -> None:
        self._tokens = tokens
        self._characters = characters
        self._prefix = lru_cache(maxsize=1024)(self._make_prefix)
        self.fingerprint = f"headings-{CODE_VERSION}:{characters}:{tokens.fingerprint}"

    def split(self, parsed: Parsed) -> list[Chunk]:
        """The chunks in order; see `index.ports.Chunker`."""
        starts = self._tokens.starts(parsed.text)
        chunks: list[Chunk] = []
        for section in _sections(parsed.blocks):
            prefix = self._prefix(parsed.title, section.headings)
            spans = self._spans(parsed.text, section, starts, prefix)
            inputs = [_joined(prefix, parsed.text[start:end]) for start, end in spans]
            chunks += [
                Chunk(parsed.text[start:end], embed_input, section.headings, start, end, tokens)
                for (start, end), embed_input, tokens in zip(spans, inputs, self._tokens.count(inputs), strict=True)
            ]
        return chunks

    def _spans(self, text: str, section: _Section, starts: npt.NDArray[np.int64], prefix: str) -> list[tuple[int, int]]:
        budget = self._tokens.max_tokens - self._tokens.count([_joined(prefix, "")])[0]

        def within(characters: float) -> Fits:
            def fits(start: int, end: int) -> bool:
                if end - start > characters:
                    return False
                first, last = np.searchsorted(starts, (start, end))
                return bool(last - first <= budget)

            return fits

        most = self._characters * _MOST
        units = [
            unit
            for block in section.blocks
            for unit in units_of(text, block, whole=within(self._characters * _WHOLE), small=within(most))
        ]
        spans = cut(text, units, fits=within(most), least=int(self._characters * _LEAST))
        return list(self._exact(text, spans, prefix))

    def _exact(self, text: str, spans: Sequence[tuple[int, int]], prefix: str) -> Iterator[tuple[int, int]]:
        """The spans, those cut again that have too many tokens after all.

        Tokens of the whole text are not always those of its parts: a long word that is one unknown token falls into
        many when it is cut, and the last words of the prefix may join with the first of the text.
        """
        counts = self._tokens.count([_joined(prefix, text[start:end]) for start, end in spans])
        for (start, end), tokens in zip(spans, counts, strict=True):
            if tokens <= self._tokens.max_tokens or end - start == 1:
                yield start, end
                continue
            half = (end - start) // 2

            def fits(first: int, last: int, half: int = half) -> bool:
                return last - first <= half

            block = Block(BlockKind.CODE, start, end)
            parts: list[Unit] = list(units_of(text, block, whole=fits, small=fits))
            yield from self._exact(text, cut(text, parts, fits=fits, least=half // 4), prefix)

    def _make_prefix(self, title: str | None, headings: tuple[str, ...]) -> str:
        """Title and heading path; outer headings are left out first where they take too many tokens."""
        named = [] if title is None or (headings and headings[0] == title) else [title]
        path = list(headings)
        limit = self._tokens.max_tokens // _PATH_SHARE
        while self._tokens.count([_path(named, path)])[0] > limit:
            if len(path) > 1:
                del path[0]
            elif named and path:
                named = []
            else:
                return self._shortened(_path(named, path), limit)
        return _path(named, path)

    def _shortened(self, heading: str, limit: int) -> str:
        """The longest beginning of a heading, by characters, that is within `limit` tokens."""
        low, high = 0, min(len(heading), limit * 50)  # no token of prose is longer
        while low < high:
            middle = (low + high + 1) // 2
            if self._tokens.count([heading[:middle]])[0] <= limit:
                low = middle
            else:
                high = middle - 1
        return heading[:low].rstrip()


def _sections(blocks: Sequence[Block]) -> Iterator[_Section]:
    section: _Section | None = None
    for block in blocks:
        if section is not None and block.kind is BlockKind.HEADING:
            only_headings = all(above.kind is BlockKind.HEADING for above in section.blocks)
            if only_headings and len(block.headings) > len(section.headings):
                section = _Section(block.headings, section.blocks)
            else:
                yield section
                section = None
        if section is None:
            section = _Section(block.headings, [])
        section.blocks.append(block)
    if section is not None:
        yield section


def _path(named: Sequence[str], headings: Sequence[str]) -> str:
    return "\n".join(filter(None, (*named, " > ".join(headings))))


def _joined(prefix: str, text: str) -> str:
    return f"{prefix}\n\n{text}" if prefix else text
