"""The tally finds each kind of trouble, and nothing where there is none."""

import json

import pytest

from fencebeat.entries import read_schedule
from fencebeat.firetimes import SECOND
from fencebeat.keys import Keys
from fencebeat.testing.tally import tally

ENTRIES, _ = read_schedule({"a": {"task": "t", "schedule": 1.0}, "b": {"task": "t", "schedule": 2.0}})
RIGHT = [("a", 1, 7), ("a", 2, 7), ("b", 2, 7), ("a", 3, 8), ("a", 4, 8), ("b", 4, 8)]
MARKS = {"a": 4, "b": 4}


class Queue:
    """What `tally` reads: a list with the newest message first, and the marks."""

    def __init__(self, ticks, marks):
        headers = [
            {"fencebeat_entry": entry, "fencebeat_fire_time": at * SECOND, "fencebeat_token": token}
            for entry, at, token in ticks
        ]
        self._raws = [json.dumps({"headers": one}) for one in reversed(headers)]
        self._marks = {entry: str(mark * SECOND) for entry, mark in marks.items()}

    def lrange(self, *_):
        return self._raws

    def hgetall(self, key):
        assert key == "ns:last"
        return self._marks


def found(ticks, marks=MARKS):
    return tally(Queue(ticks, marks), Keys("ns"), "queue", ENTRIES)


def test_a_right_queue_has_no_problems():
    assert found(RIGHT).problems == []
    assert (found(RIGHT).ticks, found(RIGHT).by_token) == (6, {7: 3, 8: 3})


@pytest.mark.parametrize(
    ("ticks", "marks", "kind"),
    [
        ([tick for tick in RIGHT if tick != ("a", 3, 8)], MARKS, "missing"),
        (RIGHT, {"a": 5, "b": 4}, "missing"),  # the mark moved without a message
        ([tick for tick in RIGHT if tick[0] != "b"], MARKS, "missing"),
        ([*RIGHT, ("a", 4, 8)], MARKS, "doubled"),
        ([*RIGHT, ("a", 5, 8)], MARKS, "unknown"),  # a message without a mark
        ([*RIGHT, ("b", 3, 8)], MARKS, "unknown"),
        ([*RIGHT[:4], ("a", 4, 7), ("b", 4, 8)], MARKS, "stale"),
    ],
)
def test_each_kind_of_trouble_is_found_alone(ticks, marks, kind):
    (problem,) = found(ticks, marks).problems
    assert f"are {kind}: " in problem
