"""The library's commands against a real store: answers, exit codes, errors as what, why, what to do."""

import json
import sys
from functools import partial

import pytest

from tests.support.fences import SECOND

PROJECT = """
from celery import Celery
app = Celery("cli", broker={url!r}, set_as_current=False)
app.conf.update(
    fencebeat_namespace={namespace!r},
    beat_schedule={{
        "e": {{"task": "t", "schedule": 1.0}},
        "broken": {{"task": "t", "schedule": "daily"}},
    }},
)
"""


@pytest.fixture
def fencebeat(in_project):
    """Run a command in the project; returns exit code, stdout and stderr."""
    return partial(in_project, PROJECT)


def test_leader_show_names_the_term_in_force(fencebeat, fence) -> None:
    fence.client.hset(fence.keys.term, mapping={"since": fence.now(), "lease": 5000})
    code, out, _ = fencebeat("leader", "show", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["leads"], told["token"], told["holder"]) == (True, 100, "host:1")
    assert 0 < told["lease_left_seconds"] <= 5
    assert told["same_schedule"] is False


def test_leader_show_is_degraded_when_nobody_leads(fencebeat, fence) -> None:
    fence.client.delete(fence.keys.lock)
    code, out, _ = fencebeat("leader", "show")
    assert code == 3
    assert "Nobody leads" in out
    assert "celery -A proj beat -S fencebeat" in out


def test_schedule_list_shows_problems_beside_what_works(fencebeat, fence) -> None:
    code, out, _ = fencebeat("schedule", "list", "--json")
    rows = {row["entry"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["e"]["schedule"] == "every 1 s"
    assert "not stored yet" in rows["e"]["problem"]
    assert "not supported" in rows["broken"]["problem"]
    assert "every 1 s" in fencebeat("schedule", "list")[1]


def test_schedule_next_shows_what_will_be_emitted(fencebeat, fence) -> None:
    entry = fence.entry("e", mark=fence.now())
    code, out, _ = fencebeat("schedule", "next", "e", "--count", "3", "--json")
    assert code == 0
    assert len(json.loads(out)) == 3
    assert entry.next_after(fence.now()) % SECOND == 0


def test_explain_tells_who_emitted_a_tick_and_that_a_stale_leader_was_refused(fencebeat, fence) -> None:
    base = (fence.now() // SECOND - 5) * SECOND
    entry = fence.entry("e", mark=base)
    tick = fence.emission(entry, base + SECOND)
    old, term = fence.term, fence.successor()
    with pytest.raises(Exception, match="101"):
        fence.commit(tick, term=old)
    fence.commit(tick, term=term)
    code, out, _ = fencebeat("explain", "e", str((base + SECOND) // SECOND), "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["outcome"], told["token"], told["holder"]) == ("emitted", 101, "host:2")
    assert told["message_id"] == f"m-e-{base + SECOND}"
    assert [record["outcome"] for record in told["records"]] == ["emitted", "fenced"]
    assert "put on the queue" in fencebeat("explain", "e", str((base + SECOND) // SECOND))[1]


def test_explain_tells_a_time_that_is_no_fire_time_and_one_that_has_not_come(fencebeat, fence) -> None:
    fence.entry("e", mark=fence.now())
    assert json.loads(fencebeat("explain", "e", "1767225600.5", "--json")[1])["outcome"] == "never"
    assert json.loads(fencebeat("explain", "e", "2099-01-01T00:00:00Z", "--json")[1])["outcome"] == "pending"
    assert json.loads(fencebeat("explain", "e", "2001-01-01T00:00:00", "--json")[1])["outcome"] == "forgotten"


def test_explain_tells_what_became_of_an_extra_run(fencebeat, fence) -> None:
    at = fence.now()
    tick = f"e!now@{at // SECOND}.{at % SECOND:06d}".rstrip("0")
    assert json.loads(fencebeat("explain", tick, "--json")[1])["outcome"] == "pending"
    fence.client.xadd(fence.keys.audit, {"outcome": "asked", "entry": "e", "fire_time": at, "reason": "one run now"})
    emitted = {"entry": "e", "token": 100, "holder": "host:1", "tick": tick, "message_id": "m", "reason": "asked for"}
    fence.client.xadd(fence.keys.audit, {"outcome": "extra", **emitted})
    told = json.loads(fencebeat("explain", tick, "--json")[1])
    assert (told["outcome"], told["token"], told["message_id"]) == ("extra", 100, "m")
    assert "put on the queue by host:1 under token 100; asked for" in fencebeat("explain", tick)[1]


def test_explain_leaves_out_what_was_asked_beside_the_tick(fencebeat, fence) -> None:
    base = (fence.now() // SECOND - 5) * SECOND
    fence.commit(fence.emission(fence.entry("e", mark=base), base + SECOND))
    beside = {"outcome": "asked", "entry": "e", "fire_time": base + SECOND, "reason": "one run now"}
    fence.client.xadd(fence.keys.audit, beside)
    told = json.loads(fencebeat("explain", f"e@{base // SECOND + 1}", "--json")[1])
    assert [record["outcome"] for record in told["records"]] == ["emitted"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("explain", "e"), 2, "say which tick"),
        (("explain", "nobody", "1767225600"), 2, "There is no entry nobody."),
        (("schedule", "next", "nobody"), 2, "There is no entry nobody."),
        (("explain", "e", "tomorrow"), 2, "is no time"),
        (("no-such-command",), 2, "No such command"),
        (("-A", "no_such_project", "leader", "show"), 4, "No Celery application can be read"),
    ],
)
def test_errors_say_what_and_what_to_do_also_as_json(fencebeat, fence, arguments, code, said) -> None:
    got, out, err = fencebeat(*arguments)
    assert got == code
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) >= 2
    got, out, _ = fencebeat(*arguments, "--json")
    assert got == code
    assert said in json.loads(out)["message"]


def test_a_store_that_does_not_answer_fails_with_its_address(fencebeat, monkeypatch, tmp_path) -> None:
    (tmp_path / "unreachable.py").write_text(PROJECT.format(url="redis://:secret@127.0.0.1:1/0", namespace="nowhere"))
    code, _, err = fencebeat("-A", "unreachable", "schedule", "list")
    sys.modules.pop("unreachable", None)
    assert code == 1
    assert "127.0.0.1:1" in err
    assert "secret" not in err


def test_colours_are_left_out_on_request(fencebeat, fence, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31" not in fencebeat("explain", "nobody", "1")[2]
