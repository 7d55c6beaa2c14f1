from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from index.ids import chunk_ids, content_hash, input_hash, meta_hash, pack
from index.model import Chunk, Meta

CHUNK = Chunk(text="text", embed_input="Title\n\ntext", headings=("Title",), start=0, end=4, tokens=5)
OWNER = {"tenant_id": "t", "doc_uid": "a.md", "chunker_fp": "c", "model_fp": "m", "title": "Title"}


@given(st.lists(st.binary(max_size=9), max_size=5), st.lists(st.binary(max_size=9), max_size=5))
def test_different_parts_never_look_the_same(one, two):
    assert (pack(one) == pack(two)) == (one == two)


def test_equal_chunks_are_told_apart_by_their_occurrence():
    """D26: chunks kept by document or by text alone would overwrite each other."""
    other = replace(CHUNK, text="more", embed_input="Title\n\nmore")

    ids = chunk_ids(**OWNER, chunks=[CHUNK, other, CHUNK, CHUNK])

    assert len(set(ids)) == 4
    assert all(len(name) == 32 and name.isalnum() and name == name.lower() for name in ids)


def test_a_chunk_keeps_its_id_where_others_come_and_go():
    others = [replace(CHUNK, text=text, embed_input=text) for text in "abc"]

    (alone,) = chunk_ids(**OWNER, chunks=[CHUNK])

    assert chunk_ids(**OWNER, chunks=[*others, CHUNK])[-1] == alone
    assert chunk_ids(**OWNER, chunks=[replace(CHUNK, start=100, end=104)]) == [alone]  # spans are the manifest's


def test_everything_that_shapes_a_chunk_is_in_its_id():
    """D28: a chunk shared by two documents would go with the first of them."""
    owners = [OWNER, *(OWNER | {name: "other"} for name in OWNER), OWNER | {"title": None}, OWNER | {"title": ""}]
    chunks = [replace(CHUNK, **{name: "other"}) for name in ("text", "embed_input")]
    chunks += [replace(CHUNK, headings=headings) for headings in ((), ("Title", "Sub"))]

    ids = [chunk_ids(**owner, chunks=[CHUNK])[0] for owner in owners]
    ids += [chunk_ids(**OWNER, chunks=[chunk])[0] for chunk in chunks]

    assert len(set(ids)) == len(ids)


def test_ids_are_the_same_in_every_release():
    """An id that changes with a release would index everything anew; this one was written down."""
    assert chunk_ids(**OWNER, chunks=[CHUNK]) == ["a4e7wog3eoluagdo7phmodegrc62b3nb"]
    assert meta_hash(Meta("a.md")).hex() == "04bd7f7a00e35db6"


def test_the_order_of_acl_and_tags_is_no_change_of_meta():
    meta = Meta("a", "http://a", ("x", "y"), ("1", "2"))

    assert len(meta_hash(meta)) == 8
    assert meta_hash(meta) == meta_hash(Meta("a", "http://a", ("y", "x", "x"), ("2", "1")))
    assert meta_hash(meta) != meta_hash(Meta("a", "http://a", ("1", "2"), ("x", "y")))
    assert meta_hash(meta) != meta_hash(replace(meta, url=None))


def test_content_and_input_hashes_are_of_the_exact_text():
    assert len(input_hash("x")) == len(content_hash(None, "x")) == 32
    assert input_hash("a b") != input_hash("a  b")
    assert len({content_hash(None, "x"), content_hash("", "x"), content_hash("x", ""), content_hash("", "")}) == 4
