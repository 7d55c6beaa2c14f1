"""What is on the queue against what the schedule says: every tick once, none missing, no older term after a newer one.

The oracle knows the rules of the entries and the marks that the store holds, nothing else of the scheduler. A mark that
moved without a message shows as a missing tick, also at the end.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from fencebeat.entries import Entry
from fencebeat.firetimes import fire_times
from fencebeat.keys import Keys

Tick = tuple[str, int]
"""Entry and fire time in microseconds."""


@dataclass(frozen=True)
class Tally:
    """What was found. `stale`: messages of an older term that were queued after one of a newer term."""

    ticks: int
    missing: Sequence[Tick] = ()
    doubled: Sequence[Tick] = ()
    unknown: Sequence[Tick] = ()  # at times at which the entry does not fire
    stale: Sequence[Tick] = ()
    by_token: Mapping[int, int] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """A sentence for each kind of trouble; empty when every tick was queued exactly once."""
        kinds = {"missing": self.missing, "doubled": self.doubled, "unknown": self.unknown, "stale": self.stale}
        return [f"{len(ticks)} ticks are {kind}: {list(ticks[:3])}" for kind, ticks in kinds.items() if ticks]


def queued(client: redis.Redis, queue: str) -> list[dict[str, Any]]:
    """The headers of the messages on a queue that nobody consumes, oldest first."""
    raws: Any = client.lrange(queue, 0, -1)
    return [json.loads(raw)["headers"] for raw in reversed(raws)]


def tally(client: redis.Redis, keys: Keys, queue: str, entries: Mapping[str, Entry]) -> Tally:
    """Count the ticks of `entries`, all with catch-up `all`, on `queue`, from each one's first to its mark.

    Call it when nobody emits any more. `client` gives text. An entry without any message is missing at its mark.
    """
    headers = queued(client, queue)
    seen = [(str(one["fencebeat_entry"]), int(one["fencebeat_fire_time"])) for one in headers]
    tokens = [int(one["fencebeat_token"]) for one in headers]
    marks: Any = client.hgetall(keys.last)
    counted = Counter(seen)
    firsts: dict[str, int] = {}
    for name, at in counted:
        firsts[name] = min(at, firsts.get(name, at))
    missing: list[Tick] = []
    right: set[Tick] = set()
    for name, entry in entries.items():
        mark = int(marks.get(name, 0))
        first = firsts.get(name)
        if first is None:
            missing.append((name, mark))
            continue
        wanted = {(name, at) for at in fire_times(entry.rule, entry.zone, first - 1, mark)}
        missing.extend(sorted(wanted - counted.keys()))
        right |= wanted
    newest = 0
    stale: list[Tick] = []
    for tick, token in zip(seen, tokens, strict=True):
        newest = max(newest, token)
        if token < newest:
            stale.append(tick)
    return Tally(
        ticks=len(counted),
        missing=missing,
        doubled=sorted(tick for tick, times in counted.items() if times > 1),
        unknown=sorted(counted.keys() - right),
        stale=stale,
        by_token=Counter(tokens),
    )
