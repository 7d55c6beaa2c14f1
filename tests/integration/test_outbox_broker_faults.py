"""The outbox while its RabbitMQ is killed and started again, frozen, or told to take nothing (an alarm).

A server of its own, because it is broken; `RABBITMQ_URL` is not used.
"""

import os
import signal
import subprocess

import pytest

from fencebeat import outbox_sending
from fencebeat.clock import SystemClock
from ops.services import Services
from tests.support.fences import SECOND
from tests.support.outboxes import Arrivals, bench, ticks
from tests.support.servers import absent
from tests.support.waiting import until

START_SECONDS = 120


class Server:
    """One RabbitMQ with its keeper."""

    def __init__(self, folder) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "RABBITMQ_URL"}
        self._services = Services(folder, {"rabbitmq"}, durable=False, environ=environ)
        addresses = self._services.start()
        if "rabbitmq" in addresses.missing:
            self._services.stop()
            absent(str(addresses.missing["rabbitmq"]))
        self.url = addresses.rabbitmq_url
        self.child = self._services.children["rabbitmq"]

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.child.ended.wait(20)

    def start_again(self) -> None:
        self.child = self._services.keeper.again(self.child)
        until(self._answers, at_most=START_SECONDS, what="RabbitMQ after its restart")

    def _answers(self) -> bool:
        try:
            Arrivals(self.url).close()
        except OSError:
            return False
        return True

    def control(self, *words: str) -> None:
        """rabbitmqctl."""
        environment = self.child.order["env"]
        command = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-n", environment["RABBITMQ_NODENAME"], *words]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)

    def stop(self) -> None:
        self._services.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("rabbitmq-own"))
    yield made
    made.stop()


@pytest.fixture
def box(redis_url, server, namespace):
    with bench(redis_url, server.url, namespace) as made:
        yield made


def commit(box, count, since=0):
    base = (box.fence.now() // SECOND - 1000) * SECOND
    entry = box.fence.entry(f"e{since}", mark=base)
    made = [box.emission(entry, base + number * SECOND) for number in range(1, count + 1)]
    assert box.fence.commit(*made) == ("emitted",) * count
    return [f"{entry.name}@{tick.fire_time // SECOND}" for tick in made]


def arrived(url, queue, count):
    """What is on the queue, seen by a connection that the faults have not touched."""
    reader = Arrivals(url)
    try:
        return ticks(reader.wait_for_queue(queue, count))
    finally:
        reader.close()


def test_a_broker_that_is_killed_and_started_again_gets_every_message(box, server, namespace):
    first = commit(box, 30, 1)
    box.publisher.start()
    box.wait_until_empty()
    box.publisher.signals.troubled.listen()
    server.kill()
    second = commit(box, 30, 2)
    box.publisher.wake()
    assert "does not take messages" in box.publisher.signals.troubled.wait(30)
    assert box.rows == 30
    server.start_again()
    box.wait_until_empty(START_SECONDS)
    assert list(dict.fromkeys(arrived(server.url, namespace, 60))) == [*first, *second]
    until(lambda: box.publisher.trouble is None, what="the end of the trouble")


def test_a_broker_that_freezes_is_given_up_and_gets_every_message_under_the_same_ids(
    box, server, namespace, monkeypatch
):
    monkeypatch.setattr(outbox_sending, "CONFIRM_SECONDS", 0.5)
    first = commit(box, 5, 1)
    box.publisher.start()
    box.wait_until_empty()
    box.publisher.signals.troubled.listen()
    server.signal(signal.SIGSTOP)
    try:
        second = commit(box, 5, 2)
        box.publisher.wake()
        assert "does not take messages" in box.publisher.signals.troubled.wait(30)
        assert box.rows == 5
        started = SystemClock().elapsed()
        box.publisher.stop(20)
        assert SystemClock().elapsed() - started < 15, "bounded by the time-outs of the connection"
    finally:
        server.signal(signal.SIGCONT)
    box.publisher._stopping, box.publisher._thread = False, None
    box.publisher.start()
    box.wait_until_empty(60)
    assert list(dict.fromkeys(arrived(server.url, namespace, 10))) == [*first, *second]


def test_an_alarm_of_the_broker_is_said_and_ends(box, server, namespace):
    first = commit(box, 3, 1)
    box.publisher.start()
    box.wait_until_empty()
    box.publisher.signals.troubled.listen()
    server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        second = commit(box, 3, 2)
        box.publisher.wake()
        assert "told publishers to wait" in box.publisher.signals.troubled.wait(30)
        assert box.rows == 3
    finally:
        server.control("set_vm_memory_high_watermark", "absolute", "512MB")
    box.wait_until_empty(30)
    assert list(dict.fromkeys(arrived(server.url, namespace, 6))) == [*first, *second]
    until(lambda: box.publisher.trouble is None, what="the end of the trouble")


def test_a_broker_that_stays_blocked_is_asked_anew(box, server, namespace, monkeypatch):
    monkeypatch.setattr(outbox_sending, "BLOCKED_SECONDS", 0.5)
    box.publisher.signals.troubled.listen()
    server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        told = commit(box, 1, 1)
        box.publisher.start()
        until(lambda: "for more than 0.5 s" in box.publisher.signals.troubled.wait(30), at_most=60)
    finally:
        server.control("set_vm_memory_high_watermark", "absolute", "512MB")
    box.wait_until_empty(30)
    assert set(arrived(server.url, namespace, 1)) == set(told)
