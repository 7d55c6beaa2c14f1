"""Stores of claims for tests, and ticks to claim."""

import itertools
import uuid

from fencebeat.claims import Tick
from fencebeat.ticks import task_id

_fire_times = itertools.count(1_767_225_600_000_000, 1_000_000)


def tick(entry: str = "nightly", *, fire_time: int | None = None, token: int = 7) -> Tick:
    """A tick that no other test has."""
    fire_time = next(_fire_times) if fire_time is None else fire_time
    return Tick(entry, fire_time, token, task_id(uuid.uuid4().hex, entry, fire_time))
