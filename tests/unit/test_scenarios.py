"""Every scenario has a test, and the page that says which is current."""

import pytest

from tests.support import scenarios


@pytest.mark.parametrize("identity", scenarios.SCENARIOS)
def test_the_scenario_has_a_test(identity):
    assert scenarios.held()[identity]


def test_the_page_in_docs_is_the_one_that_the_tests_make():
    assert scenarios.PAGE.read_text() == scenarios.page(), "run: python -m tests.support.scenarios > docs/scenarios.md"


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("a.py::test_f15_s21_a_reply_is_lost", {"F15", "S21"}),
        ("a.py::TestSuite::test_s06_a_after_a_kill", {"S6"}),
        ("a.py::test_sha1_is_stable", set()),
        ("a.py::test_the_s3_bucket_has_room", set()),
    ],
)
def test_ids_stand_at_the_beginning_of_a_name(name, ids):
    assert scenarios.ids(name) == ids
