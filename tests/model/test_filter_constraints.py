"""Values and constraints as tags and as text, and the rows that an expression becomes, which mean the same."""

import math
import random
import re
from decimal import Decimal
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import And, AtLeast, Not, Or, Tags, Test, evaluate
from support import filters
from support.filters import leaves, messages, neighbours, operands, satisfies, spellings, text_of, trees, values

from tagmatch import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.errors import FilterError
from tagmatch.model.input.values import packed, packed_rows
from tagmatch.model.where.alternatives import MAX_CONJUNCTIONS, MAX_DEPTH, Row
from tagmatch.model.where.constraints import Constraint, Cut, Side, Where
from tagmatch.model.where.language import rows_of, stored_rows
from tagmatch.model.where.types import Typed
from tagmatch.model.where.values import is_reserved, key_of, quoted, value_of

_ALL = [math.nan, False, True, *filters.INTEGERS, *filters.FLOATS, *filters.TEXTS]


def _assert_order(one: Any, two: Any) -> None:
    assert (key_of(one).encode() < key_of(two).encode()) == filters.precedes(one, two)
    assert (key_of(one) == key_of(two)) == (not filters.precedes(one, two) and not filters.precedes(two, one))


def test_keys_are_in_order() -> None:
    for one, two in product(_ALL, repeat=2):
        _assert_order(one, two)


@given(values, values, operands)
def test_keys_of_any_two_and_of_neighbours_are_in_order(one: Any, two: Any, value: Any) -> None:
    for pair in [(one, two), *product(neighbours(value), repeat=2)]:
        _assert_order(*pair)


@given(values)
def test_a_key_says_its_value(value: Any) -> None:
    found = value_of(key_of(value))
    assert key_of(found) == key_of(value)
    assert isinstance(found, Typed) or found == value or (math.isnan(value) and math.isnan(found))
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
    assert packed(attributes) == packed({"b": True, "s": ["Rome", False], "u": 2**63 - 1})


OTHERS = [None, b"a", [1], 1j, object, np.bytes_(b"a"), np.complex128(1), np.longdouble(1), np.array(1), np.array([1])]
OTHERS += [kind(1, unit) for kind in (np.timedelta64, np.datetime64) for unit in ("s", "ns")]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_other_types_have_no_key(value: Any) -> None:
    with pytest.raises(
        InvalidTypeError,
        match="a value must be a bool, a number, a str, a date, a datetime, an IP address or a Version, not ",
    ):
        key_of(value)


def test_integers_fit_into_64_bits() -> None:
    for value in (2**63, -(2**63) - 1, 10**5000, np.uint64(2**63)):
        with pytest.raises(InvalidValueError, match=r"an integer must be from -2\*\*63 to 2\*\*63 - 1"):
            key_of(value)


_NO_VALUE = "a value must be a bool, a number, a str, a date, a datetime, an IP address or a Version, not"
WRONG: list[tuple[Any, str]] = [
    ({"": 1}, "the name of an attribute must not be empty"),
    ({"a\0b": 1}, r'the name of an attribute must not contain U+0000, as "a\u0000b" does'),
    ({"a\ud800": 1}, r"the name of an attribute 'a\ud800' has no UTF-8 form: it contains a lone "),
    ({5: 1}, "the name of an attribute must be a str, not int 5"),
    ({"a b": b""}, f'attribute "a b": {_NO_VALUE} bytes '),
    ({"a": [1, [2]]}, f'attribute "a": {_NO_VALUE} list '),
    ({"a": {"b": 1}}, f'attribute "a": {_NO_VALUE} dict '),
    (
        {"at": {"lat": 45, "lon": 4}},
        f"attribute \"at\": {_NO_VALUE} dict {{'lat': 45, 'lon': 4}}; a place is no attribute: give it as location",
    ),
    ({"a": 2**63}, 'attribute "a": an integer must be from -2**63 to 2**63 - 1'),
    ({"a": "\udfff"}, r"""attribute "a": the text '\udfff' has no UTF-8 form"""),
]


@pytest.mark.parametrize(("attributes", "message"), WRONG, ids=range(len(WRONG)))
def test_attributes_that_cannot_be_used(attributes: Any, message: str) -> None:
    with pytest.raises(InvalidTypeError if "must be a" in message else InvalidValueError) as caught:
        packed(attributes)
    assert str(caught.value).startswith(message)


# Some with other bytes for those of a text
_PACKED = st.tuples(
    st.sampled_from([b"x", b"\xff", b"p", b"b", b"n"]), st.sampled_from([b"x", b"!", b"a", b"b", b"n"])
).map(lambda pair: packed({"a": [1, Decimal("0.1"), "xy"], "é": 0.5}).replace(b"xy", b"".join(pair)))


@given(st.lists(st.none() | st.binary(max_size=40) | _PACKED, max_size=4), st.data())
def test_bytes_that_are_no_attributes(rows: list[bytes | None], data: st.DataObject) -> None:
    """As a stranger may send them: rows are what clients pack, or the first that is not is named."""
    if rows and rows[-1]:  # perhaps the beginning, or some bytes more
        rows[-1] = rows[-1][: data.draw(st.integers(0, 50))] + data.draw(st.binary(max_size=20))
    column = pa.array([b"before", *rows], pa.binary())[1:]
    try:
        found = packed_rows(column, "column 'attributes'", 7)
    except InvalidValueError as error:
        wrong = int(str(error).split()[3]) - 7
        assert all(records_in(row) is not None for row in rows[:wrong])
        assert records_in(rows[wrong]) is None
    else:
        assert [bytes(found.data[begin:end]) for begin, end in pairwise(found.offsets)] == [row or b"" for row in rows]
        assert all(records_in(row) is not None for row in rows)


def records_in(row: bytes | None) -> list[tuple[int, bytes]] | None:
    """Kinds and names of packed attributes; `None` if they are none."""
    rest, found = row or b"", []
    while rest:
        name_size = int.from_bytes(rest[:4], "little")
        kind, size = rest[4 + name_size : 8 + name_size], rest[8 + name_size : 16 + name_size]
        if not 0 < name_size <= len(rest) - 16 or kind not in {bytes([each, 0, 0, 0]) for each in (1, 2, 3, 4)}:
            return None
        end = 16 + name_size + (int.from_bytes(size, "little", signed=True) if kind[0] == 4 else 0)
        if not 16 + name_size <= end <= len(rest):
            return None
        text = rest[16 + name_size : end]
        if text[:1] == b"\xff" and not re.fullmatch(rb"n.{19,}|!|pa.{16,}|p[bc].*", text[1:], re.DOTALL):
            return None
        found.append((kind[0], rest[4 : 4 + name_size]))
        rest = rest[end:]
    return found


@pytest.mark.parametrize("key", ["", "b", "b2", "x", "n", "nzz", "n-1", "n" + "f" * 5])
def test_keys_that_no_value_has(key: str) -> None:
    """As the index of a stranger may have them."""
    with pytest.raises(InvalidValueError, match="no value has the key"):
        value_of(key)


_ONE = "n" + "bff0000000000000" + "800"
_TWO = "n" + "c000000000000000" + "800"

#: They are in files
_WRITTEN = {
    "a < 1": f"+ra\0[1:n[20:{_ONE}", "a <= 1": f"+ra\0[1:n]20:{_ONE}", "a > 1": f"+ra\0]20:{_ONE}[1:o",
    "a >= 1": f"+ra\0[20:{_ONE}[1:o", "a = 1": f"+ra\0[20:{_ONE}]20:{_ONE}",
    "a != 1": f"+ra\0[0:[20:{_ONE}]20:{_ONE}[1:t", "a = true": "+ra\0[2:b1]2:b1", 'a < "é"': "+ra\0[1:s[3:sé",
    'a < date "1970-01-02"': "+ra\0[2:pa[26:pa800000000001518000000000",
    'a >= version "1.10.0-rc.1"': "+ra\0[15:pba1b10-1rc!0a1[2:pc",
    'a = ip "::1"': f"+ra\0[35:pc6{1:032x}]35:pc6{1:032x}",
    'a in cidr "10.0.0.0/8"': "+ra\0[11:pc40a000000]11:pc40affffff",
    'a > decimal "-0.1"': "+ra\0]26:n4046666666666665800" "50008~[1:o",
    'a >= ""': "+ra\0[1:s[1:t", "a between 1 and 2": f"+ra\0[20:{_ONE}]20:{_TWO}",
    'a in {"b", 1, "a"}': f"+ra\0[20:{_ONE}]20:{_ONE}[2:sa]2:sa[2:sb]2:sb",
    'a not in {"a", "b"}': "+ra\0[0:[2:sa]2:sa[2:sb]2:sb[1:t", 'a prefix "IB"': "+ra\0[3:sIB^3:sIB",
    'a prefix ""': "+ra\0[1:s^1:s", 'a suffix "\\u0000b"': "+sa\0\0b", 'a contains "b"': "+ca\0b",
    "exists(a)": "+ra\0[0:[1:t", 'a < ""': "+ra\0", "`a b` = false": "+ra b\0[2:b0]2:b0", 'not tags {"x"}': "-t\0x",
    'not a suffix "b"': "-sa\0b", "not a = false": "-ra\0[2:b0]2:b0",
    'at least 2 of {a suffix "b", tags {"x"}, tags {"é"}}': "+p\0" "2:6:\0+sa\0b1:x2:é",
}  # fmt: skip


@pytest.mark.parametrize("text", _WRITTEN)
def test_constraints_are_written_as_they_always_are(text: str) -> None:
    tag = "\0" + _WRITTEN[text]
    assert stored_rows(text, plane=False) == [[tag]]
    assert str(Constraint.of_tag(tag)) == text.replace('{"b", 1, "a"}', '{1, "a", "b"}')


@given(leaves, st.booleans(), spellings)
@example(Test("a", "not in", ("a", "a\0")), False, random.Random(1))
@example(Test("a", "<", ("",)), True, random.Random(1))
def test_tag_and_text_say_all_of_a_constraint(leaf: Test | Tags, is_negated: bool, spelling: random.Random) -> None:
    for row in rows_of(text_of(Not(leaf) if is_negated else leaf, spelling)):
        for constraint in row.constraints:
            assert is_reserved(constraint.tag)
            assert Constraint.of_tag(constraint.tag) == constraint
            assert constraint.negation.negation == constraint != constraint.negation
            assert rows_of(Where(constraint.text)) == [Row([], [constraint])]
            assert len(constraint.text.splitlines()) == 1
        assert not any(map(is_reserved, row.tags))


@given(leaves)
def test_intervals_are_disjoint_and_in_order(leaf: Test | Tags) -> None:
    for row in rows_of(text_of(leaf, random.Random(1))):
        for constraint in row.constraints:
            positions = [cut.position for interval in constraint.intervals for cut in interval]
            assert positions == sorted(positions)


@given(st.sampled_from(["[", "]", "^"]), operands, values)
def test_positions_of_cuts(side: Side, value: object, other: object) -> None:
    """A key is not before the cut if its bytes are not below the cut's position."""
    cut = Cut(side, key_of(value))
    for each in (other, *neighbours(value)):
        key = key_of(each)
        assert (key.encode() >= cut.position) == filters.after(key, cut)


@pytest.mark.parametrize(
    "tag",
    [
        "", "a", "\0", "\0+", "\0=a\0b1", "\0+ra", "\0*ra\0", "\0+xa\0", "+ra\0[2:b0]2:b0", "\0+ra\0[2:b0",
        "\0+ra\0[2:b0]3:b0", "\0+ra\0[2:b0]2:b0 ", "\0+ra\0[02:b0]2:b0", "\0+ra\0(2:b0]2:b0", "\0+ra\0[2:sé]2:sé",
        "\0+ra\0[-1:b0]2:b0", "\0+ra\0x",
    ],
)  # fmt: skip
def test_tags_of_no_constraint(tag: str) -> None:
    with pytest.raises(InvalidValueError, match=r'^no constraint has the tag "'):
        Constraint.of_tag(tag)


def test_values_that_cannot_be_compared() -> None:
    nan = float("nan")
    is_nan, order = (
        "NaN cannot be written in an expression: it equals nothing",
        "no value is between .* the lesser one",
    )
    for name, given_, message in (
        ("=", [nan], is_nan), ("<", [nan], is_nan), ("in", [1, nan], is_nan), ("not in", [nan], is_nan),
        ("between", [1, nan], is_nan), ("between", [nan, 1], is_nan), ("between", [10, 5], order),
        ("between", [0.1, -0.1], order), ("between", ["b", "a"], order), ("between", [2**53 + 1, 2.0**53], order),
        ("between", [1, "b"], 'between needs two values of one type: 1 and "b" have no order'),
        (">=", [True], "true has no order: compare it with = or !="), ("prefix", [1], "prefix needs a text, not 1"),
    ):  # fmt: skip
        with pytest.raises((InvalidValueError, InvalidTypeError), match=message):
            Constraint.of("a", name, given_)


@pytest.mark.parametrize("attribute", ["", "a\0", "a\1"])
def test_names_that_cannot_be_used(attribute: str) -> None:
    for name, *given_ in (("exists",), ("<", 1), ("not in", 1), ("contains", ""), ("suffix", "")):
        with pytest.raises(InvalidValueError, match="the name of an attribute must not "):
            Constraint.of(attribute, name, given_)


@given(
    st.sampled_from(filters.ATTRIBUTES)
    | st.text(min_size=1, max_size=5).filter(lambda name: "\0" not in name and name[-1] != "\1")
)
def test_any_name_can_be_written(attribute: str) -> None:
    constraint = Constraint.of(attribute, "exists")
    assert rows_of(str(constraint)) == [Row([], [constraint])]


@given(trees | filters.counting_trees, spellings, st.data())
def test_rows_mean_what_the_expression_means(tree: object, spelling: random.Random, data: st.DataObject) -> None:
    rows = rows_of(text_of(tree, spelling))
    for _ in range(5):
        tags, attributes = data.draw(messages(tree))
        assert any(satisfies(row, tags, attributes) for row in rows) == evaluate(tree, tags, attributes)


@given(trees, spellings)
def test_rows_are_in_order_and_each_is_there_once(tree: object, spelling: random.Random) -> None:
    text = text_of(tree, spelling)
    rows, stored = rows_of(text), stored_rows(text, plane=False)
    assert rows
    assert len(set(map(tuple, stored))) == len(rows)
    for row, tags in zip(rows, stored, strict=True):
        constraints = [tag for tag in tags if is_reserved(tag)]
        assert tags == [*row.tags, *constraints] == [*sorted(set(row.tags)), *sorted(set(constraints))]


def test_equal_rows_are_one_and_in_order() -> None:
    assert rows_of("a = 1 or a = 1.0 or (a in {1, 1})") == rows_of("a = 1")
    assert rows_of('tags {"y", "x"} and tags {"x"}') == [Row(["x", "y"], [])]
    rows = rows_of('(tags {"c"} or tags {"a"}) and (tags {"d"} or tags {"b"})')
    assert [row.tags for row in rows] == [["a", "b"], ["a", "d"], ["b", "c"], ["c", "d"]]


#: What is stored, and other ways to say it
_NORMAL = [
    ("a in {1, 2}", ["a = 1 or a = 2", "a = 2 or a in {1}", "not (not a = 2 and not a = 1)",
                     "a in {1, 2} and exists(a)"]),
    ("(a < 1 or a > 5)", ["a > 5 or a < 1", "a < 1 or a > 5 or a < 0 or a = 7", "not (not a < 1 and not a > 5)"]),
    ("not (a < 1 or a > 5)", ["not a < 1 and not a > 5", "not a > 5 and not (a > 6 or a < 1)"]),
    ("a >= 1", ["a > 1 or a = 1", "a between 1 and 3 or a > 2", "a >= 1 and a > 0", "a >= 1 or a >= 1 and b = 2"]),
    ("exists(a)", ["a != 1 or a = 1", "a != 1 or a != 2", "a < 1 or exists(a)", "not not exists(a)"]),
    ("a not in {1, 2}", ["a not in {1, 2, 3} or a = 3", "a not in {2, 1} and exists(a)"]),
    ("(a = true or a prefix \"x\")", ['a = true or a prefix "xy" or a prefix "x"']),
    ("b = 3", ['(a < 1 and not a < 2) or b = 3', 'b = 3 or (tags {"x"} and not tags {"x"})', 'b = 3 or a < ""',
               '(a suffix "x" and not a suffix "x" and b = 4) or b = 3']),
    ("a in {1, 2} and b = 3", ["(a = 1 and b = 3) or (b = 3 and a = 2)"]),
    ("a in {1, 2} and b in {3, 4}", ["(a = 1 or a = 2) and (b = 3 or b = 4)",
                                     "a = 1 and b = 3 or a = 1 and b = 4 or a = 2 and b = 3 or a = 2 and b = 4"]),
    ("a < 1 and a in {false, 0}", ["a < 1 and (a = false or a = 0)", "(a < 1 and a = false) or a = 0"]),
    ("a >= -1e999", ["a >= 5 or a < 5", "a < 5 or a > 4"]),
    ("a < 2 and not a = 2", ["a <= 2 and not a = 2"]),
    ('tags {"x"}', ['tags {"x"} or (tags {"x"} and a = 1)', 'tags {"x"} and (tags {"x"} or b = 1)']),
]  # fmt: skip


@pytest.mark.parametrize(("text", "others"), _NORMAL, ids=range(len(_NORMAL)))
def test_what_says_the_same_is_stored_equally(text: str, others: list[str]) -> None:
    [row] = rows_of(text)
    assert " and ".join([*(f'tags {{"{tag}"}}' for tag in row.tags), *map(str, row.constraints)]) == text
    for other in others:
        assert rows_of(other) == [row], other


def test_what_no_one_test_says_has_several_rows() -> None:
    """No test says: any version."""
    tests = [test.format('version "1.0.0"') for test in ("a < {}", "a >= {}")]
    assert [str(test) for row in rows_of(" or ".join(tests)) for test in row.constraints] == tests


#: Values of several types, few enough to meet each other
_FEW = st.sampled_from(["0", "1", "2", "false", "true", '"a"'])
_FEW_ORDERED = _FEW.filter(lambda value: value not in ("false", "true"))
_OF_ONE = st.one_of(
    st.builds("a {} {}".format, st.sampled_from(["=", "!="]), _FEW),
    st.builds("a {} {}".format, st.sampled_from(["<", ">="]), _FEW_ORDERED),
    st.builds("a in {{{}, {}}}".format, _FEW, _FEW),
    st.builds("not a = {}".format, _FEW),
)


@given(first=_OF_ONE, others=st.lists(_OF_ONE, min_size=1, max_size=4), data=st.data())
def test_in_any_order_and_however_they_are_grouped(first: str, others: list[str], data: Any) -> None:
    several = data.draw(st.permutations(others))
    expected = rows_of(f"{first} and ({' or '.join(others)})")
    assert rows_of(f"({' or '.join(several)}) and {first}") == expected
    assert rows_of(" or ".join(f"({first} and {other})" for other in several)) == expected
    alternatives = [" and ".join([*row.tags, *map(str, row.constraints)]) for row in expected]
    assert rows_of(" or ".join(alternatives)) == expected


def test_groups_of_equalities_are_lists() -> None:
    groups = (" or ".join(f"{name} = {value}" for value in range(6)) for name in "abcde")
    [row] = rows_of(" and ".join(f"({group})" for group in groups))
    assert [str(each) for each in row.constraints] == [f"{name} in {{0, 1, 2, 3, 4, 5}}" for name in "abcde"]


def test_what_cannot_hold_is_stored_all_the_same() -> None:
    assert [[str(test) for test in row.constraints] for row in rows_of("(a = 1 and not a < 2) or b < \"\"")] in (
        [["a = 1", "not a < 2"]], [['b < ""']],
    )  # fmt: skip


def test_some_and_all_of_tags() -> None:
    assert rows_of('any of tags {"y", "x"}') == rows_of('tags {"x"} or tags {"y"}') == [Row(["x"], []), Row(["y"], [])]
    assert rows_of('all  of\ntags{"y", "x"}') == rows_of('tags {"x", "y"}') == [Row(["x", "y"], [])]
    assert rows_of('not any of tags {"y", "x"}') == rows_of('not tags {"x"} and not tags {"y"}')
    assert [row.constraints for row in rows_of("any = 1 and all < 2 and of = 3")] == [
        [Constraint.of("all", "<", [2]), Constraint.of("any", "=", [1]), Constraint.of("of", "=", [3])]
    ]


def _shuffled(tree: Any, rng: random.Random) -> Any:
    """The same, with parts in another order, some twice, some in parentheses and some within two `not`."""
    match tree:
        case AtLeast(least, parts):
            return AtLeast(least, tuple(rng.sample([_shuffled(part, rng) for part in parts], len(parts))))
        case And(parts) | Or(parts):
            parts = [_shuffled(part, rng) for part in parts] + rng.sample(parts, rng.randrange(2))
            parts = rng.sample(parts, len(parts))
            inner = rng.randrange(len(parts))
            if inner > 1:
                parts = [type(tree)(tuple(parts[:inner])), *parts[inner:]]
            return type(tree)(tuple(parts))
        case Not(part):
            return Not(_shuffled(part, rng))
    return Not(Not(tree)) if rng.random() < 0.3 else tree


#: With tests of few values, which often imply or exclude each other
_MEETING = st.recursive(
    filters.any_test(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["a", "ab"])),
    filters.joined,
    max_leaves=9,
)


@given(trees | filters.counting_trees | _MEETING, spellings, spellings)
def test_the_normal_form_of_a_normal_form_is_itself(tree: Any, spelling: random.Random, other: random.Random) -> None:
    rows = rows_of(text_of(tree, spelling))
    assert rows_of(text_of(_shuffled(tree, other), other)) == rows
    texts = [
        " and ".join([*(f"tags {{{quoted(tag)}}}" for tag in row.tags), *map(str, row.constraints)]) for row in rows
    ]
    assert rows_of(" or ".join(f"({text})" for text in texts)) == rows
    for row, text in zip(rows, texts, strict=True):
        assert rows_of(text) == [row]


_REPEATED = [
    "(a = 1 and b < 2) and (c = 1 or d = 1 and a = 1)",
    'a prefix "a" and (not a in {"a", "ab"} or a not in {1, "ab"})',
    'c < 2 and (c != 2 or tags {"y"}) and not c in {1, "ab"}',
    'b = 2 and not (b not in {1, "b"} and b not in {version "1.0.0", "ab"})',
    "c < 1 and (not exists(a) or a <= 1) and not c != false",
]


@pytest.mark.parametrize("text", _REPEATED)
def test_a_repeated_part_makes_no_difference(text: str) -> None:
    rows = rows_of(text)
    for part in text.split(" and "):
        if part.count("(") == part.count(")"):
            assert rows_of(f"{part} and {text}") == rows_of(f"({text}) and ({text})") == rows


def test_what_rules_out_all_numbers_has_one_form() -> None:
    [row] = rows_of("a <= 1 and not a >= 2 and not a < 2")
    assert rows_of(" and ".join(map(str, row.constraints))) == [row]


def test_the_order_of_parts_that_are_too_many_together_makes_no_difference() -> None:
    """Some orders would leave fewer alternatives before there are too many, and others would not."""
    groups = [[f"x{at}" for at in range(60)], [f"x{at}" for at in range(61)], [f"y{at}" for at in range(17)]]
    parts = [f"any of tags {{{', '.join(map(quoted, tags))}}}" for tags in groups]
    first, *others = (rows_of(" and ".join(order)) for order in permutations(parts))
    assert all(rows == first for rows in others)


def test_tests_of_one_attribute_stay_apart() -> None:
    """Each may hold for another one of several values."""
    [row] = rows_of("a > 5 and a < 3")
    assert len(row.constraints) == 2
    assert satisfies(row, [], {"a": [1, 9]})
    assert not satisfies(row, [], {"a": [4]})


def _choices(count: int) -> And:
    return And(tuple(Or((Tags((f"x{at}",)), Tags((f"y{at}",)))) for at in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("is_negated", [False, True])
def test_as_many_conjunctions_as_are_allowed(is_negated: bool) -> None:
    def text(count: int) -> str:
        tree = _choices(count)
        return text_of(Not(Or(tuple(map(Not, tree.parts)))) if is_negated else tree, random.Random(1))

    assert len(rows_of(text(10))) == 1024 == MAX_CONJUNCTIONS
    for count in (11, 500):
        assert [len(row.constraints) for row in rows_of(text(count))] == [count]
    assert {ValueError, TagMatchError} <= {*FilterError.__mro__}


def test_more_alternatives_than_are_allowed_are_parts_of_one_set() -> None:
    pairs = [f"(a{at} = 1 or b{at} = 1)" for at in range(11)]
    [row] = rows_of(" and ".join([*pairs, "c = 1", 'tags {"x"}']))
    assert row.tags == ["x"]
    assert sorted(map(str, row.constraints)) == sorted(
        [*(f"at least 1 of {{{pair[1:-1].replace(' or ', ', ')}}}" for pair in pairs), "c = 1"]
    )
    [negated] = rows_of(f"not ({' or '.join(f'not {pair}' for pair in pairs)})")
    assert negated.constraints == rows_of(" and ".join(pairs))[0].constraints
    [[whole]] = [row.constraints for row in rows_of(f"at least 2 of {{{' and '.join(pairs)}, c = 1, d = 1}}")]
    assert str(whole).startswith("at least 2 of {((a0 = 1 or b0 = 1) and ")
    for each in (whole, *row.constraints):
        assert rows_of(Where(str(each))) == [Row([], [each])]


def test_so_many_of_some_parts() -> None:
    for text, same in [
        ('at least 2 of tags {"c", "b", "a"}', 'at least 2 of {tags {"a"}, tags {"b"}, tags {"c"}}'),
        ("not at least 2 of {a = 1, b = 1, c = 1}", "at least 2 of {not a = 1, not b = 1, not c = 1}"),
        ("not not at least 1 of {a = 1, b = 1}", "at least 1 of {b = 1, a = 1}"),
        ("at least 1 of {a = 1 or a = 2}", "a in {1, 2}"),
        (
            "at least 2 of {a = 1 or b = 1 and (c = 1 or c = 2), a = 1}",
            "at least 2 of {a = 1, (b = 1 and c in {1, 2}) or a = 1}",
        ),
    ]:
        assert rows_of(text) == rows_of(same), text
    assert len(rows_of("at least 2 of {a = 1, a = 1, b = 1}")[0].constraints[0].parts[1]) == 3
    assert rows_of("a = 1 or at least 1 of {b = 1, c = 1}") == rows_of("a = 1 or b = 1 or c = 1")
    assert rows_of("not at least 3 of {a = 1, b = 1, c = 1}") == rows_of("not a = 1 or not b = 1 or not c = 1")


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "1",
        "1:",
        "0:1:a",
        "3:1:a1:b",
        "1:1:b1:a",
        "1:2:a",
        "01:1:a",
        "1:01:a",
        "1:4:\0+rx",
        "1:7:\0+ax\0c1",
        "1:9:\0-p\0001:1:a",
    ],
)
def test_parts_that_no_expression_has(payload: str) -> None:
    """As the index of a stranger may have them."""
    with pytest.raises(InvalidValueError, match="no constraint has the "):
        Constraint.of_tag(f"\0+p\0{payload}")
    deep = "1:1:a"
    for _ in range(200):
        deep = f"1:{len(deep) + 4}:\0+p\0{deep}"
    with pytest.raises(InvalidValueError, match="no constraint has the "):
        Constraint.of_tag(f"\0+p\0{deep}")


def test_one_more_alternative_than_are_allowed() -> None:
    alternatives = [f"a{value} = 1" for value in range(MAX_CONJUNCTIONS + 1)]
    assert len(rows_of(" or ".join(alternatives[1:]))) == MAX_CONJUNCTIONS
    assert [[each.kind for each in row.constraints] for row in rows_of(" or ".join(alternatives))] == [["p"]]
    assert len(rows_of(" and ".join(alternatives))) == 1
    assert rows_of(" or ".join(f"a = {value}" for value in range(5000))) == rows_of(
        f"a in {{{', '.join(map(str, range(5000)))}}}"
    )
    assert len(rows_of(f"a in {{{', '.join(map(str, range(5000)))}}}")) == 1


@pytest.mark.slow
def test_as_deep_as_is_allowed() -> None:
    assert rows_of("not " * MAX_DEPTH + "a = 1") == rows_of("a = 1")
    assert rows_of("(" * 5000 + "a = 1" + ")" * 5000) == rows_of("a = 1")
    for count in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(FilterError, match=r"^where: parentheses and `not` are more than 100 within each other"):
            rows_of("not " * count + "a = 1")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (" and ".join(f"a{number % 50} != {number}" for number in range(10_000)), 1),
        (" or ".join(" and ".join(f"a{at} = {at + more}" for at in range(4_000)) for more in (0, 1)), 2),
        (" and ".join(f"a between {number} and {20_000 - number}" for number in range(10_000)), 1),
        (" or ".join(f"(p >= {number} and p < {number + 1})" for number in range(0, 1_000, 3)), 334),
        ("".join(f"(a{at} = 1 or b{at} = 2) and (" for at in range(30)) + "c = 1" + ")" * 30, 1),
        ("a not in {" + ", ".join(map(str, range(20_000))) + "}", 1),
    ],
    ids=["unequal", "two long ones", "ranges", "alternatives", "nested", "list"],
)
def test_long_expressions_are_read_in_a_time_that_grows_with_them(text: str, count: int) -> None:
    """Terms and alternatives are not compared with each other one by one."""
    assert len(rows_of(text)) == count
