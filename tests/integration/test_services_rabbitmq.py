"""RabbitMQ as a local server: on loopback only, its data found again, gone with its owner, no daemon left behind."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kombu
import psycopg
import pytest

import fencebeat
from ops.services import ServerMissing, Services, rabbitmq
from tests.support.outboxes import Arrivals
from tests.support.processes_seen import family, wait_until_gone
from tests.support.servers import absent
from tests.support.waiting import until

HERE = {name: value for name, value in os.environ.items() if name != "RABBITMQ_URL"}
OWNER = Path(__file__).parents[1] / "support" / "owner.py"


@pytest.fixture(autouse=True)
def _installed():
    try:
        rabbitmq.script()
    except ServerMissing as missing:
        absent(str(missing))


def listening(pids):
    """Local addresses of the listening TCP sockets of these processes, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            target = str(file.readlink())
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def test_it_listens_on_loopback_keeps_its_data_and_leaves_no_daemon(tmp_path):
    with Services(tmp_path, {"rabbitmq"}, environ=HERE) as services:
        url = services.start().rabbitmq_url
        seen = family(services.keeper.pid)
        assert len(listening(pid for pid, _ in seen)) >= 1
        assert listening(pid for pid, _ in seen) <= LOOPBACK
        reader = Arrivals(url)
        reader.declare("kept")
        with kombu.Connection(url) as connection, connection.Producer() as producer:
            producer.publish("still here", routing_key="kept", delivery_mode=2)
        until(lambda: reader.waiting("kept") == 1, what="the message on its queue")
        reader.close()
    wait_until_gone(seen)

    with Services(tmp_path, {"rabbitmq"}, environ=HERE) as services:
        reader = Arrivals(services.start().rabbitmq_url)
        assert [message.body for message in reader.take("kept")] == ["still here"]
        reader.close()


def start(folder, python=sys.executable, **who):
    """An owner in a process of its own, once its server answers."""
    owner = subprocess.Popen([python, OWNER, folder, "rabbitmq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **who)
    line = owner.stdout.readline()
    assert line, "the owner ended before its server answered"
    return owner, family(owner.pid)


def test_it_ends_with_an_owner_that_is_killed(tmp_path):
    owner, seen = start(tmp_path, env=HERE)
    owner.kill()
    owner.communicate()
    wait_until_gone(seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_an_ordinary_user_can_run_it_too():
    nobody = pwd.getpwnam("nobody")
    who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    python = next((path for path in (sys.executable, "/usr/bin/python3") if can_run(path, who)), None)
    if python is None:
        pytest.skip("no Python of this version that other users may run")
    packages = [str(Path(module.__file__).parents[1]) for module in (fencebeat, psycopg)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages)}
    folder = Path(tempfile.mkdtemp(prefix="fencebeat-test-"))
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    try:
        owner, seen = start(folder, python, cwd="/", env=environ, **who)
        owner.kill()
        owner.communicate()
        wait_until_gone(seen)
        assert (folder / "rabbitmq" / ".erlang.cookie").stat().st_uid == nobody.pw_uid
    finally:
        shutil.rmtree(folder)


def can_run(python, who):
    same = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    try:
        return subprocess.run([python, "-c", same], check=False, **who).returncode == 0
    except OSError:
        return False


def test_a_missing_server_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(rabbitmq, "_SCRIPT", tmp_path / "nowhere")
    with Services(tmp_path, {"rabbitmq"}, environ=HERE) as services:
        addresses = services.start()
    assert addresses.rabbitmq_url is None
    assert "apt-get install rabbitmq-server" in str(addresses.missing["rabbitmq"])
