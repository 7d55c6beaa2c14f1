"""The fault proxy, before an echo server that remembers what reached it."""

import contextlib
import socket
import socketserver
import threading

import pytest

from fencebeat.clock import SystemClock
from tests.support.proxy import Proxy
from tests.support.waiting import until

CLOCK = SystemClock()


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.reached = b""


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while data := self.request.recv(4096):
                self.server.reached += data
                self.request.sendall(b"re:" + data)
        except OSError:
            return


@pytest.fixture
def echo():
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy(*echo.server_address) as proxy:
        yield proxy


@pytest.fixture
def dial(proxy):
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=5))
        return opened[-1]

    yield connect
    for sock in opened:
        sock.close()


def ask(sock, data=b"hello"):
    sock.sendall(data)
    return sock.recv(4096)


def hears_nothing(sock):
    sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        sock.recv(4096)
    sock.settimeout(5)


def test_without_a_fault_it_is_not_there(proxy, dial):
    assert ask(dial()) == b"re:hello"
    assert proxy.bites == {}
    assert proxy.connections == 1


def test_the_url_keeps_everything_but_the_address(echo):
    host, port = echo.server_address
    with Proxy.before(f"redis://user:secret@{host}:{port}/3?x=1") as proxy:
        assert proxy.url == f"redis://user:secret@127.0.0.1:{proxy.port}/3?x=1"


def test_latency_delays_and_heal_ends_a_delay_at_once(proxy, dial):
    sock = dial()
    proxy.latency(150, 10, "down")
    began = CLOCK.elapsed()
    assert ask(sock) == b"re:hello"
    assert CLOCK.elapsed() - began >= 0.14

    proxy.latency(60_000, direction="up")
    sock.sendall(b"late")
    until(lambda: proxy.bites["latency"] == 2, what="the delay of the second request")
    proxy.heal()
    assert sock.recv(4096) == b"re:late"


def test_slow_takes_as_long_as_the_size_says(proxy, dial):
    sock = dial()
    proxy.slow(100, "up")
    began = CLOCK.elapsed()
    assert ask(sock, b"x" * 20) == b"re:" + b"x" * 20
    assert CLOCK.elapsed() - began >= 0.2
    assert proxy.bites == {"slow": 1}


def test_silence_down_lets_requests_arrive(proxy, dial, echo):
    sock = dial()
    proxy.silence("down")
    sock.sendall(b"hello")
    until(lambda: echo.reached == b"hello", what="the request at the server")
    hears_nothing(sock)
    assert proxy.bites == {"silence": 1}


def test_silence_up_keeps_requests_from_arriving(proxy, dial, echo):
    sock = dial()
    proxy.silence("up")
    sock.sendall(b"hello")
    hears_nothing(sock)
    assert echo.reached == b""


def test_a_muted_connection_stays_mute_and_new_ones_work_after_healing(proxy, dial):
    sock = dial()
    proxy.silence("down")
    sock.sendall(b"one")
    until(lambda: proxy.bites["silence"], what="the silence bites")
    proxy.heal()

    sock.sendall(b"two")
    hears_nothing(sock)
    assert ask(dial()) == b"re:hello"


@pytest.mark.parametrize(("count", "heard"), [(0, b""), (2, b"re")])
def test_cut_after_closes_in_the_middle_of_an_answer(proxy, dial, echo, count, heard):
    sock = dial()
    proxy.cut_after(count, "down")
    assert ask(sock) == heard
    assert sock.recv(4096) == b"", "closed"
    assert echo.reached == b"hello"
    assert proxy.bites == {"cut_after": 1}


def test_cut_after_up_closes_in_the_middle_of_a_request(proxy, dial, echo):
    sock = dial()
    proxy.cut_after(3, "up")
    sock.sendall(b"hello")
    until(lambda: echo.reached == b"hel", what="the first part of the request")
    until(lambda: proxy.bites["cut_after"], what="the cut")


def test_times_bounds_the_bites(proxy, dial):
    proxy.cut_after(0, "down", times=1)
    assert ask(dial()) == b""
    assert ask(dial()) == b"re:hello"
    assert proxy.bites == {"cut_after": 1}


def test_reset_answers_data_with_a_reset(proxy, dial, echo):
    sock = dial()
    proxy.reset("up")
    with pytest.raises(ConnectionResetError):
        ask(sock)
    assert echo.reached == b""
    assert proxy.bites == {"reset": 1}


def test_reset_without_a_direction_resets_what_is_open_now(proxy, dial):
    socks = [dial(), dial()]
    for sock in socks:
        ask(sock)
    proxy.reset()
    for sock in socks:
        with pytest.raises(ConnectionResetError):
            sock.recv(4096)
    assert proxy.bites == {"reset": 2}
    assert ask(dial()) == b"re:hello"


def test_refuse_refuses_new_connections_and_keeps_open_ones(proxy, dial):
    sock = dial()
    ask(sock)
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    assert ask(sock) == b"re:hello"
    proxy.heal()
    assert ask(dial()) == b"re:hello"


def test_hold_down_tells_when_a_request_was_answered_and_keeps_the_reply(proxy, dial, echo):
    sock = dial()
    held = proxy.hold("down")
    sock.sendall(b"hello")
    held.wait()
    assert echo.reached == b"hello"
    hears_nothing(sock)
    held.release()
    assert sock.recv(4096) == b"re:hello"
    assert ask(sock) == b"re:hello", "released: nothing is held any more"


def test_a_held_request_arrives_late_although_its_client_has_gone(proxy, dial, echo):
    sock = dial()
    held = proxy.hold("up")
    sock.sendall(b"late")
    held.wait()
    sock.close()
    assert echo.reached == b""
    proxy.heal()
    held.answered()
    assert echo.reached == b"late", "the late request at the server"


def test_about_chooses_connections_by_their_request(proxy, dial):
    one, two = dial(), dial()
    proxy.cut_after(0, "down", about="digest-1")
    assert ask(two, b"digest-2") == b"re:digest-2"
    assert ask(one, b"digest-1") == b""
    assert ask(two, b"other") == b"re:other"
    assert proxy.bites == {"cut_after": 1}


def test_a_server_that_is_down_is_a_closed_connection(echo):
    host, _ = echo.server_address
    with socket.socket() as taken:
        taken.bind((host, 0))
        with (
            Proxy(host, taken.getsockname()[1]) as proxy,
            socket.create_connection((host, proxy.port), timeout=5) as sock,
            contextlib.suppress(ConnectionResetError),
        ):
            assert sock.recv(1) == b""
