"""Each guard's removal still applies, and each test that must die is there. The removals themselves: `make guards`."""

import ast

import pytest

from tests.guards import remove
from tests.guards.guard import ROOT, Guard, Moved, guards, patched

EVERY = guards()


@pytest.mark.parametrize("guard", EVERY, ids=[guard.name for guard in EVERY])
def test_the_removal_applies_and_its_tests_are_there(guard):
    for path, text in patched(ROOT, guard).items():
        assert text != path.read_text()
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    for node in guard.tests:
        name, *parts = node.split("::")
        tree = ast.parse((ROOT / name).read_text())
        names = {getattr(found, "name", None) for found in ast.walk(tree)}  # a suite's tests are in its base class
        assert set(parts) <= names, f"{name} has no {' '.join(parts)}"


def test_names_are_unique_and_every_guard_is_in_the_table():
    names = [guard.name for guard in EVERY]
    assert len(set(names)) == len(names)
    assert list(remove.rows(remove.TABLE.read_text())) == names, "run `make guards`"
    assert "**none**" not in remove.TABLE.read_text()


def test_a_guard_that_moved_is_told(tmp_path):
    (tmp_path / "a.py").write_text("one\ntwo\ntwo\n")
    gone = Guard("g", "I1", "a.py", "three", "", ("t",))
    twice = Guard("g", "I1", "a.py", "two", "", ("t",))
    for guard in (gone, twice):
        with pytest.raises(Moved, match=r"a\.py has [02] times"):
            patched(tmp_path, guard)


def test_a_removal_that_no_test_notices_is_no_success(tmp_path):
    (tmp_path / "thing.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "test_thing.py").write_text(
        "from thing import answer\ndef test_notices():\n    assert answer() == 42\ndef test_sleeps():\n    answer()\n"
    )

    def removed(instead, test):
        guard = Guard("g", "I1", "thing.py", "return 42", instead, (f"test_thing.py::{test}",))
        return remove.without(tmp_path, guard)

    assert removed("return 41", "test_notices").died == ("test_thing.py::test_notices",)
    assert removed("return 41", "test_sleeps").died == ()
    assert "ended with" in removed("return )", "test_notices").trouble, "a tree that cannot be imported proves nothing"
    assert (tmp_path / "thing.py").read_text().endswith("return 42\n"), "the guard is put back"
    survived = remove.table([remove.Death(EVERY[0], ())])
    assert "**none**" in survived
    assert "1 of 2 removals" in remove.table([remove.Death(EVERY[1], ("tests/t.py::test",))], survived)
