"""Plain text: paragraphs are what blank lines divide. It has no title and no headings."""

from itertools import groupby

from index.model import Block, BlockKind, Parsed
from index.parsing.deadline import Deadline
from index.parsing.normalise import squeeze


def parse_plain(text: str, deadline: Deadline) -> Parsed:
    """Parse clean text."""
    lines = text.split("\n")
    squeezed = squeeze(lines, [False] * len(lines))
    blocks = []
    for blank, numbers in groupby(range(len(lines)), key=lambda number: not lines[number].strip()):
        deadline.check()
        if not blank:
            paragraph = list(numbers)
            blocks.append(Block(BlockKind.PARAGRAPH, squeezed.starts[paragraph[0]], squeezed.ends[paragraph[-1]]))
    return Parsed(title=None, text=squeezed.text, blocks=blocks)
