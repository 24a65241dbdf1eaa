"""Calls over HTTP are answered as those of Python are, with the same rights and the same errors."""

import asyncio
import contextlib
import gzip
import http.client
import json
import math
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from support.service import USERS, config, value
from support.waiting import wait_until

from tagmatch import Circle, InvalidValueError, TagMatch, connect, only
from tagmatch.broker.config import User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.http import notifications
from tagmatch.broker.http.bodies import Answer
from tagmatch.broker.http.preconditions import Repeats
from tagmatch.broker.service import Service, serving
from tagmatch.records import records_after


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
        found = json.loads(data) if kind in ("application/json", "application/problem+json") and data else data
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, found

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


def test_data_is_plain_and_of_known_columns():
    types = {
        "size": "int64",
        "name": "string",
        "at": "timestamp",
        "day": "date",
        "price": "decimal(10, 2)",
        "new": "bool",
    }
    given = {
        "size": 3, "name": "a", "at": "2026-11-29T08:00:00.500000+00:00", "day": "2026-11-29", "new": True,
        "price": "9.50",
    }  # fmt: skip
    with served(index={"data": types}) as (service, client):
        assert client.ask("PUT", "/subscriptions/7", {"tags": ["cat"], "data": given})[0] == 200
        found = client.ask("GET", "/subscriptions/7")[2]
        assert found["data"] == given
        assert client.ask("GET", "/subscriptions")[2]["subscriptions"] == [found]
        asked, answer = {"tags": ["cat"], "columns": [*given]}, {"keys": [{"key": 7, **given}]}
        assert client.ask("POST", "/match", asked)[2] == answer
        assert client.ask("PUT", "/subscriptions/7", found)[2]["changes"]["removed"] == 0
        before = service.index.get(7)
        assert before.data["at"].year == 2026
        wrong = client.ask("PUT", "/subscriptions/7", {"tags": ["cat"], "data": {"nam": "b"}})
        assert (wrong[0], "is 'name' meant?" in wrong[2]["detail"]) == (400, True)
        assert service.index.get(7) == before


def test_nan_and_infinities_are_null_in_json_and_themselves_over_flight():
    numbers = [1.5, math.nan, math.inf, None]
    with served(index={"data": {"size": "float64"}}) as (service, client):
        service.index.put_many(pa.table({"key": range(4), "tags": [["a"]] * 4, "size": numbers}))
        service.index.consolidate()
        said = [{"key": key, "size": size} for key, size in enumerate([1.5, None, None, None])]
        assert client.ask("POST", "/match", {"tags": ["a"], "columns": ["size"]})[2] == {"keys": said}
        many = client.ask("POST", "/match_many?columns=size", [{"tags": ["a"]}])[2]
        assert many == [{"keys": [{"key": 0, "size": 1.5}, {"key": 1}, {"key": 2}, {"key": 3}]}]
        assert client.ask("GET", "/subscriptions/1")[2]["data"] == {"size": None}
        assert len(client.ask("GET", "/subscriptions")[2]["subscriptions"]) == 4
        with connect(service.url) as remote:
            assert repr(remote.get(1)) == repr(service.index.get(1))
            assert repr(remote.get(2).data) == "{'size': inf}"
            assert list(map(repr, remote.records.values())) == list(map(repr, service.index.records.values()))
            with pytest.raises(InvalidValueError, match="no form in JSON"):
                remote.explain(["a"], {"size": math.nan})


def test_changes_of_another_program_come_first(tmp_path):
    """No change has the status 409 and takes effect later; conditions are about what the other program has saved."""
    with TagMatch(tmp_path / "index", device="cpu", threads=1) as tm:
        tm.add_sets([["a"]] * 3, [1, 2, 3])
        tm.consolidate()

    def change(key: int) -> None:
        with TagMatch(tmp_path / "index", device="cpu", threads=1) as other:
            other.put(key, tags=["b"])
            other.consolidate()

    index = TagMatch(tmp_path / "index", device="cpu", threads=1)
    with index, serving(index, config()) as service, contextlib.closing(Http(service)) as client:
        tag = client.ask("GET", "/subscriptions/1")[1]["etag"]
        change(1)
        assert client.ask("DELETE", "/subscriptions/2")[2]["changes"]["removed"] == 1
        assert client.ask("POST", "/match", {"tags": ["b"]})[2] == {"keys": [1]}
        change(4)
        assert client.ask("POST", "/subscriptions", [{"key": 5, "tags": ["b"]}])[0] == 200
        change(3)
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["c"]}, If_Match=tag)[0] == 412
        change(6)
        assert client.ask("PUT", "/subscriptions/6", {"tags": ["c"]}, If_None_Match="*")[0] == 412
        change(7)
        assert client.ask("POST", "/reload")[2] == {"reloaded": True}
        change(8)
        with connect(service.url) as remote:
            remote.put(9, tags=["b"])
            remote.consolidate()
        assert sorted(client.ask("POST", "/match", {"tags": ["b"]})[2]["keys"]) == [1, 3, 4, 5, 6, 7, 8, 9]
        assert index.stats()["staged"] == 0


def test_the_best_keys_of_a_message(both):
    service, client = both
    for key, size in ((21, 1), (22, 3), (23, 2)):
        assert client.ask("PUT", f"/subscriptions/{key}", {"tags": ["best"], "data": {"size": size}})[0] == 200
    for message in ({"tags": ["best"]}, {"tags": ["best", "x"], "attributes": {"a": 2}, "location": [1, 2]}):
        for more in (
            {"limit": 2},
            {"limit": 2, "order_by": "size desc"},
            {"limit": 3, "order_by": "size"},
            {"limit": 2, "score": "size * -1"},
            {"limit": 3, "score": "size", "only": "size < 3"},
        ):
            status, _, found = client.ask("POST", "/match", {**message, **more})
            assert (status, found) == (200, client.ask("POST", "/match_many?" + urlencode(more), [message])[2][0])
    assert found == {"keys": [23, 21]}
    more = {"limit": 2, "order_by": "size desc", "columns": ["size"]}
    assert client.ask("POST", "/match", {"tags": ["best"], **more})[2] == {
        "keys": [{"key": 22, "size": 3}, {"key": 23, "size": 2}]
    }
    _, _, many = client.ask("POST", "/match_many?limit=1&order_by=size&columns=size", [{"tags": ["best"]}])
    assert many[0]["keys"] == [{"key": 21, "size": 1}]
    for more, what in (
        ({"order_by": "size"}, "limit"), ({"limit": 0, "order_by": "size"}, "limit"),
        ({"limit": 1, "order_by": "siz"}, "siz"), ({"limit": 1, "score": "size +"}, "score"),
        ({"limit": 1, "order_by": "size", "unique": True}, "without unique"),
        ({"limit": 1, "order_by": "size", "within": "circle(1, 2)"}, "within"),
        ({"limit": 1.5, "order_by": "size"}, "limit"),
    ):  # fmt: skip
        status, _, problem = client.ask("POST", "/match", {"tags": ["best"], **more})
        assert status == 400
        assert what in problem["detail"]
    assert client.ask("POST", "/delete", [{"key": key} for key in (21, 22, 23)])[2]["changes"]["removed"] == 3
    assert service.index.match(["best"]) == []


def test_a_body_of_one_object_may_be_compressed(both):
    service, _ = both
    with contextlib.closing(Http(service)) as client:
        data = b'{"tags": ["a", "a"]}'
        for codec, packed in (("gzip", gzip.compress(data)), ("zstd", pa.compress(data, "zstd", asbytes=True))):
            found = client.ask("POST", "/match", packed, Content_Encoding=codec)
            assert found[::2] == (200, {"keys": []}), codec
            for odd in (packed[:-5], b"hello", packed + b"x"):
                status, _, problem = client.ask("POST", "/match", odd, Content_Encoding=codec)
                assert status == 400 or (codec, odd) == ("gzip", packed + b"x")
                assert "no " + codec in str(problem) or status == 200 or "JSON" in str(problem)
        assert client.ask("POST", "/match", gzip.compress(b" " * (9 << 20)), Content_Encoding="gzip")[0] == 413
        assert client.ask("POST", "/match", data, Content_Encoding="br")[0] == 415
        assert client.ask("POST", "/match", data, Content_Encoding="identity")[0] == 200
        # What `curl -d` says that it sends
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        assert client.ask("POST", "/match_many", [{"tags": []}], **form)[::2] == (200, [{"keys": []}])


def test_many_are_deleted_removed_and_moved(both):
    service, client = both
    rows = [{"key": key, "tags": tags} for key, tags in ((31, ["p"]), (32, ["p", "q"]), (33, ["q"]))]
    client.ask("POST", "/subscriptions", [*rows, {"key": 34, "area": "near(1000)", "tags": ["p"]}])
    before = len(service.index)
    found = client.ask("POST", "/remove", rows[:1])[2]
    assert (found["rows"], found["changes"]["removed"]) == (1, 1)
    keys = pa.table({"key": pa.array([32], pa.uint64())})
    for body, kind in ((b'{"key": 33}\n\n{"key": 99}\n', NDJSON), (stream(keys, 1), ARROW)):
        assert client.ask("POST", "/delete", body, Content_Type=kind)[2]["changes"]["removed"] == 1
    assert len(service.index) == before - 3
    assert client.ask("POST", "/delete?missing=error", [{"key": 33}])[0] == 404
    assert client.ask("POST", "/delete?commit=false", [])[2]["committed"] is False
    moved = client.ask("POST", "/move", [{"client": 34, "lon": 9.2, "lat": 45}])
    assert (moved[0], moved[2]["rows"]) == (200, 1)
    assert client.ask("POST", "/match", {"tags": ["p"], "location": [9.2, 45.001]})[2] == {"keys": [34]}
    for path, rows, detail in (
        ("/delete", [1], "row 0 must be an object with key"),
        ("/delete", [{"key": 1, "tags": []}], "row 0 must be an object with key"),
        ("/delete", [{"key": 1}, {"key": "x"}], "key of row 1 must be of the type uint64, not 'x'"),
        ("/delete", [{"key": 2**64}], "key of row 0"),
        ("/delete", [{"key": -1}], "key of row 0"),
        ("/delete", [{"key": True}], "key of row 0"),
        ("/delete", [{"key": None}], "key of row 0"),
        ("/delete", {"key": 1}, "must be a list"),
        ("/delete?missing=x", [], "missing"),
        ("/move", [{"client": 1, "lon": 9}], "client and lon and lat"),
        ("/move", [{"client": 1, "lon": "9", "lat": 1}], "lon of row 0 must be of the type double"),
        ("/move", [{"client": 1, "lon": 999, "lat": 1}], "lon"),
        ("/remove", [{"key": 1, "tagz": []}], "tagz"),
    ):
        status, _, problem = client.ask("POST", path, rows)
        assert status == 400, problem
        assert detail in problem["detail"]


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
        ("POST", "/match", {"tags": [], "price": 5}, 400, 'as in {"attributes": {"price": …}}'),
        ("POST", "/count?price=5", {"tags": []}, 400, 'as in {"attributes": {"price": …}}'),
        ("POST", "/match", {"tags": "a"}, 400, "tags must be a list or null, not 'a'"),
        ("POST", "/match", {"within": 5}, 400, "within must be an object or a string or null, not '5'"),
        ("POST", "/match", b"null", 400, "must be a JSON object, not null"),
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


@pytest.mark.parametrize(
    "more", [{"only": "size > 1"}, {"only": "size > 1", "columns": ["size"]}, {}, {"unique": True}]
)
def test_others_are_answered_while_keys_are_laid_out_for_one(monkeypatch, more):
    """For a new `only`, or a user with a filter, whose first message asks for it."""
    few, began, let = User("few", token_sha256("few"), "read", filter="size > 0"), threading.Event(), threading.Event()
    lay_out = only.chosen_of

    def slow(*given, **options):
        began.set()
        assert let.wait(60)
        return lay_out(*given, **options)

    monkeypatch.setattr(only, "chosen_of", slow)
    with served((*USERS, few)) as (service, client), ThreadPoolExecutor(1) as thread:
        service.index.put(1, ["cat"], data={"size": 2})
        service.index.consolidate()
        with contextlib.closing(Http(service, "few" if "only" not in more else "token-read")) as waiting:
            asked = thread.submit(waiting.ask, "POST", "/match", {"tags": ["cat"], **more})
            assert began.wait(30)
            client.connection.timeout = 20
            try:
                assert client.ask("POST", "/match", {"tags": ["cat"]})[2] == {"keys": [1]}
            finally:
                let.set()
            keys = [{"key": 1, "size": 2}] if "columns" in more else [1]
            assert asked.result(60)[2] == {"keys": keys}


def test_a_key_that_looks_like_the_place_of_a_key_is_one_of_many():
    with served(index={"key_type": "string"}) as (service, client):
        service.index.put("", ["cat"])
        assert client.ask("PUT", "/subscriptions/%7Bkey%7D", {"tags": ["dog"]})[0] == 200
        assert client.ask("GET", "/subscriptions/%7Bkey%7D")[2]["key"] == "{key}"
        assert client.ask("DELETE", "/subscriptions/{key}")[0] == 200
        assert client.ask("GET", "/subscriptions/%7Bkey%7D")[0] == 404
        assert client.ask("POST", "/match", {"tags": ["cat", "dog"]})[2] == {"keys": [""]}


# -- many --------------------------------------------------------------------------------------------------------------

NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"


def packed_by(codec: str, data: bytes) -> bytes:
    return gzip.compress(data) if codec == "gzip" else pa.compress(data, "zstd", asbytes=True)


def unpacked_by(codec: str, data: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(data), codec).read()


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def stream(table: pa.Table, rows: int = 2) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, rows)
    return sink.getvalue().to_pybytes()


ROWS = [{"key": key, "tags": [f"t{key % 7}"], "where": f"price < {key}", "size": key} for key in range(1, 50)]
MESSAGES: list[dict[str, Any]] = [
    {"tags": [f"t{number % 7}", "x"], "attributes": {"price": float(number)}} for number in range(40)
]


@pytest.fixture(scope="module")
def many():
    with served() as (service, client):
        assert client.ask("POST", "/subscriptions", lines(ROWS), Content_Type=NDJSON)[2]["changes"]["added"] == 49
        yield service, client


def test_many_messages_have_the_answers_of_python_in_every_form(many):
    service, client = many
    right = [sorted(service.index.match(each["tags"], each["attributes"])) for each in MESSAGES]
    assert sum(map(len, right)) > 50
    for codec in (None, "gzip", "zstd"):
        packed = (lambda data: data) if codec is None else partial(packed_by, codec)
        headers = {} if codec is None else {"Content_Encoding": codec, "Accept_Encoding": codec}
        status, found, data = client.ask("POST", "/match_many", packed(lines(MESSAGES)), Content_Type=NDJSON, **headers)
        assert (status, found.get("content-encoding")) == (200, codec)
        data = data if codec is None else unpacked_by(codec, data)
        assert [sorted(json.loads(line)["keys"]) for line in data.splitlines()] == right
    _, _, found = client.ask("POST", "/match_many", MESSAGES)
    assert [sorted(each["keys"]) for each in found] == right
    table = pa.table(
        {"tags": [each["tags"] for each in MESSAGES], "price": [each["attributes"]["price"] for each in MESSAGES]}
    )
    _, _, data = client.ask("POST", "/match_many?unique=true", stream(table), Content_Type=ARROW)
    assert pa.ipc.open_stream(data).read_all()["keys"].to_pylist() == right
    _, _, found = client.ask(
        "POST", "/match_many?columns=size", stream(table), Content_Type=ARROW, Accept="application/json"
    )
    assert [sorted(each["size"] for each in row["keys"]) for row in found] == right
    _, _, found = client.ask("POST", "/match_many?limit=2&order_by=size", MESSAGES)
    assert [len(each["keys"]) for each in found] == [min(len(keys), 2) for keys in right]
    for body, kind in ((b"", NDJSON), (b"[]", "application/json"), (stream(table[:0]), ARROW)):
        assert client.ask("POST", "/match_many", body, Content_Type=kind)[0] == (200 if kind == ARROW else 400)


def test_ids_come_back(many):
    _, client = many
    for ids in ([1, None, 2], ["a", None, "b"]):
        given = [{"id": each, "tags": []} for each in ids]
        assert [each.get("id") for each in client.ask("POST", "/match_many", given)[2]] == ids


def test_answers_come_while_messages_are_still_sent(many):
    service, _ = many
    with socket.create_connection(("127.0.0.1", service.http.port)) as raw, raw.makefile("rb") as answers:
        raw.sendall(b"POST /match_many HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n")
        raw.sendall(f"Content-Type: {NDJSON}\r\n\r\n".encode())
        for number in range(3):
            data = lines([{"tags": ["t1", str(number)], "attributes": {"price": 0}}])
            raw.sendall(b"%x\r\n%s\r\n" % (len(data), data))
            while (line := answers.readline()) and not line.startswith(b"{"):
                pass
            assert len(json.loads(line)["keys"]) == 7
        data = b'{"tags": [7]}\n'
        raw.sendall(b"%x\r\n%s\r\n" % (len(data), data))
        rest = answers.read()
        assert b'"detail": "the body: line 4' in rest
        assert not rest.endswith(b"0\r\n\r\n")


def test_what_a_declaration_refuses_has_its_line():
    wrong = [
        ("/match_many", {"attributes": {"town": 1}}, "attributes"),
        ("/subscriptions", {"key": 2, "where": "exists(town)"}, "where"),
    ]
    with served(index={"attributes": {"price": "int64"}, "strict": True}) as (_, client):
        for path, row, column in wrong:
            status, _, told = client.ask("POST", path, lines([row]), Content_Type=NDJSON)
            assert status == 400
            assert told["detail"].startswith(f"the body: line 1: column '{column}': row 0: ")


def test_bodies_that_cannot_be_used(many):
    _, client = many
    for path, body, kind, detail in [
        ("/match_many", b'{"tags": 1}\n', NDJSON, "column 'tags'"),
        ("/match_many", b"{}", "application/json", "must be a list"),
        ("/match_many", b"x", "text/csv", "must be application/json"),
        ("/match_many", b"ARROW1\0\0", ARROW, "no stream of Arrow IPC"),
        ("/match_many", stream(pa.table({"tags": [["a"]]}))[:-30], ARROW, "ends"),
        ("/subscriptions", [{"key": 1, "tagss": ["a"]}], "application/json", "'tagss'"),
        (
            "/subscriptions",
            [{"key": 1, "tags": ["a"], "data": {}}],
            "application/json",
            "each column of data as a field",
        ),
        (
            "/subscriptions",
            [{"key": 1, "tags": [], "alternatives": []}],
            "application/json",
            "each alternative as a row",
        ),
        ("/subscriptions", [{"key": -1, "tags": ["a"]}], "application/json", "key"),
        ("/subscriptions", [{"tags": ["a"]}], "application/json", "key"),
        ("/subscriptions", [{"key": 1, "tags": ["a"], "name": 5}], "application/json", "'name' takes values of string"),
        ("/subscriptions?how=1", [], "application/json", "no option 'how'"),
    ]:
        status, _, problem = client.ask("POST", path, body, Content_Type=kind)
        assert 400 <= status < 500, problem
        assert detail in problem["detail"]
    with pytest.raises(http.client.IncompleteRead) as cut:  # the first has been answered
        client.ask("POST", "/match_many", b'{"tags": []}\n' + b"\n" * (1 << 20) + b"{", Content_Type=NDJSON)
    answer, error = map(json.loads, cut.value.partial.splitlines())
    assert answer == {"keys": []}
    assert error["error"]["status"] == 400
    client.close()
    for codec in ("gzip", "zstd"):
        bomb = packed_by(codec, b" " * (100 << 20))
        assert client.ask("POST", "/match_many", bomb, Content_Encoding=codec, Content_Type=NDJSON)[0] == 413
        assert client.ask("POST", "/match_many", b"no", Content_Encoding=codec)[0] == 400
    assert client.ask("POST", "/match_many", b"", Content_Encoding="br")[0] == 415


def test_pages(many):
    _, client = many
    found, after = [], ""
    while after is not None:
        _, _, page = client.ask("GET", f"/subscriptions?limit=10{after and f'&after={after}'}")
        assert len(page["subscriptions"]) <= 10
        found += page["subscriptions"]
        after = page["next"]
    assert [each["key"] for each in found] == list(range(1, 50))
    assert found[6] == client.ask("GET", "/subscriptions/7")[2]
    tagged = client.ask("GET", "/subscriptions?tag=t3")[2]["subscriptions"]
    assert [each["key"] for each in tagged] == [key for key in range(1, 50) if key % 7 == 3]
    assert client.ask("GET", "/subscriptions?text=PRICE%20%3C%2041")[2]["subscriptions"][0]["key"] == 41
    assert client.ask("GET", "/subscriptions?limit=0")[0] == client.ask("GET", "/subscriptions?after=x")[0] == 400


@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_pages_of_several_segments_list_each_key_once_in_order(key_type, monkeypatch):
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    numbers = random.Random(7)
    with TagMatch(threads=1, device="cpu", key_type=key_type) as index:
        for count in (1000, 100, 10):
            keys = [numbers.randrange(30_000) * 2**49 for _ in range(count)]
            named = [f"é{key}" if key % 3 else f"{key}" for key in keys] if key_type == "string" else keys
            column = pa.array(named, pa.string() if key_type == "string" else pa.uint64())
            index.put_many(pa.table({"key": column, "tags": [[f"t{key}"] for key in keys]}))
            for key in named[::4]:
                index.delete(key)
            index.consolidate()
        every = sorted(index.records, key=lambda key: key.encode() if isinstance(key, str) else key)
        assert len(index.snapshot.segments) > 1
        for at_once in (1, 3, 1000):
            assert [each.key for each in records_after(index.snapshot, None, at_once)] == every
        for after in (every[0], every[20], every[-1]):
            found = [each.key for each in records_after(index.snapshot, after, 5)]
            assert found == every[every.index(after) + 1 :]


@pytest.mark.parametrize("keys", ["integers", "strings"])
def test_subscriptions_are_found_by_tag_and_by_the_beginning_of_their_keys(keys):
    """As a look at every record finds them; also after sets were removed, and in several segments."""
    numbers = random.Random(7)
    names = [f"{numbers.choice(['a', 'ab', 'é', 'b'])}{n}" if keys == "strings" else n for n in range(120)]
    with served(index={"key_type": keys[:-1]}) as (service, client):
        index = service.index
        for _ in range(4):
            for key in numbers.sample(names, 40):
                where = numbers.choice([None, "p = 1 or q = 2"])
                index.put(key, numbers.sample("xyz", numbers.randrange(3)), where=where)
            index.consolidate()
        index.add_set(["x", "only"], names[0])
        index.consolidate()
        index.delete_many(numbers.sample(sorted(index.records), 20))
        index.consolidate()
        every = {key: index.get(key) for key in index.records}
        order = sorted(every, key=lambda key: key.encode() if isinstance(key, str) else key)
        for tag in (None, "x", "z", "only", "none", "é"):
            for prefix in (None, "a", "ab", "ab1", "é", "c", "") if keys == "strings" else (None,):
                wanted = [
                    key
                    for key in order
                    if (tag is None or any(tag in each.tags for each in every[key].alternatives))
                    and (prefix is None or key.startswith(prefix))
                ]
                for limit in (3, 1000):
                    found, after = [], None
                    while True:
                        given = {"tag": tag, "prefix": prefix, "after": after, "limit": limit}
                        query = urlencode({name: each for name, each in given.items() if each is not None})
                        page = client.ask("GET", f"/subscriptions?{query}")[2]
                        found += [each["key"] for each in page["subscriptions"]]
                        if (after := page["next"]) is None:
                            break
                    assert found == wanted, (tag, prefix, limit)
        status, _, problem = client.ask("GET", "/subscriptions?prefix=1")
        assert (status == 200) == (keys == "strings") or "keys that are strings" in problem["detail"]


# -- conditions, repeats, deadlines ------------------------------------------------------------------------------------


def test_a_subscription_changes_only_if_it_is_as_the_client_knows_it():
    with served(USERS) as (service, client):
        once = {"If_None_Match": "*"}
        status, headers, _ = client.ask("PUT", "/subscriptions/1", {"tags": ["a"]}, **once)
        assert status == 200
        first = headers["etag"]
        status, headers, problem = client.ask("PUT", "/subscriptions/1", {"tags": ["b"]}, **once)
        assert (status, headers["etag"]) == (412, first), problem
        assert client.ask("GET", "/subscriptions/1", If_None_Match=first)[::2] == (304, b"")
        status, headers, _ = client.ask("PUT", "/subscriptions/1", {"tags": ["b"]}, If_Match=first)
        assert status == 200
        second = headers["etag"]
        assert second != first
        for method in ("PUT", "DELETE"):
            body = {"tags": ["c"]} if method == "PUT" else None
            assert client.ask(method, "/subscriptions/1", body, If_Match=first)[0] == 412
            assert client.ask(method, "/subscriptions/2", body, If_Match="*")[0] == 412
        assert client.ask("GET", "/subscriptions/1")[1]["etag"] == second
        assert service.index.stats()["staged"] == 0
        service.index.put(1, ["d"])  # a staged record counts, too
        assert client.ask("DELETE", "/subscriptions/1", If_Match=second)[0] == 409
        service.index.consolidate()
        assert client.ask("DELETE", "/subscriptions/1", If_Match="*")[0] == 200
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["a"]}, If_None_Match=second)[0] == 400


def test_of_many_at_once_one_changes_it():
    with served() as (service, client):
        _, headers, _ = client.ask("PUT", "/subscriptions/1", {"tags": ["a"]})

        def change(number: int) -> int:
            with contextlib.closing(Http(service)) as own:
                return own.ask("PUT", "/subscriptions/1", {"tags": [str(number)]}, If_Match=headers["etag"])[0]

        with ThreadPoolExecutor(6) as threads:
            found = Counter(threads.map(change, range(12)))
        assert found[200] == 1
        assert found.keys() <= {200, 409, 412}


def test_a_change_that_is_sent_again_is_made_once():
    with served(USERS) as (_, client):
        sent = [client.ask("PUT", "/subscriptions/1", {"tags": ["a"]}, Idempotency_Key="x") for _ in range(2)]
        assert sent[0][2] == sent[1][2]
        assert [each[1].get("idempotent-replayed") for each in sent] == [None, "true"]
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["b"]}, Idempotency_Key="x")[0] == 422
        client.token = "token-write"  # keys are those of one user
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["b"]}, Idempotency_Key="x")[0] == 200
        assert client.ask("PUT", "/subscriptions/1", {"tags": 7}, Idempotency_Key="y")[0] == 400
        assert client.ask("PUT", "/subscriptions/1", {"tags": ["7"]}, Idempotency_Key="y")[0] == 200
        rows = lines([{"key": 5, "tags": ["e"]}])
        many = [client.ask("POST", "/subscriptions", rows, Content_Type=NDJSON, Idempotency_Key="z") for _ in range(2)]
        assert many[0][2] == many[1][2]
        assert many[1][1]["idempotent-replayed"] == "true"
        others = lines([{"key": 5, "tags": ["f"]}])  # as long as the rows before
        assert client.ask("POST", "/subscriptions", others, Content_Type=NDJSON, Idempotency_Key="z")[0] == 422
        assert client.ask("GET", "/subscriptions/5")[2]["alternatives"][0]["tags"] == ["e"]
        assert client.ask("DELETE", "/subscriptions/5", Idempotency_Key="é" * 9)[0] == 400


def test_a_change_goes_on_after_its_time_and_is_made_once(monkeypatch):
    """Its key is known while it goes on, and its answer after that; so it is if its client has gone."""
    going, made = threading.Event(), []
    publish = notifications._published

    def slow(call, rows, channel):
        made.append(len(rows))
        assert going.wait(60)
        return publish(call, rows, channel)

    monkeypatch.setattr(notifications, "_published", slow)
    with served(USERS) as (_, client):
        ask = partial(client.ask, "POST", "/publish", [{"tags": ["a"]}], Idempotency_Key="x")
        assert ask(Request_Timeout="0.1")[0] == 504
        assert ask()[0] == 409
        going.set()
        wait_until(lambda: ask()[0] == 200)
        assert ask()[1]["idempotent-replayed"] == "true"
    assert made == [1]


def test_answers_that_are_kept_are_bounded():
    repeats = Repeats()
    for number in range(10_000):
        user = f"u{number % 50}"
        assert repeats.begin(user, str(number), b"") is None
        repeats.end(user, str(number), b"", Answer(b"{}"))
    kept = [len(each) for each in repeats._of_users.values()]
    assert max(kept) <= 256
    assert sum(kept) == repeats._count <= 4096


def test_a_deadline_is_kept(monkeypatch):
    with served() as (service, client):
        for text in ("0", "-1", "nan", "soon", "1e9"):
            status, _, problem = client.ask("POST", "/count", {"tags": []}, Request_Timeout=text)
            assert (status, "Request-Timeout" in problem["detail"]) == (400, True)
        for path in ("/count", "/match"):
            assert client.ask("POST", path, {"tags": []}, Request_Timeout="5.5")[0] == 200
            assert client.ask("POST", path, {"tags": []}, Request_Timeout="1e-9")[0] == 504
        let = threading.Event()
        monkeypatch.setattr(type(service.index), "match_count", lambda *_, **__: let.wait(30))
        status, _, problem = client.ask("POST", "/count", {"tags": []}, Request_Timeout="0.05")
        let.set()
        assert (status, problem["kind"]) == (504, "DeadlineMissed")


def test_a_service_is_begun_where_a_loop_runs():
    """As in a notebook, or in a program that is asynchronous itself."""

    async def begin() -> tuple[int, Any]:
        with served() as (_, client):
            return client.ask("GET", "/readyz")[::2]

    assert asyncio.run(begin()) == (200, {"status": "ready"})


def test_a_list_has_answers_or_an_error(both):
    """Not some answers, and then the end of the connection."""
    _, client = both
    rows = [{"attributes": {}}, {}]
    status, _, found = client.ask("POST", "/match_many", rows, Content_Type="application/json")
    assert status == 400
    assert "line 2 (row 1) has no column 'tags' or 'attributes'" in found["detail"]
