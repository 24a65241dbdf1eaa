"""Sets with `where`, and queries with attributes, against what an expression means to plain Python."""

from __future__ import annotations

import asyncio
import math
import pickle
import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import filters

from tagmatch import FilterError, InvalidTypeError, InvalidValueError, TagMatch, Where
from tagmatch.messages import as_tags, messages_in
from tagmatch.model.filters.values import attribute_tags

SUBSCRIPTIONS = st.lists(
    st.tuples(st.sets(filters.tags, max_size=2), st.none() | filters.trees), min_size=1, max_size=6
)
#: Of a kind each, as a column has them
COLUMNS = {
    pa.int64(): st.sampled_from([each for each in filters.INTEGERS if isinstance(each, int)]),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint64(): st.integers(0, 2**63 - 1),
    pa.float64(): st.sampled_from(filters.FLOATS) | st.just(math.nan),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.string(): filters.texts,
    pa.large_string(): filters.texts,
    pa.dictionary(pa.int32(), pa.string()): filters.texts,
}


def satisfied(subscriptions: list[Any], tags: set[str], attributes: dict[str, Any]) -> set[int]:
    return {
        key
        for key, (wanted, tree) in enumerate(subscriptions)
        if wanted <= tags and (tree is None or filters.evaluate(tree, tags, attributes))
    }


def written(subscriptions: list[Any], spelling: random.Random) -> list[str | None]:
    return [None if tree is None else filters.text_of(tree, spelling) for _, tree in subscriptions]


@given(subscriptions=SUBSCRIPTIONS, spelling=filters.spellings, data=st.data())
def test_any_way_to_ask(layout, subscriptions, spelling, data):
    """Sets are added one by one or together, and asked for by each call that takes a query."""
    where = written(subscriptions, spelling)
    with TagMatch(layout=layout, device="cpu", threads=2) as tm:
        if data.draw(st.booleans()):
            for key, ((tags, _), text) in enumerate(zip(subscriptions, where, strict=True)):
                tm.add_set(tags, key, where=text)
        else:
            tm.add_sets([list(tags) for tags, _ in subscriptions], range(len(subscriptions)), where=where)
        tm.consolidate()
        for _, tree in subscriptions:
            tags, attributes = data.draw(filters.messages(tree))
            keys = satisfied(subscriptions, tags, attributes)
            assert tm.match_unique(tags, attributes) == keys
            assert set(tm.match(tags, attributes)) == keys
            assert tm.submit(tags, attributes, unique=True).result() == keys
            assert asyncio.run(tm.amatch(tags, attributes, unique=True)) == keys
            assert {key for _, found in tm.explain(tags, attributes) for key in found} == keys
            assert tm.match_unique(tags) == satisfied(subscriptions, tags, {})


@given(subscriptions=SUBSCRIPTIONS, spelling=filters.spellings)
def test_what_is_stored_comes_back_and_goes(subscriptions, spelling):
    """By iteration, by a table, and by the expressions themselves."""
    where = written(subscriptions, spelling)
    tags, keys = [list(tags) for tags, _ in subscriptions], list(range(len(subscriptions)))
    with TagMatch(device="cpu") as tm, TagMatch(device="cpu") as other:
        tm.add_sets(tags, keys, where=where)
        tm.consolidate()
        stored, table = dict(tm), tm.to_arrow()
        assert all(each in tm for each in stored)
        other.add_sets(table["tags"], table["key"], where=table["where"] if "where" in table.column_names else None)
        other.consolidate()
        assert dict(other) == stored
        for each, found in stored.items():
            for key in found:
                other.remove_set(each, key)
        tm.remove_sets(pa.array(tags, pa.list_(pa.string())), keys, where=pa.array(where, pa.string()))
        for database in (tm, other):
            database.consolidate()
            assert dict(database) == {}


@given(data=st.data())
def test_tables_of_messages(data):
    """Columns of each type, of single values and of lists, give the tags that attributes of Python give."""
    rows = data.draw(st.integers(0, 4))
    columns: dict[str, pa.Array] = {}
    for number, kind in enumerate(data.draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=3))):
        values = st.none() | COLUMNS[kind]
        is_list = data.draw(st.booleans())
        if is_list:
            values = st.none() | st.lists(values, max_size=3)
        drawn = data.draw(st.lists(values, min_size=rows, max_size=rows))
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = pa.array(drawn, pa.list_(plain) if is_list else plain)
        columns[f"c{number}"] = column if kind is plain or is_list else column.dictionary_encode()
    if data.draw(st.booleans()):
        tags = data.draw(st.lists(st.lists(filters.tags, max_size=3), min_size=rows, max_size=rows))
        columns["tags"] = pa.array(tags, pa.list_(pa.string()))
    table = pa.table(columns) if columns else pa.table({"tags": pa.array([[]] * rows, pa.list_(pa.string()))})
    first = data.draw(st.integers(0, rows))
    for sliced in (table, table.slice(first)):
        wanted = []
        for row in sliced.to_pylist():
            given_tags = row.pop("tags", [])
            several = {name: each if isinstance(each, list) else [each] for name, each in row.items()}
            wanted.append(sorted(given_tags + [tag for each in several for tag in tags_of(each, several[each])]))
        assert [sorted(tags) for part in messages_in(sliced) for tags in rows_in(as_tags(part, threads=2))] == wanted


def tags_of(name: str, values: list[Any]) -> list[str]:
    """Of each value a tag, also of those that are equal."""
    return [tag for value in values for tag in attribute_tags({name: value})]


def rows_in(part: Any) -> list[list[str]]:
    text, ends = bytes(part.tags.data), part.tags.offsets
    strings = [text[begin:end].decode() for begin, end in pairwise(ends)]
    return [strings[begin:end] for begin, end in pairwise(part.offsets)]


@pytest.mark.parametrize("make", [pa.table, pa.RecordBatch.from_pydict])
def test_many_messages(make):
    """More than a thread writes at once, also with tags in a dictionary and lists with a value twice."""
    rows = 10_000
    prices = [None if row % 7 == 0 else row % 100 for row in range(rows)]
    cities = [[["Rome", "Rome", "Milan"], [], ["Oslo", None]][row % 3] for row in range(rows)]
    tags = pa.array([[["fr"], []][row % 2] for row in range(rows)], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    with TagMatch(device="cpu", threads=2) as tm:
        tm.add_set(["fr"], 1, where="price < 10")
        tm.add_set([], 2, where='city in {"Rome", "Milan"} and not price >= 50')
        tm.consolidate()
        messages = make({"tags": tags, "price": pa.array(prices), "city": pa.array(cities)})
        found = tm.match_many(messages, unique=True).to_pylist()
        assert [sorted(keys) for keys in tm.match_many(messages).to_pylist()] == found
    for row, (price, city) in enumerate(zip(prices, cities, strict=True)):
        wanted = [1] if row % 2 == 0 and price is not None and price < 10 else []
        assert found[row] == wanted + ([2] if "Rome" in city and (price is None or price < 50) else [])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1]).cast(pa.decimal128(21, 2)), "column 'x' is of decimal128"),
        (pa.array([0], pa.timestamp("s")), "column 'x' is of timestamp"),
        (pa.array([1, 2**63], pa.uint64()), "column 'x': row 1 has 9223372036854775808"),
        (pa.array([[1, 2], [], [3, 2**64 - 1]], pa.list_(pa.uint64())), "column 'x': row 2 has 18446744073709551615"),
    ],
)
def test_columns_that_are_no_attributes(column, message):
    with TagMatch(device="cpu") as tm, pytest.raises((InvalidTypeError, InvalidValueError), match=message):
        tm.match_many(pa.table({"x": column}))


def test_numbers_of_rows_go_on_in_the_next_chunk():
    chunks = pa.chunked_array([pa.array([1, 2], pa.uint64()), pa.array([2**63], pa.uint64())])
    with TagMatch(device="cpu") as tm, pytest.raises(InvalidValueError, match="row 2 has"):
        tm.match_many(pa.table({"x": chunks}))


def as_dictionary(rows: list[list[str]]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.dictionary(pa.int32(), pa.string())))


@pytest.mark.parametrize("sign", "+-=")
@pytest.mark.parametrize("make", [list, lambda rows: pa.array(rows, pa.list_(pa.string())), as_dictionary])
def test_reserved_tags(make, sign):
    with TagMatch(device="cpu") as tm:
        rows = make([["a", f"b\0{sign}"], ["a", "\0", f"{sign}"], ["a", f"\0{sign}b"], [f"\0{sign}"]])
        for change in (tm.add_sets, tm.remove_sets):
            with pytest.raises(InvalidValueError, match="tags: row 2 holds a tag that begins as constraints do"):
                change(rows, range(4))
        for change in (tm.add_set, tm.remove_set):
            with pytest.raises(InvalidValueError, match="tags holds a tag that begins as constraints do"):
                change([f"\0{sign}b"], 1)
        assert tm.stats()["staged"] == 0
        tm.add_sets(rows[:2], [0, 1])
        tm.consolidate()
        assert sorted(tm.match(["a", f"b\0{sign}", "\0", sign])) == [0, 1]


def test_a_reserved_string_of_a_dictionary_that_no_set_has():
    strings = pa.DictionaryArray.from_arrays(pa.array([0, 2, 2]), pa.array(["a", "\0=", "b"]))
    with TagMatch(device="cpu") as tm:
        tm.add_sets(pa.ListArray.from_arrays(pa.array([0, 1, 3]), strings), [1, 2])
        tm.consolidate()
        assert len(tm) == 2


def test_mistakes():
    with TagMatch(device="cpu") as tm:
        with pytest.raises(FilterError, match="where: column 8"):
            tm.add_set([], 1, where="price <")
        with pytest.raises(FilterError, match="where: row 2: column 8"):
            tm.add_sets([[], [], []], [1, 2, 3], where=["a = 1", None, "price <"])
        with pytest.raises(InvalidValueError, match="for each of the 2 sets, not 1"):
            tm.add_sets([[], []], [1, 2], where=["a = 1"])
        for where in (7, [7, "a = 1"], pa.array([1, 2])):
            with pytest.raises(InvalidTypeError, match="where"):
                tm.add_sets([[], []], [1, 2], where=where)
        with pytest.raises(InvalidTypeError, match="row 1 holds a condition"):
            tm.add_sets([["a"], [Where("a = 1")]], [1, 2])
        with pytest.raises(InvalidTypeError, match="attributes must be a mapping"):
            tm.match([], [("price", 1)])
        with pytest.raises(InvalidTypeError, match='attribute "price"'):
            tm.submit([], {"price": object()})
        assert tm.stats()["staged"] == 0


def test_conditions_are_no_tags():
    with TagMatch(device="cpu") as tm:
        tm.add_set(["a", "price < 10"], 1)
        tm.add_set(["a"], 2, where="price<10")
        tm.consolidate()
        assert dict(tm) == {frozenset({"a", "price < 10"}): (1,), frozenset({"a", Where("price < 10")}): (2,)}
        assert {"a", Where("price<10")} in tm
        assert {"a", Where("price < 11")} not in tm
        assert {"a", Where("price = 1 or price = 2")} not in tm
        assert tm.explain(["a"], {"price": 1}) == [(frozenset({"a", Where("price < 10")}), (2,))]


@pytest.mark.parametrize("alike", [511, 512])
def test_paths_are_told(alike):
    """Sets that ask for what all messages have are in lines, if they fill a block; all others in a trie."""
    with TagMatch(device="cpu") as tm:
        assert tm.stats()["with_conditions"] == {"trie": 0, "lines": 0}
        tm.add_set(["a"], 1)
        for key in range(alike):
            tm.add_set([], 1000 + key, where=f"price between {key} and {key + alike}")
        tm.add_set([], 2, where='price >= 0 and city = "Rome"')
        tm.consolidate()
        path = "lines" if alike == 512 else "trie"
        in_lines = alike if path == "lines" else 0
        assert tm.stats()["with_conditions"] == {"trie": alike - in_lines + 1, "lines": in_lines}
        found = tm.explain(["a"], {"price": 0, "city": "Rome"})
        assert {key: {tag.path for tag in tags if isinstance(tag, Where)} for tags, (key,) in found} == {
            1: set(),
            2: {"trie"},
            1000: {path},
        }
        copied = pickle.loads(pickle.dumps(found))
        assert {tag.path for tags, _ in copied for tag in tags if isinstance(tag, Where)} == {"trie", path}


def test_a_column_of_conditions_only_where_a_set_has_some(monkeypatch):
    """Rows that are deleted have none, though their tags are still in the vocabulary."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[f"t{i}"] for i in range(50)], range(50), where=[None] * 48 + ["x = 1", "x = 2"])
        tm.consolidate()
        for key, found in [(48, True), (49, False)]:
            tm.remove_set([f"t{key}"], key, where=f"x = {key - 47}")
            tm.consolidate()
            assert tm.stats()["deleted"] == key - 47
            assert ("where" in tm.to_arrow().column_names) == found


def test_alternatives_are_staged_in_the_log(tmp_path):
    """All of them, by a program that ends before it consolidates."""
    with TagMatch(tmp_path / "index", device="cpu", key_type="string") as tm:
        tm.add_set(["a"], "ana", where='price < 10 or city = "Rome"')
        tm.add_sets([["b"], ["c"]], ["bo", "cy"], where="price = 1 or price = 2")
    with TagMatch(tmp_path / "index", device="cpu", key_type="string") as tm:
        assert tm.stats()["staged"] == 6
        tm.consolidate()
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert sorted(tm.match(["a", "b"], {"city": "Rome", "price": 2})) == ["ana", "ana", "bo"]
        assert tm.match_unique(["a", "c"], {"price": 2}) == {"ana", "cy"}


def test_tables_of_subscriptions():
    with TagMatch(device="cpu") as tm, TagMatch(device="cpu") as other:
        where = pa.chunked_array([["price < 10", None], ['city = "Rome"']], pa.string())
        tm.add_subscriptions(pa.table({"key": [1, 2, 1], "where": where}), match_all=True)
        tm.consolidate()
        assert tm.match_unique([], {"city": "Rome"}) == {1, 2}
        assert tm.match_unique(["a"], {"price": 10}) == {2}
        other.add_subscriptions(tm.to_arrow())
        other.consolidate()
        assert dict(other) == dict(tm)
        for bad, message in [
            (pa.table({"tags": [["a"]]}), "need a column 'key'"),
            (pa.table({"key": [1], "price": [2]}), "not 'price'"),
            (pa.table({"key": [1, 2], "where": ["a = 1", "a ="]}), "where: row 1: column 4"),
            ([1], "must be a table of Arrow or a DataFrame"),
        ]:
            with pytest.raises((InvalidTypeError, InvalidValueError, FilterError), match=message):
                tm.add_subscriptions(bad)
        assert tm.stats()["staged"] == 0
