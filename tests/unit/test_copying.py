"""Copying the audit: in order, from where the effect store has it, none left out, whatever fails between."""

import pytest

from fencebeat.copying import AuditCopier
from fencebeat.keys import Keys


class Stream:
    """What the copier asks of Redis, over a list of (id, fields); ids have two digits, so text orders them."""

    def __init__(self):
        self.records, self.known = [], True

    def hget(self, _name, _field):
        return "7" if self.known else None

    def hexists(self, _name, _field):
        return self.known

    def add(self, *ids):
        self.records += [(identity, {"outcome": "emitted"}) for identity in ids]

    def xrange(self, _name, **asked):
        first = asked["min"]
        return [record for record in self.records if first == "-" or record[0] >= first][: asked["count"]]

    def pipeline(self, **_options):
        """Definitions are copied by a part of its own, with tests of its own: here there are none."""
        return NoDefinitions()


class NoDefinitions:
    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def __getattr__(self, _name):
        return lambda *_args, **_options: None

    def execute(self):
        return [None, None, []]


class Effects:
    """An effect store that keeps ids; `fails` is raised by the next calls, after keeping where `late`."""

    def __init__(self):
        self.kept, self.calls, self.fails, self.late = [], [], None, False

    def last_copied(self):
        return max(self.kept, default="")

    def copy_audit(self, records):
        ids = [record.id for record in records]
        self.calls.append(ids)
        if self.fails is None or self.late:
            self.kept += [identity for identity in ids if identity not in self.kept]
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def effects():
    return Effects()


@pytest.fixture
def copier(stream, effects):
    made = AuditCopier(effects, stream, Keys("n"), every=0.01, page=3)
    made.copied.listen()
    made.failed.listen()
    yield made
    made.stop()


def ids(first, last):
    return [f"1-{number}" for number in range(first, last + 1)]


def test_an_empty_stream_calls_nothing(copier, effects):
    assert copier.copy() == 0
    assert effects.calls == []


@pytest.mark.parametrize("count", [1, 3, 4, 6, 8])
def test_everything_is_copied_once_and_in_order_in_pages(copier, stream, effects, count):
    stream.add(*ids(11, 10 + count))

    assert copier.copy() == count
    assert copier.copy() == 0

    assert [identity for call in effects.calls for identity in call] == ids(11, 10 + count)
    assert all(len(call) <= 3 for call in effects.calls)


def test_a_new_process_goes_on_where_the_effect_store_is(copier, stream, effects):
    stream.add(*ids(11, 18))
    effects.kept = ids(11, 15)

    assert copier.copy() == 3

    assert effects.calls == [ids(16, 18)]


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_page_is_copied_again_and_none_is_left_out(copier, stream, effects, late):
    """`late`: the records were kept, and the answer was lost."""
    stream.add(*ids(11, 15))
    effects.fails, effects.late = TimeoutError("postgres"), late
    with pytest.raises(TimeoutError):
        copier.copy()
    stream.add(*ids(16, 17))
    effects.fails = None

    assert copier.copy() == 7

    assert effects.kept == ids(11, 17)


def test_while_the_store_is_unknown_nothing_is_copied_and_then_everything(copier, stream, effects):
    stream.known = False
    stream.add(*ids(11, 12))
    assert copier.copy() == 0
    assert effects.calls == []
    stream.known = True

    assert copier.copy() == 2


def test_a_stream_that_lost_its_past_is_copied_from_its_beginning(copier, stream, effects):
    """After a failover the ids may even be lower than those that are copied already."""
    stream.add(*ids(21, 24))
    copier.copy()
    stream.records.clear()
    stream.add(*ids(11, 14))

    assert copier.copy() == 4

    assert effects.kept == [*ids(21, 24), *ids(11, 14)]


def test_a_failover_that_took_the_last_records_back_leaves_out_none_of_the_new_ones(copier, stream, effects):
    stream.add("1-11", "1-12", "1-15", "1-16")
    copier.copy()
    del stream.records[2:]
    stream.add("1-13", "1-17")  # 13 would be left out if copying went on after 16

    copier.copy()

    assert {"1-13", "1-17"} <= set(effects.kept)


def test_a_stream_trimmed_past_the_position_is_copied_from_what_it_still_has(copier, stream, effects):
    stream.add(*ids(11, 12))
    copier.copy()
    stream.records[:] = []
    stream.add(*ids(15, 16))

    assert copier.copy() == 2

    assert effects.kept == [*ids(11, 12), *ids(15, 16)]


def test_the_thread_says_a_trouble_once_and_goes_on_after_it(copier, stream, effects, caplog):
    caplog.set_level("INFO", "fencebeat.copying")
    effects.fails = TimeoutError("postgres is down")
    stream.add(*ids(11, 12))
    copier.start()
    for _ in range(3):
        assert copier.failed.wait() == "postgres is down"
    assert copier.trouble == "postgres is down"

    effects.fails = None

    assert copier.copied.wait() == 2
    assert copier.trouble is None
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "postgres is down" in line]) == 1
    assert said[-1] == "the audit is copied again"
