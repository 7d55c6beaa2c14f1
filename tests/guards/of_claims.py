"""Guards of the claims of ticks and of the worker's side."""

from functools import partial

from tests.guards.guard import Guard

CLAIMS = "tests/conformance/test_claims.py"
WORKERS = "tests/integration/test_guard_workers.py"
CELERY = "tests/integration/test_guard_celery.py"
UNIT = "tests/unit/test_guard.py"

postgres = partial(Guard, breaks="I1", file="beat/src/fencebeat/claims/postgres.py")
redis = partial(Guard, breaks="I1", file="beat/src/fencebeat/lua/claim.lua")
closing = partial(Guard, breaks="I1", file="beat/src/fencebeat/lua/claim_close.lua")
extending = partial(Guard, breaks="I1", file="beat/src/fencebeat/lua/claim_extend.lua")
guard = partial(Guard, breaks="I1 I2", file="beat/src/fencebeat/guard.py")


def in_postgres(name: str) -> tuple[str, ...]:
    return (f"{CLAIMS}::TestPostgresClaims::{name}",)


def in_redis(name: str) -> tuple[str, ...]:
    return (f"{CLAIMS}::TestRedisClaims::{name}",)


FROZEN = "tests/integration/test_frozen_postgres.py"

GUARDS = (
    Guard(
        name="postgres-every-wait-ends",
        breaks="I11 I12",
        file="beat/src/fencebeat/claims/bounded.py",
        text="        if clock.elapsed() >= end:",
        instead="        if False:",
        tests=(f"{FROZEN}::test_a_statement_that_nobody_answers_ends_whichever_way_is_cut",),
    ),
    Guard(
        name="postgres-mute-neighbours",
        breaks="I11",
        file="beat/src/fencebeat/claims/bounded.py",
        text="            pool.drain()\n",
        instead="",
        tests=(f"{FROZEN}::test_one_mute_connection_takes_the_other_idle_ones_with_it",),
    ),
    Guard(
        name="postgres-search-ends",
        breaks="I12",
        file="index/targets/pgvector.py",
        text="            within(conn, timeout + 1),  # the server's",
        instead="            within(conn, None),  # the server's",
        tests=(f"{FROZEN}::test_a_search_whose_server_freezes_under_it_ends_by_its_own_time_out",),
    ),
    postgres(
        name="claim-postgres-lease",
        text=" WHERE c.closed_at IS NULL AND c.lease_until <= clock_timestamp()",
        instead=" WHERE c.closed_at IS NULL",
        tests=in_postgres("test_a_tick_is_claimed_once_at_a_time"),
    ),
    postgres(
        name="claim-postgres-closed",
        text=" WHERE c.closed_at IS NULL AND c.lease_until <= clock_timestamp()",
        instead=" WHERE c.lease_until <= clock_timestamp()",
        tests=in_postgres("test_a_closed_tick_stays_closed"),
    ),
    postgres(
        name="claim-postgres-close-attempt",
        text=" WHERE tick_id = %s AND attempt = %s\n",
        instead=" WHERE tick_id = %s AND attempt >= %s\n",
        tests=in_postgres("test_s27_a_stale_attempt_is_refused_in_the_transaction_too"),
    ),
    postgres(
        name="claim-postgres-extend-attempt",
        text=" WHERE tick_id = %s AND attempt = %s AND closed_at IS NULL",
        instead=" WHERE tick_id = %s AND attempt >= %s AND closed_at IS NULL",
        tests=in_postgres("test_a_stale_attempt_can_change_nothing"),
    ),
    postgres(
        name="claim-postgres-transaction",
        text='if idle and getattr(connection, "autocommit", False):',
        instead="if False:",
        tests=in_postgres("test_closing_in_no_transaction_is_refused"),
    ),
    postgres(
        name="claim-postgres-purge-newest",
        text="AND n.fire_time > c.fire_time AND n.closed_at IS NOT NULL)",
        instead="AND n.closed_at IS NOT NULL)",
        tests=in_postgres("test_purging_keeps_what_is_open_and_the_newest_of_each_entry"),
    ),
    postgres(
        name="claim-postgres-purge-floor",
        text="   AND c.token < (SELECT max(token) FROM tick_claim WHERE namespace = c.namespace)\n",
        instead="",
        tests=in_postgres("test_purging_keeps_what_is_open_and_the_newest_of_each_entry"),
    ),
    postgres(
        name="claim-postgres-process",
        text="        pool = self._pools.get(os.getpid())",
        instead="        pool = next(iter(self._pools.values()), None)",
        tests=in_postgres("test_a_forked_child_speaks_on_no_connection_of_its_parent"),
    ),
    redis(
        name="claim-redis-lease",
        text="if ends > now then",
        instead="if false then",
        tests=in_redis("test_a_tick_is_claimed_once_at_a_time"),
    ),
    redis(
        name="claim-redis-closed",
        text="if known[4] then return {'closed', known[4]} end",
        instead="",
        tests=in_redis("test_a_closed_tick_stays_closed"),
    ),
    redis(
        name="claim-redis-floor",
        text="if token > floor then",
        instead="if true then",
        tests=in_redis("test_the_floor_is_the_highest_token_of_any_claim"),
    ),
    closing(
        name="claim-redis-close-attempt",
        text="if known[1] ~= ARGV[2] then return 0 end",
        instead="",
        tests=in_redis("test_a_stale_attempt_can_change_nothing"),
    ),
    extending(
        name="claim-redis-extend-attempt",
        text="if known[1] ~= ARGV[1] or known[2] then return 0 end",
        instead="if known[2] then return 0 end",
        tests=in_redis("test_a_stale_attempt_can_change_nothing"),
    ),
    Guard(
        name="claim-redis-purge-newest",
        breaks="I1",
        file="beat/src/fencebeat/lua/claim_purge.lua",
        text="if newest and string.match(newest, '%S+$') == task_id then",
        instead="if false then",
        tests=in_redis("test_purging_keeps_what_is_open_and_the_newest_of_each_entry"),
    ),
    guard(
        name="guard-running",
        text="            _put_back(self, tick, answer.left)",
        instead="            raise Ignore",  # acknowledged away
        tests=(f"{WORKERS}::test_f23_a_copy_waits_while_it_runs_runs_after_a_kill_and_is_dropped_when_closed",),
    ),
    guard(
        name="guard-unknown",
        text="            _put_back(self, tick, UNKNOWN_SECONDS)",
        instead="            raise Ignore from error",
        tests=(f"{WORKERS}::test_a_tick_is_put_back_and_not_run_while_the_store_of_claims_does_not_answer",),
    ),
    guard(
        name="guard-refused-close",
        text="        if not held:",
        instead="        if False:",
        tests=(f"{UNIT}::test_a_refused_close_puts_the_message_back_and_drops_the_result",),
    ),
    guard(
        name="guard-stale-transaction",
        text="            raise ClaimLost(task_id=self.task_id, attempt=self.attempt)",
        instead="            pass",
        tests=(
            f"{UNIT}::test_closing_in_a_transaction_is_refused_where_another_attempt_has_the_claim",
            f"{WORKERS}::test_f23_a_worker_frozen_beyond_its_lease_has_no_effect_when_it_wakes",
        ),
    ),
    guard(
        name="guard-heartbeat",
        text="            with run.heartbeat:",
        instead="            if True:",
        tests=(f"{WORKERS}::test_a_running_task_holds_its_claim_beyond_the_lease_in_every_pool",),
    ),
    guard(
        name="guard-worker-lost",
        text="    reject_on_worker_lost = True",
        instead="    reject_on_worker_lost = False",
        tests=(f"{WORKERS}::test_f26_a_pool_child_that_dies_leaves_one_effect",),
    ),
    guard(
        name="guard-retry-release",
        text="        if run is not None and throw:",
        instead="        if False:",
        tests=(f"{CELERY}::test_a_retry_is_the_same_tick_as_its_next_attempt",),
    ),
    guard(
        name="guard-retries-kept",
        text="retries=request.retries)",
        instead="retries=request.retries + 1)",
        tests=(f"{CELERY}::test_a_message_that_is_put_back_is_the_same_message",),
    ),
    guard(
        name="guard-hard-limit",
        text="            self._close_as_failed()",
        instead="            pass",
        tests=(f"{CELERY}::test_a_time_limit_ends_the_tick_as_failed",),
    ),
    guard(
        name="guard-broadcast",
        text="        if _is_broadcast(self.app, request.delivery_info or {}):",
        instead="        if False:",
        tests=(f"{CELERY}::test_a_broadcast_runs_on_each_worker",),
    ),
    Guard(
        name="guard-late-extension",
        breaks="I1",
        file="beat/src/fencebeat/claims/heartbeat.py",
        text="        with self._calling:  # after a release, a late extension would take the claim again for nobody\n"
        "            pass",
        instead="        pass",
        tests=(f"{UNIT}::test_a_stopped_heartbeat_extends_no_more_and_waits_for_the_call_under_way",),
    ),
)
