import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.parsing.markdown import parse_markdown
from index.parsing.normalise import clean
from tests.support.texts import no_deadline, outline, shown, uncovered

PIECES = ["# h", "## h", "text", "a  b", "- ", "  ", "> ", "```", "\n", "\n\n", "| a | b |", "|---|---|", "    ", "***"]
PIECES += ["[x]: y", "<div>", "---", "===", "1. ", "\t", "\N{NO-BREAK SPACE}", "<!-- ", "~~~", "title: x"]


def parse(text):
    return parse_markdown(clean(text)[0], no_deadline())


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_every_character_but_white_space_is_in_exactly_one_block(text):
    parsed = parse("x\n" + text)  # no front matter

    assert uncovered(parsed) == ""
    assert "".join(parsed.text.split()) == "".join(f"x{text}".split())


def test_blocks_keep_their_kind_and_their_path_of_headings():
    parsed = parse(
        "lead\n\n# One\n\ntext\n\n### Deep\n\n```py\na  b\n\n\nc\n```\n\n## Two\n\n| a   | b |\n|---|---|\n| 1 | 2 |\n"
    )

    assert shown(parsed) == [
        ("paragraph", "lead"),
        ("heading", "# One"),
        ("paragraph", "text"),
        ("heading", "### Deep"),
        ("code", "```py\na  b\n\n\nc\n```"),
        ("heading", "## Two"),
        ("table", "| a | b |\n|---|---|\n| 1 | 2 |"),
    ]
    assert [path for _, path in outline(parsed)] == [
        (),
        ("One",),
        ("One",),
        ("One", "Deep"),
        ("One", "Deep"),
        ("One", "Two"),
        ("One", "Two"),
    ]


def test_code_in_lists_and_text_of_no_block_are_kept():
    parsed = parse("- item\n\n      code  x\n\n[ref]: http://localhost\n\n> quoted\n> # not a section\n")

    assert shown(parsed) == [
        ("paragraph", "- item"),
        ("code", "      code  x"),
        ("paragraph", "[ref]: http://localhost"),
        ("paragraph", "> quoted"),
        ("paragraph", "> # not a section"),
    ]
    assert {path for _, path in outline(parsed)} == {()}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: From  front\n---\n# Heading\n", "From front"),
        ('---\ntitle: "NUL\\0 here \\uD800"\n---\ntext', "NUL here"),
        ("---\ntitle: 2024\n---\ntext", "2024"),
        ("---\nlayout: x\n---\n# A *b* `c` &amp; [d](e)\n", "A b c & d"),
        ("text\n\nSet\next\n===\n", "Set ext"),
        ("## Two\n\n# One\n\n# Again\n", "One"),
        ("## Two\n", None),
        ("> # quoted\n", None),
        ("", None),
    ],
)
def test_the_title_is_that_of_the_front_matter_else_the_first_heading_of_level_one(text, title):
    assert parse(text).title == title


def test_front_matter_is_not_text():
    assert parse("---\ntitle: x\nnav: 3\n---\n\nbody\n").text.strip() == "body"


@pytest.mark.parametrize("text", ["---\nno: [yaml\n---\nbody", "---\njust words\n---\nbody", "---\n\nbody without end"])
def test_what_only_looks_like_front_matter_is_text(text):
    assert uncovered(parse(text)) == ""
    assert "".join(parse(text).text.split()) == "".join(text.split())


def test_runs_of_white_space_change_nothing():
    assert parse("# A\n\n\n\none   two\nthree \n\n\n") == parse("# A\n\none two\nthree\n\n")
