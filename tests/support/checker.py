"""Judges a run by its history file and by what the stores themselves say; it shares no decision with the product.

    heal ──▶ rest ──▶ read, twice the same ──▶ check: one function for each invariant ──▶ report

A verdict is *holds*, *broken* with the smallest evidence, or *unknown* with the reason. Unknown is not holds. A call in
the history without a return is unknown: both of its outcomes are accepted. A run whose fault did not bite proves
nothing: see `failpoint_bit`, `leader_changed`, `at_least`, `proxy_cut`.

    told = Told.read(history_path, client, keys, oracles={"each-second": every(1.0)}, queues=["q"])
    report = judge(told, seed=17, command="make chaos SEEDS=1")
    assert report.ok, report.text()
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fencebeat import history
from fencebeat.clock import SystemClock

SECOND = 1_000_000
STOP_WITHIN = 2.0
"""Seconds within which a stop must be in force (I8)."""
LOSSES = frozenset({"flush", "data_lost", "failover"})
"""`action` of a fault line after which the broker may have forgotten what it said."""
COPIED = "copied"
"""`action` of a fault line with `task_id`: the test itself put a further copy of that message on the queue."""

Line = Mapping[str, Any]
Oracle = Callable[[int, int], Sequence[int]]
"""(after, up to) -> the fire times in between, the second included; microseconds since the epoch, ascending."""


@dataclass(frozen=True)
class Verdict:
    """What one check found. `evidence`: the smallest that shows it, or the reason why it cannot be known."""

    invariant: str
    state: Literal["holds", "broken", "unknown"]
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Message:
    """A message as it lay on a queue."""

    task_id: str
    entry: str
    fire_time: int
    token: int


@dataclass(frozen=True)
class Claim:
    """The record of one tick's claim."""

    task_id: str
    closed: bool
    outcome: str = ""
    attempt: int = 1


@dataclass(frozen=True)
class Told:
    """Everything a run left. What is None was not observed, and checks that need it answer `unknown`.

    audit: the stream's records, oldest first. messages: *all* that was ever queued, oldest first (nobody took any).
    effects: task ids in the order in which tasks ran to their end, one for each run. oracles: entry -> fire times.
    since, until: the time, in microseconds, within which every tick must have an outcome. status: lines of a poller.
    """

    history: Sequence[Line] = ()
    audit: Sequence[Mapping[str, str]] = ()
    messages: Sequence[Message] | None = None
    claims: Mapping[str, Claim] | None = None
    effects: Sequence[str] | None = None
    oracles: Mapping[str, Oracle] = field(default_factory=dict)
    since: int = 0
    until: int = 0
    audit_is_whole: bool = True  # nothing was trimmed, and no loss took records that no copy has

    @classmethod
    def read(
        cls,
        path: Path,
        client: Any,
        keys: Any,
        *,
        oracles: Mapping[str, Oracle],
        queues: Iterable[str] = (),
        **more: Any,
    ) -> "Told":
        """Read history, audit and queues; twice, until two readings agree. `client` answers in text.

        since is the first fire time decided and until the last, unless `more` says otherwise.
        """
        for _ in range(20):
            first, second = _stores(client, keys, queues), _stores(client, keys, queues)
            if first == second:
                break
        else:
            raise AssertionError("the stores do not come to rest: two readings differ again and again")
        audit, messages = first
        times = [int(r["fire_time"]) for r in audit if r["outcome"] in DECIDED and r.get("entry") in oracles]
        facts: dict[str, Any] = {"since": min(times, default=1) - 1, "until": max(times, default=0)}
        return cls(
            history=list(history.read(path)),
            audit=audit,
            messages=messages if queues else None,
            oracles=oracles,
            **{**facts, **more},
        )


DECIDED = frozenset({"emitted", "unroutable", "paused", "skipped", "superseded", "changed", "gap", "resumed"})
"""Outcomes of audit records that close ticks."""
_ACTS = frozenset({"emitted", "unroutable", "paused", "skipped", "superseded"})
"""Outcomes that a commit wrote under the record's token."""


def _stores(client: Any, keys: Any, queues: Iterable[str]) -> tuple[list[dict[str, str]], list[Message]]:
    audit = [{"id": identity, **fields} for identity, fields in client.xrange(keys.audit)]
    messages = []
    for queue in queues:
        for text in reversed(client.lrange(queue, 0, -1)):
            headers = json.loads(text)["headers"]
            if "fencebeat_fire_time" in headers:
                fire_time, token = int(headers["fencebeat_fire_time"]), int(headers["fencebeat_token"])
                messages.append(Message(headers["id"], headers["fencebeat_entry"], fire_time, token))
    return audit, messages


def every(seconds: float, anchor: float = 0.0) -> Oracle:
    """The fire times of an interval, by arithmetic alone."""
    step, start = round(seconds * SECOND), round(anchor * SECOND)

    def times(after: int, up_to: int) -> range:
        return range(start + ((after - start) // step + 1) * step, up_to + 1, step)

    return times


# --- what the history says


@dataclass(frozen=True)
class Commit:
    """One commit as the process that sent it saw it. `outcomes` is None where no answer came: unknown."""

    proc: str
    token: int
    called: float
    returned: float | None
    ticks: tuple[str, ...]
    outcomes: tuple[str, ...] | str | None

    @property
    def accepted(self) -> bool:
        """Whether the store said that it decided the batch."""
        return isinstance(self.outcomes, tuple)


def commits(lines: Iterable[Line]) -> list[Commit]:
    """The commits of a history, in the order in which they were called. Ids count anew in each process."""
    returns: dict[tuple[str, int, str], Line] = {}
    calls: list[Line] = []
    for line in lines:
        if line.get("op") != "commit":
            continue
        if line["kind"] == "call":
            calls.append(line)
        elif line["kind"] == "return":
            returns.setdefault((line["proc"], line.get("pid", 0), line["id"]), line)
    made = []
    for call in sorted(calls, key=lambda line: line["t"]):
        answer = returns.get((call["proc"], call.get("pid", 0), call["id"]))
        said = answer["outcome"] if answer else None
        outcomes = tuple(said) if isinstance(said, list) else said
        returned = answer["t"] if answer else None
        made.append(Commit(call["proc"], call["token"], call["t"], returned, tuple(call.get("ticks", ())), outcomes))
    return made


def faults(lines: Iterable[Line], *actions: str) -> list[Line]:
    """The fault lines with one of these actions; all of them where none is named."""
    return [line for line in lines if line["kind"] == "fault" and (not actions or line.get("action") in actions)]


# --- a run whose fault did not bite proves nothing


def failpoint_bit(lines: Iterable[Line], name: str, times: int = 1) -> None:
    """Raises AssertionError unless failpoint `name` acted at least `times` times."""
    seen = sum(line["kind"] == "failpoint" and line.get("name") == name for line in lines)
    assert seen >= times, f"proves nothing: failpoint {name} acted {seen} times, not {times}"


def leader_changed(lines: Iterable[Line], after: float, times: int = 1) -> None:
    """Raises AssertionError unless at least `times` terms began later than `after` (CLOCK_BOOTTIME)."""
    terms = {line["token"] for line in lines if line.get("event") == "term.elected" and line["t"] > after}
    assert len(terms) >= times, f"proves nothing: {len(terms)} terms began after {after}, not {times}"


def at_least(effects: int, wanted: int, what: str) -> None:
    """Raises AssertionError when fewer effects happened than the scenario names."""
    assert effects >= wanted, f"proves nothing: only {effects} of {wanted} {what}"


def proxy_cut(cuts: int, times: int = 1) -> None:
    """Raises AssertionError unless the fault proxy cut, held or refused something at least `times` times."""
    assert cuts >= times, f"proves nothing: the proxy cut {cuts} connections, not {times}"


# --- one function for each invariant


def i1a(told: Told) -> Verdict:
    """Each tick is emitted at most once while the broker keeps its data: a recovery (`gap`) begins another life."""
    if not told.audit:
        return Verdict("I1a", "unknown", ("there is no audit",))
    lives: list[Counter[tuple[str, str]]] = [Counter()]
    for record in told.audit:
        if record["outcome"] == "gap" and "entry" not in record:
            lives.append(Counter())
        elif record["outcome"] == "emitted":
            tick = (record["entry"], record["fire_time"])
            lives[-1][tick] += 1
            if lives[-1][tick] > 1:
                return Verdict("I1a", "broken", (f"emitted twice: {tick[0]}@{tick[1]}, again as {record.get('id')}",))
    copied = Counter(line.get("task_id") for line in faults(told.history, COPIED))
    queued = Counter(message.task_id for message in told.messages or ())
    for task_id, times in queued.items():
        if times - copied[task_id] > len(lives):
            return Verdict("I1a", "broken", (f"{times} messages on the queue for task {task_id}",))
    return Verdict("I1a", "holds")


def i1b(told: Told) -> Verdict:
    """Each tick is run to its end at most once, whatever was delivered again."""
    if told.effects is None:
        return Verdict("I1b", "unknown", ("no effects were observed",))
    ran = Counter(told.effects)
    for task_id, times in ran.items():
        if times > 1:
            return Verdict("I1b", "broken", (f"task {task_id} ran to its end {times} times",))
    if told.claims is not None:
        for task_id in ran:
            if task_id not in told.claims:
                return Verdict("I1b", "broken", (f"task {task_id} ran without a claim",))
    return Verdict("I1b", "holds")


def i2(told: Told) -> Verdict:
    """Each tick has a recorded outcome, and each record is about ticks that the oracle knows."""
    if not told.oracles:
        return Verdict("I2", "unknown", ("no oracle knows the entries",))
    for entry, oracle in told.oracles.items():
        records = [r for r in told.audit if r.get("entry") == entry and r["outcome"] in DECIDED]
        verdict = _foreign(entry, oracle, records) or _missing(told, entry, oracle, records)
        if verdict is not None:
            return verdict
    return _without_message(told) or Verdict("I2", "holds")


def _run(record: Mapping[str, str]) -> tuple[int, int]:
    """The first and last fire time that a record closes; an edit's begins at a mark, which was decided before."""
    last = int(record["fire_time"])
    return int(record.get("first") or last), last


def _foreign(entry: str, oracle: Oracle, records: Iterable[Mapping[str, str]]) -> Verdict | None:
    """A record about ticks that there are not."""
    for record in records:
        first, last = _run(record)
        if record["outcome"] in ("emitted", "unroutable", "paused") and not oracle(last - 1, last):
            return Verdict("I2", "broken", (f"{entry}@{last} was {record['outcome']}, and is no fire time",))
        if record["outcome"] in ("skipped", "superseded") and "count" in record:
            there = len(oracle(first - 1, last))
            if there != int(record["count"]):
                said = f"{entry}: a run of {record['count']} from {first} to {last} covers {there} fire times"
                return Verdict("I2", "broken", (said,))
    return None


def _missing(told: Told, entry: str, oracle: Oracle, records: Iterable[Mapping[str, str]]) -> Verdict | None:
    """A fire time without a record."""
    runs = [_run(record) for record in records]
    single = {last for first, last in runs if first == last}
    longer = [run for run in runs if run[0] != run[1]]
    missing = [
        at
        for at in oracle(told.since, told.until)
        if at not in single and not any(first <= at <= last for first, last in longer)
    ]
    if not missing:
        return None
    if not told.audit_is_whole:
        return Verdict("I2", "unknown", (f"{entry}@{missing[0]} has no record, and some records are gone",))
    return Verdict("I2", "broken", (f"{entry}@{missing[0]} has no outcome", f"{len(missing)} such ticks"))


def _without_message(told: Told) -> Verdict | None:
    """A record of an emission whose message was never on the queue; after a loss nobody can tell."""
    if told.messages is None or faults(told.history, *LOSSES):
        return None
    queued = {(message.entry, message.fire_time) for message in told.messages}
    for record in told.audit:
        tick = (record.get("entry", ""), int(record.get("fire_time") or 0))
        if record["outcome"] == "emitted" and tick[0] in told.oracles and tick not in queued:
            return Verdict("I2", "broken", (f"{tick[0]}@{tick[1]} is recorded as emitted and not on the queue",))
    return None


def i3(told: Told) -> Verdict:
    """Fences only rise: each term's number is above every earlier one, and no accepted number falls."""
    if not told.audit:
        return Verdict("I3", "unknown", ("there is no audit",))
    highest, nonce = -1, ""
    for record in told.audit:
        if record["outcome"] == "elected":
            token = int(record["token"])
            if token <= highest:
                return Verdict("I3", "broken", (f"term {token} began after {highest}", f"record {record.get('id')}"))
            highest, nonce = token, record.get("nonce", "")
        elif record["outcome"] in _ACTS and record.get("token"):
            token = int(record["token"])
            if token < highest:
                return Verdict("I3", "broken", (f"{record['outcome']} under {token} after {highest} ({nonce})",))
            highest = token
    return _rises_across_losses(told) or Verdict("I3", "holds")


def _rises_across_losses(told: Told) -> Verdict | None:
    """A commit that was called after a loss and accepted belongs to a term above all that were seen before it."""
    made = [commit for commit in commits(told.history) if commit.accepted]
    for loss in faults(told.history, *LOSSES):
        before = [commit.token for commit in made if commit.returned is not None and commit.returned < loss["t"]]
        for commit in made:
            # The action of the fault line may still be under way for a moment: the line is written before it acts.
            if commit.called > loss["t"] + 1.0 and before and commit.token < max(before):
                return Verdict(
                    "I3", "broken", (f"after the loss {commit.token} was accepted, before it {max(before)}",)
                )
    return None


def i4(told: Told) -> Verdict:
    """One acts: from the moment a token is issued, nothing under an older one has effect."""
    if not told.audit:
        return Verdict("I4", "unknown", ("there is no audit",))
    issued: int | None = None
    for record in told.audit:
        if record["outcome"] == "elected":
            issued = int(record["token"])
        elif record["outcome"] in _ACTS and issued is not None and int(record.get("token") or issued) != issued:
            said = f"{record.get('entry')}@{record.get('fire_time')} {record['outcome']} under {record['token']}"
            return Verdict("I4", "broken", (f"{said} while {issued} was the term",))
    if not faults(told.history, *LOSSES):
        newest = -1
        for message in told.messages or ():
            if message.token < newest:
                said = f"{message.entry}@{message.fire_time} of term {message.token} was queued after one of {newest}"
                return Verdict("I4", "broken", (said,))
            newest = message.token
    return _intervals(told) or Verdict("I4", "holds")


def _intervals(told: Told) -> Verdict | None:
    """Accepted commits of two terms do not interleave: once one of the newer returned, none of the older is called."""
    made = [commit for commit in commits(told.history) if commit.accepted]
    losses = [line["t"] for line in faults(told.history, *LOSSES)]
    for commit in made:
        for later in made:
            apart = commit.returned is not None and later.called > commit.returned and later.token < commit.token
            if apart and not any(commit.called <= at <= later.called for at in losses):
                facts = f"{later.proc} committed under {later.token} after {commit.proc} had under {commit.token}"
                return Verdict("I4", "broken", (facts,))
    return None


def i8(told: Told) -> Verdict:
    """Stop means stop: no commit called more than 2 s after a stop was accepted emits within its scope.

    Reads lines of kind `event`, event `switch.changed`, with scope (`all`, `entry:x`) and stopped (true or false).
    """
    changes = [line for line in told.history if line.get("event") == "switch.changed"]
    if not changes:
        return Verdict("I8", "unknown", ("nothing was stopped",))
    for index, stop in enumerate(changes):
        if not stop["stopped"]:
            continue
        later = (line["t"] for line in changes[index + 1 :] if line["scope"] == stop["scope"] and not line["stopped"])
        lifted = next(later, float("inf"))
        for commit in commits(told.history):
            if not commit.accepted or not stop["t"] + STOP_WITHIN < commit.called < lifted:
                continue
            if commit.returned is not None and commit.returned >= lifted:
                continue
            for tick, outcome in zip(commit.ticks, commit.outcomes or (), strict=False):
                entry = tick.rpartition("@")[0]
                if outcome == "emitted" and stop["scope"] in ("all", f"entry:{entry}"):
                    after = commit.called - stop["t"]
                    return Verdict("I8", "broken", (f"{tick} was emitted {after:.2f} s after {stop['scope']} stopped",))
    return Verdict("I8", "holds")


def i11(told: Told, bound: float) -> Verdict:
    """It goes on: after each SIGKILL of a leader another's commit follows within `bound` seconds."""
    takeovers = takeover_seconds(told.history)
    if not takeovers:
        return Verdict("I11", "unknown", ("no leader was killed",))
    late = [seconds for seconds in takeovers if seconds is None or seconds > bound]
    if late:
        said = "never" if late[0] is None else f"after {late[0]:.2f} s"
        return Verdict("I11", "broken", (f"the next emission came {said}, the bound is {bound} s",))
    return Verdict("I11", "holds")


def takeover_seconds(lines: Sequence[Line]) -> list[float | None]:
    """For each SIGKILL of a process that led: seconds until another's first emitting commit returned, or None."""
    found: list[float | None] = []
    made = [commit for commit in commits(lines) if commit.accepted and "emitted" in (commit.outcomes or ())]
    for kill in faults(lines, "SIGKILL"):
        leads = [line for line in lines if line.get("event") == "term.elected" and line["t"] < kill["t"]]
        if not leads or max(leads, key=lambda line: line["token"])["proc"] != kill.get("target"):
            continue
        after = [c.returned for c in made if c.returned and c.called > kill["t"] and c.proc != kill["target"]]
        found.append(min(after) - kill["t"] if after else None)
    return found


def i12(told: Told, within: float = 10.0) -> Verdict:
    """Honest status: it degrades within 10 s of a fault that lasts, and recovers within 10 s of its end.

    Reads lines of kind `status` (state: ok or anything else) and faults with `lasts` (seconds).
    """
    lines = [line for line in told.history if line["kind"] == "status"]
    lasting = [line for line in faults(told.history) if line.get("lasts", 0) > within]
    if not lines or not lasting:
        return Verdict("I12", "unknown", ("no status was polled while a fault lasted",))
    for fault in lasting:
        end = fault["t"] + fault["lasts"]
        during = [line for line in lines if fault["t"] + within < line["t"] < end]
        after = [line for line in lines if end + within < line["t"]]
        said_ok = next((line for line in during if line["state"] == "ok"), None)
        if said_ok is not None:
            return Verdict("I12", "broken", (f"status said ok {said_ok['t'] - fault['t']:.1f} s into a fault",))
        if not after:
            return Verdict("I12", "unknown", ("the poller stopped before the fault was over",))
        if after[0]["state"] != "ok":
            return Verdict("I12", "broken", (f"status did not recover within {within:g} s of the fault's end",))
    return Verdict("I12", "holds")


CHECKS: tuple[Callable[[Told], Verdict], ...] = (i1a, i1b, i2, i3, i4, i8, i12)


# --- heal, rest, report


def heal(*steps: Callable[[], object]) -> float:
    """Undo every fault: each step is called, also when one before it failed. Returns the moment, for `rest`."""
    failed = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the others must be healed all the same; it is raised below
            failed.append(error)
    if failed:
        raise ExceptionGroup("not everything could be healed", failed)
    return SystemClock().elapsed()


def rest(at_rest: Callable[[], bool], *, healed: float, bound: float) -> float:
    """Wait until `at_rest()`; returns the seconds since `healed`, which measure I11. AssertionError after `bound`."""
    clock = SystemClock()
    while not at_rest():
        assert clock.elapsed() - healed < bound, f"I11: not at rest {bound} s after the last fault was gone"
        time.sleep(0.05)
    return clock.elapsed() - healed


@dataclass(frozen=True)
class Report:
    """The verdicts of a run and how to repeat it."""

    verdicts: tuple[Verdict, ...]
    seed: int | str
    commit: str
    command: str

    @property
    def ok(self) -> bool:
        """Whether nothing is broken. An `unknown` does not fail; a scenario asserts the verdicts that it is about."""
        return all(verdict.state != "broken" for verdict in self.verdicts)

    def __getitem__(self, invariant: str) -> Verdict:
        return next(verdict for verdict in self.verdicts if verdict.invariant == invariant)

    def holding(self, *invariants: str) -> None:
        """Raises AssertionError unless each of these *holds*: unknown is not holds."""
        short = [verdict for verdict in map(self.__getitem__, invariants) if verdict.state != "holds"]
        assert not short, self.text()

    def text(self) -> str:
        """One line for each verdict, and the line that repeats the run."""
        lines = [f"{v.invariant:4} {v.state:8} {'; '.join(v.evidence)}".rstrip() for v in self.verdicts]
        return "\n".join([*lines, f"{self.command}    # seed {self.seed}, commit {self.commit}"])

    def as_dict(self) -> dict[str, Any]:
        """For a file beside the history."""
        return {**asdict(self), "ok": self.ok}


def judge(
    told: Told,
    *,
    seed: int | str,
    command: str,
    more: Iterable[Verdict] = (),
    checks: Sequence[Callable[[Told], Verdict]] = CHECKS,
) -> Report:
    """All verdicts about a run. more: those whose checks need a figure, for example `i11(told, 5.5)`."""
    return Report(tuple([check(told) for check in checks] + list(more)), seed, _commit(), command)


def _commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, timeout=10
    )
    return answer.stdout.strip() or "unknown"


def lines_of(*facts: Mapping[str, Any]) -> Iterator[Line]:
    """History lines made by hand, for tests of the checker: t, seq and proc are filled in."""
    for at, line in enumerate(facts, start=1):
        yield {"t": float(at), "seq": at, "proc": "beat-1", "pid": 1, "kind": "event", **line}
