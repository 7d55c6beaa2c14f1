"""How Celery drives the scheduler: `celery -A proj beat -S fencebeat`.

    Celery                        here
    constructs it twice           `__init__` opens nothing and starts no thread
    builds the real one           `setup_schedule`: configuration and entries are checked; what cannot work is refused
    calls tick() for ever         the first call starts the elector; each call says that the tick thread goes round,
                                  runs one round where this process leads, waits at most 1 s on its mail, returns 0
                                  (a sleep of Celery's own could not be woken by a lost term or a new one)
    SIGTERM: calls close() in     close() only resigns and waits for the elector's thread; it takes no lock and uses no
    the handler, then again       connection of the tick's, so it may interrupt it anywhere

A standby does the same without rounds, so `inspect ping`, status and shutdown work on it. A lost term, an unreachable
store, an entry that raises: states of the process, never its end.
"""

import gc
import logging
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from billiard.process import current_process
from celery import Celery, beat

from fencebeat import failpoints
from fencebeat.clock import system_clock
from fencebeat.configuration import Configuration
from fencebeat.connection import PolicyWatch, clock_refusal, examine
from fencebeat.copying import AuditCopier
from fencebeat.elector import Elector, State
from fencebeat.entries import Entry, lines_of, read_schedule
from fencebeat.errors import (
    ClockRefused,
    FencebeatError,
    Fenced,
    ImpossibleConfiguration,
    StoreUnknown,
    StoreUnreachable,
)
from fencebeat.flagmemory import FlagMemory
from fencebeat.flags import FlagKeeper
from fencebeat.history import record
from fencebeat.jumps import JumpWatch
from fencebeat.lease import Term
from fencebeat.outbox import Publisher
from fencebeat.outbox_capture import OutboxRenderer
from fencebeat.overlap import Overlap
from fencebeat.recovery import Recovery
from fencebeat.render import Renderer
from fencebeat.requests import Requests
from fencebeat.rounds import Rounds
from fencebeat.schedule_watch import ScheduleWatch
from fencebeat.store import Store
from fencebeat.templates import AGE
from fencebeat.watchdog import Watchdog

log = logging.getLogger(__name__)

SLICE = 1.0
"""Longest wait of one tick, in seconds."""
IDLE = 0.02
"""Seconds of one idle turn in which templates are made: no election and no tick waits for longer."""


class Scheduler(beat.Scheduler):
    """The scheduler of one beat process. See the module docstring; its parts are in `Election` and `rounds.Rounds`."""

    max_interval = 1  # what Celery is told: it derives from it when a silent beat counts as stalled

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._configuration: Configuration | None = None
        self._entries: dict[str, Entry] = {}
        self._election: Election | None = None
        self._closed = False
        super().__init__(app, *args, **kwargs)
        self.max_interval = Scheduler.max_interval  # beat_max_loop_interval must not slow the election down

    def setup_schedule(self) -> None:
        """Check everything that needs no server. Raises ImpossibleConfiguration, one sentence for each broken rule."""
        _refuse_embedded()
        failpoints.arm()
        configuration = Configuration.of(self.app)
        self.app.finalize()  # else `send_task` silently drops a task's time limits
        entries, refused = read_schedule(lines_of(self.app), zone=configuration.zone, lease=configuration.timing.lease)
        if refused:
            raise ImpossibleConfiguration(rules=" ".join(error.what for error in refused))
        self._configuration, self._entries = configuration, entries

    @property
    def info(self) -> str:
        """For Celery's banner."""
        try:
            facts = (self._configuration or Configuration.of(self.app)).describe()
        except ImpossibleConfiguration as error:
            raise SystemExit(str(error)) from None  # before anything runs: its sentences, not a traceback of Celery's
        return "\n".join(f"    . {name} -> {value}" for name, value in facts.items())

    @property
    def state(self) -> State | None:
        """What this process is now; None before its first tick."""
        return self._election.elector.state if self._election is not None else None

    def tick(self, *_: Any, **__: Any) -> float:
        """One turn of the loop; always 0. Raises ImpossibleConfiguration for a store that can never be led from."""
        if self._closed:
            return 0.0
        if self._election is None:
            if self._configuration is None:
                self.setup_schedule()
            self._election = Election(self.app, self._configured, self._entries)
            self._election.start()
        self._election.turn()
        return 0.0

    @property
    def _configured(self) -> Configuration:
        if self._configuration is None:
            raise ImpossibleConfiguration(rules="the scheduler was not set up.")
        return self._configuration

    def should_sync(self) -> bool:
        """Never: each commit has already written what there is."""
        return False

    def close(self) -> None:
        """Resign and stop. Safe inside a signal handler; called again it does nothing."""
        self._closed = True
        if self._election is not None:
            self._election.stop()


class Election:
    """One started scheduler: the elector, what keeps the flags and copies the audit, the rounds, the mail."""

    def __init__(self, app: Celery, configuration: Configuration, entries: dict[str, Entry]) -> None:
        self._clock = system_clock()
        self._configuration = configuration
        self._fatal: ImpossibleConfiguration | None = None
        self._examined = False
        self._stopped = False
        self._complaint = ""
        self._term: Term | None = None
        self._mail: SimpleQueue[None] = SimpleQueue()
        timing, keys, broker = configuration.timing, configuration.keys, configuration.broker
        lock, effects = configuration.make_lock(), configuration.make_effects()
        self._permits = broker.client(timing.call_timeout, name="fencebeat-permit")
        self._policy = PolicyWatch(self._permits, self._clock)
        self._jumps = JumpWatch(self._clock)
        self.keeper = (
            FlagKeeper(effects, broker.client(timing.call_timeout, name="fencebeat-flags"), keys) if effects else None
        )
        self.copier = (
            AuditCopier(effects, broker.client(timing.call_timeout, name="fencebeat-audit"), keys) if effects else None
        )
        self.memory: FlagMemory | None = None
        if effects is None:
            remembering = broker.client(timing.call_timeout, name="fencebeat-flags")
            self.memory = FlagMemory(remembering, keys, on_unknown=configuration.on_unknown)
        recovering = broker.client(timing.call_timeout, name="fencebeat-recover")
        self.elector = Elector(
            lock,
            timing,
            clock=self._clock,
            floor=effects.floor if effects is not None else None,
            permit=self._permit,
            prepare=Recovery(
                recovering,
                keys,
                carrier=lock.carrier,
                effects=effects,
                keeper=self.keeper,
                memory=self.memory,
                renew=lock.renew,
            ),
            wake=lambda: self._mail.put(None),
            watchdog=Watchdog(),
        )
        self.publisher: Publisher | None = None
        fast = self._clock if configuration.fast_path else None
        self._renderer = Renderer(app, configuration.namespace, timing.call_timeout, fast=fast)
        self._unprepared: Iterator[Entry] = iter(entries.values())
        self._entries, self._prepared = entries, self._clock.elapsed()
        if configuration.outbox:
            self._renderer = OutboxRenderer(
                app, configuration.namespace, timing.call_timeout, key=keys.outbox, fast=fast
            )
            self.publisher = Publisher.of(
                app,
                configuration,
                clock=self._clock,
                leading=self.elector.leading,
                flags_generation=lambda: self.keeper.generation if self.keeper is not None else None,
                carrier=lock.carrier,
            )
        client = broker.client(timing.call_timeout, name="fencebeat-ticks")
        self.rounds = Rounds(
            Store(client, keys, carrier=lock.carrier, tolerance=configuration.tolerance),
            self._renderer,
            entries,
            clock=self._clock,
            jumps=self._jumps,
            tolerance=configuration.tolerance,
            leading=self.elector.leading,
            extended=self.elector.extended,
            flags_generation=self._flags_generation,
            overlap=Overlap(app, client, keys, configuration.overlap_wait),
            requests=Requests(
                client,
                keys,
                self._renderer,
                carrier=lock.carrier,
                clock=self._clock,
                tolerance=configuration.tolerance,
                flags_generation=self._flags_generation,
            ),
        )

        self._schedule = ScheduleWatch(client, keys, self.rounds.memory)

    def _flags_generation(self) -> int | None:
        return self.keeper.generation if self.keeper is not None else None

    def start(self) -> None:
        """Start the threads. The campaign begins with the first turn."""
        self.rounds.memory.digest  # noqa: B018 - now: with 100,000 entries it takes seconds, and nobody waits yet
        gc.collect()
        gc.freeze()  # configuration and entries stay for good: looking through them again and again stops everything
        if self.keeper is not None:
            self.keeper.start()
        if self.copier is not None:
            self.copier.start()
        if self.memory is not None:
            self.memory.start()
        if self.publisher is not None:
            self.publisher.start()
        self.elector.start()

    def turn(self) -> None:
        """One turn of the tick thread: a round where this process leads, then a wait of at most a second."""
        if self._fatal is not None:
            raise self._fatal
        self.elector.progress()
        term = self.elector.leading()
        if term != self._term:
            self.rounds.forget()
            self._term = term
        seconds = self._stand_by() if term is None else self._round(term)
        if seconds > 0 and not self._stopped:
            self._wait(min(seconds, SLICE) if seconds < 2 * IDLE or self._prepare() else IDLE)

    def _stand_by(self) -> float:
        """A turn without a term; returns how long to wait."""
        if self.elector.state.reason == "another_leads":
            try:
                self._schedule.look()
            except StoreUnreachable as error:
                log.debug("the schedule in force is not known now: %s", error.what)
        return SLICE

    def _prepare(self) -> bool:
        """Make templates for a moment, so that a takeover is warm; returns whether there are no more to make.

        Only where the store answers: waiting for it here would delay the first round of a term.
        """
        templates, state = self._renderer.templates, self.elector.state
        if templates is None or not (state.state == "leading" or state.reason == "another_leads"):
            return True
        if self._clock.elapsed() - self._prepared > AGE / 2:
            self._unprepared, self._prepared = iter(self._entries.values()), self._clock.elapsed()
        try:
            return templates.prepare(self._unprepared, IDLE)
        except StoreUnreachable as error:
            log.debug("templates are not made now: %s", error.what)
            return True

    def _round(self, term: Term) -> float:
        """One round; returns how long to wait. Everything that can go wrong here is a state, not an end."""
        try:
            if self.publisher is not None:
                self.publisher.wake()  # what the round before has committed
                self.publisher.check_room()
            seconds = self.rounds.run(term)
        except Fenced as error:
            record("event", event="fence.rejected", token=term.token)
            return self._give_up(term, "fenced", error)
        except StoreUnknown as error:
            return self._give_up(term, "store_unknown", error)
        except ClockRefused as error:
            return self._give_up(term, "clock", error)
        except StoreUnreachable as error:
            self._complain(error)
            return min(SLICE, self._configuration.timing.renew_every / 4)
        except FencebeatError as error:  # a damaged record, a clock that jumped: nothing is emitted until it is mended
            self._complain(error)
            return SLICE
        self._complaint = ""
        return seconds

    def _give_up(self, term: Term, reason: str, error: FencebeatError) -> float:
        log.warning("%s", error.what)
        self.elector.lost(term, reason)
        return 0.0

    def _complain(self, error: FencebeatError) -> None:
        """Log a lasting trouble once, not once a second."""
        if error.what != self._complaint:
            log.error("%s", error)
        self._complaint = error.what

    def _permit(self) -> str | None:
        """Why this process may not lead now; called in the elector's thread, on a connection of its own."""
        if not self._examined:
            limits = float("inf")  # the clock is looked at each time, below: it may become right again
            report = examine(
                self._permits, self._clock, tolerance=limits, allow_eviction=self._configuration.allow_eviction
            )
            for warning in report.warnings:
                log.warning("%s", warning)
            if report.refusals:
                self._fatal = ImpossibleConfiguration(rules=" ".join(report.refusals))
                self._mail.put(None)
                return "refused"
            self._examined = True
        self._policy.look()
        return clock_refusal(self._permits, self._clock, self._configuration.tolerance, self._jumps)

    def _wait(self, seconds: float) -> None:
        try:
            self._mail.get(timeout=seconds)
            while True:
                self._mail.get_nowait()
        except Empty:
            return

    def stop(self) -> None:
        """Resign and end the threads. May interrupt `turn` anywhere: it shares nothing with it but flags and mail."""
        self._stopped = True
        self._mail.put(None)
        if self.publisher is not None:
            self.publisher.stop()  # while the term is still ours
        self.elector.stop()


def _refuse_embedded() -> None:
    """`celery worker -B` starts a beat inside a worker: its freezes and deaths would be the worker's."""
    if isinstance(threading.current_thread(), beat._Threaded) or isinstance(  # noqa: SLF001 - Celery has no other sign
        current_process(),
        beat._Process or (),  # noqa: SLF001 - None where there are no processes
    ):
        raise ImpossibleConfiguration(
            rules="fencebeat does not run inside a worker (celery worker -B). Start it apart: celery beat -S fencebeat."
        )
