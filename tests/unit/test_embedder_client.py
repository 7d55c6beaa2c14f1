import json
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from index.embedding import calls, server
from index.embedding.client import EmbedderClient
from index.embedding.weights import ModelCard
from index.errors import EmbedderRubbish, EmbedderUnavailable, InputRefused
from index.model import Vector
from tests.support import ports
from tests.support.embedding import Door, SpoiledModel
from tests.support.fake_embedder import HashModel, running

CARD = ModelCard("declared", "declared-1", 384, 256)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "calls.jsonl"


@contextmanager
def answering(answer, status=200):
    """An HTTP server that gives one answer to everything: `answer(request) -> object`, or text as it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = answer(json.loads(body) if body else None)
            data = given.encode() if isinstance(given, str) else json.dumps(given).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def client_of(address, **options):
    client = EmbedderClient(address, options.pop("timeout", 5.0), **options)
    try:
        yield client
    finally:
        client.close()


def good_data(inputs) -> list[dict]:
    rows = HashModel().encode(inputs)
    return [{"index": at, "embedding": [float(value) for value in row]} for at, row in enumerate(rows)]


def test_vectors_come_in_the_order_of_the_inputs_over_many_requests(log):
    inputs = [f"text number {number} " * (number % 7 + 1) for number in range(60)]
    expected = HashModel().encode(inputs)

    with running(log) as fake:
        vectors: list[Vector] = fake.client(batch_tokens=64).embed(inputs)

        np.testing.assert_allclose(np.stack(vectors), expected, atol=1e-6)
        assert all(vector.dtype == np.float32 for vector in vectors)
        assert len(list(calls.read(log))) > 10
        assert calls.count(log) == 60
        assert fake.client().embed([]) == []


def test_the_probe_travels_in_every_request_at_a_seeded_place():
    seen = []

    def answer(request):
        if request is not None:
            seen.append(request["input"])
            return {"data": good_data(request["input"])}
        return None

    with answering(answer) as address:
        for seed in (1, 1, 2, 3, 4):
            with client_of(address, declared=CARD, dice=random.Random(seed)) as client:
                client.embed(["a", "b", "c"])

    requests = [inputs for inputs in seen if len(inputs) == 4]
    probe = seen[0][0]
    places = [inputs.index(probe) for inputs in requests]
    assert len(requests) == 5
    assert places[0] == places[1]
    assert len(set(places)) > 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("nan", "not finite"),
        ("zero", "length 0"),
        ("long", "length 1.01"),
        ("dimension", r"\(383,\)"),
        ("order", "another build or order"),
        ("build", "another build or order"),
    ],
)
def test_vectors_that_cannot_be_right_are_refused(log, spoil, words):
    """F35: what a look at one vector cannot show, the probe does."""
    model = SpoiledModel()
    with running(log, load=lambda: model) as fake:
        client = fake.client(dice=random.Random(1))
        client.embed(["good"])
        model.spoil = spoil

        with pytest.raises(EmbedderRubbish, match=words):
            client.embed(["one"])

        model.spoil = None
        assert len(client.embed(["one"])) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda asked: {"data": good_data(asked["input"])[:-1]}, "vectors for 3 inputs"),
        (lambda asked: {"data": good_data([*asked["input"], "x"])}, "4 vectors for 3 inputs"),
        (lambda asked: {"data": [*good_data(asked["input"])[:-1]] * 2}, "vectors for 3 inputs"),
        (lambda asked: {"data": [good_data(asked["input"])[0]] * 3}, "indexes"),
        (lambda asked: {"data": [{"index": 0, "embedding": "@@@"}] * 3}, "cannot be read"),
        (lambda asked: {"data": ["x"] * 3}, "not an object"),
        (lambda _: {"data": None}, "no vectors"),
        (lambda _: [1], "not a JSON object"),
        (lambda _: "<html>", "not a JSON object"),
        (lambda asked: {"data": good_data(asked["input"]), "fingerprint": "new"}, "another model now: new"),
    ],
)
def test_answers_that_are_no_answers_are_refused(answer, words):
    def first_well(asked):
        return {"data": good_data(asked["input"])} if len(asked["input"]) == 1 else answer(asked)

    with answering(first_well) as address, client_of(address, declared=CARD) as client:
        assert client.fingerprint == "declared-1"
        with pytest.raises(EmbedderRubbish, match=words):
            client.embed(["one", "two"])


def test_a_server_that_comes_back_with_another_model_is_refused(log):
    with running(log, address="http://127.0.0.1:0") as fake:
        client = fake.client()
        client.embed(["one"])
        address = fake.address
    with running(log, address=address, load=lambda: HashModel("other")), client_of(address) as fresh:
        assert fresh.fingerprint != client.fingerprint
        with pytest.raises(EmbedderUnavailable, match="404"):
            client.embed(["one"])  # it asks for the model it knows
    client.close()


def test_a_server_that_does_not_tell_its_model_must_be_declared():
    words = "declare name, fingerprint and limit"
    with (
        answering(lambda _: {"data": [{"id": "x"}]}) as address,
        client_of(address) as client,
        pytest.raises(EmbedderRubbish, match=words),
    ):
        _ = client.fingerprint


def test_nobody_there_is_unavailable_and_says_what_to_do(tmp_path):
    with client_of(f"unix://{tmp_path}/none.sock") as client, pytest.raises(EmbedderUnavailable, match="fencebeat emb"):
        client.embed(["x"])
    with ports.unused() as port:
        with client_of(f"http://user:s3cret@127.0.0.1:{port}") as client, pytest.raises(EmbedderUnavailable) as error:
            client.embed(["x"])
        assert "s3cret" not in str(error.value)
        with client_of(f"http://127.0.0.1:{port}") as client, pytest.raises(EmbedderUnavailable):
            client.wait_until_ready(0.2)


def test_a_server_that_never_answers_is_given_up():
    with (
        ports.silent() as port,
        client_of(f"http://127.0.0.1:{port}", timeout=0.2) as client,
        pytest.raises(EmbedderUnavailable, match="ReadTimeout"),
    ):
        client.embed(["x"])


def test_a_failing_server_is_unavailable():
    with (
        answering(lambda _: {"error": {"message": "out of memory"}}, status=500) as address,
        client_of(address) as client,
        pytest.raises(EmbedderUnavailable, match="HTTP 500, out of memory"),
    ):
        client.embed(["x"])


def test_a_busy_server_is_asked_again_after_a_while(log, monkeypatch):
    monkeypatch.setattr(server, "MAX_INPUTS", 8)  # the smallest queue there may be
    door = Door()
    with running(log, load=lambda: HashModel(before=door.wait), queue_inputs=1) as fake, door.closed():
        # The budget is wide, so that all texts go in one request, which fills the queue.
        full = fake.client(batch_tokens=10**9, timeout=30)
        texts = [f"text {at}" for at in range(7)]
        waiting = threading.Thread(target=full.embed, args=(texts,))
        waiting.start()
        assert door.reached.wait(10)

        threading.Timer(0.3, door.open).start()
        assert len(fake.client().embed(["one more"])) == 1
        waiting.join()


def test_a_text_over_the_limit_is_no_passing_fault_of_the_server(log):
    """D16: in strict terms, refused with the token count."""
    with running(log) as fake, pytest.raises(InputRefused, match="602 tokens, more than the model's 256"):
        fake.client().embed(["word " * 600])


def test_a_forked_worker_opens_connections_of_its_own(log):
    with running(log) as fake:
        client = fake.client()
        client.embed(["parent"])
        inherited = client._http
        client._pid = -1  # as it looks in a child

        client.embed(["child"])

        assert client._http is not inherited
        inherited.close()
