import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.fusion import FLOOR, fuse, min_max

scores = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.floats(-100, 100, width=32), max_size=8)


def test_best_is_one_and_worst_is_the_floor():
    assert min_max({"a": 4.0, "b": 2.0, "c": 3.0}) == {"a": 1.0, "b": FLOOR, "c": 0.5}


def test_equal_scores_and_a_single_one_are_all_best():
    assert min_max({"a": 2.0, "b": 2.0}) == {"a": 1.0, "b": 1.0}
    assert min_max({"a": -3.0}) == {"a": 1.0}
    assert min_max({}) == {}


def test_an_id_that_a_leg_does_not_have_counts_nothing_there():
    assert fuse([{"a": 2.0, "b": 1.0}, {"b": 9.0}], [0.5, 0.5]) == [("b", 0.5 + FLOOR / 2), ("a", 0.5)]


def test_weights_are_relative():
    legs = [{"a": 2.0, "b": 1.0}, {"b": 9.0, "a": 1.0}]
    assert fuse(legs, [3, 1]) == fuse(legs, [0.75, 0.25])
    assert fuse(legs, [3, 1])[0][0] == "a"


def test_ties_are_ordered_by_id():
    assert [key for key, _ in fuse([{"b": 1.0, "a": 1.0}], [1])] == ["a", "b"]


@pytest.mark.parametrize("weights", [[], [1], [0, 0]])
def test_weights_that_do_not_fit_are_an_error(weights):
    with pytest.raises(ValueError, match="weight"):
        fuse([{}, {}], weights)


@given(st.lists(scores, min_size=1, max_size=3))
def test_scores_lie_between_nothing_and_one_and_descend(legs):
    merged = fuse(legs, [1.0] * len(legs))

    assert {key for key, _ in merged} == {key for leg in legs for key in leg}
    assert all(0 < score <= 1 + 1e-9 for _, score in merged)
    assert [score for _, score in merged] == sorted((score for _, score in merged), reverse=True)
