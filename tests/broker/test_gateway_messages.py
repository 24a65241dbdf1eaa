"""What comes through a gateway is what it says, and is done with when its notifications are sent."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import index_of

from tagmatch import TagMatch
from tagmatch.broker import gateway
from tagmatch.broker.config import MQTT, NATS, MqttOptions
from tagmatch.broker.gateway import HandingOver
from tagmatch.broker.hub import Hub, Tallies
from tagmatch.broker.incoming import GatewayMessage, Requests, row_of, table_in
from tagmatch.broker.sessions import Sessions
from tagmatch.model.arrow import from_strings
from tagmatch.model.clock import steady_us
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.messages import Queries
from tagmatch.model.input.values import packed

scalars = st.sampled_from([0, 1, -7, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -7.0, True, False, "", "a", "9"])
values = scalars | st.lists(st.sampled_from([-3, 0, 3, "a", "b", None]), max_size=3)
attribute_sets = st.dictionaries(st.sampled_from(["p", "q", "r", "id"]), values, max_size=3)
WHERE = [
    "p = 1", "p = 0.5", "p < 2", "p >= 9007199254740993", 'p = "a"', 'p prefix ""', "p = true", "exists(q)",
    "not exists(p)", 'q = "b" or r = -7', "q > 9223372036854775806",
]  # fmt: skip


@pytest.fixture(scope="module")
def tm():
    with index_of([[]] * len(WHERE), range(len(WHERE)), where=WHERE) as tm:
        yield tm


@given(rows=st.lists(attribute_sets, max_size=12))
def test_tables_match_as_each_message_does(tm, rows):
    payloads = [json.dumps({"tags": ["t"], "attributes": each}).encode() for each in rows]
    table = table_in([row_of(GatewayMessage([], payload), "json") for payload in payloads])
    assert table["payload"].to_pylist() == payloads
    found = tm.match_many(table.drop_columns(["id", "payload", "expires"]), unique=True).to_pylist()
    assert [set(keys) for keys in found] == [tm.match_unique([], each) for each in rows]


def test_parts_have_as_many_messages_and_bytes_as_they_may(monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(gateway, "PART_BYTES", 1_000)
    with hub_of(RuntimeError()) as hub:
        publish = hub.publish
        monkeypatch.setattr(hub, "publish", lambda table, **more: sizes.append(len(table)) or publish(table, **more))
        handed_over(hub, *"abc", "d" * 5_000, *"efgh", batch_messages=3)
    assert sizes == [3, 1, 3, 1]


def test_what_expires_does_so_after_what_is_left_of_its_time():
    rows = [row_of(GatewayMessage([], b"", until=until), "properties") for until in (None, 1_500, 900)]
    table = table_in(rows, steady=1_000)
    assert table["expires"].cast("int64").to_pylist() == [None, 500, 0]


def test_properties_are_read():
    properties = [
        ("tag", "a"), ("tag", "b c"), ("tags", '["d", "é"]'), ("attribute:price", "9.50"), ("attribute-city", "Rome"),
        ("attribute:city", '"9"'), ("attribute:list", "[1, 2]"), ("attribute:none", ""), ("lon", "9.2"),
        ("lat", "45.5"), ("trace", "ignored"), ("Content-Type", "ignored"), ("attribute:Tag", "x"),
        ("attribute:id", "7"), ("attribute:location", "here"), ("channel", "alarm"),
    ]  # fmt: skip
    row = row_of(GatewayMessage(properties, b"\xff"), "properties")
    attributes = {"price": 9.5, "city": ["Rome", "9"], "list": [1, 2], "Tag": "x", "id": 7, "location": "here"}
    assert (sorted(row.tags), row.attributes) == (["a", "b c", "d", "é"], packed(attributes))
    assert (row.location, row.channel) == ([(9.2, 45.5)], "alarm")
    table = table_in([row])
    with index_of([["a"]], [1], where='Tag = "x" and id = 7 and location = "here"') as tm:
        assert tm.match_many(table.drop_columns(["id", "payload", "expires"])).to_pylist() == [[1]]
    payload = json.dumps({"tags": ["x"], "attributes": {"n": 1, "b": None}, "location": [1, 2]}).encode()
    row = row_of(GatewayMessage([("tag", "a")], payload), "json")
    assert row[1:5] == (["a", "x"], packed({"n": 1}), [(1.0, 2.0)], None)
    several = row_of(GatewayMessage([], b'{"location": [[1, 2], [3, 4]]}'), "json")
    with index_of([[], []], [1, 2], where=["within circle(3, 4, 5)", "not within circle(3, 4, 5)"]) as tm:
        asked = table_in([row, several]).drop_columns(["id", "payload", "expires"])
        assert tm.match_many(asked).to_pylist() == [[2], [1]]


WRONG_PROPERTIES = [
    [("tags", "a")], [("tags", '"a"')], [("tags", "[7]")], [("lon", "1")], [("lon", "x"), ("lat", "1")],
    [("lon", "1"), ("lat", "91")], [("lon", "nan"), ("lat", "1")], [("attribute:tags", "1")], [("Tag", "a")],
    [("tgas", '["a"]')], [("Attribute:price", "1")], [("attributes-price", "1")], [("attribute_price", "1")],
    [("Channel", "a")], [("attribute:", "1")], [("attribute:a", "[1")], [("attribute:a", "[[1]]")],
    [("attribute:a", "[" * 2_000)], [("attribute:a", "[" * 2_000 + "]" * 2_000)], [("attribute:a", "9" * 5_000)],
    [("attribute:a", str(2**64))], [("attribute:a", '"\\ud800"')], [("attribute:\udcff", "1")], [("tag", "a\ud800")],
]  # fmt: skip
WRONG_PAYLOADS = [
    b"{", b"[]", b"[" * 100_000, b'{"price": 1}', b'{"tag": ["a"]}', b'{"attributes": [1]}', b'{"location": 7}',
    b'{"attributes": {"a": {"b": 1}}}', b'{"attributes": {"a": 99999999999999999999}}', b'{"tags": "a"}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "payload"), [*((each, None) for each in WRONG_PROPERTIES), *(([], each) for each in WRONG_PAYLOADS)]
)
def test_wrong_messages_are_refused(properties, payload):
    with pytest.raises((InvalidTypeError, InvalidValueError)):
        row_of(GatewayMessage(properties, payload or b""), "properties" if payload is None else "json")


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_levels_of_topics_differ_as_keys_do(one, other):
    for naming in (MQTT, NATS):
        levels = [naming.level(key) for key in (one, other)]
        assert (levels[0] == levels[1]) == (one == other)
        assert all(naming.is_usable(level, wildcards=False) for level in levels)
        assert [unquote(level) for level in levels if level != "%"] == [key for key in (one, other) if key]
    assert [MQTT.level(key) for key in ("cheap/flats", "")] == ["cheap%2Fflats", "%"]
    assert [NATS.level(key) for key in ("cheap flats.*", "")] == ["cheap%20flats%2E%2A", "%"]


def answer(requests: Requests, **request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(requests.answer(json.dumps(request).encode()))
    return found


@pytest.fixture
def requests():
    with TagMatch() as tm:
        counts = Tallies("requests", "requests_refused", "consolidations")
        yield tm, Requests(tm, counts, write=True, interval=0.01), counts.stats


def test_requests_change_the_index(requests):
    tm, found, stats = requests
    found.start()
    for action, tags, key, more in (
        ("subscribe", "fr", 7, {}), ("subscribe", "fr", 8, {"where": "price < 5"}), ("subscribe", "it", 9, {}),
        ("unsubscribe", "it", 9, {"missing": "error"}),
    ):  # fmt: skip
        assert answer(found, action=action, tags=[tags], key=key, **more) == {"ok": True, "staged": 1}
    found.stop()
    assert tm.match_unique(["fr", "it"], {"price": 4}) == {7, 8}
    assert (stats()["requests"], stats()["consolidations"] >= 1) == (4, True)


def test_requests_take_effect_after_another_program_has_saved(tmp_path):
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["it"], 1)
        tm.consolidate()
        with TagMatch.open(tmp_path / "index") as other:
            other.add_set(["it"], 2)
            other.consolidate()
        counts = Tallies()
        found = Requests(tm, counts, write=True, interval=0.01)
        found.start()
        assert answer(found, action="subscribe", tags=["fr"], key=7)["ok"]
        found.stop()
        assert tm.match_unique(["fr", "it"]) == {1, 2, 7}
        assert counted(counts) == {"requests": 1, "consolidations": 1}


SUBSCRIBE = b'{"action": "subscribe", "tags": ["a"], "key": 1'
WRONG_REQUESTS = [
    b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b" " * (1 << 20) + b"{}", b'{"action": "subscribe", "tags": ["a"]}',
    b'{"action": "drop", "tags": ["a"], "key": 1}', b'{"action": "subscribe", "tags": "a", "key": 1}',
    b'{"action": "subscribe", "tags": [1], "key": 1}', SUBSCRIBE.replace(b"1", b"-1}"),
    SUBSCRIBE.replace(b"1", b'"a"}'), SUBSCRIBE + b', "where": "price <"}', SUBSCRIBE + b', "where": 7}',
    SUBSCRIBE + b', "expires": 7}',
]  # fmt: skip


def test_wrong_requests_change_nothing(requests):
    tm, found, stats = requests
    for count, request in enumerate(WRONG_REQUESTS, start=1):
        told = json.loads(found.answer(request))
        assert told["ok"] is False, request[:100]
        assert told["error"]
        assert (tm.stats()["staged"], stats()["requests_refused"]) == (0, count)
    assert (
        "write = true"
        in answer(Requests(tm, Tallies(), write=False, interval=60), action="subscribe", tags=["a"], key=1)["error"]
    )
    assert tm.stats()["staged"] == 0


def hub_of(error: Exception) -> Hub:
    """Each message has key 7, but messages with one whose tag is `bad` have an error."""

    def match_many(queries: Queries, **_: Any) -> pa.ListArray:
        if any("bad" in from_strings(rows.tags).to_pylist() for rows in queries.chunks):
            raise error
        return pa.array([[7]] * len(queries), pa.list_(pa.uint64()))

    matcher: Any = SimpleNamespace(match_many=match_many, stats=lambda: {"plane": False})
    return Hub(matcher, Sessions("integer"))


def handed_over(hub: Hub, *names: str, **more: Any) -> tuple[list[str], list[Any], list[str], Tallies]:
    """The messages that are done with, what to call once notifications are sent, dead letters, and counts."""
    done: list[str] = []
    sent: list[Any] = []
    letters: list[Any] = []
    kept: Any = SimpleNamespace(add=lambda _, given_up: letters.extend(given_up))
    options = MqttOptions(messages="in", **more)
    counts = Tallies()
    handing = HandingOver(hub, options, 1 << 20, kept, counts, sent.append, plane=False, steady=steady_us)
    with counts.changed:  # so that all are of one part
        for name in names:
            came = GatewayMessage([("tag", name)], b"", done=partial(done.append, name))
            assert handing.receive(came, may_drop=False)
    assert handing.wait(60)
    return done, sent, [letter.properties[0][1] for letter, _ in letters], counts


def counted(counts: Tallies) -> dict[str, int]:
    return {name: count for name, count in counts.stats().items() if count}


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError("of no message"), "failed"), (InvalidValueError("of the message"), "refused")]
)
def test_each_is_done_with_when_its_notifications_are_sent(error: Exception, outcome: str, guarantee: Any) -> None:
    """At most once, after an error that is of no message, it is not known whether others have notified anyone."""
    with hub_of(error) as hub:
        done, sent, letters, counts = handed_over(hub, "a", "b", "bad", "c", "d", guarantee=guarantee)
    all_fail = guarantee == "at_most_once" and outcome == "failed"
    assert sorted(letters) == (["a", "b", "bad", "c", "d"] if all_fail else ["bad"])
    assert guarantee == "at_most_once" or done == ["bad"]
    for act in sent:
        act()
    assert sorted(done) == ["a", "b", "bad", "c", "d"]
    assert counted(counts) == {"received": 5, **({"failed": 5} if all_fail else {"matched": 4, outcome: 1})}


def test_messages_for_which_the_service_has_no_time_come_again() -> None:
    hub = hub_of(RuntimeError())
    hub.close()
    *told, counts = handed_over(hub, "a", "b")
    assert (told, counted(counts)) == ([[], [], []], {"received": 2, "dropped": 2})
