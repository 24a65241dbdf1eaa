"""The routes are as their description says, for requests that are drawn from it, and others are refused in words."""

import contextlib
import gzip
import http.client
import json
import logging
import random
import re
import socket
import struct
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.documents import DOCUMENTS
from test_http import ARROW, NDJSON, Http, lines, served, stream
from test_http_security import wait_until

from tagmatch.broker.http.openapi import document
from tagmatch.broker.http.routes import ROUTES

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(document(ROUTES)).exclude(path_regex="notifications|console")


@pytest.fixture(scope="module")
def service():
    with served() as (found, _):
        yield found


@SCHEMA.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=[*HealthCheck])
@pytest.mark.filterwarnings("ignore")
def test_answers_are_as_described(case, service):
    case.call_and_validate(base_url=service.http.url, checks=CHECKS)


def test_the_description_is_served_and_names_every_route(service):
    with contextlib.closing(Http(service)) as client:
        status, _, found = client.ask("GET", "/openapi.json")
    assert (status, found["openapi"]) == (200, "3.1.0")
    assert {path: {each.lower() for each in methods} for path, methods in ROUTES.items()} == {
        path: {*methods} for path, methods in found["paths"].items()
    }
    parameters = {each["name"] for each in found["paths"]["/match_many"]["post"]["parameters"]}
    assert {"unique", "columns", "limit", "order_by", "Request-Timeout"} <= parameters
    assert (
        "tags" in found["paths"]["/match"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    )


VALUES: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, 1e308, "", "a", "\x00", "é" * 99, [], {}, [[]], [None], {"a": None}, ["a", 1],
    "circle(1, 2, 3)", "price <", [[1000, 1]], [1, 2], {"kind": "circle"}, {"type": "Polygon"}, {"text": "x"},
    [[[[[[[]]]]]]], "NaN", -0.0, {"alternatives": [{}]}, {"a" * 200: [1] * 50},
]  # fmt: skip
NAMES = [
    "tags", "attributes", "location", "within", "only", "channel", "unique", "columns", "key", "where", "area", "x",
    "expires", "data", "constraints", "alternatives", "full", "commit", "limit", "order_by", "id",
]  # fmt: skip


def drawn(numbers: random.Random) -> tuple[str, bytes]:
    """The method and the bytes of a request that is wrong in some way, or is not."""
    path = numbers.choice([*ROUTES, "/x", "/subscriptions/", "//", "/match/", "/%ff", "/subscriptions/%00"])
    path = path.replace("{key}", numbers.choice(["1", "-1", "a", "%FF", "1e3", "9" * 30, "", "%2F", "0"]))
    method = numbers.choice([*ROUTES.get(path, {})] * 3 + ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"])
    given = {numbers.choice(NAMES): numbers.choice(VALUES) for _ in range(numbers.randrange(4))}
    body = numbers.choice([json.dumps(given).encode(), json.dumps([given] * 3).encode(), lines([given] * 3), b""])
    if numbers.random() < 0.3:
        body = changed(numbers, numbers.choice([BATCHES, b'{"tags": ["a"]}', b"[1]", b"\xef\xbb\xbf{}"]))
    if numbers.random() < 0.4:
        query = {numbers.choice(NAMES): numbers.choice(["", "1", "true", "x", "-1", "%ff", "1.5"]) for _ in range(2)}
        path += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    codec = numbers.choice(["gzip", "zstd", "br", "identity"]) if numbers.random() < 0.2 else None
    if codec == "gzip" and numbers.random() < 0.7:
        body = BOMB if numbers.random() < 0.2 else gzip.compress(body, 1)
    headers = {
        "Host": "localhost",
        "Content-Type": numbers.choice([NDJSON, ARROW, "application/json", "", "text/plain", "a/b; c"]),
        **({"Content-Encoding": codec} if codec else {}),
        **({"Accept": numbers.choice([NDJSON, ARROW, "*/*", "x"])} if numbers.random() < 0.3 else {}),
        **({"Accept-Encoding": numbers.choice(["gzip", "zstd;q=0", "*"])} if numbers.random() < 0.3 else {}),
        **({"If-Match": numbers.choice(["*", '"x"', "W/"])} if numbers.random() < 0.1 else {}),
        **({"Idempotency-Key": numbers.choice(["a", "", "b" * 300])} if numbers.random() < 0.1 else {}),
        **({"Request-Timeout": numbers.choice(["5", "nan", "", "-1"])} if numbers.random() < 0.1 else {}),
    }
    if numbers.random() < 0.2:
        headers["Transfer-Encoding"], cut = "chunked", numbers.randrange(len(body) + 1)
        body = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:cut], body[cut:]) if each) + b"0\r\n\r\n"
    else:
        headers["Content-Length"] = str(len(body))
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return method, "\r\n".join(head).encode() + body


def changed(numbers: random.Random, data: bytes) -> bytes:
    """The bytes with some others among them, perhaps cut off."""
    found = bytearray(data)
    for _ in range(numbers.randrange(4)):
        found[numbers.randrange(len(found))] = numbers.randrange(256)
    return bytes(found[: numbers.randrange(len(found) + 1)])


def batches() -> bytes:
    import pyarrow as pa

    return stream(pa.table({"key": pa.array([1, 2], pa.uint64()), "tags": [["a"], ["b", "c"]]}), 1)


BATCHES = batches()


EXPECT = [b"\r\n", b"\r\n", b"\r\nExpect: 100-continue\r\n"]
BOMB = gzip.compress(bytes(1 << 28))


def whole(url: str, request: bytes, *, is_reset: bool) -> list[tuple[int, bytes]]:
    """The statuses and bodies of all answers to bytes after which no more come, or the client goes."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=60) as raw:
        with contextlib.suppress(ConnectionError):  # an answer may have come before
            raw.sendall(request)
            if is_reset:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return []
            raw.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionError):
            while part := raw.recv(1 << 16):
                found += part
    return [(int(each[:3]), each) for each in re.split(rb"HTTP/1\.1 (?=\d{3} )", found)[1:] if each[:4] != b"100 "]


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_no_request_is_a_fault_of_the_service(service, caplog, count):
    """Each is answered, or refused by a problem that says why; none has a trace. A tenth are no requests any more."""
    seed = random.randrange(2**32)
    numbers, statuses = random.Random(seed), Counter[int]()
    connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=60)
    for _ in range(count):
        method, request = drawn(numbers)
        if numbers.random() < 0.1:
            parts = [changed(numbers, request) if numbers.random() < 0.8 else request]
            while numbers.random() < 0.4:  # others before it, which may ask for 100 Continue
                parts.insert(0, drawn(numbers)[1].replace(b"\r\n", numbers.choice(EXPECT), 1))
            request = b"".join(parts)
            answers = whole(service.http.url, request, is_reset=numbers.random() < 0.2)
        else:
            if connection.sock is None:
                connection.connect()
            connection.sock.sendall(request)
            answer = http.client.HTTPResponse(connection.sock, method=method)
            try:
                answer.begin()
                data = answer.read()
            except http.client.IncompleteRead:  # an error after the first answers
                connection.close()
                statuses[0] += 1
                continue
            answers = [(answer.status, data)]
            if answer.status >= 400 and method != "HEAD":
                problem = json.loads(data)
                assert answer.headers["content-type"] == "application/problem+json"
                assert problem["status"] == answer.status
                assert problem["detail"]
            if answer.headers.get("connection") == "close":
                connection.close()
        statuses.update([status for status, _ in answers] or ["closed"])
        for status, data in answers:
            assert status < 500, (seed, request, data)
            assert b"Traceback" not in data
    connection.close()
    print(f"{count} requests of seed {seed}: {dict(sorted(statuses.items(), key=str))}")
    documented = re.findall(r"^\| (\d+) \|", DOCUMENTS["docs/guide/http.md"].read_text(), re.MULTILINE)
    assert {status for status in statuses if isinstance(status, int) and status >= 400} <= {*map(int, documented)}
    assert {200, 400, 404, 405, 415, *([413] if count > 10_000 else [])} <= {*statuses}
    wait_until(lambda: service.limits.stats()["calls"] == 0)
    told = [each.getMessage() for each in caplog.records if each.exc_info or each.levelno >= logging.WARNING]
    assert {*told} <= {"refused"}  # but none has failed, or waits for a client that has gone
    assert service.limits.stats()["bytes"] == 0
