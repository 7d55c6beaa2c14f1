"""Guards of the outbox."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_outbox.py"
ROWS = "tests/unit/test_outbox_templates.py"
step = partial(Guard, file="beat/src/fencebeat/lua/outbox_step.lua")
publisher = partial(Guard, file="beat/src/fencebeat/outbox.py")
sender = partial(Guard, file="beat/src/fencebeat/outbox_sending.py")

FORMER = (f"{TESTS}::test_f01_a_former_leader_publishes_nothing_and_takes_nothing_out",)
KNOWN = (f"{TESTS}::test_flags_that_nobody_renews_are_unknown_to_the_publisher",)

GUARDS = (
    step(
        name="outbox-token",
        breaks="I3 I4",
        text="fence[1] == token and fence[2] == nonce",
        instead="fence[2] == nonce",
        tests=FORMER,
    ),
    step(
        name="outbox-nonce",
        breaks="I4",
        text="fence[1] == token and fence[2] == nonce",
        instead="fence[1] == token",
        tests=FORMER,
    ),
    step(
        name="outbox-lock",
        breaks="I4",
        text="(carrier ~= 'term' and redis.call('GET', lock) ~= nonce)",
        instead="false",
        tests=FORMER,
    ),
    step(
        name="outbox-stop-before-each-message",
        breaks="I8",
        text="if redis.call('HEXISTS', flags, scope) == 1 then return true end",
        instead="",
        tests=(
            f"{TESTS}::test_rows_under_a_stop_stay_in_place_and_others_pass_them",
            f"{TESTS}::test_a_stop_that_comes_between_two_messages_holds_the_second_back",
        ),
    ),
    Guard(
        name="outbox-stop-of-extra-runs",
        breaks="I8",
        file="beat/src/fencebeat/message_template.py",
        text="entry.removesuffix(EXTRA)",
        instead="entry",
        tests=(
            f"{TESTS}::test_a_stop_of_an_entry_holds_the_row_of_its_extra_run_back_too",
            f"{ROWS}::test_the_row_of_an_extra_run_is_held_back_by_a_stop_of_its_entry_on_both_paths",
        ),
    ),
    Guard(
        name="outbox-template-exchange",
        breaks="I8",
        file="beat/src/fencebeat/message_template.py",
        text='message["exchange"] != "" or ',
        instead="",
        tests=(f"{ROWS}::test_where_a_row_could_differ_celerys_own_path_is_taken",),
    ),
    step(
        name="outbox-flags-without-generation",
        breaks="I8",
        text="if not generation then return {'unknown', flags} end",
        instead="",
        tests=(f"{TESTS}::test_f05_without_the_generation_of_the_flags_nothing_is_published",),
    ),
    step(
        name="outbox-flags-fresh",
        breaks="I8",
        text="math.abs(now - renewed) > FRESH",
        instead="false",
        tests=KNOWN,
    ),
    step(
        name="outbox-flags-not-older-than-read",
        breaks="I8",
        text="generation < tonumber(seen)",
        instead="false",
        tests=KNOWN,
    ),
    step(
        name="outbox-row-taken-out-once",
        breaks="I2",
        text="if #redis.call('XRANGE', outbox, id, id) == 1 then",
        instead="if true then",
        tests=(f"{TESTS}::test_f15_lost_answers_of_redis_lose_and_double_nothing",),
    ),
    publisher(
        name="outbox-own-trust",
        breaks="I4",
        text="        if self._leading() != term:\n            return\n",
        instead="",
        tests=(f"{TESTS}::test_a_term_that_ended_by_our_own_clock_publishes_nothing",),
    ),
    publisher(
        name="outbox-bound",
        breaks="I12",
        text="        if rows >= self._limit:",
        instead="        if False:",
        tests=(f"{TESTS}::test_a_full_outbox_makes_emission_wait",),
    ),
    sender(
        name="outbox-returned-is-not-published",
        breaks="I2",
        text='            if not flying.returned:\n                self._settle(flying, "published")\n            elif',
        instead='            if True:\n                self._settle(flying, "published")\n            elif',
        tests=(f"{TESTS}::test_a_message_without_a_queue_is_unroutable_and_holds_nobody_up",),
    ),
    sender(
        name="outbox-deleted-queue-declared-again",
        breaks="I2",
        text="elif flying.again or not flying.message.declare:",
        instead="elif True:",
        tests=(f"{TESTS}::test_a_queue_that_was_deleted_is_declared_again",),
    ),
    sender(
        name="outbox-suspects-sent-alone",
        breaks="I9 I11",
        text="return not self.blocked and self.in_flight < (1 if alone else WINDOW)",
        instead="return not self.blocked and self.in_flight < WINDOW",
        tests=(f"{TESTS}::test_a_row_that_the_broker_refuses_stays_and_the_others_pass",),
    ),
)
