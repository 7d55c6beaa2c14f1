"""The status endpoint: one page for people, the same as JSON, metrics for Prometheus, and a search box.

    GET /             the page (no JavaScript; reloads itself every 5 s unless something was searched)
    GET /status.json  the same for programs
    GET /healthz      200 while this process answers; its body says whether anything is degraded
    GET /metrics      Prometheus text: what the stores know, and the counts of all workers of this host

Read-only. It binds to loopback: put a proxy with authentication before it to show it to others.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from config import metrics
from config.settings import settings
from fencebeat.clock import Clock, system_clock
from fencebeat.errors import FencebeatError
from ops import gauges, looks
from ops.status import Observer, Status

FRESH_SECONDS: Final = 1.0
"""Requests within this time share one look at the stores: a page open on many desks costs no more than one."""

Answers = Callable[[str, str], dict[str, Any]]
"""A search: (text, tenant) -> what `fencebeat search --json` prints. Raises FencebeatError."""


class Watch:
    """Looks at the stores for many requests, and remembers since when each problem has been seen."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self.observer = observer
        self._clock = clock
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()
        self._last: tuple[float, Status] | None = None

    def look(self) -> Status:
        """The stores as they are, or were at most FRESH_SECONDS ago."""
        with self._lock:
            now = self._clock.elapsed()
            if self._last is None or now - self._last[0] > FRESH_SECONDS:
                status = self.observer.look()
                self._since = {p.kind: p.since or self._since.get(p.kind, status.at) for p in status.problems}
                status.problems = [replace(p, since=self._since[p.kind]) for p in status.problems]
                self._last = (now, status)
            return self._last[1]


def create(watch: Watch, search: Answers) -> Starlette:
    """The web application. Its endpoints are plain functions, so each runs in a thread and may wait for a store."""

    def status_json(_: Request) -> Response:
        return _json(watch.look().as_dict())

    def healthz(_: Request) -> Response:
        status = watch.look()
        return _json({"status": "degraded" if status.degraded else "ok", "problems": status.as_dict()["problems"]})

    def prometheus(_: Request) -> Response:
        try:
            ticks = watch.observer.decisions()
        except FencebeatError:
            ticks = None
        own = gauges.text(watch.look(), ticks, watch.observer.tick_lag_seconds)
        return Response(own + metrics.text(), media_type="text/plain; version=0.0.4")

    def page(request: Request) -> Response:
        text, tenant = request.query_params.get("q", "").strip(), request.query_params.get("tenant", "").strip()
        found = _found(search, text, tenant) if text else ""
        return HTMLResponse(looks.page(watch.look(), text, tenant, found))

    return Starlette(
        routes=[
            Route("/", page),
            Route("/status.json", status_json),
            Route("/healthz", healthz),
            Route("/metrics", prometheus),
        ]
    )


def serve(port: int, *, ready: Callable[[int], None] = lambda _: None) -> None:
    """Serve the page on 127.0.0.1 until SIGTERM or SIGINT. `ready` is told the port, which 0 leaves to the system."""
    from ops.searching import answer_search  # noqa: PLC0415 - the application's drivers, not for whoever imports `create`

    observer = Observer(settings())
    application = create(Watch(observer, system_clock()), lambda text, tenant: answer_search(text, tenant, limit=10))
    server = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=port, log_config=None, access_log=False))
    listener = server.config.bind_socket()
    listener.listen()  # before anybody is told: requests that come now wait for the server
    ready(listener.getsockname()[1])
    try:
        server.run(sockets=[listener])
    finally:
        observer.close()


def _json(data: dict[str, Any]) -> Response:
    import json  # noqa: PLC0415 - beside its only use

    return Response(json.dumps(data, default=_plain), media_type="application/json")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _found(search: Answers, text: str, tenant: str) -> str:
    if not tenant:
        return looks.alert("Name a tenant: nobody searches without one.")
    try:
        return looks.hits(search(text, tenant))
    except FencebeatError as error:
        return looks.alert(str(error))
