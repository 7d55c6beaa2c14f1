"""Guards of edits and of extra runs, and of an entry's own rules: jitter, what may be stored, the sun."""

from functools import partial

from tests.guards.guard import Guard

EDITS = "tests/integration/test_edits.py"
REQUESTS = "tests/integration/test_requests.py"
DEFINITIONS = "tests/unit/test_definitions.py"
PRODUCT = "beat/src/fencebeat"
edit = partial(Guard, file=f"{PRODUCT}/lua/edit_entries.lua")
answer = partial(Guard, file=f"{PRODUCT}/lua/answer_request.lua")
requests = partial(Guard, file=f"{PRODUCT}/requests.py")
entries = partial(Guard, file=f"{PRODUCT}/entries.py")

_FENCE = (f"{REQUESTS}::test_s4_a_former_leader_answers_no_request",)
_PAST = (f"{REQUESTS}::test_nothing_is_answered_by_a_store_that_lost_its_past",)
_FLAGS = (f"{REQUESTS}::test_nothing_is_answered_under_flags_that_nobody_renews",)
_WAITS = (f"{REQUESTS}::test_a_request_that_the_broker_does_not_take_waits_behind_the_others_and_not_for_ever",)

GUARDS = (
    edit(
        name="edit-clock-of-the-host",
        breaks="I2",
        text="if math.abs(tonumber(host_now) - now) > tonumber(tolerance) then",
        instead="if false then",
        tests=(f"{EDITS}::test_s14_a_host_whose_clock_is_off_edits_nothing",),
    ),
    edit(
        name="edit-generation",
        breaks="I1b I2",
        text="  if not whole(redis.call('HGET', KEYS[i], 'generation')) then return {'unknown', KEYS[i]} end\n",
        instead="",
        tests=(f"{EDITS}::test_a_store_that_lost_its_past_is_not_edited",),
    ),
    edit(
        name="edit-definition-as-read",
        breaks="I2",
        text="(redis.call('HGET', KEYS[1], name) or '') ~= read or ",
        instead="",
        tests=(f"{EDITS}::test_an_edit_that_lost_a_race_reads_again_and_builds_on_the_other_one",),
    ),
    edit(
        name="edit-mark-as-read",
        breaks="I1a",
        text=" or (redis.call('HGET', KEYS[2], name) or '') ~= mark_read then",
        instead=" then",
        tests=(f"{EDITS}::test_an_edit_whose_mark_was_moved_by_an_emission_reads_again",),
    ),
    edit(
        name="edit-fire-time-passed",
        breaks="I2",
        text="  if following ~= '' and tonumber(following) <= now then return {'moved'} end\n",
        instead="",
        tests=(f"{EDITS}::test_s10_an_entry_whose_first_fire_time_passes_while_it_is_added_begins_after_it",),
    ),
    edit(
        name="edit-mark-in-the-future",
        breaks="I2",
        text="  if tonumber(mark) > now and mark ~= mark_read then return {'moved'} end\n",
        instead="",
        tests=(f"{EDITS}::test_a_clock_set_back_while_an_entry_is_added_leaves_no_mark_in_the_future",),
    ),
    edit(
        name="edit-keeps-the-pause",
        breaks="I2",
        text=" or redis.call('HEXISTS', KEYS[4], name) == 1 then",
        instead=" then",
        tests=(f"{EDITS}::test_an_edit_keeps_the_pause",),
    ),
    answer(
        name="request-token",
        breaks="I3 I4",
        text="if fence[1] ~= token or ",
        instead="if ",
        tests=_FENCE,
    ),
    answer(
        name="request-nonce",
        breaks="I4",
        text=" or fence[2] ~= nonce or ",
        instead=" or ",
        tests=_FENCE,
    ),
    answer(
        name="request-lock-value",
        breaks="I4",
        text=" or (carrier ~= 'term' and redis.call('GET', KEYS[1]) ~= nonce) then",
        instead=" then",
        tests=_FENCE,
    ),
    answer(
        name="request-generation",
        breaks="I1b I2",
        text="  if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end\n",
        instead="",
        tests=_PAST,
    ),
    answer(
        name="request-flags-generation", breaks="I8", text=" or generation < tonumber(seen)", instead="", tests=_FLAGS
    ),
    answer(
        name="request-flags-renewed",
        breaks="I8",
        text=" or math.abs(now - renewed) > FRESH then",
        instead=" then",
        tests=_FLAGS,
    ),
    answer(
        name="request-flags-unrenewed",
        breaks="I8",
        text="local generation, renewed = tonumber(copy[1] or ''), tonumber(copy[2] or '')",
        instead="local generation, renewed = tonumber(copy[1] or ''), tonumber(copy[2] or now)",
        tests=_FLAGS,
    ),
    answer(
        name="request-clock",
        breaks="I2",
        text="if sender_now > now + tolerance then",
        instead="if false then",
        tests=(f"{REQUESTS}::test_a_leader_whose_clock_is_ahead_answers_no_request",),
    ),
    answer(
        name="request-once",
        breaks="I1a",
        text="  if redis.call('HGET', KEYS[7], id) ~= request then return 'duplicate' end\n",
        instead="",
        tests=(f"{REQUESTS}::test_a_lost_reply_emits_it_once",),
    ),
    answer(
        name="request-version",
        breaks="I2",
        text=" or definition.version ~= version then",
        instead=" then",
        tests=(f"{REQUESTS}::test_a_request_waits_until_the_leader_knows_the_version_that_is_stored",),
    ),
    answer(
        name="request-stop",
        breaks="I8",
        text="  local stopped = stop()\n",
        instead="  local stopped = nil\n",
        tests=(f"{REQUESTS}::test_a_stop_drops_the_request_and_says_so",),
    ),
    answer(
        name="request-queue-type",
        breaks="I2 I9",
        text="  if not queues_are_right() then return 'refused' end\n",
        instead="",
        tests=(f"{REQUESTS}::test_a_queue_that_is_no_list_refuses_the_request",),
    ),
    requests(
        name="request-behind-the-others",
        breaks="I11",
        text="key=lambda pair: (pair[0] in self._deferred, *_order(pair[1]))",
        instead="key=lambda pair: _order(pair[1])",
        tests=(f"{REQUESTS}::test_requests_that_no_broker_takes_do_not_hold_up_the_others",),
    ),
    requests(
        name="request-not-for-ever",
        breaks="I12",
        text="if self._age(request) > HOPELESS:",
        instead="if False:",
        tests=_WAITS,
    ),
    requests(
        name="request-is-no-tick",
        breaks="I1a",
        text='tick_id(self.entry + (EXTRA if self.kind == "run" else ""), self.fire_time)',
        instead="tick_id(self.entry, self.fire_time)",
        tests=(f"{REQUESTS}::test_an_entry_run_now_is_emitted_once_beside_its_schedule",),
    ),
    entries(
        name="name-of-an-extra-run",
        breaks="I1a",
        text=" or name.endswith(EXTRA):",
        instead=":",
        tests=("tests/unit/test_entries.py::test_the_name_of_an_extra_run_is_refused",),
    ),
    entries(
        name="jitter-before-the-next",
        breaks="I2",
        text="            room = min(room, following - fire_time)\n",
        instead="            pass\n",
        tests=(f"{DEFINITIONS}::test_s27_jitter_ends_before_the_next_fire_time_and_depends_on_the_tick_alone",),
    ),
    entries(
        name="stored-as-given",
        breaks="I2",
        text="    if _listed(before) != _listed(after):\n",
        instead="    if False:\n",
        tests=(f"{DEFINITIONS}::test_what_would_not_be_read_back_equal_is_refused_in_a_stored_entry",),
    ),
    Guard(
        name="catchup-after-the-jitter",
        breaks="I2",
        file=f"{PRODUCT}/catchup.py",
        text="first = bisect_left(times, oldest, key=due_at)",
        instead="first = bisect_left(times, oldest)",
        tests=(f"{DEFINITIONS}::test_jitter_alone_makes_no_tick_late",),
    ),
    Guard(
        name="sun-search-ends",
        breaks="I11",
        file=f"{PRODUCT}/solar.py",
        text="if day - found > MOST_DAYS:",
        instead="if day - found > 100 * MOST_DAYS:",
        tests=("tests/unit/test_solar.py::test_what_never_comes_is_never_after_a_bounded_search",),
    ),
)
