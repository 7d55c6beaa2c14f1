"""What a character may be: text is made uniform once, before anything is hashed, for all targets alike.

UTF-8 (or UTF-16 with its mark), NFC, newline as the only line end, no NUL and no lone surrogates (Postgres and JSON
refuse them), and outside of code no runs of white space.
"""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
_LINE_ENDS = re.compile("\r\n?")
_RUN = re.compile(r"\s+")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class Undecodable(ValueError):
    """The bytes are no text; the message says where."""


def decode(data: bytes) -> str:
    """Bytes as text, without a byte-order mark; surrogates written as UTF-8 (CESU-8) are read, for `clean` to judge.

    Raises Undecodable with the offset of the first bad byte.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding, errors = "utf-16", "strict"
    else:
        encoding, errors = "utf-8", "surrogatepass"
    try:
        return data.decode(encoding, errors).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        bad = data[error.start : error.start + 1].hex()
        raise Undecodable(f"byte {error.start} (0x{bad}) is not {encoding.upper()}") from error


def clean(text: str) -> tuple[str, int]:
    """NFC, newlines, no NUL, no lone surrogates. Returns the text and how many characters were taken out.

    Pairs of surrogates become the character they stand for. Idempotent.
    """
    paired = _PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    kept, removed = _FORBIDDEN.subn("", paired)
    return unicodedata.normalize("NFC", _LINE_ENDS.sub("\n", kept)), removed


def one_line(text: str) -> str:
    """Clean text on one line with single spaces, for titles and headings."""
    return _RUN.sub(" ", clean(text)[0]).strip()


@dataclass(frozen=True, slots=True)
class Squeezed:
    """Lines without runs of white space. starts[i], ends[i]: where the given line i is in `text` now."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


def squeeze(lines: Sequence[str], code: Sequence[bool]) -> Squeezed:
    """Collapse white space in all lines but those of code; indentation stays, as it is structure.

    A blank line after another one, or at the beginning, is left out; its span is then empty.
    """
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    position, after_blank = 0, True
    for line, verbatim in zip(lines, code, strict=True):
        if verbatim:
            kept = line
        else:
            body = line.lstrip()
            kept = line[: len(line) - len(body)] + _RUN.sub(" ", body).rstrip() if body else ""
        starts.append(position)
        if not verbatim and not kept and after_blank:
            ends.append(position)
            continue
        after_blank = not verbatim and not kept
        parts.append(kept)
        ends.append(position + len(kept))
        position += len(kept) + 1
    return Squeezed("\n".join(parts), starts, ends)
