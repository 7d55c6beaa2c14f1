"""Leaders of one process: rounds under a term made by hand, with a store whose time a test may move."""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace

from celery import Celery

from fencebeat.clock import SystemClock
from fencebeat.entries import Entry
from fencebeat.lease import Term
from fencebeat.render import Renderer
from fencebeat.rounds import Rounds
from fencebeat.store import Emission
from tests.support.fences import SECOND, Fence


class Leading:
    """What a round asks the elector."""

    def __init__(self, term):
        self.term, self.extensions = term, []

    def leading(self):
        return self.term

    def extended(self, term, started):
        self.extensions.append((term, started))


@contextmanager
def leader(app: Celery, fence: Fence, entries: Mapping[str, Entry], *, store=None, clock=None, fast=True, **more):
    """Rounds for these entries; its connections end with the block."""
    clock = clock or SystemClock()
    renderer = Renderer(app, fence.keys.namespace, 5.0, fast=clock if fast else None)
    election = Leading(fence.term)
    rounds = Rounds(
        store or fence.store,
        renderer,
        entries,
        clock=clock,
        tolerance=more.pop("tolerance", 2.0),
        leading=election.leading,
        extended=election.extended,
        flags_generation=lambda: None,
        **more,
    )
    rounds.election = election
    try:
        yield rounds
    finally:
        renderer.close()


def drain(rounds, term) -> None:
    """Rounds until nothing is due."""
    while rounds.run(term) == 0:
        pass


def take_over(fence: Fence, rounds: Rounds, number: int) -> None:
    """A new term for the same rounds."""
    fence.term = replace(fence.term, token=fence.term.token + 1, nonce=f"nonce-{number}")
    fence.seal(fence.term)
    fence.client.pexpire(fence.keys.lock, 600_000)
    rounds.forget()
    rounds.election.term = fence.term


def rendered(renderer: Renderer, entry: Entry, fire_time: int, term: Term) -> Emission:
    """One tick with the message that the renderer makes of it."""
    identity, message = renderer.render(entry, fire_time, term.token)
    return Emission(
        entry=entry.name,
        version=entry.version,
        fire_time=fire_time,
        following=entry.next_after(fire_time),
        task_id=identity,
        message=message,
    )


def set_back(fence: Fence, entries, seconds: int) -> int:
    """As if nobody had led for that long; returns the mark."""
    mark = (fence.now() // SECOND - seconds) * SECOND
    fence.client.hset(fence.keys.last, mapping=dict.fromkeys(entries, mark))
    fence.client.zadd(fence.keys.due, dict.fromkeys(entries, mark // 1000 + 1))
    return mark
