"""Tables of messages, whose attributes go to matchers as columns of any type, against plain Python and the row form."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import filters
from support.paths import all_in

from tagmatch import InvalidValueError, TagMatch
from tagmatch.pipeline.filters.index import Path

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
PLAIN = [pa.bool_(), *INTEGERS, pa.float16(), pa.float32(), pa.float64(), *TEXTS]
DICTIONARIES = [
    pa.dictionary(index, kind)
    for index, kind in [
        (pa.int32(), pa.string()),
        (pa.uint8(), pa.large_string()),
        (pa.int16(), pa.string_view()),
        (pa.int8(), pa.int16()),
        (pa.int32(), pa.float64()),
    ]
]
TYPES = [*PLAIN, *DICTIONARIES, pa.null()]


def as_view(lists: pa.ListArray) -> pa.ListViewArray:
    sizes = pc.list_value_length(lists).fill_null(0)
    return pa.ListViewArray.from_arrays(lists.offsets[:-1], sizes, lists.values, mask=lists.is_null())


#: Make other lists of lists
LISTS = [lambda lists: lists, lambda lists: lists.cast(pa.large_list(lists.type.value_type)), as_view]

NAMES = ["a", "b", "list `price`", "nobody asks"]


def own_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def drawn(kind: pa.DataType, near: list[Any]) -> st.SearchStrategy[Any]:
    """Values of a type, some of them near to others."""
    kind = own_type(kind)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        ends = np.iinfo(kind.to_pandas_dtype())
        low, high = int(ends.min), min(int(ends.max), 2**63 - 1)
        own = [each for each in [*near, *filters.INTEGERS] if type(each) is int and low <= each <= high]
        return st.sampled_from(own) | st.integers(low, high)
    if pa.types.is_floating(kind):
        return st.sampled_from([*(each for each in near if type(each) is float), *filters.FLOATS, math.nan])
    return st.sampled_from([*(each for each in near if type(each) is str), *filters.TEXTS])


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values, or lists of them where some are lists."""
    if any(isinstance(value, list) for value in values):
        offsets = [0]
        for value in values:
            offsets.append(offsets[-1] + len(value or []))
        flat = array_of([each for value in values for each in value or []], kind)
        mask = pa.array([value is None for value in values])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=mask)
    plain = own_type(kind)
    if pa.types.is_floating(plain):
        # NumPy rounds to narrow floats, which Arrow refuses
        with np.errstate(over="ignore"):
            numbers = np.array([0.0 if value is None else value for value in values]).astype(plain.to_pandas_dtype())
        found = pa.array(numbers, plain, mask=np.array([value is None for value in values], bool), from_pandas=False)
    else:
        found = pa.array(values, plain)
    if not pa.types.is_dictionary(kind):
        return found
    if pa.types.is_string_view(plain):
        coded = found.cast(pa.string()).dictionary_encode()
        return pa.DictionaryArray.from_arrays(coded.indices.cast(kind.index_type), coded.dictionary.cast(plain))
    coded = found.dictionary_encode()
    return pa.DictionaryArray.from_arrays(coded.indices.cast(kind.index_type), coded.dictionary)


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
def tables(draw: st.DrawFn, trees: list[Any]) -> pa.Table:
    """A column for each of some attributes and perhaps tags, in several chunks, of which some are empty."""
    tests = [test for tree in trees for test in filters.tests_of(tree)]
    near = [each for test in tests for operand in test.operands for each in filters.neighbours(operand)]
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 19]), min_size=1, max_size=3))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    has_tags = draw(st.booleans())
    before = draw(st.integers(0, 9))
    total = before + sum(sizes) + draw(st.integers(0, 2))
    made = {name: draw(columns(total, near)) for name in names}
    if has_tags:
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


SUBSCRIPTIONS = st.lists(
    st.tuples(st.sets(filters.tags, max_size=1), st.none() | filters.trees), min_size=1, max_size=6
)


def satisfied(subscriptions: list[Any], row: dict[str, Any]) -> list[int]:
    attributes = {name: values for name, values in row.items() if name != "tags"}
    tags = set(row.get("tags", []))
    return [
        key
        for key, (wanted, tree) in enumerate(subscriptions)
        if wanted <= tags and (tree is None or filters.evaluate(tree, tags, attributes))
    ]


def have_segments(patched: pytest.MonkeyPatch) -> None:
    """Each consolidation makes a segment, however small, and they stay."""
    patched.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    patched.setattr("tagmatch.merging.Merging.begin", lambda _: None)


@pytest.mark.parametrize("path", get_args(Path))
@given(subscriptions=SUBSCRIPTIONS, spelling=filters.spellings, data=st.data())
def test_columns_of_any_type(layout, path, subscriptions, spelling, data):
    """From one segment or two, each of which asks for other attributes; and, row by row, as tags."""
    table = data.draw(tables([tree for _, tree in subscriptions if tree is not None]))
    where = [None if tree is None else filters.text_of(tree, spelling) for _, tree in subscriptions]
    cut = data.draw(st.integers(0, len(subscriptions)))
    with all_in(path), pytest.MonkeyPatch.context() as patched, TagMatch(layout=layout, device="cpu", threads=2) as tm:
        have_segments(patched)
        for part in (slice(0, cut), slice(cut, None)):
            keys = range(len(subscriptions))[part]
            tm.add_sets([list(tags) for tags, _ in subscriptions[part]], keys, where=where[part])
            tm.consolidate()
        rows = table.to_pylist()
        wanted = [satisfied(subscriptions, row) for row in rows]
        assert tm.match_many(table, unique=True).to_pylist() == wanted
        for batch in table.to_batches():
            assert tm.match_many(batch, unique=True).to_pylist() == [
                satisfied(subscriptions, row) for row in batch.to_pylist()
            ]
        for row, keys in list(zip(rows, wanted, strict=True))[:5]:
            tags = row.pop("tags", [])
            assert sorted(tm.match_unique(tags, row)) == keys
            assert sorted(tm.submit(tags, row, unique=True).result()) == keys
            assert {key for _, found in tm.explain(tags, row) for key in found} == set(keys)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if not pa.types.is_null(kind)], ids=str)
@pytest.mark.parametrize("several", [False, True])
def test_many_rows_with_nulls(kind, several):
    """More than a packet has, cut at rows that are no multiple of eight, from every place in a byte of the validity."""
    plain = own_type(kind)
    if pa.types.is_boolean(plain):
        values, where = [True, False], ["x = true", "x != true"]
    elif pa.types.is_integer(plain) or pa.types.is_floating(plain):
        make = float if pa.types.is_floating(plain) else int
        values, where = [make(each) for each in (0, 1, 2, 100)], ["x <= 1", "x > 1.5 and x < 1e9"]
    else:
        values, where = ["", "a", "ab", "b"], ['x < "ab"', 'x suffix "b"']
    chosen = [None if row % 3 == 1 or 500 < row < 900 else values[row * 7 % len(values)] for row in range(3_000)]
    if several:
        chosen = [[each, values[row % len(values)]] if row % 5 else None for row, each in enumerate(chosen)]
    table = pa.table({"x": array_of(chosen, kind), "other": pa.nulls(len(chosen))})
    with TagMatch(device="cpu", threads=2) as tm:
        tm.add_sets([[], []], [0, 1], where=where)
        tm.consolidate()
        for first in range(9):
            some = table[first:]
            expected = [sorted(tm.match_unique([], {"x": each})) for each in [*some["x"][:40].to_pylist()]]
            found = tm.match_many(some, unique=True)
            assert found[:40].to_pylist() == expected
            assert found.to_pylist() == [
                [key for key in (0, 1) if holds(each, key, kind)] for each in some["x"].to_pylist()
            ]


def holds(given: Any, key: int, kind: pa.DataType) -> bool:
    """Whether a value, or one of several, satisfies what `test_many_rows_with_nulls` stores."""
    values = [each for each in (given if isinstance(given, list) else [given]) if each is not None]
    if pa.types.is_boolean(kind):
        return any(values) if key == 0 else any(not each for each in values)
    if isinstance(values[0] if values else "", str):
        return any(each < "ab" for each in values) if key == 0 else any(each.endswith("b") for each in values)
    return (
        any(each <= 1 for each in values)
        if key == 0
        else any(each > 1.5 for each in values) and any(each < 1e9 for each in values)
    )


def test_a_null_in_a_dictionary_is_no_value():
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["", None]))
    numbers = pa.DictionaryArray.from_arrays(pa.array([1, 0, 0, None]), pa.array([None, 7]))
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], where=["exists(text)", "exists(number)"])
        tm.consolidate()
        assert tm.match_many(pa.table({"text": texts, "number": numbers}), unique=True).to_pylist() == [
            [1, 2],
            [],
            [],
            [1],
        ]


def test_numbers_that_are_any_where_they_are_null():
    """Memory under a null may hold anything, such as a signaling NaN or an integer that is too great."""
    bits = np.array([0x7FA00000, 0x3F800000], np.uint32)
    validity = pa.py_buffer(bytes([0b10]))
    single = pa.Array.from_buffers(pa.float32(), 2, [validity, pa.py_buffer(bits.tobytes())])
    great = pa.Array.from_buffers(
        pa.uint64(), 2, [validity, pa.py_buffer(np.array([2**64 - 1, 1], np.uint64).tobytes())]
    )
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], where=["single = 1", "great = 1"])
        tm.consolidate()
        assert tm.match_many(pa.table({"single": single, "great": great}), unique=True).to_pylist() == [[], [1, 2]]


def test_slices_of_columns_that_are_read_in_place():
    """Wide numbers are matched where they lie; beside them are columns that are copied, and lists without a value."""
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
    where = [
        *(f"exists({name})" for name in columns),
        "wide >= 2 and whole < 3",
        'narrow = 1 and text = "a"',
        "odd = 4",
    ]
    with TagMatch(device="cpu", threads=2) as tm:
        tm.add_sets([[]] * len(where), range(len(where)), where=where)
        tm.consolidate()
        table = pa.table(columns)
        for part in (table, table[1:], table[2:4], table[3:], pa.concat_tables([table[3:], table[:2]])):
            rows = [{name: value for name, value in row.items() if value is not None} for row in part.to_pylist()]
            wanted = [sorted(tm.match_unique([], row)) for row in rows]
            assert [sorted(keys) for keys in tm.match_many(part, unique=True).to_pylist()] == wanted


@pytest.mark.parametrize("asked", ["great", "other"])
def test_mistakes_come_before_any_answer(asked):
    """Also in columns that no set asks for, and in the last rows: nothing is matched."""
    rows = 10_000
    great = pa.array([1] * (rows - 1) + [2**63], pa.uint64())
    with TagMatch(device="cpu", threads=2) as tm:
        tm.add_set([], 1, where=f"{asked} = 1")
        tm.consolidate()
        with pytest.raises(InvalidValueError, match=f"column 'great': row {rows - 1} has {2**63}, which"):
            tm.match_many(pa.table({"other": [1] * rows, "great": great}))
        assert tm.stats()["queries"] == 0


def test_attributes_without_a_set_that_asks():
    """They are checked and left out, also where only other sets have conditions."""
    table = pa.table({"tags": [["a"], []], "x": [1, 2]})
    with TagMatch(device="cpu") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        assert tm.match_many(table).to_pylist() == [[1], []]
        tm.add_set([], 2, where="y = 1")
        tm.consolidate()
        assert tm.match_many(table).to_pylist() == [[1], []]
        assert tm.match_many(table[:0]).to_pylist() == []
        assert tm.match_many(table.drop_columns(["tags"])[:0]).to_pylist() == []


@pytest.mark.parametrize("value", [math.nan, -0.0, 0.0, math.inf, -math.inf, 5e-324, 2.0**63, -(2.0**63)])
def test_numbers_at_the_edges(value):
    """Doubles beside integers: -0.0 is 0, and NaN equals nothing."""
    operands = ["0", "1e999", "-1e999", "9223372036854775807", "9223372036854775808.0", "-9223372036854775808"]
    tests = [f"x {operator} {operand}" for operand in operands for operator in ("<", "<=", "=", "!=", ">", ">=")]
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[]] * len(tests), range(len(tests)), where=tests)
        tm.consolidate()
        for column in (pa.array([value]), pa.array([2**63 - 1, 2**63 - 2, -(2**63), 0])):
            found = tm.match_many(pa.table({"x": column}), unique=True).to_pylist()
            assert found == [sorted(tm.match_unique([], {"x": each})) for each in column.to_pylist()]


def test_segments_ask_for_different_columns(monkeypatch):
    have_segments(monkeypatch)
    table = pa.table({"x": [1, None, 1], "y": ["a", "a", None], "z": [True, True, True]})
    with TagMatch(device="cpu") as tm:
        # Each has fewer than the one before, with which it would be merged
        for first, where in [
            (0, [f"x = {number}" for number in range(50)]),
            (50, ['y = "a"', 'y > "a"', 'y < "a"']),
            (53, ['x = 1 and y contains "a"']),
        ]:
            tm.add_sets([[]] * len(where), range(first, first + len(where)), where=where)
            tm.consolidate()
        assert tm.stats()["segments"] == 3
        assert tm.match_many(table, unique=True).to_pylist() == [[1, 50, 53], [50], [1]]
