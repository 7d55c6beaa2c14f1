"""What a recovery reads from the ledger comes in statements of bounded size, however much nobody has run."""

import math

import psycopg
import pytest

from control import effects as control_effects
from control.effects import LedgerEffects
from fencebeat.effects import Gap
from tests.support.ledgers import execute, ledger_at

SECOND = 1_000_000
T = 1_790_000_000 * SECOND
ENTRIES, TICKS = 90, 40


@pytest.fixture
def ledger(database_url):
    """Three kinds of entries in turn, 40 ticks each: guarded and open, guarded and closed up to the 30th, unguarded.

    An unguarded entry's tenth tick was superseded, which makes two runs of it.
    """
    with ledger_at(database_url) as made, psycopg.connect(database_url) as owner:
        owner.execute(
            """
            INSERT INTO tick_audit (namespace, stream_id, record)
            SELECT 'n', (%(t)s / 1000 + tick * 1000)::text || '-' || entry,
                   jsonb_build_object(
                     'outcome', CASE WHEN entry %% 3 = 2 AND tick = 10 THEN 'superseded' ELSE 'emitted' END,
                     'entry', 'e' || lpad(entry::text, 3, '0'), 'fire_time', (%(t)s + tick * 1000000)::text,
                     'token', '7', 'holder', 'h', 'task_id', md5(entry || '@' || tick)::uuid::text)
                   || CASE WHEN entry %% 3 < 2 THEN jsonb_build_object('guarded', '1') ELSE '{}' END
              FROM generate_series(0, %(ticks)s - 1) tick, generate_series(0, %(entries)s - 1) entry ORDER BY 2
            """,
            {"t": T, "ticks": TICKS, "entries": ENTRIES},
        )
        owner.execute(
            "INSERT INTO tick_claim (tick_id, entry, fire_time, token, holder, lease_until, closed_at, namespace)"
            " SELECT (record->>'task_id')::uuid, entry, now(), 7, 'h', now(), now(), 'n' FROM tick_audit"
            " WHERE substr(entry, 2)::int %% 3 = 1 AND fire_time <= %s",
            (T + 30 * SECOND,),
        )
        owner.execute(
            "INSERT INTO tick_mark (namespace, entry, fire_time)"
            " SELECT 'n', entry, to_timestamp(max(fire_time) / 1e6) FROM tick_audit GROUP BY entry"
        )
        owner.commit()
        yield made


@pytest.fixture
def asked(monkeypatch):
    """Of each statement since: its text, its parameters, and how many rows it gave."""
    seen, execute = [], psycopg.Connection.execute

    def executing(connection, query, params=None, **options):
        cursor = execute(connection, query, params, **options)
        seen.append((query, params, cursor.rowcount))
        return cursor

    monkeypatch.setattr(psycopg.Connection, "execute", executing)
    return seen


def expected_marks():
    last = T + (TICKS - 1) * SECOND
    by_kind = (T - 1, T + 31 * SECOND - 1, last)
    return {f"e{number:03}": by_kind[number % 3] for number in range(ENTRIES)}


def task(ledger, entry, tick):
    [(found,)] = execute(
        ledger,
        "SELECT record->>'task_id' FROM tick_audit WHERE entry = %s AND fire_time = %s",
        entry,
        T + tick * SECOND,
    )
    return found


def test_a_past_of_many_entries_is_read_in_pages_and_is_whole(ledger, asked, monkeypatch):
    monkeypatch.setattr(control_effects, "ENTRIES", 7)

    past = LedgerEffects(ledger.pool, "n").past()

    pages = [rows for query, _, rows in asked if "recovered_marks" in query]
    assert max(pages) == 7
    assert sum(pages) == ENTRIES, "each once"
    ranges = [params[2:] for query, params, _ in asked if "lost_ticks" in query]
    assert ranges[:2] == [("", "e006"), ("e006", "e013")]
    assert len(ranges) == 13
    assert past.marks == expected_marks()
    unguarded = [f"e{number:03}" for number in range(2, ENTRIES, 3)]
    assert len(past.gaps) == 2 * len(unguarded)
    assert list(past.gaps[:2]) == [
        Gap("e002", T, T + 9 * SECOND, 10, task(ledger, "e002", 9)),
        Gap("e002", T + 11 * SECOND, T + 39 * SECOND, 29, task(ledger, "e002", 39)),
    ]
    assert sorted({gap.entry for gap in past.gaps}) == unguarded


def test_the_size_of_a_page_changes_nothing(ledger, monkeypatch):
    effects, pasts = LedgerEffects(ledger.pool, "n"), []
    for size in (1, 89, 90, 91):
        monkeypatch.setattr(control_effects, "ENTRIES", size)
        pasts.append(effects.past())

    assert all(past == pasts[0] for past in pasts)


def test_processes_of_an_earlier_version_get_the_same_from_the_whole_functions(ledger):
    past = LedgerEffects(ledger.pool, "n").past()

    assert dict(execute(ledger, "SELECT entry, mark FROM recovered_marks('n')")) == past.marks
    gaps = execute(ledger, "SELECT entry, first, fire_time, count, task_id FROM lost_ticks('n', interval '10 minutes')")
    assert [Gap(*gap) for gap in gaps] == list(past.gaps)


def test_what_is_open_is_looked_through_in_pages_and_what_is_closed_is_settled(ledger, asked, monkeypatch):
    monkeypatch.setattr(control_effects, "ROWS", 100)
    effects = LedgerEffects(ledger.pool, "n")
    before = effects.past()

    assert effects.settle() == 30 * 31, "thirty guarded entries, closed up to the 30th second"

    pages = [params[2:] for query, params, _ in asked if "settle" in query]
    emitted = ENTRIES * TICKS - 30  # one superseded in each of thirty entries
    assert len(pages) == math.ceil(emitted / 100) + 1
    assert all(limit == 100 for *_, limit in pages)
    assert pages[1][0] == "e002", "forty ticks of each entry: the hundredth belongs to the third"
    assert effects.past() == before
    assert effects.settle() == 0


def test_what_was_sent_long_before_the_newest_record_is_settled_and_the_guarded_stays(ledger):
    effects = LedgerEffects(ledger.pool, "n")
    execute(
        ledger,
        "INSERT INTO tick_audit (namespace, stream_id, record) VALUES ('n', %s, %s)",
        f"{T // 1000 + 3_600_000}-0",
        '{"outcome": "elected", "token": "8"}',
    )

    assert effects.settle() == 30 * 31 + 30 * (TICKS - 1)
    assert effects.past().gaps == []
    assert effects.past().marks == expected_marks()
