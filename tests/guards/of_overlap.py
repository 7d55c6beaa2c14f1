"""Guards of entries that must not overlap."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_overlap.py"
overlap = partial(Guard, file="beat/src/fencebeat/overlap.py", breaks="I2")

GUARDS = (
    overlap(
        name="overlap-open-claim",
        text="        if claim is not None and claim.left > 0:",
        instead="        if claim is not None:\n            return Way(blocked=False)\n        if False:",
        tests=(f"{TESTS}::test_while_the_last_tick_is_not_finished_the_next_is_passed_over",),
    ),
    overlap(
        name="overlap-long-run",
        text="        if claim is not None and claim.left > 0:",
        instead="        if False:",
        tests=(f"{TESTS}::test_a_run_that_takes_longer_than_the_wait_is_still_under_way",),
    ),
    overlap(
        name="overlap-queued",
        text='        return Way(blocked=True, says=f"{tick} {waits}")',
        instead='        return Way(blocked=False, says=f"{tick} {waits}")',
        tests=(f"{TESTS}::test_while_the_last_tick_is_not_finished_the_next_is_passed_over",),
    ),
    overlap(
        name="overlap-wait-ends",
        text="        if seconds > self._wait:",
        instead="        if False:",
        tests=(f"{TESTS}::test_what_nobody_finishes_is_waited_for_and_then_counts_as_lost_which_the_audit_tells",),
    ),
    overlap(
        name="overlap-from-emission",
        text="        seconds = (now - sent.at) / SECOND",
        instead="        seconds = (now - sent.fire_time) / SECOND",
        tests=(f"{TESTS}::test_what_nobody_finishes_is_waited_for_and_then_counts_as_lost_which_the_audit_tells",),
    ),
    overlap(
        name="overlap-expired",
        text="        if expires is not None and seconds > expires + SLACK:",
        instead="        if False:",
        tests=(f"{TESTS}::test_a_message_that_no_worker_begins_any_more_is_in_nobodys_way",),
    ),
    overlap(
        name="overlap-expired-begins",
        file="beat/src/fencebeat/guard.py",
        text="        if _expired(self.app, request.expires):",
        instead="        if False:",
        tests=("tests/unit/test_guard.py::test_a_message_that_expired_while_a_worker_kept_it_is_not_begun",),
    ),
    overlap(
        name="overlap-one-of-a-page",
        text="        if not way.blocked:",
        instead="        if False:",
        tests=(f"{TESTS}::test_of_several_open_ticks_one_is_sent_and_the_others_say_why_not",),
    ),
    overlap(
        name="overlap-unknown",
        text="        if way is None:",
        instead="        if way is None:\n            return Way(blocked=False)\n        if False:",
        tests=(f"{TESTS}::test_while_nobody_can_tell_the_tick_stays_due_and_others_go_on",),
    ),
    overlap(
        name="overlap-patience",
        text="        question.join(self._patience)",
        instead="        question.join()",
        tests=(f"{TESTS}::test_a_store_of_claims_that_hangs_holds_no_round_for_longer_than_its_patience",),
    ),
    overlap(
        name="overlap-one-question",
        text="        if self._question is not None and self._question.is_alive():",
        instead="        if False:",
        tests=(f"{TESTS}::test_a_store_of_claims_that_hangs_holds_no_round_for_longer_than_its_patience",),
    ),
    overlap(
        name="overlap-look-first",
        file="beat/src/fencebeat/rounds.py",
        text="            self._overlap.look((entry for name in names if (entry := self.memory.get(name))), due.now)\n",
        instead="            self._page.extend((name, due.marks[name]) for name in names)\n"
        "            self._overlap.look((entry for name in names if (entry := self.memory.get(name))), due.now)\n"
        "            self._page.clear()\n",
        tests=(f"{TESTS}::test_where_the_last_ticks_could_not_be_read_the_page_is_asked_for_again",),
    ),
    overlap(
        name="overlap-unguarded",
        text="        if (error := refusal(self._app, entry)) is not None:",
        instead="        if False:",
        tests=(f"{TESTS}::test_an_entry_whose_task_claims_nothing_is_left_alone_and_named_by_check",),
    ),
)
