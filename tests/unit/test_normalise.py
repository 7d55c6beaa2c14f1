import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencebeat.clock import ManualClock
from index.errors import DocumentTooLarge, DocumentUnparsable
from index.parsing.normalise import Undecodable, clean, decode, one_line, squeeze
from index.parsing.parse import Limits, parse
from tests.support.texts import LIMITS, fetched

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


@given(ANY_TEXT)
def test_clean_text_can_be_stored_everywhere_and_is_clean_already(text):
    """D17: one NUL or lone surrogate made the database refuse a whole batch."""
    cleaned, _ = clean(text)

    assert "\0" not in cleaned
    assert "\r" not in cleaned
    cleaned.encode()  # no lone surrogate
    assert unicodedata.is_normalized("NFC", cleaned)
    assert clean(cleaned) == (cleaned, 0)


def test_what_is_taken_out_is_counted():
    assert clean("a\0b\ud800c\udfff\0") == ("abc", 4)
    assert clean("\ud83d\ude00") == ("\N{GRINNING FACE}", 0)  # a pair stands for a character


def test_decomposed_and_composed_spellings_become_one():
    assert clean("ole\N{COMBINING ACUTE ACCENT}") == clean("ol\N{LATIN SMALL LETTER E WITH ACUTE}")


def test_line_ends_become_one():
    assert clean("a\r\nb\rc\n\r\nd")[0] == "a\nb\nc\n\nd"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_byte_order_marks_are_read_and_left_out(encoding):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""

    assert decode(mark + "né".encode(encoding)) == "né"


def test_a_text_that_cannot_be_decoded_names_the_byte():
    with pytest.raises(Undecodable, match=r"byte 5 \(0xe9\) is not UTF-8"):
        decode(b"hello\xe9 world")
    with pytest.raises(Undecodable, match="UTF-16"):
        decode(b"\xff\xfea\x00b")


def test_surrogates_written_as_utf8_are_read_and_taken_out():
    parsed = parse(fetched(b"one \xed\xa0\x80two\0"), LIMITS, ManualClock())

    assert parsed.text == "one two"
    assert parsed.removed_characters == 2


def test_runs_of_white_space_collapse_outside_code_only():
    lines = ["", "a  b\t\tc ", "", "", "  - x   y", "code  kept ", "", "", "z\u00a0\u2003z"]

    squeezed = squeeze(lines, [False] * 5 + [True] * 3 + [False])

    assert squeezed.text.split("\n") == ["a b c", "", "  - x y", "code  kept ", "", "", "z z"]
    for line in (1, 4, 5, 8):
        assert squeezed.text[squeezed.starts[line] : squeezed.ends[line]] in {"a b c", "  - x y", "code  kept ", "z z"}


def test_titles_are_one_clean_line():
    assert one_line(" a\0 \n b\ud800  c ") == "a b c"


def test_each_limit_is_named_by_the_error_that_keeps_it():
    clock = ManualClock()

    with pytest.raises(DocumentTooLarge, match="limit of 3"):
        parse(fetched(b"four"), Limits(3, 9, 9), clock)
    with pytest.raises(DocumentUnparsable, match=r"4 characters, more than the limit of 3 .*MAX_DOCUMENT_CHARACTERS"):
        parse(fetched(b"four"), Limits(9, 3, 9), clock)
    with pytest.raises(DocumentUnparsable, match=r"no parser"):
        parse(fetched(b"x", "image/png"), LIMITS, clock)
    with pytest.raises(DocumentUnparsable, match=r"a\.md cannot be parsed as text/markdown: byte 0") as error:
        parse(fetched(b"\xff"), LIMITS, clock)
    assert error.value.facts["version"] == "v1"  # the version that was tried: it is not tried again until it changes


class Ticking(ManualClock):
    """A clock that moves on by a second each time it is read: whoever asks often enough sees the deadline pass."""

    def elapsed(self):
        self.advance(1)
        return super().elapsed()


@pytest.mark.parametrize(
    ("media_type", "text"),
    [
        ("text/markdown", "- item\n" * 500),
        ("text/markdown", "one paragraph\n" * 500),
        ("text/markdown", "para\n\n" * 500),
        ("text/html", "<p>x" * 500),
        ("text/plain", "para\n\n" * 500),
    ],
)
def test_a_parse_that_takes_too_long_ends_by_itself(media_type, text):
    with pytest.raises(DocumentUnparsable, match=r"longer than the limit of 100 s \(FENCEBEAT_PARSE_SECONDS\)"):
        parse(fetched(text.encode(), media_type), Limits(10**6, 10**6, 100), Ticking())

    parse(fetched(text.encode(), media_type), Limits(10**6, 10**6, 100), ManualClock())


def test_plain_text_falls_into_paragraphs():
    parsed = parse(fetched(b"one\ntwo  words\n\n \nthree\n", "text/plain"), LIMITS, ManualClock())

    assert [parsed.text[block.start : block.end] for block in parsed.blocks] == ["one\ntwo words", "three"]
    assert parsed.title is None
