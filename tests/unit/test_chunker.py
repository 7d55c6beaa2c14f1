import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.chunking.headings import HeadingChunker
from index.chunking.tokens import TokenCounter
from index.chunking.units import Rank, units_of
from index.embedding.weights import model_folder
from index.model import Block, BlockKind, Parsed
from index.parsing.markdown import parse_markdown
from index.parsing.normalise import clean
from tests.support.texts import no_deadline

AIM = 400
LIMIT = 256


@cache
def tokens():
    return TokenCounter.of(model_folder(None))


def chunk(text, aim=AIM):
    parsed = parse_markdown(clean(text)[0], no_deadline())
    return parsed, HeadingChunker(tokens(), aim).split(parsed)


def inputs(text):
    return [piece.embed_input for piece in chunk(text)[1]]


def words(dice, count):
    return " ".join(dice.choice(VOCABULARY) for _ in range(count))


VOCABULARY = [f"{a}{b}{c}" for a in ("lo", "mer", "tin", "sak") for b in ("", "ra", "po") for c in ("n", "lis", "dor")]


def sentence(dice):
    return f"{words(dice, dice.randint(5, 25)).capitalize()}."


def document(dice):
    """Sections of a few thousand characters, as [heading, [paragraph, …]], a paragraph being a list of sentences."""
    return [
        (words(dice, 3), [[sentence(dice) for _ in range(dice.randint(1, 8))] for _ in range(dice.randint(2, 9))])
        for _ in range(dice.randint(1, 3))
    ]


def written(sections):
    parts = ["# Title"]
    for heading, paragraphs in sections:
        parts += [f"## {heading}", *(" ".join(paragraph) for paragraph in paragraphs if paragraph)]
    return "\n\n".join(parts)


PIECES = ["# h\n\n", "## sub\n\n", "word ", "Sentence one. ", "Two! ", "\n\n", "```\ncode  line\n\n", "```\n", "漢字。"]
PIECES += [
    "| a | b |\n|---|---|\n",
    "| 1 | 2 |\n",
    "- item\n",
    "x" * 150,
    "a1!" * 200,
    "e\N{COMBINING ACUTE ACCENT}" * 90,
]
PIECES += ["word " * 120]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.sampled_from([60, AIM]))
def test_nothing_is_lost_doubled_or_over_the_limit(text, aim):
    """D16: what is over the model's limit is split, never cut off."""
    parsed, chunks = chunk(text, aim)

    position = 0
    for piece in chunks:
        assert piece.text == parsed.text[piece.start : piece.end]
        assert piece.start >= position
        assert not parsed.text[position : piece.start].strip()
        assert piece.tokens <= LIMIT
        assert piece.embed_input.endswith(piece.text)
        position = piece.end
    assert not parsed.text[position:].strip()
    assert [piece.tokens for piece in chunks] == tokens().count([piece.embed_input for piece in chunks])


def test_an_edit_of_one_sentence_changes_few_embeddings():
    """Target: median at most 2, 95th percentile at most 4; packing greedily from the left fails it."""
    dice = random.Random(11)
    changed = {"replace": [], "insert": [], "remove": []}
    for _ in range(60):
        sections = document(dice)
        before = set(inputs(written(sections)))
        for edit, counts in changed.items():
            edited = [(heading, [list(paragraph) for paragraph in paragraphs]) for heading, paragraphs in sections]
            paragraph = dice.choice(dice.choice(edited)[1])
            at = dice.randrange(len(paragraph))
            if edit != "insert":
                del paragraph[at]
            if edit != "remove":
                paragraph.insert(at, sentence(dice))
            counts.append(len([text for text in inputs(written(edited)) if text not in before]))

    for edit, counts in changed.items():
        assert np.median(counts) <= 2, (edit, counts)
        assert np.percentile(counts, 95) <= 4, (edit, counts)
        assert max(counts) >= 1


def test_a_sentence_put_in_early_moves_no_later_cut_of_a_text_without_structure():
    dice = random.Random(5)
    sentences = [sentence(dice) for _ in range(300)]
    before = inputs(" ".join(sentences))

    after = inputs(" ".join([*sentences[:3], sentence(dice), *sentences[3:]]))

    assert len(before) > 60
    assert len(set(after) - set(before)) <= 2
    assert after[-50:] == before[-50:]


def test_chunks_are_about_the_size_aimed_at():
    dice = random.Random(3)
    text = " ".join(sentence(dice) for _ in range(400))

    sizes = [len(piece.text) for piece in chunk(text)[1]]

    assert AIM * 0.75 <= np.mean(sizes) <= AIM * 1.25
    assert max(sizes) <= AIM * 1.5
    assert np.percentile(sizes, 5) >= AIM / 3 - 1


def test_a_section_never_shares_a_chunk_with_the_next_one():
    _, chunks = chunk("# Guide\n\n## One\n\nfirst\n\n## Two\n\n### Deep\n\nsecond\n\n## Empty\n")

    assert [(piece.text, piece.headings) for piece in chunks] == [
        ("# Guide\n\n## One\n\nfirst", ("Guide", "One")),
        ("## Two\n\n### Deep\n\nsecond", ("Guide", "Two", "Deep")),
        ("## Empty", ("Guide", "Empty")),
    ]
    assert chunks[1].embed_input == "Guide > Two > Deep\n\n## Two\n\n### Deep\n\nsecond"


def test_the_title_is_embedded_once():
    front = "---\ntitle: Front\n---\n# Guide\n\ntext"

    assert inputs(front) == ["Front\nGuide\n\n# Guide\n\ntext"]
    assert inputs("# Guide\n\ntext") == ["Guide\n\n# Guide\n\ntext"]
    assert inputs("text") == ["text"]


def test_code_and_tables_stay_whole_where_they_fit_and_fall_on_lines_where_not():
    small = "```\n" + "\n".join(f"call {number}" for number in range(80)) + "\n```"
    large = "```\n" + "\n".join(f"value_{number} = compute({number})" for number in range(200)) + "\n```"
    table = "| name | value |\n|---|---|\n" + "\n".join(f"| row {number} | {number} |" for number in range(200))
    prose = "Words about it. " * 20

    assert AIM * 1.5 < len(small) < AIM * 3
    assert small in [piece.text for piece in chunk(f"{prose}\n\n{small}\n\n{prose}")[1]]
    for block in (large, table):
        pieces = chunk(f"{prose}\n\n{block}\n")[1]
        assert len(pieces) > 5
        lines = {line for piece in pieces for line in piece.text.split("\n")}
        assert set(block.split("\n")) <= lines  # no line is cut


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "word " * 20_000,
        "".join(random.Random(1).choices("abcdef0123456789+/", k=100_000)),
        "漢字仮名交じり文" * 5_000,
        "same line\n" * 5_000,
        "." * 50_000,
    ],
    ids=["letters", "words", "base64", "cjk", "lines", "dots"],
)
def test_texts_without_structure_are_split_within_the_limit(text):
    parsed, chunks = chunk(text)

    assert "".join("".join(piece.text.split()) for piece in chunks) == "".join(parsed.text.split())
    assert max(piece.tokens for piece in chunks) <= LIMIT
    assert max(len(piece.text) for piece in chunks) <= AIM * 1.5


def test_a_sentence_behind_the_models_limit_has_a_chunk_of_its_own():
    """D16: a passage of 600 tokens with a unique sentence at token 500."""
    filler = "The river bends slowly past the mill. "
    unique = "A zebra plays the bassoon at midnight."
    text = filler * 65 + unique + " " + filler * 12
    assert tokens().count([text])[0] > 600

    holders = [piece for piece in chunk(text)[1] if unique in piece.text]

    assert len(holders) == 1
    assert holders[0].tokens <= LIMIT


def test_a_long_path_of_headings_leaves_room_for_the_text():
    long = "very " * 300
    for text in (f"# {long}\n\n## Inner\n\ntext", f"---\ntitle: {long}\n---\ntext", f"# {'x1!' * 900}\n\ntext"):
        for piece in chunk(text)[1]:
            prefix = piece.embed_input.removesuffix(piece.text)
            assert prefix.strip()
            assert tokens().count([prefix])[0] <= LIMIT / 4
    assert chunk(f"# {long}\n\n## Inner\n\ntext")[1][-1].embed_input.startswith("Inner\n\n")


def test_sentences_end_where_readers_think_so():
    text = "One. Two? “Three!” (Four.) 1. Not a mark. 漢字。かな。"
    block = Block(BlockKind.PARAGRAPH, 0, len(text))

    pieces = [text[unit.start : unit.end] for unit in units_of(text, block, whole=None, small=lambda *_: True)]

    assert pieces == ["One.", "Two?", "“Three!”", "(Four.)", "1. Not a mark.", "漢字。", "かな。"]


def test_characters_are_not_parted_from_their_combining_marks():
    text = "e\N{COMBINING ACUTE ACCENT}" * 3
    block = Block(BlockKind.PARAGRAPH, 0, len(text))

    units = list(units_of(text, block, whole=None, small=lambda start, end: end - start <= 2))

    assert [(unit.start, unit.end) for unit in units] == [(0, 2), (2, 4), (4, 6)]
    assert [unit.rank for unit in units] == [Rank.BLOCK, Rank.CHARACTER, Rank.CHARACTER]


def test_the_fingerprint_names_what_shapes_a_chunk(tmp_path):
    other = tmp_path / "model"
    other.mkdir()
    for name in ("tokenizer.json", "sentence_bert_config.json"):
        (other / name).write_bytes((model_folder(None) / name).read_bytes())
    same = HeadingChunker(TokenCounter.of(other), AIM).fingerprint
    (other / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')

    fingerprints = {
        HeadingChunker(tokens(), AIM).fingerprint,
        HeadingChunker(tokens(), AIM + 1).fingerprint,
        HeadingChunker(TokenCounter.of(other), AIM).fingerprint,
    }

    assert same in fingerprints
    assert len(fingerprints) == 3


def test_counts_are_of_the_whole_text_although_the_file_truncates():
    """The packaged tokenizer file cuts off after 128 tokens and pads to as many."""
    assert tokens().count(["word " * 1000, "word"]) == [1002, 3]
    assert list(tokens().starts("ab cd")) == [0, 3]


def test_an_empty_text_has_no_chunks():
    assert HeadingChunker(tokens(), AIM).split(Parsed(title="T", text="", blocks=())) == []


def test_a_word_that_falls_into_more_tokens_when_it_is_cut_is_cut_again():
    """As a whole it is one unknown token, so no estimate from the whole text can tell."""
    narrow = TokenCounter.of(model_folder(None))
    narrow.max_tokens = 32
    text = "".join(random.Random(2).choices("qxzjkvw", k=3000))
    assert narrow.count([text]) == [3]

    chunks = HeadingChunker(narrow, 60).split(parse_markdown(text, no_deadline()))

    assert "".join(piece.text for piece in chunks) == text
    assert max(piece.tokens for piece in chunks) <= 32
