"""A small model of lease, commit, recovery, flags and claims, for a search of every interleaving.

Time has no length: a lease may end at any moment (`expire`), a process may stand still between any two steps while its
belief does not change, a request may arrive long after its sender gave up on it, and its reply may be lost. A server
may lose its data (`flush`) or go back to what it was when a replica stopped to follow (`lag`, `failover`); the queue,
the marks and the fence then go back together, because they are one database. Numbers are small: a token is the highest
known + 1, *without* the server's microseconds, so two histories give out one number as soon as anything lets them.

What a guard forbids is in one place each, `if on(...)`; `off` is the set of guards that are taken away.

    invariant   broken by
    I1a         a tick emitted twice in one life of the server
    I1b         a tick that ran to its end twice
    I2          a tick that counts as decided and that nothing holds; or one emitted before its time
    I3          an accepted number that falls; a term whose number is not above what an effect store has seen
    I4          an act under another term than the one that was issued last
    I8          an emission while a stop is in force for longer than T
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.search import Step

Tick = tuple[int, int]
"""(entry, fire time)."""

GUARDS = frozenset(
    {
        "token",  # the commit compares the token
        "nonce",  # and the nonce
        "lock",  # and, where Redis keeps the lock, the lock's value
        "fresh_nonce",  # each campaign has a nonce of its own, not each process
        "seal",  # the fence is sealed when the lock is taken, not by the first commit
        "floor",  # a new token is above what the effect stores have seen
        "mark",  # the mark of each entry
        "server_time",  # no fire time later than the server's time
        "checks_first",  # a script makes all its checks before its first write
        "recovery",  # a store that lost its past is recovered before the first emission
        "claim",  # a worker runs no tick whose claim is closed
        "postpone",  # a copy that meets a live claim stays on the queue
        "flags_known",  # flags without their generation are unknown
        "flags_renewed",  # flags that nobody renewed for T are unknown
        "flags_rise",  # no older copy of the flags replaces a newer one
        "flags_read_age",  # the age of a copy counts from the moment the switch was read, not from its writing
    }
)


class Flags(NamedTuple):
    """The server's copy of the switch."""

    generation: int
    stopped: bool
    fresh: bool  # renewed within the last T


class Server(NamedTuple):
    """One database. The last three are not in the product: they remember what must not happen."""

    lock: int  # nonce of the holder, 0 where it is free
    token: int
    nonce: int
    known: bool  # it has its generation
    marks: tuple[int, ...]
    queue: tuple[tuple[Tick, int], ...]  # (tick, token), sorted
    flags: Flags | None
    issued: tuple[int, int]  # the term that was issued last
    accepted: int  # highest token under which something was decided
    emitted: frozenset[Tick]


class Run(NamedTuple):
    """A worker with a tick in hand."""

    tick: Tick
    token: int
    held: bool  # the broker still holds the message for it, and brings it back when the worker dies


class Effects(NamedTuple):
    """What does not die with the broker: claims, the floor, the switch."""

    floor: int
    ran: frozenset[Tick]
    paused: frozenset[Tick]
    generation: int
    stopped: bool
    ripe: bool  # the stop is in force for longer than T


class Request(NamedTuple):
    """A commit on its way."""

    token: int
    nonce: int
    ticks: tuple[Tick, ...]


class Process(NamedTuple):
    """One beat. Frozen, it just takes no step."""

    name: int
    phase: str = "standby"  # standby, elected, leading
    token: int = 0
    nonce: int = 0
    asked: int = 0  # nonce of a campaign whose reply was lost
    waiting: Request | None = None
    read: Flags | None = None  # what its keeper read of the switch and has not written yet


class State(NamedTuple):
    """Everything."""

    server: Server
    replica: Server | None
    effects: Effects
    processes: tuple[Process, ...]
    net: tuple[Request, ...]
    runs: tuple[Run, ...]
    time: int
    campaigns: int
    left: tuple[int, ...]  # of each fault, how often it may still happen; see FAULTS


@dataclass
class _Commit:
    """What a commit did."""

    result: str
    server: Server
    paused: frozenset[Tick] = frozenset()
    broken: str = ""
    why: str = ""


FAULTS = ("lose", "retry", "flush", "lag", "evict", "stop", "clog", "ahead", "redeliver", "die", "keeper")


@dataclass(frozen=True)
class World:
    """How large, and which faults how often."""

    processes: int = 2
    entries: int = 1
    ticks: int = 2
    campaigns: int = 3
    carrier: str = "lock"
    workers: bool = False
    faults: tuple[tuple[str, int], ...] = ()
    off: frozenset[str] = frozenset()

    def start(self) -> State:
        """Nobody leads; the store knows its past; nothing is due yet."""
        budget = dict(self.faults)
        assert budget.keys() <= set(FAULTS)
        assert self.off <= GUARDS
        return State(
            server=self.blank()._replace(known=True, flags=Flags(1, stopped=False, fresh=True)),
            replica=None,
            effects=Effects(0, frozenset(), frozenset(), 1, stopped=False, ripe=False),
            processes=tuple(Process(name + 1) for name in range(self.processes)),
            net=(),
            runs=(),
            time=0,
            campaigns=0,
            left=tuple(budget.get(fault, 0) for fault in FAULTS),
        )

    def blank(self) -> Server:
        """A server without data."""
        nothing: frozenset[Tick] = frozenset()
        return Server(0, 0, 0, known=False, marks=(0,) * self.entries, queue=(), flags=None, issued=(0, 0), accepted=0,
                      emitted=nothing)  # fmt: skip

    def on(self, guard: str) -> bool:
        """Whether a guard is there."""
        return guard not in self.off

    # --- all that may happen next

    def steps(self, state: State) -> Iterator[Step]:
        """Every step of every process, of the network, of the workers and of the world."""
        for step in self._all(state):
            yield step if step.broken else self._complete(step)

    def _all(self, state: State) -> Iterator[Step]:
        for index in range(len(state.processes)):
            yield from self._process(state, index)
        for request in sorted(set(state.net)):
            yield from self._arrives(state, request)
        if self.workers:
            yield from self._workers(state)
        yield from self._world(state)

    def _complete(self, step: Step) -> Step:
        """I2 as a property of a state: what counts as decided is held by something."""
        state: State = step.state  # type: ignore[assignment]  # a Step's state is ours
        held = {tick for tick, _ in state.server.queue} | {run.tick for run in state.runs}
        for entry, mark in enumerate(state.server.marks):
            for at in range(1, mark + 1):
                tick = (entry, at)
                if not (tick in held or tick in state.effects.ran or tick in state.effects.paused):
                    return step._replace(broken="I2", why=f"tick {tick} counts as decided, and nothing holds it")
        return step

    def _process(self, state: State, index: int) -> Iterator[Step]:
        process = state.processes[index]
        who = f"beat {process.name}"

        def become(changed: Process, **more: object) -> State:
            others = state.processes
            return state._replace(processes=(*others[:index], changed, *others[index + 1 :]), **more)

        if process.phase == "standby":
            yield from self._campaign(state, process, become)
        else:
            yield Step(f"{who} dies or stops to trust its term", become(Process(process.name)))
        if process.phase == "elected":
            yield from self._recover(state, process, become)
        if process.phase == "leading" and process.waiting is None:
            ticks = tuple(
                (entry, mark + 1)
                for entry, mark in enumerate(state.server.marks)
                if mark + 1 <= min(state.time + self._spent(state, "ahead"), self.ticks)
            )
            if not self._is_term(state.server, process.token, process.nonce):
                yield Step(f"{who} looks what is due: fenced", become(Process(process.name)))
            elif ticks:
                request = Request(process.token, process.nonce, ticks)
                sent = become(process._replace(waiting=request), net=_with(state.net, request))
                yield Step(f"{who} sends ticks {ticks} under {process.token}/{process.nonce}", sent)
        if process.waiting is not None and process.waiting not in state.net and self._left(state, "retry"):
            again = self._spend(state, "retry")._replace(net=_with(state.net, process.waiting))
            yield Step(f"{who} asks again: {process.waiting.ticks}", again)
        yield from self._keeper(state, process, become)

    def _campaign(self, state, process, become) -> Iterator[Step]:
        server, who = state.server, f"beat {process.name}"
        fresh = process.asked == 0
        if fresh and state.campaigns >= self.campaigns:
            return
        nonce = process.asked or (state.campaigns + 1 if self.on("fresh_nonce") else process.name)
        campaigns = state.campaigns + fresh
        if server.lock == nonce and server.issued[1] == nonce and not fresh:
            token, after = server.issued[0], server
        elif server.lock == 0:
            token = max(server.token, server.issued[0], state.effects.floor if self.on("floor") else 0) + 1
            after = server._replace(lock=nonce, issued=(token, nonce))
            if self.on("seal"):
                after = after._replace(token=token, nonce=nonce)
        else:
            return
        broken = "I3" if token <= state.effects.floor else ""
        why = f"term {token} is not above {state.effects.floor}, which an effect store has seen"
        elected = process._replace(phase="elected", token=token, nonce=nonce, asked=0)
        moved = become(elected, server=after, campaigns=campaigns)
        yield Step(f"{who} is elected under {token}/{nonce}", moved, broken, why)
        if self._left(state, "lose"):
            doubt = become(process._replace(asked=nonce), server=after, campaigns=campaigns)
            yield Step(f"{who} is elected under {token}/{nonce}, and does not hear of it", self._spend(doubt, "lose"))

    def _is_term(self, server: Server, token: int, nonce: int) -> bool:
        """What due, recover and commit compare; each comparison can be taken away."""
        if self.carrier == "lock" and self.on("lock") and server.lock != nonce:
            return False
        if not self.on("seal"):  # the fence is what the last commit left
            return token > server.token or (token, nonce) == (server.token, server.nonce)
        return (token == server.token or not self.on("token")) and (nonce == server.nonce or not self.on("nonce"))

    def _recover(self, state, process, become) -> Iterator[Step]:
        server, effects, who = state.server, state.effects, f"beat {process.name}"
        leading = process._replace(phase="leading")
        if not self._is_term(server, process.token, process.nonce):
            yield Step(f"{who} recovers: fenced", become(Process(process.name)))
            return
        copy = Flags(effects.generation, effects.stopped, fresh=True)
        if server.known:
            seeded = server._replace(flags=copy) if server.flags else server
            yield Step(f"{who} finds a known store and leads", become(leading, server=seeded))
        elif self.on("recovery"):
            marks = tuple(
                next(at for at in range(self.ticks + 1) if (entry, at + 1) not in effects.ran)
                for entry in range(self.entries)
            )
            yield Step(f"{who} recovers marks {marks} and leads", become(
                leading, server=server._replace(known=True, marks=marks, flags=copy)))  # fmt: skip
        else:
            marks = (state.time,) * self.entries
            empty = server._replace(known=True, marks=marks, flags=Flags(1, stopped=False, fresh=True))
            yield Step(f"{who} takes the empty store for a new one and leads", become(leading, server=empty))

    def _keeper(self, state, process, become) -> Iterator[Step]:
        """The thread that copies the switch: it reads, and may stand still before it writes."""
        server, effects, who = state.server, state.effects, f"keeper {process.name}"
        if process.read is None:
            if self._left(state, "keeper"):
                read = become(process._replace(read=Flags(effects.generation, effects.stopped, fresh=True)))
                yield Step(f"{who} reads switch {effects.generation}", self._spend(read, "keeper"))
            return
        written, broken, old = server, "", server.flags
        copy = process.read if self.on("flags_read_age") else process.read._replace(fresh=True)
        if old is not None and (copy.generation >= old.generation or not self.on("flags_rise")):
            written = server._replace(flags=copy)
            broken = "I8" if copy.generation < old.generation else ""
        done = become(process._replace(read=None), server=written)
        yield Step(f"{who} writes switch {copy.generation}", done, broken, "an older copy undoes a stop")

    def _arrives(self, state: State, request: Request) -> Iterator[Step]:
        rest = list(state.net)
        rest.remove(request)
        what = f"commit {request.ticks} under {request.token}/{request.nonce}"
        commit = self._commit(state, request)
        result, broken, why = commit.result, commit.broken, commit.why
        effects = state.effects._replace(paused=state.effects.paused | commit.paused)
        applied = state._replace(server=commit.server, effects=effects, net=tuple(rest))
        processes = tuple(
            process if process.waiting != request
            else Process(process.name) if result in ("fenced", "unknown") else process._replace(waiting=None)
            for process in state.processes
        )  # fmt: skip
        yield Step(f"{what}: {result}", applied._replace(processes=processes), broken, why)
        if self._left(state, "lose") and processes != state.processes:
            yield Step(f"{what}: {result}, and the reply is lost", self._spend(applied, "lose"), broken, why)

    def _commit(self, state: State, request: Request) -> _Commit:
        """The script."""
        server = state.server
        if not self._is_term(server, request.token, request.nonce):
            return _Commit("fenced", server)
        flags = server.flags
        unknown = flags is None and self.on("flags_known")
        old = flags is not None and not flags.fresh and self.on("flags_renewed")
        if not server.known or unknown or old:
            return _Commit("unknown", server)
        commit = _Commit("", server._replace(accepted=max(server.accepted, request.token)))
        if not self.on("seal"):
            commit.server = commit.server._replace(token=request.token, nonce=request.nonce)
        if (request.token, request.nonce) != server.issued:
            commit.broken, commit.why = "I4", f"accepted under {request.token}, and {server.issued[0]} was the term"
            if request.token < server.accepted:
                commit.broken, commit.why = "I3", f"accepted under {request.token} after {server.accepted}"
        results = []
        for tick in request.ticks:
            results.append(self._decide(state, request, tick, commit))
            if results[-1] == "error":
                break
        commit.result = ",".join(results)
        return commit

    def _decide(self, state: State, request: Request, tick: Tick, commit: _Commit) -> str:
        """One tick of a commit; returns its outcome and changes `commit`."""
        entry, at = tick
        server, unusable = commit.server, self._spent(state, "clog") > 0 and entry == self.entries - 1
        if at > state.time and self.on("server_time"):
            return "early"
        if at <= server.marks[entry] and self.on("mark"):
            return "duplicate"
        if unusable and self.on("checks_first"):
            return "refused"
        marks = (*server.marks[:entry], max(at, server.marks[entry]), *server.marks[entry + 1 :])
        commit.server = server = server._replace(marks=marks)
        if unusable:  # the mark is written, the message is not: Redis does not undo it
            return "error"
        if server.flags is not None and server.flags.stopped:
            commit.paused |= {tick}
            return "paused"
        if at > state.time:
            commit.broken, commit.why = "I2", f"{tick} was emitted at {state.time}"
        elif tick in server.emitted:
            commit.broken, commit.why = "I1a", f"{tick} was emitted twice"
        elif state.effects.stopped and state.effects.ripe:
            commit.broken, commit.why = "I8", f"{tick} was emitted although all is stopped for longer than T"
        queue = tuple(sorted((*server.queue, (tick, request.token))))
        commit.server = server._replace(queue=queue, emitted=server.emitted | {tick})
        return "emitted"

    def _workers(self, state: State) -> Iterator[Step]:
        server, effects = state.server, state.effects
        for message in sorted(set(server.queue)):
            tick, token = message
            rest = list(server.queue)
            rest.remove(message)
            taken = server._replace(queue=tuple(rest))
            if self.on("claim") and tick in effects.ran:
                yield Step(f"a worker finds {tick} done: duplicate", state._replace(server=taken))
            elif self.on("claim") and any(run.tick == tick for run in state.runs):
                if not self.on("postpone"):
                    yield Step(f"a worker finds {tick} claimed, and drops its copy", state._replace(server=taken))
            elif len(state.runs) < 2:
                runs = tuple(sorted((*state.runs, Run(tick, token, held=True))))
                yield Step(f"a worker claims {tick}", state._replace(server=taken, runs=runs))
        for run in sorted(set(state.runs)):
            rest_runs = list(state.runs)
            rest_runs.remove(run)
            runs = tuple(rest_runs)
            broken = "I1b" if run.tick in effects.ran else ""
            done = effects._replace(ran=effects.ran | {run.tick}, floor=max(effects.floor, run.token))
            ended = state._replace(runs=runs, effects=done)
            yield Step(f"a worker ends {run.tick}", ended, broken, f"{run.tick} ran to its end twice")
            back = server._replace(queue=tuple(sorted((*server.queue, (run.tick, run.token)))))
            if self._left(state, "redeliver") and run.held:
                again = tuple(sorted((*runs, run._replace(held=False))))
                copied = self._spend(state, "redeliver")._replace(server=back, runs=again)
                yield Step(f"the broker delivers {run.tick} again", copied)
            if self._left(state, "die"):
                died = self._spend(state, "die")._replace(runs=runs, server=back if run.held else server)
                yield Step(f"the worker with {run.tick} dies", died)

    def _world(self, state: State) -> Iterator[Step]:
        server = state.server
        if state.time < self.ticks:
            yield Step("time goes on", state._replace(time=state.time + 1))
        if server.lock:
            yield Step("the lease ends", state._replace(server=server._replace(lock=0)))
        if self._left(state, "flush"):
            yield Step("the server loses its data", self._spend(state, "flush")._replace(server=self.blank()))
        if self._left(state, "lag"):
            yield Step("a replica stops to follow", self._spend(state, "lag")._replace(replica=server))
        if state.replica is not None:
            yield Step("failover to the replica", state._replace(server=state.replica, replica=None))
        for fault, label in (("clog", "the last entry's queue is no list"), ("ahead", "the hosts' clocks go ahead")):
            if self._left(state, fault):
                yield Step(label, self._spend(state, fault))
        yield from self._switch(state)

    def _switch(self, state: State) -> Iterator[Step]:
        server, effects = state.server, state.effects
        if self._left(state, "evict") and server.flags is not None:
            gone = self._spend(state, "evict")._replace(server=server._replace(flags=None))
            yield Step("the flags are evicted", gone)
        if self._left(state, "stop") and not effects.stopped:
            stopped = effects._replace(generation=effects.generation + 1, stopped=True)
            yield Step("everything is stopped", self._spend(state, "stop")._replace(effects=stopped))
        if effects.stopped and not effects.ripe:
            yield Step("T goes by since the stop", _aged(state))

    def _left(self, state: State, fault: str) -> int:
        return state.left[FAULTS.index(fault)]

    def _spent(self, state: State, fault: str) -> int:
        return dict(self.faults).get(fault, 0) - self._left(state, fault)

    def _spend(self, state: State, fault: str) -> State:
        at = FAULTS.index(fault)
        return state._replace(left=(*state.left[:at], state.left[at] - 1, *state.left[at + 1 :]))


def _with(net: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    return tuple(sorted((*net, request)))


def _aged(state: State) -> State:
    """T after a stop: every copy that does not know of it was read before it, so longer ago than T."""
    generation = state.effects.generation

    def old(flags: Flags | None) -> Flags | None:
        return flags._replace(fresh=False) if flags is not None and flags.generation < generation else flags

    replica = state.replica
    return state._replace(
        effects=state.effects._replace(ripe=True),
        server=state.server._replace(flags=old(state.server.flags)),
        replica=replica._replace(flags=old(replica.flags)) if replica else None,
        processes=tuple(process._replace(read=old(process.read)) for process in state.processes),
    )
