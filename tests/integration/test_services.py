"""Local servers: they answer, find their data again, and never outlive their owner."""

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

import fencebeat
from ops.services import ServerFailed, Services, etcd, postgres, valkey
from ops.services.opensearch.jars import fetch
from tests.support import owner as owner_script
from tests.support.processes_seen import family, wait_until_gone
from tests.support.waiting import until

ALL = "valkey,postgres,opensearch,etcd"


class Owner:
    """The process of tests/support/owner.py and what it said."""

    def __init__(self, folder, names, python=sys.executable, **popen):
        self.process = subprocess.Popen(
            [python, owner_script.__file__, folder, names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **popen,
        )
        line = self.process.stdout.readline()
        assert line, "the owner ended before its servers answered"
        facts = json.loads(line)
        self.addresses, self.pids, self.keeper = facts["addresses"], facts["pids"], facts["keeper"]
        self.family = family(self.process.pid, self.keeper, *self.pids.values())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.end()


@pytest.fixture(name="folder")
def _folder(tmp_path):
    yield tmp_path / "state"
    postgres.remove(tmp_path / "state")


def _write(addresses):
    redis.Redis.from_url(addresses["REDIS_URL"], socket_timeout=10).set("mark", "kept")
    with psycopg.connect(addresses["POSTGRES_URL"], connect_timeout=10) as connection:
        connection.execute("CREATE TABLE marks AS SELECT 'kept' AS mark")
    key = {"key": "bWFyaw==", "value": "a2VwdA=="}
    httpx.post(f"{addresses['ETCD_URL']}/v3/kv/put", json=key, timeout=10).raise_for_status()
    httpx.put(f"{addresses['OPENSEARCH_URL']}/marks/_doc/1", json={"mark": "kept"}, timeout=30).raise_for_status()


def _read(addresses):
    with psycopg.connect(addresses["POSTGRES_URL"], connect_timeout=10) as connection:
        row = connection.execute("SELECT mark FROM marks").fetchone()
    value = httpx.post(f"{addresses['ETCD_URL']}/v3/kv/range", json={"key": "bWFyaw=="}, timeout=10).json()
    health = f"{addresses['OPENSEARCH_URL']}/_cluster/health/marks?wait_for_status=yellow&timeout=30s"
    httpx.get(health, timeout=40).raise_for_status()
    document = httpx.get(f"{addresses['OPENSEARCH_URL']}/marks/_doc/1", timeout=30).json()
    return (
        redis.Redis.from_url(addresses["REDIS_URL"], socket_timeout=10).get("mark"),
        row[0],
        value["kvs"][0]["value"],
        document["_source"]["mark"],
    )


def test_after_a_sigkill_of_everything_a_restart_on_the_same_folder_finds_its_data(folder, opensearch_url):
    first = Owner(folder, ALL)
    _write(first.addresses)
    for pid, _ in first.family:  # the owner last: nobody is left to tidy up
        if pid != first.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    first.kill()
    wait_until_gone(first.family)

    second = Owner(folder, ALL)
    try:
        assert _read(second.addresses) == (b"kept", "kept", "a2VwdA==", "kept")
    finally:
        second.end()


def test_a_killed_owner_leaves_no_process_behind(folder):
    owner = Owner(folder, "valkey,postgres,etcd")
    assert len(owner.family) > 6  # PostgreSQL alone has several
    owner.kill()
    wait_until_gone(owner.family)


def test_an_owner_that_ends_leaves_no_process_behind(folder):
    owner = Owner(folder, "valkey,postgres,etcd")
    owner.end()
    wait_until_gone(owner.family)
    assert owner.process.returncode == 0


def test_a_killed_owner_of_opensearch_leaves_no_process_behind(folder, opensearch_url):
    owner = Owner(folder, "opensearch")
    owner.kill()
    wait_until_gone(owner.family)


def test_servers_listen_on_loopback_only(folder):
    owner = Owner(folder, "valkey,etcd")
    try:
        pids = set(owner.pids.values())
        inodes = {
            str(link.readlink())[8:-1]
            for pid in pids
            for link in Path(f"/proc/{pid}/fd").iterdir()
            if str(link.readlink()).startswith("socket:[")
        }
        lines = [*Path("/proc/net/tcp").read_text().splitlines(), *Path("/proc/net/tcp6").read_text().splitlines()]
        listening = [f[1] for f in (line.split() for line in lines) if f[3] == "0A" and f[9] in inodes]
    finally:
        owner.end()
    assert len(listening) == 3
    assert all(address.startswith("0100007F:") for address in listening)


def test_two_owners_at_once_do_not_collide(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    owners = [Owner(folder, "valkey,postgres") for folder in folders]
    try:
        for name in ("REDIS_URL", "POSTGRES_URL"):
            assert owners[0].addresses[name] != owners[1].addresses[name]
    finally:
        for owner, folder in zip(owners, folders, strict=True):
            owner.end()
            postgres.remove(folder)


def test_a_state_folder_with_a_long_name_still_has_a_socket(tmp_path):
    folder = tmp_path / ("long" * 50)
    with (
        Services(folder, {"postgres"}, durable=False) as services,
        psycopg.connect(services.start().postgres_url, connect_timeout=10) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)
    postgres.remove(folder)


def test_a_new_state_folder_of_the_same_name_has_a_new_ledger(tmp_path):
    def databases(create):
        with (
            Services(folder, {"postgres"}, durable=False) as services,
            psycopg.connect(services.start().postgres_url, autocommit=True, connect_timeout=10) as connection,
        ):
            if create:
                connection.execute("CREATE DATABASE old")
            return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}

    folder = tmp_path / "state"
    assert "old" in databases(create=True) | {"old"}
    assert "old" in databases(create=False)
    folder.rename(tmp_path / "elsewhere")
    assert "old" not in databases(create=False)
    postgres.remove(folder)
    postgres.remove(tmp_path / "elsewhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_an_ordinary_user_can_run_them_too(tmp_path):
    nobody = pwd.getpwnam("nobody")
    who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    python = next((path for path in (sys.executable, "/usr/bin/python3") if _can_run(path, who)), None)
    if python is None:
        pytest.skip("no Python of this version that other users may run")
    packages = [str(Path(module.__file__).parents[1]) for module in (fencebeat, psycopg)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages)}
    with _open_folder(nobody) as folder:
        owner = Owner(folder, "valkey,postgres", python, cwd="/", env=environ, **who)
        try:
            with psycopg.connect(owner.addresses["POSTGRES_URL"], connect_timeout=10) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            assert Path(f"/proc/{owner.pids['postgres']}").stat().st_uid == nobody.pw_uid
        finally:
            owner.kill()
        wait_until_gone(owner.family)


def _can_run(python, who):
    same = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    try:
        return subprocess.run([python, "-c", same], check=False, **who).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def _open_folder(user):
    """A folder of this user's; pytest's own are under one that only root may enter."""
    folder = Path(tempfile.mkdtemp(prefix="fencebeat-test-"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    yield folder
    shutil.rmtree(folder)


def test_the_pid_file_of_a_killed_server_is_not_taken_for_a_running_one(folder):
    """Its number now belongs to another living process of the same user, as happens after a container's restart."""
    owner = Owner(folder, "postgres")
    (pid_file,) = _postgres_folder(owner).rglob("postmaster.pid")
    lines = pid_file.read_text().splitlines()
    user = pid_file.stat()
    owner.end()
    who = {"user": user.st_uid, "group": user.st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "1000"], cwd="/", **who) as other:
        try:
            pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
            os.chown(pid_file, user.st_uid, user.st_gid)
            Owner(folder, "postgres").end()
        finally:
            other.kill()


def test_a_folder_with_a_running_server_is_refused(folder):
    owner = Owner(folder, "postgres")
    try:
        with pytest.raises(ServerFailed, match="already exists"):
            Services(folder, {"postgres"}).start()
    finally:
        owner.end()


def _postgres_folder(owner):
    return Path(f"/proc/{owner.pids['postgres']}/cwd").readlink()


def test_existing_servers_are_used_instead(tmp_path, redis_url):
    with Services(tmp_path, {"valkey"}, environ={"REDIS_URL": redis_url}) as services:
        assert services.start().redis_url == redis_url
        assert services.children == {}


def test_a_taken_port_is_chosen_again(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = valkey.free_ports()
        ports = iter([other.getsockname()[1], next(free)])
        monkeypatch.setattr(valkey, "free_ports", lambda: ports)
        with Services(tmp_path, {"valkey"}, durable=False) as services:
            url = services.start().redis_url
            assert redis.Redis.from_url(url, socket_timeout=5).ping()
    assert "address already in use" in (tmp_path / "logs" / "valkey.log").read_text().lower()


def test_a_server_that_fails_shows_its_last_words(tmp_path):
    (tmp_path / "etcd" / "member").mkdir(parents=True)
    (tmp_path / "etcd" / "member" / "snap").write_text("in the way")
    with pytest.raises(ServerFailed, match=r"(?s)etcd did not start: it ended with code.*snap"):
        Services(tmp_path, {"etcd"}).start()


def test_a_silent_server_is_given_up_after_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(etcd, "_START_SECONDS", 0.2)
    monkeypatch.setattr(etcd, "answers", lambda _: False)
    with pytest.raises(ServerFailed, match=r"no answer within 0\.2 s"):
        Services(tmp_path, {"etcd"}).start()


def test_valkey_never_evicts(tmp_path):
    with Services(tmp_path, {"valkey"}) as services:
        client = redis.Redis.from_url(services.start().redis_url, socket_timeout=5)
        found = {**client.config_get("maxmemory-policy"), **client.config_get("appendonly")}
    assert found == {"maxmemory-policy": "noeviction", "appendonly": "yes"}


def test_without_java_there_is_one_line_and_the_others_start(tmp_path, monkeypatch):
    environ = {"FENCEBEAT_JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}
    monkeypatch.setattr("ops.services.opensearch.server.find_java.__defaults__", ((),))  # no system folders
    with Services(tmp_path, {"valkey", "opensearch"}, durable=False, environ=environ) as services:
        addresses = services.start()
    assert addresses.redis_url
    assert addresses.opensearch_url is None
    assert str(addresses.missing["opensearch"]).startswith("No Java 21 or newer")
    assert "\n" not in str(addresses.missing["opensearch"])


def test_maven_ends_with_the_owner_too(tmp_path):
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    maven.chmod(0o755)
    environ = {**os.environ, "FENCEBEAT_CACHE": str(tmp_path / "cache"), "PATH": f"{maven.parent}:{os.environ['PATH']}"}
    environ.pop("OPENSEARCH_URL", None)
    argv = [sys.executable, owner_script.__file__, tmp_path / "state", "opensearch"]
    with subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            text = until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), at_most=30)
            seen = family(int(text), owner.pid)
        finally:
            owner.kill()
        wait_until_gone(seen)
    assert int(text) in {pid for pid, _ in seen}


def test_a_second_start_of_opensearch_needs_no_maven(opensearch_url):
    """The session's server has filled the cache; from then on `mvn` is not even looked for."""
    if "OPENSEARCH_URL" in os.environ:
        fetch(os.environ)
    without_maven = {**os.environ, "PATH": ""}
    assert any(fetch(without_maven).glob("lib/opensearch-3*.jar"))
