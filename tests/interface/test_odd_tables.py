"""Tables of subscriptions and of messages in any shape that Arrow has, and those that are none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tagmatch import TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError

CHEAP = {"attr": "price", "op": "<", "value": 10}
NO_TAGS = {"list": pa.list_(pa.string()), "large list": pa.large_list(pa.large_string()), "null": pa.null(),
           "fixed size": pa.list_(pa.string(), 1), "view": pa.list_view(pa.string()),
           "dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string()))}  # fmt: skip


def subscriptions(tags: pa.Array) -> pa.Table:
    """Of which the first two have constraints."""
    constraints = pa.array([None, [CHEAP], None, None][: len(tags)])
    keys, where = [1, 2, 3, 4][: len(tags)], ["price < 10", None, None, None][: len(tags)]
    where_column = pa.array(where, pa.string())
    return pa.table({"key": keys, "tags": tags, "where": where_column, "constraints": constraints})


@pytest.mark.parametrize("kind", NO_TAGS.values(), ids=NO_TAGS)
@pytest.mark.parametrize("shape", ["whole", "chunks", "slice", "batch"])
def test_null_tags_beside_constraints_are_none(kind: pa.DataType, shape: str) -> None:
    some = not pa.types.is_null(kind)
    tags = [None, None, ["a"]] if some else [None, None]
    column = pa.array(tags, kind)
    table: Any = subscriptions(column)
    if shape == "chunks":
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    elif shape == "slice":
        table = pa.concat_tables([table, table]).combine_chunks().slice(len(table))
    elif shape == "batch":
        (table,) = table.to_batches()
    tm = TagMatch()
    tm.add_subscriptions(table)
    tm.consolidate()
    expected = [1, 2, 3] if some else [1, 2]
    assert sorted(tm.match(["a"], {"price": 9.5})) == expected
    assert sorted(tm.match(["a"], {"price": 10})) == expected[2:]
    tm.remove_subscriptions(table)
    tm.consolidate()
    assert len(tm) == 0


def test_null_tags_alone_are_an_error() -> None:
    """The message names the row, not that of null tags beside constraints."""
    tags = pa.array([None, ["a"], ["b"], None], pa.list_(pa.string()))
    tm = TagMatch()
    for table in (
        subscriptions(tags),
        pa.concat_tables([subscriptions(tags).slice(0, 2), subscriptions(tags).slice(2)]),
    ):
        with pytest.raises(NullError, match="row 3 has no tags and no condition"):
            tm.add_subscriptions(table)
    assert tm.stats()["staged"] == 0


# -- messages ----------------------------------------------------------------------------------------------------------

WHERE = ["p < 10", "key = 3", "exists(p)", "not exists(p)", 's = "a"', 's contains "é"', "p = 2 and p = 3"]
TEXTS = [["a", None, "é", "bé"], ["b"], [], ["a"]]


@pytest.fixture
def tm() -> Any:
    with TagMatch[int](device="cpu", threads=1) as tm:
        tm.add_sets([[]] * len(WHERE), range(len(WHERE)), where=WHERE)
        tm.consolidate()
        yield tm


def table_of(*columns: tuple[str, pa.Array]) -> pa.Table:
    """Columns of which several may have a name."""
    return pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
     pa.dictionary(pa.uint32(), pa.large_string())], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", ["whole", "slice", "chunks", "empty chunks"])
def test_texts(tm: Any, kind: pa.DataType, shape: str) -> None:
    """Also null, and cut out of longer arrays, whose bits of validity then begin within a byte."""
    texts = ["b", None, "a", "é", None, "xéx", "a", "é"] * 3
    column = pa.array(texts, pa.string())
    whole = column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column.cast(kind)
    first = 0 if shape == "whole" else 3
    table = pa.table({"s": whole, "p": pa.array([None, 3, 10] * 8)}).slice(first)
    if shape.endswith("chunks"):
        empty = [table.slice(0, 0)] if shape.startswith("empty") else []
        table = pa.concat_tables([*empty, table.slice(0, 5), *empty, table.slice(5), *empty])
    expected = [
        [
            key
            for key, holds in enumerate((p == 3, False, p is not None, p is None, s == "a", "é" in (s or "")))
            if holds
        ]
        for s, p in zip(texts[first:], ([None, 3, 10] * 8)[first:], strict=True)
    ]
    assert tm.match_many(table, unique=True).to_pylist() == expected


@pytest.mark.parametrize("of", ["list", "large list", "view", "large view", "dictionary"])
def test_lists_with_nulls_inside(tm: Any, of: str) -> None:
    kinds = {"list": pa.list_(pa.string()), "large list": pa.large_list(pa.large_string()),
             "view": pa.list_view(pa.string()), "large view": pa.large_list_view(pa.string()),
             "dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string()))}  # fmt: skip
    table = pa.table({"s": pa.array([None, *TEXTS, [None]], kinds[of])})
    expected = [[3], [3, 4, 5], [3], [3], [3, 4], [3]]
    assert tm.match_many(table, unique=True).to_pylist() == expected
    assert tm.match_many(table.slice(1, 4), unique=True).to_pylist() == expected[1:5]


def test_columns_without_rows_or_values(tm: Any) -> None:
    assert tm.match_many(pa.table({"p": pa.nulls(2), "s": pa.nulls(2)})).to_pylist() == [[3], [3]]
    assert tm.match_many(
        pa.table({"p": pa.array([[None]]), "s": pa.array([None], pa.list_(pa.null()))})
    ).to_pylist() == [[3]]
    no_chunks = pa.chunked_array([], pa.int64())
    for table in ({}, {"p": pa.nulls(0)}, {"p": no_chunks}, {"s": pa.array([], pa.dictionary(pa.int8(), pa.string()))}):
        assert tm.match_many(pa.table(table)).to_pylist() == []
    for names in ({}, {"tags": pa.nulls(0), "constraints": pa.nulls(0)}):
        tm.add_subscriptions(pa.table({"key": pa.nulls(0), "where": pa.nulls(0)} | names))
    tm.add_subscriptions(pa.table({"key": no_chunks, "where": pa.chunked_array([], pa.string())}))
    assert tm.stats()["staged"] == 0


def test_attributes_that_columns_of_subscriptions_are_called(tm: Any) -> None:
    """`key`, `where` and `constraints` are attributes as others in messages; `tags` only outside of tables."""
    tm.add_set([], 7, where='`tags` = "x" and where = 1 and constraints = true')
    tm.consolidate()
    assert tm.match_many(table_of(("key", pa.array([3, 4])))).to_pylist() == [[3, 1], [3]]
    attributes = {"tags": "x", "where": 1, "constraints": True}
    assert sorted(tm.match([], attributes)) == [3, 7]
    del attributes["tags"]
    table = pa.table({name: [value] for name, value in attributes.items()} | {"tags": [["x"]]})
    assert tm.match_many(table).to_pylist() == [[3]]


@pytest.mark.parametrize("name", ["tags", "p", "unknown"])
def test_a_column_twice(tm: Any, name: str) -> None:
    """It might be taken for several values, or one for the other."""
    values = pa.array([["a"]])
    with pytest.raises(InvalidValueError, match=f"there must be one column '{name}', not 2"):
        tm.match_many(table_of((name, values), ("q", pa.array([1])), (name, values)))
    with pytest.raises(InvalidValueError, match="each once, not 'where'"):
        tm.add_subscriptions(table_of(("key", pa.array([1])), ("where", pa.array(["p < 1"])), ("where", pa.nulls(1))))


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.decimal128(5, 2), pa.binary(), pa.struct({"a": pa.int8()}), pa.timestamp("s"), pa.duration("s"),
     pa.list_(pa.date32()), pa.list_(pa.list_(pa.string())), pa.map_(pa.string(), pa.date32()),
     pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["p", "unknown"])
def test_types_that_no_attribute_has(tm: Any, kind: pa.DataType, name: str) -> None:
    """Whether a set asks for it or not, and has a value or not."""
    with pytest.raises(InvalidTypeError, match=f"column '{name}' is of .*: cast it, or leave it out"):
        tm.match_many(table_of(("s", pa.array(["a"])), (name, pa.nulls(1, kind))))
