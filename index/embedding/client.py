"""The client of any server of the OpenAI embeddings protocol, over a Unix socket or HTTP.

It believes nothing: every batch carries the probe text at a random position, and every answer is checked (`checks`).
What the server says of its model is read once and pinned; a server that comes back with another model is refused.
"""

import os
import random
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from config.settings import redacted
from fencebeat.clock import Clock, SystemClock
from index.embedding.checks import Rubbish, as_vector, check, check_model, check_probe, decode, plan
from index.embedding.probe import PROBE
from index.embedding.weights import ModelCard
from index.errors import EmbedderRubbish, EmbedderUnavailable, InputRefused
from index.model import Vector

CONNECT_SECONDS = 2.0  # on the same host, or the embedder is not there
BUSY_SECONDS = 20.0  # a full queue of 4096 inputs moves; longer than this and the document is better handed back
_POLL_SECONDS = 0.05
_MAX_INPUTS = 2047  # of one request, with the probe 2048


@dataclass(frozen=True, slots=True)
class _Pinned:
    card: ModelCard
    probe: Vector


class EmbedderClient:
    """Satisfies `index.ports.Embedder`. Safe between threads, and after a fork: each process has its own connections.

    address: unix:///path or http(s)://host. timeout: of one request in seconds. declared: the card of a model whose
    server does not tell it, as only ours does. dice: draws the probe's position.
    """

    def __init__(
        self,
        address: str,
        timeout: float,
        *,
        api_key: str | None = None,
        batch_tokens: int = 4096,
        declared: ModelCard | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._declared = declared
        self._clock = clock or SystemClock()
        self._dice = dice or random.Random(os.environ.get("FENCEBEAT_SEED"))
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None
        self._pid = 0
        self._pinned: _Pinned | None = None
        self.batch_tokens = batch_tokens

    @property
    def shown_address(self) -> str:
        """The address without a password, for messages."""
        return redacted(self._address)

    @property
    def card(self) -> ModelCard:
        """The model behind the address, asked once. Raises EmbedderUnavailable or EmbedderRubbish."""
        return self._pin().card

    @property
    def fingerprint(self) -> str:
        """See `index.ports.Embedder`."""
        return self.card.fingerprint

    @property
    def dimension(self) -> int:
        """See `index.ports.Embedder`."""
        return self.card.dimension

    def embed(self, inputs: Sequence[str]) -> list[Vector]:
        """One unit-length vector for each input, in order; several requests where one would be too large.

        Raises EmbedderUnavailable, EmbedderRubbish, or InputRefused for a text that the model cannot take.
        """
        pinned = self._pin()
        vectors: list[Vector | None] = [None] * len(inputs)
        for batch in plan(inputs, self.batch_tokens, pinned.card.max_tokens):
            for start in range(0, len(batch), _MAX_INPUTS):
                part = batch[start : start + _MAX_INPUTS]
                for position, vector in zip(part, self._request([inputs[p] for p in part], pinned), strict=True):
                    vectors[position] = vector
        return [vector for vector in vectors if vector is not None]

    def wait_until_ready(self, seconds: float) -> None:
        """Return once the model is warm. Raises EmbedderUnavailable when it is not within `seconds`."""
        deadline = self._clock.elapsed() + seconds
        while True:
            try:
                self._send("GET", "/health")
            except EmbedderUnavailable:
                if self._clock.elapsed() >= deadline:
                    raise
                _pause(_POLL_SECONDS)
            else:
                return

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._lock:
            if self._http is not None and self._pid == os.getpid():
                self._http.close()
            self._http = None

    def _request(self, texts: list[str], pinned: _Pinned) -> list[Vector]:
        place = self._dice.randrange(len(texts) + 1)
        sent = [*texts[:place], PROBE, *texts[place:]]
        body = {"model": pinned.card.name, "input": sent, "encoding_format": "base64"}
        answer = self._send("POST", "/v1/embeddings", body)
        try:
            check_model(answer.get("fingerprint", pinned.card.fingerprint), pinned.card.fingerprint)
            vectors = decode(answer.get("data"), len(sent), pinned.card.dimension)
            check_probe(vectors.pop(place), pinned.probe)
        except Rubbish as error:
            raise EmbedderRubbish(address=self.shown_address, why=f"{error}.") from error
        return vectors

    def _pin(self) -> _Pinned:
        if self._pinned is None:
            self._pinned = self._read_card()
        return self._pinned

    def _read_card(self) -> _Pinned:
        declared = self._declared
        try:
            if declared is None:
                return _told(self._send("GET", "/v1/models"))
            body = {"model": declared.name, "input": [PROBE], "encoding_format": "base64"}
            answer = self._send("POST", "/v1/embeddings", body)
            return _Pinned(declared, decode(answer.get("data"), 1, declared.dimension)[0])
        except Rubbish as error:
            raise EmbedderRubbish(address=self.shown_address, why=f"{error}.") from error

    def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        deadline = self._clock.elapsed() + BUSY_SECONDS
        while True:
            try:
                _knock(self._address)
                response = self._client().request(method, path, json=body)
            except (httpx.HTTPError, OSError) as error:
                raise self._unavailable(f"{type(error).__name__}: {error}") from error
            wait = _retry_after(response) if response.status_code == httpx.codes.TOO_MANY_REQUESTS else None
            if wait is None or self._clock.elapsed() + wait >= deadline:
                return self._read(response)
            _pause(wait)

    def _read(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code == httpx.codes.OK:
            if isinstance(answer, dict):
                return answer
            raise EmbedderRubbish(address=self.shown_address, why="its answer is not a JSON object.")
        fault = answer.get("error", answer) if isinstance(answer, dict) else None
        told = fault.get("message", fault.get("status")) if isinstance(fault, dict) else None
        why = f"HTTP {response.status_code}{f', {told}' if told else ''}"
        if response.status_code in {400, 413, 422}:
            raise InputRefused(address=self.shown_address, why=f"{why}.")
        raise self._unavailable(why)

    def _unavailable(self, why: str) -> EmbedderUnavailable:
        return EmbedderUnavailable(address=self.shown_address, why=f"{why}.")

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None or self._pid != os.getpid():
                parts = urlsplit(self._address)
                unix = parts.path if parts.scheme == "unix" else None
                self._http = httpx.Client(
                    base_url="http://embedder" if unix else self._address,
                    transport=httpx.HTTPTransport(uds=unix, trust_env=False) if unix else None,
                    timeout=httpx.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
                    headers=self._headers,
                    trust_env=False,  # no proxy between a worker and its embedder
                )
                self._pid = os.getpid()
            return self._http


def _told(answer: dict[str, Any]) -> _Pinned:
    cards = answer.get("data")
    told = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    try:
        card = ModelCard(
            name=str(told["id"]),
            fingerprint=str(told["fingerprint"]),
            dimension=int(told["dimension"]),
            max_tokens=int(told["max_tokens"]),
        )
        probe = as_vector(told["probe"]["vector"])
        text = told["probe"]["text"]
    except (KeyError, TypeError, ValueError) as error:
        raise Rubbish(f"it does not tell what model it has ({error}); declare name, fingerprint and limit") from error
    if text != PROBE:
        raise Rubbish("it knows another probe text: embedder and worker are of different releases")
    check(probe, card.dimension)
    return _Pinned(card, probe)


def _knock(address: str) -> None:
    """Raises OSError when nobody listens at a Unix socket; httpcore would leave its own socket open then."""
    parts = urlsplit(address)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.settimeout(CONNECT_SECONDS)
            door.connect(parts.path)


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(_POLL_SECONDS, float(response.headers.get("Retry-After", "1")))
    except ValueError:  # a date; the servers in question send seconds
        return 1.0


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
