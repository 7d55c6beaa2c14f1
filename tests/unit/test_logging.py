"""Each line is one JSON object, says what work it belongs to, and holds no secret, whoever wrote it."""

import io
import json
import logging

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from config.logging import MASK, Redactor, bound, configure, secrets_of
from config.settings import Settings

SECRET = "s3cr3t-%2Fpw"


@pytest.fixture
def lines(monkeypatch):
    """Configures JSON logs into a buffer; calling it gives the lines so far."""
    root, held = logging.getLogger(), (logging.getLogger().handlers[:], logging.getLogger().level)
    monkeypatch.setenv("REDIS_URL", f"redis://:{SECRET}@127.0.0.1:6379/0")
    monkeypatch.setenv("POSTGRES_URL", "postgresql://app:other-pass@127.0.0.1/x")
    monkeypatch.setenv("SOME_API_KEY", "key-12345")
    monkeypatch.setenv("FENCEBEAT_LOG_JSON", "1")
    stream = io.StringIO()
    configure(Settings(), stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], root.level = held
    structlog.reset_defaults()


def fail(error):
    raise error


def test_one_event_is_one_json_line_even_with_a_traceback(lines):
    try:
        fail(RuntimeError("two\nlines"))
    except RuntimeError:
        structlog.get_logger("fencebeat").exception("document.handed_back", doc_uid="a\nb")

    (line,) = lines()
    assert line["event"] == "document.handed_back"
    assert line["level"] == "error"
    assert line["doc_uid"] == "a\nb"
    assert "RuntimeError: two" in line["exception"]


def test_lines_of_libraries_carry_the_bound_facts_and_the_trace_too(lines):
    tracer = TracerProvider().get_tracer("test")
    with bound(doc_uid="guide.md", epoch=7, token=12), tracer.start_as_current_span("document") as span:
        logging.getLogger("celery.task").warning("slow %s", "parse")
    logging.getLogger("celery.task").warning("after")

    inside, after = lines()
    assert (inside["event"], inside["doc_uid"], inside["epoch"], inside["token"]) == ("slow parse", "guide.md", 7, 12)
    assert inside["trace_id"] == trace.format_trace_id(span.get_span_context().trace_id)
    assert not {"doc_uid", "epoch", "trace_id"} & set(after)


@pytest.mark.parametrize(
    "say",
    [
        lambda log: log.warning("x", address=f"redis://:{SECRET}@h:1/0"),
        lambda log: log.warning("cannot reach postgresql://app:other-pass@127.0.0.1/x"),
        lambda log: log.warning("x", detail={"nested": ["key-12345"]}),
        lambda log: log.warning("x", opensearch_password="never-seen-before"),  # secret by its name alone
        lambda log: log.warning("connection to host=h password=never-seen-before failed"),
        lambda log: log.warning("x", header="Basic bmV2ZXItc2Vlbi1iZWZvcmU="),
        lambda _: logging.getLogger("kombu").error("with s3cr3t-/pw in it"),  # percent-decoded, as clients print it
        lambda log: log.warning("x", error=ConnectionError("redis://u:other-pass@h")),
    ],
)
def test_no_secret_reaches_a_line(lines, say):
    say(structlog.get_logger("fencebeat"))

    (line,) = lines()
    text = json.dumps(line)
    for secret in (SECRET, "s3cr3t-/pw", "other-pass", "key-12345", "never-seen-before", "bmV2ZXItc2Vlbi1iZWZvcmU="):
        assert secret not in text
    assert MASK in text


def test_a_secret_in_a_traceback_is_redacted(lines):
    try:
        fail(ConnectionError(f"redis://:{SECRET}@h"))
    except ConnectionError:
        logging.getLogger("redis").exception("lost")

    (line,) = lines()
    assert SECRET not in json.dumps(line)
    assert "ConnectionError" in line["exception"]


def test_the_fencing_token_is_no_secret():
    assert Redactor()(None, "", {"event": "x", "token": 1767225600000001}) == {"event": "x", "token": 1767225600000001}


def test_secrets_are_known_as_written_and_as_meant(monkeypatch):
    monkeypatch.setenv("REDIS_URL", f"redis://:{SECRET}@h:1/0")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "admin-pass")

    assert {SECRET, "s3cr3t-/pw", "admin-pass"} <= secrets_of(Settings())


def test_requests_of_clients_are_not_logged(lines):
    logging.getLogger("httpx").info("HTTP Request: GET http://127.0.0.1")
    logging.getLogger("httpx").warning("kept")

    assert [line["event"] for line in lines()] == ["kept"]
