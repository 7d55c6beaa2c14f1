"""A small HTTP server that misbehaves on the wire as told, for what a real OpenSearch cannot be made to do at will."""

import json
import socket
import struct
import threading
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeOpenSearch:
    """Answers `_bulk` by a queue of steps, then with success. A step gets the handler and the ids of the request."""

    def __init__(self, url):
        self.url = url
        self.steps = deque()
        self.requests = []
        self.paths = []
        self.headers = []
        self.released = threading.Event()

    def then(self, *steps):
        self.steps.extend(steps)
        return self


@contextmanager
def fake_opensearch():
    """A server on loopback; ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            actions = [json.loads(line) for line in body.splitlines()[::2]]
            ids = [action["index"]["_id"] for action in actions]
            fake.requests.append(ids)
            fake.paths.append(self.path)
            fake.headers.append(dict(self.headers))
            (fake.steps.popleft() if fake.steps else success)(self, ids)

        def log_message(self, *args):
            """Tests say what went wrong; the log is noise."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake = FakeOpenSearch(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def reply(handler, status, body, **headers):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def success(handler, ids):
    reply(handler, 200, {"items": [{"index": {"_id": i, "status": 201}} for i in ids]})


def whole(status, **headers):
    """The whole request fails with `status`."""

    def step(handler, ids):
        reply(handler, status, {"error": {"type": "x", "reason": "as told"}, "status": status}, **headers)

    return step


def some(status, *bad):
    """Only these ids fail."""

    def step(handler, ids):
        answers = [
            {"_id": i, "status": status, "error": {"type": "x", "reason": "as told"}}
            if i in bad
            else {"_id": i, "status": 201}
            for i in ids
        ]
        reply(handler, 200, {"items": [{"index": answer} for answer in answers]})

    return step


def short(handler, ids):
    """One item less than was asked."""
    success(handler, ids[:-1])


def cut(handler, ids):
    """Half a JSON document, as whole as HTTP can tell."""
    reply(handler, 200, b'{"items": [{"index"')


def reset(handler, ids):
    """The connection is reset instead of an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def silence(fake):
    """No answer until the test ends."""

    def step(handler, ids):
        fake.released.wait(60)
        handler.close_connection = True

    return step
