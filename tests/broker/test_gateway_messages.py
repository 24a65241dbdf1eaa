"""What comes through a gateway is what it says, as a table and as requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import TagMatch
from tagmatch.broker.gateways.incoming import Incoming, Row, row_of, tables_of
from tagmatch.broker.gateways.options import MqttOptions, NatsOptions
from tagmatch.broker.gateways.requests import Requests
from tagmatch.broker.gateways.topics import MQTT, NATS
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError

scalars = st.sampled_from([0, 1, -7, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -7.0, True, False, "", "a", "9"])
values = scalars | st.lists(st.integers(-3, 3), max_size=3) | st.lists(st.sampled_from(["a", "b"]), max_size=2)
attribute_sets = st.dictionaries(st.sampled_from(["p", "q", "r"]), values, max_size=3)
WHERE = [
    "p = 1", "p = 0.5", "p < 2", "p >= 9007199254740993", 'p = "a"', 'p prefix ""', "p = true", "exists(q)",
    "not exists(p)", 'q = "b" or r = -7', "q > 9223372036854775806",
]  # fmt: skip


@pytest.fixture(scope="module")
def tm() -> Iterator[TagMatch[int]]:
    with TagMatch() as tm:
        for key, where in enumerate(WHERE):
            tm.add_set([], key, where=where)
        tm.consolidate()
        yield tm


@given(rows=st.lists(attribute_sets, max_size=12))
def test_tables_match_as_each_message_does(tm: TagMatch[int], rows: list[dict[str, Any]]) -> None:
    messages = [Row(Incoming([], b"%d" % number), [], each) for number, each in enumerate(rows)]
    found = {}
    for table, members in tables_of(messages):
        assert table["payload"].to_pylist() == [row.came.payload for row in members]
        rest = table.drop_columns(["id", "payload", "expires"])
        for row, keys in zip(members, tm.match_many(rest, unique=True).to_pylist(), strict=True):
            found[row.came.payload] = set(keys)
    assert found == {row.came.payload: tm.match_unique([], row.attributes) for row in messages}


def test_values_of_any_types_share_a_table(tm: TagMatch[int]) -> None:
    attributes = [{"p": each} for each in (2**53 + 1, 0.5, "a", True, ["Rome", 7, None], [])] + [{"tags": 1, "id": 2}]
    rows = [Row(Incoming([], b""), ["t"], each) for each in attributes]
    ((table, members),) = tables_of(rows)
    assert members == rows
    found = tm.match_many(table.drop_columns(["id", "payload", "expires"]), unique=True).to_pylist()
    assert [set(keys) for keys in found] == [tm.match_unique(["t"], each) for each in attributes]


def test_tables_have_as_many_rows_and_bytes_as_they_may() -> None:
    rows = [Row(Incoming([], b"x" * size), []) for size in (10, 10, 10, 5_000, 10)]
    assert [len(members) for _, members in tables_of(rows, 2)] == [2, 2, 1]
    assert [len(members) for _, members in tables_of(rows, 9, 1_000)] == [3, 1, 1]
    assert [len(members) for _, members in tables_of([], 9)] == []


def test_properties_are_read() -> None:
    properties = [
        ("tag", "a"),
        ("tag", "b c"),
        ("tags", '["d", "é"]'),
        ("attribute:price", "9.50"),
        ("attribute-city", "Rome"),
        ("attribute:city", '"9"'),
        ("attribute:list", "[1, 2]"),
        ("attribute:none", ""),
        ("lon", "9.2"),
        ("lat", "45.5"),
        ("trace", "ignored"),
        ("Content-Type", "ignored"),
        ("attribute:Tag", "x"),
        ("attribute:id", "7"),
        ("attribute:location", "here"),
    ]
    row = row_of(Incoming(properties, b"\xff"), "properties")
    assert row.tags == ["a", "b c", "d", "é"]
    own = {"Tag": "x", "id": 7, "location": "here"}
    assert row.attributes == {"price": 9.5, "city": ["Rome", "9"], "list": [1, 2], **own}
    [(table, _)] = tables_of([row])
    with TagMatch() as tm:
        tm.add_set(["a"], 1, where='Tag = "x" and id = 7 and location = "here"')
        tm.consolidate()
        assert tm.match_many(table.drop_columns(["id", "payload", "expires"])).to_pylist() == [[1]]
    assert row.location == (9.2, 45.5)
    payload = json.dumps({"tags": ["x"], "attributes": {"n": 1, "b": None}, "location": [1, 2]}).encode()
    row = row_of(Incoming([("tag", "a")], payload), "json")
    assert (row.tags, row.attributes, row.location) == (["a", "x"], {"n": 1}, (1.0, 2.0))


@pytest.mark.parametrize(
    ("properties", "payload"),
    [
        ([("tags", "a")], None),
        ([("tags", '"a"')], None),
        ([("tags", "[7]")], None),
        ([("lon", "1")], None),
        ([("lon", "x"), ("lat", "1")], None),
        ([("lon", "1"), ("lat", "91")], None),
        ([("lon", "nan"), ("lat", "1")], None),
        ([("attribute:tags", "1")], None),
        ([("Tag", "a")], None),
        ([("tgas", '["a"]')], None),
        ([("Attribute:price", "1")], None),
        ([("attributes-price", "1")], None),
        ([("attribute_price", "1")], None),
        ([("Channel", "a")], None),
        ([("attribute:", "1")], None),
        ([("attribute:a", "[1")], None),
        ([("attribute:a", "[[1]]")], None),
        ([("attribute:a", "[" * 2_000)], None),
        ([("attribute:a", "[" * 2_000 + "]" * 2_000)], None),
        ([("attribute:a", "9" * 5_000)], None),
        ([("attribute:a", str(2**64))], None),
        ([("attribute:a", '"\\ud800"')], None),
        ([("attribute:\udcff", "1")], None),
        ([("tag", "a\ud800")], None),
        ([], b"{"),
        ([], b"[]"),
        ([], b"[" * 100_000),
        ([], b'{"price": 1}'),
        ([], b'{"tag": ["a"]}'),
        ([], b'{"attributes": [1]}'),
        ([], b'{"attributes": {"a": {"b": 1}}}'),
        ([], b'{"attributes": {"a": 99999999999999999999}}'),
        ([], b'{"location": 7}'),
        ([], b'{"tags": "a"}'),
    ],
)
def test_wrong_messages_are_refused(properties: list[tuple[str, str]], payload: bytes | None) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError)):
        row_of(Incoming(properties, payload or b""), "properties" if payload is None else "json")


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_levels_of_topics_differ_as_keys_do(one: str, other: str) -> None:
    for naming in (MQTT, NATS):
        levels = [naming.level(key) for key in (one, other)]
        assert (levels[0] == levels[1]) == (one == other)
        assert all(naming.is_usable(level, wildcards=False) for level in levels)
        assert [unquote(level) for level in levels if level != "%"] == [key for key in (one, other) if key]


# -- requests ----------------------------------------------------------------------------------------------------------


def answer(requests: Requests, **request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(requests.answer(json.dumps(request).encode()))
    return found


def test_requests_change_the_index() -> None:
    with TagMatch() as tm:
        requests = Requests(tm, True, 0.01)
        requests.start()
        assert answer(requests, action="subscribe", tags=["fr"], key=7) == {"ok": True, "staged": 1}
        assert answer(requests, action="subscribe", tags=["fr"], key=8, where="price < 5") == {"ok": True, "staged": 1}
        assert answer(requests, action="subscribe", tags=["it"], key=9) == {"ok": True, "staged": 1}
        assert answer(requests, action="unsubscribe", tags=["it"], key=9, missing="error") == {"ok": True, "staged": 1}
        requests.stop()
        assert tm.match_unique(["fr", "it"], {"price": 4}) == {7, 8}
        counts = requests.stats()
        assert counts["requests"] == 4
        assert counts["consolidations"] >= 1


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"action": "subscribe", "tags": ["a"]}',
        b'{"action": "drop", "tags": ["a"], "key": 1}',
        b'{"action": "subscribe", "tags": "a", "key": 1}',
        b'{"action": "subscribe", "tags": [1], "key": 1}',
        b'{"action": "subscribe", "tags": ["a"], "key": -1}',
        b'{"action": "subscribe", "tags": ["a"], "key": "a"}',
        b'{"action": "subscribe", "tags": ["a"], "key": 1, "where": "price <"}',
        b'{"action": "subscribe", "tags": ["a"], "key": 1, "where": 7}',
        b'{"action": "subscribe", "tags": ["a"], "key": 1, "expires": 7}',
        b" " * (1 << 20) + b"{}",
    ],
)
def test_wrong_requests_change_nothing(request_: bytes) -> None:
    with TagMatch() as tm:
        requests = Requests(tm, True, 60)
        found = json.loads(requests.answer(request_))
        assert found["ok"] is False
        assert found["error"]
        assert tm.stats()["staged"] == 0
        assert requests.stats()["requests_refused"] == 1


def test_requests_need_the_right_to_write() -> None:
    with TagMatch() as tm:
        requests = Requests(tm, False, 60)
        assert "write = true" in answer(requests, action="subscribe", tags=["a"], key=1)["error"]
        assert tm.stats()["staged"] == 0


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MqttOptions, NatsOptions])
@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 0},
        {"port": 65_536},
        {"host": 7},
        {"messages": ""},
        {"form": "xml"},
        {"guarantee": "exactly_once"},
        {"when_full": "disconnect"},
        {"max_waiting": 0},
        {"batch_messages": 0},
        {"retry_first": 0},
        {"consolidate_interval": -1},
        {"password_file": "x"},
        {"tls_ca": "x"},
    ],
)
def test_options_of_gateways_are_checked(kind: Any, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises((InvalidTypeError, InvalidValueError)) as error:
        kind(**{"messages": "in", **wrong})
    if name not in ("password_file", "tls_ca"):
        assert str(error.value).startswith(name)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (MqttOptions, {"messages": "a/#/b"}),
        (MqttOptions, {"messages": "a+/b"}),
        (MqttOptions, {"notifications": "out/+"}),
        (MqttOptions, {"session_expiry": -1}),
        (MqttOptions, {"keepalive": 0}),
        (MqttOptions, {"client_id": ""}),
        (NatsOptions, {"messages": "a..b"}),
        (NatsOptions, {"messages": "a b"}),
        (NatsOptions, {"control": "a.>.b"}),
        (NatsOptions, {"notifications": "out.*"}),
        (NatsOptions, {"queue": "a b"}),
        (NatsOptions, {"flush_timeout": -1}),
    ],
)
def test_topics_and_subjects_are_checked(kind: Any, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidValueError, match=f"^{name}"):
        kind(**{"messages": "in", **wrong})


def test_a_password_comes_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "password").write_text("secret\n")
    options = MqttOptions(messages="in", username="ana", password_file=str(tmp_path / "password"))
    assert options.password == "secret"
    assert "secret" not in repr(options)
    with pytest.raises(TagMatchError, match="cannot be read"):
        _ = MqttOptions(messages="in", username="ana", password_file=str(tmp_path / "none")).password


def test_what_expires_does_so_after_what_is_left_of_its_time() -> None:
    rows = [Row(Incoming([], b"", until=until), []) for until in (None, 1_500, 900)]
    ((table, _),) = tables_of(rows, steady=1_000)
    assert table["expires"].cast("int64").to_pylist() == [None, 500, 0]
