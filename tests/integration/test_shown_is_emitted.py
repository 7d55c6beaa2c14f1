"""S11: the next run that is shown is the fire time of the next emission, for 100 entries in many zones."""

import json
import random
from datetime import UTC, datetime

import pytest
from celery import Celery

from fencebeat.cli.schedule import upcoming
from fencebeat.clock import SystemClock
from fencebeat.edits import Schedule
from fencebeat.render import Renderer
from fencebeat.rounds import Rounds
from fencebeat.schedules import read_schedule_text
from tests.support.fences import SECOND, Fence
from tests.support.redis_servers import ClockedValkey, keeper
from tests.support.waiting import until

ZONES = ("Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Chatham", "Australia/Lord_Howe", "UTC")
EVE = datetime(2026, 10, 24, 3, 7, 11, tzinfo=UTC)  # clocks in Berlin go back within the next day
LATER = 23 * 3600  # not a jump, which would stop emission


class MovedClock(SystemClock):
    def __init__(self):
        self.offset = 0.0

    def wall(self):
        return super().wall() + self.offset


@pytest.fixture
def server(tmp_path):
    with keeper(tmp_path) as servers:
        yield ClockedValkey(servers, tmp_path)


def schedule_of(dice):
    minute = dice.choice([str(dice.randrange(60)), "*/20", "7,37"])
    hour = dice.choice(["*", "*/3", str(dice.randrange(24)), "1-3", "0,2,12"])
    return dice.choice(
        [f"{minute} {hour} * * *", f"every {dice.randrange(600, 20_000)} s", f"{minute} {hour} * * sat,sun"]
    )


def test_s11_the_next_run_that_is_shown_is_the_fire_time_of_the_next_emission(server, namespace) -> None:
    dice, clock = random.Random("S11 shown"), MovedClock()
    client = server.client()
    fence = Fence.sealed(client, namespace)

    def step(moment):
        clock.offset = moment - SystemClock().wall()
        server.step(clock.offset)
        until(lambda: abs(fence.now() / SECOND - clock.wall()) < 0.5)
        fence.seal(fence.term)  # a lease is no part of this

    step(EVE.timestamp())
    schedule = Schedule(client, fence.keys, clock=clock)
    shown = {}
    for n in range(100):
        policies = {"zone": dice.choice(ZONES), "catchup": "all", "jitter": dice.choice([0, 0, 300])}
        line = {"task": "t", "schedule": read_schedule_text(schedule_of(dice)), "options": {"queue": namespace}}
        edited = schedule.add(f"e{n:02}", {**line, "fencebeat": policies})
        (row,) = upcoming(edited.entry, edited.mark, 1)
        shown[edited.name] = row["fire_time"]

    step(EVE.timestamp() + LATER)
    with Celery("s11", broker=server.url, set_as_current=False) as app:
        renderer = Renderer(app, namespace, 2.0)
        rounds = Rounds(
            fence.store,
            renderer,
            {},
            clock=clock,
            tolerance=2.0,
            leading=lambda: fence.term,
            extended=lambda _term, _started: None,
            flags_generation=lambda: None,
        )
        while rounds.run(fence.term) == 0:
            pass
        renderer.close()
    first = {}
    for text in reversed(client.lrange(namespace, 0, -1)):
        headers = json.loads(text)["headers"]
        moment = datetime.fromtimestamp(headers["fencebeat_fire_time"] // SECOND, UTC)
        first.setdefault(headers["fencebeat_entry"], moment.isoformat().replace("+00:00", "Z"))
    until_then = datetime.fromtimestamp(EVE.timestamp() + LATER - 301, UTC).isoformat()
    due = {name for name, at in shown.items() if at < until_then}
    assert len(due) > 60, "else this shows little"
    assert {name: first.get(name) for name in due} == {name: shown[name] for name in due}
