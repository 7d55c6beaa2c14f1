"""Parsing for tests: clocks that stand still, and parsed texts shown as what they are."""

from fencebeat.clock import ManualClock
from index.model import Fetched, Meta, Parsed
from index.parsing.deadline import Deadline
from index.parsing.parse import Limits

LIMITS = Limits(max_bytes=1_000_000, max_characters=1_000_000, seconds=10)


def no_deadline() -> Deadline:
    """A deadline that never comes."""
    return Deadline(ManualClock(), 1)


def shown(parsed: Parsed) -> list[tuple[str, str]]:
    """Each block as (kind, text)."""
    return [(str(block.kind), parsed.text[block.start : block.end]) for block in parsed.blocks]


def outline(parsed: Parsed) -> list[tuple[str, tuple[str, ...]]]:
    """Each block as (text, path of headings)."""
    return [(parsed.text[block.start : block.end], block.headings) for block in parsed.blocks]


def fetched(data: bytes, media_type: str = "text/markdown") -> Fetched:
    """A document as a source gives it."""
    return Fetched(uid="a.md", data=data, media_type=media_type, version="v1", meta=Meta("a.md"))


def uncovered(parsed: Parsed) -> str:
    """What is in no block, white space left out; fails where blocks overlap or are out of order."""
    position, left = 0, []
    for block in parsed.blocks:
        assert position <= block.start < block.end, (position, block)
        left.append(parsed.text[position : block.start])
        position = block.end
    left.append(parsed.text[position:])
    return "".join("".join(left).split())
