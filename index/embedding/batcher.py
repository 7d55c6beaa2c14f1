"""Micro-batches across callers: a bounded queue, equal inputs joined, batches of similar length by token budget.

Order is kept coarse: a round takes the oldest inputs, as many as a few batches hold, sorts those by length (padding is
wasted work) and runs them; so no long text waits behind an endless stream of short ones.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from index.embedding.calls import CallLog
from index.embedding.metrics import EmbedderMetrics
from index.embedding.model import Model
from index.model import Vector

ROUND_BATCHES = 4  # sorted together: enough to find texts of like length, few enough to answer soon


class QueueFull(Exception):
    """The queue has no room for this request; nothing of it was queued."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    text: str
    tokens: int
    vector: "asyncio.Future[Vector]"


class Batcher:
    """Runs one model for many callers. All methods are called in the event loop; the model runs in one thread."""

    def __init__(
        self, model: Model, log: CallLog, metrics: EmbedderMetrics, *, batch_tokens: int, queue_inputs: int
    ) -> None:
        self._model = model
        self._log = log
        self._metrics = metrics
        self._batch_tokens = batch_tokens
        self._queue_inputs = queue_inputs
        self._queue: list[_Waiting] = []
        self._open: dict[str, _Waiting] = {}  # queued or running, by text
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def embed(self, inputs: Sequence[str], tokens: Sequence[int]) -> list[Vector]:
        """The vector of each input, in order. Raises QueueFull, or what the model raised for one of them."""
        new = dict.fromkeys(text for text in inputs if text not in self._open)
        if len(self._open) + len(new) > self._queue_inputs:
            raise QueueFull
        self._metrics.joined(len(inputs) - len(new))
        loop = asyncio.get_running_loop()
        for text, size in zip(inputs, tokens, strict=True):
            if text not in self._open:
                waiting = _Waiting(text, size, loop.create_future())
                self._open[text] = waiting
                self._queue.append(waiting)
        self._metrics.queued(len(self._open))
        self._wake.set()
        # Shielded: other callers may wait for the same vectors. All are awaited, so no error is left unread.
        waits = [asyncio.shield(self._open[text].vector) for text in inputs]
        results = await asyncio.gather(*waits, return_exceptions=True)
        vectors = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            vectors.append(result)
        return vectors

    async def run(self) -> None:
        """Work for ever; cancel to stop. What is still queued then fails with CancelledError."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    for batch in self._round():
                        await self._forward(batch)
        finally:
            for waiting in self._open.values():
                waiting.vector.cancel()
            self._thread.shutdown(wait=True)

    def _round(self) -> list[list[_Waiting]]:
        """Take the oldest inputs off the queue, as batches of like length within the budget of padded tokens."""
        taken, total = 0, 0
        while taken < len(self._queue) and total < ROUND_BATCHES * self._batch_tokens:
            total += self._queue[taken].tokens
            taken += 1
        chosen = sorted(self._queue[:taken], key=lambda waiting: waiting.tokens)
        del self._queue[:taken]
        batches: list[list[_Waiting]] = [[]]
        for waiting in chosen:  # ascending, so the newest is the longest and sets the padding
            if batches[-1] and waiting.tokens * (len(batches[-1]) + 1) > self._batch_tokens:
                batches.append([])
            batches[-1].append(waiting)
        return batches

    async def _forward(self, batch: list[_Waiting]) -> None:
        try:
            vectors = await self._run_model(batch)
        except Exception as error:  # noqa: BLE001 - whatever the model raises belongs to the callers
            if len(batch) > 1:  # one bad input must not cost the others their vectors
                for waiting in batch:
                    await self._forward([waiting])
                return
            self._finish(batch[0])
            batch[0].vector.set_exception(error)
            return
        for waiting, vector in zip(batch, vectors, strict=True):
            self._finish(waiting)
            waiting.vector.set_result(vector)

    async def _run_model(self, batch: list[_Waiting]) -> np.ndarray:
        texts = [waiting.text for waiting in batch]
        tokens = sum(waiting.tokens for waiting in batch)
        self._log.batch(texts, tokens)
        before = self._model.truncated
        with self._metrics.forward():
            vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self._model.encode, texts)
        self._metrics.batch(len(batch), tokens, self._model.truncated - before)
        return vectors

    def _finish(self, waiting: _Waiting) -> None:
        del self._open[waiting.text]
        self._metrics.queued(len(self._open))
