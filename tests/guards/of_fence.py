"""Guards of the scripts that begin, extend and end a term."""

from functools import partial

from tests.guards.guard import Guard

LOCK = "tests/integration/test_elector_redis_lock.py"
LOCKS = "tests/conformance/test_locks.py"
LUA = "beat/src/fencebeat/lua"
acquire = partial(Guard, file=f"{LUA}/acquire.lua")
renew = partial(Guard, file=f"{LUA}/renew.lua")
release = partial(Guard, file=f"{LUA}/release.lua")
seal = partial(Guard, file=f"{LUA}/seal.lua")

GUARDS = (
    acquire(
        name="acquire-one-holder",
        breaks="I4",
        text="if held and held ~= nonce then",
        instead="if false then",
        tests=(f"{LOCKS}::TestRedisLock::test_one_term_at_a_time",),
    ),
    acquire(
        name="acquire-own-nonce",
        breaks="I11",
        text="if held and held == nonce and term[2] == nonce then",
        instead="if false then",
        tests=(f"{LOCKS}::TestRedisLock::test_the_own_nonce_again_answers_the_same_term_and_extends_the_lease",),
    ),
    acquire(
        name="acquire-seals",
        breaks="I4",
        text="redis.call('HSET', KEYS[3], 'token', token, 'nonce', nonce,",
        instead="redis.call('HSET', KEYS[3],",
        tests=(f"{LOCK}::test_the_fence_is_sealed_and_recorded_in_the_step_that_takes_the_lock",),
    ),
    acquire(
        name="acquire-above-the-stored-token",
        breaks="I3",
        text="math.max(stored, floor, now) + 1",
        instead="math.max(floor, now) + 1",
        tests=(f"{LOCK}::test_a_token_is_the_servers_microseconds_unless_more_is_known",),
    ),
    acquire(
        name="acquire-above-the-floor",
        breaks="I3",
        text="math.max(stored, floor, now) + 1",
        instead="math.max(stored, now) + 1",
        tests=(f"{LOCK}::test_a_token_is_the_servers_microseconds_unless_more_is_known",),
    ),
    acquire(
        name="acquire-above-the-clock",
        breaks="I3",
        text="math.max(stored, floor, now) + 1",
        instead="math.max(stored, floor) + 1",
        tests=(f"{LOCK}::test_a_token_is_the_servers_microseconds_unless_more_is_known",),
    ),
    acquire(
        name="acquire-floor-of-a-day",
        breaks="I3",
        text=" or floor > now + DAY then",
        instead=" then",
        tests=(f"{LOCKS}::TestRedisLock::test_a_floor_that_no_clock_can_explain_is_refused",),
    ),
    acquire(
        name="acquire-shortens",
        breaks="I11",
        text="if left < 0 or left > theirs then",
        instead="if false then",
        tests=(f"{LOCK}::test_a_lock_that_a_set_back_clock_left_too_long_is_shortened_to_one_lease",),
    ),
    acquire(
        name="acquire-the-holders-lease",
        breaks="I4",
        text="local theirs = term[2] == held and tonumber(term[3] or '') or lease",
        instead="local theirs = lease",
        tests=(f"{LOCK}::test_the_holders_lease_counts_and_not_that_of_the_standby",),
    ),
    acquire(
        name="acquire-types-first",
        breaks="I4",
        text="    return {'unusable', KEYS[i], 'a ' .. kind .. ', not a ' .. want}",
        instead="",
        tests=(f"{LOCK}::test_a_record_of_another_type_is_named_and_nothing_is_written",),
    ),
    acquire(
        name="acquire-token-is-a-number",
        breaks="I3",
        text="if not stored or stored < 0 or stored ~= math.floor(stored) or stored >= LIMIT - 1 then",
        instead="stored = stored or 0 if false then",
        tests=(f"{LOCK}::test_a_stored_token_that_is_no_whole_number_is_refused",),
    ),
    acquire(
        name="acquire-old-signals",
        breaks="I11",
        text="redis.call('DEL', KEYS[2]) -- what an earlier release left would wake waiters for nothing",
        instead="",
        tests=(f"{LOCK}::test_one_release_leaves_a_signal_for_every_standby_and_the_next_term_removes_them",),
    ),
    renew(
        name="renew-lock-value",
        breaks="I4",
        text="if redis.call('GET', KEYS[1]) ~= ARGV[2] or ",
        instead="if ",
        tests=(f"{LOCK}::test_a_lock_that_another_program_took_meanwhile_is_neither_extended_nor_freed",),
    ),
    renew(
        name="renew-term",
        breaks="I4",
        text=" or term[1] ~= ARGV[1] or term[2] ~= ARGV[2] then",
        instead=" then",
        tests=(f"{LOCKS}::TestRedisLock::test_only_the_exact_term_is_renewed_or_resigned",),
    ),
    release(
        name="release-lock-value",
        breaks="I4",
        text="if redis.call('GET', KEYS[1]) ~= ARGV[2] or ",
        instead="if ",
        tests=(f"{LOCK}::test_a_lock_that_another_program_took_meanwhile_is_neither_extended_nor_freed",),
    ),
    release(
        name="release-term",
        breaks="I4",
        text=" or term[1] ~= ARGV[1] or term[2] ~= ARGV[2] then",
        instead=" then",
        tests=(f"{LOCKS}::TestRedisLock::test_only_the_exact_term_is_renewed_or_resigned",),
    ),
    release(
        name="release-wakes-all",
        breaks="I11",
        text="for _ = 1, waiters do",
        instead="for _ = 1, math.min(waiters, 1) do",
        tests=(f"{LOCK}::test_one_release_leaves_a_signal_for_every_standby_and_the_next_term_removes_them",),
    ),
    seal(
        name="seal-above-the-stored-token",
        breaks="I3 I4",
        text="if token <= stored or token <= floor then",
        instead="if token <= floor then",
        tests=("tests/integration/test_elector.py::test_etcd_restored_from_a_backup_issues_no_token_twice",),
    ),
    seal(
        name="seal-equal-token",
        breaks="I4",
        text="if token <= stored or token <= floor then",
        instead="if token < stored or token <= floor then",
        tests=("tests/integration/test_elector.py::test_an_equal_token_under_another_nonce_is_not_sealed",),
    ),
    seal(
        name="seal-above-the-floor",
        breaks="I3",
        text="if token <= stored or token <= floor then",
        instead="if token <= stored then",
        tests=("tests/integration/test_elector.py::test_etcd_campaigns_again_above_a_floor_it_did_not_know",),
    ),
)
