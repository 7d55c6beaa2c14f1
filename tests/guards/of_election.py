"""Guards of the elector, the trust window and the watchdog."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/unit/test_lease_elector.py"
elector = partial(Guard, file="beat/src/fencebeat/elector.py")


def on(*names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}::{name}" for name in names)


GUARDS = (
    Guard(
        name="trust-ends-before-the-lease",
        breaks="I4 belief",
        file="beat/src/fencebeat/lease.py",
        text="return attempt_started + lease - margin",
        instead="return attempt_started + lease",
        tests=("tests/unit/test_lease.py", *on("test_trust_ends_by_our_own_clock_before_the_lease_does")),
    ),
    elector(
        name="trust-from-the-start-of-the-election",
        breaks="I4 belief",
        text="until = trusted_until(started, term.lease, self._timing.margin)",
        instead="until = trusted_until(self._clock.elapsed(), term.lease, self._timing.margin)",
        tests=on("test_a_slow_election_shortens_trust"),
    ),
    elector(
        name="trust-from-the-start-of-the-renewal",
        breaks="I4 belief",
        text="        self._trust(belief, started)\n        return self.signals.renewed",
        instead="        self._trust(belief, self._clock.elapsed())\n        return self.signals.renewed",
        tests=on("test_a_slow_reply_shortens_trust"),
    ),
    elector(
        name="late-reply-revives-nothing",
        breaks="I4 belief",
        text="        if not belief.trusted(self._clock.elapsed()):  # yes",
        instead="        if False:  # yes",
        tests=on("test_a_reply_that_comes_after_the_end_of_trust_makes_nobody_leader_again"),
    ),
    elector(
        name="late-commit-revives-nothing",
        breaks="I4 belief",
        text="belief.term == term and belief.trusted(self._clock.elapsed()):",
        instead="belief.term == term:",
        tests=on("test_s4_a_suspended_host_leads_no_more_at_the_first_look"),
    ),
    elector(
        name="renewal-tied-to-the-tick-thread",
        breaks="I11",
        text="        if not self._ticking():\n            return self._rest(min(0.1, belief.until - now))\n",
        instead="",
        tests=on("test_a_hanging_tick_thread_loses_the_lease"),
    ),
    elector(
        name="campaign-tied-to-the-tick-thread",
        breaks="I11",
        text='        if not self._ticking():\n            self._say("standby", "not_ticking")',
        instead='        if False:\n            self._say("standby", "not_ticking")',
        tests=on("test_a_process_leads_once_its_tick_thread_goes_round"),
    ),
    elector(
        name="refused-renewal-is-final",
        breaks="I4",
        text='            return self._demote(belief, "refused")\n',
        instead="            return None\n",
        tests=on("test_a_refused_renewal_is_final"),
    ),
    elector(
        name="fenced-commit-ends-the-term",
        breaks="I4 I11",
        text="            belief.over = reason\n            self._mail.put(None)",
        instead="            self._mail.put(None)",
        tests=on("test_a_term_that_a_commit_found_fenced_is_given_up_at_once_and_a_new_one_won"),
    ),
    elector(
        name="floor-from-the-effect-store",
        breaks="I3",
        text="floor = self._floor() if self._floor is not None else 0",
        instead="floor = 0",
        tests=on("test_the_floor_of_the_effect_store_is_below_the_token"),
    ),
    elector(
        name="permit-before-the-campaign",
        breaks="I2",
        text='            self._say("standby", why)\n            return self._rest(1.0)\n',
        instead="",
        tests=on("test_a_reason_not_to_lead_keeps_it_from_campaigning_and_ends_a_term"),
    ),
    elector(
        name="recovery-before-leading",
        breaks="I1b I2 I8",
        text="                self._prepare(term)\n",
        instead="                pass\n",
        tests=on("test_nothing_may_be_done_while_a_term_is_prepared"),
    ),
    elector(
        name="unprepared-term-is-given-back",
        breaks="I11",
        text="            self._give_back(wake=False)\n            return self._recover_later(error)",
        instead="            return self._recover_later(error)",
        tests=on("test_a_term_that_cannot_be_prepared_is_resigned_without_a_signal"),
    ),
    elector(
        name="doubt-is-no-end",
        breaks="I11",
        text="except Exception as error:  # whatever it was",
        instead="except KeyError as error:  # whatever it was",
        tests=on("test_a_broken_store_is_no_reason_to_lead_or_to_end"),
    ),
    elector(
        name="stopping-resigns",
        breaks="I2 I11",
        text="        try:\n            self._give_back()\n        except StoreUnreachable as error:",
        instead="        try:\n            pass\n        except StoreUnreachable as error:",
        tests=on("test_stopping_resigns_and_wakes_the_standby"),
    ),
    Guard(
        name="watchdog-ends-a-hang",
        breaks="I11",
        file="beat/src/fencebeat/_watch.py",
        text="    os.kill(pid, signum)\n",
        instead="    return\n",
        tests=(
            "tests/integration/test_elector_watchdog.py::test_s9_a_hung_process_is_ended_with_its_stacks_and_a_code_that_is_not_zero",
        ),
    ),
    Guard(
        name="watchdog-spares-the-frozen",
        breaks="I11",
        file="beat/src/fencebeat/_watch.py",
        text="        elif not stopped(pid):\n",
        instead="        else:\n",
        tests=(
            "tests/integration/test_elector_watchdog.py::test_s4_a_process_that_was_frozen_beyond_the_limit_goes_on",
        ),
    ),
)
