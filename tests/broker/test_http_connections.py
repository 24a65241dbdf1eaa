"""Requests of strangers: old and odd ones, halves of connections, and unwanted bodies, have answers."""

import contextlib
import gc
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.service import Slowed
from test_http import ARROW, NDJSON, lines, served, stream
from test_http_security import ends, wait_until

from tagmatch.broker.answers import Matching
from tagmatch.broker.service import Service
from tagmatch.model.change_counts import ChangeCounts

MESSAGE = b'{"tags": ["a"]}'


@pytest.fixture(scope="module")
def service():
    with served() as (found, client):
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["a"]})[0] == 200
        yield found


@contextlib.contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    assert service.http is not None
    with socket.create_connection(("127.0.0.1", service.http.port), timeout=30) as raw:
        yield raw


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def asked(service: Service, request: bytes) -> bytes:
    """All that comes until the service closes the connection."""
    with connected(service) as raw:
        raw.sendall(request)
        return ends(raw)


def test_http_1_0_has_no_chunks(service):
    found = asked(service, post("/match", MESSAGE, version="1.0"))
    assert b"connection: close" in found
    assert found.endswith(b'\r\n\r\n{"keys": [1]}\n')
    found = asked(service, post("/match_many", MESSAGE + b"\n", f"Content-Type: {NDJSON}", version="1.0"))
    head, _, body = found.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b'{"keys":[1]}\n'


def test_a_client_that_would_rather_have_http_2_is_answered(service):
    """As those of Java and curl ask: with a body, which is the request's."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    with connected(service) as raw:
        for _ in range(2):
            raw.sendall(post("/match", MESSAGE, *upgrade))
            assert raw.recv(1000).endswith(b'{"keys": [1]}\n')
        raw.sendall(post("/match", MESSAGE, *upgrade)[:-3])
        time.sleep(0.1)
        raw.sendall(MESSAGE[-3:])
        assert raw.recv(1000).endswith(b'{"keys": [1]}\n')


def test_a_client_that_has_sent_all_may_close_its_half(service):
    for request in (
        post("/match", MESSAGE),
        post("/count", MESSAGE),
        post("/match_many", lines([{"tags": ["a"]}] * 20_000), f"Content-Type: {NDJSON}"),
    ):
        with connected(service) as raw:
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
            found = ends(raw)
        assert found.startswith(b"HTTP/1.1 200"), request[:30]
        assert found.endswith((b"}\n", b"0\r\n\r\n"))
    with connected(service) as raw:
        raw.sendall(post("/match_many", lines([{"tags": ["a"]}]), f"Content-Type: {NDJSON}")[:-3])
        raw.shutdown(socket.SHUT_WR)
        ends(raw)
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_a_body_is_asked_for_only_if_it_is_wanted(service):
    expect = "Expect: 100-continue"
    with connected(service) as raw:
        raw.sendall(post("/match", MESSAGE, expect).removesuffix(MESSAGE))
        assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(MESSAGE)
        assert raw.recv(1000).endswith(b'{"keys": [1]}\n')
        raw.sendall(post("/match", MESSAGE, expect, "Connection: close"))  # which did not wait
        assert ends(raw).endswith(b'{"keys": [1]}\n')
    head = f"POST /match HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n{expect}\r\n\r\n".encode()
    with connected(service) as raw:
        raw.sendall(head)
        found = raw.recv(1000)
        assert found.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in found  # the next bytes might be the body, or not


def test_an_answer_is_read_though_the_body_was_not(service):
    body = b" " * (20 << 20)
    with connected(service) as raw:
        raw.sendall(post("/match", body) + post("/match", MESSAGE))
        found = b""
        while not found.endswith(b'{"keys": [1]}\n'):
            part = raw.recv(1000)
            assert part, found
            found += part
        assert found.startswith(b"HTTP/1.1 413")


def test_requests_that_come_together_are_answered_in_order(service):
    requests = [post("/count", MESSAGE), post("/match", MESSAGE), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    for size in (10_000, 7):
        with connected(service) as raw:
            data = b"".join(requests * 3) + post("/exists", MESSAGE, "Connection: close")
            for first in range(0, len(data), size):
                raw.sendall(data[first : first + size])
            found = ends(raw)
        bodies = [each.partition(b"\r\n\r\n")[2] for each in found.split(b"HTTP/1.1 200 OK")[1:]]
        each = [{"count": 1}, {"keys": [1]}, {"status": "alive"}]
        assert [json.loads(body) for body in bodies] == [*each * 3, {"exists": True}]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/3.7\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST /match HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /match HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 300_000, 431),
        (b"CONNECT a:80 HTTP/1.1\r\n\r\n", 405),
        (post("/count", MESSAGE) + b"hello\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_a_problem(service, request_, status):
    found = asked(service, request_)
    assert b"HTTP/1.1 %d " % status in found
    problem = json.loads(found.rpartition(b"\r\n\r\n")[2])
    assert (problem["status"], problem["kind"]) == (status, "InvalidValueError")
    assert ("count" in str(found)) == request_.startswith(b"POST /count")
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_answers_without_a_body_have_none(service):
    known = asked(service, b"GET /subscriptions/1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    tag = known.partition(b"etag: ")[2].partition(b"\r")[0].decode()
    for begin, status in [
        ("OPTIONS /match", 204),
        ("HEAD /healthz", 200),
        (f"GET /subscriptions/1 HTTP/1.1\r\nIf-None-Match: {tag}", 304),
    ]:
        first = begin if "HTTP" in begin else f"{begin} HTTP/1.1"
        rest = "\r\nHost: localhost\r\n\r\n"
        found = asked(service, (first + rest).encode() + post("/match", MESSAGE, "Connection: close"))
        assert found.startswith(b"HTTP/1.1 %d " % status)
        assert found.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200 OK"), begin


def test_odd_targets(service):
    for target, status in [
        ("http://localhost/healthz", 200),
        ("/healthz?", 200),
        ("/%68ealthz", 200),
        ("*", 404),
        ("/healthz/", 404),
        ("//healthz", 404),
        ("/%FF", 400),
    ]:
        found = asked(service, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert found.startswith(b"HTTP/1.1 %d " % status), target
    head = asked(service, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b"content-length: 20" in head
    assert head.endswith(b"\r\n\r\n")


@contextlib.contextmanager
def nothing_is_told(service: Service, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Sees that no call is left at the end, and that none failed or had to be ended."""
    yield
    wait_until(lambda: service.limits.stats()["calls"] == 0)
    gc.collect()  # asyncio tells of a task that has failed when the task goes
    assert [each.getMessage() for each in caplog.records if each.exc_info or each.levelno >= logging.WARNING] == []
    assert service.limits.stats()["bytes"] == 0


def goes(service: Service, raw: socket.socket) -> None:
    """Reset a connection, and wait until the service knows it."""
    peer = "{}:{}".format(*raw.getsockname())
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    assert service.http is not None
    wait_until(lambda: peer not in {each.peer for each in service.http.app.connections})


PARTS = b"POST /match_many HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "then",
    [
        b"",
        b"hello\r\n\r\n",
        b"POST /match HT",
        post("/match", MESSAGE),
        post("/match", MESSAGE)[:-3],
        post("/match", MESSAGE, "Expect: 100-continue").removesuffix(MESSAGE),
        PARTS + b"\r\n5\r\n" + MESSAGE[:5],
        PARTS + b"\r\nzz\r\n",
    ],
)
@pytest.mark.parametrize("slow_path", ["/match_many", "/consolidate"])
def test_a_client_goes_while_its_call_is_answered(service, caplog, monkeypatch, slow_path, then):
    let, began = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> pa.Array:
        began.set()
        assert let.wait(60)
        return pa.array([[1]], pa.list_(pa.uint64()))

    monkeypatch.setattr(service.index, "match_many", slow)
    monkeypatch.setattr("tagmatch.broker.answers.committed", lambda *_, **__: (slow(), ChangeCounts())[1])
    body = b"[%b]" % MESSAGE if slow_path == "/match_many" else b""
    with nothing_is_told(service, caplog), connected(service) as raw:
        raw.sendall(post(slow_path, body) + then)
        assert began.wait(30)
        goes(service, raw)
        let.set()


def test_a_client_goes_while_its_body_is_read(service, caplog, monkeypatch):
    """The thread that reads knows it at once, and does not wait for more."""
    let, began, obey = threading.Event(), threading.Event(), Matching._obey

    def slow(matching: Matching, batch: pa.RecordBatch) -> None:
        began.set()
        assert let.wait(60)
        obey(matching, batch)

    monkeypatch.setattr(Matching, "_obey", slow)
    rows = stream(pa.table({"tags": [["a"], ["b"]]}), 1)
    head = PARTS + f"Content-Type: {ARROW}\r\n\r\n".encode()
    with nothing_is_told(service, caplog), connected(service) as raw:
        raw.sendall(head + b"%x\r\n%b\r\n" % (len(rows), rows))
        assert began.wait(30)
        goes(service, raw)
        let.set()


def test_a_request_that_breaks_off_while_others_are_answered(service, caplog, monkeypatch):
    slow = Slowed(service.index, monkeypatch)
    with connected(service) as raw:
        raw.sendall(post("/match_many", b"[%b]" % MESSAGE) + PARTS + b"\r\nzz\r\n")
        assert slow.began.wait(30)
        time.sleep(0.1)
        slow.let.set()
        with nothing_is_told(service, caplog):
            found = ends(raw)
    assert [each[:3] for each in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]


def test_nothing_is_read_after_the_last_answer(service, caplog):
    """A client that has not waited for 100 Continue may have sent its body, and more; the answer stands alone."""
    expect = "Expect: 100-continue"
    for request in (post("/nothing", MESSAGE, expect), post("/nothing", b" " * 100_000, expect)):
        with nothing_is_told(service, caplog):
            found = asked(service, request + post("/match", MESSAGE) * 3)
        assert found.startswith(b"HTTP/1.1 404")
        assert found.count(b"HTTP/1.1") == 1


def test_requests_that_came_before_the_half_of_a_connection_is_closed_are_answered(service, monkeypatch):
    slow = Slowed(service.index, monkeypatch)
    with connected(service) as raw:
        raw.sendall(post("/match_many", b"[%b]" % MESSAGE) + post("/count", MESSAGE) + post("/match", MESSAGE))
        raw.shutdown(socket.SHUT_WR)
        assert slow.began.wait(30)
        time.sleep(0.1)
        slow.let.set()
        found = ends(raw)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.endswith(b'{"keys": [1]}\n')


@pytest.mark.parametrize("then", [b"\r\n", b"POST /match HT"])
def test_bytes_of_the_next_request_do_not_end_the_call_before_it(service, monkeypatch, then):
    """Some old clients send an empty line behind a body."""
    monkeypatch.setattr("tagmatch.broker.http.connection.FIRST_S", 0.1)
    slow = Slowed(service.index, monkeypatch)
    with connected(service) as raw:
        raw.sendall(post("/match_many", b"[%b]" % MESSAGE))
        assert slow.began.wait(30)
        raw.sendall(then)
        time.sleep(1)
        slow.let.set()
        assert ends(raw).startswith(b"HTTP/1.1 200 OK")  # and closed, as the rest does not come


def test_headers_behind_a_body_are_dropped(service):
    """They are not joined with those before it, nor kept: there may be any number of them."""
    rows = b"[%b]" % MESSAGE
    head = PARTS + b"Content-Type: application/json\r\nConnection: close\r\n\r\n"
    last = b"0\r\nContent-Type: text/odd\r\nContent-Encoding: gzip\r\n\r\n"
    found = asked(service, head + b"%x\r\n%b\r\n" % (len(rows), rows) + last)
    assert found.startswith(b"HTTP/1.1 200 OK")


def test_requests_that_wait_for_others_are_bounded(service, monkeypatch):
    """A client may send any number of them before it reads: they wait on its side of the connection."""
    slow, count = Slowed(service.index, monkeypatch), 10_000
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nPadding: %b\r\n\r\n" % (b"x" * 200)
    with connected(service) as raw:
        raw.sendall(post("/match_many", b"[%b]" % MESSAGE))
        assert slow.began.wait(30)
        data = request * count + post("/match", MESSAGE, "Connection: close")
        sending = threading.Thread(target=raw.sendall, args=[data])
        sending.start()
        time.sleep(1)
        (connection,) = [each for each in service.http.app.connections if each._call is not None]
        assert len(connection._after) < count // 2
        slow.let.set()
        found = ends(raw)
        sending.join()
    assert found.count(b"HTTP/1.1 200") == count + 2
    assert found.endswith(b'{"keys": [1]}\n')


@pytest.mark.parametrize("close", ["Connection: close", "Connection: keep-alive"])
@pytest.mark.parametrize(("path", "more"), [("/match_many?channel=none", "A: b"), ("/publish", "Request-Timeout: 0.1")])
def test_no_thread_waits_for_the_rest_of_a_body_after_the_answer(caplog, path, more, close):
    with served(max_calls=1) as (service, client), contextlib.ExitStack() as stack:
        with nothing_is_told(service, caplog):
            for _ in range(40):  # more than there are threads
                raw = stack.enter_context(connected(service))
                raw.sendall(post(path, MESSAGE + b"\n" * 20_000, f"Content-Type: {NDJSON}", more, close)[:-1])
                assert raw.recv(1000).startswith((b"HTTP/1.1 400", b"HTTP/1.1 504"))
        assert client.ask("POST", "/count", {"tags": ["a"]})[2] == {"count": 0}
