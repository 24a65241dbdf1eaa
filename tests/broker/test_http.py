"""`/metrics`, `/livez` and `/readyz`, while strangers connect to their port."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import pytest
from support.waiting import wait_until

from tagmatch.broker import http
from tagmatch.broker.config import MetricsOptions
from tagmatch.broker.http import MAX_CONNECTIONS, MAX_REQUEST, HttpEndpoint

BEGUN = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(http, "MAX_SECONDS", 1.5)
    found = HttpEndpoint(MetricsOptions(port=0), lambda: b"metrics 1\n" * 1_000_000, lambda: (True, b"ready\n"))
    with contextlib.closing(found):
        yield found


def _get(endpoint: HttpEndpoint, path: str) -> bytes:
    with urllib.request.urlopen(endpoint.url + path, timeout=60) as answer:
        return answer.read()


def _connected(endpoint: HttpEndpoint, begun: bytes = BEGUN) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", int(endpoint.url.rpartition(":")[2])), 60)
    found.sendall(begun)
    return found


def _has_ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        one.send(b"a")
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.slow
def test_few_slow_connections_are_open_at_once(endpoint):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(_connected(endpoint)) for _ in range(3 * MAX_CONNECTIONS)]
        wait_until(lambda: all(map(_has_ended, slow[: 2 * MAX_CONNECTIONS])))
        wait_until(lambda: _threads() <= MAX_CONNECTIONS)
        assert _get(endpoint, "/livez") == b"alive\n"
        wait_until(lambda: all(map(_has_ended, slow)))  # they have had their time
    wait_until(lambda: not _threads())


# Nothing, a letter, headers, and an answer that is not read
@pytest.mark.parametrize("begun", [b"", b"G", BEGUN, b"GET /metrics HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"])
def test_a_connection_has_its_time(endpoint, begun):
    with _connected(endpoint, begun):
        wait_until(lambda: _threads() == 1)
        wait_until(lambda: not _threads())
    assert _get(endpoint, "/readyz") == b"ready\n"


def test_a_request_is_short(endpoint):
    with contextlib.suppress(ConnectionError), _connected(endpoint, BEGUN + b"a" * MAX_REQUEST) as one:
        while one.recv(1 << 16):
            pass
    wait_until(lambda: not _threads())
    assert _get(endpoint, "/metrics").startswith(b"metrics 1\n")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _get(endpoint, "/")
