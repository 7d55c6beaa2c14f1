"""Guards of the recovery of a lost past, and of the copies that it lives by."""

from tests.guards.guard import Guard

_RECOVERY = "tests/integration/test_recovery.py::"
_COPY = "tests/integration/test_entrycopy.py::"
_STORES = "tests/conformance/test_effect_stores.py::TestLedger::"
_LUA = "beat/src/fencebeat/lua/recover.lua"
_SQL = "index/ledger/sql/functions_ticks.sql"

GUARDS = (
    Guard(
        name="recovery-term",
        breaks="I4",
        file=_LUA,
        text="if term[1] ~= token or term[2] ~= nonce or (ARGV[3]",
        instead="if false and (ARGV[3]",
        tests=(_RECOVERY + "test_every_step_names_the_term",),
    ),
    Guard(
        name="recovery-mark-grows",
        breaks="I1",
        file=_LUA,
        text="text(math.max(stored or 0, mark[2]))",
        instead="text(mark[2])",
        tests=(_RECOVERY + "test_no_mark_falls_that_stayed_behind_without_a_generation",),
    ),
    Guard(
        name="recovery-digest",
        breaks="I2",
        file=_LUA,
        text="redis.call('HDEL', KEYS[2], 'digest')",
        instead="redis.call('HDEL', KEYS[2], 'nothing')",
        tests=(_RECOVERY + "test_s7_what_the_effect_store_knows_is_written_and_what_it_lost_is_recorded",),
    ),
    Guard(
        name="recovery-lease",
        breaks="I11",
        file="beat/src/fencebeat/recovery.py",
        text="if self._renew is not None and not self._renew(term):",
        instead="if False:",
        tests=(_RECOVERY + "test_a_lease_that_ran_out_while_the_past_was_read_ends_the_recovery",),
    ),
    Guard(
        name="recovery-open-tick",
        breaks="I2",
        file=_SQL,
        text="least((extract(epoch FROM m.fire_time) * 1000000)::bigint, o.earliest - 1)",
        instead="(extract(epoch FROM m.fire_time) * 1000000)::bigint",
        tests=(_STORES + "test_s7_an_emitted_tick_without_a_closed_claim_is_above_the_mark",),
    ),
    Guard(
        name="recovery-copied-mark",
        breaks="I2",
        file=_SQL,
        text="'^[0-9]{1,16}$' AND decides(r.record)",
        instead="'^[0-9]{1,16}$'",
        tests=(_STORES + "test_ticks_that_a_commit_left_due_move_no_mark",),
    ),
    Guard(
        name="recovery-unroutable-is-decided",
        breaks="I2",
        file=_SQL,
        text="                        AND l.outcome IN ('unroutable', 'paused',",
        instead="                        AND l.outcome IN ('paused',",
        tests=(_STORES + "test_what_the_outbox_published_is_open_and_what_no_queue_took_is_decided",),
    ),
    Guard(
        name="recovery-old-flags",
        breaks="I8",
        file=_LUA,
        text="redis.call('HSET', flags, 'renewed', looked)",
        instead="redis.call('HSET', flags, 'renewed', now)",
        tests=(_RECOVERY + "test_flags_that_were_read_long_ago_are_not_stamped_as_fresh",),
    ),
    Guard(
        name="recovery-trimming",
        breaks="I2",
        file=_SQL,
        text="WHERE s.guarded AND s.entry = a.entry AND s.fire_time = a.fire_time)",
        instead="WHERE false)",
        tests=(_STORES + "test_trimming_keeps_what_a_recovery_asks_for",),
    ),
    Guard(
        name="recovery-flushed-copy",
        breaks="I2",
        file="beat/src/fencebeat/entrycopy.py",
        text="if token != str(version.token) or not _number(generation) or int(generation) < version.generation:",
        instead="if False:",
        tests=(_COPY + "test_f06_a_store_that_is_flushed_while_it_is_copied_takes_nothing_from_the_copy",),
    ),
    Guard(
        name="recovery-long-past",
        breaks="I2 I11",
        file="beat/src/fencebeat/recovery.py",
        text="                raise PastUnread(seconds=READ_MOST)\n            self._keep_lease(term)\n",
        instead="                raise PastUnread(seconds=READ_MOST)\n",
        tests=(
            "tests/integration/test_frozen_postgres.py::test_f05_a_past_that_takes_longer_than_a_lease_does_not_cost_the_term",
        ),
    ),
    Guard(
        name="recovery-copy-order",
        breaks="I2",
        file="beat/src/fencebeat/copying.py",
        text="""            records = self._next()
            while self._definitions.copy():  # after the records were read, before they are kept
""",
        instead="""            self._definitions.copy()
            records = self._next()
            while False:
""",
        tests=(_COPY + "test_no_record_is_kept_before_the_definition_that_it_is_about",),
    ),
    Guard(
        name="recovery-lost-while-copying",
        breaks="I2",
        file="beat/src/fencebeat/copying.py",
        text="            if not records or self._past() != past:\n",
        instead="            if not records:\n",
        tests=(_COPY + "test_s7_records_of_a_store_that_was_lost_meanwhile_are_not_kept_without_their_definitions",),
    ),
    Guard(
        name="recovery-new-entries-are-told",
        breaks="I2",
        file=_LUA,
        text="'outcome', 'added', 'entry', mark[1]",
        instead="'outcome', 'untold', 'entry', mark[1]",
        tests=(_RECOVERY + "test_s7_an_entry_that_began_at_a_loss_is_known_at_the_next_one",),
    ),
    Guard(
        name="recovery-flags-lost",
        breaks="I8",
        file="beat/src/fencebeat/flagmemory.py",
        text="if known is None or not older:",
        instead="if True:",
        tests=(_RECOVERY + "test_f07_an_older_copy_of_the_flags_that_comes_back_is_set_right_by_whoever_remembers",),
    ),
)
