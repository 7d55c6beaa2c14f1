"""The bulk loop with the real client on the wire, against a server that misbehaves as told."""

import random

import pytest

from config.settings import Settings
from fencebeat.clock import ManualClock
from index.errors import TargetUnavailable
from index.model import ItemClass
from index.targets.bulk import BulkLimits
from index.targets.connection import connect
from index.targets.opensearch import OpenSearchTarget
from tests.support import fake_opensearch as fakes
from tests.support.documents import classes, make_doc, make_spec, version

OK, SICK, PERMANENT = ItemClass.OK, ItemClass.TARGET_SICK, ItemClass.PERMANENT


@pytest.fixture
def fake():
    with fakes.fake_opensearch() as server:
        yield server


@pytest.fixture
def slept():
    return []


@pytest.fixture
def make_target(fake, slept, monkeypatch):
    clients = []

    def make(password=None, **limits):
        monkeypatch.setenv("OPENSEARCH_URL", fake.url)
        if password:
            monkeypatch.setenv("OPENSEARCH_PASSWORD", password)
        client = connect(Settings())
        clients.append(client)
        return OpenSearchTarget(
            make_spec("opensearch"),
            client,
            timeout=10,
            clock=ManualClock(wall=1_800_000_000.0),
            limits=BulkLimits(**limits),
            sleep=slept.append,
            dice=random.Random(1),
        )

    yield make
    for client in clients:
        client.close()


def docs(count):
    return [make_doc(f"text {n}", index_id=f"id-{n}") for n in range(count)]


def write(target, count):
    return classes(target.write(docs(count), version(1), epoch=1))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_refused_request_is_sent_again(fake, make_target, slept, status):
    fake.then(fakes.whole(status))

    assert write(make_target(), 3) == [OK] * 3
    assert fake.requests == [["id-0", "id-1", "id-2"]] * 2
    assert len(slept) == 1


def test_retry_after_is_kept(fake, make_target, slept):
    fake.then(fakes.whole(429, Retry_After="3"), fakes.whole(503, Retry_After="7"))

    assert write(make_target(), 2) == [OK] * 2
    assert 3 <= slept[0] < 4
    assert 7 <= slept[1] < 8


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_item_is_sent_again_alone(fake, make_target, status):
    fake.then(fakes.some(status, "id-1"))

    assert write(make_target(), 3) == [OK] * 3
    assert fake.requests == [["id-0", "id-1", "id-2"], ["id-1"]]


def test_a_short_reply_is_completed(fake, make_target):
    fake.then(fakes.short)

    assert write(make_target(), 3) == [OK] * 3
    assert fake.requests[1] == ["id-2"]


@pytest.mark.parametrize("step", [fakes.reset, fakes.cut])
def test_a_broken_answer_is_an_unknown_outcome(fake, make_target, step):
    fake.then(step)

    assert write(make_target(), 2) == [OK] * 2
    assert sorted(item for ids in fake.requests for item in ids) == ["id-0", "id-0", "id-1", "id-1"]


def test_silence_ends_with_the_requests_own_time_out(fake, make_target):
    fake.then(fakes.silence(fake))

    assert write(make_target(request_seconds=0.2), 1) == [OK]
    assert len(fake.requests) == 2


def test_too_large_a_request_is_halved(fake, make_target):
    fake.then(fakes.whole(413))

    assert write(make_target(), 4) == [OK] * 4
    assert [len(ids) for ids in fake.requests] == [4, 2, 2]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_request_that_will_never_be_let_in_means_a_sick_target(fake, make_target, status):
    fake.then(fakes.whole(status))

    assert write(make_target(), 3) == [SICK] * 3
    assert len(fake.requests) == 1


def test_a_server_whose_mapping_is_not_ours_blames_no_document(fake, make_target):
    def mismatch(handler, ids):
        error = {"type": "mapper_parsing_exception", "reason": "Vector dimension mismatch. Expected: 3, Given: 8"}
        fakes.reply(handler, 200, {"items": [{"index": {"_id": i, "status": 400, "error": error}} for i in ids]})

    fake.then(mismatch)

    assert write(make_target(), 2) == [SICK] * 2


def test_a_server_that_is_not_there_is_unavailable(fake, make_target, monkeypatch):
    target = make_target(stalled_requests=3)
    fake.then(*[fakes.reset] * 9)

    with pytest.raises(TargetUnavailable, match="connection"):
        write(target, 1)

    assert len(fake.requests) == 3


def test_rejections_cost_no_more_than_the_rejected_items(fake, make_target):
    """D9: 10,000 chunks in bulks of 100, a third of the items rejected for a while: all land in under 300 requests."""
    dice = random.Random(5)
    acknowledged = set()

    def reject_some(handler, ids):
        assert not acknowledged & set(ids)
        bad = {i for i in ids if dice.random() < 0.3}
        acknowledged.update(set(ids) - bad)
        fakes.some(429, *bad)(handler, ids)

    fake.then(*[reject_some] * 300)

    assert write(make_target(items=100), 10_000) == [OK] * 10_000
    assert len(acknowledged) == 10_000
    assert len(fake.requests) < 300


def test_every_write_names_alias_and_require_alias_and_carries_the_password(fake, make_target):
    target = make_target(password="s3cret")

    write(target, 1)

    assert fake.paths == [f"/{target.spec.target_id}-w/_bulk?require_alias=true"]
    assert fake.headers[0]["authorization" if "authorization" in fake.headers[0] else "Authorization"].startswith(
        "Basic "
    )


def test_no_password_in_what_a_person_may_read(fake, make_target, caplog):
    caplog.set_level("DEBUG")
    target = make_target(password="s3cret", stalled_requests=1)
    fake.then(fakes.whole(503))

    with pytest.raises(TargetUnavailable) as error:
        write(target, 1)

    assert "s3cret" not in str(error.value) + caplog.text
