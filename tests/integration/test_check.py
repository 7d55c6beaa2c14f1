"""`fencebeat check` on servers of its own, which it may break: each trouble is named with what repairs it."""

import json

import pytest
from celery import Celery
from celery.schedules import schedule
from click.testing import CliRunner
from typer.main import get_command

from fencebeat.checks import check, worst
from fencebeat.cli.entry import application
from fencebeat.clock import ManualClock, SystemClock
from fencebeat.effects import Flag
from fencebeat.errors import ImpossibleConfiguration
from fencebeat.guard import GuardedTask
from fencebeat.scheduler import Scheduler
from ops.services.launch import free_ports
from tests.support import ports
from tests.support.redis_servers import ClockedValkey, EtcdMembers, Valkey, keeper

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with keeper(tmp_path_factory.mktemp("check")) as made:
        yield made


@pytest.fixture(scope="module")
def kept(servers, tmp_path_factory):
    """A server as it should be: it never evicts and keeps its data."""
    return Valkey(servers, tmp_path_factory.mktemp("kept"), {"appendonly": "yes"})


@pytest.fixture
def app(kept):
    kept.tell("FLUSHALL")
    app = Celery("checked", broker=kept.url, set_as_current=False)
    app.conf.update(beat_schedule={"e": {"task": "t", "schedule": 60.0}}, fencebeat_namespace="checked")
    yield app
    app.close()


@pytest.fixture
def configure(kept):
    """CONFIG SET, undone after the test."""
    before = {}

    def to(name, value):
        before.setdefault(name, kept.tell("CONFIG", "GET", name)[name])
        kept.tell("CONFIG", "SET", name, value)

    yield to
    for name, value in before.items():
        kept.tell("CONFIG", "SET", name, value)


def found(app, name, clock=CLOCK, timeout=1.0):
    """The findings about one thing."""
    return [finding for finding in check(app, clock, timeout) if finding.check == name]


def test_a_sound_set_up_is_all_ok(app):
    findings = check(app, CLOCK, 1.0)

    assert worst(findings) == "ok", [finding for finding in findings if finding.level != "ok"]
    assert {finding.check for finding in findings} >= {
        "timings", "entries", "same database", "store", "cluster mode", "role", "eviction", "clock", "persistence",
        "memory", "rights", "effect store",
    }  # fmt: skip


def test_it_writes_nothing(app, kept):
    check(app, CLOCK, 1.0)

    assert kept.tell("DBSIZE") == 0


def test_what_is_not_ok_says_what_repairs_it(app, configure):
    configure("maxmemory-policy", "allkeys-lru")
    configure("appendonly", "no")
    app.conf.beat_schedule["bad"] = {"task": "t", "schedule": 0.0}

    for finding in check(app, ManualClock(wall=0.0), 1.0):
        assert (finding.repair == "") == (finding.level == "ok"), finding


def test_s22_f09_an_eviction_policy_is_refused_or_accepted_by_the_setting_it_names(app, configure):
    configure("maxmemory-policy", "volatile-ttl")
    [refused] = found(app, "eviction")
    app.conf.fencebeat_allow_eviction = True
    [accepted] = found(app, "eviction")

    assert (refused.level, accepted.level) == ("refused", "warning")
    assert "CONFIG SET maxmemory-policy noeviction" in refused.repair
    assert "fencebeat_allow_eviction" in refused.repair


def test_s22_cluster_mode_is_refused(app, servers, tmp_path):
    bus = next(free_ports(20000, 32000))  # else 10,000 above the server's, where there may be none
    cluster = Valkey(servers, tmp_path, {"cluster-enabled": "yes", "cluster-port": str(bus)})
    app.conf.broker_url = cluster.url

    assert [finding.level for finding in found(app, "cluster mode")] == ["refused"]


def test_s25_a_clock_that_is_off_is_told_with_its_difference(app):
    [finding] = found(app, "clock", ManualClock(wall=CLOCK.wall() + 180))

    assert finding.level == "failed"
    assert "180.0" in finding.says
    assert "fencebeat_clock_tolerance" in finding.repair


@pytest.mark.parametrize(("save", "says"), [("", "off"), ("3600 1", "snapshots only")])
def test_a_store_that_does_not_keep_its_data_is_a_warning(app, configure, save, says):
    configure("appendonly", "no")
    configure("save", save)
    [finding] = found(app, "persistence")

    assert finding.level == "warning"
    assert says in finding.says


def test_f08_a_store_without_room_is_told_before_it_is_full_and_when_it_is(app, kept, configure):
    used = int(kept.tell("INFO", "memory")["used_memory"])
    configure("maxmemory", str(int(used / 0.95)))
    [little] = found(app, "memory")
    configure("maxmemory", str(used // 2))
    [none] = found(app, "memory")

    assert (little.level, none.level) == ("warning", "failed")
    assert "CONFIG SET maxmemory" in none.repair


def test_a_replica_takes_no_writes(app, kept, servers, tmp_path):
    replica = Valkey(servers, tmp_path)
    replica.follow(kept)
    app.conf.broker_url = replica.url
    [finding] = found(app, "role")

    assert finding.level == "failed"
    assert f"replica of 127.0.0.1:{kept.port}" in finding.says


def test_a_store_that_does_not_answer_is_named_once(app):
    with ports.unused() as port:
        app.conf.broker_url = f"redis://:s3cret@127.0.0.1:{port}/0"
        findings = check(app, CLOCK, 1.0)
    [finding] = [finding for finding in findings if finding.level != "ok"]

    assert (finding.check, finding.level) == ("store", "failed")
    assert f"127.0.0.1:{port}" in finding.says
    assert "s3cret" not in str(findings)


def test_a_user_without_rights_is_told_where_they_are_written(app, kept):
    kept.tell("ACL", "SETUSER", "poor", "on", ">secret", "~*", "-@all", "+ping", "+info", "+time")
    app.conf.broker_url = kept.url.replace("redis://", "redis://poor:secret@")
    [finding] = [finding for finding in found(app, "store") if finding.level != "ok"]

    assert finding.level == "failed"
    assert "ACL" in finding.repair


def test_workers_that_read_another_database_are_a_warning(app, kept):
    app.conf.broker_read_url = kept.url.replace("/0", "/1")
    app.conf.broker_write_url = kept.url

    assert [finding.level for finding in found(app, "same database")] == ["warning"]


def test_marks_in_the_future_are_named(app, kept):
    future = int((CLOCK.wall() + 3 * 86_400) * 1e6)
    kept.tell("HSET", "checked:last", "generation", "1", "e", str(future), "other", "5")
    [finding] = found(app, "marks")

    assert finding.level == "failed"
    assert "HDEL checked:last e" in finding.repair


def test_s14_a_clock_that_jumped_is_told_with_what_accepts_it(app, servers, tmp_path):
    store = ClockedValkey(servers, tmp_path)
    app.conf.broker_url = store.url
    store.tell("ZADD", "checked:due", str(int(CLOCK.wall() * 1000)), "e")
    assert found(app, "clock jump") == []

    store.step(10 * 365 * 86_400)
    [finding] = found(app, "clock jump", ManualClock(wall=CLOCK.wall() + 10 * 365 * 86_400))

    assert finding.level == "warning"
    assert "restart the beats" in finding.repair


class Effects:
    """A store of effects that answers."""

    def floor(self):
        return 17

    def flags(self):
        return 3, {"all": Flag("emit")}


def broken_effects():
    raise OSError("no route to the ledger")


def test_an_effect_store_that_answers_is_shown(app):
    from fencebeat.configuration import Configuration

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configuration, "make_effects", lambda _: Effects())
        [finding] = found(app, "effect store")

    assert finding.level == "ok"
    assert "floor 17" in finding.says


def test_an_effect_store_that_raises_is_shown_with_its_reason(app):
    from fencebeat.configuration import Configuration

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configuration, "make_effects", lambda _: broken_effects())
        [finding] = found(app, "effect store")

    assert finding.level == "failed"
    assert "no route to the ledger" in finding.says


def test_a_store_of_claims_that_answers_or_not(app, kept):
    app.conf.fencebeat_claims = kept.url
    [answers] = found(app, "claims")
    with ports.unused() as port:
        app.conf.fencebeat_claims = f"redis://127.0.0.1:{port}/0"
        [gone] = found(app, "claims")

    assert (answers.level, gone.level) == ("ok", "failed"), gone


def test_guarded_tasks_without_a_store_of_claims(app):
    @app.task(name="charge", base=GuardedTask, shared=False)
    def charge():
        pass

    [finding] = found(app, "claims")
    assert finding.level == "failed"
    assert "charge" in finding.says
    assert "fencebeat_claims" in finding.repair


def test_an_etcd_that_answers_or_not(app, servers, tmp_path):
    members = EtcdMembers(servers, tmp_path)
    app.conf.update(fencebeat_lock="etcd", fencebeat_etcd_url=members.url)
    [answers] = found(app, "etcd")
    with ports.unused() as port:
        app.conf.fencebeat_etcd_url = f"http://127.0.0.1:{port}"
        [gone] = found(app, "etcd")

    assert (answers.level, gone.level) == ("ok", "failed")


@pytest.mark.parametrize(
    "settings",
    [
        {"fencebeat_lease": -1},
        {"fencebeat_lock": "zookeeper"},
        {"fencebeat_lock": "etcd"},
        {"fencebeat_namespace": "a b"},
        {"task_always_eager": True},
        {"broker_url": "amqp://127.0.0.1:1", "broker_write_url": "amqp://127.0.0.1:1"},
        {"fencebeat_effect_store": "no.such:thing"},
        {"beat_schedule": {"bad": {"task": "t", "schedule": 1.0, "fencebeat": {"zone": "Mars"}}}},
        {"beat_schedule": {"bad": {"task": "t", "schedule": schedule(0.01)}}},
    ],
)
def test_what_refuses_a_start_is_refused_here(app, settings):
    app.conf.update(settings)
    with pytest.raises(ImpossibleConfiguration):
        Scheduler(app).tick()

    assert worst(check(app, CLOCK, 1.0)) == "refused"


@pytest.fixture(
    params=[(None, "ok", 0), ("appendonly no", "warning", 3), ("maxmemory-policy allkeys-lru", "refused", 4)]
)
def verdict(request, configure):
    setting, verdict, code = request.param
    if setting:
        configure(*setting.split())
    return verdict, code


def test_the_command_answers_in_json_and_by_its_exit_code(kept, tmp_path, monkeypatch, verdict):
    verdict, code = verdict
    name = f"checked_{verdict}"
    (tmp_path / f"{name}.py").write_text(f"from celery import Celery\napp = Celery('x', broker={kept.url!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    said = CliRunner().invoke(get_command(application()), ["-A", name, "check", "--json"])

    assert said.exit_code == code
    assert json.loads(said.stdout)["verdict"] == verdict
    shown = CliRunner().invoke(get_command(application()), ["-A", name, "check"])
    assert ("->" in shown.stdout) == (verdict != "ok")
