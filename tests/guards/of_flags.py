"""Guards of the copy of the flags."""

from functools import partial

from tests.guards.guard import Guard

TESTS = "tests/integration/test_flags.py"
renew_flags = partial(Guard, file="beat/src/fencebeat/lua/renew_flags.lua")
flags = partial(Guard, file="beat/src/fencebeat/flags.py")

GUARDS = (
    renew_flags(
        name="flags-never-older",
        breaks="I8",
        text="if given < stored then return {'stale', string.format('%.0f', stored)} end",
        instead="",
        tests=(f"{TESTS}::test_a_lower_generation_never_undoes_a_stop",),
    ),
    renew_flags(
        name="flags-no-generation-by-a-keeper",
        breaks="I8 I2",
        text="if not stored then return {'unknown'} end",
        instead="stored = stored or 0",
        tests=(f"{TESTS}::test_a_keeper_makes_no_store_look_as_if_it_knew_its_past",),
    ),
    renew_flags(
        name="flags-as-old-as-their-reading",
        breaks="I8",
        text="  renewed = read_at -- of the same flags, the youngest reading counts",
        instead="  renewed = now",
        tests=(f"{TESTS}::test_f29_a_copy_is_as_old_as_its_reading_and_not_as_its_writing",),
    ),
    renew_flags(
        name="flags-youngest-reading",
        breaks="I11",
        text="if given > stored or not renewed or renewed < read_at or renewed > now then",
        instead="if true then",
        tests=(f"{TESTS}::test_of_the_same_flags_the_youngest_reading_counts",),
    ),
    renew_flags(
        name="flags-reserved-scope",
        breaks="I8",
        text="local kept = {generation = true, renewed = true}",
        instead="local kept = {}",
        tests=(f"{TESTS}::test_a_scope_with_a_reserved_name_is_no_generation",),
    ),
    flags(
        name="flags-stale-keeper-reads-again",
        breaks="I8",
        text="            if again < int(stored[0]):",
        instead="            if False:",
        tests=(f"{TESTS}::test_a_lower_generation_never_undoes_a_stop",),
    ),
    flags(
        name="flags-rubbish-is-unknown",
        breaks="I8",
        text="    except (KeyError, ValueError):\n        return None",
        instead="    except (KeyError, ValueError):\n        generation, renewed, flags = 0, seconds * 1_000_000, {}",
        tests=(f"{TESTS}::test_a_damaged_copy_is_unknown_and_not_free_of_stops",),
    ),
    flags(
        name="flags-age-ahead",
        breaks="I8",
        text="age = abs(seconds * 1_000_000 + microseconds - renewed) / 1e6",
        instead="age = (seconds * 1_000_000 + microseconds - renewed) / 1e6",
        tests=(f"{TESTS}::test_a_renewal_that_lies_ahead_is_as_old_as_one_that_lies_back",),
    ),
)
