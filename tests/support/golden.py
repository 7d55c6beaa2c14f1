"""The golden set of our own docs: questions, and the places that answer them. Its format: docs/golden.md."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from index.parsing.markdown import parse_markdown
from index.parsing.normalise import clean
from tests.support.texts import no_deadline

DOCS = Path(__file__).parents[2] / "docs"
FIELDS = {"doc_uid", "heading", "text"}


@dataclass(frozen=True)
class Place:
    """Words in a document that answer a query."""

    doc_uid: str
    heading: str
    text: str

    @property
    def path(self) -> Path:
        """The file; uids start with the source's name, which is the folder's."""
        return DOCS.parent / self.doc_uid

    def spans(self) -> list[tuple[int, int, tuple[str, ...]]]:
        """Where the words stand in the normalised text, and under which headings."""
        parsed = parsed_document(self.path)
        words = r"\s+".join(re.escape(word) for word in self.text.split())
        found = []
        for match in re.finditer(words, parsed.text):
            headings = next((b.headings for b in parsed.blocks if b.start <= match.start() < b.end), ())
            found.append((match.start(), match.end(), headings))
        return found

    def answered_by(self, hit) -> bool:
        """Whether the hit's span overlaps the place."""
        return hit.doc_uid == self.doc_uid and any(
            hit.start < end and start < hit.end for start, end, _ in self.spans()
        )


@dataclass(frozen=True)
class Question:
    """A query and every place that answers it."""

    query: str
    places: tuple[Place, ...]


@cache
def parsed_document(path: Path):
    """The document as the index has it."""
    return parse_markdown(clean(path.read_text())[0], no_deadline())


def questions() -> list[Question]:
    """All questions, in the order of the file."""
    rows = [json.loads(line) for line in (DOCS / "golden.jsonl").read_text().splitlines()]
    return [Question(row["query"], tuple(Place(**place) for place in row["relevant"])) for row in rows]
