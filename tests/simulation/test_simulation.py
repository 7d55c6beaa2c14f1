"""The real scheduler under one seeded scheduler of threads, in virtual time, against every fault at every call.

    make simulate RUNS=10000                       more runs, with fresh seeds
    FENCEBEAT_SEED=17 make simulate RUNS=10        these again

A seed that failed is written to `seeds.json` beside this file, and is run first from then on. `make test` runs the same
seeds each time, so that what it finds is found by a change; `make simulate` looks for more with fresh ones.
"""

import json
import logging
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation import virtual
from tests.simulation.machine import Liveness, Machine, Safety

FRESH = "FENCEBEAT_RUNS" in os.environ
RUNS = int(os.environ.get("FENCEBEAT_RUNS", "300"))
SEED = os.environ.get("FENCEBEAT_SEED")
OF_ONE_SEED = 10
KEPT = Path(__file__).with_name("seeds.json")
MODES = {"safety": Safety, "liveness": Liveness}


@pytest.fixture(autouse=True)
def _quiet():
    """A simulated minute logs more than anybody reads."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def simulate(mode: type[Machine], of: int, url: str, runs: int, *, shrink: bool = True) -> None:
    """`runs` examples of one seed. Raises what they find."""
    machine = type(mode.__name__, (mode,), {"url": url, "namespace": "sim"})
    seed(of)(machine)
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=phases,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def simulate_all(mode: type[Machine], seeds: Iterable[int], url: str, runs: int) -> None:
    """Seed by seed. Raises what the first one finds that finds anything."""
    for of in seeds:
        simulate(mode, of, url, runs, shrink=False)


def run_seed(name: str, of: int, url: str) -> None:
    """One seed; what fails is kept, and told with the line that repeats it."""
    try:
        simulate(MODES[name], of, url, OF_ONE_SEED)
    except BaseException:
        kept = json.loads(KEPT.read_text())
        if {"mode": name, "seed": of} not in kept:
            KEPT.write_text(json.dumps([*kept, {"mode": name, "seed": of}], indent=1) + "\n")
        print(f"FENCEBEAT_SEED={of} make simulate RUNS={OF_ONE_SEED}    # {name}")  # noqa: T201 - the line to repeat it
        raise


@pytest.mark.parametrize("kept", json.loads(KEPT.read_text()), ids=lambda kept: f"{kept['mode']}-{kept['seed']}")
@pytest.mark.timeout(120)
def test_a_seed_that_failed_once_holds(kept, redis_url):
    run_seed(kept["mode"], kept["seed"], redis_url)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.timeout(max(600, RUNS * 4))
def test_invariants_hold_in_every_run(name, redis_url, record_property):
    count = max(1, RUNS // 2 // OF_ONE_SEED)
    seeds = [int(SEED)] if SEED else [secrets.randbelow(2**32) if FRESH else number for number in range(count)]
    print(f"{name}: seeds {seeds}")  # noqa: T201 - shown where it fails
    record_property("seeds", seeds)
    for of in seeds:
        run_seed(name, of, redis_url)


@pytest.mark.parametrize(
    ("text", "instead", "said"),
    [
        ("if tick.fire <= mark then return 'duplicate' end", "", "emitted twice"),
        ("local ours = fence[1] == token and fence[2] == nonce", "local ours = true carrier = 'term'", "I1a|I3|I4"),
        ("  if stop then\n", "  if false then\n", "I8"),
    ],
    ids=["mark", "fence", "stop"],
)
@pytest.mark.timeout(900)
def test_a_guard_that_is_taken_away_is_missed(text, instead, said, redis_url, monkeypatch):
    """A simulation in which no guard is ever missed is too kind."""
    digest, whole = next((d, t) for d, (name, t) in virtual.SCRIPTS.items() if name == "commit")
    assert whole.count(text) == 1
    monkeypatch.setitem(virtual.SCRIPTS, digest, ("commit", whole.replace(text, instead)))
    with pytest.raises(BaseException, match=said):
        simulate_all(Safety, range(1, 6), redis_url, 400)  # as a rule the first seed finds it
