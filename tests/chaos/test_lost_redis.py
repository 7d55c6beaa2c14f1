"""Redis loses everything while messages wait and a worker is down: no tick runs twice, none is passed over in silence.

Two real beats, real workers whose effects are rows of Postgres, a Redis of the test's own. The oracle knows only that
an entry fires each second.
"""

import itertools

import pytest

from fencebeat.entries import Entry
from fencebeat.explain import explain
from fencebeat.firetimes import SECOND
from fencebeat.store import Store
from fencebeat.testing.beats import Cluster, committed
from tests.support.ledgers import execute
from tests.support.losses import PATIENCE, Scene, outage, seconds
from tests.support.redis_servers import Valkey, keeper

pytestmark = pytest.mark.slow


@pytest.fixture
def make_scene(tmp_path, database_url, namespace):
    with keeper(tmp_path / "keeper") as keeping:
        scenes = []

        def make(**options):
            scene = Scene(tmp_path, Valkey(keeping, tmp_path), database_url, namespace, **options)
            scenes.append(scene.__enter__())
            scene.keeping = keeping
            return scene

        yield make
        for scene in scenes:
            scene.__exit__(None, None, None)


def lose(scene, how):
    if how == "killed":
        scene.valkey.kill()
        scene.valkey.again()
    else:
        scene.valkey.tell("FLUSHALL")


def nothing_happened_yet(scene):
    """Neither a message nor a generation: what holds from the loss to the recovery."""
    with scene.client() as client:
        queues = sum(client.llen(queue) for queue in ("guarded", "bare", "paused", "stopped"))
        return queues == 0 and not client.hexists(scene.keys.last, "generation")


@pytest.mark.parametrize("postgres", ["up", "down"])
@pytest.mark.parametrize("how", [pytest.param("killed", id="f05-killed"), pytest.param("flushed", id="f06-flushed")])
def test_f05_f06_s7_a_lost_redis_loses_no_tick_and_repeats_none(
    make_scene, postgres_url, database_url, namespace, *, how, postgres
):
    scene = make_scene()
    scene.edit()
    # The first worker ends in the middle of its fourth tick, whose claim stays open; its messages wait in the queue.
    doomed = scene.worker("doomed", "guarded", failpoints="task.claim.after=kill_group@4")
    scene.until(lambda: doomed.poll() is not None, "the worker's end")
    ran = max(scene.effects("guarded"))
    scene.until(lambda: len([at for at in scene.copied("guarded") if at > ran]) >= 4, "copies of waiting messages")
    scene.until(lambda: scene.copied("stopped", "paused"), "a tick that the stop held back")
    scene.until(
        lambda: execute(scene.ledger, "SELECT 1 FROM tick_entry WHERE entry = 'stored' AND definition IS NOT NULL"),
        "the stored entry's copy",
    )
    scene.until(lambda: execute(scene.ledger, "SELECT 1 FROM tick_entry WHERE pause IS NOT NULL"), "the pause's copy")
    known_before = max(int(record["token"]) for record in scene.audit() if record["outcome"] == "elected")
    first = min(scene.copied("guarded"))

    if postgres == "down":
        with outage(postgres_url, database_url):
            lose(scene, how)
            scene.cluster.wait_for(
                lambda line: line.get("event") == "state.changed" and "the past is not known" in line.get("reason", ""),
                PATIENCE,
            )
            assert nothing_happened_yet(scene), "nothing is emitted while the past is not known"
    else:
        lose(scene, how)
    scene.recovered()
    scene.worker("survivor", "guarded", "bare")
    resumed = max(scene.decided("guarded", "emitted"))
    scene.until(lambda: max(scene.effects("guarded")) > resumed, "ticks since")
    last = resumed

    # Each guarded tick ran once: those that waited, that whose worker died, and those due while nobody led.
    ran = scene.effects("guarded")
    scene.until(lambda: {*seconds(first, last)} <= {*scene.effects("guarded")}, "every tick")
    ran = scene.effects("guarded")
    assert [at for at in ran if ran[at] > 1] == []
    stored = scene.effects("stored")
    assert set(stored.values()) == {1}, "the stored entry goes on, each tick once"

    audit = scene.audit()
    outcomes = [record["outcome"] for record in audit]
    assert outcomes.index("gap") < outcomes.index("emitted"), "recovered before the first emission"
    assert min(int(r["token"]) for r in audit if r["outcome"] == "elected") > known_before

    # An unguarded tick is emitted again or listed as a gap, and the story of the latter can be told.
    gaps = [r for r in audit if r["outcome"] == "gap" and r.get("entry") == "bare"]
    lost = [at for gap in gaps for at in seconds(int(gap["first"]), int(gap["fire_time"]))]
    sent = scene.decided("bare", "emitted")
    copied = scene.copied("bare")
    assert lost
    assert len(lost) == len(set(lost)) == sum(int(gap["count"]) for gap in gaps)
    assert {*seconds(min(copied), max(sent))} <= {*lost, *sent}
    assert len(sent) == len(set(sent))
    with scene.client() as client:
        entries = {name: Entry.of_definition(name, text) for name, text in client.hgetall(scene.keys.entries).items()
                   if name != "generation"}  # fmt: skip
        story = explain(Store(client, scene.keys), namespace, entries, "bare", lost[0])
        assert (story.outcome, "may have been lost" in story.why) == ("gap", True)
        # What a human had said holds.
        assert set(entries) == {"guarded", "bare", "paused", "stopped", "stored"}
        assert "paused" in client.hgetall(scene.keys.paused)
    assert scene.decided("paused", "emitted") == []
    assert scene.decided("stopped", "emitted") == []
    scene.until(lambda: scene.decided("stopped", "paused"), "the stop in force again")


@pytest.mark.parametrize("forced", [False, True], ids=["higher-token", "equal-token"])
def test_s7_f07_a_failover_to_a_lagging_replica_repeats_messages_and_no_effect(make_scene, forced):
    scene = make_scene(interval=0.1)
    replica = Valkey(scene.keeping, scene.folder)
    replica.follow(scene.valkey)
    scene.worker("worker", "guarded")
    scene.until(lambda: scene.effects("guarded"), "a tick that ran")
    first = min(scene.effects("guarded"))

    replica.lag()
    known = max(scene.decided("guarded", "emitted"))
    # An election during the lag: the replica has never heard of the term that emits from here on.
    scene.cluster.beats[0].stop()
    elected = scene.until(
        lambda: [r for r in scene.audit() if r["outcome"] == "elected"][1:], "a leader of the second beat"
    )
    token = int(elected[0]["token"])
    execute(scene.ledger, "SELECT apply_switch('entry:stopped', 'emit', 'bad parser', 'ana', 'test')")
    scene.until(lambda: len([at for at in scene.decided("guarded", "emitted") if at > known]) >= 100, "100 ticks")
    scene.until(lambda: len([at for at in scene.effects("guarded") if at > known]) >= 20, "some of them that ran")
    ran_before = scene.effects("guarded")

    scene.proxy.refuse()
    scene.valkey.kill()
    replica.promote()
    with replica.client() as client:
        assert int(client.hget(scene.keys.last, "guarded")) <= known + SECOND, "the replica lags"
        assert int(client.hget(scene.keys.term, "token")) < token
        if forced:  # two histories with one number: the nonce alone tells them apart
            client.hset(scene.keys.term, mapping={"token": token, "nonce": "of another history"})
            client.set(scene.keys.lock, "of another history", px=2000)
    scene.valkey = replica
    scene.proxy._target = ("127.0.0.1", replica.port)
    scene.proxy.heal()

    successor = scene.until(
        lambda: [r for r in scene.audit() if r["outcome"] == "elected" and int(r["token"]) > token], "a higher token"
    )[0]
    lost = scene.cluster.wait_for(
        lambda line: line.get("event") == "term.lost" and line.get("token") == token, PATIENCE
    )
    assert lost["reason"] in ("fenced", "refused", "trust_over")
    resumed = scene.until(
        lambda: max(
            (int(r["fire_time"]) for r in scene.audit()
             if r.get("entry") == "guarded" and r["outcome"] == "emitted" and r["token"] == successor["token"]),
            default=0,
        ),
        "an emission of the new term",
    )  # fmt: skip
    scene.until(lambda: {*seconds(first, resumed, 0.1)} <= {*scene.effects("guarded")}, "every tick")
    scene.until(lambda: max(scene.effects("guarded")) > resumed, "ticks since")

    ran = scene.effects("guarded")
    assert [at for at in ran if ran[at] > 1] == [], "messages may repeat, effects do not"
    assert ran_before.keys() <= ran.keys()
    emitted_again = {*scene.decided("guarded", "emitted")} & {at for at in ran_before if at > known}
    assert emitted_again, "the lost part was sent again, under the same task ids"
    assert [r for r in scene.audit() if r["outcome"] == "emitted" and int(r["token"]) == token] == []
    stopped = [r for r in scene.audit() if r.get("entry") == "stopped"]
    after = itertools.dropwhile(lambda r: r["token"] != successor["token"], stopped)
    assert {r["outcome"] for r in after} <= {"paused"}, "a stop of the lost part holds: its truth is in Postgres"


def test_f06_flushall_without_an_effect_store_is_recorded_and_entries_begin_anew(tmp_path, namespace):
    with keeper(tmp_path / "keeper") as keeping:
        valkey = Valkey(keeping, tmp_path)
        line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": "q"}, "fencebeat": {"catchup": "all"}}
        conf = {"fencebeat_namespace": namespace, "fencebeat_lease": 2.0, "beat_schedule": {"each": line}}
        with Cluster(tmp_path / "beats", valkey.url, conf) as cluster, valkey.client() as client:
            cluster.start_beat().wait_for(committed, PATIENCE)
            audit = f"{namespace}:audit"

            client.flushall()

            def resumed():
                return [r for _, r in client.xrange(audit) if r["outcome"] == "emitted"]

            cluster.poll(lambda: bool(resumed()), PATIENCE, "no emission after the flush")
            records = [r for _, r in client.xrange(audit)]
            kinds = [r["outcome"] for r in records]
            assert kinds.index("gap") < kinds.index("emitted")
            until = int(next(r["until"] for r in records if r["outcome"] == "gap"))
            assert int(resumed()[0]["fire_time"]) > until, "they begin anew: the time without knowledge is the gap's"
