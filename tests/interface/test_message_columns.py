"""Tables of messages, whose attributes are columns of any type, or maps, against the oracle."""

import asyncio
import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import And, Oracle, Test, evaluate
from support import filters, strategies
from support.agreement import index_of
from support.conditions import Expression, Message
from support.segments import all_in, segments_stay

from tagmatch import Circle, InvalidValueError, TagMatch
from tagmatch.model.arrow import numpy_type
from tagmatch.pipeline.filters import attributes
from tagmatch.pipeline.filters.index import Path

# Most messages here have attributes only; no condition asks for some of these
pytestmark = pytest.mark.filterwarnings("ignore:these messages have no tags")

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
PLAIN = [pa.bool_(), *INTEGERS, pa.float16(), pa.float32(), pa.float64(), *TEXTS]
VIEWS = pa.dictionary(pa.int16(), pa.string_view())
DICTIONARIES = [pa.dictionary(index, kind) for index, kind in (
    (pa.int32(), pa.string()), (pa.uint8(), pa.large_string()), (pa.int8(), pa.int16()), (pa.int32(), pa.float64()),
)]  # fmt: skip
TIMES = [pa.date32(), pa.date64(), *(pa.timestamp(unit, "Europe/Rome") for unit in ("s", "ms", "us", "ns"))]
DECIMALS = [pa.decimal128(*each) for each in ((38, 20), (10, 2), (30, 0))]
DECIMALS += [pa.decimal256(76, 40), pa.decimal64(15, 3)]
TYPES = [*PLAIN, *DICTIONARIES, VIEWS, pa.null(), *TIMES, *DECIMALS]


def as_view(lists: pa.ListArray) -> pa.ListViewArray:
    sizes = pc.list_value_length(lists).fill_null(0)
    return pa.ListViewArray.from_arrays(lists.offsets[:-1], sizes, lists.values, mask=lists.is_null())


#: Make other lists of lists
LISTS = [lambda lists: lists, lambda lists: lists.cast(pa.large_list(lists.type.value_type)), as_view]

NAMES = ["a", "b", "list `price`", "never asked"]


def own_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def fits(value: Decimal, kind: pa.DataType) -> bool:
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowInvalid, pa.ArrowException):
        return False


def drawn(kind: pa.DataType, near: list[Any]) -> st.SearchStrategy[Any]:
    kind = own_type(kind)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        ends = np.iinfo(numpy_type(kind))
        low, high = int(ends.min), min(int(ends.max), 2**63 - 1)
        own = [each for each in [*near, *filters.INTEGERS] if type(each) is int and low <= each <= high]
        return st.sampled_from(own) | st.integers(low, high)
    if pa.types.is_decimal(kind):
        own = [
            each for each in [*near, *filters.DECIMALS, Decimal(0)] if isinstance(each, Decimal) and fits(each, kind)
        ]
        return st.sampled_from(own)
    if pa.types.is_date(kind):
        return st.sampled_from([*(each for each in near if type(each) is date), date(2026, 10, 25), date(1969, 12, 31)])
    if pa.types.is_timestamp(kind):
        own = [each for each in [*near, *filters.TIMES] if isinstance(each, datetime)]
        least = {"s": 10**6, "ms": 10**3}.get(kind.unit, 1)
        return st.sampled_from([each for each in own if not each.microsecond % least and 1700 < each.year < 2200])
    if pa.types.is_floating(kind):
        return st.sampled_from([*(each for each in near if type(each) is float), *filters.FLOATS, math.nan])
    return st.sampled_from([*(each for each in near if type(each) is str), *filters.TEXTS])


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    if any(isinstance(value, list) for value in values):
        kind = pa.list_(kind)
    if kind in (VIEWS, pa.list_(VIEWS)):  # which Arrow makes of others only
        plain = pa.dictionary(VIEWS.index_type, pa.string())
        return pa.array(values, plain if kind == VIEWS else pa.list_(plain)).cast(kind)
    return pa.array(values, kind)


@st.composite
def columns(draw: st.DrawFn, rows: int, near: list[Any]) -> pa.Array:
    kind = draw(st.sampled_from(TYPES))
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    value = st.none() | drawn(kind, near)
    is_list = draw(st.booleans())
    if not is_list:
        return array_of(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
    several = st.none() | st.lists(value, max_size=3)
    found = array_of([*draw(st.lists(several, min_size=rows, max_size=rows)), []], kind)[:rows]
    if pa.types.is_dictionary(kind):
        return found
    return draw(st.sampled_from(LISTS))(found)


@st.composite
def maps(draw: st.DrawFn, rows: int, near: list[Any]) -> pa.MapArray:
    """A column of maps to values of one type, or to lists of them."""
    kind = draw(st.sampled_from([pa.bool_(), pa.int64(), pa.float64(), pa.string()]))
    value = st.none() | drawn(kind, near)
    if draw(st.booleans()):
        kind, value = pa.list_(kind), st.none() | st.lists(value, max_size=3)
    row = st.none() | st.dictionaries(st.sampled_from(NAMES), value, max_size=4)
    names = draw(st.sampled_from([*TEXTS, pa.dictionary(pa.int8(), pa.string())]))
    return pa.array(draw(st.lists(row, min_size=rows, max_size=rows)), pa.map_(names, kind))


@st.composite
def tables(draw: st.DrawFn, trees: list[Any]) -> pa.Table:
    """A column for each of some attributes, and perhaps maps and tags, in several chunks, some of them empty."""
    tests = [test for tree in trees for test in filters.tests_of(tree)]
    near = [each for test in tests for operand in test.operands for each in filters.neighbours(operand)]
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 19]), min_size=1, max_size=3))
    before = draw(st.integers(0, 9))
    total = before + sum(sizes) + draw(st.integers(0, 2))
    made = {name: draw(columns(total, near)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))}
    made |= {f"map {i}": draw(maps(total, near)) for i in range(draw(st.integers(0 if made else 1, 2)))}
    if draw(st.booleans()):
        tags = draw(st.lists(st.lists(filters.tags, max_size=3), min_size=total, max_size=total))
        kind = draw(st.sampled_from([pa.string(), pa.dictionary(pa.int32(), pa.string())]))
        made["tags"] = pa.array(tags, pa.list_(kind))
    whole, batches = pa.table(made), []
    for size in sizes:
        batches += whole[before : before + size].to_batches() or [
            pa.RecordBatch.from_arrays([column.slice(0, 0) for column in made.values()], names=list(made))
        ]
        before += size
    return pa.Table.from_batches(batches)


def message_of(row: dict[str, Any]) -> Message:
    """With all values that a message has of each attribute, from any column."""
    found: dict[str, Any] = {}
    for column, value in row.items():
        for name, several in (value or []) if column.startswith("map ") else [(column, value)]:
            found.setdefault(name, []).extend(several if isinstance(several, list) else [several])
    return Message(found.pop("tags", []), found)


WHERE = st.none() | st.builds(Expression.of, filters.trees, filters.spellings)
SUBSCRIPTIONS = st.lists(st.tuples(st.sets(filters.tags, max_size=1), WHERE), min_size=1, max_size=6)


@pytest.mark.parametrize("path", get_args(Path))
@given(subscriptions=SUBSCRIPTIONS, data=st.data(), layout=strategies.layouts)
def test_columns_of_any_type(layout, path, subscriptions, data):
    """From one segment or two, which ask for different attributes; in a table, in batches, and one by one."""
    table = data.draw(tables([where.tree for _, where in subscriptions if where is not None]))
    cut, oracle = data.draw(st.integers(0, len(subscriptions))), Oracle()
    with all_in(path), segments_stay(), TagMatch(layout=layout, device="cpu", threads=2) as tm:
        for part in (slice(0, cut), slice(cut, None)):
            tags, where = zip(*subscriptions[part], strict=True) if subscriptions[part] else ((), ())
            for each in (tm, oracle):
                each.add_sets(list(map(list, tags)), range(len(subscriptions))[part], where=list(where))
                each.consolidate()
        messages = list(map(message_of, table.to_pylist()))
        expected = [sorted(oracle.match_unique(*message)) for message in messages]
        assert tm.match_many(table, unique=True).to_pylist() == expected
        batches = [keys for batch in table.to_batches() for keys in tm.match_many(batch, unique=True).to_pylist()]
        assert batches == expected
        for message, keys in list(zip(messages, expected, strict=True))[:5]:
            assert sorted(tm.match_unique(*message)) == keys
            assert sorted(tm.submit(*message, unique=True).result()) == keys
            assert asyncio.run(tm.amatch(*message, unique=True)) == set(keys)
            assert dict(tm.explain(*message)) == dict(oracle.explain(*message))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in TYPES if not pa.types.is_null(kind)], ids=str)
@pytest.mark.parametrize("several", [False, True])
def test_many_rows_with_nulls(kind, several):
    """More than a packet has, cut at rows that are no multiple of eight, from every place in a byte of the validity."""
    plain = own_type(kind)
    if pa.types.is_boolean(plain):
        values, trees = [True, False], [Test("x", "=", (True,)), Test("x", "!=", (True,))]
    elif pa.types.is_integer(plain) or pa.types.is_floating(plain):
        make = float if pa.types.is_floating(plain) else int
        values = [make(each) for each in (0, 1, 2, 100)]
        trees = [Test("x", "<=", (1,)), And((Test("x", ">", (1.5,)), Test("x", "<", (1e9,))))]
    elif pa.types.is_decimal(plain):
        values = [Decimal("-0.50"), Decimal(1), Decimal("1.20"), Decimal("99.99")]
        values = values if plain.scale else [*map(round, values)]
        trees = [Test("x", "<=", (Decimal("1.2"),)), Test("x", ">", (Decimal("-0.499"),))]
    elif pa.types.is_temporal(plain):
        values = [date(1960, 1, 2), date(2026, 10, 25), date(2026, 10, 26), date(2030, 1, 1)]
        if pa.types.is_timestamp(plain):
            values = [datetime(each.year, each.month, each.day, tzinfo=UTC) for each in values]
        trees = [Test("x", "<=", (date(2026, 10, 25),)), Test("x", "!=", (date(2030, 1, 1),))]
    else:
        values, trees = ["", "a", "ab", "b"], [Test("x", "<", ("ab",)), Test("x", "suffix", ("b",))]
    chosen = [None if row % 3 == 1 or 500 < row < 900 else values[row * 7 % len(values)] for row in range(3_000)]
    if several:
        chosen = [[each, values[row % len(values)]] if row % 5 else None for row, each in enumerate(chosen)]
    table = pa.table({"x": array_of(chosen, kind), "other": pa.nulls(len(chosen))})
    where = [filters.text_of(tree, random.Random(0)) for tree in trees]
    expected = [[key for key, tree in enumerate(trees) if evaluate(tree, (), {"x": each})] for each in chosen]
    with index_of([[], []], [0, 1], where=where, device="cpu", threads=2) as tm:
        assert [sorted(tm.match_unique([], {"x": each})) for each in chosen[:40]] == expected[:40]
        for first in range(9):
            assert tm.match_many(table[first:], unique=True).to_pylist() == expected[first:]


def test_nulls_that_are_values_elsewhere():
    """In a dictionary; and memory under a null may hold anything: a signaling NaN, an integer that is too great."""
    bits = np.array([0x7FA00000, 0x3F800000], np.uint32)
    validity = pa.py_buffer(bytes([0b10]))
    great = pa.py_buffer(np.array([2**64 - 1, 1], np.uint64).tobytes())
    columns = {
        "text": pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["", None])),
        "number": pa.DictionaryArray.from_arrays(pa.array([None, 1]), pa.array([None, 7])),
        "single": pa.Array.from_buffers(pa.float32(), 2, [validity, pa.py_buffer(bits.tobytes())]),
        "great": pa.Array.from_buffers(pa.uint64(), 2, [validity, great]),
    }
    where = ["exists(text)", "exists(number)", "single = 1", "great = 1"]
    with index_of([[]] * 4, range(4), where=where, device="cpu") as tm:
        assert tm.match_many(pa.table(columns), unique=True).to_pylist() == [[], [0, 1, 2, 3]]


def test_slices_of_columns_that_are_read_in_place():
    """Wide numbers are matched in place, together with columns that are copied, and lists without a value."""
    odd = pa.py_buffer(b"-" + np.arange(5, dtype=np.int64).tobytes()).slice(1)
    columns = {
        "wide": pa.array([1, None, 2, 3, None]),
        "whole": pa.array([1.0, 2.0, 3.0, 1.0, 2.0]),
        "none": pa.array([None] * 5, pa.float64()),
        "empty": pa.array([[], None, [None], [], []], pa.list_(pa.int64())),
        "narrow": pa.array([1, 1, None, 2, 1], pa.int8()),
        "text": pa.array(["a", None, "b", "a", "a"]).dictionary_encode(),
        "odd": pa.Array.from_buffers(pa.int64(), 5, [None, odd]),
    }
    where = [f"exists({name})" for name in columns]
    where += ["wide >= 2 and whole < 3", 'narrow = 1 and text = "a"', "odd = 4"]
    with index_of([[]] * len(where), range(len(where)), where=where, device="cpu", threads=2) as tm:
        table = pa.table(columns)
        for part in (table, table[1:], table[2:4], table[3:], pa.concat_tables([table[3:], table[:2]])):
            rows = [{name: value for name, value in row.items() if value is not None} for row in part.to_pylist()]
            wanted = [sorted(tm.match_unique([], row)) for row in rows]
            assert [sorted(keys) for keys in tm.match_many(part, unique=True).to_pylist()] == wanted


@pytest.mark.parametrize("asked", ["great", "other"])
def test_mistakes_come_before_any_answer(asked):
    """Also in columns that no set asks for, and in the last rows: nothing is matched."""
    great = pa.array([1] * 9_999 + [2**63], pa.uint64())
    with index_of([[]], [1], where=f"{asked} = 1", device="cpu", threads=2) as tm:
        with pytest.raises(InvalidValueError, match=f"column 'great': row 9999 has {2**63}, which"):
            tm.match_many(pa.table({"other": [1] * 10_000, "great": great}))
        assert tm.stats()["queries"] == 0


def test_more_maps_than_a_packet():
    rows = [None if i % 7 == 3 else {f"name {i % 50}": i % 10, "x": i % 4} for i in range(20_000)]
    with index_of([[], []], [0, 1], where=["x = 1", "`name 7` >= 5"], device="cpu", threads=2) as tm:
        table = pa.table({"attributes": pa.array(rows, pa.map_(pa.string(), pa.int64()))})
        assert tm.match_many(table, unique=True).to_pylist() == [
            [key for key, holds in enumerate((row and row["x"] == 1, row and row.get("name 7", 0) >= 5)) if holds]
            for row in rows
        ]


@given(st.data())
def test_columns_that_are_cut_each_in_its_own_places(data: st.DataObject) -> None:
    columns: dict[str, list[Any]] = {
        "tags": [["a"], [], ["a"], ["b"]],
        "attributes": [{"price": 1}, {"price": 9}, None, {"price": 1}],
        "location": [[1.0, 2.0], [1.0, 2.0], None, [9.0, 2.0]],
        "id": [*range(4)],
    }
    table = pa.table({
        name: pa.chunked_array([values[:cut], values[cut:]], pa.array(values).type)
        for name, values in columns.items()
        for cut in [data.draw(st.integers(0, 4), name)]
    })  # fmt: skip
    with TagMatch(device="cpu") as tm:
        tm.add_set(["a"], 1, where="price < 5")
        tm.add_set(["a"], 2, area=Circle(1, 2, 5))
        tm.consolidate()
        assert list(map(sorted, tm.match_many(table).to_pylist())) == [[1, 2], [], [], []]


def test_more_names_of_columns_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "_MOST_ASKED", 1)
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where="a = 1")
        tm.add_set([], 2, where="b = 1")
        tm.consolidate()
        for names in ("ab", "ab", "bc", "bc", "cd", "da", "da", "ba"):
            table = pa.table({name: [2, 1] if name == "b" else [1, 2] for name in names})
            assert tm.match_many(table).to_pylist() == [[1] * ("a" in names), [2] * ("b" in names)]
