"""Guards of where the store is and what it must be: the lease's times, the carrier of a term, clocks, refusals."""

from functools import partial

from tests.guards.guard import Guard

LEASE = "tests/unit/test_lease.py"
CONNECTION = "tests/integration/test_elector_connection.py"
CHECK = "tests/integration/test_check.py"
LOCK = "tests/integration/test_elector_redis_lock.py"
PRODUCT = "beat/src/fencebeat"
timing = partial(
    Guard,
    file=f"{PRODUCT}/lease.py",
    tests=(f"{LEASE}::test_timings_that_cannot_work_are_refused_with_the_settings_named",),
)
connection = partial(Guard, file=f"{PRODUCT}/connection.py")

GUARDS = (
    Guard(
        name="commit-of-another-store",
        breaks="I4 belief",
        file=f"{PRODUCT}/elector.py",
        text='        if self._lock.carrier != "lock":\n            return\n',
        instead="",
        tests=(
            "tests/unit/test_lease_elector.py::test_f16_a_commit_extends_no_trust_where_another_store_keeps_the_lock",
        ),
    ),
    Guard(
        name="one-watch-of-jumps",
        breaks="I2",
        file=f"{PRODUCT}/scheduler.py",
        text="return clock_refusal(self._permits, self._clock, self._configuration.tolerance, self._jumps)",
        instead="return clock_refusal(self._permits, self._clock, self._configuration.tolerance)",
        tests=(
            "tests/integration/test_clocks.py::test_s14_a_standby_that_knew_the_time_before_a_jump_does_not_lead_after_it",
        ),
    ),
    Guard(
        name="policy-at-run-time",
        breaks="I12",
        file=f"{PRODUCT}/scheduler.py",
        text="        self._policy.look()\n",
        instead="",
        tests=(
            "tests/integration/test_stores.py::test_f09_s22_an_eviction_that_is_switched_on_at_run_time_is_told_and_survived",
        ),
    ),
    Guard(
        name="release-wakes",
        breaks="I11",
        file=f"{PRODUCT}/lua/release.lua",
        text="  redis.call('LPUSH', KEYS[2], '1')",
        instead="  redis.call('LLEN', KEYS[2])",
        tests=(f"{LOCK}::test_one_release_leaves_a_signal_for_every_standby_and_the_next_term_removes_them",),
    ),
    Guard(
        name="lock-expires",
        breaks="I11",
        file=f"{PRODUCT}/lua/acquire.lua",
        text="redis.call('SET', KEYS[1], nonce, 'PX', lease)",
        instead="redis.call('SET', KEYS[1], nonce)",
        tests=(f"{LOCK}::test_the_fence_is_sealed_and_recorded_in_the_step_that_takes_the_lock",),
    ),
    Guard(
        name="renew-whole-term",
        breaks="I4",
        file=f"{PRODUCT}/lua/renew.lua",
        text="if redis.call('GET', KEYS[1]) ~= ARGV[2] or term[1] ~= ARGV[1] or term[2] ~= ARGV[2] then",
        instead="if false then",
        tests=("tests/conformance/test_locks.py::TestRedisLock::test_only_the_exact_term_is_renewed_or_resigned",),
    ),
    Guard(
        name="seal-floor-of-a-day",
        breaks="I3",
        file=f"{PRODUCT}/lua/seal.lua",
        text=" or floor > now + DAY then",
        instead=" then",
        tests=("tests/conformance/test_locks.py::TestEtcdLock::test_a_floor_that_no_clock_can_explain_is_refused",),
    ),
    timing(name="lease-margin", breaks="I4 belief", text="(self.margin > 0, ", instead="(True, "),
    timing(name="lease-renewal", breaks="I11", text="(self.renew_every > 0, ", instead="(True, "),
    timing(name="lease-call-timeout", breaks="I11", text="(self.call_timeout > 0, ", instead="(True, "),
    timing(name="lease-two-renewals", breaks="I11", text="trust > 2 * self.renew_every,", instead="True,"),
    timing(name="lease-call-within-trust", breaks="I4 belief", text="self.call_timeout < trust,", instead="True,"),
    timing(name="lease-progress", breaks="I11", text="self.progress_within > 1.0,", instead="True,"),
    connection(
        name="store-cluster-mode",
        breaks="I2",
        text='if str(server.get("cluster_enabled", 0)) == "1":',
        instead="if False:",
        tests=(f"{CONNECTION}::test_s22_cluster_mode_is_refused",),
    ),
    connection(
        name="store-eviction",
        breaks="I4 I8",
        text='.get("maxmemory_policy", "noeviction")) != "noeviction":\n        sentence',
        instead='.get("maxmemory_policy", "noeviction")) == "":\n        sentence',
        tests=(f"{CONNECTION}::test_s22_a_store_that_may_evict_is_refused_or_warned_of",),
    ),
    connection(
        name="store-clock",
        breaks="I2",
        text="    if abs(ahead) > tolerance:\n",
        instead="    if False:\n",
        tests=(f"{CONNECTION}::test_s25_a_clock_that_is_off_keeps_a_host_from_leading",),
    ),
    *(
        Guard(
            name=f"check-{name}",
            breaks="I12",
            file=f"{PRODUCT}/checks.py",
            text=text,
            instead=instead,
            tests=(f"{CHECK}::{test}",),
        )
        for name, text, instead, test in (
            (
                "cluster-mode",
                'if str(info.get("cluster_enabled", 0)) == "1":',
                "if False:",
                "test_s22_cluster_mode_is_refused",
            ),
            (
                "eviction",
                'if (policy := info.get("maxmemory_policy", "noeviction")) == "noeviction":',
                'if (policy := info.get("maxmemory_policy", "noeviction")):',
                "test_s22_f09_an_eviction_policy_is_refused_or_accepted_by_the_setting_it_names",
            ),
            (
                "clock",
                "    if abs(ahead) <= tolerance:\n",
                "    if True:\n",
                "test_s25_a_clock_that_is_off_is_told_with_its_difference",
            ),
        )
    ),
    connection(
        name="store-no-repeats",
        breaks="I1 I4",
        text='"retry": Retry(NoBackoff(), 0),',
        instead="",
        tests=(f"{CONNECTION}::test_a_client_has_our_time_outs_and_no_repeats_of_its_own",),
    ),
    connection(
        name="store-one-broker",
        breaks="I4",
        text="if len(connection.alt) > 1 and not sentinel:",
        instead="if False:",
        tests=(f"{CONNECTION}::test_a_broker_without_one_place_for_the_fence_is_refused",),
    ),
)
