"""Media types by file name: what is a document of ours and how it is parsed."""

from pathlib import PurePosixPath

MEDIA_TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "text/html",
    ".txt": "text/plain",
    ".text": "text/plain",
}
"""Suffix in lower case -> media type; a file with another suffix is not a document."""


def media_type(name: str) -> str | None:
    """The media type of a file name, None where files of that kind are not documents."""
    return MEDIA_TYPES.get(PurePosixPath(name).suffix.lower())
