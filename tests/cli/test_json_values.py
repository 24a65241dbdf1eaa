"""A text of JSON is the same value, or the same error, wherever it comes from."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from tagmatch import InvalidValueError
from tagmatch.broker import wire
from tagmatch.broker.messages import messages_of
from tagmatch.broker.wire import MatchOptions
from tagmatch.files.csv_lines import value_in
from tagmatch.files.json_values import MOST_NESTED, read_json

_DEEP = MOST_NESTED + 1
_WRONG = [
    (b'["\xff"]', "byte 3 is no UTF-8"),
    (b'["\xed\xa0\x80"]', "byte 3 is no UTF-8"),
    (b"[\x00\x00]", "it has zero bytes"),
    (b'["\\ud800"]', "a string has half of a surrogate pair"),
    (b'[{"a": 1, "b": 2, "a": 3}]', 'an object has "a" more than once'),
    (b"[NaN]", "NaN is no value of JSON"),
    (b"[-Infinity]", "-Infinity is no value of JSON"),
    (b"[" + b"9" * 5000 + b"]", "an integer has thousands of digits"),
    (b"[" * _DEEP + b"]" * _DEEP, "it is nested more than 64 deep"),
    (b"[" * 1_000_000, "it is nested more than 64 deep"),
    (b"[1,]", "Expecting value (character 4)"),
    (b"[1] [2]", "there is more behind it (from character 4 on)"),
]


@pytest.mark.parametrize(("text", "why"), _WRONG)
def test_what_is_no_json_is_an_error_in_words(text, why):
    with pytest.raises(InvalidValueError) as caught:
        read_json(text, "the payload")
    assert str(caught.value) == f"the payload is no JSON: {why}"


def _as_cell(text: bytes) -> Any:
    return value_in(text.decode(errors="surrogateescape"))


def _as_attribute_of_the_service(text: bytes) -> Any:
    column = pa.array([b'{"a":' + text + b"}"], pa.binary()).view(pa.string())
    (row,) = messages_of(pa.record_batch({"attributes": column}), MatchOptions(), 0.0).queries["tags"].to_pylist()
    return row


def _as_command(text: bytes) -> Any:
    return wire.read_json(b'{"a":' + text + b"}", "the command")


@pytest.mark.parametrize("read", [_as_cell, _as_attribute_of_the_service, _as_command])
@pytest.mark.parametrize("text", [text for text, _ in _WRONG])
def test_it_is_refused_wherever_it_comes_from(text, read):
    with pytest.raises(InvalidValueError, match="is no JSON: "):
        read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1e400", math.inf),
        (b"-1e400", -math.inf),
        (b"1e-400", 0.0),
        (b"18446744073709551616", 2**64),
        (b'"\\ud83d\\ude00\\u0000"', "\U0001f600\0"),
        (b'\xef\xbb\xbf{"a":null}', {"a": None}),
        (b"[" * MOST_NESTED + b"]" * MOST_NESTED, None),
    ],
)
def test_what_is_json_is_its_value(text, value):
    found = read_json(text, "it")
    assert value is None or (found == value and type(found) is type(value))
