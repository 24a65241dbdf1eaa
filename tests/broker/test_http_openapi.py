"""The routes are as their description says, for requests that are drawn from it, and others are refused in words."""

import contextlib
import http.client
import json
import random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from test_http import ARROW, NDJSON, Http, lines, served, stream

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


def drawn(numbers: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that is wrong in some way, or is not."""
    path = numbers.choice([*ROUTES, "/x", "/subscriptions/", "//", "/match/", "/%ff", "/subscriptions/%00"])
    path = path.replace("{key}", numbers.choice(["1", "-1", "a", "%FF", "1e3", "9" * 30, "", "%2F", "0"]))
    methods = [*ROUTES.get(path, {})] * 3 + ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"]
    given = {numbers.choice(NAMES): numbers.choice(VALUES) for _ in range(numbers.randrange(4))}
    body = numbers.choice([json.dumps(given).encode(), json.dumps([given] * 3).encode(), lines([given] * 3), b""])
    if numbers.random() < 0.3:
        body = numbers.choice([BATCHES, b'{"tags": ["a"]}', b"[1]", b"\xef\xbb\xbf{}"])
        body = bytearray(body)
        for _ in range(numbers.randrange(4)):
            body[numbers.randrange(len(body))] = numbers.randrange(256)
        body = bytes(body[: numbers.randrange(len(body) + 1)])
    if numbers.random() < 0.4:
        query = {numbers.choice(NAMES): numbers.choice(["", "1", "true", "x", "-1", "%ff", "1.5"]) for _ in range(2)}
        path += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    headers = {
        "Content-Type": numbers.choice([NDJSON, ARROW, "application/json", "", "text/plain", "a/b; c"]),
        **({"Content-Encoding": numbers.choice(["gzip", "zstd", "br", "identity"])} if numbers.random() < 0.2 else {}),
        **({"Accept": numbers.choice([NDJSON, ARROW, "*/*", "x"])} if numbers.random() < 0.3 else {}),
        **({"Accept-Encoding": numbers.choice(["gzip", "zstd;q=0", "*"])} if numbers.random() < 0.3 else {}),
        **({"If-Match": numbers.choice(["*", '"x"', "W/"])} if numbers.random() < 0.1 else {}),
        **({"Idempotency-Key": numbers.choice(["a", "", "b" * 300])} if numbers.random() < 0.1 else {}),
        **({"Request-Timeout": numbers.choice(["5", "nan", "", "-1"])} if numbers.random() < 0.1 else {}),
    }
    return numbers.choice(methods), path, body, headers


def batches() -> bytes:
    import pyarrow as pa

    return stream(pa.table({"key": pa.array([1, 2], pa.uint64()), "tags": [["a"], ["b", "c"]]}), 1)


BATCHES = batches()


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_no_request_is_a_fault_of_the_service(service, caplog, count):
    """Each is answered, or refused by a problem that says why; none has a trace."""
    seed = random.randrange(2**32)
    numbers, statuses = random.Random(seed), set()
    connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=60)
    for _ in range(count):
        method, path, body, headers = drawn(numbers)
        if "?" not in path and path == "/drain":
            continue
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except http.client.IncompleteRead:  # an error after the first answers
            connection.close()
            continue
        statuses.add(answer.status)
        assert answer.status < 500, (seed, method, path, body, headers, data)
        if answer.status >= 400 and method != "HEAD":
            problem = json.loads(data)
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem["status"] == answer.status
            assert problem["detail"]
            assert "Traceback" not in problem["detail"]
        if answer.headers.get("connection") == "close":
            connection.close()
    connection.close()
    assert {200, 400, 404, 405, 415} <= statuses
    assert [each for each in caplog.records if each.exc_info] == []
