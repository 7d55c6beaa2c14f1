"""Guards of the commit script and of the look at what is due."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_commit.py"
commit = partial(Guard, file="beat/src/fencebeat/lua/commit.lua")
due = partial(Guard, file="beat/src/fencebeat/lua/due.lua")


def on(*names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}::{name}" for name in names)


GUARDS = (
    commit(
        name="commit-fence",
        breaks="I3 I4",
        text="local ours = fence[1] == token and fence[2] == nonce",
        instead="local ours = true carrier = 'term'",
        tests=on("test_f02_the_whole_batch_of_an_old_term_is_refused"),
    ),
    commit(
        name="commit-token",
        breaks="I3 I4",
        text="local ours = fence[1] == token and fence[2] == nonce",
        instead="local ours = fence[2] == nonce",
        tests=on("test_the_newest_nonce_under_another_token_is_refused"),
    ),
    commit(
        name="commit-nonce",
        breaks="I4",
        text="local ours = fence[1] == token and fence[2] == nonce",
        instead="local ours = fence[1] == token",
        tests=on("test_s7_an_equal_token_with_another_nonce_is_refused"),
    ),
    commit(
        name="commit-lock-value",
        breaks="I4",
        text="(carrier ~= 'term' and redis.call('GET', lock) ~= nonce)",
        instead="false",
        tests=on("test_a_lock_that_ran_out_is_refused_although_the_term_is_the_last_one"),
    ),
    commit(
        name="commit-generation",
        breaks="I1b I2 I8",
        text="if not redis.call('HGET', key, 'generation') then return {'unknown', key} end",
        instead="",
        tests=on("test_a_store_without_a_generation_is_unknown_and_nothing_is_decided"),
    ),
    commit(
        name="commit-flags-generation",
        breaks="I8",
        text="generation < tonumber(seen) or ",
        instead="",
        tests=on("test_flags_that_are_older_than_the_sender_knows_or_not_renewed_are_unknown"),
    ),
    commit(
        name="commit-flags-renewed",
        breaks="I8",
        text=" or math.abs(now - renewed) > FRESH",
        instead="",
        tests=on("test_flags_that_are_older_than_the_sender_knows_or_not_renewed_are_unknown"),
    ),
    commit(
        name="commit-flags-renewed-ahead",
        breaks="I8",
        text="math.abs(now - renewed) > FRESH",
        instead="now - renewed > FRESH",
        tests=on("test_flags_that_are_older_than_the_sender_knows_or_not_renewed_are_unknown"),
    ),
    commit(
        name="commit-clock",
        breaks="I2 I4",
        text="if sender_now > now + tolerance then",
        instead="if false then",
        tests=on("test_a_sender_whose_clock_is_ahead_is_refused_and_nothing_changes"),
    ),
    commit(
        name="commit-early",
        breaks="I2",
        text="if tick.fire > now then return 'early' end",
        instead="",
        tests=on("test_f11_a_fire_time_later_than_the_servers_time_stays_due"),
    ),
    commit(
        name="commit-mark",
        breaks="I1a",
        text="if tick.fire <= mark then return 'duplicate' end",
        instead="",
        tests=on("test_s21_a_repeated_commit_is_answered_duplicate_and_queues_nothing"),
    ),
    commit(
        name="commit-mark-equal",
        breaks="I1a",
        text="if tick.fire <= mark then return 'duplicate' end",
        instead="if tick.fire == mark then return 'duplicate' end",
        tests=on("test_s21_an_old_tick_is_refused_for_ever_also_by_a_new_leader"),
    ),
    commit(
        name="commit-mark-in-batch",
        breaks="I1a",
        text="local mark = marks[tick.entry] or stored[i]",
        instead="local mark = stored[i]",
        tests=on("test_the_same_tick_twice_in_one_batch_is_queued_once"),
    ),
    commit(
        name="commit-version",
        breaks="I2",
        text="if not is_version(definitions[i], tick) then return 'changed' end",
        instead="",
        tests=on("test_s17_a_tick_of_another_version_is_not_emitted_and_stays_due"),
    ),
    commit(
        name="commit-paused-entry",
        breaks="I2",
        text="if tick.held then return 'held' end",
        instead="",
        tests=on("test_s17_a_paused_entry_is_held_and_keeps_its_mark"),
    ),
    commit(
        name="commit-stop",
        breaks="I8",
        text="    tick.reason = stop\n    return 'paused'\n",
        instead="",
        tests=on("test_a_stop_holds_the_tick_back_at_every_level_and_records_it"),
    ),
    commit(
        name="commit-queue-type",
        breaks="I2",
        text="if not queues_are_right(tick) then return 'refused' end",
        instead="",
        tests=on("test_an_entry_whose_queue_is_no_list_waits_and_the_others_go_on"),
    ),
    commit(
        name="commit-order-of-an-entry",
        breaks="I2",
        text="    refused[tick.entry] = result\n",
        instead="",
        tests=on("test_what_follows_an_undecided_tick_of_the_same_entry_waits_too"),
    ),
    commit(
        name="commit-types-first",
        breaks="I2",
        text="    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}",
        instead="",
        tests=on("test_a_record_of_a_wrong_type_is_named_and_nothing_is_written"),
    ),
    commit(
        name="commit-mark-is-a-number",
        breaks="I1a I2",
        text="    if not mark then return nil, tick.entry end\n",
        instead="    mark = mark or 0\n",
        tests=on("test_a_mark_that_is_no_number_is_named_and_nothing_is_written"),
    ),
    commit(
        name="commit-first-write-needs-memory",
        breaks="I2",
        text="each(new_marks, function(_, ...)",
        instead="redis.call('DEL', last .. ':none') each(new_marks, function(_, ...)",
        tests=on("test_a_full_server_refuses_the_whole_batch"),
    ),
    commit(
        name="commit-due-never-back",
        breaks="I2",
        text="call('ZADD', due, 'GT', ",
        instead="call('ZADD', due, ",
        tests=on("test_a_duplicate_moves_the_due_time_on_and_never_back"),
    ),
    commit(
        name="commit-extends-the-lease",
        breaks="I11",
        text="if carrier ~= 'term' then call('PEXPIRE', lock, lease) end",
        instead="",
        tests=on("test_a_commit_extends_the_lease"),
    ),
    commit(
        name="commit-digits",
        breaks="I1a I3",
        text="local function text(number) return format('%.0f', number) end",
        instead="local function text(number) return number .. '' end",
        tests=on("test_large_numbers_keep_their_digits"),
    ),
    due(
        name="due-fence",
        breaks="I4 I11",
        text="if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] or",
        instead="if",
        tests=on("test_an_old_term_is_told_so_when_it_asks_what_is_due_or_syncs"),
    ),
    due(
        name="due-generation",
        breaks="I2 I8",
        text="if not redis.call('HGET', KEYS[i], 'generation') then return {'unknown', KEYS[i]} end",
        instead="",
        tests=on("test_a_store_without_a_generation_is_unknown_and_nothing_is_decided"),
    ),
)
