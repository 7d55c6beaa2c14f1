"""The bulk loop against a scripted server: what is sent again, when, and how it ends."""

import json
import random
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensearchpy.exceptions import ConnectionTimeout, TransportError

from fencebeat.clock import ManualClock
from fencebeat.errors import Refused
from index.errors import TargetUnavailable
from index.model import ItemClass
from index.ports import nothing
from index.targets.bulk import BulkItem, BulkLimits, BulkWriter

WALL = 1_800_000_000.0


def items(count):
    return [BulkItem(f"id-{n}", "doc", 7, {"text": f"text {n}"}) for n in range(count)]


def ok(item_id):
    return {"index": {"_id": item_id, "status": 201}}


def failed(item_id, status, kind="why"):
    return {"index": {"_id": item_id, "status": status, "error": {"type": kind, "reason": kind}}}


class Server:
    """Answers each request with the next step of a script, then with success. A step: ids -> reply, or raises."""

    def __init__(self, *script):
        self.script = list(script)
        self.requests = []
        self.slept = []
        self.clock = ManualClock(wall=WALL)

    def send(self, body, timeout):
        ids = [next(iter(line.values()))["_id"] for line in map(json.loads, body.splitlines()) if "index" in line]
        self.requests.append(ids)
        assert timeout > 0
        step = self.script.pop(0) if self.script else (lambda ids: [ok(i) for i in ids])
        reply = step(ids)
        if isinstance(reply, Exception):
            raise reply
        return {"items": reply}

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def writer(self, **limits):
        return BulkWriter(
            self.send,
            target_id="t",
            clock=self.clock,
            limits=BulkLimits(**limits),
            sleep=self.sleep,
            dice=random.Random(1),
        )


def outcomes(results):
    return [result.outcome for result in results]


def test_the_request_names_id_routing_and_version():
    lines = BulkItem("id", "doc/1", 5 << 32, {"text": "ä"}).encode().splitlines()

    assert json.loads(lines[0]) == {
        "index": {"_id": "id", "routing": "doc/1", "version": 5 << 32, "version_type": "external_gte"}
    }
    assert json.loads(lines[1]) == {"text": "ä"}
    assert list(json.loads(BulkItem("id", "doc", 1, None).encode())) == ["delete"]


def test_batches_are_bounded_by_count_and_by_bytes():
    server = Server()
    server.writer(items=4).run(items(10), nothing)
    assert [len(ids) for ids in server.requests] == [4, 4, 2]

    server = Server()
    size = len(items(1)[0].encode())
    server.writer(items=100, size=3 * size).run(items(10), nothing)
    assert [len(ids) for ids in server.requests] == [3, 3, 3, 1]


def test_only_the_rejected_items_are_sent_again():
    server = Server(lambda ids: [failed(i, 429) if i == "id-1" else ok(i) for i in ids])
    writer = server.writer()

    results = writer.run(items(3), nothing)

    assert outcomes(results) == [ItemClass.OK] * 3
    assert server.requests == [["id-0", "id-1", "id-2"], ["id-1"]]
    assert writer.counts == {ItemClass.OK: 3, ItemClass.TRANSIENT: 1}
    assert len(server.slept) == 1


def test_a_short_reply_is_an_unknown_outcome():
    server = Server(lambda ids: [ok(ids[0])])

    assert outcomes(server.writer().run(items(3), nothing)) == [ItemClass.OK] * 3
    assert server.requests[1] == ["id-1", "id-2"]


def test_a_reply_about_another_id_is_an_unknown_outcome():
    server = Server(lambda ids: [ok(ids[1]), ok(ids[0])])

    server.writer().run(items(2), nothing)

    assert server.requests[1] == ["id-0", "id-1"]


def test_a_version_conflict_is_final_and_is_not_sent_again():
    server = Server(lambda ids: [failed(i, 409) for i in ids])

    assert outcomes(server.writer().run(items(2), nothing)) == [ItemClass.SUPERSEDED] * 2
    assert len(server.requests) == 1


def test_a_bad_item_does_not_spoil_the_others():
    server = Server(lambda ids: [failed(i, 400) if i == "id-0" else ok(i) for i in ids])

    results = server.writer().run(items(2), nothing)

    assert outcomes(results) == [ItemClass.PERMANENT, ItemClass.OK]
    assert results[0].reason.startswith("why")


def test_a_sick_target_ends_the_run_with_what_is_known():
    server = Server(lambda ids: [ok(ids[0]), failed(ids[1], 403, "cluster_block_exception")])
    writer = server.writer(items=2)

    results = writer.run(items(6), nothing)

    assert outcomes(results) == [ItemClass.OK] + [ItemClass.TARGET_SICK] * 5
    assert len(server.requests) == 1
    assert writer.counts == {ItemClass.OK: 1, ItemClass.TARGET_SICK: 5}


def test_a_whole_request_from_a_sick_target():
    server = Server(lambda ids: TransportError(401, "no", "Unauthorized"))

    assert outcomes(server.writer(items=2).run(items(4), nothing)) == [ItemClass.TARGET_SICK] * 4
    assert len(server.requests) == 1


def test_a_request_too_large_is_halved_until_it_fits():
    def too_large(ids):
        return TransportError(413, "", "") if len(ids) > 2 else [ok(i) for i in ids]

    server = Server(*[too_large] * 50)

    assert outcomes(server.writer(items=8).run(items(8), nothing)) == [ItemClass.OK] * 8
    assert [len(ids) for ids in server.requests[:3]] == [8, 4, 2]
    assert server.slept == []


def test_the_one_item_that_spoils_a_request_is_found():
    def validation(ids):
        return TransportError(400, "action_request_validation_exception", {}) if "id-5" in ids else [ok(i) for i in ids]

    server = Server(*[validation] * 50)

    results = server.writer(items=8).run(items(8), nothing)

    assert [result.index_id for result in results if result.outcome is ItemClass.PERMANENT] == ["id-5"]
    assert outcomes(results).count(ItemClass.OK) == 7


def test_after_a_time_out_requests_are_halved_and_grow_again():
    server = Server(lambda ids: ConnectionTimeout("TIMEOUT", "", None))

    server.writer(items=8).run(items(20), nothing)

    assert [len(ids) for ids in server.requests] == [8, 4, 8, 8]


def test_the_announced_waiting_time_is_kept():
    def busy(ids):
        error = TransportError(429, "", "")
        error.retry_after = "3"
        return error

    server = Server(busy)
    server.writer().run(items(2), nothing)
    assert 3 <= server.slept[0] <= 3.1

    def busy_until(ids):
        error = TransportError(503, "", "")
        error.retry_after = format_datetime(datetime.fromtimestamp(WALL + 5, UTC), usegmt=True)
        return error

    server = Server(busy_until)
    server.writer().run(items(2), nothing)
    assert 5 <= server.slept[0] <= 5.1


def test_waits_are_jittered_and_bounded():
    server = Server(*[lambda ids: TransportError(503, "", "")] * 7)

    server.writer(first_wait=1.0, longest_wait=4.0).run(items(1), nothing)

    assert len(server.slept) == 7
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(server.slept, [1, 2, 4, 4, 4, 4, 4], strict=True))
    assert len(set(server.slept)) == 7


def test_requests_that_finish_nothing_end_the_run():
    server = Server(*[lambda ids: TransportError(503, "", "down")] * 50)

    with pytest.raises(TargetUnavailable, match="down"):
        server.writer(stalled_requests=5).run(items(3), nothing)

    assert len(server.requests) == 5


def test_the_deadline_covers_everything():
    def slow(ids):
        server.clock.advance(40)
        return ConnectionTimeout("TIMEOUT", "", None)

    server = Server(*[slow] * 50)

    with pytest.raises(TargetUnavailable):
        server.writer(deadline_seconds=100, stalled_requests=99).run(items(3), nothing)

    assert len(server.requests) == 3


def test_a_wait_beyond_the_deadline_is_not_begun():
    def busy(ids):
        error = TransportError(429, "", "")
        error.retry_after = "3600"
        return error

    server = Server(busy)

    with pytest.raises(TargetUnavailable):
        server.writer().run(items(1), nothing)

    assert server.slept == []


def test_the_hook_is_asked_before_every_request_and_may_stop_the_run():
    server = Server()
    asked = []

    def hook():
        asked.append(len(server.requests))
        if len(asked) == 3:
            raise Refused(why="switch")

    with pytest.raises(Refused):
        server.writer(items=2).run(items(10), hook)

    assert asked == [0, 1, 2]
    assert len(server.requests) == 2


def test_a_bug_is_not_taken_for_a_failed_request():
    server = Server(lambda ids: ValueError("bug"))

    with pytest.raises(ValueError, match="bug"):
        server.writer().run(items(1), nothing)


@given(seed=st.integers(0, 2**32), count=st.integers(0, 60), most=st.integers(1, 20))
def test_every_item_ends_in_exactly_one_class_and_none_is_sent_after_it_ended(seed, count, most):
    """Whatever mixture of faults a server answers with."""
    chance = random.Random(seed)
    finished = set()

    def anything(ids):
        assert not finished & set(ids)
        whole = chance.random()
        if whole < 0.1:
            return ConnectionTimeout("TIMEOUT", "", None)
        if whole < 0.2 and len(ids) > 1:
            return TransportError(413, "", "")
        reply = []
        for item_id in ids:
            status = chance.choice([201, 201, 409, 429, 400])
            if status != 429:
                finished.add(item_id)
            reply.append(ok(item_id) if status == 201 else failed(item_id, status))
        if chance.random() < 0.1 and reply:
            finished.discard(ids[-1])
            reply.pop()
        return reply

    server = Server(*[anything] * 10_000)
    writer = server.writer(items=most, deadline_seconds=1e9, stalled_requests=1000)

    results = writer.run(items(count), nothing)

    assert [result.index_id for result in results] == [f"id-{n}" for n in range(count)]
    final = {ItemClass.OK, ItemClass.SUPERSEDED, ItemClass.PERMANENT}
    assert all(result.outcome in final for result in results)
    assert sum(writer.counts[outcome] for outcome in final) == count


def test_the_run_is_told_with_what_was_refused(monkeypatch):
    told = []
    monkeypatch.setattr("config.events.emit", lambda event, **facts: told.append((event.name, facts)))
    server = Server(lambda ids: [failed(ids[0], 400), failed(ids[1], 409), *map(ok, ids[2:])])

    server.writer().run(items(4), nothing)
    server.writer().run([], nothing)

    assert told == [("bulk.written", {"items": 4, "refused": 1, "seconds": 0.0, "target": "t"})]
