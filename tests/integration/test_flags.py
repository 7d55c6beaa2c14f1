"""The copy of the flags in Redis: complete, fresh, never older than what is there."""

import pytest

from fencebeat.effects import Flag
from fencebeat.flags import FlagKeeper, FlagsUnknown, read_flags
from fencebeat.recovery import Recovery
from fencebeat.scripts import script
from tests.support.waiting import until


class Effects:
    """An effect store in memory."""

    def __init__(self):
        self.highest, self.generation, self.stops = 0, 1, {}
        self.fails = None

    def _answer(self, value):
        if self.fails is not None:
            raise self.fails
        return value

    def floor(self):
        return self._answer(self.highest)

    def flags(self):
        return self._answer((self.generation, dict(self.stops)))

    def last_copied(self):
        return self._answer("")

    def copy_audit(self, records):
        self._answer(records)

    def stop(self, scope, flag=None):
        self.generation += 1
        self.stops[scope] = flag or Flag("write", "bad parser", "ana", 2e9)

    def lift(self, scope):
        self.generation += 1
        del self.stops[scope]


@pytest.fixture
def effects():
    return Effects()


@pytest.fixture
def known(store, term):
    """A store that knows its past."""
    Recovery(store.client, store.keys, carrier="lock")(term)
    return store


@pytest.fixture
def keeper(store, effects):
    keeper = FlagKeeper(effects, store.client, store.keys, every=0.05)
    keeper.renewed.listen()
    keeper.failed.listen()
    yield keeper
    keeper.stop()


def test_a_flag_survives_its_copy():
    flag = Flag("start", "größer", "ana", 12.5)

    assert Flag.from_json(flag.to_json()) == flag
    assert Flag.from_json('{"level": "emit"}') == Flag("emit")


@pytest.mark.parametrize("text", ["", "null", "[]", '{"level": "run"}', '{"level": "emit", "until": "soon"}', "{"])
def test_what_is_no_flag_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        Flag.from_json(text)


def test_the_copy_is_complete_and_carries_its_generation_and_age(known, effects, keeper):
    effects.stop("all")
    effects.stop("tenant:acme")
    keeper.seed()
    effects.lift("all")
    effects.stop("queue:q", Flag("emit"))

    assert keeper.seed() == keeper.generation == 5

    copy = read_flags(known.client, known.keys)
    assert copy.generation == 5
    assert 0 <= copy.age_seconds < 2
    assert copy.flags == {"tenant:acme": Flag("write", "bad parser", "ana", 2e9), "queue:q": Flag("emit")}


def test_a_copy_of_thousands_of_scopes_is_written_and_removed_whole(known, effects, keeper):
    effects.stops = {f"tenant:{number}": Flag("emit") for number in range(5000)}
    keeper.seed()
    assert len(read_flags(known.client, known.keys).flags) == 5000

    effects.stops, effects.generation = {}, 2
    keeper.seed()

    assert read_flags(known.client, known.keys).flags == {}


def test_a_lower_generation_never_undoes_a_stop(known, effects, keeper):
    effects.stop("all")
    keeper.seed()
    before = known.client.hgetall(known.keys.flags)
    effects.generation, effects.stops = 1, {}

    with pytest.raises(FlagsUnknown, match="the effect store only 1"):
        keeper.seed()

    assert known.client.hgetall(known.keys.flags) == before
    assert keeper.generation == 2


def test_a_keeper_that_read_too_early_reads_again(known, effects, keeper):
    effects.stop("all")
    FlagKeeper(effects, known.client, known.keys).seed()
    answers = [(1, {}), (effects.generation, dict(effects.stops))]
    effects.flags = lambda: answers[0] if len(answers) == 1 else answers.pop(0)

    assert keeper.seed() == 2

    assert "all" in read_flags(known.client, known.keys).flags


def test_f29_a_copy_is_as_old_as_its_reading_and_not_as_its_writing(known, effects, keeper):
    """A keeper that stands still between the two stores must not make what it read before a stop look new after it."""

    def renewed():
        return int(known.client.hget(known.keys.flags, "renewed"))

    def read_then_stand_still():
        answer = (effects.generation, dict(effects.stops))
        before = known.client.time()
        until(lambda: known.client.time() > before)
        read.append(before)
        return answer

    read, effects.flags = [], read_then_stand_still
    keeper.seed()
    assert renewed() <= read[0][0] * 1_000_000 + read[0][1]


def test_of_the_same_flags_the_youngest_reading_counts(known, effects):
    seconds, microseconds = known.client.time()
    now = seconds * 1_000_000 + microseconds
    for generation, read_at, counts in ((7, now - 5_000_000, now - 5_000_000), (7, now, now), (7, now - 9, now)):
        script("renew_flags")(known.client, (known.keys.flags,), (generation, read_at))
        assert int(known.client.hget(known.keys.flags, "renewed")) == counts
    script("renew_flags")(known.client, (known.keys.flags,), (8, now - 9))
    assert int(known.client.hget(known.keys.flags, "renewed")) == now - 9, "newer flags are as old as their own reading"


@pytest.mark.parametrize("left", [{}, {"all": Flag("emit").to_json()}, {"generation": "rubbish"}])
def test_a_keeper_makes_no_store_look_as_if_it_knew_its_past(store, keeper, left):
    if left:
        store.client.hset(store.keys.flags, mapping=left)

    with pytest.raises(FlagsUnknown, match="no generation"):
        keeper.seed()

    assert store.client.hgetall(store.keys.flags) == left


def test_a_scope_with_a_reserved_name_is_no_generation(known, effects, keeper):
    effects.stops = {"generation": Flag("emit")}
    before = known.client.hgetall(known.keys.flags)

    with pytest.raises(Exception, match="reserved name"):
        keeper.seed()

    assert known.client.hgetall(known.keys.flags) == before


def test_the_thread_renews_and_goes_on_after_failures(known, effects, keeper):
    keeper.start()
    keeper.renewed.wait()
    effects.fails = TimeoutError("postgres is down")
    assert "postgres is down" in keeper.failed.wait()
    until(lambda: keeper.trouble)
    aged = read_flags(known.client, known.keys)

    effects.fails = None
    effects.stop("all")

    until(lambda: keeper.renewed.wait() == 2)
    until(lambda: keeper.trouble is None)
    copy = read_flags(known.client, known.keys)
    assert "all" in copy.flags
    assert copy.age_seconds <= aged.age_seconds + 1
    keeper.stop()
    keeper.stop()
    assert not keeper._thread.is_alive()


@pytest.mark.parametrize(
    "damage",
    [
        {"generation": None},
        {"renewed": None},
        {"generation": "rubbish"},
        {"renewed": "rubbish"},
        {"all": "rubbish"},
        {"all": '{"level": "run"}'},
    ],
)
def test_a_damaged_copy_is_unknown_and_not_free_of_stops(known, damage):
    for field, value in damage.items():
        if value is None:
            known.client.hdel(known.keys.flags, field)
        else:
            known.client.hset(known.keys.flags, field, value)

    assert read_flags(known.client, known.keys) is None


def test_no_copy_and_a_record_of_another_type_are_unknown(store):
    assert read_flags(store.client, store.keys) is None

    store.client.set(store.keys.flags, "rubbish")

    assert read_flags(store.client, store.keys) is None


def test_a_renewal_that_lies_ahead_is_as_old_as_one_that_lies_back(known):
    renewed = int(known.client.hget(known.keys.flags, "renewed"))

    known.client.hset(known.keys.flags, "renewed", renewed + 3_600_000_000)

    assert read_flags(known.client, known.keys).age_seconds > 3500


def test_a_reader_with_answers_in_bytes_sees_the_same(known, effects, keeper, redis_client):
    effects.stop("all")
    keeper.seed()

    assert read_flags(redis_client, known.keys).flags == read_flags(known.client, known.keys).flags
