"""HTML as the text a reader sees, with its headings, code and tables. Spans are of that text, not of the markup.

lxml and a walk of ours, not a main-content extractor: those drop what their heuristics take for boilerplate, silently.
Left out is only what is never text of the document: scripts, styles, navigation, form controls, hidden elements.
"""

import re
from typing import Any

from lxml import etree

from index.model import Block, BlockKind, Parsed
from index.parsing.deadline import Deadline
from index.parsing.normalise import clean, one_line

# fmt: off
_SKIPPED = frozenset({
    "script", "style", "noscript", "template", "head", "nav", "svg", "math", "canvas", "iframe", "object", "audio",
    "video", "select", "button", "textarea",
})
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div",
    "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html", "legend",
    "li", "main", "menu", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
    "tr", "ul", "h1", "h2", "h3", "h4", "h5", "h6",
})
# fmt: on
_HEADING = re.compile(r"h[1-6]\Z")


class TooDeep(ValueError):
    """Elements nest deeper than the parser follows; what lies deeper would be lost."""


class _Collector:
    """Blocks as they are found: kind, text, and the level of a heading.

    The holder is an open element whose whole content is one block: pre, table or a heading.
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[BlockKind, str, int]] = []
        self._parts: list[str] = []
        self._holder = ""
        self._depth = 0  # of elements with the holder's name, as tables may hold tables

    def start(self, tag: str) -> None:
        if tag == "br":
            self._parts.append("\n")
        elif self._holder:
            self._depth += tag == self._holder
            if tag in _BLOCKS:
                self._parts.append(self._separator(tag))
        elif tag in _BLOCKS:
            self.flush()
            if _kind(tag) is not BlockKind.PARAGRAPH:
                self._holder, self._depth = tag, 1

    def end(self, tag: str) -> None:
        if not self._holder:
            if tag in _BLOCKS:
                self.flush()
        elif tag == self._holder:
            self._depth -= 1
            if self._depth == 0:
                self.flush(_kind(tag), int(tag[1]) if _HEADING.match(tag) else 0)
                self._holder = ""

    def add(self, text: str | None) -> None:
        if text:
            self._parts.append(text)

    def flush(self, kind: BlockKind = BlockKind.PARAGRAPH, level: int = 0) -> None:
        """End the block that was being collected; nothing happens where it has no text."""
        raw = "".join(self._parts)
        self._parts.clear()
        if kind is BlockKind.CODE:
            text = clean(raw)[0].strip("\n").rstrip()
        elif kind is BlockKind.TABLE:
            rows = (one_line(row).removeprefix("| ") for row in raw.split("\0"))
            text = "\n".join(row for row in rows if row.strip(" |"))
        else:
            text = one_line(raw)
        if text.strip():
            self.blocks.append((kind, text, level))

    def _separator(self, tag: str) -> str:
        if _kind(self._holder) is BlockKind.TABLE:
            return {"tr": "\0", "td": " | ", "th": " | "}.get(tag, " ")
        return "\n" if self._holder == "pre" else " "


def parse_html(text: str, deadline: Deadline) -> Parsed:
    """Parse clean text. Title: the first h1, else the title element. Raises TooDeep."""
    root = _root(text)
    if root is None:
        return Parsed(title=None, text="", blocks=())
    found = _Collector()
    _walk(root, found, deadline)
    headings = [words for kind, words, level in found.blocks if kind is BlockKind.HEADING and level == 1]
    named = root.findtext(".//head/title")
    title = headings[0] if headings else (one_line(named or "") or None)
    return _assembled(title, found.blocks)


def _root(text: str) -> Any:
    """The tree, None where there is no element in it (nothing, or comments only)."""
    # huge_tree: without it lxml cuts a text off after 10 MB, and elements after 256 levels, and says nothing.
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True, no_network=True)
    try:
        root = etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError:  # the parser recovers from every error but an empty document
        root = None
    for entry in parser.error_log:
        if entry.type_name == "ERR_RESOURCE_LIMIT":
            raise TooDeep(f"its elements nest too deep: {entry.message}")
    return root


def _walk(root: Any, found: _Collector, deadline: Deadline) -> None:
    """Collect the blocks. Without recursion, as the depth of the tree is the author's choice."""
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        deadline.check()
        skipped = element.tag in _SKIPPED or element.get("hidden") is not None
        if event == "start":
            if skipped:
                walk.skip_subtree()
            else:
                found.start(element.tag)
                found.add(element.text)
        else:
            if not skipped:
                found.end(element.tag)
            found.add(element.tail)
    found.flush()


def _kind(tag: str) -> BlockKind:
    if tag == "pre":
        return BlockKind.CODE
    if tag == "table":
        return BlockKind.TABLE
    return BlockKind.HEADING if _HEADING.match(tag) else BlockKind.PARAGRAPH


def _assembled(title: str | None, found: list[tuple[BlockKind, str, int]]) -> Parsed:
    blocks: list[Block] = []
    path: list[tuple[int, str]] = []
    position = 0
    for kind, text, level in found:
        if kind is BlockKind.HEADING:
            path = [above for above in path if above[0] < level] + [(level, text)]
        blocks.append(Block(kind, position, position + len(text), tuple(heading for _, heading in path)))
        position += len(text) + 2
    return Parsed(title=title, text="\n\n".join(text for _, text, _ in found), blocks=blocks)
