"""The audit's copy in Postgres: the floor it raises, several beats, an outage, and a real beat that copies."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from control.effects import LedgerEffects
from fencebeat.copying import AuditCopier
from fencebeat.effects import AuditRecord
from fencebeat.errors import StoreUnreachable
from fencebeat.recovery import Recovery
from fencebeat.testing.beats import Cluster, committed
from tests.support.fences import SECOND, Fence
from tests.support.ledgers import execute, ledger_at
from tests.support.locks import nonce
from tests.support.waiting import until


@pytest.fixture
def ledger(database_url):
    with ledger_at(database_url) as made:
        yield made


@pytest.fixture
def effects(ledger, namespace):
    return LedgerEffects(ledger.pool, namespace)


@pytest.fixture
def make_copier(effects, store):
    made = []

    def make(**options):
        made.append(AuditCopier(effects, store.client, store.keys, **options))
        made[-1].copied.listen()
        made[-1].failed.listen()
        return made[-1]

    yield make
    for copier in made:
        copier.stop()


def copied(ledger):
    return dict(execute(ledger, "SELECT stream_id, record FROM tick_audit"))


def stream(store):
    return dict(store.client.xrange(store.keys.audit))


def everything(ledger):
    return [
        sorted(execute(ledger, f"SELECT ctid::text, t.* FROM {table} t"))  # ctid: an update of a row moves it
        for table in ("tick_mark", "token_floor")
    ] + [copied(ledger)]


def test_s7_after_an_election_the_floor_is_its_token_and_a_flushed_redis_hands_out_a_higher_one(
    ledger, store, effects, make_copier
):
    term = store.lock("host-1").acquire(nonce())
    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    make_copier().copy()

    assert effects.floor() == term.token
    store.lose_data()
    assert store.lock("host-2").acquire(nonce(), floor=effects.floor()).token > term.token


def test_a_first_start_is_no_gap_though_a_copier_looks_before_the_recovery(store, effects, make_copier):
    term = store.lock("host-1").acquire(nonce())
    copier = make_copier()
    assert copier.copy() == 0

    Recovery(store.client, store.keys, carrier="lock", effects=effects)(term)

    assert [fields["outcome"] for fields in stream(store).values()] == ["elected"]
    assert copier.copy() == 1


def test_copies_of_two_beats_are_one(ledger, store, make_copier, namespace):
    fence = Fence.sealed(store.client, namespace)
    now = fence.now() // SECOND * SECOND
    entry = fence.entry(mark=now - 5 * SECOND)
    fence.commit(*[fence.emission(entry, now - n * SECOND) for n in (4, 3, 2)])
    first, second = make_copier(), make_copier(page=2)
    second._position = ""  # it has looked before the first copied, and begins at the oldest record too
    assert first.copy() == 3
    before = everything(ledger)

    assert second.copy() == 3

    assert everything(ledger) == before
    assert copied(ledger) == stream(store)
    ((name, at),) = execute(ledger, "SELECT entry, extract(epoch FROM fire_time)::bigint FROM tick_mark")
    assert (name, at) == ("e", (now - 2 * SECOND) // SECOND)


def test_a_new_process_copies_only_what_is_new(ledger, store, effects, *, make_copier, namespace):
    assert effects.last_copied() == ""
    Fence.sealed(store.client, namespace)
    store.client.xadd(store.keys.audit, {"outcome": "elected", "token": 7})
    make_copier().copy()
    assert effects.last_copied() == next(iter(stream(store)))
    store.client.xadd(store.keys.audit, {"outcome": "elected", "token": 9})

    assert make_copier().copy() == 1

    assert effects.floor() == 9
    assert copied(ledger) == stream(store)


def test_rubbish_in_one_record_keeps_none_of_the_others_from_being_copied(ledger, effects):
    records = [AuditRecord("1-0", {"outcome": "paused", "reason": "all: \x00"}), AuditRecord("2-0", {"token": "17"})]

    effects.copy_audit(records)

    assert copied(ledger)["1-0"]["reason"] == "all: \N{REPLACEMENT CHARACTER}"
    assert effects.floor() == 17


def test_an_outage_of_postgres_loses_nothing_once_it_is_back(
    ledger, store, make_copier, *, postgres_url, database_url, namespace
):
    name = conninfo_to_dict(database_url)["dbname"]
    Fence.sealed(store.client, namespace)
    copier = make_copier(every=0.05, page=2)
    store.client.xadd(store.keys.audit, {"outcome": "elected", "token": 1})
    copier.start()
    copier.copied.wait()
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            for token in range(2, 9):
                store.client.xadd(store.keys.audit, {"outcome": "elected", "token": token})
            copier.failed.wait(20)
            with pytest.raises(StoreUnreachable):
                LedgerEffects(ledger.pool, namespace).floor()
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

    until(lambda: copier.trouble is None, at_most=30, what="a copier that copies again")

    assert copied(ledger) == stream(store)
    assert LedgerEffects(ledger.pool, namespace).floor() == 8


def test_a_beat_copies_what_it_decides(ledger, redis_url, database_url, namespace, tmp_path):
    line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": namespace}}
    conf = {
        "fencebeat_namespace": namespace,
        "fencebeat_effect_store": "tasks.wiring:effect_store",
        "beat_schedule": {"each": line},
    }
    with Cluster(tmp_path, redis_url, conf) as cluster:
        cluster.start_beat(POSTGRES_URL=database_url).wait_for(committed, 60)
        kept = until(
            lambda: execute(ledger, "SELECT record->>'entry' FROM tick_audit WHERE record->>'outcome' = 'emitted'"),
            at_most=20,
            what="a copied record",
        )
    assert kept[0] == ("each",)
    (token,) = execute(ledger, "SELECT DISTINCT (record->>'token')::bigint FROM tick_audit WHERE record ? 'token'")
    assert LedgerEffects(ledger.pool, namespace).floor() == token[0]
