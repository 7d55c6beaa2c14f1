"""S17 on real beats: a leader, a standby, and a third host that edits; also in the moment after a fail-over."""

import json

import pytest

from fencebeat.clock import SystemClock
from fencebeat.edits import Schedule
from fencebeat.keys import Keys
from fencebeat.schedules import read_schedule_text
from fencebeat.testing.beats import Cluster, elected, standing_by

SECOND = 1_000_000


@pytest.fixture
def cluster(tmp_path, redis_url, namespace):
    """Beats with a metronome: an entry of the configuration, each second, on a queue of its own."""
    line = {"task": "drive.work", "schedule": 1.0, "options": {"queue": f"{namespace}-metronome"}}
    conf = {"fencebeat_namespace": namespace, "fencebeat_lease": 2.0, "beat_schedule": {"metronome": line}}
    with Cluster(tmp_path, redis_url, conf) as made:
        yield made


class Host:
    """The third host: its schedule, and what it sees on the queue."""

    def __init__(self, cluster, client, namespace):
        self.cluster, self.client, self.queue = cluster, client, namespace
        self.schedule = Schedule(client, Keys(namespace), by="a third host")

    def add(self, text, **more):
        line = {"task": "drive.work", "schedule": read_schedule_text(text), "options": {"queue": self.queue}, **more}
        return self.schedule.add("x", {**line, "fencebeat": {"catchup": "all"}})

    def ticks(self):
        """(fire time, arguments) of what was emitted for `x`, oldest first."""
        texts = reversed(self.client.lrange(self.queue, 0, -1))
        messages = [json.loads(text) for text in texts]
        return [(m["headers"]["fencebeat_fire_time"], m["headers"]["argsrepr"]) for m in messages]

    def beats(self, count):
        """Wait until the metronome has beaten so often: a leader works, and that much time has passed."""
        queue = f"{self.queue}-metronome"
        wanted = self.client.llen(queue) + count
        self.cluster.poll(lambda: self.client.llen(queue) >= wanted, 30, "no metronome")

    def emits(self, since, what="x"):
        """The first tick of `x` after `since`; its fire time."""
        self.cluster.poll(lambda: any(at > since for at, _ in self.ticks()), 30, f"{what} was not emitted")
        return next(at for at, _ in self.ticks() if at > since)


@pytest.fixture
def host(cluster, client, namespace):
    leader = cluster.start_beat()
    leader.wait_for(elected, 30)
    made = Host(cluster, client, namespace)
    made.leader = leader
    made.beats(1)
    return made


def test_s17_each_change_is_in_force_within_a_second_and_fires_no_old_time(host, client, namespace) -> None:
    added = host.add("every 2 s")
    assert host.emits(0) == added.following

    edited = host.schedule.edit("x", schedule=read_schedule_text("every 3 s"))
    before = len(host.ticks())
    host.beats(7)
    later = [at for at, _ in host.ticks()[before:]]
    assert later == list(range(edited.following, later[-1] + 1, 3 * SECOND)), "an old time fired, or one was lost"

    changed = host.schedule.edit("x", args=["new"])
    assert changed.following == edited.entry.next_after(changed.mark), "other arguments keep the next fire time"
    host.emits(changed.following - 1)
    assert {args for at, args in host.ticks() if at >= changed.following} == {"['new']"}

    paused = host.schedule.pause("x", "stop")
    seen = host.ticks()
    host.beats(5)
    assert host.ticks() == seen, "a paused entry fired"
    assert host.schedule.find("x").mark == paused.mark
    resumed = host.schedule.resume("x", skip_missed=True)
    assert host.emits(paused.mark) == resumed.following, "what was missed is skipped"

    host.schedule.remove("x")
    seen = host.ticks()
    host.beats(4)
    assert host.ticks() == seen, "a deleted entry fired"
    again = host.add("every 2 s", args=["again"])
    assert host.emits(again.mark) == again.following
    fire_times = [at for at, _ in host.ticks()]
    assert len(set(fire_times)) == len(fire_times), "a tick of its former life was repeated"

    clock = SystemClock()
    began = clock.elapsed()
    request = host.schedule.run_now("x")
    tick = lambda: [json.loads(m)["headers"]["fencebeat_tick"] for m in client.lrange(namespace, 0, -1)]  # noqa: E731
    host.cluster.poll(lambda: request.id in tick(), 10, "it was not run now")
    assert clock.elapsed() - began < 5
    host.beats(3)
    assert tick().count(request.id) == 1


@pytest.mark.parametrize("change", ["timing", "arguments", "pause", "remove"])
def test_s17_a_change_in_the_moment_of_a_fail_over_is_what_the_new_leader_acts_by(host, change) -> None:
    host.add("every 1 s")
    second = host.cluster.start_beat()
    second.wait_for(standing_by, 30)
    host.emits(0)
    at = SystemClock().elapsed()
    host.leader.kill()
    term = second.wait_for(elected, 30, at)
    match change:
        case "timing":
            edited = host.schedule.edit("x", schedule=read_schedule_text("every 3 s"))
        case "arguments":
            edited = host.schedule.edit("x", args=["new"])
        case "pause":
            edited = host.schedule.pause("x")
        case _:
            edited = host.schedule.remove("x")
    seen = host.ticks()
    assert SystemClock().elapsed() - term["t"] < 5
    host.beats(5)
    later = host.ticks()[len(seen) :]
    match change:
        case "timing":
            fire_times = [at for at, _ in later]
            assert fire_times == list(range(edited.following, fire_times[-1] + 1, 3 * SECOND))
        case "arguments":
            assert {args for _, args in later} == {"['new']"}
            fire_times = [at for at, _ in host.ticks()]
            assert fire_times == list(range(fire_times[0], fire_times[-1] + 1, SECOND)), "a fire time moved"
        case _:
            assert later == []
