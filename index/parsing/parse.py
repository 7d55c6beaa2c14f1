"""One entrance for all media types, with the limits of a document and one kind of error for whatever is wrong in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fencebeat.clock import Clock
from index.errors import DocumentTooLarge, DocumentUnparsable
from index.model import Fetched, Parsed
from index.parsing.deadline import Deadline, TooSlow
from index.parsing.html import TooDeep, parse_html
from index.parsing.markdown import parse_markdown
from index.parsing.normalise import Undecodable, clean, decode
from index.parsing.plain import parse_plain

PARSERS: Mapping[str, Callable[[str, Deadline], Parsed]] = {
    "text/markdown": parse_markdown,
    "text/html": parse_html,
    "text/plain": parse_plain,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one document: bytes as fetched, characters once decoded, seconds of parsing."""

    max_bytes: int
    max_characters: int
    seconds: float


def parse(fetched: Fetched, limits: Limits, clock: Clock) -> Parsed:
    """The document as text. Raises DocumentTooLarge, or DocumentUnparsable that says what and where, or which limit."""

    def unparsable(why: str) -> DocumentUnparsable:
        return DocumentUnparsable(
            uid=fetched.uid, media_type=fetched.media_type, why=f"{why}.", version=fetched.version
        )

    if len(fetched.data) > limits.max_bytes:
        raise DocumentTooLarge(uid=fetched.uid, size=len(fetched.data), limit=limits.max_bytes, version=fetched.version)
    parser = PARSERS.get(fetched.media_type)
    if parser is None:
        raise unparsable("there is no parser for this media type")
    deadline = Deadline(clock, limits.seconds)
    try:
        text, removed = clean(decode(fetched.data))
        if len(text) > limits.max_characters:
            raise unparsable(
                f"it has {len(text)} characters, more than the limit of {limits.max_characters} "
                "(FENCEBEAT_MAX_DOCUMENT_CHARACTERS)"
            )
        deadline.check()
        return replace(parser(text, deadline), removed_characters=removed)
    except (Undecodable, TooDeep) as error:
        raise unparsable(str(error)) from error
    except TooSlow as error:
        raise unparsable(
            f"parsing takes longer than the limit of {limits.seconds:g} s (FENCEBEAT_PARSE_SECONDS)"
        ) from error
