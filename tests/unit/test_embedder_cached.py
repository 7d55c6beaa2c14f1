import pytest

from fencebeat import failpoints
from index.embedding import calls
from index.embedding.cached import CachedEmbedder
from index.ids import input_hash
from tests.support.fake_embedder import HashModel, running


class Shelf:
    """The cache's two methods over a dict; the real one has its own tests on Postgres."""

    def __init__(self):
        self.kept = {}

    def get_many(self, model_fp, hashes):
        return {key: self.kept[model_fp, key] for key in hashes if (model_fp, key) in self.kept}

    def put_many(self, model_fp, vectors):
        for key, vector in vectors.items():
            self.kept.setdefault((model_fp, key), vector)


class Stop(Exception):
    """A switch is in force."""


@pytest.fixture
def fake(tmp_path):
    with running(tmp_path / "calls.jsonl") as fake:
        yield fake


@pytest.fixture
def armed(monkeypatch):
    monkeypatch.setenv("FENCEBEAT_TESTING", "1")
    yield failpoints.arm
    failpoints.arm("")


def texts(count):
    return [f"text number {number}" for number in range(count)]


def test_what_is_cached_costs_nothing(fake):
    shelf = Shelf()
    cached = CachedEmbedder(fake.client(), shelf)

    first = cached.embed(["one", "two"])
    again = CachedEmbedder(fake.client(), shelf).embed(["two", "three", "one"])

    assert (first.embedded, first.reused) == (2, 0)
    assert (again.embedded, again.reused) == (1, 2)
    assert (again.vectors[0] == first.vectors[1]).all()
    assert calls.count(fake.call_log) == 3


def test_duplicates_within_a_call_are_embedded_once(fake):
    result = CachedEmbedder(fake.client(), Shelf()).embed(["same", "other", "same", "same"])

    assert (result.embedded, result.reused) == (2, 2)
    assert (result.vectors[0] == result.vectors[3]).all()
    assert calls.count(fake.call_log) == 2


def test_nothing_asked_is_nothing_done(fake):
    assert CachedEmbedder(fake.client(), Shelf()).embed([]).vectors == ()
    assert calls.count(fake.call_log) == 0


def test_another_model_shares_nothing(fake, tmp_path):
    shelf = Shelf()
    CachedEmbedder(fake.client(), shelf).embed(["one"])

    with running(tmp_path / "other.jsonl", load=lambda: HashModel("other")) as other:
        assert CachedEmbedder(other.client(), shelf).embed(["one"]).embedded == 1


def test_the_switch_is_asked_before_every_request_and_what_arrived_is_kept(fake):
    shelf, asked = Shelf(), []

    def stop_at_the_third():
        asked.append(calls.count(fake.call_log))
        if len(asked) == 3:
            raise Stop

    few = fake.client(batch_tokens=40)
    cached = CachedEmbedder(few, shelf, before_batch=stop_at_the_third)
    with pytest.raises(Stop):
        cached.embed(texts(30))

    sent = calls.count(fake.call_log)
    assert asked == [0, sent // 2, sent]
    assert len(shelf.kept) == sent > 0
    rest = CachedEmbedder(few, shelf).embed(texts(30))
    assert (rest.embedded, rest.reused) == (30 - sent, sent)


def test_a_hook_given_to_the_call_is_the_one_that_is_asked(fake):
    cached = CachedEmbedder(fake.client(), Shelf(), before_batch=lambda: pytest.fail("the other one was asked"))

    def stop():
        raise Stop

    with pytest.raises(Stop):
        cached.embed(["x"], before_batch=stop)
    assert calls.count(fake.call_log) == 0


@pytest.mark.parametrize(("point", "lost"), [("before", False), ("after", True)])
def test_a_crash_costs_only_the_batch_in_flight(fake, armed, point, lost):
    shelf = Shelf()
    client = fake.client(batch_tokens=40)
    armed(f"index.embed.{point}=raise:RuntimeError@3")

    with pytest.raises(RuntimeError):
        CachedEmbedder(client, shelf).embed(texts(30))
    armed("")
    before = calls.count(fake.call_log)
    in_flight = before - len(shelf.kept)
    CachedEmbedder(client, shelf).embed(texts(30))

    assert (in_flight > 0) is lost
    assert in_flight <= 40 // 6  # a batch has 40 tokens, a text at least 6
    assert calls.count(fake.call_log) == 30 + in_flight
    assert {key for _, key in shelf.kept} == {input_hash(text) for text in texts(30)}
