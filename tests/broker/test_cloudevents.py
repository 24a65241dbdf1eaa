"""CloudEvents say the same message in each mode, and notifications are CloudEvents."""

import base64
import contextlib
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tagmatch.broker.cloudevents import MATCHED, checked, event_in, notification, written
from tagmatch.broker.incoming import GatewayMessage, MessageRow, row_of
from tagmatch.files.csv import value_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.values import packed, unpacked

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
tags = st.lists(st.sampled_from(["cat", "fr", "é", "a b"]), max_size=3)
json_data: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "tags": tags,
        "attributes": st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from([1, 2.5, "x", True, [1, 2]])),
        "location": st.sampled_from([[9.5, 45.0], [[1.0, 2.0], [3.0, 4.0]]]),
        "else": texts,
    },
)
contents = st.one_of(
    st.tuples(st.just("application/json"), json_data | st.lists(st.integers(0, 9)) | texts),
    st.tuples(st.sampled_from(["application/vnd.x+json", "text/json; charset=utf-8"]), json_data),
    st.tuples(st.just("text/plain"), texts),
    st.tuples(st.just("image/png"), st.binary(min_size=1, max_size=9)),
)
extensions = st.dictionaries(
    st.sampled_from(["trace", "p9", "size", "x"]),
    texts.filter(lambda text: not text.lstrip().startswith(("[", "{")))
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1),
)  # fmt: skip
meanings = st.fixed_dictionaries(
    {}, optional={"tags": tags.map(json.dumps), "channel": st.just("alarm"), "subject": texts, "dataschema": texts}
)
places = st.just({}) | st.just({"lon": "9.25", "lat": "45"})
times = st.just({}) | st.just({"time": "2026-11-29T08:30:00.5Z"})


@st.composite
def events(draw: Any) -> tuple[dict[str, Any], Any]:
    """An event in structured mode, and its data."""
    found: dict[str, Any] = {"specversion": "1.0", "id": draw(texts), "source": draw(texts), "type": draw(texts)}
    for some in (extensions, meanings, places, times):
        found |= draw(some)
    kind, data = draw(contents)
    found["datacontenttype"] = kind
    found |= {"data_base64": base64.b64encode(data).decode()} if isinstance(data, bytes) else {"data": data}
    return found, data


def in_binary_mode(event: dict[str, Any], data: Any, prefix: str) -> GatewayMessage:
    is_json = "json" in event["datacontenttype"]
    payload = json.dumps(data).encode() if is_json else data if isinstance(data, bytes) else data.encode()
    properties = [("Content-Type" if prefix == "ce-" else "content-type", event["datacontenttype"])]
    for name, value in event.items():
        if name not in ("data", "data_base64", "datacontenttype"):
            text = value if isinstance(value, str) else json.dumps(value)
            properties.append((f"{prefix}{name}", quote(text, safe=" ,") if prefix == "ce-" else text))
    return GatewayMessage(properties, payload)


def said(row: MessageRow) -> Any:
    return sorted(row.tags), unpacked(row.attributes), row.location, row.channel, row.sent.id


def expected(event: dict[str, Any], data: Any) -> Any:
    """What the mapping of the guide says, written anew."""
    named = data if isinstance(data, dict) else {}
    attributes = {name: event[name] for name in ("type", "source", "subject", "time", "dataschema") if name in event}
    attributes["datacontenttype"] = event["datacontenttype"]
    attributes |= named.get("attributes", {})
    for name in ("trace", "p9", "size", "x"):
        if name in event:
            value = event[name]
            attributes[name] = value_in(value if isinstance(value, str) else json.dumps(value))
    place = [(9.25, 45.0)] if "lon" in event else []
    if "location" in named:
        given_place = named["location"]
        place = [tuple(each) for each in given_place] if isinstance(given_place[0], list) else [tuple(given_place)]
    every = json.loads(event.get("tags", "[]")) + named.get("tags", [])
    return sorted(every), unpacked(packed(attributes)), place, event.get("channel"), event["id"].encode()


@given(events(), st.sampled_from(["ce-", "ce_", ""]))
@example(({"specversion": "1.0", "id": "%", "source": "é", "type": "t", "datacontenttype": "text/plain", "data": "a"}, "a"), "ce-")  # fmt: skip  # noqa: E501
def test_both_modes_say_the_same_message(made, prefix):
    event, data = made
    structured = row_of(GatewayMessage((), json.dumps(event).encode()), "cloudevents")
    binary = row_of(in_binary_mode(event, data, prefix), "cloudevents")
    assert said(structured) == said(binary) == expected(event, data)
    assert json.loads(structured.sent.payload) == event
    again = json.loads(binary.sent.payload)
    assert {name: str(value).lower() for name, value in again.items() if name != "data"} == {
        name: str(value).lower() for name, value in event.items() if name != "data"
    }
    assert again.get("data") == event.get("data")


@given(events(), st.lists(st.integers(0, 2**64 - 1) | texts, min_size=1, max_size=3))
def test_a_notification_is_the_event_with_its_keys(made, keys):
    event, _ = made
    found = json.loads(notification(written(event), keys, "1-a", "s"))
    assert json.loads(found.pop(MATCHED)) == keys
    assert found == event


@given(st.binary(max_size=20) | texts.map(str.encode) | json_data.map(lambda data: json.dumps(data).encode()))
@example(b'{"specversion": "1.0"}')
@example(b'{"specversion": "1.0", "id": "a", "source": "s", "type": 7}')
@example(b'"specversion"')
@example(b"NaN")
@example(b"1e400")
@example(b'{"specversion": "1.0", "id": "a", "source": "s", "type": "t", "data": [-1e400]}')
def test_what_is_no_event_is_the_data_of_one(payload):
    event = json.loads(notification(payload, [7], "1-a/b", "my session"))
    assert checked(event) == event
    assert (event["id"], event["source"]) == ("1-a/b", "/tagmatch/sessions/my%20session")
    kind = event.get("datacontenttype")
    if not payload:
        assert {"data", "data_base64", "datacontenttype"}.isdisjoint(event)
    elif kind == "application/json":
        assert event["data"] == json.loads(payload)
    elif kind == "text/plain":
        assert event["data"].encode() == payload
    else:
        assert base64.b64decode(event["data_base64"]) == payload


EVENT = {"specversion": "1.0", "id": "a", "source": "s", "type": "t"}
WRONG: list[Any] = [
    {}, {**EVENT, "id": ""}, {**EVENT, "id": 7}, {**EVENT, "id": None}, {**EVENT, "specversion": "0.3"},
    {**EVENT, "Big": "x"}, {**EVENT, "a_b": "x"}, {**EVENT, "a" * 65: "x"},
    {**EVENT, "x": 1.5}, {**EVENT, "x": [1]}, {**EVENT, "x": {}},
    {**EVENT, "x": 2**31}, {**EVENT, "x": "a\n"}, {**EVENT, "time": "today"}, {**EVENT, "time": "2026-11-29T08:30:00"},
    {**EVENT, "data": 1, "data_base64": "AA=="}, {**EVENT, "data_base64": "A"}, {**EVENT, "data_base64": 7}, [EVENT], 7,
    {**EVENT, "tags": "cat"}, {**EVENT, "tags": "[1]"}, {**EVENT, "lon": "1"}, {**EVENT, "lon": "x", "lat": "1"},
    {**EVENT, "data": {"tags": "cat"}}, {**EVENT, "data": {"location": 7}}, {**EVENT, "data": {"attributes": [1]}},
    {**EVENT, "data": {"attributes": {"type": "x"}}}, {**EVENT, "data": {"attributes": {"a": {"b": 1}}}},
]  # fmt: skip


@pytest.mark.parametrize("event", WRONG)
def test_wrong_events_are_refused(event):
    with pytest.raises((InvalidTypeError, InvalidValueError)):
        row_of(GatewayMessage((), json.dumps(event).encode()), "cloudevents")


@pytest.mark.parametrize(
    ("header", "value"),
    [("a%20b", "a b"), ("%25", "%"), ("%cc", "%cc"), ("5%", "5%"), ('"a \\"b\\\\%C3%A9"', 'a "b\\é'), ('"', '"')],
)
def test_values_of_headers_are_decoded(header, value):
    given = [(f"ce-{name}", text) for name, text in EVENT.items()]
    assert event_in([*given, ("Ce-Subject", header)], b"")["subject"] == value


def test_an_attribute_that_is_null_is_none():
    assert event_in((), json.dumps({**EVENT, "subject": None, "data": None}).encode()) == {**EVENT, "data": None}


@given(
    st.binary(max_size=60), st.lists(st.tuples(texts | st.sampled_from(["ce-specversion", "ce-id"]), texts), max_size=4)
)
def test_whatever_comes_is_an_event_or_an_error_in_words(payload, properties):
    with contextlib.suppress(InvalidTypeError, InvalidValueError):
        event_in(properties, payload)
