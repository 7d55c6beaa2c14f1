"""Units: the pieces of a text that are not cut lightly. Cuts go between them, and prefer boundaries of higher rank.

Paragraphs fall into sentences; code blocks and tables stay whole where they fit and fall into lines otherwise; what is
still too long falls into words, and a word too long into characters.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from index.model import Block, BlockKind


class Rank(IntEnum):
    """How good a place for a cut the boundary before a unit is."""

    CHARACTER = 0
    WORD = 1
    SENTENCE = 2  # or a line of code or of a table
    BLOCK = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """A stretch of text without white space at its ends (but for the indentation of code)."""

    start: int
    end: int
    rank: Rank


Fits = Callable[[int, int], bool]
"""Whether the stretch [start, end) may be a chunk of its own."""

_CLOSING, _OPENING = "\"'\u201d\u2019)\\]*_`", "\"'\u201c\u2018(\\[*_`"
_SENTENCE_END = re.compile(
    rf"(?<=[.!?\u2026])[{_CLOSING}]*\s+(?=[{_OPENING}]*[^\W_])"  # western: an end mark, white space, a word
    "|(?<=[\u3002\uff01\uff1f])[\u300d\u300f\u201d\u2019\uff09]*"  # CJK: the mark itself; no white space follows
)
_LIST_MARK = re.compile(r"[>*+\-\s]*\d{1,9}\.\s*")
_LINE = re.compile(r"[^\n]*[^\s][^\n]*")
_WORD = re.compile(r"\S+")


def units_of(text: str, block: Block, *, whole: Fits, small: Fits) -> Iterator[Unit]:
    """The units of a block in order; they cover all of its characters but white space.

    whole: for a code block or table as one unit. small: for any other unit.
    """
    verbatim = block.kind in {BlockKind.CODE, BlockKind.TABLE}
    if verbatim and whole(block.start, block.end):
        yield Unit(block.start, block.end, Rank.BLOCK)
        return
    parts = _lines(text, block.start, block.end) if verbatim else _sentences(text, block.start, block.end)
    rank = Rank.BLOCK
    for start, end in parts:
        if small(start, end):
            yield Unit(start, end, rank)
        else:
            yield from _words(text, start, end, rank, small)
        rank = Rank.SENTENCE


def _words(text: str, start: int, end: int, rank: Rank, small: Fits) -> Iterator[Unit]:
    for match in _WORD.finditer(text, start, end):
        if small(match.start(), match.end()):
            yield Unit(match.start(), match.end(), rank)
        else:
            yield from _characters(text, match.start(), match.end(), rank)
        rank = Rank.WORD


def _characters(text: str, start: int, end: int, rank: Rank) -> Iterator[Unit]:
    """Characters with the combining ones that belong to them."""
    first = start
    for at in range(start + 1, end):
        if not unicodedata.combining(text[at]):
            yield Unit(first, at, rank)
            first, rank = at, Rank.CHARACTER
    yield Unit(first, end, rank)


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    first = start
    for match in _SENTENCE_END.finditer(text, start, end):
        if _LIST_MARK.fullmatch(text, first, match.end()):  # "1. " is no sentence of its own
            continue
        yield from _trimmed(text, first, match.end())
        first = match.end()
    yield from _trimmed(text, first, end)


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    kept = piece.strip()
    if kept:
        offset = start + len(piece) - len(piece.lstrip())
        yield offset, offset + len(kept)


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in _LINE.finditer(text, start, end):
        yield match.start(), match.start() + len(match[0].rstrip())
