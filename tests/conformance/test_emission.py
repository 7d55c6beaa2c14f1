"""What every way of emission promises: the same suite on the commit script alone and on the outbox with RabbitMQ."""

import json
import threading

import pytest
import redis
from celery import Celery
from kombu import Exchange

from fencebeat.errors import Fenced, StoreUnknown
from fencebeat.render import Renderer
from fencebeat.store import Store
from fencebeat.ticks import task_id
from tests.support.fences import SECOND, Fence
from tests.support.leading import rendered
from tests.support.outboxes import bench


class Direct:
    """The broker is the Redis of the records."""

    def __init__(self, redis_url, namespace) -> None:
        self.client = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5)
        self.fence = Fence.sealed(self.client, namespace)
        self.app = Celery("direct", broker=redis_url, set_as_current=False)
        self.app.conf.task_default_queue = namespace
        self.app.finalize()
        self.queue, self.namespace = namespace, namespace
        self.renderer = Renderer(self.app, namespace, 5.0)

    def arrived(self, count):
        """Message headers on the queue, oldest first; nothing else can still come."""
        found = [json.loads(text)["headers"] for text in reversed(self.client.lrange(self.queue, 0, -1))]
        assert len(found) == count
        return found

    def close(self) -> None:
        self.renderer.close()
        self.app.close()
        self.client.close()


class ThroughOutbox:
    """RabbitMQ, with a publisher that leads under whatever term is newest."""

    def __init__(self, redis_url, rabbitmq_url, namespace) -> None:
        self._bench = bench(redis_url, rabbitmq_url, namespace)
        self.box = self._bench.__enter__()
        self.fence, self.renderer, self.app = self.box.fence, self.box.renderer, self.box.app
        self.queue, self.namespace = namespace, namespace
        self.box.arrivals.declare(namespace, exchange=Exchange(namespace, "direct"), routing_key=namespace)

    def arrived(self, count):
        record = self.fence.client.hgetall(self.fence.keys.term)
        term = type(self.fence.term)(int(record["token"]), record["nonce"], record["holder"], self.fence.term.lease)
        self.box.leader.append(term)
        self.box.publisher.start()
        self.box.wait_until_empty()
        found = [message.headers for message in self.box.arrivals.wait_for(self.queue, count)]
        assert len(found) == count
        return found

    def close(self) -> None:
        self._bench.__exit__(None, None, None)


class EmissionConformance:
    """Subclassed for each way; `way` has a fence, a renderer and the messages that arrived."""

    @pytest.fixture
    def way(self):
        raise NotImplementedError

    @pytest.fixture
    def base(self, way):
        return (way.fence.now() // SECOND - 1000) * SECOND

    @staticmethod
    def tick(way, entry, fire_time):
        return rendered(way.renderer, entry, fire_time, way.fence.term)

    def test_a_tick_becomes_one_message_with_its_mark_and_its_record(self, way, base) -> None:
        entry = way.fence.entry(mark=base)
        assert way.fence.commit(self.tick(way, entry, base + SECOND)) == ("emitted",)
        (headers,) = way.arrived(1)
        assert headers["id"] == task_id(way.namespace, "e", base + SECOND)
        assert headers["fencebeat_tick"] == f"e@{base // SECOND + 1}"
        assert way.fence.mark() == base + SECOND
        (record,) = [one for one in way.fence.audit() if one["outcome"] == "emitted"]
        assert record["task_id"] == headers["id"]
        assert record["message_id"]

    def test_messages_come_in_the_order_of_the_batch(self, way, base) -> None:
        entry = way.fence.entry(mark=base)
        made = [self.tick(way, entry, base + number * SECOND) for number in range(1, 101)]
        assert way.fence.commit(*made) == ("emitted",) * 100
        assert [headers["id"] for headers in way.arrived(100)] == [tick.task_id for tick in made]

    def test_f15_a_repeated_commit_adds_nothing(self, way, base) -> None:
        entry = way.fence.entry(mark=base)
        tick = self.tick(way, entry, base + SECOND)
        assert [way.fence.commit(tick), way.fence.commit(tick)] == [("emitted",), ("duplicate",)]
        way.arrived(1)

    def test_f01_a_former_term_emits_nothing(self, way, base) -> None:
        entry = way.fence.entry(mark=base)
        old, newer = way.fence.term, way.fence.successor()
        with pytest.raises(Fenced):
            way.fence.commit(self.tick(way, entry, base + SECOND), term=old)
        assert way.fence.commit(self.tick(way, entry, base + SECOND), term=newer) == ("emitted",)
        way.arrived(1)

    @pytest.mark.parametrize("scope", ["all", "entry:e", "queue"])
    def test_a_stop_holds_the_tick_back(self, way, base, scope) -> None:
        entry = way.fence.entry(mark=base)
        scope = f"queue:{way.queue}" if scope == "queue" else scope
        way.fence.client.hset(way.fence.keys.flags, scope, "a stop")
        assert way.fence.commit(self.tick(way, entry, base + SECOND)) == ("paused",)
        way.fence.client.hdel(way.fence.keys.flags, scope)
        assert way.fence.commit(self.tick(way, entry, base + 2 * SECOND)) == ("emitted",)
        (headers,) = way.arrived(1)
        assert headers["fencebeat_fire_time"] == base + 2 * SECOND

    def test_f05_without_a_past_nothing_is_emitted(self, way, base) -> None:
        entry = way.fence.entry(mark=base)
        way.fence.client.hdel(way.fence.keys.last, "generation")
        with pytest.raises(StoreUnknown):
            way.fence.commit(self.tick(way, entry, base + SECOND))
        way.arrived(0)

    def test_f03_a_batch_with_one_record_that_cannot_be_written_changes_nothing_for_that_tick(self, way, base) -> None:
        entry, other = way.fence.entry("e", mark=base), way.fence.entry("other", mark=base)
        broken = self.tick(way, entry, base + SECOND)
        (key,) = {command.key for command in broken.message.commands}
        way.fence.client.set(key, "no queue and no stream")
        assert way.fence.commit(broken, self.tick(way, other, base + SECOND)) == ("refused", "refused")
        assert way.fence.mark() == base
        way.fence.client.delete(key)
        assert way.fence.commit(broken, self.tick(way, other, base + SECOND)) == ("emitted", "emitted")
        way.arrived(2)

    def test_ten_senders_of_the_same_ticks_emit_each_once(self, way, base) -> None:
        """Without the mark this counter would be ten times too high."""
        entry = way.fence.entry(mark=base)
        made = [self.tick(way, entry, base + number * SECOND) for number in range(1, 51)]
        counted, ready, outcomes = threading.Lock(), threading.Barrier(10), []

        def send() -> None:
            store = Store(way.fence.client, way.fence.keys)
            ready.wait(10)
            for tick in made:
                result = store.commit(way.fence.term, [tick], sender_now=way.fence.now()).outcomes
                with counted:
                    outcomes.extend(result)

        threads = [threading.Thread(target=send) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (outcomes.count("emitted"), outcomes.count("duplicate")) == (50, 450)
        assert len({headers["id"] for headers in way.arrived(50)}) == 50


class TestDirectEmission(EmissionConformance):
    @pytest.fixture
    def way(self, redis_url, namespace):
        made = Direct(redis_url, namespace)
        yield made
        made.close()


class TestOutboxEmission(EmissionConformance):
    @pytest.fixture
    def way(self, redis_url, rabbitmq_url, namespace):
        made = ThroughOutbox(redis_url, rabbitmq_url, namespace)
        yield made
        made.close()
