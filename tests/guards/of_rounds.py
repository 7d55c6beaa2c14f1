"""Guards of the leader's round, the catch-up policies, the capture of messages and the entries."""

from functools import partial

from tests.guards.guard import Guard

AHEAD = "tests/integration/test_looking_ahead.py"
ROUNDS = "tests/integration/test_scheduler.py"
CATCHUP = "tests/unit/test_catchup.py"
CAPTURE = "tests/integration/test_capture.py"
rounds = partial(Guard, file="beat/src/fencebeat/rounds.py")
catchup = partial(Guard, file="beat/src/fencebeat/catchup.py")

GUARDS = (
    rounds(
        name="trust-before-the-commit",
        breaks="I4 belief",
        text="if decisions and self._leading() == term:",
        instead="if decisions:",
        tests=(f"{ROUNDS}::test_a_term_that_is_no_longer_trusted_sends_nothing",),
    ),
    rounds(
        name="clock-of-the-host",
        breaks="I2",
        text="if abs(ahead) > self._tolerance:",
        instead="if False:",
        tests=(f"{ROUNDS}::test_s14_a_host_whose_clock_differs_emits_nothing",),
    ),
    Guard(
        file="beat/src/fencebeat/jumps.py",
        name="clock-jump",
        breaks="I2",
        text="if step > JUMP:",
        instead="if False:",
        tests=(f"{ROUNDS}::test_s14_a_jump_of_years_stops_emission_before_any_mark_moves_and_its_end_resumes",),
    ),
    rounds(
        name="next-batch-ends-with-the-term",
        breaks="I1a I12",
        text="self._synced = self._open = self._next = self._reading",
        instead="self._synced = self._open = self._reading",
        tests=(f"{AHEAD}::test_the_next_batch_of_a_lost_term_is_not_sent_under_a_later_one",),
    ),
    rounds(
        name="next-batch-does-not-end-the-one-under-way",
        breaks="I12",
        text="            except StoreUnreachable as error:  # its ticks",
        instead="            except ZeroDivisionError as error:  # its ticks",
        tests=(f"{AHEAD}::test_a_broker_that_is_gone_while_the_next_batch_is_made_leaves_the_one_under_way_alone",),
    ),
    Guard(
        file="beat/src/fencebeat/connection.py",
        name="unread-reply-ends-the-connection",
        breaks="I1a I12",
        text="                connection.disconnect()  # the reply",
        instead="                pass  # the reply",
        tests=(f"{AHEAD}::test_a_reply_that_nobody_reads_is_not_taken_for_the_next_one",),
    ),
    rounds(
        name="lost-reply-is-asked-again",
        breaks="I1a I12",
        text="        self._open = batch\n",
        instead="",
        tests=(f"{ROUNDS}::test_a_lost_reply_is_asked_again_and_answered_duplicate",),
    ),
    rounds(
        name="one-entry-stops-no-other",
        breaks="I2",
        text="            except Exception as error:  # whatever one entry raises",
        instead="            except ZeroDivisionError as error:  # whatever one entry raises",
        tests=(f"{ROUNDS}::test_an_entry_that_raises_is_left_alone_and_the_others_go_on",),
    ),
    catchup(
        name="catchup-bounded",
        breaks="I2 I11",
        text="                return _newest(times, LIMIT, ",
        instead="                return _newest(times, len(times), ",
        tests=(f"{CATCHUP}::test_s26_a_backlog_is_bounded_the_newest_are_kept_and_the_rest_is_counted",),
    ),
    catchup(
        name="catchup-grace",
        breaks="I2",
        text="        if grace is not None and grace < least:",
        instead="        if False:",
        tests=(f"{CATCHUP}::test_a_grace_shorter_than_two_leases_is_refused",),
    ),
    catchup(
        name="catchup-records-what-it-passes",
        breaks="I2",
        text="    return (Passed(times[0], times[-1], len(times), outcome, reason),) if times else ()",
        instead="    return ()",
        tests=(f"{CATCHUP}::test_every_open_fire_time_is_emitted_or_left_out_with_a_reason",),
    ),
    Guard(
        name="nothing-but-the-commit-writes",
        breaks="I1a I4",
        file="beat/src/fencebeat/capture.py",
        text='            raise UncapturedWrite(command=name, key=keys[0] if keys else "")',
        instead="            pass",
        tests=(f"{CAPTURE}::test_any_other_write_is_refused",),
    ),
    Guard(
        name="reserved-name-of-an-entry",
        breaks="I2",
        file="beat/src/fencebeat/entries.py",
        text="if not name or name == RESERVED or",
        instead="if not name or",
        tests=("tests/unit/test_entries.py::test_the_name_of_the_generation_is_refused",),
    ),
    Guard(
        name="copy-of-a-failover-begins-anew",
        breaks="I2",
        file="beat/src/fencebeat/copying.py",
        text="if found and found[0].id == self._position:",
        instead="if found:",
        tests=(
            "tests/unit/test_copying.py::test_a_failover_that_took_the_last_records_back_leaves_out_none_of_the_new_ones",
        ),
    ),
)
