"""The checker itself: for each invariant one right history and wrong ones, made by hand."""

import pytest

from tests.support import checker
from tests.support.checker import SECOND, Claim, Message, Told, every, lines_of


def at(seconds):
    return round(seconds * SECOND)


def elected(token, nonce="n"):
    return {"outcome": "elected", "token": str(token), "nonce": nonce}


def emitted(seconds, token=10, entry="e"):
    return {"outcome": "emitted", "entry": entry, "fire_time": str(at(seconds)), "token": str(token)}


def passed(first, last, count, outcome="skipped", token=10):
    facts = {"first": str(at(first)), "fire_time": str(at(last)), "count": str(count), "token": str(token)}
    return {"outcome": outcome, "entry": "e", **facts}


def call(at_time, token, *ticks, call_id="c-1", proc="beat-1"):
    return {"t": at_time, "kind": "call", "op": "commit", "id": call_id, "token": token, "ticks": ticks, "proc": proc}


def answer(at_time, outcome, call_id="c-1", proc="beat-1"):
    return {"t": at_time, "kind": "return", "op": "commit", "id": call_id, "outcome": outcome, "proc": proc}


def told(*audit, history=(), since=0, until=3, **more):
    more.setdefault("oracles", {"e": every(1.0)})
    return Told(history=list(lines_of(*history)), audit=audit, since=at(since), until=at(until), **more)


RIGHT = (elected(10), emitted(1), emitted(2), elected(20), emitted(3, 20))


@pytest.mark.parametrize("check", [checker.i1a, checker.i2, checker.i3, checker.i4])
def test_a_right_history_holds(check):
    assert check(told(*RIGHT)).state == "holds"


def test_i1a_a_tick_emitted_twice_is_broken():
    verdict = checker.i1a(told(elected(10), emitted(1), emitted(2), emitted(1)))
    assert verdict.state == "broken"
    assert "e@1000000" in verdict.evidence[0]


def test_i1a_a_tick_may_be_emitted_again_after_the_store_lost_its_past():
    assert checker.i1a(told(elected(10), emitted(1), {"outcome": "gap"}, emitted(1, 20))).state == "holds"


def test_i1a_two_messages_for_one_record_are_broken_unless_the_test_copied_one():
    twice = [Message("t1", "e", at(1), 10)] * 2
    assert checker.i1a(told(elected(10), emitted(1), messages=twice)).state == "broken"
    copied = ({"kind": "fault", "action": "copied", "task_id": "t1"},)
    assert checker.i1a(told(elected(10), emitted(1), messages=twice, history=copied)).state == "holds"


def test_i1b_a_task_that_ran_twice_or_without_a_claim_is_broken():
    claims = {"t1": Claim("t1", closed=True)}
    assert checker.i1b(told(effects=["t1"], claims=claims)).state == "holds"
    assert checker.i1b(told(effects=["t1", "t1"], claims=claims)).state == "broken"
    assert checker.i1b(told(effects=["t2"], claims=claims)).state == "broken"
    assert checker.i1b(told()).state == "unknown"


def test_i2_a_tick_without_outcome_is_broken_and_unknown_where_records_are_gone():
    audit = (elected(10), emitted(1), emitted(3))
    verdict = checker.i2(told(*audit))
    assert (verdict.state, verdict.evidence[0]) == ("broken", "e@2000000 has no outcome")
    assert checker.i2(told(*audit, audit_is_whole=False)).state == "unknown"
    assert checker.i2(told(*audit, oracles={})).state == "unknown"


def test_i2_a_run_of_passed_ticks_closes_each_of_them_and_its_count_is_checked():
    assert checker.i2(told(elected(10), passed(1, 2, 2), emitted(3))).state == "holds"
    assert checker.i2(told(elected(10), passed(1, 2, 1), emitted(3))).state == "broken"


def test_i2_an_emission_at_a_time_that_is_no_fire_time_is_broken():
    verdict = checker.i2(told(elected(10), emitted(1), emitted(2), emitted(2.5), emitted(3)))
    assert (verdict.state, "is no fire time" in verdict.evidence[0]) == ("broken", True)


def test_i2_a_record_without_its_message_is_broken():
    queued = [Message(f"t{n}", "e", at(n), 10) for n in (1, 2)]
    assert checker.i2(told(*RIGHT, messages=queued)).state == "broken"
    assert checker.i2(told(*RIGHT, messages=[*queued, Message("t3", "e", at(3), 20)])).state == "holds"


def test_i3_a_term_with_a_number_that_does_not_rise_is_broken():
    assert checker.i3(told(elected(10), elected(10, "m"))).state == "broken"
    assert checker.i3(told(elected(10), elected(9))).state == "broken"
    assert checker.i3(told()).state == "unknown"


def test_i3_a_lower_number_accepted_after_a_loss_is_broken():
    loss = {"t": 3.0, "kind": "fault", "action": "flush"}
    before = (call(1.0, 50, "e@1"), answer(2.0, ["emitted"]))
    low = (call(6.0, 7, "e@2", call_id="c-2"), answer(7.0, ["emitted"], call_id="c-2"))
    high = (call(6.0, 51, "e@2", call_id="c-2"), answer(7.0, ["emitted"], call_id="c-2"))
    assert checker.i3(told(elected(7), emitted(2, 7), history=(*before, loss, *low))).state == "broken"
    assert checker.i3(told(elected(51), emitted(2, 51), history=(*before, loss, *high))).state == "holds"


def test_i4_an_act_under_an_older_term_is_broken():
    assert checker.i4(told(elected(10), emitted(1), elected(20), emitted(2, 10))).state == "broken"


def test_i4_a_message_of_an_older_term_behind_one_of_a_newer_is_broken():
    queued = [Message("t1", "e", at(1), 20), Message("t2", "e", at(2), 10)]
    assert checker.i4(told(elected(20), emitted(1, 20), messages=queued)).state == "broken"


def test_i4_accepted_commits_of_two_terms_that_interleave_are_broken():
    newer = (call(1.0, 20, "e@1", proc="beat-2"), answer(2.0, ["emitted"], proc="beat-2"))
    older = (call(3.0, 10, "e@2"), answer(4.0, ["emitted"]))
    refused = (call(3.0, 10, "e@2"), answer(4.0, "fenced"))
    assert checker.i4(told(elected(20), history=(*newer, *older))).state == "broken"
    assert checker.i4(told(elected(20), history=(*newer, *refused))).state == "holds"


def test_a_call_without_a_return_is_unknown_and_no_breach():
    newer = (call(1.0, 20, "e@1", proc="beat-2"), answer(2.0, ["emitted"], proc="beat-2"))
    assert checker.i4(told(elected(20), history=(*newer, call(3.0, 10, "e@2")))).state == "holds"
    assert checker.commits(lines_of(call(3.0, 10, "e@2")))[0].outcomes is None


@pytest.mark.parametrize(
    ("scope", "called", "state"),
    [("all", 2.5, "holds"), ("all", 4.0, "broken"), ("entry:e", 4.0, "broken"), ("entry:f", 4.0, "holds")],
)
def test_i8_what_is_emitted_later_than_two_seconds_after_a_stop_is_broken(scope, called, state):
    stop = {"t": 1.0, "event": "switch.changed", "scope": scope, "stopped": True}
    act = (call(called, 10, "e@1"), answer(called + 0.1, ["emitted"]))
    assert checker.i8(told(history=(stop, *act))).state == state
    lifted = {"t": 3.0, "event": "switch.changed", "scope": scope, "stopped": False}
    assert checker.i8(told(history=(stop, lifted, *act))).state == "holds"
    assert checker.i8(told(history=act)).state == "unknown"


def test_i11_a_takeover_beyond_the_bound_is_broken():
    leads = {"t": 1.0, "event": "term.elected", "token": 10}
    kill = {"t": 2.0, "kind": "fault", "action": "SIGKILL", "target": "beat-1"}
    late = (call(7.0, 20, "e@1", proc="beat-2"), answer(8.0, ["emitted"], proc="beat-2"))
    assert checker.i11(told(history=(leads, kill, *late)), 6.5).state == "holds"
    assert checker.i11(told(history=(leads, kill, *late)), 5.5).state == "broken"
    assert checker.i11(told(history=(leads, kill)), 5.5).state == "broken"
    assert checker.i11(told(history=(leads, *late)), 5.5).state == "unknown"


@pytest.mark.parametrize(
    ("states", "state"), [(("bad", "ok"), "holds"), (("ok", "ok"), "broken"), (("bad", "bad"), "broken")]
)
def test_i12_a_status_that_says_ok_during_a_fault_or_bad_after_it_is_broken(states, state):
    fault = {"t": 0.0, "kind": "fault", "action": "stop", "lasts": 30.0}
    polled = tuple({"t": t, "kind": "status", "state": s} for t, s in zip((20.0, 50.0), states, strict=True))
    assert checker.i12(told(history=(fault, *polled))).state == state
    assert checker.i12(told(history=(fault, polled[0]))).state == ("broken" if states[0] == "ok" else "unknown")
    assert checker.i12(told(history=polled)).state == "unknown"


def test_a_fault_that_did_not_bite_proves_nothing():
    bit = list(lines_of({"kind": "failpoint", "name": "beat.commit.before"}, {"event": "term.elected", "token": 5}))
    checker.failpoint_bit(bit, "beat.commit.before")
    checker.leader_changed(bit, after=1.0)
    for broken in (
        lambda: checker.failpoint_bit(bit, "beat.renew.before"),
        lambda: checker.failpoint_bit(bit, "beat.commit.before", 2),
        lambda: checker.leader_changed(bit, after=2.0),
        lambda: checker.at_least(2, 3, "refusals"),
        lambda: checker.proxy_cut(0),
    ):
        with pytest.raises(AssertionError, match="proves nothing"):
            broken()


def test_unknown_is_not_holds_and_the_report_says_how_to_repeat_the_run():
    report = checker.judge(told(*RIGHT), seed=17, command="make chaos SEEDS=1")
    assert report.ok
    report.holding("I1a", "I2", "I3", "I4")
    with pytest.raises(AssertionError, match="no effects were observed"):
        report.holding("I1b")
    assert report.text().splitlines()[-1].startswith("make chaos SEEDS=1    # seed 17, commit ")
    assert not checker.judge(told(elected(2), elected(1)), seed=1, command="x").ok


def test_every_step_of_healing_is_tried_and_a_failure_is_told():
    done = []

    def fails():
        raise OSError("no such process")

    with pytest.raises(ExceptionGroup, match="healed"):
        checker.heal(fails, lambda: done.append(1))
    assert done == [1]
    assert checker.rest(lambda: True, healed=checker.heal(), bound=1.0) < 1.0
    with pytest.raises(AssertionError, match="I11"):
        checker.rest(lambda: False, healed=checker.heal(), bound=0.05)
