"""The world of a simulation: real schedulers, a real server, virtual time, and everything that may go wrong.

What is real: the elector, the lock, recovery, flag keeper, audit copier, rounds, catch-up, store and every script. What
is not: Celery's rendering (a message is its tick as JSON), the watchdog process, sleeping.
"""

import contextlib
import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis
from celery import Celery

from fencebeat import scheduler
from fencebeat.capture import Captured, Command
from fencebeat.claims.memory import MemoryClaims
from fencebeat.claims.port import Claimed, Closed, Tick
from fencebeat.configuration import Configuration
from fencebeat.effects import Flag
from fencebeat.entries import read_schedule
from fencebeat.keys import Keys
from fencebeat.lease import LeaseTiming
from fencebeat.locks.redis import SLICE, RedisLock
from fencebeat.testing.effects import MemoryEffects
from fencebeat.ticks import task_id
from tests.simulation import actors
from tests.simulation.actors import Actor
from tests.simulation.virtual import Server, SimClient

EPOCH = 1_800_000_000.0
"""Where virtual time begins, in seconds since the epoch."""
LEASE = 5.0
WORK = 6.0
"""Lease of a worker's claim, in seconds."""
QUEUE, UNACKED = "work", "unacked"
SCHEDULE = {
    "each": {"task": "t", "schedule": 1.0, "options": {"queue": QUEUE}, "fencebeat": {"catchup": "all"}},
    "newest": {"task": "t", "schedule": 3.0, "options": {"queue": QUEUE}, "fencebeat": {"catchup": "latest"}},
    "fresh": {"task": "t", "schedule": 2.0, "options": {"queue": QUEUE}, "fencebeat": {"catchup": "skip"}},
}


class BeatClock:
    """The clocks of one host: they agree with true time, but for what a test adds."""

    def __init__(self, world: "World") -> None:
        self._world, self.ahead = world, world.server_ahead

    def elapsed(self) -> float:
        return self._world.now

    def wall(self) -> float:
        return EPOCH + self._world.now + self.ahead


class SimLock(RedisLock):
    """The real lock; waiting for a signal is a rest."""

    world: "World"

    def wait(self, at_most: float) -> None:
        signal = self._signal
        self.world.rest(min(at_most, SLICE, self._timing.lease, self._left), lambda: self.world.has(signal))


class SimRenderer:
    """A message is its tick."""

    templates = None

    def __init__(self, _app: object, namespace: str, _timeout: float, **_options: object) -> None:
        self._namespace = namespace

    def render(self, entry: Any, fire_time: int, token: int) -> tuple[str, Captured]:
        identity = task_id(self._namespace, entry.name, fire_time)
        message = {"task_id": identity, "entry": entry.name, "fire_time": fire_time, "token": token}
        return identity, Captured([Command("lpush", QUEUE, json.dumps(message))], [QUEUE], f"m-{identity[:8]}")

    def guarded(self, _entry: Any) -> bool:
        return True

    def sent(self, _identities: list[str]) -> None:
        return

    def close(self) -> None:
        return


class SimEffects:
    """The effect store behind a port."""

    def __init__(self, effects: MemoryEffects) -> None:
        self._effects = effects

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._effects, name)
        return lambda *args: actors.ask(f"effects.{name}", lambda: method(*args), lambda: OSError("no answer"))


class SimConfiguration:
    """A real configuration whose stores are the simulation's."""

    def __init__(self, real: Configuration, world: "World", lock: SimLock) -> None:
        self._real, self._world, self._lock = real, world, lock
        self.broker = SimpleNamespace(client=lambda *_args, **_options: world.client())
        self.keys = world.keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def make_lock(self) -> SimLock:
        return self._lock

    def make_effects(self) -> "SimEffects":
        return SimEffects(self._world.effects)


class Beat:
    """One process: a tick thread, an elector, a flag keeper, an audit copier."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.name, self.frozen = world, f"beat-{number}", False
        self.clock = BeatClock(world)
        entries, refused = read_schedule(SCHEDULE, lease=LEASE)
        assert not refused
        timing, keys = LeaseTiming.of(LEASE), world.keys
        lock = SimLock(world.client(), world.client(), keys, timing, self.name)
        lock.world = world
        app = Celery("sim", broker="redis://127.0.0.1:1/0", set_as_current=False)  # never connected to
        app.conf.update(fencebeat_namespace=keys.namespace, fencebeat_lease=LEASE, fencebeat_fast_path=False)
        configuration = SimConfiguration(Configuration.of(app), world, lock)
        unreal = {"Renderer": SimRenderer, "Watchdog": lambda: None, "system_clock": lambda: self.clock}
        with mock.patch.multiple(scheduler, **unreal):
            self.election = scheduler.Election(app, configuration, entries)
        elector, keeper, copier = self.election.elector, self.election.keeper, self.election.copier
        assert keeper is not None
        assert copier is not None
        elector._rest = lambda seconds: self._rest(seconds, elector._mail)
        self.election._wait = lambda seconds: self._rest(seconds, self.election._mail)
        for thread in (keeper, copier):
            thread._stopping = SimpleNamespace(is_set=lambda: False, wait=world.rest)
        self.actors = [
            Actor(f"{self.name} elector", self._elects),
            Actor(f"{self.name} ticks", self._ticks),
            Actor(f"{self.name} keeper", keeper._run),
            Actor(f"{self.name} copier", copier._run),
        ]

    def _elects(self) -> None:
        actor = actors.here()
        while True:
            self.election.elector._turn()
            actor.stop_here("between two turns")

    def _ticks(self) -> None:
        actor = actors.here()
        while True:
            self.election.turn()
            actor.stop_here("between two turns")

    def _rest(self, seconds: float, mail: Any) -> None:
        self.world.rest(seconds, lambda: not mail.empty())
        while not mail.empty():
            mail.get()

    @property
    def believes(self) -> bool:
        """Whether it would act now if it were asked."""
        return self.election.elector.leading() is not None

    def kill(self) -> None:
        """SIGKILL."""
        for actor in self.actors:
            actor.kill()


class World:
    """Everything there is. Every choice of its own comes from `seed`."""

    def __init__(self, url: str, namespace: str, seed: int) -> None:
        self.now = 0.0
        self.keys = Keys(namespace)
        self.server = Server(url)
        self.server_ahead = 0.0
        self.effects = MemoryEffects()
        self.claims = MemoryClaims(SimpleNamespace(elapsed=lambda: self.now, wall=lambda: EPOCH + self.now))
        self.beats: list[Beat] = []
        self.running: list[tuple[str, int]] = []  # messages in hand, each with its attempt
        self.ran: list[str] = []  # task ids, one for each run to its end
        self.lost_data = self.stepped = False
        self.set_back = 0.0  # seconds by which all clocks were set back, in sum
        self.journal: list[str] = []
        self._random = random.Random(seed)
        self._numbers = 0
        self.server.lose_data(self.server_time())

    # --- what the actors see

    def client(self) -> SimClient:
        return SimClient(self.server.pool, self)

    def server_time(self) -> float:
        return EPOCH + self.now + self.server_ahead

    def port(self, name: str, ask: Callable[[], Any]) -> Any:
        return actors.ask(name, ask, lambda: redis.ConnectionError("the simulation lost it"))

    def rest(self, seconds: float, wakes: Callable[[], bool] | None = None) -> None:
        actor = actors.here()
        if actor is not None:
            actor.stop_here("rest", self.now + max(0.001, seconds), wakes)

    def has(self, key: str) -> bool:
        """Whether a list has something; taken from it, as a waiter does."""
        return self.server.client.lpop(key) is not None

    # --- time

    def go_on(self, seconds: float) -> None:
        """Let everybody who is not frozen go on for so many virtual seconds; each call takes some milliseconds."""
        end = self.now + seconds
        while self.now < end:
            self._move(end)

    def run_to(self, where: str, at_most: float) -> tuple[Beat, Actor] | None:
        """Go on until somebody stands at `where`, for example `before commit`; None where nobody comes to it."""
        end = self.now + at_most
        while self.now < end:
            for beat in self.beats:
                for actor in beat.actors:
                    if actor.where == where and not beat.frozen and not actor.ended:
                        return beat, actor
            self._move(end)
        return None

    def _move(self, end: float) -> None:
        """One step of one actor, or time until the next rest is over."""
        ready = [actor for actor in self._awake() if actor.ready(self.now)]
        if ready:
            self._random.choice(ready).step()
            self._advance(self._random.choice((0.0, 0.001, 0.004)))
        else:
            rests = [actor.until for actor in self._awake()]
            self._advance(max(0.001, min([end, *rests]) - self.now))

    def steps(self, beat: Beat, count: int, kind: int) -> None:
        """Let one thread of one beat take steps, and nobody else."""
        actor = beat.actors[kind]
        for _ in range(count):
            if beat.frozen or not actor.ready(self.now):
                return
            actor.step()

    def _awake(self) -> list[Actor]:
        return [actor for beat in self.beats if not beat.frozen for actor in beat.actors if not actor.ended]

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        self.server.tell_time(self.server_time())

    # --- what may happen

    def say(self, what: str) -> None:
        self.journal.append(f"{self.now:8.3f}  {what}")

    def start_beat(self) -> Beat:
        self._numbers += 1
        self.beats.append(Beat(self, self._numbers))
        self.say(f"{self.beats[-1].name} starts")
        return self.beats[-1]

    def kill(self, beat: Beat) -> None:
        self.say(f"{beat.name} is killed at {[actor.where for actor in beat.actors]}")
        beat.kill()
        self.beats.remove(beat)

    def expire_lease(self) -> None:
        """As if the server had been slow to us: the lock is gone, the fence stays."""
        self.say("the lease ends")
        self.server.client.delete(self.keys.lock)
        self.stepped = True

    def lose_data(self) -> None:
        self.say("the server loses its data")
        self.server.lose_data(self.server_time())
        self.lost_data = True

    def failover(self) -> None:
        self.say("failover to the replica")
        self.server.failover(self.server_time())
        self.lost_data = True

    def step_server_clock(self, seconds: float) -> None:
        self.say(f"the clocks of server and hosts step by {seconds} s")
        self.server_ahead += seconds
        self.set_back += max(0.0, -seconds)
        for beat in self.beats:
            beat.clock.ahead += seconds
        self.stepped = True
        self._advance(0.0)

    def stop(self, scope: str) -> None:
        self.say(f"{scope} is stopped")
        self.effects.stop(scope, Flag("emit", "simulated"))

    def lift(self, scope: str) -> None:
        self.say(f"{scope} goes on")
        self.effects.lift(scope)

    # --- workers; like kombu, the broker keeps what is in their hands until it is acknowledged

    def takes(self) -> None:
        """A worker takes a message and claims its tick. A live claim keeps the message on the queue."""
        client = self.server.client
        text = client.lmove(QUEUE, UNACKED, "RIGHT", "LEFT")
        if text is None:
            return
        message = json.loads(text)
        tick = Tick(message["entry"], message["fire_time"], message["token"], message["task_id"])
        answer = self.claims.claim(tick, "worker", WORK)
        if isinstance(answer, Claimed):
            self.running.append((text, answer.attempt))
        else:
            client.lrem(UNACKED, 1, text)
            if not isinstance(answer, Closed):
                client.lpush(QUEUE, text)
        self._tell_claims()

    def ends(self) -> None:
        """A worker ends the tick that it has had in hand for longest; its effect and its claim are one step."""
        if self.running:
            text, attempt = self.running.pop(0)
            task = json.loads(text)["task_id"]
            if self.claims.close(task, attempt, "done"):
                self.ran.append(task)
            self.server.client.lrem(UNACKED, 1, text)
            self._tell_claims()

    def dies(self) -> None:
        """A worker dies: the broker brings the message back, if it still has it."""
        if self.running:
            text, _ = self.running.pop()
            self.say(f"a worker dies with {text}")
            if self.server.client.lrem(UNACKED, 1, text):
                self.server.client.rpush(QUEUE, text)

    def copies(self) -> None:
        """The broker delivers a message again."""
        for text, _ in self.running[:1]:
            self.server.client.lpush(QUEUE, text)

    def sweeps(self) -> None:
        """The broker brings back whatever nobody has acknowledged for long."""
        while self.server.client.lmove(UNACKED, QUEUE, "RIGHT", "RIGHT") is not None:
            pass

    def _tell_claims(self) -> None:
        self.effects.highest = self.claims.floor()
        self.effects.claims = {
            identity: record.outcome is not None for identity, record in self.claims._records.items()
        }

    # --- what is seen

    def audit(self) -> list[dict[str, str]]:
        return [{"id": identity, **fields} for identity, fields in self.server.client.xrange(self.keys.audit)]

    def close(self) -> None:
        """End every thread."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.server.close)
            for beat in self.beats:
                stack.callback(beat.kill)
