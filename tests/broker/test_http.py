"""Calls over HTTP are answered as those of Python are, with the same rights and the same errors."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.service import USERS, config, value

from tagmatch import Circle, TagMatch
from tagmatch.broker.service import Service, serving


class Http:
    """A connection that stays open: `ask` returns status, headers and body."""

    def __init__(self, service: Service, token: str | None = None) -> None:
        assert service.http is not None
        self.connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=60)
        self.token = token

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        text = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        self.connection.request(method, path, text, given)
        answer = self.connection.getresponse()
        data, kind = answer.read(), answer.headers.get("content-type", "")
        return (
            answer.status,
            dict(
                answer.headers.lower_items()
                if hasattr(answer.headers, "lower_items")
                else [(n.lower(), v) for n, v in answer.headers.items()]
            ),
            (json.loads(data) if "json" in kind and "ndjson" not in kind and data else data),
        )

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def served(users: Any = (), **more: Any) -> Iterator[tuple[Service, Http]]:
    options = {"data": {"size": "int64", "name": "string"}, **more.pop("index", {})}
    with (
        TagMatch(threads=1, device="cpu", **options) as index,
        serving(index, config(users, **more)) as service,
        contextlib.closing(Http(service, "token-admin" if users else None)) as client,
    ):
        yield service, client


@pytest.fixture(scope="module")
def both():
    with served() as found:
        yield found


def test_a_subscription_is_put_matched_shown_and_deleted(both):
    _, client = both
    put = client.ask("PUT", "/subscriptions/7", {"tags": ["cat"], "where": "price < 10", "data": {"size": 3}})
    assert put[0] == 200
    assert put[2]["changes"] == {"added": 1, "already_there": 0, "removed": 0, "missing": 0}
    message = {"tags": ["cat", "fr"], "attributes": {"price": 9.5}}
    assert client.ask("POST", "/match", message)[::2] == (200, {"keys": [7]})
    assert client.ask("POST", "/match", {**message, "unique": True})[2] == {"keys": [7]}
    assert client.ask("POST", "/match", {**message, "columns": ["size"]})[2] == {"keys": [{"key": 7, "size": 3}]}
    assert client.ask("POST", "/match", {**message, "only": "size > 3"})[2] == {"keys": []}
    assert client.ask("POST", "/count", message)[2] == {"count": 1}
    assert client.ask("POST", "/exists", message)[2] == {"exists": True}
    assert client.ask("POST", "/explain", {**message, "key": 7})[2]["matches"] is True
    status, _, record = client.ask("GET", "/subscriptions/7")
    assert status == 200
    assert record["alternatives"][0]["tags"] == ["cat"]
    # what GET gives can be put again, and changes nothing
    assert client.ask("PUT", "/subscriptions/7", record)[2]["changes"]["removed"] == 0
    assert client.ask("GET", "/subscriptions/7")[2] == record
    assert client.ask("DELETE", "/subscriptions/7")[2]["changes"]["removed"] == 1
    assert client.ask("DELETE", "/subscriptions/7")[0] == client.ask("GET", "/subscriptions/7")[0] == 404
    assert client.ask("POST", "/match", message)[2] == {"keys": []}


def test_places(both):
    service, client = both
    assert client.ask("PUT", "/subscriptions/8", {"tags": ["flat"], "area": "circle(9.19, 45.46, 5000)"})[0] == 200
    assert client.ask("POST", "/match", {"tags": ["flat"], "location": [9.2, 45.47]})[2] == {"keys": [8]}
    assert client.ask("POST", "/match", {"tags": ["flat"], "location": [[0, 0], [9.2, 45.47]]})[2] == {"keys": [8]}
    service.index.move([8], [9.2], [45.47])
    circle = {"kind": "circle", "lon": 9.2, "lat": 45.47, "metres": 10}
    found = service.index.match(["flat"], location=(9.2, 45.47), within=Circle(9.2, 45.47, 10))
    for within in (circle, "circle(9.2, 45.47, 10)"):
        asked = {"tags": ["flat"], "location": [9.2, 45.47], "within": within}
        assert client.ask("POST", "/match", asked)[2] == {"keys": found} == {"keys": [8]}
    assert client.ask("DELETE", "/subscriptions/8?commit=false")[2] == {"staged": 1, "committed": False}
    assert client.ask("POST", "/match", {"tags": ["flat"], "location": [9.2, 45.47]})[2] == {"keys": [8]}
    assert client.ask("POST", "/consolidate", {"full": True})[2]["changes"]["removed"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("POST", "/match", {"tagz": ["a"]}, 400, "no option 'tagz'; is 'tags' meant?"),
        ("POST", "/match", {"tags": "a"}, 400, "tags must be list"),
        ("POST", "/match", b"{", 400, "is no JSON"),
        ("POST", "/match", b"\xff", 400, "no UTF-8"),
        ("POST", "/match", [1], 400, "must be a JSON object"),
        ("POST", "/match", {"tags": [1]}, 400, "tags"),
        ("POST", "/match", {"tags": [], "attributes": {"a": {"b": 1}}}, 400, "a"),
        ("POST", "/match", {"tags": [], "location": [1000, 1]}, 400, "lon"),
        ("POST", "/match", {"tags": [], "columns": ["siz"]}, 400, "siz"),
        ("POST", "/match", {"tags": [], "only": "size <"}, 400, "only"),
        ("POST", "/match", {"tags": [], "channel": "x"}, 400, "channel"),
        ("GET", "/match", None, 405, "/match is for POST"),
        ("GET", "/matches", None, 404, "there is no path"),
        ("GET", "/subscriptions/a", None, 400, "keys of this index are integers"),
        ("GET", "/subscriptions/1?x=1", None, 400, "no option 'x'"),
        ("PUT", "/subscriptions/1?commit=1", {"tags": ["a"]}, 400, "must be true or false"),
        ("PUT", "/subscriptions/1", {"tag": ["a"]}, 400, "'tag'"),
        ("PUT", "/subscriptions/1", None, 400, "must be a subscription"),
        ("PUT", "/subscriptions/1", {"where": "price <"}, 400, "where"),
        ("PUT", "/subscriptions/1", {"tags": ["a"], "data": {"size": "x"}}, 400, "size"),
        ("PUT", "/subscriptions/99999999999999999999", {"tags": ["a"]}, 400, "key"),
        ("POST", "/match", b" " * (2 << 20), 413, "at most"),
    ],
)
def test_mistakes_are_problems_that_say_what_to_do(both, method, path, body, status, detail):
    service, _ = both
    client = Http(service)
    found, headers, problem = client.ask(method, path, body)
    client.close()
    assert (found, headers["content-type"]) == (status, "application/problem+json"), problem
    assert problem["status"] == status
    assert detail in problem["detail"]
    assert problem["kind"].endswith("Error")
    assert "Traceback" not in problem["detail"]


def test_a_fault_of_the_service_says_nothing_of_it(both, monkeypatch):
    service, client = both
    monkeypatch.setattr(type(service.index), "match_count", lambda *_, **__: 1 / 0)
    status, _, problem = client.ask("POST", "/count", {"tags": []})
    assert (status, problem["detail"]) == (500, "the service has failed; its log says why")


def test_tokens_and_roles():
    with served(USERS) as (service, client):
        for path in ("/healthz", "/readyz"):
            client.token = None
            assert client.ask("GET", path)[0] == 200
        status, headers, problem = client.ask("POST", "/match", {"tags": []})
        assert (status, problem["kind"]) == (401, "AccessError")
        assert headers["www-authenticate"] == "Bearer"
        assert client.ask("GET", "/nowhere")[0] == 401
        client.token = "token-read"
        assert client.ask("POST", "/match", {"tags": []})[0] == 200
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["a"]})[0] == 403
        assert client.ask("GET", "/calls")[0] == 403
        assert value(service, "tagmatch_refused_total", reason="role") == 2
        client.token = "token-admin"
        assert client.ask("GET", "/calls")[2]["users"]["user-admin"]["calls"] == 1
        assert client.ask("GET", "/info")[2]["role"] == "admin"
        service.drain()
        assert client.ask("GET", "/readyz")[0] == 503
        assert client.ask("GET", "/healthz")[0] == 200
        assert client.ask("POST", "/match", {"tags": []})[0] == 503


def test_keys_that_are_strings():
    with served(index={"key_type": "string"}) as (_, client):
        assert client.ask("PUT", "/subscriptions/a%2Fb%20%C3%A9", {"tags": ["cat"]})[0] == 200
        assert client.ask("POST", "/match", {"tags": ["cat"]})[2] == {"keys": ["a/b é"]}
        assert client.ask("GET", "/subscriptions/a%2Fb%20%C3%A9")[2]["key"] == "a/b é"
        assert client.ask("GET", "/subscriptions/%FF")[0] == 400
