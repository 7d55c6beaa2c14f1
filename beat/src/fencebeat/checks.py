"""What `fencebeat check` looks at: everything that would refuse a start, and what would hurt later. Changes nothing.

Each finding has a level and, where something is wrong, the command or setting that repairs it, or accepts it:

    ok         nothing to do
    warning    a beat starts and works; something is worth mending
    failed     a beat starts and stands by until this is mended
    refused    a beat does not start, or may never lead
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import redis
from celery import Celery
from redis.exceptions import NoPermissionError

from fencebeat import failpoints
from fencebeat.claims.opening import ClaimSettings
from fencebeat.clock import Clock
from fencebeat.configuration import Configuration
from fencebeat.connection import clock_difference
from fencebeat.entries import lines_of, read_schedule
from fencebeat.errors import FencebeatError, Fenced, ImpossibleConfiguration, StoreUnknown, StoreUnreachable
from fencebeat.guard import guarded_tasks
from fencebeat.lease import Term
from fencebeat.overlap import refusal
from fencebeat.scripts import address, asking
from fencebeat.store import Store
from fencebeat.ticks import instant

Level = Literal["ok", "warning", "failed", "refused"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "failed", "refused")
"""From harmless to worst."""

FULL = 0.9
"""Share of `maxmemory` from which there is too little room."""
DAY_US = 86_400 * 1_000_000
_NOBODY = Term(token=0, nonce="fencebeat-check", holder="fencebeat check", lease=1.0)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `repair` is empty where nothing has to be done."""

    check: str
    level: Level
    says: str
    repair: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def worst(findings: list[Finding]) -> Level:
    """The worst level among the findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def check(app: Celery, clock: Clock, timeout: float) -> list[Finding]:
    """Look at everything; each call to a store takes at most `timeout` seconds. Raises nothing that a store does."""
    findings: list[Finding] = list(_armed())
    try:
        configuration = Configuration.of(app)
    except ImpossibleConfiguration as error:
        return [*findings, Finding("configuration", "refused", _rules(error), "Change the setting it names.")]
    timing = configuration.timing
    findings.append(
        Finding(
            "timings",
            "ok",
            f"lease {timing.lease:g} s, renewed every {timing.renew_every:.2g} s, trusted for {timing.trust:.2g} s, "
            f"calls given up after {timing.call_timeout:.2g} s",
        )
    )
    findings += _entries(app, configuration)
    findings += _outbox(configuration) if configuration.outbox else _one_database(app)
    try:
        client = configuration.broker.client(timeout, name="fencebeat-check")
    except ImpossibleConfiguration as error:
        return [*findings, Finding("store", "refused", _rules(error), "Set broker_url to one Redis database.")]
    with client:
        findings += _store(client, configuration, clock)
    findings += _asked("effect store", lambda: _effects(configuration))
    findings += _asked("claims", lambda: _claims(app))
    if configuration.lock == "etcd":
        findings += _asked("etcd", lambda: _etcd(configuration))
    return findings


def _armed() -> Iterator[Finding]:
    try:
        if armed := failpoints.arm():
            yield Finding("failpoints", "warning", f"armed: {', '.join(armed)}", "Unset FENCEBEAT_FAILPOINTS.")
    except ImpossibleConfiguration as error:
        yield Finding("failpoints", "refused", _rules(error), "Unset FENCEBEAT_FAILPOINTS.")


def _entries(app: Celery, configuration: Configuration) -> Iterator[Finding]:
    app.finalize()
    entries, refused = read_schedule(lines_of(app), zone=configuration.zone, lease=configuration.timing.lease)
    for error in refused:
        yield Finding("entries", "refused", error.what, f"Correct {error.facts['name']} in beat_schedule.")
    if not refused:
        yield Finding("entries", "ok", f"{len(entries)} can be scheduled")
    for error in filter(None, (refusal(app, entry) for entry in entries.values())):
        repair = "Make its task a GuardedTask and set fencebeat_claims, or let it overlap."
        yield Finding("overlap", "refused", error.what, repair)


def _outbox(configuration: Configuration) -> Iterator[Finding]:
    """A broker that cannot compare a token: what is promised then is less, and the guard makes up for it."""
    yield Finding(
        "outbox",
        "ok",
        f"the broker is not Redis: messages go through the outbox (at most {configuration.outbox_limit} rows), and may "
        "be published twice under one id, so guard the tasks",
    )


def _one_database(app: Celery) -> Iterator[Finding]:
    """The fence is where the scheduler writes messages: workers that read elsewhere would get none of them."""
    write, read = app.conf.broker_write_url, app.conf.broker_read_url
    if write == read:
        yield Finding("same database", "ok", "lock, schedule and queues are in the broker's own database")
        return
    yield Finding(
        "same database",
        "warning",
        "broker_read_url is not broker_write_url: workers may read another database than the beat writes to",
        "Set broker_url alone, or both to the same database.",
    )


def _store(client: redis.Redis, configuration: Configuration, clock: Clock) -> Iterator[Finding]:
    try:
        with asking(client):
            info: dict[str, Any] = client.info()
            ahead = clock_difference(client, clock)
        yield Finding("store", "ok", f"{address(client)} answers, version {info.get('redis_version', '?')}")
        yield from (cluster := _cluster(info), _role(info), _eviction(info, configuration.allow_eviction))
        yield from (_clock(ahead, configuration.tolerance), _persistence(client, info), _memory(info))
        if cluster.level == "ok":
            yield from _records(client, configuration)
    except StoreUnreachable as error:
        repair = "Start the server, or correct broker_url. Beats stand by until it answers."
        if isinstance(error.__cause__, NoPermissionError):
            repair = "Give the user the rights in the README, section `ACL`."
        yield Finding("store", "failed", error.what, repair)


def _cluster(info: dict[str, Any]) -> Finding:
    if str(info.get("cluster_enabled", 0)) == "1":
        says = "the store runs in cluster mode, for which kombu has no transport"
        return Finding("cluster mode", "refused", says, "Use one primary, or Sentinel: set cluster-enabled to no.")
    return Finding("cluster mode", "ok", "off")


def _role(info: dict[str, Any]) -> Finding:
    if info.get("role") == "slave":
        says = f"this server is a replica of {info.get('master_host')}:{info.get('master_port')} and takes no writes"
        return Finding("role", "failed", says, "Set broker_url to the primary, or to the Sentinels (sentinel://...).")
    return Finding("role", "ok", f"primary, {info.get('connected_slaves', 0)} replicas")


def _eviction(info: dict[str, Any], allowed: bool) -> Finding:
    if (policy := info.get("maxmemory_policy", "noeviction")) == "noeviction":
        return Finding("eviction", "ok", "maxmemory-policy is noeviction")
    return Finding(
        "eviction",
        "warning" if allowed else "refused",
        f"maxmemory-policy is {policy}, so the store may drop the fence, the schedule and messages",
        "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file. "
        "To start all the same: fencebeat_allow_eviction = True.",
    )


def _clock(ahead: float, tolerance: float) -> Finding:
    says = f"this host is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the store"
    if abs(ahead) <= tolerance:
        return Finding("clock", "ok", f"{says}, tolerance {tolerance:g} s")
    return Finding(
        "clock",
        "failed",
        f"{says}, more than the tolerance of {tolerance:g} s: a beat on this host does not lead",
        "Set both clocks by NTP (timedatectl set-ntp true), or raise fencebeat_clock_tolerance.",
    )


def _persistence(client: redis.Redis, info: dict[str, Any]) -> Finding:
    if str(info.get("aof_enabled", 0)) == "1":
        return Finding("persistence", "ok", "append-only file")
    try:
        saves = str(client.config_get("save").get("save", ""))
    except redis.ResponseError:  # CONFIG is often taken away; then nobody here can tell
        return Finding("persistence", "ok", "no append-only file; whether there are snapshots, CONFIG does not tell us")
    repair = "CONFIG SET appendonly yes, and the same in its configuration file."
    if saves:
        return Finding("persistence", "warning", f"snapshots only ({saves}): a restart loses what came after", repair)
    return Finding("persistence", "warning", "off: a restart loses the schedule's state and every message", repair)


def _memory(info: dict[str, Any]) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0) or 0)
    if not most:
        return Finding("memory", "ok", f"{used >> 20} MB used, no limit (maxmemory 0)")
    says = f"{used >> 20} MB of {most >> 20} MB used ({used / most:.0%})"
    repair = (
        "CONFIG SET maxmemory to more, or take messages off the queues. A full store refuses ticks and new leaders."
    )
    if used >= most:
        return Finding("memory", "failed", f"{says}: it refuses writes", repair)
    return Finding("memory", "warning" if used >= FULL * most else "ok", says, repair if used >= FULL * most else "")


def _records(client: redis.Redis, configuration: Configuration) -> Iterator[Finding]:
    """What the scheduler has written: readable, known, and not ahead of the store's time."""
    lock = configuration.make_lock()
    store = Store(client, configuration.keys, carrier=lock.carrier)
    lock.close()
    try:
        store.due(_NOBODY, 1)  # reads by the same script as a leader and is refused, as nobody's term must be
    except Fenced:
        yield Finding("rights", "ok", "scripts may run and read the schedule's keys")
    except StoreUnknown as error:
        yield Finding("rights", "ok", f"scripts may run; {error.what}")
    with asking(client):
        seconds, microseconds = client.time()
        earliest: Any = client.zrange(configuration.keys.due, 0, 0, withscores=True)
    now = seconds * 1_000_000 + microseconds
    ahead = {name: mark for name, mark in store.marks().items() if mark > now + DAY_US}
    if ahead:
        name, mark = max(ahead.items(), key=lambda item: item[1])
        yield Finding(
            "marks",
            "failed",
            f"{len(ahead)} entries were decided up to a future time, {name} up to {instant(mark)}: they wait for it",
            f"Set the store's clock right. If it is: HDEL {configuration.keys.last} {name}, and restart the beats.",
        )
    late = now - int(earliest[0][1]) * 1000 if earliest else 0
    if late > DAY_US:
        yield Finding(
            "clock jump",
            "warning",
            f"entry {earliest[0][0]} is due for {late / DAY_US:.1f} days: nobody led, or the store's clock jumped",
            "If a beat says that the clock jumped and the new time is right, restart the beats: that accepts it.",
        )


def _effects(configuration: Configuration) -> Finding:
    effects = configuration.make_effects()
    if effects is None:
        says = "none: after a loss of Redis, entries count as new and stops are forgotten"
        return Finding("effect store", "ok", says)
    floor = effects.floor()
    generation, flags = effects.flags()
    return Finding("effect store", "ok", f"answers: floor {floor}, generation {generation}, {len(flags)} stops")


def _claims(app: Celery) -> Finding:
    guarded = guarded_tasks(app)
    if not app.conf.get("fencebeat_claims"):
        if not guarded:
            return Finding("claims", "ok", "none: no task is guarded (fencebeat_claims)")
        says = f"guarded, and no store for their claims: {', '.join(guarded)}. Workers put their ticks back, unrun."
        return Finding("claims", "failed", says, "Set fencebeat_claims.")
    return Finding("claims", "ok", f"answers: highest token claimed {ClaimSettings.of(app).open().floor()}")


def _etcd(configuration: Configuration) -> Finding:
    lock = configuration.make_lock()
    try:
        holder = lock.holder()
    finally:
        lock.close()
    return Finding("etcd", "ok", "answers: " + (f"{holder.holder} leads" if holder else "nobody leads"))


def _asked(name: str, ask: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield ask()
    except ImpossibleConfiguration as error:
        yield Finding(name, "refused", _rules(error), "Change the setting it names.")
    except Exception as error:  # noqa: BLE001 - whatever the application's own store raises is what has to be told
        why = error.what if isinstance(error, FencebeatError) else f"{type(error).__name__}: {error}"
        yield Finding(name, "failed", why, "Start it, or correct its address. Nobody leads while it does not answer.")


def _rules(error: ImpossibleConfiguration) -> str:
    return str(error.facts.get("rules", error.what))
