"""Guarded ticks on real workers whose messages are copied and whose processes are frozen and killed."""

import signal

import pytest

from tests.support.claims import tick
from tests.support.guarding import Place
from tests.support.waiting import until


@pytest.fixture
def place(tmp_path, redis_url, database_url):
    with Place(tmp_path, redis_url, database_url) as made:
        yield made


@pytest.mark.slow
def test_s27_each_tick_has_its_effect_once_under_copies_and_kills(place):
    fifteen = [place.send("effect", of=tick("quick", token=5 if n < 5 else 9)) for n in range(15)]  # 5: an older term
    copies = place.take() * 3
    five = [place.send("effect", of=tick("slow", token=9), kwargs={"gate": "gate"}) for _ in range(5)]
    more = place.raw() * 2
    doomed = place.worker("doomed", "-c", "5")
    doomed.wait_for("started", times=5)
    survivor = place.worker("survivor", "-c", "4")
    for raw in more:
        place.copy(raw)
    survivor.wait_for("claim.postponed", times=10)
    for one in five:
        assert place.held(one.task_id) >= 2, "a copy that meets a running claim is not acknowledged away"
    assert survivor.said("started") == []

    doomed.kill()
    place.open("gate")
    for one in five:
        assert place.wait_until_closed(one) == "succeeded"
    for raw in copies:
        place.copy(raw)
    for one in fifteen:
        assert place.wait_until_closed(one) == "succeeded"
    survivor.wait_for("claim.duplicate", times=15 * 2 + 5)  # of the five, one copy ran and one was left

    seen = [one["task_id"] for one in place.effects()]
    assert sorted(seen) == sorted(one.task_id for one in [*five, *fifteen]), "each tick has had its effect once"
    assert {one["attempt"] for one in place.effects() if one["entry"] == "slow"} == {2}
    assert {one["token"] for one in place.effects() if one["entry"] == "quick"} == {5, 9}, "of both terms"


@pytest.mark.slow
def test_f23_a_copy_waits_while_it_runs_runs_after_a_kill_and_is_dropped_when_closed(place):
    one = place.send("effect", kwargs={"gate": "gate"})
    [raw] = place.raw()
    first, second = place.worker("first", "-c", "1"), place.worker("second", "-c", "1")
    [started] = place.wait_for("started")
    running, other = (first, second) if started["proc"] == "first" else (second, first)

    place.copy(raw)
    other.wait_for("claim.postponed", times=2)  # more than a lease: the running task extends its claim
    assert place.effects() == []
    assert place.held(one.task_id) == 2

    running.kill()
    [_, again] = place.wait_for("started", times=2)
    assert (again["proc"], again["attempt"]) == (other.name, 2)
    place.open("gate")
    assert place.wait_until_closed(one) == "succeeded"

    place.copy(raw)
    other.wait_for("claim.duplicate")
    assert [(seen["task_id"], seen["attempt"]) for seen in place.effects()] == [(one.task_id, 2)]


@pytest.mark.slow
def test_f23_a_worker_frozen_beyond_its_lease_has_no_effect_when_it_wakes(place):
    one = place.send("in_transaction", kwargs={"gate": "gate"})
    [raw] = place.raw()
    frozen = place.worker("frozen", "-c", "1")
    frozen.wait_for("started")
    frozen.signal(signal.SIGSTOP)
    place.open("gate")
    place.copy(raw)

    other = place.worker("other", "-c", "1")
    other.wait_for("claim.closed")
    assert place.rows() == [(one.task_id, 2)]
    frozen.signal(signal.SIGCONT)

    frozen.wait_for("claim.lost")
    place.wait_for("claim.duplicate")  # the message that the refused attempt has put back
    assert place.rows() == [(one.task_id, 2)], "the stale attempt has rolled its effect back"
    assert place.outcome(one) == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "attempt", "ends"),
    [
        ("task.claim.before", 1, "claim.closed"),
        ("task.claim.after", 2, "claim.closed"),
        ("task.ack.before", 1, "claim.duplicate"),
        ("task.ack.after", 1, "claim.duplicate"),
    ],
)
def test_f26_a_pool_child_that_dies_leaves_one_effect(place, failpoint, attempt, ends):
    worker = place.worker("worker", "-c", "1", failpoints=f"{failpoint}=kill@2")
    quiet = place.send("in_transaction")  # the first passage of this child
    worker.wait_for("claim.closed", task=quiet.task_id)

    one = place.send("in_transaction")
    worker.wait_for(failpoint)

    worker.wait_for(ends, task=one.task_id)
    place.wait_until_idle()
    assert place.rows() == [(quiet.task_id, 1), (one.task_id, attempt)]
    assert place.outcome(one) == "succeeded"


@pytest.mark.slow
def test_f26_a_crash_between_effect_and_close_runs_again_where_they_are_not_one_transaction(place):
    worker = place.worker("worker", "-c", "1", failpoints="task.ack.before=kill@2")
    quiet = place.send("effect")
    worker.wait_for("claim.closed", task=quiet.task_id)

    one = place.send("effect")

    worker.wait_for("claim.closed", task=one.task_id)
    assert [seen["attempt"] for seen in place.effects(one.task_id)] == [1, 2], "at least once, as documented"


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_running_task_holds_its_claim_beyond_the_lease_in_every_pool(place, pool):
    one = place.send("effect", kwargs={"gate": "gate"})
    worker = place.worker("worker", "-c", "1", "--pool", pool)
    worker.wait_for("started")
    lefts = []

    def extended():
        left = place.claims.look([one.task_id])[one.task_id].left
        assert left > 0, "the lease ran out while its task ran"
        if not lefts or left > lefts[-1]:
            lefts.append(left)
        elif left < lefts[-1]:
            lefts[-1] = left
        return len(lefts) > 4  # three extensions are a whole lease

    until(extended, at_most=30, what="extensions")
    place.open("gate")

    worker.wait_for("claim.closed")
    assert [seen["attempt"] for seen in place.effects()] == [1]


@pytest.mark.slow
def test_a_tick_is_put_back_and_not_run_while_the_store_of_claims_does_not_answer(place):
    place.claims_url = "postgresql://nobody@127.0.0.1:1/nothing"
    blind = place.worker("blind", "-c", "1")
    one = place.send("effect")

    blind.wait_for("claim.unknown", times=2)  # put back, and tried again
    assert place.held(one.task_id) >= 1
    assert place.effects() == []
    blind.kill()

    assert place.held(one.task_id) >= 1, "nothing is lost: the broker delivers it again after the visibility time-out"
