"""Guards of what keeps the leader's schedule and the store's the same, and of the plan that is made from it."""

from functools import partial

from tests.guards.guard import Guard

COMMIT = "tests/integration/test_commit.py"
SYNC = "tests/integration/test_sync.py"
SCALE = "tests/integration/test_rounds_at_scale.py"
FORTH = (
    "tests/integration/test_different_schedules.py"
    "::test_f34_s23_a_rolling_change_back_and_forth_is_an_event_and_an_alarm"
)
PRODUCT = "beat/src/fencebeat"
script = partial(Guard, file=f"{PRODUCT}/lua/sync_entries.lua")
sync = partial(Guard, file=f"{PRODUCT}/sync.py")
rounds = partial(Guard, file=f"{PRODUCT}/rounds.py")

GUARDS = (
    Guard(
        name="commit-paused-stays-paused",
        breaks="I2",
        file=f"{PRODUCT}/lua/commit.lua",
        text=" and tick.following and not tick.held then",
        instead=" and tick.following then",
        tests=(f"{COMMIT}::test_a_repeated_commit_does_not_put_a_paused_entry_back_among_the_due_ones",),
    ),
    script(
        name="sync-generation-as-read",
        breaks="I2",
        text="if generation ~= ARGV[6] then return {'moved', 'generation'} end",
        instead="",
        tests=(f"{SYNC}::test_an_edit_in_the_middle_makes_it_read_again",),
    ),
    script(
        name="sync-mark-as-read",
        breaks="I1a I2",
        text="  if (redis.call('HGET', KEYS[4], line.name) or '') ~= line.read then return {'moved', line.name} end\n",
        instead="",
        tests=(f"{SYNC}::test_s17_a_mark_that_moves_while_the_schedule_is_compared_never_falls",),
    ),
    script(
        name="sync-keeps-the-pause",
        breaks="I2",
        text=" or redis.call('HEXISTS', KEYS[7], name) == 1 then",
        instead=" then",
        tests=(f"{SYNC}::test_s17_a_pause_outlives_a_change_of_the_configuration",),
    ),
    sync(
        name="edits-without-a-hole",
        breaks="I2",
        text='if len(news) != missing or any(fields.get("op") == "sync" for fields in news.values()):',
        instead="if memory.generation is None:",
        tests=(f"{SYNC}::test_s17_edits_with_a_hole_in_them_load_all",),
    ),
    sync(
        name="restored-with-its-mark",
        breaks="I2",
        text=" or (restoring and not stored))",
        instead=")",
        tests=(f"{SYNC}::test_s22_a_static_definition_that_was_deleted_is_restored_with_its_mark",),
    ),
    sync(
        name="schedules-in-turns",
        breaks="I12",
        text="back = found.replaced == memory.digest",
        instead="back = False",
        tests=(FORTH,),
    ),
    Guard(
        name="standby-with-another-schedule",
        breaks="I12",
        file=f"{PRODUCT}/scheduler.py",
        text="                self._schedule.look()\n",
        instead="                pass\n",
        tests=(FORTH,),
    ),
    rounds(
        name="definitions-are-counted",
        breaks="I2",
        text="if due.entries != self.memory.count and facts != self._odd:",
        instead="if False:",
        tests=(f"{SCALE}::test_s22_definitions_that_disappear_are_restored_or_named_within_one_loop",),
    ),
    rounds(
        name="edits-are-followed",
        breaks="I2",
        text="if due.generation != self.memory.generation:",
        instead="if False:",
        tests=(f"{SCALE}::test_s17_an_edit_is_followed_while_nothing_is_due",),
    ),
    Guard(
        name="rate-of-an-entry",
        breaks="I1",
        file=f"{PRODUCT}/planner.py",
        text="        if entry in self._replayed:\n",
        instead="        if False:\n",
        tests=(f"{SCALE}::test_an_entry_whose_mark_falls_again_and_again_is_stopped_and_the_others_go_on",),
    ),
)
