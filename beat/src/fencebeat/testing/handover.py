"""Change the leader of a cluster, and say from the history how long each step took.

    signal ──▶ resigned ──▶ elected ──▶ leading ──▶ emitted
               (SIGTERM)    (seals the   (may act)   (a tick of the successor is on the queue)
                             fence)

All times are the history's (CLOCK_BOOTTIME of the one host): written by the processes themselves, not by who watches.
"""

from dataclasses import dataclass

from fencebeat.clock import SystemClock
from fencebeat.testing.beats import Beat, Cluster, Line, committed, elected


@dataclass(frozen=True)
class Handover:
    """One change of leader; the steps in seconds since the signal. `resigned` is None after SIGKILL."""

    at: float  # CLOCK_BOOTTIME of the signal
    leader: str
    successor: str
    resigned: float | None
    elected: float
    leading: float
    emitted: float


class Replicas:
    """Several beats of one cluster, of which one leads and the others stand by."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.cluster = cluster
        self._count = count
        self._looked_at = 0
        self._states: dict[str, Line] = {}  # process -> its newest line about its state

    def fill(self) -> None:
        """Start as many as are missing; it does not wait for anything."""
        for _ in range(self._count - sum(beat.alive for beat in self.cluster.beats)):
            self.cluster.start_beat()

    def leader(self) -> Beat | None:
        """Who leads while all others that live stand by; None while that is not so."""
        lines = list(self.cluster.lines())
        for line in lines[self._looked_at :]:
            if line.get("event") == "state.changed":
                self._states[line["proc"]] = line
        self._looked_at = len(lines)
        alive = [beat for beat in self.cluster.beats if beat.alive]
        states = [self._states.get(beat.name, {}) for beat in alive]
        leaders = [beat for beat, line in zip(alive, states, strict=True) if line.get("state") == "leading"]
        waiting = sum(line.get("reason") == "another_leads" for line in states)
        return leaders[0] if len(leaders) == 1 and waiting == len(alive) - 1 == self._count - 1 else None

    def settle(self, at_most: float = 60.0) -> Beat:
        """Wait until one leads and the others stand by; who leads. Raises NotSeen."""
        found: list[Beat] = []

        def look() -> bool:
            leader = self.leader()
            found.extend([leader] if leader is not None else [])
            return bool(found)

        self.cluster.poll(look, at_most, "the beats did not settle")
        return found[0]

    def hand_over(self, *, kill: bool, at_most: float = 30.0) -> Handover:
        """End the leader by SIGKILL or SIGTERM, until it is gone and its successor has emitted. Raises NotSeen."""
        leader = self.settle()
        at = SystemClock().elapsed()
        if kill:
            leader.kill()
        else:
            leader.terminate()
        emitted = self.cluster.wait_for(lambda line: committed(line) and line["proc"] != leader.name, at_most, at)
        leader.process.wait(at_most)
        return self._story(leader, at, emitted)

    def _story(self, leader: Beat, at: float, emitted: Line) -> Handover:
        since = [line for line in self.cluster.lines() if line["t"] >= at]
        successor = emitted["proc"]
        theirs = [line for line in since if line["proc"] == successor and line["t"] <= emitted["t"]]
        resigned = [line for line in since if line["proc"] == leader.name and line.get("event") == "term.resigned"]
        return Handover(
            at=at,
            leader=leader.name,
            successor=successor,
            resigned=resigned[0]["t"] - at if resigned else None,
            elected=next(line["t"] for line in theirs if elected(line)) - at,
            leading=next(line["t"] for line in theirs if line.get("state") == "leading") - at,
            emitted=emitted["t"] - at,
        )
