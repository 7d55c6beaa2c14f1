"""The worker's side: a tick has its effect once, although its message is delivered at least once.

A guarded task claims its tick before it runs, by the tick's identity and in a store of its own (`claims`):

    claimed                  it runs; a thread extends the claim; at the end the claim is closed
    closed                   the tick was run to its end: the message is dropped, that is acknowledged and counted
    its message has expired  while a worker kept it ready: it is dropped as Celery drops it at its arrival, unclaimed
    held by another attempt  the message is put back on its queue under the same id, for when the lease is over: if that
                             worker dies, this message is all the broker still has
    store does not answer    unknown, so the same, some seconds later: a guarded tick never runs unguarded
    close refused at the end another attempt took over while this one was frozen: the same, the other one decides

How a run ends: a result closes as `succeeded`, an error that Celery calls a failure as `failed`, `Ignore` as `ignored`.
`self.retry` gives the claim back before its message is sent, and the retry takes it as the next attempt; so do a
requeueing `Reject` and the end of the process. A hard time limit closes as `failed` where Celery acknowledges it.

The claim goes by the tick, never by "its token is below the fence": what a former leader queued under its own term is
a good message. Messages without a tick in their headers, broadcasts, and calls in the same process run as ever.

May import: Celery, `claims`, `ticks`, the leaf modules. Must never know: who leads, what is due.
"""

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from celery import Celery, Task, current_task
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import worker_ready
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.request import Request

from fencebeat.claims.heartbeat import Heartbeat
from fencebeat.claims.opening import ClaimSettings, claims_of
from fencebeat.claims.port import ClaimStore, Closed, Running, Tick
from fencebeat.clock import Clock, system_clock
from fencebeat.errors import ClaimLost, FencebeatError, ImpossibleConfiguration, NotInPostgres, StoreUnreachable
from fencebeat.failpoints import failpoint
from fencebeat.history import record
from fencebeat.ticks import tick_id

log = logging.getLogger(__name__)

UNKNOWN_SECONDS = 5.0
"""After this time a message is tried again whose claim could not be asked."""

SOON_SECONDS = 0.1
"""Shortest time for which a message is put back: a worker must not turn on one message."""


@dataclass(frozen=True)
class CurrentTick(Tick):
    """The tick that this task runs, with its claim."""

    claim: "_Run | None" = field(default=None, repr=False, compare=False)

    @property
    def lost(self) -> bool:
        """Whether another attempt is known to have taken the claim: what this one does now should not count."""
        return self.claim is not None and self.claim.heartbeat.lost.is_set()

    def close(self, connection: Any, outcome: str = "succeeded") -> None:
        """Close the claim inside the transaction of `connection`, so that it commits with the effect or not at all.

        connection: psycopg, psycopg2 or Django, to the Postgres that `fencebeat_claims` names, with a transaction open
        (or not in autocommit). From here to its end nobody can take the claim over. After the commit the tick is done:
        whatever the task raises later, it does not run again.

        Raises ClaimLost where another attempt has the claim: let it pass, so that the transaction rolls back. Raises
        NoTransaction, and NotInPostgres where there is no claim or it is kept elsewhere.
        """
        close_in = getattr(self.claim.store, "close_in", None) if self.claim is not None else None
        if close_in is None:
            raise NotInPostgres(task_id=self.task_id)
        if not close_in(connection, self.task_id, self.attempt, outcome):
            raise ClaimLost(task_id=self.task_id, attempt=self.attempt)


_current: ContextVar[CurrentTick | None] = ContextVar("fencebeat_tick", default=None)


def current_tick() -> CurrentTick | None:
    """The tick whose task is running here: guarded or not. None where the task was not sent by the scheduler."""
    running = _current.get()
    if running is not None or not current_task:
        return running
    tick = tick_of(vars(current_task.request))
    return CurrentTick(tick.entry, tick.fire_time, tick.token, tick.task_id) if tick is not None else None


def tick_of(request: Mapping[str, Any]) -> Tick | None:
    """The tick that the headers of a message name, or None where they name none."""
    entry, fire_time, token = (request.get(f"fencebeat_{name}") for name in ("entry", "fire_time", "token"))
    if not isinstance(entry, str) or not isinstance(fire_time, int) or not isinstance(token, int):
        return None
    return Tick(entry, fire_time, token, str(request["id"]))


def holder_name(pid: int) -> str:
    """How a claim names the process that holds it."""
    return f"{socket.gethostname()}:{pid}"


@dataclass
class _Run:
    """One attempt, from its claim to its close."""

    task: Task
    tick: Tick
    store: ClaimStore
    settings: ClaimSettings
    heartbeat: Heartbeat = field(init=False)
    retried: bool = False  # its message is on the queue again, by the task's own wish
    clock: Clock = field(default_factory=system_clock)

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(
            lambda: self.store.extend(self.tick.task_id, self.tick.attempt, self.settings.lease),
            self.settings.beat_every,
        )

    def release(self) -> None:
        """Give the claim back, so that the next message takes it at once. Where that fails, after its lease."""
        self.heartbeat.stop()
        try:
            self.store.release(self.tick.task_id, self.tick.attempt)
        except FencebeatError as error:
            log.warning("tick %s: its claim ends with its lease, it was not given back: %s", _name(self.tick), error)

    def close(self, outcome: str) -> None:
        """Close the claim. Where another attempt has it, the message is put back and Ignore is raised.

        A store that does not answer is asked again until the lease would be over; then the effect stands, the claim is
        open, and a further copy of the message would run again.
        """
        deadline = self.clock.elapsed() + self.settings.lease
        failpoint("task.ack.before")
        while True:
            try:
                held = self.store.close(self.tick.task_id, self.tick.attempt, outcome)
            except FencebeatError as error:
                if not isinstance(error, StoreUnreachable) or self.clock.elapsed() > deadline:
                    log.exception("tick %s ran (%s), but its claim was not closed", _name(self.tick), outcome)
                    _say("claim.unclosed", self.tick, outcome=outcome)
                    return
                self.heartbeat.lost.wait(0.5)
            else:
                break
        if not held:
            log.warning("tick %s: attempt %d was taken over, so it does not count", _name(self.tick), self.tick.attempt)
            _say("claim.lost", self.tick, outcome=outcome)
            _put_back(self.task, self.tick, self._left())
        _say("claim.closed", self.tick, outcome=outcome)
        failpoint("task.ack.after")

    def _left(self) -> float:
        try:
            state = self.store.look([self.tick.task_id]).get(self.tick.task_id)
        except FencebeatError:
            return UNKNOWN_SECONDS
        return state.left if state is not None else 0.0


class GuardedRequest(Request):
    """Closes the claim of a task that its hard time limit has ended: the child can no longer do it."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """See `celery.worker.request.Request.on_timeout`; runs in the worker's main process."""
        if not soft and self.task.acks_on_timeout:
            self._close_as_failed()
        super().on_timeout(soft, timeout)

    def _close_as_failed(self) -> None:
        tick = tick_of(self.request_dict)
        if tick is None:
            return
        try:
            _, store = claims_of(self.app)
            state = store.look([tick.task_id]).get(tick.task_id)
            if state is not None and state.outcome is None and state.holder == holder_name(self.worker_pid):
                store.close(tick.task_id, state.attempt, "failed")
        except FencebeatError as error:
            log.warning("tick %s: its claim stays open after the time limit: %s", _name(tick), error)


class GuardedTask(Task):
    """A base for tasks whose ticks must have their effect once: `@app.task(base=GuardedTask)`.

    `fencebeat_claims` names the store. Acknowledges late, and asks for the message back when its process is lost: what
    a crash leaves is taken over, and the claim keeps it from running twice at a time. A broadcast is never guarded: its
    copies are meant to run once on each worker, and all have one id.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    Request = "fencebeat.guard:GuardedRequest"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Claim the tick, run, close the claim: see the module's text."""
        request = self.request
        tick = tick_of(vars(request))
        if tick is None or request.called_directly or request.is_eager or _current.get() is not None:
            return super().__call__(*args, **kwargs)
        if _is_broadcast(self.app, request.delivery_info or {}):
            return super().__call__(*args, **kwargs)
        if _expired(self.app, request.expires):
            log.info("tick %s has expired before it began: its message is dropped", _name(tick))
            raise Ignore
        run = self._claim(tick)
        token = _current.set(CurrentTick(**vars(run.tick), claim=run))
        try:
            with run.heartbeat:
                return self._run_claimed(run, args, kwargs)
        finally:
            _current.reset(token)

    def retry(self, *args: Any, throw: bool = True, **options: Any) -> Any:
        """See `celery.Task.retry`. Gives the claim back first, so that the retry finds it free."""
        tick = _current.get()
        run = tick.claim if tick is not None and tick.task_id == self.request.id else None
        if run is not None and throw:
            run.release()
        again = super().retry(*args, throw=throw, **options)
        if run is not None:
            run.retried = True
        return again

    def _claim(self, tick: Tick) -> _Run:
        """The claim, or Ignore: after dropping the message, or after putting it back."""
        failpoint("task.claim.before")
        try:
            settings, store = claims_of(self.app)
            answer = store.claim(tick, holder_name(os.getpid()), settings.lease)
        except FencebeatError as error:
            log.error("tick %s is put back, for nobody knows whether it ran: %s", _name(tick), error)  # noqa: TRY400 - it names the cause
            _say("claim.unknown", tick)
            _put_back(self, tick, UNKNOWN_SECONDS)
        if isinstance(answer, Running):
            log.info("tick %s is running elsewhere, so this message waits %.1f s", _name(tick), answer.left)
            _say("claim.postponed", tick, left=round(answer.left, 3))
            _put_back(self, tick, answer.left)
        if isinstance(answer, Closed):
            log.info("tick %s has run already (%s): this message is dropped", _name(tick), answer.outcome)
            _say("claim.duplicate", tick, outcome=answer.outcome)
            raise Ignore
        run = _Run(self, replace(tick, attempt=answer.attempt), store, settings)
        _say("claim.taken", run.tick)
        failpoint("task.claim.after")
        return run

    def _run_claimed(self, run: _Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = super().__call__(*args, **kwargs)
        except Retry:
            raise
        except Reject as error:
            if error.requeue:
                run.release()
            else:
                run.close("failed")
            raise
        except Ignore:
            run.close("ignored")
            raise
        except Exception:
            run.close("failed")
            raise
        except BaseException:  # this process ends; the message comes back
            run.release()
            raise
        if run.retried:  # by retry(throw=False): the tick ends with that message, not here
            run.release()
        else:
            run.close("succeeded")
        return result


def _expired(app: Celery, expires: Any) -> bool:
    """Whether the moment that a message names (ISO 8601, or a datetime) is over; by this host's clock, as Celery's."""
    if not expires:
        return False
    at: datetime = maybe_make_aware(maybe_iso8601(expires), app.timezone)
    return datetime.now(UTC) > at


def _is_broadcast(app: Celery, delivery: Mapping[str, Any]) -> bool:
    exchange = delivery.get("exchange")
    return bool(exchange) and any(
        queue.exchange.name == exchange and queue.exchange.type == "fanout" for queue in app.amqp.queues.values()
    )


def _put_back(task: Task, tick: Tick, seconds: float) -> NoReturn:
    """Send this message again for later, then let it be acknowledged: the broker always holds one of the two.

    The same id, arguments, headers, queue and priority, and the same count of retries: Celery's own `retry` would
    count it among the task's retries (and for it `max_retries=None` means the task's own limit), and would write RETRY
    over the result of the run that is going on. Raises Ignore, and Reject where the message could not be sent.
    """
    request = task.request
    message = task.signature_from_request(request, countdown=max(seconds, SOON_SECONDS), retries=request.retries)
    try:
        message.apply_async(add_to_parent=False)
    except Exception as error:
        log.exception("tick %s could not be put back: its message stays with the broker", _name(tick))
        raise Reject(error, requeue=True) from error
    raise Ignore


def is_guarded(app: Celery, task: str) -> bool:
    """Whether workers claim the ticks of this task. A task that is not known here is not."""
    return isinstance(app.tasks.get(task), GuardedTask)


def guarded_tasks(app: Celery) -> list[str]:
    """Names of the tasks that are guarded, in order."""
    return sorted(name for name, task in app.tasks.items() if isinstance(task, GuardedTask))


@worker_ready.connect
def _without_a_store(sender: Any, **_: Any) -> None:
    """Say at the start what each message would say: there is no store for the claims of guarded tasks."""
    names = guarded_tasks(sender.app)
    if not names:
        return
    try:
        claims_of(sender.app)
    except ImpossibleConfiguration as error:
        log.error("guarded tasks cannot run here, their ticks are put back: %s. %s", ", ".join(names), error)  # noqa: TRY400 - it names the cause


def guard(app: Celery, names: Iterable[str]) -> None:
    """Guard tasks that somebody else has written, by name; those that are registered later, too.

    Their classes get GuardedTask as first base, so that `isinstance` tells; they acknowledge late from now on. Call it
    where the application is made, after its configuration. A name that is never registered has no effect.
    """
    wanted = _Guarding(frozenset(names))
    given = app.conf.task_annotations
    app.conf.task_annotations = [wanted, *(given if isinstance(given, list | tuple) else [given] if given else [])]
    app.__dict__.pop("annotations", None)  # Celery keeps what it has read
    if app.finalized:
        for task in app.tasks.values():
            wanted.annotate(type(task))
            task.__trace__ = None


@dataclass(frozen=True)
class _Guarding:
    """An annotation as Celery knows them: asked for each task class when it is bound to the application."""

    names: frozenset[str]

    def annotate(self, task: type[Task]) -> None:
        """Change the class itself and answer nothing: Celery takes the first answer, and others may have one."""
        if task.name in self.names and not issubclass(task, GuardedTask):
            task.__bases__ = (GuardedTask, *task.__bases__)
            task.acks_late = GuardedTask.acks_late  # the application's defaults are set on the class by now
            task.reject_on_worker_lost = GuardedTask.reject_on_worker_lost

    def annotate_any(self) -> None:
        """Nothing for all tasks."""


def _name(tick: Tick) -> str:
    return f"{tick_id(tick.entry, tick.fire_time)} [{tick.task_id}]"


def _say(event: str, tick: Tick, **facts: Any) -> None:
    record(
        "event",
        event=event,
        entry=tick.entry,
        fire_time=tick.fire_time,
        task=tick.task_id,
        attempt=tick.attempt,
        **facts,
    )
