"""Keys of values are in the order of the values, whatever their types."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filters import FLOATS, INTEGERS, TEXTS, Value, messages, neighbours, operands, precedes, values, values_of

from tagmatch import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.values import attribute_tags, key_of, value_of

_ALL = [math.nan, False, True, *INTEGERS, *FLOATS, *TEXTS]


def _assert_order(one: Value, two: Value) -> None:
    assert (key_of(one).encode() < key_of(two).encode()) == precedes(one, two)
    assert (key_of(one) == key_of(two)) == (not precedes(one, two) and not precedes(two, one))


def test_keys_are_in_order() -> None:
    for one, two in product(_ALL, repeat=2):
        _assert_order(one, two)


@given(values, values, operands)
def test_keys_of_any_two_and_of_neighbours_are_in_order(one: Value, two: Value, value: Value) -> None:
    for pair in [(one, two), *product(neighbours(value), repeat=2)]:
        _assert_order(*pair)


@given(values)
def test_a_key_says_its_value(value: Value) -> None:
    found = value_of(key_of(value))
    assert key_of(found) == key_of(value)
    assert found == value or (math.isnan(value) and math.isnan(found))
    assert isinstance(found, bool) == isinstance(value, bool)


def test_keys_are_written_as_they_always_are() -> None:
    """They are in files."""
    assert [key_of(value) for value in (math.nan, False, True, "", "Rome")] == ["!", "b0", "b1", "s", "sRome"]
    numbers: dict[int | float, str] = {
        -math.inf: "n000fffffffffffff800", -(2**63): "n3c1fffffffffffff800", -1: "n400fffffffffffff800",
        -0.0: "n8000000000000000800", 0.5: "nbfe0000000000000800", 2**53 + 1: "nc340000000000000801",
        2**63 - 512: "nc3e0000000000000600", 2**63 - 1: "nc3e00000000000007ff", math.inf: "nfff0000000000000800",
    }  # fmt: skip
    assert {number: key_of(number) for number in numbers} == numbers


INTEGER_TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)


@given(
    st.one_of(*(st.integers(np.iinfo(kind).min, np.iinfo(kind).max).map(kind) for kind in INTEGER_TYPES)), st.floats()
)
def test_numbers_of_numpy_are_those_of_python(value: Any, number: float) -> None:
    assert key_of(value) == key_of(int(value))
    with np.errstate(over="ignore"):
        for each in (np.float16(number), np.float32(number), np.float64(number)):
            assert key_of(each) == key_of(float(each))


def test_other_values_of_numpy_are_those_of_python() -> None:
    attributes = {"b": np.bool_(True), "s": [np.str_("Rome"), np.bool_(False)], "u": np.uint64(2**63 - 1)}
    assert attribute_tags(attributes) == attribute_tags({"b": True, "s": ["Rome", False], "u": 2**63 - 1})


OTHERS = [None, b"a", [1], 1j, object, np.bytes_(b"a"), np.complex128(1), np.longdouble(1), np.array(1), np.array([1])]
OTHERS += [kind(1, unit) for kind in (np.timedelta64, np.datetime64) for unit in ("s", "ns")]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_other_types_have_no_key(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match="a value must be a bool, an int, a float or a str, not "):
        key_of(value)


def test_integers_fit_into_64_bits() -> None:
    for value in (2**63, -(2**63) - 1, 10**5000, np.uint64(2**63)):
        with pytest.raises(InvalidValueError, match=r"an integer must be from -2\*\*63 to 2\*\*63 - 1"):
            key_of(value)


@given(messages())
def test_each_value_has_a_tag(message: tuple[set[str], dict[str, Any]]) -> None:
    _, attributes = message
    tags = attribute_tags(attributes)
    assert len(set(tags)) == len(tags)
    found = {tuple(tag.removeprefix("\0=").split("\0", 1)) for tag in tags}
    assert found == {(name, key_of(value)) for name in attributes for value in values_of(attributes, name)}
    assert all(tag.startswith("\0=") for tag in tags)


def test_tags_of_attributes() -> None:
    several = {"a": [1, 1.0, True, None], "b": ("x",), "c": {"y"}, "d": frozenset(["z"]), "e": [], "f": None, "g": "\0"}
    assert attribute_tags(several) == [
        "\0=a\0nbff0000000000000800", "\0=a\0b1", "\0=b\0sx", "\0=c\0sy", "\0=d\0sz", "\0=g\0s\0",
    ]  # fmt: skip


_NO_VALUE = "a value must be a bool, an int, a float or a str, not"
WRONG: list[tuple[Any, str]] = [
    ({"": 1}, "the name of an attribute must not be empty"),
    ({"a\0b": 1}, r'the name of an attribute must not contain U+0000, as "a\u0000b" does'),
    ({"a\ud800": 1}, r"the name of an attribute 'a\ud800' has no UTF-8 form: it contains a lone "),
    ({5: 1}, "the name of an attribute must be a str, not int 5"),
    ({"a b": b""}, f'attribute "a b": {_NO_VALUE} bytes '),
    ({"a": [1, [2]]}, f'attribute "a": {_NO_VALUE} list '),
    ({"a": {"b": 1}}, f'attribute "a": {_NO_VALUE} dict '),
    ({"a": 2**63}, 'attribute "a": an integer must be from -2**63 to 2**63 - 1'),
    ({"a": "\udfff"}, r"""attribute "a": the text '\udfff' has no UTF-8 form"""),
]


@pytest.mark.parametrize(("attributes", "message"), WRONG, ids=range(len(WRONG)))
def test_attributes_that_cannot_be_used(attributes: Any, message: str) -> None:
    with pytest.raises(InvalidTypeError if "must be a" in message else InvalidValueError) as caught:
        attribute_tags(attributes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("key", ["", "b", "b2", "x", "n", "nzz", "n-1", "n" + "f" * 5])
def test_keys_that_no_value_has(key: str) -> None:
    """As they may stand in the index of a stranger."""
    with pytest.raises(InvalidValueError, match="no value has the key"):
        value_of(key)
