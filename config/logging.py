"""Logs: one event a line, with what is known about the work in hand, and without secrets.

Everything goes through the standard library's root logger: our structlog events and the lines of Celery, uvicorn and
the clients alike, so that all of them carry the bound facts (tick id, doc_uid, epoch, token), the trace id, and pass
the same redaction. Commands log to stderr; stdout belongs to their answer.

    with bound(doc_uid=uid, epoch=attempt.epoch):
        ...  # every line written in here says so
"""

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TextIO
from urllib.parse import unquote, urlsplit

import structlog
from opentelemetry import trace
from structlog.contextvars import bound_contextvars
from structlog.typing import EventDict, Processor

from config.settings import Settings, redacted

MASK: Final = "***"

_SECRET_NAME = re.compile(r"password|passwd|passphrase|secret|api_?key|authorization|cookie|credential", re.IGNORECASE)
# What libraries put into their messages: libpq's and URLs' password=..., and an Authorization header.
_SECRET_PAIR = re.compile(r"(?i)\b(password|passwd|secret|api_?key)(['\"]?\s*[=:]\s*['\"]?)([^\s'\"&,;]+)")
_SECRET_HEADER = re.compile(r"(?i)\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{6,}")

_QUIET: Final = ("opensearch", "httpx", "httpcore", "urllib3", "uvicorn.access", "opentelemetry")
"""Loggers that write a line for each request; only their warnings are kept."""

_SHORTEST_SECRET: Final = 4  # replacing a shorter value everywhere would make lines unreadable


class Redactor:
    """A processor that replaces secrets: known values, values under telling names, passwords in addresses."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= _SHORTEST_SECRET}, key=len, reverse=True)

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """The event without secrets."""
        return {name: self._value(name, value) for name, value in event.items()}

    def _value(self, name: str, value: Any) -> Any:
        if value and _SECRET_NAME.search(name) and not isinstance(value, bool):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._value(str(key), inner) for key, inner in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._value("", inner) for inner in value]
        if isinstance(value, bytes | BaseException):
            return self.text(repr(value))
        return value

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = _SECRET_PAIR.sub(rf"\1\2{MASK}", redacted(text))
        return _SECRET_HEADER.sub(rf"\1 {MASK}", text)


def secrets_of(settings: Settings) -> set[str]:
    """The secret values this process knows: passwords in its addresses, and environment variables named like one."""
    addresses = (
        settings.redis_url,
        settings.postgres_url,
        settings.opensearch_url,
        settings.etcd_url,
        settings.embedder_url,
    )
    passwords = {urlsplit(address).password for address in addresses if "://" in address} - {None, ""}
    known = {text for password in passwords if password for text in (password, unquote(password))}
    if settings.opensearch_password:
        known.add(settings.opensearch_password.get_secret_value())
    return known | {value for name, value in os.environ.items() if _SECRET_NAME.search(name) and value}


def _trace(_logger: Any, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
    return event


def _process(_logger: Any, _method: str, event: EventDict) -> EventDict:
    event["pid"] = os.getpid()
    return event


def configure(settings: Settings, *, stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send all logs of this process to `stream` (stderr), as JSON where the settings say so. May be called again."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _trace,
        _process,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if settings.log_json
        else structlog.dev.ConsoleRenderer(
            colors=(stream or sys.stderr).isatty() and "NO_COLOR" not in os.environ,
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,  # before the redaction: tracebacks quote addresses
                Redactor(secrets_of(settings)),
                renderer,
            ],
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a command may configure anew after an import has logged
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def bound(**facts: Any) -> AbstractContextManager[None]:
    """Every log line of this thread or task says `facts` until the block ends."""
    return bound_contextvars(**facts)
