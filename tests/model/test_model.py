"""Both sides of every guard: with all of them no invariant breaks, and without this one, this invariant does.

Each row of GUARDED is a row of the table in the design: the guards taken away, the invariant, and the smallest world
that shows it. Where two guards back each other up, the row takes both away, and ALONE says that one of them is enough.
"""

from dataclasses import replace

import pytest

from tests.model.belief import Beliefs
from tests.model.schedule import GUARDS, World
from tests.model.search import Found, Step, search

ELECTIONS = World(faults=(("lose", 1), ("retry", 1)))
ON_ETCD = replace(ELECTIONS, carrier="term")
FAILOVER = World(carrier="term", workers=True, ticks=1, faults=(("lag", 1),))
LOSS = World(workers=True, faults=(("flush", 1),))
STOPPED_LOSS = World(processes=1, ticks=1, campaigns=2, faults=(("flush", 1), ("stop", 1)))
STOPS = World(ticks=1, campaigns=2, faults=(("stop", 1), ("keeper", 2), ("evict", 1)))
LAGGING_STOPS = World(ticks=1, campaigns=2, faults=(("stop", 1), ("keeper", 2), ("lag", 1)))
WORKERS = World(processes=1, campaigns=1, workers=True, faults=(("redeliver", 1), ("die", 1)))
SCRIPTS = World(processes=1, campaigns=1, entries=2, faults=(("clog", 1), ("ahead", 1)))
LARGE = World(processes=3, entries=2, ticks=3, campaigns=3)

WORLDS = {
    "elections": ELECTIONS,
    "elections, lock in etcd": ON_ETCD,
    "failover to a replica that lags": FAILOVER,
    "failover, lock in Redis": replace(FAILOVER, carrier="lock"),
    "loss of all data": LOSS,
    "loss of all data, lock in etcd": replace(LOSS, carrier="term"),
    "loss of all data while stopped": STOPPED_LOSS,
    "stops": STOPS,
    "stops and a failover": LAGGING_STOPS,
    "workers": WORKERS,
    "two entries in one script": SCRIPTS,
    "three processes, two entries, three ticks": LARGE,
    "the same with a lost reply": replace(LARGE, campaigns=2, faults=(("lose", 1),)),
}

GUARDED = [
    ("token comparison in the commit", {"token", "fresh_nonce"}, "I3", ON_ETCD),
    ("token comparison in the commit", {"token", "fresh_nonce"}, "I4", ON_ETCD),
    ("nonce comparison", {"nonce"}, "I4", FAILOVER),
    ("nonce comparison, lock in Redis", {"nonce", "lock"}, "I4", replace(FAILOVER, carrier="lock")),
    ("seal at acquisition", {"seal"}, "I4", ON_ETCD),
    ("seal at acquisition, lock in Redis", {"seal", "lock"}, "I4", ELECTIONS),
    ("floor of tokens", {"floor"}, "I3", LOSS),
    ("mark per entry", {"mark"}, "I1a", ELECTIONS),
    ("tick claim", {"claim"}, "I1b", WORKERS),
    ("tick claim after a failover", {"claim"}, "I1b", FAILOVER),
    ("tick claim after a loss", {"claim"}, "I1b", LOSS),
    ("live claim postpones", {"postpone"}, "I2", WORKERS),
    ("checks before writes", {"checks_first"}, "I2", SCRIPTS),
    ("recovery before the first emission", {"recovery"}, "I2", LOSS),
    ("recovery before the first emission", {"recovery"}, "I8", STOPPED_LOSS),
    ("fire time not later than server time", {"server_time"}, "I2", SCRIPTS),
    ("flags without generation are unknown", {"flags_known"}, "I8", STOPS),
    ("flags renewed", {"flags_renewed"}, "I8", STOPS),
    ("flags renewed, after a failover", {"flags_renewed"}, "I8", LAGGING_STOPS),
    ("no older copy of the flags", {"flags_rise"}, "I8", STOPS),
    ("age of a copy from its reading", {"flags_read_age"}, "I8", STOPS),
]

ALONE = [
    ("the nonce is enough where it is new for each campaign", {"token"}, ON_ETCD),
    ("the token is enough while no history is lost", {"nonce"}, ON_ETCD),
    ("the lock's value is enough where Redis keeps the lock", {"nonce"}, replace(FAILOVER, carrier="lock")),
    ("the term is enough without the lock's value", {"lock"}, ELECTIONS),
    ("the lock's value is enough without the seal", {"seal"}, ELECTIONS),
]


def without(world: World, off: set[str], invariant: str | None = None) -> Found:
    changed = replace(world, off=frozenset(off))
    return search(changed.start(), changed.steps, invariant=invariant)


@pytest.mark.parametrize("name", WORLDS)
def test_with_all_guards_nothing_breaks(name):
    found = without(WORLDS[name], set())
    assert not found.broken, found.text()
    assert found.states > 300, "a world in which nothing happens proves nothing"


@pytest.mark.parametrize(("guard", "off", "invariant", "world"), GUARDED, ids=[f"{g[0]}: {g[2]}" for g in GUARDED])
def test_without_the_guard_its_invariant_breaks(guard, off, invariant, world):
    found = without(world, off, invariant)
    print(f"without {guard}:", found.text())  # noqa: T201 - the trace is what this test has to say
    assert found.broken == invariant, f"nobody misses {guard}: the model is too kind"
    assert 0 < len(found.trace) <= 16, "a shortest trace that nobody can read"


@pytest.mark.parametrize(("why", "off", "world"), ALONE, ids=[row[0] for row in ALONE])
def test_guards_that_back_each_other_up(why, off, world):
    found = without(world, off)
    assert not found.broken, f"not so: {why}\n{found.text()}"


def test_every_guard_of_the_model_has_a_row():
    missed = set().union(*(off for _, off, _, _ in GUARDED))
    assert missed == GUARDS


def test_no_two_processes_trust_their_lease_at_once():
    beliefs = Beliefs()
    found = search(beliefs.start(), beliefs.steps)
    assert not found.broken, found.text()
    assert found.states > 10_000


@pytest.mark.parametrize(
    ("guard", "beliefs"),
    [
        ("trust counted from the start of the attempt", Beliefs(anchored=False, slow=False)),
        ("margin for a clock that runs slow", Beliefs(margin=0)),
    ],
)
def test_without_the_trust_window_two_believe(guard, beliefs):
    found = search(beliefs.start(), beliefs.steps, invariant="I4")
    print(f"without {guard}:", found.text())  # noqa: T201 - the trace is what this test has to say
    assert found.broken == "I4", f"nobody misses: {guard}"


def test_the_search_finds_the_shortest_trace_and_tells_when_it_was_cut_short():
    def count(number):
        yield Step("one", number + 1, "I9" if number + 1 == 3 else "")
        yield Step("two", number + 2, "I9" if number + 2 == 3 else "")

    assert search(0, count).trace in (("one", "two"), ("two", "one"))
    with pytest.raises(RuntimeError, match="more than 50 states"):
        search(0, lambda n: [Step("on", n + 1)], limit=50)
