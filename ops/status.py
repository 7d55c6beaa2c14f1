"""One answer to: does it work, since when, what is late, who leads.

Each store is asked by itself, with its own time-out, and one that does not answer is a problem named in the answer, not
an end of it. So the application's wiring is not used here: it needs the embedder to know its target, and this page must
work when the embedder does not.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import httpx
import psycopg
from psycopg_pool import ConnectionPool

from config.settings import Settings, redacted
from control.switches import Switch, SwitchBoard
from fencebeat.clock import Clock, system_clock
from fencebeat.errors import FencebeatError
from index.ledger import Ledger, open_pool
from index.ledger.pool import connection
from ops import beats, schedules

LATE_SECONDS: Final = 10.0
"""A tick or a document is late after this much more than it may take: two leases or one sweep, with the defaults."""

STALE_SECONDS: Final = 300.0
"""Edits are to be searchable within 5 minutes."""

TOLD_SECONDS: Final = 86_400.0
"""For so long a loss of Redis is told, though it is over: somebody has to look at what may have been lost."""


@dataclass(frozen=True)
class Target:
    """A target in the ledger and what stands in it. oldest_dirty_seconds: how long the oldest edit has waited."""

    target_id: str
    kind: str
    state: str
    documents: int
    indexed: int
    dirty: int
    claimed: int
    dead: int
    absent: int
    chunks: int
    garbage: int
    oldest_dirty_seconds: float


@dataclass(frozen=True)
class Problem:
    """Something that is degraded: a word for its kind, which stays while its sentence may change, and since when.

    since: seconds since the epoch; None where nobody has watched it begin.
    """

    kind: str
    says: str
    since: float | None = None


@dataclass
class Status:
    """The answer. `problems`: what is degraded, in the order in which to look at it."""

    at: float
    leader: beats.Leader | None = None
    lost: beats.LostPast | None = None  # for a day after Redis lost its data; no problem any more
    entries: tuple[beats.EntryView, ...] = ()
    queues: dict[str, int] = field(default_factory=dict)
    schedule: schedules.Schedule | None = None  # None: Redis did not answer
    same_schedule: bool | None = None  # whether the leader's configuration is this one; None where nobody leads
    flags_fresh: bool = False
    stops: tuple[Switch, ...] = ()
    targets: tuple[Target, ...] = ()
    sources: tuple[dict[str, Any], ...] = ()
    dead_letters: dict[str, int] = field(default_factory=dict)
    doctor: dict[str, Any] | None = None
    embedder: str = "unknown"
    ledger_answered: bool = False
    problems: list[Problem] = field(default_factory=list)

    @property
    def degraded(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.problems)

    def notes(self) -> list[str]:
        """What a reader should know, though nothing is wrong."""
        told = schedules.notes(self.schedule, self.same_schedule) if self.schedule is not None else []
        if self.lost is not None:
            at = f"{datetime.fromtimestamp(self.lost.until, UTC):%Y-%m-%d %H:%M:%S} UTC"
            lost = f"{self.lost.ticks} ticks may have been lost"
            told.append(f"Redis had lost its data at {at}; {lost}: fencebeat schedule gaps")
        return told

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "status": "degraded" if self.degraded else "ok"}


class Observer:
    """Asks every store; for one command, or for a page that stays."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or system_clock()
        self._redis, self._keys = beats.client(settings)
        self.pool: ConnectionPool = open_pool(settings.postgres_url, timeout=settings.control_timeout, size=2)
        self._ledger = Ledger(self.pool)
        self._asking = ThreadPoolExecutor(4, thread_name_prefix="status")
        self._decisions = beats.Decisions()

    def close(self) -> None:
        """Close all connections."""
        self._asking.shutdown(wait=True, cancel_futures=True)
        self._redis.close()
        self.pool.close()

    def look(self) -> Status:
        """Ask all stores at once; none may hold the answer back longer than its time-out."""
        status = Status(at=self._clock.wall())
        questions: dict[str, Callable[[Status], list[Problem]]] = {
            "scheduler": self._scheduler,
            "ledger": self._documents,
            "target": self._target,
            "embedder": self._embedder,
        }
        for about, answer in [(about, self._asking.submit(ask, status)) for about, ask in questions.items()]:
            try:
                status.problems += answer.result()
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
                status.problems.append(Problem("ledger", "The ledger has no schema yet. Run: fencebeat migrate"))
            except FencebeatError as error:
                status.problems.append(Problem(about, redacted(error.what)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it and show the rest
                status.problems.append(Problem(about, redacted(f"{about}: {type(error).__name__}: {error}")))
        return status

    def decisions(self) -> dict[str, int]:
        """How many ticks had which outcome, from the audit stream. Raises StoreUnreachable."""
        return dict(self._decisions.read(self._redis, self._keys))

    @property
    def tick_lag_seconds(self) -> float | None:
        """Lag of the newest emitted tick that `decisions` has read."""
        return self._decisions.last_lag_seconds

    @cached_property
    def _digest(self) -> str:
        return schedules.configured_digest(self._settings)

    def _scheduler(self, status: Status) -> list[Problem]:
        seen = beats.look(
            self._redis, self._keys, lock_in_redis=self._settings.lock == "redis", queues=(self._settings.namespace,)
        )
        status.leader, status.entries, status.queues = seen.leader, seen.entries, seen.queues
        status.flags_fresh, status.schedule = seen.flags_fresh, seen.schedule
        if seen.leader is not None and seen.schedule.digest is not None:
            status.same_schedule = seen.schedule.digest == self._digest
        if seen.lost is not None and seen.now - seen.lost.until < TOLD_SECONDS:
            status.lost = seen.lost
        problems = []
        if seen.leader is None:
            says = "No beat leads, so nothing is scheduled. Start one: celery -A tasks beat -S fencebeat"
            problems.append(Problem("leader", says))
        elif seen.leader.overdue:
            says = f"The leader ({seen.leader.holder}) has stopped renewing its lease: it hangs, or is cut off."
            problems.append(Problem("leader", says))
        late = [f"{e.name} by {e.late_seconds:.0f} s" for e in seen.entries if e.late_seconds > LATE_SECONDS]
        if late:
            problems.append(Problem("ticks", f"Ticks are late: {', '.join(late)}."))
        problems += [Problem(*problem) for problem in schedules.problems(seen.schedule)]
        if not seen.flags_fresh:
            age = "are missing" if seen.flags is None else f"were last renewed {seen.flags.age_seconds:.0f} s ago"
            says = f"The switches in Redis {age}: they count as unknown, Postgres is asked instead."
            problems.append(Problem("switches", says))
        return problems

    def _documents(self, status: Status) -> list[Problem]:
        status.stops = tuple(SwitchBoard(self.pool).status())
        status.sources = tuple(self._ledger.sources())
        status.targets = tuple(self._targets())
        status.doctor = self._last_report()
        status.dead_letters = self._dead_letters()
        status.ledger_answered = True
        return _document_problems(status)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with connection(self.pool) as asked:
            return asked.execute(query.encode()).fetchall()

    def _targets(self) -> list[Target]:
        rows = self._rows(
            "SELECT t.target_id, t.kind, t.state, p.documents, p.indexed, p.dirty, p.claimed, p.dead, p.absent,"
            " p.chunks, p.garbage, coalesce(extract(epoch FROM clock_timestamp() - p.oldest_dirty), 0)::float"
            " FROM target t, target_progress(t.target_id) p ORDER BY t.created_at"
        )
        return [Target(*row) for row in rows]

    def _last_report(self) -> dict[str, Any] | None:
        rows = self._rows("SELECT at, report FROM doctor_report ORDER BY id DESC LIMIT 1")
        return {"at": rows[0][0].timestamp(), **rows[0][1]} if rows else None

    def _dead_letters(self) -> dict[str, int]:
        return dict(self._rows("SELECT fingerprint, count(*) FROM dead_letter GROUP BY 1 ORDER BY 2 DESC, 1"))

    def _target(self, _: Status) -> list[Problem]:
        if self._settings.target != "opensearch":
            return []  # pgvector is in the Postgres that is asked anyway
        from index.targets.connection import connect  # noqa: PLC0415 - the driver, only where it is the target

        try:
            connect(self._settings).info(request_timeout=self._settings.control_timeout)
        except Exception as error:  # noqa: BLE001 - the driver raises many kinds; all mean that it does not answer
            where = redacted(self._settings.opensearch_url)
            return [Problem("target", f"OpenSearch at {where} did not answer: {type(error).__name__}. Edits wait.")]
        return []

    def _embedder(self, status: Status) -> list[Problem]:
        address = self._settings.embedder_address
        status.embedder = ask_embedder(address, self._settings.control_timeout)
        if status.embedder == "ready":
            return []
        return [Problem("embedder", f"The embedder at {redacted(address)} is {status.embedder}. Edits wait.")]


def ask_embedder(address: str, timeout: float) -> str:
    """What the embedder says of itself: ready, loading, or unreachable."""
    socket = address.removeprefix("unix://") if address.startswith("unix://") else None
    transport = httpx.HTTPTransport(uds=socket) if socket else None
    base = "http://embedder" if socket else address
    try:
        with httpx.Client(transport=transport, base_url=base, timeout=timeout) as client:
            answer = client.get("/health")
        if answer.is_success or answer.status_code == 503:
            return str(answer.json().get("status", "ready"))
        return f"refusing ({answer.status_code})"  # noqa: TRY300 - the three answers belong together
    except (httpx.HTTPError, ValueError):
        return "unreachable"


def _document_problems(status: Status) -> list[Problem]:
    problems = []
    for stop in status.stops:
        until = "until it is lifted" if stop.until is None else f"until {stop.until:%Y-%m-%d %H:%M:%S %Z}"
        says = f"{stop.scope} is stopped at level {stop.level} by {stop.author} ({stop.reason}), {until}."
        problems.append(Problem(f"stop {stop.scope}", says, stop.since.timestamp()))
    for target in status.targets:
        name = target.target_id
        if target.state != "live":
            problems.append(Problem(f"lost {name}", f"Target {name} is {target.state}; it has to be rebuilt."))
        if target.oldest_dirty_seconds > STALE_SECONDS:
            says = f"An edit has waited {target.oldest_dirty_seconds:.0f} s for {name}."
            problems.append(Problem(f"stale {name}", says, status.at - target.oldest_dirty_seconds))
    for source in status.sources:
        name = f"{source['tenant_id']}/{source['source_id']}"
        if waiting := source["pending_deletes"]:
            says = f"{waiting} deletions in {name} wait for approval: fencebeat sync {source['source_id']} --approve"
            problems.append(Problem(f"approval {name}", says))
        if source["last_error"]:
            says = f"Source {name} could not be listed: {str(source['last_error']).splitlines()[0]}"
            problems.append(Problem(f"source {name}", says))
    if dead := sum(status.dead_letters.values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in status.dead_letters.items())
        problems.append(Problem("dead letters", f"{dead} documents failed for good: {kinds}."))
    if status.doctor and (differences := status.doctor.get("differences", 0)):
        problems.append(Problem("doctor", f"The last doctor found {differences} differences.", status.doctor["at"]))
    return problems
