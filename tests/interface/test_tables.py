"""Tables of subscriptions and of messages: shapes of Arrow, names of columns, and rows that ask for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.agreement import index_of
from support.service import remote

from tagmatch import InvalidTypeError, InvalidValueError, NullError, TagMatch
from tagmatch.model.names import near_name

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


# -- messages ----------------------------------------------------------------------------------------------------------

WHERE = ["p < 10", "key = 3", "exists(p)", "not exists(p)", 's = "a"', 's contains "é"', "p = 2 and p = 3"]


@pytest.fixture
def tm() -> Any:
    with index_of([[]] * len(WHERE), range(len(WHERE)), where=WHERE, device="cpu", threads=1) as tm:
        yield tm


def table_of(*columns: tuple[str, pa.Array]) -> pa.Table:
    """Columns of which several may have a name."""
    return pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


def test_columns_without_rows_or_values(tm: Any) -> None:
    assert tm.match_many(pa.table({"p": pa.nulls(2), "s": pa.nulls(2)})).to_pylist() == [[3], [3]]
    assert tm.match_many(
        pa.table({"p": pa.array([[None]]), "s": pa.array([None], pa.list_(pa.null()))})
    ).to_pylist() == [[3]]
    no_chunks, texts = pa.chunked_array([], pa.int64()), pa.dictionary(pa.int8(), pa.string())
    for table in ({}, {"p": pa.nulls(0)}, {"p": no_chunks}, {"s": pa.array([], texts)}):
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


def test_a_column_twice(tm: Any) -> None:
    """It might be taken for several values, or one for the other."""
    values = pa.array([["a"]])
    for name in ("tags", "p", "unknown"):
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
def test_types_that_no_attribute_has(tm: Any, kind: pa.DataType) -> None:
    """Whether a set asks for it or not, and has a value or not."""
    for name in ("p", "unknown"):
        with pytest.raises(InvalidTypeError, match=f"column '{name}' is of .*: cast it, or leave it out"):
            tm.match_many(table_of(("s", pa.array(["a"])), (name, pa.nulls(1, kind))))


CONDITION = [{"attr": "x", "op": "=", "value": 1}]


@pytest.fixture(params=["here", "remote"])
def either(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "here":
        with TagMatch() as tm:
            yield tm
    else:
        with remote() as (_, client):
            yield client


def test_a_table_without_anything_to_ask_for(either: Any) -> None:
    for columns in ({"key": [1]}, {"key": [1], "expires": pa.nulls(1)}, {"key": pa.nulls(0)}):
        for change in (either.add_subscriptions, either.remove_subscriptions):
            with pytest.raises(InvalidValueError, match=r"each would match every message; .* match_all=True"):
                change(pa.table(columns))
    assert either.stats()["staged"] == 0


@pytest.mark.parametrize(
    "columns",
    [
        {"where": ["x = 1", None]},
        {"tags": [["a"], None]},
        {"tags": [None, None], "where": ["x = 1", None]},
        {"constraints": [CONDITION, None]},
        {"area": [{"lon": 9.0, "lat": 45.0, "metres": 5.0}, None]},
        {"tags": pa.chunked_array([pa.array([["a"]]), pa.nulls(1, pa.list_(pa.string()))])},
    ],
)
def test_a_row_without_anything_to_ask_for(either: Any, columns: dict[str, Any]) -> None:
    table = pa.table({"key": [1, 2], **columns})
    for change in (either.add_subscriptions, either.remove_subscriptions):
        with pytest.raises(NullError, match=r"row 1 has no tags and no condition, .* match_all=True"):
            change(table)
    assert either.stats()["staged"] == 0
    either.add_subscriptions(table, match_all=True)
    either.consolidate()
    assert either.match(["z"], {"x": 0}) == [2]
    either.remove_subscriptions(table, match_all=True)
    either.consolidate()
    assert len(either) == 0


def test_an_empty_set_says_that_it_is_meant(either: Any) -> None:
    either.add_subscriptions(pa.table({"key": [3], "tags": pa.array([[]], pa.list_(pa.string()))}))
    either.add_subscriptions(pa.table({"key": [4]}), match_all=True)
    either.consolidate()
    assert sorted(either.match([])) == [3, 4]


#: Of queries
MISSPELT = {
    "tag": "tags", "Tags": "tags", "TAGS": "tags", "tasg": "tags", " tags": "tags", "Location": "location",
    "locations": "location", "loaction": "location", "with_in": "within", "Within": "within",
    "attribute": "attributes", "Attributes": "attributes", "ID": "id", "ids": "id",
}  # fmt: skip
#: Attributes that are no misspelt columns
OTHERS = ["price", "bags", "stage", "age", "location_name", "location_id", "width", "vacation", "uid", "key"]
MISSPELT_OF_SUBSCRIPTIONS = {
    "keys": "key", "Key": "key", "tag": "tags", "wher": "where", "Where": "where", "constraint": "constraints",
    "areas": "area", "expire": "expires", "expiry": "expires", "Expires": "expires",
}  # fmt: skip


@pytest.fixture(scope="module")
def named() -> Any:
    with TagMatch() as tm:
        for key, name in enumerate([*MISSPELT, *OTHERS]):
            tm.add_set([], key, where=f"`{name}` = 1")
        tm.add_set(["a"], 99)
        tm.consolidate()
        yield tm


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_a_misspelt_column_of_queries_is_an_error(named: TagMatch, name: str, meant: str) -> None:
    for columns in ({name: [["a"]]}, {name: [1], "price": [1]}, {name: pa.nulls(1)}):
        with pytest.raises(InvalidValueError, match=rf"column '{name}' means nothing here; is '{meant}' meant\?"):
            named.match_many(pa.table(columns))
        with pytest.raises(InvalidValueError, match="'attributes', a struct or a map"):
            named.match_many(pa.record_batch(columns))


@pytest.mark.parametrize("name", [*MISSPELT, *OTHERS])
def test_an_attribute_may_have_any_name_on_purpose(named: TagMatch, name: str) -> None:
    wanted = [[named.match([], {name: 1})[0]], [99]]
    for kind in (pa.struct([(name, pa.int64())]), pa.map_(pa.string(), pa.int64())):
        values = pa.array([{name: 1} if pa.types.is_struct(kind) else [(name, 1)], None], kind)
        for chunks in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
            table = pa.table({"tags": [[], ["a"]], "attributes": chunks, "id": ["x", "y"]})
            assert named.match_many(table).to_pylist() == wanted
    assert named.match_many(pa.table({"attributes": [{name: 1}]})).to_pylist() == wanted[:1]


@pytest.mark.parametrize("name", OTHERS)
def test_other_columns_are_attributes(named: TagMatch, name: str) -> None:
    assert named.match_many(pa.table({name: [1]})).to_pylist() == [named.match([], {name: 1})]


def test_a_near_name_means_itself_where_the_right_one_is_there(named: TagMatch) -> None:
    table = pa.table({"tags": [["a"]], "Tags": [1]})
    assert sorted(named.match_many(table).to_pylist()[0]) == sorted([99, *named.match([], {"Tags": 1})])


def test_an_id_is_no_attribute() -> None:
    with index_of([[]], [1], where="exists(id)") as tm:
        assert tm.match_many(pa.table({"id": [1, 2]})).to_pylist() == [[], []]
        assert tm.match_many(pa.table({"id": [1], "attributes": [{"id": 7}]})).to_pylist() == [[1]]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"attributes": ["x"]}, InvalidTypeError, "column 'attributes' must be a struct"),
        ({"attributes": [{"tags": 1}]}, InvalidValueError, "'attributes' must have no field 'tags'"),
        ({"attributes": [{"a": 1}], "a": [1]}, InvalidValueError, "'attributes' must have no field 'a'"),
    ],
)
def test_attributes_that_will_not_do(named: TagMatch, columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        named.match_many(pa.table(columns))


@pytest.mark.parametrize(("name", "meant"), MISSPELT_OF_SUBSCRIPTIONS.items())
def test_a_misspelt_column_of_subscriptions_is_an_error(name: str, meant: str) -> None:
    columns = {"key": [1], "tags": [["a"]]}
    columns.pop(meant, None)
    with TagMatch() as tm:
        for change in (tm.add_subscriptions, tm.remove_subscriptions):
            with pytest.raises(InvalidValueError, match=rf"column '{name}' means nothing here; is '{meant}' meant\?"):
                change(pa.table(columns | {name: [1]}))
        assert tm.stats()["staged"] == 0


def test_names_are_near_by_one_edit() -> None:
    """Or by two at the end of long ones, but never by another first letter."""
    letters, known = "abcdefghijklmnopqrstuvwxyz", ["within"]
    for place in range(7):
        for letter in letters:
            assert near_name("within"[:place] + letter + "within"[place:], known) == "within"
        if place < 6:
            assert near_name("within"[:place] + "within"[place + 1 :], known) == "within"
            changed = {near_name("within"[:place] + letter + "within"[place + 1 :], known) for letter in letters}
            assert changed == ({"within"} if place else {"within", None})
    assert [near_name(name, ["expires"]) for name in ("expiry", "expiration", "exports")] == ["expires", None, None]
