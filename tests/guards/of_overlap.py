"""Guards of entries that must not overlap."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_overlap.py"
overlap = partial(Guard, file="beat/src/fencebeat/overlap.py", breaks="I2")

GUARDS = (
    overlap(
        name="overlap-open-claim",
        text='    return f"is run by {claim.holder}" if claim.outcome is None else None',
        instead="    return None",
        tests=(f"{TESTS}::test_while_the_last_tick_is_not_finished_the_next_is_passed_over",),
    ),
    overlap(
        name="overlap-queued",
        text='        return "waits for a worker"',
        instead="        return None",
        tests=(f"{TESTS}::test_while_the_last_tick_is_not_finished_the_next_is_passed_over",),
    ),
    overlap(
        name="overlap-wait-ends",
        text=" if at and now - int(at) <= self._wait}",
        instead=" if at}",
        tests=(f"{TESTS}::test_after_its_end_or_the_wait_the_next_tick_is_sent",),
    ),
    overlap(
        name="overlap-one-of-a-page",
        text='            self._running[entry.name] = f"overlap: the tick of {instant(fire_time)} is sent just now"',
        instead="            pass",
        tests=(f"{TESTS}::test_of_several_open_ticks_one_is_sent_and_the_others_say_why_not",),
    ),
    overlap(
        name="overlap-unknown",
        text="        if self._unknown is not None:",
        instead="        if False:",
        tests=(f"{TESTS}::test_while_nobody_can_tell_the_tick_stays_due_and_others_go_on",),
    ),
    overlap(
        name="overlap-unguarded",
        text="        if (error := refusal(self._app, entry)) is not None:",
        instead="        if False:",
        tests=(f"{TESTS}::test_an_entry_whose_task_claims_nothing_is_left_alone_and_named_by_check",),
    ),
)
