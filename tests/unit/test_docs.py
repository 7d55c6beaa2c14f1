"""The docs are true where a program can tell: commands parse, links lead somewhere, settings and tests exist."""

import re
import shlex
import tomllib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from celery.bin.celery import celery

import fencebeat
from config.settings import Settings
from fencebeat.cli.entry import application
from fencebeat.keys import Keys
from ops.cli.stopping import duration
from ops.smoke import RUNS
from tests.support.golden import DOCS, Place, questions

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "beat/src/fencebeat"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "beat/README.md", *DOCS.rglob("*.md")])
QUESTIONS = questions()

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(
    r"(?<![\w/])(?:beat|config|control|docs|index|ops|tasks|tests)/[\w./*-]+\.(?:py|lua|sql|md|jsonl|svg)"
)
ENVIRONMENT = re.compile(r"^[A-Z_]+=\S*$")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def without_code(text):
    return CODE.sub("", FENCE.sub("", text))


def shell_lines(page):
    """Commands of fenced shell blocks, as words without leading NAME=value."""
    for block in FENCE.finditer(page.read_text()):
        if block["language"] in ("", "sh"):
            for line in block["text"].splitlines():
                words = shlex.split(line, comments=True)
                while words and ENVIRONMENT.match(words[0]):
                    words = words[1:]
                if words:
                    yield words


def commands_of(program):
    found = [(page, words) for page in PAGES for words in shell_lines(page) if words[0] == program]
    return [pytest.param(words[1:], id=f"{name_of(page)}: {shlex.join(words)}") for page, words in found]


def inline_commands():
    """Commands named in the running text, such as `fencebeat doctor`."""
    for page in PAGES:
        for code in CODE.findall(FENCE.sub("", page.read_text())):
            if code.startswith("fencebeat "):
                yield pytest.param(shlex.split(code)[1:], id=f"{name_of(page)}: {code}")


@pytest.fixture(scope="module")
def command():
    return typer.main.get_command(application())


def resolved(command, words):
    """The command that `words` name, and what is left for it to parse. Raises where there is no such command."""
    rest = list(words[2:] if words[0] in ("-A", "--app") else words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@pytest.mark.parametrize("words", commands_of("fencebeat"))
def test_commands_in_blocks_are_complete_and_parse(command, words):
    found, rest = resolved(command, words)
    alone = getattr(found, "invoke_without_command", False)
    assert alone or not hasattr(found, "commands"), "a group of commands, not a command"
    found.make_context(found.name, list(rest))  # raises for unknown options, missing arguments and bad values


@pytest.mark.parametrize("words", list(inline_commands()))
def test_commands_in_the_text_exist(command, words):
    found, rest = resolved(command, words)
    options = {"--help", *chain.from_iterable(parameter.opts for parameter in found.params)}
    assert {word for word in rest if word.startswith("-")} <= options


@pytest.mark.parametrize("words", commands_of("make"))
def test_make_targets_exist(words):
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    target, *variables = words
    assert target in targets
    known = {"CORPUS", "ONCE", "ARGS", "PYTHON", "GUARDS", "RUNS", "SEEDS"}
    assert {variable.split("=")[0] for variable in variables} <= known


@pytest.mark.parametrize("words", commands_of("celery"))
def test_commands_of_celery_exist(words):
    option, app, name, *_ = words
    assert (option, app in ("tasks", "proj")) == ("-A", True)
    assert name in celery.commands


@pytest.mark.parametrize("words", commands_of("pip"))
def test_extras_of_the_library_exist(words):
    extras = tomllib.loads((ROOT / "beat/pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"\[(\w+)\]", shlex.join(words)):
        assert extra in extras


def test_smoke_runs_and_durations_in_the_docs_exist():
    shown = [words for page in PAGES for words in shell_lines(page) if words[0] == "fencebeat"]
    assert {words[2] for words in shown if words[1] == "smoke"} == set(RUNS)
    assert all(duration(words[words.index("--for") + 1]) for words in shown if "--for" in words)


def test_the_blocks_have_commands_to_check():
    """The tests above would pass on pages from which nothing was read."""
    assert len(commands_of("fencebeat")) > 20
    assert len(list(inline_commands())) > 20
    assert len(commands_of("make")) >= 4
    assert commands_of("pip")


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_of_this_repository(page):
    for link in LINK.findall(without_code(page.read_text())):
        if not link.startswith("https://"):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_the_text_exist(page):
    for name in FILE.findall(page.read_text()):
        assert list(ROOT.glob(name)), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nobody_s_own_paths_are_in_the_docs(page):
    assert not re.search(r"/home/|/root/|/tmp/|/work/|\blocalhost:\d", page.read_text())


def variables_of_settings():
    for name, field in Settings.model_fields.items():
        yield str(field.validation_alias or f"FENCEBEAT_{name.upper()}")


def test_the_table_of_settings_has_every_setting():
    rows = re.findall(r"^\| (`[A-Z`, _]+`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = set(CODE.findall(" ".join(rows)))
    assert named == set(variables_of_settings()) | {"EMBEDDER_API_KEY"}  # a secret that is read where it is used


def first_cells(page, word):
    """What the rows of the page's tables name in their first column, where it is `word` and more."""
    rows = re.findall(r"^\| ((?:`[^`|]+`(?:, )?)+) \|", page.read_text(), re.MULTILINE)
    return {name for name in CODE.findall(" ".join(rows)) if name.startswith(word)}


def test_the_library_s_readme_has_every_setting():
    """Asked of the code: each name that is read from `app.conf`, in full or by its last word."""
    source = "\n".join(path.read_text() for path in LIBRARY.rglob("*.py"))
    read = set(re.findall(r'(?:conf\.get|number)\(\s*"(fencebeat_\w+)"', source))
    read |= {f"fencebeat_{name}" for name in ("renew_every", "margin", "call_timeout")}
    assert len(read) > 15
    assert first_cells(ROOT / "beat/README.md", "fencebeat_") == read


def commands_under(command, *names):
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_under(below, *names, name)
    if not hasattr(command, "commands") or command.invoke_without_command:
        yield " ".join(names), command.callback.__module__


def test_the_library_s_readme_has_every_command_of_the_library(command):
    page = (ROOT / "beat/README.md").read_text()
    ours = {name for name, module in commands_under(command) if module.startswith("fencebeat.cli")}
    assert len(ours) > 20
    assert [name for name in sorted(ours) if not re.search(rf"\b{name}\b", page)] == []


def test_the_library_s_readme_has_every_key_and_no_other():
    keys = Keys("{ns}")
    names = {getattr(keys, name) for name, member in vars(Keys).items() if isinstance(member, property)}
    page = ROOT / "beat/README.md"
    assert first_cells(page, "{ns}:") | first_cells(page, "lock") == names


def test_the_map_of_the_library_has_every_module():
    modules = {path.stem for path in LIBRARY.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    named = set(re.findall(r"\w+", fencebeat.__doc__))
    assert modules | packages <= named


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_in_the_docs_exist(page):
    known = set(variables_of_settings()) | {
        "EMBEDDER_API_KEY",
        "FENCEBEAT_JAVA_HOME",
        "FENCEBEAT_CACHE",
        "FENCEBEAT_FAST_PATH",
    }
    assert set(re.findall(r"\bFENCEBEAT_[A-Z_]+\b", page.read_text())) <= known


def test_the_picture_is_readable_in_the_dark_and_says_what_it_shows():
    picture = (DOCS / "architecture.svg").read_text()
    assert "prefers-color-scheme: dark" in picture
    assert "<title" in picture
    assert "<desc" in picture


def test_only_a_hit_that_overlaps_an_answer_counts():
    place = Place("docs/golden.md", "Format", "what somebody would type")
    ((start, end, _),) = place.spans()

    def hit(start, end, doc_uid="docs/golden.md"):
        return SimpleNamespace(doc_uid=doc_uid, start=start, end=end)

    assert place.answered_by(hit(start - 50, start + 1))
    assert place.answered_by(hit(end - 1, end + 50))
    assert not place.answered_by(hit(start - 50, start))
    assert not place.answered_by(hit(end, end + 50))
    assert not place.answered_by(hit(start, end, "docs/runbook.md"))


def test_the_golden_set_has_enough_questions_and_none_twice():
    assert 20 <= len(QUESTIONS) <= 50
    assert len({question.query for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.query)
def test_answers_of_the_golden_set_stand_where_it_says(question):
    assert question.places
    for place in question.places:
        assert place.path.is_relative_to(DOCS)
        headings = [headings for _, _, headings in place.spans()]
        assert headings, f"{place.doc_uid} does not say: {place.text}"
        assert any(place.heading in path for path in headings), f"{place.text}: under {headings}"
