"""Markdown (CommonMark and tables, with YAML front matter) as blocks over its own normalised source.

Spans are of the source, markup included: a citation shows what the author wrote. markdown-it is used for the block
structure alone; lines that belong to no block of its (link definitions, too deep nesting) are paragraphs here, so no
text is lost.
"""

import re
from dataclasses import dataclass

import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

from index.model import Block, BlockKind, Parsed
from index.parsing.deadline import Deadline
from index.parsing.normalise import one_line, squeeze

_FRONT = re.compile(r"\A---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_LIMIT = 20_000  # characters; a rule at the top of a long text opens no front matter
_HEADING_LIMIT = 1_000  # characters of a heading whose inline markup is read; a longer one is taken as it is
_LEAVES = {
    "heading_open": BlockKind.PARAGRAPH,  # a heading in a list or a quotation; see `_leaves` for the others
    "paragraph_open": BlockKind.PARAGRAPH,
    "html_block": BlockKind.PARAGRAPH,
    "hr": BlockKind.PARAGRAPH,
    "fence": BlockKind.CODE,
    "code_block": BlockKind.CODE,
    "table_open": BlockKind.TABLE,
}
_ENDS_PARAGRAPHS = ["paragraph", "reference", "blockquote", "list"]


@dataclass(frozen=True, slots=True)
class _Leaf:
    kind: BlockKind
    first: int
    last: int  # the line after it
    level: int = 0  # of a heading
    heading: str = ""


def parse_markdown(text: str, deadline: Deadline) -> Parsed:
    """Parse clean text. Title: that of the front matter, else the first heading of level 1; front matter is no text."""
    title, text = _front_matter(text)
    lines = text.split("\n")
    leaves = _leaves(text, deadline)
    code = [False] * len(lines)
    for leaf in leaves:
        if leaf.kind is BlockKind.CODE:
            code[leaf.first : leaf.last] = [True] * (leaf.last - leaf.first)
    squeezed = squeeze(lines, code)
    blocks: list[Block] = []
    path: list[tuple[int, str]] = []
    for leaf in _with_gaps(leaves, len(lines)):
        deadline.check()
        if leaf.kind is BlockKind.HEADING:
            path = [above for above in path if above[0] < leaf.level]
            if leaf.heading:
                path.append((leaf.level, leaf.heading))
            if title is None and leaf.level == 1 and leaf.heading:
                title = leaf.heading
        first, last = _without_blank_edges(lines, leaf.first, leaf.last)
        if first < last:
            headings = tuple(heading for _, heading in path)
            blocks.append(Block(leaf.kind, squeezed.starts[first], squeezed.ends[last - 1], headings))
    return Parsed(title=title, text=squeezed.text, blocks=blocks)


def _front_matter(text: str) -> tuple[str | None, str]:
    match = _FRONT.match(text[:_FRONT_LIMIT])
    if match is None:
        return None, text
    try:
        # BaseLoader makes strings only: a title such as 2024 stays what the author wrote, and no object is built.
        facts = yaml.load(match["yaml"], Loader=yaml.BaseLoader)  # noqa: S506 - it constructs no objects
    except (yaml.YAMLError, RecursionError):
        return None, text  # it only looked like front matter, so it is text
    if not isinstance(facts, dict):
        return None, text
    title = facts.get("title")
    return (one_line(title) or None) if isinstance(title, str) else None, text[match.end() :]


def _leaves(text: str, deadline: Deadline) -> list[_Leaf]:
    def within_time(_: StateBlock, _start: int, _end: int, _silent: bool) -> bool:
        deadline.check()
        return False  # it never is the block: the rules after it decide

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.disable("inline")
    parser.block.ruler.before("table", "within_time", within_time, {"alt": _ENDS_PARAGRAPHS})
    tokens = parser.parse(text)
    leaves = []
    for at, token in enumerate(tokens):
        if token.map is None or token.type not in _LEAVES:
            continue
        first, last = token.map
        if token.type == "heading_open" and token.level == 0:
            heading = _plain(tokens[at + 1].content)  # markdown-it: a heading's inline token follows it
            leaves.append(_Leaf(BlockKind.HEADING, first, last, int(token.tag[1]), heading))
        else:
            leaves.append(_Leaf(_LEAVES[token.type], first, last))
    return sorted(leaves, key=lambda leaf: leaf.first)


def _plain(markup: str) -> str:
    """A heading's words without its markup."""
    if len(markup) > _HEADING_LIMIT:
        return one_line(markup)
    return one_line("".join(_words(MarkdownIt("commonmark").parseInline(markup))))


def _words(tokens: list[Token]) -> list[str]:
    words: list[str] = []
    for token in tokens:
        if token.children is not None:
            words += _words(token.children)
        elif token.type in {"text", "code_inline", "text_special"}:
            words.append(token.content)
        elif token.type in {"softbreak", "hardbreak"}:
            words.append(" ")
    return words


def _with_gaps(leaves: list[_Leaf], total: int) -> list[_Leaf]:
    """The leaves in order, without overlaps, and paragraphs for the lines between them."""
    whole: list[_Leaf] = []
    line = 0
    for leaf in [*leaves, _Leaf(BlockKind.PARAGRAPH, total, total)]:
        if leaf.first > line:
            whole.append(_Leaf(BlockKind.PARAGRAPH, line, leaf.first))
        if leaf.last > line:
            whole.append(_Leaf(leaf.kind, max(leaf.first, line), leaf.last, leaf.level, leaf.heading))
            line = leaf.last
    return whole


def _without_blank_edges(lines: list[str], first: int, last: int) -> tuple[int, int]:
    while first < last and not lines[first].strip():
        first += 1
    while first < last and not lines[last - 1].strip():
        last -= 1
    return first, last
