"""Attributes of messages in columns of maps, against plain Python and messages one by one."""

from __future__ import annotations

from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import filters
from support.paths import all_in

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.pipeline.filters.index import Path

#: Types of names; Arrow can also have them in a dictionary
NAMES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.sampled_from(filters.INTEGERS),
    pa.float64(): st.sampled_from(filters.FLOATS),
    pa.string(): st.sampled_from(filters.TEXTS),
}


def maps_of(rows: list[dict[str, Any] | None], names: pa.DataType, values: pa.DataType) -> pa.MapArray:
    """A column of maps; a null where a row has none."""
    offsets, flat, entries = [], [], []
    for row in rows:
        offsets.append(None if row is None else len(flat))
        flat += [] if row is None else row.keys()
        entries += [] if row is None else row.values()
    if pa.types.is_dictionary(names):
        coded = pa.array(flat, pa.string()).dictionary_encode()
        flat_names = pa.DictionaryArray.from_arrays(coded.indices.cast(names.index_type), coded.dictionary)
    else:
        flat_names = pa.array(flat, names)
    return pa.MapArray.from_arrays(
        pa.array([*offsets, len(flat)], pa.int32()), flat_names, pa.array(entries, values), type=pa.map_(names, values)
    )


@st.composite
def maps(draw: st.DrawFn, count: int) -> tuple[pa.MapArray, list[dict[str, Any] | None]]:
    """A column of maps to values of one type, or to lists of them, and what is in its rows."""
    kind = draw(st.sampled_from(list(VALUES)))
    value = st.none() | VALUES[kind]
    if draw(st.booleans()):
        kind, value = pa.list_(kind), st.none() | st.lists(value, max_size=3)
    row = st.none() | st.dictionaries(st.sampled_from([*filters.ATTRIBUTES, "nobody asks"]), value, max_size=4)
    rows = draw(st.lists(row, min_size=count, max_size=count))
    return maps_of(rows, draw(st.sampled_from(NAMES)), kind), rows


def together(rows: list[dict[str, Any] | None]) -> dict[str, Any]:
    """All values that a message has of each attribute, whatever column they come in."""
    found: dict[str, Any] = {}
    for row in rows:
        for name, value in (row or {}).items():
            found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return found


SUBSCRIPTIONS = st.lists(
    st.tuples(st.sets(filters.tags, max_size=1), st.none() | filters.trees), min_size=1, max_size=6
)


@pytest.mark.parametrize("path", get_args(Path))
@given(subscriptions=SUBSCRIPTIONS, spelling=filters.spellings, data=st.data())
def test_maps_beside_each_other_and_tags(layout, path, subscriptions, spelling, data):
    """Maps of several types, a column that is one attribute, and tags; any rows of them, in one chunk or two."""
    count = data.draw(st.integers(0, 12))
    columns = {f"map {i}": data.draw(maps(count)) for i in range(data.draw(st.integers(1, 2)))}
    table: dict[str, Any] = {name: column for name, (column, _) in columns.items()}
    single = data.draw(
        st.none() | st.lists(st.none() | st.sampled_from(filters.INTEGERS), min_size=count, max_size=count)
    )
    if single is not None:
        table[filters.ATTRIBUTES[0]] = pa.array(single, pa.int64())
    tags = data.draw(st.none() | st.lists(st.lists(filters.tags, max_size=3), min_size=count, max_size=count))
    if tags is not None:
        kind = data.draw(st.sampled_from([pa.string(), pa.dictionary(pa.int32(), pa.string())]))
        table["tags"] = pa.array(tags, pa.list_(kind))
    wanted, messages = [], []
    for i in range(count):
        given_rows = [rows[i] for _, rows in columns.values()]
        if single is not None:
            given_rows.append({filters.ATTRIBUTES[0]: single[i]})
        attributes, own = together(given_rows), set() if tags is None else set(tags[i])
        messages.append((own, attributes))
        wanted.append(
            [
                key
                for key, (needed, tree) in enumerate(subscriptions)
                if needed <= own and (tree is None or filters.evaluate(tree, own, attributes))
            ]
        )
    where = [None if tree is None else filters.text_of(tree, spelling) for _, tree in subscriptions]
    first = data.draw(st.integers(0, count))
    whole = pa.table(table)
    with all_in(path), TagMatch(layout=layout, device="cpu", threads=2) as tm:
        tm.add_sets([list(needed) for needed, _ in subscriptions], range(len(subscriptions)), where=where)
        tm.consolidate()
        assert tm.match_many(whole, unique=True).to_pylist() == wanted
        assert tm.match_many(whole[first:], unique=True).to_pylist() == wanted[first:]
        parts = pa.concat_tables([whole[first:], whole[:first]])
        assert tm.match_many(parts, unique=True).to_pylist() == wanted[first:] + wanted[:first]
        for (own, attributes), keys in zip(messages[:5], wanted, strict=False):
            assert sorted(tm.match_unique(own, attributes)) == keys


def test_more_than_a_packet():
    """Rows that several threads make tags of."""
    rows = [None if i % 7 == 3 else {f"name {i % 50}": i % 10, "x": i % 4} for i in range(20_000)]
    with TagMatch(device="cpu", threads=2) as tm:
        tm.add_sets([[], []], [0, 1], where=["x = 1", "`name 7` >= 5"])
        tm.consolidate()
        table = pa.table({"attributes": maps_of(rows, pa.string(), pa.int64())})
        assert tm.match_many(table, unique=True).to_pylist() == [
            [key for key, holds in enumerate((row and row["x"] == 1, row and row.get("name 7", 0) >= 5)) if holds]
            for row in rows
        ]


@pytest.mark.parametrize(
    ("rows", "names", "values", "error", "message"),
    [
        (
            [{}, {"": 1}],
            pa.string(),
            pa.int64(),
            InvalidValueError,
            "row 1: the name .* must not be empty",
        ),
        ([{"a": 1}, None, {"b": 1, "a\0": 2}], pa.string(), pa.int64(), InvalidValueError, "row 2: .*U\\+0000"),
        ([{}, {"b": 1, "a": 2**63}], pa.string(), pa.uint64(), InvalidValueError, "row 1 has 9223372036854775808"),
        ([{}, {"b": [], "a": [1, 2**63]}], pa.string(), pa.list_(pa.uint64()), InvalidValueError, "row 1 has 92233"),
        ([{"a": b"1"}], pa.string(), pa.binary(), InvalidTypeError, "map<string, binary>, but attributes are bools"),
        ([{1: 1}], pa.int64(), pa.int64(), InvalidTypeError, "the names of attributes are strings: cast them"),
    ],
)
def test_what_no_attribute_can_be(rows, names, values, error, message):
    table = pa.table({"of it": maps_of(rows, names, values)})
    with TagMatch(device="cpu") as tm, pytest.raises(error, match=f"column 'of it'.*{message}"):
        tm.match_many(table)
