"""The embedder process: it listens at once, loads the model, and says so when it is ready."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from index.embedding.app import MAX_INPUTS, Service, make_app
from index.embedding.batcher import Batcher
from index.embedding.calls import CallLog
from index.embedding.listen import address_of, listening
from index.embedding.metrics import EmbedderMetrics
from index.embedding.model import Model, TorchModel
from index.embedding.probe import PROBE
from index.embedding.weights import model_folder

GRACE_SECONDS = 10  # requests that run at SIGTERM may end; a batch takes about a second
KEEP_ALIVE_SECONDS = 60  # well above the clients' 5: else both close an idle connection at once, and a request is lost
_log = logging.getLogger(__name__)


def serve(
    address: str,
    model_path: Path | None,
    call_log: Path,
    *,
    api_key: str | None = None,
    batch_tokens: int = 4096,
    queue_inputs: int = 2 * MAX_INPUTS,
) -> None:
    """Serve the model in `model_path` (None: the packaged one) until SIGTERM or SIGINT, then return.

    address: unix:///path or http://127.0.0.1:port. Raises ImpossibleConfiguration or Refused when it cannot start, and
    whatever the loading of the model raised.
    """
    folder = model_folder(model_path)
    run(
        address,
        lambda: TorchModel(folder),
        call_log,
        api_key=api_key,
        batch_tokens=batch_tokens,
        queue_inputs=queue_inputs,
    )


def run(
    address: str,
    load: Callable[[], Model],
    call_log: Path,
    *,
    api_key: str | None = None,
    batch_tokens: int = 4096,
    queue_inputs: int = 2 * MAX_INPUTS,
    started: Callable[["EmbedderServer"], None] | None = None,
) -> None:
    """Serve whatever `load` returns; see `serve`. `started` is told of the server before it answers."""
    with listening(address, has_key=api_key is not None) as socket_:
        server = EmbedderServer(
            socket_, load, CallLog(call_log), api_key=api_key, batch_tokens=batch_tokens, queue_inputs=queue_inputs
        )
        if started is not None:
            started(server)
        server.run_until_stopped()


class EmbedderServer:
    """One embedder on one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        load: Callable[[], Model],
        log: CallLog,
        *,
        api_key: str | None,
        batch_tokens: int,
        queue_inputs: int,
    ) -> None:
        self.address = address_of(listener)
        self._listener = listener
        self._load = load
        self._log = log
        self._batch_tokens = batch_tokens
        self._queue_inputs = max(queue_inputs, MAX_INPUTS)  # a legal request must fit into an empty queue
        self._failure: BaseException | None = None
        self._service = Service(metrics=EmbedderMetrics(), api_key=api_key)
        app: Starlette = make_app(self._service)
        app.router.lifespan_context = self._lifespan
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # the process that runs us has its own logging
                access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )

    def run_until_stopped(self) -> None:
        """Serve; returns after `stop` or a signal, and raises what the loading of the model raised."""
        if threading.current_thread() is threading.main_thread():
            # uvicorn stops gracefully and then raises the signal again for the handlers found here; the default ones
            # would end the process before the socket is removed and the log is closed.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._log.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask the server to end; may be called from any thread."""
        self._server.should_exit = True

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _work(self) -> None:
        try:
            model = await asyncio.to_thread(self._load)
            probe = (await asyncio.to_thread(model.encode, [PROBE]))[0]
        except Exception as error:  # noqa: BLE001 - raised again where the process ends
            self._failure = error
            self.stop()
            return
        batcher = Batcher(
            model,
            self._log,
            self._service.metrics,
            batch_tokens=self._batch_tokens,
            queue_inputs=self._queue_inputs,
        )
        self._service.model, self._service.batcher, self._service.probe = model, batcher, probe
        _log.info("embedder ready at %s with %s", self.address, model.card.fingerprint)
        await batcher.run()
