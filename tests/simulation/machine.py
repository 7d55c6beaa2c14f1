"""Hypothesis drives the world: rules are acts of users and of the world, invariants are looked at after each of them.

Two modes apart. Safety: faults never stop, and at no moment an invariant breaks. Liveness: in the end everything is
healed, and progress must follow: a leader within the bound, each tick with its outcome, each run once.
"""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencebeat.edits import Schedule
from fencebeat.ticks import task_id
from tests.simulation.beats import EPOCH, LEASE, QUEUE, SCHEDULE, WORK, BeatClock, World
from tests.support import checker
from tests.support.checker import SECOND, Told, every

ORACLES = {name: every(line["schedule"]) for name, line in SCHEDULE.items()}
STOPPED = 2.0
"""Seconds after which a stop is in force, whatever happens."""
PORTS = ("commit", "commit", "commit", "acquire", "renew", "recover", "renew_flags", "sync_entries", "due", "release")
"""Scripts at which something bites; the commit most often, because most depends on it."""

which = st.integers(0, 2)
thread = st.integers(0, 3)


class Machine(RuleBasedStateMachine):
    """The rules. `url` and `namespace` are set by the test."""

    url = namespace = ""
    losses = True

    def __init__(self) -> None:
        super().__init__()
        self.world: World = None  # type: ignore[assignment] # made by the first rule

    @initialize(seed=st.integers(0, 2**16), beats=st.integers(1, 3), first=st.sampled_from([0.0, 0.5, 4.0]))
    def begin(self, seed: int, beats: int, first: float) -> None:
        self.world = World(self.url, self.namespace, seed)
        self.stopped: dict[str, float] = {}
        self.paused: set[str] = set()
        self.looked_at, self.records = 0.0, 0
        self.floor, self.terms = 0, set()
        for _ in range(beats):
            self.world.start_beat()
        self.world.go_on(first)

    # --- acts of the world

    @rule(seconds=st.sampled_from([0.05, 0.4, 1.0, 2.5, 6.0]))
    def go_on(self, seconds: float) -> None:
        self.world.go_on(seconds)

    @rule(beat=which, kind=thread, count=st.integers(1, 8))
    def steps_of_one(self, beat: int, kind: int, count: int) -> None:
        if (chosen := self._beat(beat)) is not None:
            self.world.steps(chosen, count, kind)

    @precondition(lambda self: len(self.world.beats) < 3)
    @rule()
    def start_beat(self) -> None:
        self.world.start_beat()

    @rule(beat=which)
    def freeze(self, beat: int) -> None:
        if (chosen := self._beat(beat)) is not None:
            self.world.say(f"{chosen.name} is frozen at {[actor.where for actor in chosen.actors]}")
            chosen.frozen = True

    @rule(name=st.sampled_from(PORTS), edge=st.sampled_from(["before", "after"]), then=st.sampled_from("fkrq"))
    def bite_at(self, name: str, edge: str, then: str) -> None:
        """Freeze or kill whoever comes to a call first, or let the call's request or reply be lost."""
        where = f"{edge} {name}"
        found = self.world.run_to(where, at_most=1.5)
        if found is None:
            return
        beat, actor = found
        self.world.say(f"{beat.name} at {where}: {then}")
        if then == "f":
            beat.frozen = True
        elif then == "k":
            self.world.kill(beat)
        else:
            actor.fault = "reply" if then == "r" else "request"

    @precondition(lambda self: any(beat.frozen for beat in self.world.beats))
    @rule(beat=which)
    def thaw(self, beat: int) -> None:
        frozen = [beat for beat in self.world.beats if beat.frozen]
        self.world.say(f"{frozen[beat % len(frozen)].name} is thawed")
        frozen[beat % len(frozen)].frozen = False

    @rule(beat=which)
    def kill(self, beat: int) -> None:
        if (chosen := self._beat(beat)) is not None:
            self.world.kill(chosen)

    @rule(beat=which, kind=thread, fault=st.sampled_from(["request", "reply"]))
    def lose_a_call(self, beat: int, kind: int, fault: str) -> None:
        if (chosen := self._beat(beat)) is not None:
            chosen.actors[kind].fault = fault

    @rule()
    def expire(self) -> None:
        self.world.expire_lease()

    @rule(seconds=st.sampled_from([-20.0, -1.0, 1.0, 20.0]))
    def step_clocks(self, seconds: float) -> None:
        self.world.step_server_clock(seconds)

    @rule(beat=which, ahead=st.sampled_from([-3.0, -1.0, 1.0, 3.0, 0.0]))
    def step_host(self, beat: int, ahead: float) -> None:
        if (chosen := self._beat(beat)) is not None:
            chosen.clock.ahead = self.world.server_ahead + ahead

    @precondition(lambda self: self.losses)
    @rule()
    def lose_data(self) -> None:
        self._forget()
        self.world.lose_data()

    @precondition(lambda self: self.losses and self.world.server.replica is None)
    @rule()
    def lag(self) -> None:
        self.world.say("a replica stops to follow")
        self.world.server.lag()

    @precondition(lambda self: self.world.server.replica is not None)
    @rule()
    def failover(self) -> None:
        self._forget()
        self.world.failover()

    # --- acts of users

    @rule(scope=st.sampled_from(["all", "entry:each"]))
    def stop_or_lift(self, scope: str) -> None:
        if scope in self.stopped:
            del self.stopped[scope]
            self.world.lift(scope)
        else:
            self.stopped[scope] = self.world.now
            self.world.stop(scope)

    @precondition(lambda self: self._known())
    @rule(name=st.sampled_from(sorted(SCHEDULE)), skip=st.booleans())
    def pause_or_resume(self, name: str, skip: bool) -> None:
        schedule = self._schedule()
        if name not in schedule.client.hgetall(self.world.keys.paused):
            self.world.say(f"{name} is paused")
            schedule.pause(name, "simulated")
            self.paused.add(name)
        else:
            self.world.say(f"{name} is resumed")
            schedule.resume(name, skip_missed=skip)
            self.paused.discard(name)

    @rule(count=st.integers(1, 6))
    def workers_take(self, count: int) -> None:
        for _ in range(count):
            self.world.takes()

    @rule(count=st.integers(1, 6))
    def workers_end(self, count: int) -> None:
        for _ in range(count):
            self.world.ends()

    @rule()
    def a_worker_dies(self) -> None:
        self.world.dies()

    @rule()
    def deliver_again(self) -> None:
        self.world.copies()

    # --- what must hold at every moment

    @invariant()
    def holds(self) -> None:
        world = self.world
        audit = world.audit()
        told = Told(audit=audit, oracles=ORACLES)
        if audit:
            for check in (checker.i1a, checker.i3, checker.i4):
                verdict = check(told)
                assert verdict.state != "broken", self._story(verdict)
        assert not [task for task, times in Counter(world.ran).items() if times > 1], self._story("I1b")
        emitted = [record for record in audit if record["outcome"] == "emitted"]
        now = round((EPOCH + world.now + world.server_ahead) * SECOND)
        if not world.stepped:
            assert all(int(record["fire_time"]) <= now for record in emitted), self._story("I2: before its time")
        tokens = [int(record["token"]) for record in audit if record["outcome"] == "elected"]
        new = set(tokens) - self.terms
        assert all(token > self.floor for token in new), self._story(f"I3: {new} is not above {self.floor}")
        self.terms |= new
        for record in emitted[self.records :]:
            for scope, since in self.stopped.items():
                if scope in ("all", f"entry:{record['entry']}"):
                    assert self.looked_at - since <= STOPPED, self._story(f"I8: {record} while {scope} is stopped")
        if not (world.stepped or world.lost_data):
            assert sum(beat.believes for beat in world.beats) <= 1, self._story("I4: two believe")
        self.looked_at, self.records = world.now, len(emitted)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.close()

    # --- helpers

    def _beat(self, index: int) -> Any:
        beats = [beat for beat in self.world.beats if not beat.frozen]
        return beats[index % len(beats)] if beats else None

    def _forget(self) -> None:
        """The audit begins anew, or goes back."""
        self.holds()
        self.records = 10**9  # nothing is new until the next look
        self.floor = max(self.floor, self.world.effects.floor())

    def _known(self) -> bool:
        client, keys = self.world.server.client, self.world.keys
        names = client.hkeys(keys.entries)
        return set(SCHEDULE) <= set(names) and all(
            client.hexists(key, "generation") for key in (keys.entries, keys.last)
        )

    def _schedule(self) -> Schedule:
        clock = BeatClock(self.world)
        made = Schedule(self.world.client(), self.world.keys, zone="UTC", lease=LEASE, tolerance=2.0, clock=clock)
        made.client = self.world.server.client
        return made

    def _story(self, what: object) -> str:
        return "\n".join([str(what), *self.world.journal])


class Safety(Machine):
    """Faults never stop."""


class Liveness(Machine):
    """Faults stop in the end."""

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            self.heal()
            self.rest()
            self.holds()
            self.complete()
        finally:
            self.world.close()

    def heal(self) -> None:
        world = self.world
        world.say("everything is healed")
        for beat in world.beats:
            beat.frozen, beat.clock.ahead = False, world.server_ahead
            for actor in beat.actors:
                actor.fault = None
        for scope in list(self.stopped):
            del self.stopped[scope]
            world.lift(scope)
        if not world.beats:
            world.start_beat()

    def rest(self) -> None:
        """A leader of a store that knows its past, within the bound (I11); then the queue is worked off."""
        world, keys = self.world, self.world.keys
        for _ in range(60):
            world.go_on(0.25)
            # One that leads an emptied store does not know it yet, and the pauses are still to be recovered.
            if any(beat.believes for beat in world.beats) and self._known():
                break
        else:
            raise AssertionError(self._story(f"I11: nobody leads; {[b.election.elector.state for b in world.beats]}"))
        for name in world.server.client.hkeys(keys.paused):
            self._schedule().resume(name)
        world.go_on(WORK + 3.0 + world.set_back)  # claims of the dead run out, marks that lay ahead are passed
        while world.running:
            world.ends()
        world.sweeps()
        while left := world.server.client.llen(QUEUE):
            world.takes()
            world.ends()
            assert world.server.client.llen(QUEUE) < left, self._story("a claim is never free again")

    def complete(self) -> None:
        """I2, and I1b at rest: each tick of `each` ran once or was passed over with a reason, whatever was lost."""
        world = self.world
        copied = [{"id": identity, **fields} for identity, fields in world.effects._records.items()]
        seen = {record["id"] for record in copied}
        known = [*copied, *(record for record in world.audit() if record["id"] not in seen)]
        added = [r for r in known if r["outcome"] == "added" and r.get("entry") == "each"]
        marks = [int(r["fire_time"]) for r in added]
        # Ticks are owed from its first addition on; a later one, after clocks went back, may have a lower mark.
        first = int(min(added, key=lambda r: tuple(map(int, r["id"].split("-"))))["fire_time"])
        until = (int(EPOCH + world.now + world.server_ahead) - 2) * SECOND
        ran = set(world.ran)
        passed = [
            (int(r.get("first") or r["fire_time"]), int(r["fire_time"]))
            for r in known
            if r.get("entry") == "each" and r["outcome"] in ("skipped", "superseded", "paused", "resumed", "changed")
        ]
        missing = [
            at
            for at in ORACLES["each"](first, until)
            if task_id(world.keys.namespace, "each", at) not in ran
            and not any(first <= at <= last for first, last in passed)
        ]
        assert not missing, self._story(f"I2: never run: {missing[:5]} of {len(missing)}")
        if not world.lost_data:
            told = Told(audit=world.audit(), oracles=ORACLES, since=max(marks), until=until)
            verdict = checker.i2(told)
            assert verdict.state == "holds", self._story(verdict)
