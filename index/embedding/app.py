"""The embedder over HTTP: the OpenAI embeddings protocol, and what operators ask.

    POST /v1/embeddings   {"model": name, "input": [text, …], "encoding_format": "float" | "base64"}
    GET  /v1/models       the card: name, fingerprint, dimension, max_tokens, the probe's vector
    GET  /health          200 once the model is warm, 503 before
    GET  /metrics         Prometheus text

Busy is 429 with Retry-After, not ready 503 with Retry-After, an input over the model's limit 400: nothing is truncated.
"""

import asyncio
import base64
import hmac
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from index.embedding.batcher import Batcher, QueueFull
from index.embedding.metrics import EmbedderMetrics
from index.embedding.model import Model
from index.embedding.probe import PROBE
from index.model import Vector

MAX_INPUTS = 2048  # of one request, as in OpenAI's API
MAX_BODY_BYTES = 16 * 1024 * 1024  # 2048 inputs of 256 tokens are about 3 MB
RETRY_SECONDS = 1  # a queue of 4096 inputs moves on by some dozens in that time


@dataclass
class Service:
    """What the routes share. `model` and `batcher` are None until the model is warm."""

    metrics: EmbedderMetrics
    api_key: str | None = field(default=None, repr=False)
    model: Model | None = None
    batcher: Batcher | None = None
    probe: Vector | None = None

    def ready(self) -> tuple[Model, Batcher, Vector]:
        """The parts of a warm service. Raises HTTPException 503 before."""
        if self.model is None or self.batcher is None or self.probe is None:
            raise self.refusal(503, "loading", "the model is being loaded", retry=True)
        return self.model, self.batcher, self.probe

    def refusal(self, status: int, reason: str, message: str, *, retry: bool = False) -> HTTPException:
        """An error in OpenAI's form, counted by its reason."""
        self.metrics.refused(reason)
        headers = {"Retry-After": str(RETRY_SECONDS)} if retry else None
        return HTTPException(status, detail=json.dumps({"message": message, "code": reason}), headers=headers)


@dataclass(frozen=True, slots=True)
class _Wanted:
    inputs: list[str]
    base64: bool


def make_app(service: Service) -> Starlette:
    """The application on a service that may still be loading."""
    routes = _Routes(service)
    return Starlette(
        routes=[
            Route("/v1/embeddings", routes.embeddings, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


class _Routes:
    """The answers; see the module's docstring."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def embeddings(self, request: Request) -> Response:
        service = self._service
        model, batcher, _ = service.ready()
        _authorise(service, request)
        wanted = _read(service, model, await _body(service, request))
        tokens = await asyncio.to_thread(model.count_tokens, wanted.inputs)
        for position, count in enumerate(tokens):
            if count > model.card.max_tokens:
                message = f"input {position} has {count} tokens, more than the model's {model.card.max_tokens}"
                raise service.refusal(400, "too_long", message)
        try:
            vectors = await batcher.embed(wanted.inputs, tokens)
        except QueueFull:
            raise service.refusal(429, "busy", "the queue is full", retry=True) from None
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, as_base64=wanted.base64)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
        card = model.card
        return JSONResponse(
            {"object": "list", "model": card.name, "fingerprint": card.fingerprint, "data": data, "usage": usage}
        )

    async def models(self, request: Request) -> Response:
        model, _, probe = self._service.ready()
        _authorise(self._service, request)
        known = {"text": PROBE, "vector": _encoded(probe, as_base64=True)}
        card = {"id": model.card.name, "object": "model", **asdict(model.card), "probe": known}
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, _: Request) -> Response:
        warm = self._service.probe is not None
        return JSONResponse({"status": "ready" if warm else "loading"}, status_code=200 if warm else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _refused(_: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)  # noqa: S101 - registered for this type
    try:
        fault = json.loads(exception.detail)
    except ValueError:  # starlette's own, such as 404 for a path
        fault = {"message": exception.detail, "code": "http"}
    return JSONResponse({"error": fault}, exception.status_code, headers=exception.headers)


async def _failed(_: Request, exception: Exception) -> Response:
    fault = {"message": f"the model failed: {type(exception).__name__}", "code": "failed"}
    return JSONResponse({"error": fault}, 500)


def _authorise(service: Service, request: Request) -> None:
    if service.api_key is None:
        return
    given = request.headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {service.api_key}".encode()):
        raise service.refusal(401, "key", "the key is missing or wrong")


async def _body(service: Service, request: Request) -> Any:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise service.refusal(413, "too_large", f"the request is larger than {MAX_BODY_BYTES} bytes")
    try:
        return json.loads(body)
    except ValueError:
        raise service.refusal(400, "not_json", "the request is not JSON") from None


def _read(service: Service, model: Model, body: Any) -> _Wanted:
    def invalid(message: str) -> HTTPException:
        return service.refusal(400, "invalid", message)

    if not isinstance(body, dict):
        raise invalid("the request is not a JSON object")
    if body.get("model") not in {model.card.name, model.card.fingerprint}:
        raise service.refusal(404, "model", f"this embedder has the model {model.card.name} only")
    inputs = [body["input"]] if isinstance(body.get("input"), str) else body.get("input")
    if not isinstance(inputs, list) or not 0 < len(inputs) <= MAX_INPUTS:
        raise invalid(f"'input' must be a text or a list of 1 to {MAX_INPUTS} texts")
    if not all(isinstance(text, str) and text.strip() and _is_unicode(text) for text in inputs):
        raise invalid("each input must be a text that is not blank and has no lone surrogates")
    form = body.get("encoding_format", "float")
    if form not in {"float", "base64"}:
        raise invalid("'encoding_format' must be 'float' or 'base64'")
    return _Wanted(inputs, form == "base64")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _encoded(vector: Vector, *, as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()
    return [float(value) for value in vector]
