import base64
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pytest

from fencebeat.errors import ImpossibleConfiguration, Refused
from index.embedding import calls, server
from index.embedding.app import MAX_BODY_BYTES, MAX_INPUTS
from index.embedding.client import EmbedderClient
from index.embedding.listen import listening
from index.embedding.probe import PROBE
from index.embedding.server import run
from index.errors import EmbedderUnavailable
from index.ids import input_hash
from tests.support.embedding import Door
from tests.support.fake_embedder import HashModel, running
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path):
    return tmp_path / "calls.jsonl"


@pytest.fixture
def short():
    """The path of a Unix socket must be short; pytest's folders are not."""
    with TemporaryDirectory(prefix="fb-") as folder:
        yield Path(folder)


@contextmanager
def talking_to(fake):
    transport = httpx.HTTPTransport(uds=fake.address.removeprefix("unix://"))
    with httpx.Client(transport=transport, base_url="http://embedder", timeout=30) as http:
        yield http


@pytest.fixture
def http(log):
    with running(log) as fake, talking_to(fake) as client:
        yield client


def ask(http, inputs, **more):
    return http.post("/v1/embeddings", json={"model": "hash-fake", "input": inputs, **more})


def metric(http, name):
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def test_it_speaks_the_openai_protocol(http, log):
    answer = ask(http, ["one two", "three"]).json()
    packed = ask(http, "three", encoding_format="base64").json()

    assert answer["object"] == "list"
    assert answer["model"] == "hash-fake"
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.float32(answer["data"][1]["embedding"]))
    assert vector.shape == (384,)


def test_the_card_tells_what_a_client_must_know(http):
    (card,) = http.get("/v1/models").json()["data"]

    assert card["id"] == "hash-fake"
    assert (card["fingerprint"], card["dimension"], card["max_tokens"]) == ("hash-fake-384", 384, 256)
    assert card["probe"]["text"] == PROBE
    assert http.get("/health").json() == {"status": "ready"}


def test_each_batch_is_one_line_in_the_call_log_with_probes_apart(http, log):
    ask(http, ["one", PROBE, "two"])

    (line,) = calls.read(log)
    assert line["n"] == calls.count(log) == 2
    assert sorted(line["inputs"]) == sorted([input_hash("one").hex(), input_hash("two").hex()])
    assert (line["probes"], line["pid"]) == (1, os.getpid())


def test_the_line_is_written_before_the_model_runs(log):
    """A batch that dies in the model was an embedding all the same."""
    seen = []

    def look(inputs):
        seen.append((list(inputs), calls.count(log)))

    with running(log, load=lambda: HashModel(before=look)) as fake:
        fake.client().embed(["text"])

    assert seen[-1][1] == 1


def test_a_text_over_the_limit_is_refused_with_its_count_and_never_cut(http, log):
    """D16"""
    answer = ask(http, ["fine", "word " * 600])

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "input 1 has 602 tokens, more than the model's 256"
    assert calls.count(log) == 0
    assert ask(http, "word " * 254).status_code == 200
    assert metric(http, "tokens_truncated_total") == 0
    assert metric(http, 'fencebeat_embedder_refused_total{reason="too_long"}') == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b"[]", 400),
        (b'{"model": "hash-fake"}', 400),
        (b'{"model": "hash-fake", "input": []}', 400),
        (b'{"model": "hash-fake", "input": [1, 2]}', 400),
        (b'{"model": "hash-fake", "input": [" "]}', 400),
        (rb'{"model": "hash-fake", "input": "lone \ud800"}', 400),
        (b'{"model": "hash-fake", "input": "x", "encoding_format": "hex"}', 400),
        (b'{"model": "hash-fake", "input": [' + b'"x",' * MAX_INPUTS + b'"x"]}', 400),
        (b'{"model": "other", "input": "x"}', 404),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_it_cannot_answer_it_refuses(http, log, body, status):
    answer = http.post("/v1/embeddings", content=body)

    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert calls.count(log) == 0


def test_equal_texts_in_flight_are_embedded_once(log):
    """I7: two workers that want the same text at the same time pay once."""
    door = Door()
    with (
        running(log, load=lambda: HashModel(before=door.wait)) as fake,
        ThreadPoolExecutor(3) as threads,
        talking_to(fake) as http,
        door.closed(),
    ):
        first = threads.submit(ask, http, ["shared", "one"])
        assert door.reached.wait(10)
        others = [threads.submit(ask, http, ["shared", "two"]) for _ in range(2)]
        until(lambda: metric(http, "fencebeat_embedder_joined_total") == 3)
        door.open()
        vectors = [future.result().json()["data"][0]["embedding"] for future in (first, *others)]

    assert vectors[0] == vectors[1] == vectors[2]
    hashes = [text for line in calls.read(log) for text in line["inputs"]]
    assert sorted(hashes) == sorted(input_hash(text).hex() for text in ("shared", "one", "two"))


def test_batches_hold_texts_of_like_length_within_the_budget(log):
    door = Door()
    with (
        running(log, load=lambda: HashModel(before=door.wait), batch_tokens=60) as fake,
        ThreadPoolExecutor(2) as threads,
        talking_to(fake) as http,
        door.closed(),
    ):
        first = threads.submit(ask, http, "first")
        assert door.reached.wait(10)
        lengths = [1, 20, 2, 22, 3, 100, 21]
        rest = threads.submit(ask, http, [f"{number} " * length for number, length in enumerate(lengths)])
        until(lambda: metric(http, "fencebeat_embedder_queued") == 8)
        door.open()
        assert first.result().status_code == rest.result().status_code == 200

    batches = [(line["n"], line["tokens"]) for line in calls.read(log)]
    assert batches == [(1, 3), (3, 12), (2, 45), (1, 24), (1, 102)]


def test_a_full_queue_says_when_to_come_again_and_takes_nothing(log, monkeypatch):
    monkeypatch.setattr(server, "MAX_INPUTS", 8)  # the smallest queue there may be
    door = Door()
    with (
        running(log, load=lambda: HashModel(before=door.wait), queue_inputs=1) as fake,
        ThreadPoolExecutor(2) as threads,
        talking_to(fake) as http,
        door.closed(),
    ):
        held = threads.submit(ask, http, [f"text {number}" for number in range(8)])
        assert door.reached.wait(10)

        refused = ask(http, ["one more"])
        joined = threads.submit(ask, http, ["text 7"])  # needs no room
        until(lambda: metric(http, "fencebeat_embedder_joined_total") == 1)
        door.open()

        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert held.result().status_code == joined.result().status_code == 200
        assert ask(http, ["one more"]).status_code == 200
    assert calls.count(log) == 9


def test_a_text_the_model_fails_on_costs_only_itself(log):
    door = Door()

    def before(inputs):
        door.wait(inputs)
        if "poison" in inputs:
            raise MemoryError

    with (
        running(log, load=lambda: HashModel(before=before)) as fake,
        ThreadPoolExecutor(3) as threads,
        talking_to(fake) as http,
        door.closed(),
    ):
        first = threads.submit(ask, http, "first")
        assert door.reached.wait(10)
        others = [threads.submit(ask, http, text) for text in ("good", "poison")]
        until(lambda: metric(http, "fencebeat_embedder_queued") == 3)
        door.open()

        assert [future.result().status_code for future in (first, *others)] == [200, 200, 500]
        assert "MemoryError" in others[1].result().text


def test_it_says_loading_until_the_model_is_warm(log):
    loading = threading.Event()

    def load():
        assert loading.wait(10)
        return HashModel()

    with running(log, load=load, wait=False) as fake, talking_to(fake) as http:
        assert http.get("/health").status_code == 503
        refused = ask(http, "x")
        loading.set()
        fake.client().wait_until_ready(10)

        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert ask(http, "x").status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_process_with_its_error(short, log):
    def load():
        raise ImpossibleConfiguration(rules="no weights.")

    with pytest.raises(ImpossibleConfiguration, match="no weights"):
        run(f"unix://{short}/e.sock", load, log)
    assert not (short / "e.sock").exists()


def test_only_its_user_may_open_the_socket(short):
    (short / "e.sock").touch()  # as a killed embedder leaves it

    with listening(f"unix://{short}/e.sock", has_key=False):
        mode = (short / "e.sock").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        with (
            pytest.raises(Refused, match="another embedder listens"),
            listening(f"unix://{short}/e.sock", has_key=False),
        ):
            pass
    assert not (short / "e.sock").exists()


def test_addresses_it_cannot_use_are_refused_with_a_sentence(short):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = [
            (f"unix://{short}/{'x' * 200}.sock", "too long"),
            ("redis://127.0.0.1:1", "must be unix"),
            ("http://0.0.0.0:0", "EMBEDDER_API_KEY"),
            (f"http://127.0.0.1:{taken.getsockname()[1]}", "cannot listen"),
        ]
        for address, words in cases:
            with pytest.raises(Refused, match=words), listening(address, has_key=False):
                pass


def test_over_http_with_a_key_it_answers_only_who_has_it(log):
    with running(log, address="http://127.0.0.1:0", api_key="s3cret") as fake:
        good, bad = fake.client(api_key="s3cret"), fake.client(api_key="n0t-it")

        assert len(good.embed(["text"])) == 1
        with pytest.raises(EmbedderUnavailable, match="401") as error:
            bad.embed(["text"])
        assert "n0t-it" not in str(error.value)


def test_sigterm_ends_it_in_order_and_sigkill_leaves_nothing_in_the_way(short, log):
    address = f"unix://{short}/e.sock"

    def start():
        command = [sys.executable, "-m", "tests.support.fake_embedder", address, str(log)]
        process = subprocess.Popen(command, cwd=ROOT)
        client.wait_until_ready(30)
        return process

    client = EmbedderClient(address, 10)
    killed = start()
    client.embed(["before"])
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(10)
    assert (short / "e.sock").exists()

    ended = start()
    client.embed(["after"])
    ended.terminate()

    assert ended.wait(20) == 0
    assert not (short / "e.sock").exists()
    assert [line["pid"] for line in calls.read(log)] == [killed.pid, ended.pid]
    client.close()
