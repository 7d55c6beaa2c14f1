"""The question that `fencebeat up` asks: words that are in the documents, whatever is beside them."""

from ops.following import question_of


def test_it_is_the_first_heading_of_the_first_readable_document(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "a.md").write_text("# Not a document")
    (tmp_path / "a.png").write_bytes(b"\x89PNG not words at all")
    (tmp_path / "b.md").mkdir()
    (tmp_path / "c.md").write_text("")
    (tmp_path / "d.md").write_text("<!-- made\nby hand -->\n\n## How *leases* end\n\nBy themselves.")
    (tmp_path / "e.md").write_text("# Later")
    assert question_of(tmp_path) == "How leases end"


def test_markup_and_nul_bytes_are_no_words(tmp_path):
    (tmp_path / "a.html").write_bytes(b"<html><title>\0Fences and tokens</title></html>")
    assert question_of(tmp_path) == "Fences and tokens"


def test_a_folder_without_words_is_asked_by_its_name(tmp_path):
    assert question_of(tmp_path) == tmp_path.name
