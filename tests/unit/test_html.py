import pytest

from fencebeat.clock import ManualClock
from index.errors import DocumentUnparsable
from index.parsing.html import parse_html
from index.parsing.parse import parse
from tests.support.texts import LIMITS, fetched, no_deadline, outline, shown, uncovered

PAGE = """<!doctype html><html><head><title>Site</title><style>p {}</style></head><body>
<nav><a href="/">menu</a></nav> lead
<h1>Big <em>thing</em></h1><p>one<br>two <script>evil()</script>tail  kept</p>
<pre>code
  indented <b>b</b></pre>
<h2>Sub &amp; more</h2>
<table><caption>cap</caption><tr><th></th><th>b</th></tr>
<tr><td>1</td><td><p>2</p><table><tr><td>3</td></tr></table></td></tr></table>
<ul><li>item <p>nested</p></li><li>last</li></ul><div hidden>secret</div>after</body></html>"""


def test_blocks_are_what_a_reader_sees():
    parsed = parse_html(PAGE, no_deadline())

    assert parsed.title == "Big thing"
    assert shown(parsed) == [
        ("paragraph", "lead"),
        ("heading", "Big thing"),
        ("paragraph", "one two tail kept"),
        ("code", "code\n  indented b"),
        ("heading", "Sub & more"),
        ("table", "cap\n| b\n1 | 2\n3"),
        ("paragraph", "item"),
        ("paragraph", "nested"),
        ("paragraph", "last"),
        ("paragraph", "after"),
    ]
    assert [path for _, path in outline(parsed)] == [(), *[("Big thing",)] * 3, *[("Big thing", "Sub & more")] * 6]
    assert uncovered(parsed) == ""


def test_the_title_element_names_a_page_without_h1():
    assert parse_html("<title> A \n b</title><p>x", no_deadline()).title == "A b"
    assert parse_html("<p>x", no_deadline()).title is None


@pytest.mark.parametrize("text", ["", " \n", "<!-- only a comment -->", "<p></p>"])
def test_a_page_without_text_is_an_empty_document(text):
    parsed = parse_html(text, no_deadline())

    assert (parsed.text, list(parsed.blocks)) == ("", [])


def test_characters_written_as_entities_are_cleaned_too():
    parsed = parse_html("<h1>a&#0;b &#xD800;</h1><pre>c&#0;</pre><p>ole&#x301;", no_deadline())

    assert "\0" not in parsed.text
    parsed.text.encode()
    assert "ol\N{LATIN SMALL LETTER E WITH ACUTE}" in parsed.text


def test_long_and_deep_pages_lose_nothing_silently():
    long = f"<p>{'word ' * 3_000_000}end"  # over 10 MB, where lxml cuts off unless told otherwise
    deep = "<div>" * 1000 + "deep" + "</div>" * 1000
    too_deep = "<div>" * 5000 + "deep" + "</div>" * 5000

    assert parse_html(long, no_deadline()).text.endswith("end")
    assert parse_html(deep, no_deadline()).text == "deep"
    with pytest.raises(DocumentUnparsable, match="nest too deep"):
        parse(fetched(too_deep.encode(), "text/html"), LIMITS, ManualClock())
