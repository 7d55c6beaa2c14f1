"""`fencebeat claims`, as a user of the library runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg

from fencebeat.claims.postgres import PostgresClaims
from tests.support.claims import tick

ROOT = Path(__file__).parents[2]


def fencebeat(claims, *words):
    return subprocess.run(
        [Path(sys.executable).with_name("fencebeat"), "-A", "tests.support.guarded", *words],
        env={**os.environ, "FENCEBEAT_CLAIMS": claims},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_install_makes_the_table_and_purge_forgets_what_is_old(database_url):
    for _ in range(2):
        done = fencebeat(database_url, "claims", "install")
        assert done.returncode == 0, done.stderr

    store, old, newest = PostgresClaims(database_url, "guarded"), tick(), tick(token=8)
    for one in (old, newest):
        store.claim(one, "here", 60)
        store.close(one.task_id, 1, "succeeded")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tick_claim SET closed_at = closed_at - interval '40 days'")
    assert json.loads(fencebeat(database_url, "claims", "purge", "--days", "50", "--json").stdout) == {"purged": 0}

    purged = fencebeat(database_url, "claims", "purge", "--json")

    assert json.loads(purged.stdout) == {"purged": 1}, purged.stderr
    assert set(store.look([old.task_id, newest.task_id])) == {newest.task_id}
    store.disconnect()


def test_the_sql_can_be_printed_for_somebody_elses_migrations(database_url):
    printed = fencebeat("", "claims", "install", "--print").stdout

    with psycopg.connect(database_url) as connection:
        connection.execute(printed)
        assert connection.execute("SELECT count(*) FROM tick_claim").fetchone() == (0,)


def test_a_store_without_a_table_and_a_missing_setting_are_said_so(redis_url):
    in_redis, nowhere = fencebeat(redis_url, "claims", "install"), fencebeat("", "claims", "install")

    assert (in_redis.returncode, nowhere.returncode) == (4, 4)
    assert "needs no table" in in_redis.stderr
    assert "fencebeat_claims must name a store" in nowhere.stderr
