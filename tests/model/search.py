"""Breadth-first search over every interleaving of a model, with the shortest trace to a breach."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

State = TypeVar("State")


class Step(NamedTuple):
    """One thing that may happen next. `broken`: the invariant that it breaks, empty where it breaks none."""

    label: str
    state: object
    broken: str = ""
    why: str = ""


@dataclass(frozen=True)
class Found:
    """What a search saw. `trace` is the shortest way to a breach, oldest first; empty where there was none."""

    states: int
    broken: str = ""
    why: str = ""
    trace: tuple[str, ...] = ()

    def text(self) -> str:
        """The trace, one step a line."""
        steps = [f"{number:3}  {label}" for number, label in enumerate(self.trace, start=1)]
        return "\n".join([f"{self.broken or 'nothing'} breaks: {self.why} ({self.states} states)", *steps])


def search(
    start: State, steps: Callable[[State], Iterable[Step]], *, invariant: str | None = None, limit: int = 2_000_000
) -> Found:
    """Visit every state that can be reached. Ends at the first breach of `invariant`; of any, where that is None.

    Raises RuntimeError beyond `limit` states: a search that was cut short has proved nothing.
    """
    came_from: dict[object, tuple[object, str] | None] = {start: None}
    queue: deque[object] = deque([start])
    while queue:
        state = queue.popleft()
        for step in steps(state):  # type: ignore[arg-type]  # the queue holds only what start and steps gave
            if step.broken and invariant in (None, step.broken):
                trace = (*_trace(came_from, state), step.label)
                return Found(len(came_from), step.broken, step.why, trace)
            if step.state not in came_from:
                if len(came_from) >= limit:
                    raise RuntimeError(f"more than {limit} states: make the world smaller")
                came_from[step.state] = (state, step.label)
                queue.append(step.state)
    return Found(len(came_from))


def _trace(came_from: dict[object, tuple[object, str] | None], state: object) -> list[str]:
    labels = []
    at = came_from[state]
    while at is not None:
        state, label = at
        labels.append(label)
        at = came_from[state]
    return labels[::-1]
