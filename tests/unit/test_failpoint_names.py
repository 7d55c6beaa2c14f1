"""The list of failpoints, the code and the tests agree: a name that one of them lacks breaks nothing when armed."""

import re
from pathlib import Path

import pytest

from fencebeat.failpoints import NAMES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "beat/src/fencebeat", *(ROOT / name for name in ("tasks", "control", "index", "ops", "config"))]

PLACES = {
    (match[1], str(file.relative_to(ROOT)))
    for package in PACKAGES
    for file in package.rglob("*.py")
    for match in re.finditer(r"failpoint\(\s*\"([^\"]+)\"", file.read_text())
}
ABOUT_FAILPOINTS = {"test_failpoints.py", "test_failpoint_names.py"}  # these prove the tool, not the product
TESTS = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if file.name not in ABOUT_FAILPOINTS)


def test_every_failpoint_in_the_code_is_in_the_list():
    assert {place for place in PLACES if place[0] not in NAMES} == set()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_failpoint_in_the_list_is_in_the_code(name):
    assert name in {place[0] for place in PLACES}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_failpoint_is_armed_by_a_test(name):
    assert re.search(rf"\b{re.escape(name)}\b", TESTS), f"no test breaks a run at {name}"
