"""What every effect store promises a recovery: the same suite on memory and on the ledger."""

import uuid

import pytest

from control.effects import LedgerEffects
from fencebeat.effects import AuditRecord, EntriesCopy, Flag, Gap, Past, Version
from fencebeat.testing.effects import MemoryEffects
from tests.support.ledgers import execute, ledger_at

SECOND = 1_000_000
T = 1_790_000_000 * SECOND  # a fire time; ticks are named by seconds after it


def tick(number: int) -> int:
    return T + number * SECOND


def task(number: int, entry: str = "e") -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{entry}@{number}"))


class Story:
    """Audit records in their order, written one after another, each a millisecond after its tick or later."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self._ms = 0

    def add(self, outcome: str, number: int | None = None, entry: str = "e", **fields: object) -> "Story":
        if number is not None:
            fields = {"entry": entry, "fire_time": tick(number), **fields}
        self._ms = max(self._ms + 1, (tick(number or 0)) // 1000)
        told = {"outcome": outcome, "token": 100, **fields}
        self.records.append(AuditRecord(f"{self._ms}-0", {name: str(value) for name, value in told.items()}))
        return self

    def emitted(self, *numbers: int, entry: str = "e", guarded: bool = True) -> "Story":
        for number in numbers:
            more = {"guarded": 1} if guarded else {}
            self.add("emitted", number, entry, task_id=task(number, entry), holder="host:1", **more)
        return self


class EffectStoreConformance:
    """Subclassed for each store. `store` is empty; `claim(store, task_id, closed)` is a worker's."""

    @pytest.fixture
    def store(self):
        raise NotImplementedError

    def claim(self, store, task_id, *, closed, token=100):
        raise NotImplementedError

    @pytest.fixture
    def told(self, store):
        def told(story):
            store.copy_audit(story.records)
            return store.past()

        return told

    def test_an_empty_store_knows_no_past(self, store):
        assert store.past() == Past(marks={}, gaps=[], entries={}, paused={})
        assert store.floor() == 0
        assert store.last_copied() == ""
        assert store.copied_entries() == Version(0, 0)

    def test_s7_an_emitted_tick_without_a_closed_claim_is_above_the_mark(self, store, told):
        self.claim(store, task(1), closed=True)
        self.claim(store, task(2), closed=True)
        self.claim(store, task(3), closed=False)

        past = told(Story().emitted(1, 2, 3, 4))

        assert past.marks == {"e": tick(3) - 1}
        assert past.gaps == []

    def test_s7_a_lost_tick_is_not_hidden_by_the_claim_of_a_later_one(self, store, told):
        for number in (1, 3, 4):
            self.claim(store, task(number), closed=True)

        assert told(Story().emitted(1, 2, 3, 4)).marks == {"e": tick(2) - 1}

    def test_with_every_claim_closed_the_mark_is_the_newest_decision(self, store, told):
        self.claim(store, task(1), closed=True)

        assert told(Story().emitted(1).add("skipped", 4, first=tick(2), count=3)).marks == {"e": tick(4)}

    def test_emitted_ticks_of_an_unguarded_task_are_passed_and_listed_in_runs(self, told):
        story = Story().emitted(1, 2, guarded=False).add("superseded", 3, first=tick(3), count=1)
        story.emitted(4, guarded=False).emitted(5, entry="other", guarded=False)

        past = told(story)

        assert past.marks == {"e": tick(4), "other": tick(5)}
        assert sorted(past.gaps, key=lambda gap: gap.first) == [
            Gap("e", tick(1), tick(2), 2, task(2)),
            Gap("e", tick(4), tick(4), 1, task(4)),
            Gap("other", tick(5), tick(5), 1, task(5, "other")),
        ]

    def test_a_gap_that_is_recorded_is_no_gap_of_the_next_recovery(self, told):
        story = Story().emitted(1, 2, guarded=False).add("gap", 2, first=tick(1), count=2)

        assert told(story.emitted(3, guarded=False)).gaps == [Gap("e", tick(3), tick(3), 1, task(3))]

    def test_a_message_that_waited_longer_than_the_window_counts_as_delivered(self, told):
        assert told(Story().emitted(1, 1_000_000, guarded=False)).gaps == [
            Gap("e", tick(1_000_000), tick(1_000_000), 1, task(1_000_000))
        ]

    def test_a_claim_that_is_closed_without_a_guard_is_no_gap(self, store, told):
        self.claim(store, task(1), closed=True)

        assert told(Story().emitted(1, guarded=False)).gaps == []

    @pytest.mark.parametrize("outcome", ["superseded", "skipped"])
    def test_a_tick_that_was_sent_and_passed_over_after_a_recovery_is_closed(self, told, outcome):
        assert told(Story().emitted(1, 2).add(outcome, 3, first=tick(1), count=3)).marks == {"e": tick(3)}

    def test_what_the_outbox_published_is_open_and_what_no_queue_took_is_decided(self, told):
        story = Story().emitted(1, 2).add("published", 1, task_id=task(1)).add("published", 2, task_id=task(2))
        assert told(story).marks == {"e": tick(1) - 1}

        assert told(story.add("unroutable", 1, task_id=task(1))).marks == {"e": tick(2) - 1}

    def test_a_run_closes_only_what_it_covers(self, told):
        assert told(Story().emitted(1, 2).add("skipped", 4, first=tick(2), count=3)).marks == {"e": tick(1) - 1}

    def test_an_earlier_run_does_not_close_what_was_sent_after_it(self, told):
        assert told(Story().add("skipped", 3, first=tick(1), count=3).emitted(2)).marks == {"e": tick(2) - 1}

    def test_a_tick_that_was_sent_again_is_open_until_its_claim_is_closed(self, store, told):
        assert told(Story().emitted(1, 2, 1)).marks == {"e": tick(1) - 1}
        self.claim(store, task(1), closed=True)

        assert store.past().marks == {"e": tick(2) - 1}

    def test_an_edit_closes_what_lies_between_its_marks_and_not_the_tick_at_the_first(self, told):
        assert told(Story().emitted(1).add("changed", 5, first=tick(1), reason="edited")).marks == {"e": tick(1) - 1}

    def test_an_edit_closes_a_tick_that_is_due_again(self, told):
        assert told(Story().emitted(1).add("changed", 5, first=tick(0), reason="edited")).marks == {"e": tick(5)}

    @pytest.mark.parametrize("outcome", ["changed", "held", "early", "refused", "duplicate"])
    def test_ticks_that_a_commit_left_due_move_no_mark(self, store, told, outcome):
        self.claim(store, task(1), closed=True)

        assert told(Story().emitted(1).add(outcome, 5, holder="host:1")).marks == {"e": tick(1)}

    @pytest.mark.parametrize("outcome", ["added", "removed", "held", "resumed", "changed"])
    def test_the_marks_that_edits_set_are_known(self, told, outcome):
        assert told(Story().add(outcome, 7, by="ana")).marks == {"e": tick(7)}

    def test_a_backfill_that_was_lost_is_a_gap_and_moves_no_mark(self, store, told):
        for number in (8, 9):
            self.claim(store, task(number), closed=True)
        story = Story().emitted(8, 9)
        story.add("emitted", 1, task_id=task(1), guarded=1, request="e@1", holder="host:1")
        story.add("emitted", 8, task_id=task(8), guarded=1, request="e@8", holder="host:1")

        past = told(story)

        assert past.marks == {"e": tick(9)}
        assert past.gaps == [Gap("e", tick(1), tick(1), 1, task(1))]

    def test_a_backfill_hides_nothing_of_the_tick_itself(self, told):
        story = Story().emitted(1, 2)
        story.add("emitted", 1, task_id=task(1), guarded=1, request="e@1", holder="host:1")
        story.add("paused", 1, request="e@1", holder="host:1")

        assert told(story).marks == {"e": tick(1) - 1}

    def test_rubbish_is_kept_and_moves_nothing(self, store, told):
        story = Story().add("emitted", 1, task_id="no uuid", guarded=1).add("emitted", entry="e", fire_time="soon")
        story.add("emitted", entry="e", fire_time="9" * 30).add("emitted", fire_time=tick(9))

        assert told(story).marks == {"e": tick(1) - 1}
        assert store.last_copied() == story.records[-1].id

    def test_the_same_records_twice_change_nothing(self, store):
        story = Story().emitted(1, 2).emitted(3, guarded=False)
        store.copy_audit(story.records)
        once = store.past(), store.floor()

        store.copy_audit(story.records)
        store.copy_audit(story.records[:1])

        assert (store.past(), store.floor(), store.last_copied()) == (*once, story.records[-1].id)

    def test_the_order_is_that_of_copying_where_a_new_stream_has_lower_ids(self, store):
        later = Story().emitted(50).records
        earlier = Story().add("skipped", 50, first=tick(50), count=1).records
        earlier = [AuditRecord("5-0", earlier[0].fields)]
        store.copy_audit(later)

        store.copy_audit(earlier)

        assert store.past().marks == {"e": tick(50)}, "skipped after it was sent"
        assert store.last_copied() == "5-0"

    def test_the_floor_is_the_highest_token_of_records_and_claims(self, store):
        store.copy_audit(Story().add("elected", token=7).add("resigned", token=5).records)
        assert store.floor() == 7

        self.claim(store, task(1), closed=False, token=9)

        assert store.floor() == 9

    # --- definitions and pauses

    def copy(self, store, version, base, entries, paused=None, *, last=True):
        return store.copy_entries(EntriesCopy(Version(*version), base, entries, paused or {}, last))

    def test_s22_a_complete_copy_replaces_what_was_there_with_its_last_page(self, store):
        assert self.copy(store, (1, 5), None, {"a": "1", "b": "1"}, {"b": "p"})
        assert self.copy(store, (1, 6), None, {"c": "2"}, last=False)
        assert store.copied_entries() == Version(1, 5)
        assert store.past().entries == {"a": "1", "b": "1", "c": "2"}

        assert self.copy(store, (1, 6), None, {"b": "2"})

        past = store.past()
        assert (past.entries, past.paused) == ({"b": "2", "c": "2"}, {})
        assert store.copied_entries() == Version(1, 6)

    def test_a_change_is_kept_on_just_its_base(self, store):
        self.copy(store, (1, 5), None, {"a": "1", "b": "1", "c": "1"}, {"c": "p"})

        assert not self.copy(store, (1, 7), 6, {"a": None})
        assert not self.copy(store, (2, 6), 5, {"a": None}), "of another term"
        assert self.copy(store, (1, 6), 5, {"a": None, "b": "2", "c": "1"}, {"b": "p"})

        past = store.past()
        assert (past.entries, past.paused) == ({"b": "2", "c": "1"}, {"b": "p"})

    def test_an_older_copy_changes_nothing(self, store):
        self.copy(store, (2, 5), None, {"a": "new"})

        for version, base in (((2, 5), None), ((2, 4), None), ((1, 9), None), ((2, 5), 5)):
            assert not self.copy(store, version, base, {"a": "old", "z": "old"}, last=False)

        assert store.past().entries == {"a": "new"}

    def test_a_new_term_may_count_anew(self, store):
        self.copy(store, (1, 900), None, {"a": "1"})

        assert self.copy(store, (2, 3), None, {"b": "2"})

        assert store.past().entries == {"b": "2"}


class TestMemory(EffectStoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryEffects()

    def claim(self, store, task_id, *, closed, token=100):
        store.claims[task_id] = closed
        store.highest = max(store.highest, token)


class TestLedger(EffectStoreConformance):
    @pytest.fixture
    def ledger(self, database_url):
        with ledger_at(database_url) as made:
            yield made

    @pytest.fixture
    def store(self, ledger, namespace):
        self.ledger = ledger
        return LedgerEffects(ledger.pool, namespace)

    def claim(self, store, task_id, *, closed, token=100):
        execute(
            self.ledger,
            "INSERT INTO tick_claim (tick_id, entry, fire_time, token, holder, lease_until, closed_at)"
            " VALUES (%s, 'e', now(), %s, 'worker', now(), CASE WHEN %s THEN now() END)"
            " ON CONFLICT (tick_id) DO UPDATE SET closed_at = excluded.closed_at",
            task_id,
            token,
            closed,
        )

    def test_two_namespaces_on_one_ledger_know_nothing_of_each_other(self, store):
        other = LedgerEffects(self.ledger.pool, "other")
        store.copy_audit(Story().emitted(1, 2).records)
        self.copy(store, (1, 5), None, {"a": "1"}, {"a": "p"})

        assert other.past() == Past(marks={}, gaps=[], entries={}, paused={})
        assert (other.floor(), other.last_copied(), other.copied_entries()) == (0, "", Version(0, 0))
        other.copy_audit(Story().emitted(9).records)
        assert store.past().marks == {"e": tick(1) - 1}
        assert other.past().marks == {"e": tick(9) - 1}

    def test_settled_ticks_are_those_that_no_recovery_asks_for(self, store):
        story = Story().emitted(1, 2).emitted(3, 1_000_000, guarded=False).emitted(1_000_001)
        store.copy_audit(story.records)
        self.claim(store, task(2), closed=True)
        before = store.past()

        assert store.settle() == 2
        assert store.settle() == 0

        rows = execute(self.ledger, "SELECT fire_time FROM tick_audit WHERE settled ORDER BY 1")
        assert [at for (at,) in rows] == [tick(2), tick(3)]
        assert store.past() == before

    def test_trimming_keeps_what_a_recovery_asks_for(self, store):
        story = Story().emitted(1, 2, 3).emitted(4, entry="quiet", guarded=False).add("elected")
        store.copy_audit(story.records)
        for number in (1, 3):
            self.claim(store, task(number), closed=True)
        before = store.past(), store.floor()
        execute(self.ledger, "UPDATE tick_audit SET at = now() - interval '40 days'")
        store.copy_audit(Story().add("resigned", 60).records)

        assert self.ledger.trim_audit(30) == 2, "tick 1 and the election"

        assert (store.past(), store.floor()) == before

    def test_stops_are_the_ledgers(self, store):
        execute(self.ledger, "SELECT apply_switch('all', 'emit', 'night', 'ana', 'test')")

        assert store.flags()[1] == {"all": Flag("emit", "night", "ana")}
