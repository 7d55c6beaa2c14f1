"""A whole scheduler on a thread of this process: what a beat does, without the seconds that a process takes to start.

Several of them are several hosts: each has its own application, connections and path to the store (a proxy, say).
"""

import threading
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from celery import Celery

from fencebeat.configuration import Configuration
from fencebeat.elector import Elector
from fencebeat.entries import read_schedule
from fencebeat.lease import Term
from fencebeat.scheduler import Scheduler
from fencebeat.testing.tally import Tally, queued, tally
from tests.support.waiting import until


def each_second(queue: str, **policies: Any) -> dict[str, Any]:
    """An entry that puts a message on `queue` every second and never passes one over."""
    return {
        "task": "drive.work",
        "schedule": 1.0,
        "options": {"queue": queue},
        "fencebeat": {"catchup": "all", **policies},
    }


class LocalBeat:
    """One scheduler, ticking as Celery's service does. `failure` is what ended it, None while it ticks."""

    def __init__(self, url: str, settings: dict[str, Any], name: str = "beat") -> None:
        self.app = Celery(name, broker=url, set_as_current=False)
        self.app.conf.update(settings)
        self.scheduler = Scheduler(self.app)
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        until(lambda: self.scheduler._election or self.failure, what="its first tick")
        if self.failure is not None:
            raise self.failure
        return self

    @property
    def elector(self) -> Elector:
        return self.scheduler._election.elector

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def leading(self) -> Term | None:
        return self.elector.leading()

    def says(self, state: str, reason: str = "") -> bool:
        """Whether it shows this state, for this reason if one is given."""
        now = self.elector.state
        return now.state == state and reason in now.reason

    def elected(self, at_most: float = 15.0) -> Term:
        """The term under which it leads, once it does."""
        return until(self.leading, at_most=at_most, what=f"{self._thread.name} leads")

    def standing_by(self, at_most: float = 15.0) -> None:
        """Until it has asked for the lock and found another leading."""
        until(lambda: self.says("standby", "another_leads"), at_most=at_most, what=f"{self._thread.name} stands by")

    def stop(self) -> None:
        """As SIGTERM does."""
        self._ending.set()
        self.scheduler.close()
        self._thread.join(10)
        self.app.close()

    def vanish(self) -> None:
        """As SIGKILL does: it neither resigns nor says anything more."""
        self.elector._lock.resign = lambda *_, **__: False
        self.elector._lock.renew = lambda *_, **__: False
        self.stop()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self.scheduler.tick()
        except BaseException as error:  # noqa: BLE001 - a test asks what it was
            self.failure = error


class LocalBeats:
    """Beats of one namespace; its queue has the namespace's name. Leaving the block stops them all."""

    def __init__(self, url: str, namespace: str, *, lease: float = 2.0, **settings: Any) -> None:
        self.namespace, self.url = namespace, url
        self.settings = {
            "fencebeat_namespace": namespace,
            "fencebeat_lease": lease,
            "beat_schedule": {"each": each_second(namespace)},
            **settings,
        }
        self.client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5)
        self.beats: list[LocalBeat] = []

    def beat(self, url: str | None = None, name: str = "", clock: Path | None = None, **settings: Any) -> LocalBeat:
        """Start one; `url`: its own way to the store. `clock`: the file that moves its clocks."""
        made = LocalBeat(url or self.url, {**self.settings, **settings}, name or f"beat-{len(self.beats) + 1}")
        self.beats.append(made)
        with pytest.MonkeyPatch.context() as environment:
            if clock is not None:
                environment.setenv("FENCEBEAT_TESTING", "1")
                environment.setenv("FENCEBEAT_TEST_CLOCK", str(clock))
            return made.start()

    def leaders(self) -> list[LocalBeat]:
        return [beat for beat in self.beats if beat.leading()]

    @property
    def keys(self):
        return Configuration.of(self.beats[0].app).keys

    def queued(self) -> list[dict[str, Any]]:
        """Headers of the messages on the queue, oldest first."""
        return queued(self.client, self.namespace)

    def more(self, count: int, at_most: float = 20.0) -> None:
        """Until so many more messages are on the queue."""
        wanted = self.client.llen(self.namespace) + count
        until(lambda: self.client.llen(self.namespace) >= wanted, at_most=at_most, what=f"{count} more messages")

    def tally(self) -> Tally:
        """Stop all beats, then judge what is on the queue."""
        self.stop()
        entries, refused = read_schedule(self.settings["beat_schedule"], lease=self.settings["fencebeat_lease"])
        assert refused == []
        return tally(self.client, self.keys, self.namespace, entries)

    def stop(self) -> None:
        for beat in self.beats:
            beat.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()
