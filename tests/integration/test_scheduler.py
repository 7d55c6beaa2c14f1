"""The scheduler as Celery drives it: real beat processes where the process matters, else its rounds in this one."""

import json
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from celery import Celery, beat
from celery.schedules import schedule

from fencebeat.clock import ManualClock, SystemClock
from fencebeat.entries import entry_of, read_schedule
from fencebeat.errors import ClockJumped, ClockRefused, Fenced, ImpossibleConfiguration, StoreUnknown, StoreUnreachable
from fencebeat.explain import explain
from fencebeat.render import Renderer
from fencebeat.rounds import BATCH, Rounds
from fencebeat.scheduler import Scheduler
from fencebeat.store import Store
from fencebeat.testing.beats import Cluster, committed, elected, fenced, standing_by
from tests.support.fences import SECOND, Fence
from tests.support.leading import Leading


@pytest.fixture
def cluster(tmp_path, redis_url, namespace):
    """Beats of one namespace whose entry `each` puts a message on the queue `namespace` every second."""
    line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": namespace}, "fencebeat": {"catchup": "all"}}
    conf = {"fencebeat_namespace": namespace, "fencebeat_lease": 2.0, "beat_schedule": {"each": line}}
    with Cluster(tmp_path, redis_url, conf) as made:
        yield made


def headers(client, queue):
    return [json.loads(text)["headers"] for text in reversed(client.lrange(queue, 0, -1))]


def due_at_once(cluster, namespace, count):
    """Replace the schedule by `count` entries that are all due in the same second."""
    line = {"task": "drive.work", "schedule": 5.0, "options": {"queue": namespace}, "fencebeat": {"catchup": "all"}}
    cluster.settings = {**cluster.settings, "beat_schedule": {f"e{n:03}": line for n in range(count)}}


# --- processes


def test_f02_none_of_300_messages_of_a_leader_frozen_before_its_commit_is_accepted(cluster, client, namespace) -> None:
    due_at_once(cluster, namespace, 300)
    first = cluster.start_beat(failpoints="beat.commit.before=stop@1")
    first.wait_until_frozen(30)
    second = cluster.start_beat()
    taken = second.wait_for(elected, 20)
    cluster.poll(lambda: client.llen(namespace) >= 300, 20, "the successor did not emit all")
    first.thaw()
    first.wait_for(fenced, 15)
    old = min(line["token"] for line in cluster.lines() if elected(line))
    tokens = [header["fencebeat_token"] for header in headers(client, namespace)]
    assert old < taken["token"]
    assert old not in tokens
    ticks = [header["fencebeat_tick"] for header in headers(client, namespace)]
    assert len(ticks) == len(set(ticks))
    refused = [fields for _, fields in client.xrange(f"{namespace}:audit") if fields["outcome"] == "fenced"]
    assert len(refused) == 1
    assert first.alive
    assert second.stop() == 0
    assert first.stop() == 0


@pytest.mark.parametrize("step", ["beat.commit.before", "beat.commit.after"])
def test_f03_s21_a_leader_killed_beside_its_commit_leaves_each_tick_queued_once(
    cluster, client, namespace, step
) -> None:
    first = cluster.start_beat(failpoints=f"{step}=kill@3")
    assert first.process.wait(30) == -signal.SIGKILL
    second = cluster.start_beat()
    second.wait_for(committed, 20)
    second.stop()
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)]
    assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND))
    assert len({header["fencebeat_token"] for header in headers(client, namespace)}) == 2


def test_s6_sigterm_resigns_and_a_standby_emits_at_once(cluster, client, namespace) -> None:
    first = cluster.start_beat()
    first.wait_for(committed, 20)
    second = cluster.start_beat()
    second.wait_for(standing_by, 30)
    cluster.poll(lambda: any(c["name"] == "fencebeat-wait" for c in client.client_list()), 20, "nobody waits")
    at = SystemClock().elapsed()
    assert first.stop() == 0
    resigned = first.wait_for(lambda line: line.get("event") == "term.resigned", after=at)
    term = second.wait_for(elected, 10, at)
    second.wait_for(committed, 10, at)
    assert term["t"] - resigned["t"] < 2.0  # one lease: it was woken, or it would have waited for the end of it
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)]
    assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND))


def test_s4_a_frozen_leader_without_a_standby_leads_again_and_emits_each_missed_tick(
    cluster, client, namespace
) -> None:
    beat_process = cluster.start_beat()
    first = beat_process.wait_for(committed, 20)
    beat_process.freeze()
    cluster.poll(lambda: not client.exists(f"lock:{namespace}:leader"), 10, "the lease did not end")
    beat_process.thaw()
    again = beat_process.wait_for(elected, 10, first["t"])
    beat_process.wait_for(committed, 10, again["t"])
    beat_process.stop()
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)]
    assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND))
    assert len({header["fencebeat_token"] for header in headers(client, namespace)}) == 2


def test_a_standby_stays_alive_and_stops_politely(cluster, client) -> None:
    leader = cluster.start_beat()
    leader.wait_for(elected, 20)
    standby = cluster.start_beat(CELERY_LOG_LEVEL="INFO")
    standby.wait_for(standing_by, 30)
    assert standby.stop() == 0
    assert [line["proc"] for line in cluster.lines() if elected(line)] == [leader.name]


def test_inspect_ping_reaches_leader_and_standby(cluster) -> None:
    cluster.settings = {**cluster.settings, "beat_enable_remote_control": True}
    cluster.start_beat("one").wait_for(committed, 20)
    cluster.start_beat("two")
    app = Celery("ping", broker=cluster.redis_url, set_as_current=False)
    cluster.poll(lambda: len(app.control.ping(timeout=1.0)) == 2, 30, "not both answered")
    app.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fencebeat_lease": -1}, "fencebeat_lease"),
        ({"fencebeat_lock": "zookeeper"}, "redis or etcd"),
        ({"fencebeat_lock": "etcd"}, "fencebeat_etcd_url"),
        ({"fencebeat_namespace": "a b"}, "fencebeat_namespace"),
        ({"task_always_eager": True}, "task_always_eager"),
        ({"fencebeat_effect_store": "no.such:thing"}, "fencebeat_effect_store"),
        ({"beat_schedule": {"bad": {"task": "t", "schedule": 1.0, "fencebeat": {"zone": "Mars"}}}}, "bad"),
    ],
)
def test_what_cannot_work_refuses_the_start_with_a_sentence(app, settings, said) -> None:
    app.conf.update(settings)
    with pytest.raises(ImpossibleConfiguration, match=said):
        Scheduler(app).tick()


def test_a_refused_start_ends_the_process_with_the_sentence(cluster) -> None:
    cluster.settings = {**cluster.settings, "fencebeat_lock": "zookeeper"}
    refused = cluster.start_beat()
    assert refused.process.wait(30) != 0
    assert "fencebeat_lock must be redis or etcd" in refused.log.read_text()


def test_a_store_that_may_evict_the_fence_refuses_the_start(cluster, client) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        refused = cluster.start_beat()
        assert refused.process.wait(30) != 0
        assert "maxmemory-policy" in refused.log.read_text()
        cluster.settings = {**cluster.settings, "fencebeat_allow_eviction": True}
        cluster.start_beat().wait_for(committed, 20)
    finally:
        client.config_set("maxmemory-policy", "noeviction")


def test_an_unreachable_store_is_a_state_and_not_an_end(cluster) -> None:
    cluster.redis_url = "redis://127.0.0.1:1/0"
    lonely = cluster.start_beat()
    cluster.poll(lambda: b"store_unreachable" in lonely.log.read_bytes(), 20, "it did not say so")
    assert lonely.alive
    assert lonely.stop() == 0


# --- life cycle, in this process


@pytest.fixture
def app(redis_url, namespace):
    made = Celery("cycle", broker=redis_url, set_as_current=False)
    line = {"task": "t", "schedule": 1.0, "options": {"queue": namespace}}
    made.conf.update(
        fencebeat_namespace=namespace, fencebeat_lease=2.0, beat_schedule={"each": line}, result_expires=None
    )
    yield made
    made.close()


def test_building_the_scheduler_opens_nothing_and_starts_no_thread(app, client, namespace) -> None:
    before = threading.active_count()
    connected = {one["id"] for one in client.client_list()}
    lazy, real = Scheduler(app, lazy=True), Scheduler(app)
    assert namespace in lazy.info
    assert real.max_interval == 1
    assert threading.active_count() == before
    assert {one["id"] for one in client.client_list()} <= connected
    lazy.close()
    real.close()
    assert real.tick() == 0


def test_settings_that_cannot_work_end_celery_s_banner_with_their_sentences(app) -> None:
    app.conf.update(fencebeat_lock="zookeeper", fencebeat_renew_every=9.0)
    with pytest.raises(SystemExit, match=r"must be redis or etcd.* must leave room"):  # all rules, no traceback
        _ = Scheduler(app, lazy=True).info


def test_tick_returns_zero_and_close_can_be_called_again(app, client, namespace) -> None:
    scheduler = Scheduler(app)
    while client.llen(namespace) == 0:
        assert scheduler.tick() == 0
    assert scheduler.state.state == "leading"
    assert scheduler.should_sync() is False
    scheduler.close()
    scheduler.close()
    assert client.exists(f"lock:{namespace}:leader") == 0
    assert scheduler.tick() == 0


def test_a_beat_inside_a_worker_is_refused_with_a_sentence(app) -> None:
    refusals = []

    class Embedded(beat._Threaded):
        def run(self):
            try:
                Scheduler(self.app)
            except ImpossibleConfiguration as error:
                refusals.append(str(error))

    embedded = Embedded(app)
    embedded.start()
    embedded.join(10)
    assert "celery worker -B" in refusals[0]


def test_celerys_own_clean_up_entry_is_scheduled_where_celery_would(redis_url) -> None:
    with Celery("cleanup", broker=redis_url, set_as_current=False) as made:
        made.conf.update(result_backend="cache+memory://", result_expires=60)
        made.backend.supports_autoexpire = False
        scheduler = Scheduler(made)
        assert "celery.backend_cleanup" in scheduler._entries


# --- rounds


@pytest.fixture
def make_rounds(app, client, namespace):
    renderers = []

    def make(lines, *, store=None, clock=None):
        fence = Fence.sealed(client, namespace)
        entries, refused = read_schedule(lines)
        assert refused == []
        election = Leading(fence.term)
        renderer = Renderer(app, namespace, 2.0)
        renderers.append(renderer)
        rounds = Rounds(
            store or fence.store,
            renderer,
            entries,
            clock=clock or SystemClock(),
            tolerance=2.0,
            leading=election.leading,
            extended=election.extended,
            flags_generation=lambda: None,
        )
        return rounds, fence, election

    yield make
    for renderer in renderers:
        renderer.close()


def every(seconds, queue, **policies):
    return {"task": "t", "schedule": seconds, "options": {"queue": queue}, "fencebeat": policies}


def drain(rounds, term):
    while rounds.run(term) == 0:
        pass


def set_back(fence, name, seconds):
    """As if nobody had led for that long."""
    mark = (fence.now() // SECOND - seconds) * SECOND
    fence.client.hset(fence.keys.last, name, mark)
    fence.client.zadd(fence.keys.due, {name: mark // 1000 + 1})
    return mark


@pytest.mark.parametrize(("policy", "count"), [("all", 30), ("latest", 1), ("window=5s", 6), ("skip", 11)])
def test_s12_missed_ticks_follow_the_policy_with_their_true_fire_times(
    make_rounds, client, namespace, policy, count
) -> None:
    rounds, fence, _ = make_rounds({"e": every(1.0, namespace, catchup=policy)})
    drain(rounds, fence.term)
    mark = set_back(fence, "e", 30)
    before = client.llen(namespace)
    drain(rounds, fence.term)
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)][before:]
    assert abs(len(fire_times) - count) <= 1  # a second may have passed meanwhile
    assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND))
    entries, _ = read_schedule({"e": every(1.0, namespace, catchup=policy)})
    for at in range(mark + SECOND, fire_times[0], SECOND):
        story = explain(fence.store, namespace, entries, "e", at)
        assert story.outcome in ("skipped", "superseded")
        assert story.why
    assert explain(fence.store, namespace, entries, "e", fire_times[0]).outcome == "emitted"


def test_a_backlog_is_sent_in_batches_and_in_order(make_rounds, client, namespace) -> None:
    rounds, fence, election = make_rounds({"e": every(1.0, namespace, catchup="all")})
    drain(rounds, fence.term)
    set_back(fence, "e", 250)
    before = client.llen(namespace)
    drain(rounds, fence.term)
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)][before:]
    assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND))
    assert len(fire_times) >= 250
    assert len(election.extensions) >= len(fire_times) // BATCH


def test_s10_a_new_entry_waits_for_its_first_fire_time(make_rounds, client, namespace) -> None:
    rounds, fence, _ = make_rounds({"e": every(3600.0, namespace)})
    drain(rounds, fence.term)
    assert client.llen(namespace) == 0
    assert fence.store.due(fence.term, 10).marks == {}


def test_a_lost_reply_is_asked_again_and_answered_duplicate(make_rounds, client, namespace) -> None:
    class LosesOneReply(Store):
        lost = 0

        def commit(self, term, decisions, **options):
            committed = super().commit(term, decisions, **options)
            if not self.lost:
                LosesOneReply.lost += 1
                raise StoreUnreachable(store="Redis", seconds=1, why="the reply was lost", address="test")
            return committed

    fence = Fence.sealed(client, namespace)
    rounds, fence, _ = make_rounds({"e": every(1.0, namespace, catchup="all")}, store=LosesOneReply(client, fence.keys))
    rounds.signals.committed.listen()
    rounds.run(fence.term)
    set_back(fence, "e", 3)
    with pytest.raises(StoreUnreachable):
        drain(rounds, fence.term)
    queued = client.llen(namespace)
    assert queued >= 3
    rounds.run(fence.term)
    outcome = rounds.signals.committed.wait()
    assert [result for _, result in outcome.results] == ["duplicate"] * len(outcome.results)
    assert client.llen(namespace) == queued


def test_a_term_that_is_no_longer_trusted_sends_nothing(make_rounds, client, namespace) -> None:
    rounds, fence, election = make_rounds({"e": every(1.0, namespace, catchup="all")})
    drain(rounds, fence.term)
    set_back(fence, "e", 3)
    queued = client.llen(namespace)
    election.term = None
    rounds.run(fence.term)
    assert client.llen(namespace) == queued


def test_an_entry_that_raises_is_left_alone_and_the_others_go_on(make_rounds, client, namespace) -> None:
    bad = {**every(1.0, namespace, catchup="all"), "options": {"serializer": "no-such-thing"}}
    rounds, fence, _ = make_rounds({"bad": bad, "good": every(1.0, namespace, catchup="all")})
    rounds.signals.quarantined.listen()
    rounds.run(fence.term)
    set_back(fence, "bad", 3)
    set_back(fence, "good", 3)
    drain(rounds, fence.term)
    assert rounds.signals.quarantined.wait() == "bad"
    assert {header["fencebeat_entry"] for header in headers(client, namespace)} == {"good"}
    assert fence.mark("bad") < fence.mark("good")


def test_a_lost_term_and_a_store_that_went_empty_are_noticed_while_nothing_is_due(
    make_rounds, client, namespace
) -> None:
    rounds, fence, _ = make_rounds({"e": every(3600.0, namespace)})
    drain(rounds, fence.term)
    client.delete(fence.keys.last)
    with pytest.raises(StoreUnknown):
        rounds.run(fence.term)
    fence.successor()
    with pytest.raises(Fenced):
        rounds.run(fence.term)


@pytest.mark.parametrize("ahead", [3.0, -3.0, 3600.0])
def test_s14_a_host_whose_clock_differs_emits_nothing(make_rounds, client, namespace, ahead) -> None:
    clock = ManualClock(wall=datetime.now(UTC).timestamp() + ahead)
    rounds, fence, _ = make_rounds({"e": every(1.0, namespace)}, clock=clock)
    with pytest.raises(ClockRefused):
        drain(rounds, fence.term)
    assert client.llen(namespace) == 0


def test_s14_a_jump_of_years_stops_emission_before_any_mark_moves_and_its_end_resumes(client, namespace, app) -> None:
    class Jumping(Store):
        years = 0

        def due(self, term, limit):
            found = super().due(term, limit)
            shift = self.years * 365 * 86_400 * SECOND
            clock._wall = (found.now + shift) / SECOND
            return replace(found, now=found.now + shift)

    clock = ManualClock()
    fence = Fence.sealed(client, namespace)
    entries, _ = read_schedule({"e": every(1.0, namespace)})
    store = Jumping(client, fence.keys)
    election = Leading(fence.term)
    renderer = Renderer(app, namespace, 2.0)
    rounds = Rounds(
        store,
        renderer,
        entries,
        clock=clock,
        tolerance=2.0,
        leading=election.leading,
        extended=election.extended,
        flags_generation=lambda: None,
    )
    rounds.run(fence.term)
    marked = fence.mark()
    Jumping.years = 10
    with pytest.raises(ClockJumped):
        rounds.run(fence.term)
    assert fence.mark() == marked
    Jumping.years = 0
    set_back(fence, "e", 2)
    drain(rounds, fence.term)
    renderer.close()
    assert client.llen(namespace) >= 1


def test_s20_an_interval_does_not_move_with_the_leader(make_rounds, client, namespace) -> None:
    lines = {"e": {**every(2.0, namespace, catchup="all"), "schedule": schedule(2.0)}}
    rounds, fence, election = make_rounds(lines)
    rounds.run(fence.term)
    set_back(fence, "e", 21)
    for _ in range(3):
        drain(rounds, election.term)
        election.term = Fence.successor(fence)
        fence.term = election.term
        rounds.forget()
    fire_times = [header["fencebeat_fire_time"] for header in headers(client, namespace)]
    assert all(at % (2 * SECOND) == 0 for at in fire_times)
    assert len(fire_times) == len(set(fire_times))


def test_an_edit_by_another_process_is_answered_changed_and_synced_again(make_rounds, client, namespace) -> None:
    rounds, fence, _ = make_rounds({"e": every(1.0, namespace, catchup="all")})
    rounds.run(fence.term)
    client.hset(fence.keys.entries, "e", entry_of("e", every(1.0, "elsewhere", catchup="all")).definition)
    set_back(fence, "e", 3)
    rounds.signals.committed.listen()
    rounds.signals.synced.listen()
    rounds.run(fence.term)
    assert {result for _, result in rounds.signals.committed.wait().results} == {"changed"}
    drain(rounds, fence.term)
    rounds.signals.synced.wait()
    assert client.llen(namespace) >= 3
