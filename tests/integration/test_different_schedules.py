"""F34: beats whose configurations differ. Only a leader writes its own, says so, and back and forth is an alarm."""

import json
import logging

import pytest

from tests.support.local_beats import LocalBeats, each_second
from tests.support.waiting import until

ELSEWHERE = "the schedule in force is not the one of this configuration"
BACK = "the schedule went back to the one before"


@pytest.fixture
def beats(redis_url, namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("FENCEBEAT_HISTORY", str(tmp_path / "history.jsonl"))
    with LocalBeats(redis_url, namespace) as made:
        yield made


def changes(folder):
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [found for found in map(json.loads, lines) if found.get("event") == "schedule.changed"]


def test_f34_s23_a_rolling_change_back_and_forth_is_an_event_and_an_alarm(beats, tmp_path, caplog) -> None:
    caplog.set_level(logging.WARNING)
    v1 = {"each": each_second(beats.namespace), "old": {**each_second("old"), "schedule": 3600.0}}
    v2 = {"each": each_second(beats.namespace), "new": {**each_second("new"), "schedule": 3600.0}}
    first = beats.beat(beat_schedule=v1)
    first.elected()
    beats.more(1)
    client, keys = beats.client, beats.keys
    stored, generation = client.hgetall(keys.entries), client.hget(keys.entries, "generation")

    second = beats.beat(beat_schedule=v2)
    second.standing_by()
    until(lambda: ELSEWHERE in caplog.text, what="the standby says that its schedule is another one")
    beats.more(1)
    assert client.hgetall(keys.entries) == stored, "a standby writes nothing"
    assert changes(tmp_path) == []

    first.stop()
    second.elected()
    beats.more(1)
    until(lambda: client.hget(keys.entries, "generation") != generation, what="the change, in one step")
    assert {"each", "new"} == set(client.hkeys(keys.entries)) - {"generation", "celery.backend_cleanup"}
    [changed] = changes(tmp_path)
    assert changed["back"] is False
    assert BACK not in caplog.text

    third = beats.beat(beat_schedule=v1)
    third.standing_by()
    second.stop()
    third.elected()
    until(lambda: BACK in caplog.text, what="the alarm")
    beats.more(1)
    assert [change["back"] for change in changes(tmp_path)] == [False, True]
    assert changes(tmp_path)[1]["digest"] == changed["before"]
    assert (client.llen("old"), client.llen("new")) == (0, 0), "a change alone emits nothing"
    fire_times = [header["fencebeat_fire_time"] for header in beats.queued()]
    assert len(fire_times) == len(set(fire_times)) == (fire_times[-1] - fire_times[0]) // 1_000_000 + 1
