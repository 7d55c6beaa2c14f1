"""The election drive: three beats, an entry each second; the leader is frozen in its commit twice and killed twice.

What must hold: every tick on the queue exactly once and none missing, by an oracle that only knows that the entry
fires each second; the order of tokens on the queue never falls; each frozen leader's commit was refused and counted;
after a SIGKILL the next message follows within lease + 0.5 s; `explain` tells the story of every tick.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from fencebeat.clock import SystemClock
from fencebeat.configuration import Configuration
from fencebeat.entries import read_schedule
from fencebeat.explain import explain
from fencebeat.firetimes import SECOND
from fencebeat.store import Store
from fencebeat.testing.beats import Beat, Cluster, Line, committed, elected, fenced
from fencebeat.ticks import task_id

ENTRY = "each-second"
FREEZE_AT = 5
"""The commit of a process in whose middle it freezes itself."""


@dataclass
class ElectionReport:
    """What a drive saw. `problems` is empty when everything held."""

    seconds: float
    lease: float
    ticks: int = 0
    missing: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    kills: int = 0
    freezes: int = 0
    refused: int = 0  # stale commits that the store counted
    takeover_seconds: list[float] = field(default_factory=list)  # SIGKILL to the next message on the queue
    terms: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "ok": self.ok}


def drive_election(
    folder: Path,
    redis_url: str,
    *,
    namespace: str,
    seconds: float = 60.0,
    lease: float = 2.0,
    task: str = "drive.work",
    settings: dict[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ElectionReport:
    """Run the drive against the database at `redis_url`, whose queue `namespace` it uses.

    seconds: at least that long; two freezes and two kills have to fit. task: what the messages ask for; nobody may
    take them from the queue before the end. settings: of the Celery application, for example `fencebeat_lock`.
    environment: of the beats, beside this process's. say: told each step.
    Raises `beats.NotSeen` when something that must happen does not.
    """
    line = {"task": task, "schedule": 1.0, "options": {"queue": namespace}, "fencebeat": {"catchup": "all"}}
    conf = {
        "fencebeat_namespace": namespace,
        "fencebeat_lease": lease,
        "beat_schedule": {ENTRY: line},
        **(settings or {}),
    }
    with Cluster(folder, redis_url, conf, environment) as cluster:
        drive = _Drive(cluster, ElectionReport(seconds, lease), say)
        drive.run()
        _check(cluster, drive.report, redis_url, namespace, conf)
    return drive.report


class _Drive:
    def __init__(self, cluster: Cluster, report: ElectionReport, say: Callable[[str], None]) -> None:
        self.cluster, self.report, self._say = cluster, report, say
        self._clock = SystemClock()
        self._thawed: set[str] = set()

    def run(self) -> None:
        for _ in range(3):
            self.cluster.start_beat(failpoints=f"beat.commit.before=stop@{FREEZE_AT}")
        first = self.cluster.wait_for(committed, 30)
        self._say(f"{first['proc']} leads and emits")
        started = self._clock.elapsed()
        while self._unfinished(started):
            frozen = self._frozen()
            if frozen is not None:
                self._outlive(frozen)
            elif self.report.freezes >= 2 and self.report.kills < 2:
                self._kill()
            else:
                self._another_second()
        for beat in self.cluster.beats:
            if beat.alive:
                beat.stop()

    def _unfinished(self, started: float) -> bool:
        report = self.report
        if report.freezes < 2 or report.kills < 2 or self._clock.elapsed() - started < report.seconds:
            return True
        return self._frozen() is not None

    def _frozen(self) -> tuple[Beat, float] | None:
        """A beat that froze in the middle of its commit, and when."""
        for line in self.cluster.lines():
            if line["kind"] == "failpoint" and line["proc"] not in self._thawed:
                return self.cluster.beat(line["proc"]), line["t"]
        return None

    def _outlive(self, frozen: tuple[Beat, float]) -> None:
        beat, since = frozen
        self._thawed.add(beat.name)
        if not beat.alive:
            return
        beat.wait_until_frozen()
        self._say(f"{beat.name} is frozen in the middle of its commit")
        successor = self.cluster.wait_for(lambda line: committed(line) and line["proc"] != beat.name, 20, since)
        until = since + 2 * self.report.lease
        self.cluster.poll(lambda: self._clock.elapsed() >= until, 3 * self.report.lease, "time stood still")
        beat.thaw()
        beat.wait_for(fenced, 15, since)
        self.report.freezes += 1
        self._say(f"{successor['proc']} took over; the commit of {beat.name} was refused when it woke")

    def _kill(self) -> None:
        leader = self._leader()
        mine = self._clock.elapsed()

        def acts_or_freezes() -> bool:
            recent = (line for line in self.cluster.lines() if line["t"] > mine and line["proc"] == leader.name)
            return self._frozen() is not None or any(committed(line) for line in recent)

        self.cluster.poll(acts_or_freezes, 15, f"{leader.name} leads and does not emit")
        if self._frozen() is not None:  # it reached its failpoint first
            return
        at = self._clock.elapsed()
        leader.kill()
        self.report.kills += 1
        then = self.cluster.wait_for(lambda line: committed(line) and line["proc"] != leader.name, 30, at)
        self.report.takeover_seconds.append(round(then["t"] - at, 3))
        self._say(f"{leader.name} was killed; {then['proc']} emitted {then['t'] - at:.2f} s later")
        self.cluster.start_beat()

    def _leader(self) -> Beat:
        terms: list[Line] = [line for line in self.cluster.lines() if elected(line)]
        return self.cluster.beat(max(terms, key=lambda line: line["token"])["proc"])

    def _another_second(self) -> None:
        now = self._clock.elapsed()
        self.cluster.poll(
            lambda: self._clock.elapsed() - now >= 0.5 or self._frozen() is not None, 5, "time stood still"
        )


def _check(cluster: Cluster, report: ElectionReport, redis_url: str, namespace: str, conf: dict[str, Any]) -> None:
    """Judge by what the store says. The oracle: the entry fires at every whole second."""
    with redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=10, socket_connect_timeout=10) as client:
        queued = [json.loads(text)["headers"] for text in reversed(client.lrange(namespace, 0, -1))]
        app = Celery("judge", broker=redis_url, set_as_current=False)
        app.conf.update(conf)
        configuration = Configuration.of(app)
        store = Store(client, configuration.keys)
        entries, _ = read_schedule(conf["beat_schedule"], lease=report.lease)
        audit = list(store.audit())
        counted = Counter(int(headers["fencebeat_fire_time"]) for headers in queued)
        problems = report.problems
        report.ticks = len(counted)
        report.duplicated = sorted(at for at, times in counted.items() if times > 1)
        terms = [fields for _, fields in audit if fields["outcome"] == "elected"]
        report.terms = len(terms)
        report.refused = sum(fields["outcome"] == "fenced" for _, fields in audit)
        expected = range(min(counted), max(counted) + 1, SECOND) if counted else range(0)
        report.missing = [at for at in expected if at not in counted]
        tokens = [int(headers["fencebeat_token"]) for headers in queued]
        stories = [explain(store, namespace, entries, ENTRY, at) for at in counted]
    sent = {line["id"]: line for line in cluster.lines() if line["kind"] == "call"}
    first_elected = min(int(fields["token"]) for fields in terms)
    rules = (
        (not report.missing, f"ticks are missing: {report.missing}"),
        (not report.duplicated, f"ticks are on the queue twice: {report.duplicated}"),
        (set(counted) <= set(expected), "ticks at times that are no whole second"),
        (report.ticks >= report.seconds, f"only {report.ticks} ticks in {report.seconds} s"),
        (expected and expected[0] - first_elected < 3 * SECOND, "the first ticks are missing"),
        (tokens == sorted(tokens), "a message of an older term was queued after one of a newer term"),
        (all(h["id"] == task_id(namespace, ENTRY, h["fencebeat_fire_time"]) for h in queued), "a foreign task id"),
        (report.refused >= report.freezes >= 2, f"{report.freezes} freezes, {report.refused} refusals counted"),
        (report.kills >= 2, f"only {report.kills} leaders were killed"),
        (
            all(took <= report.lease + 0.5 for took in report.takeover_seconds),
            f"takeovers took {report.takeover_seconds} s, the lease is {report.lease} s",
        ),
        (bool(sent), "no commit is in the history"),
        (
            all(s.outcome == "emitted" and s.token and s.message_id and s.holder for s in stories),
            "`explain` cannot tell the story of every tick",
        ),
    )
    problems.extend(sentence for holds, sentence in rules if not holds)
