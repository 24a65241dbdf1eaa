"""Tables of subscriptions and of messages: shapes of Arrow, names of columns, and rows that ask for nothing."""

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


WHERE = ["p < 10", "key = 3", "exists(p)", "not exists(p)", 's = "a"', 's contains "é"', "p = 2 and p = 3"]


@pytest.fixture
def tm() -> Any:
    with index_of([[]] * len(WHERE), range(len(WHERE)), where=WHERE, device="cpu", threads=1) as tm:
        yield tm


def table_of(*columns: tuple[str, pa.Array]) -> pa.Table:
    return pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


def test_columns_without_rows_or_values(tm: Any) -> None:
    assert tm.match_many(pa.table({"p": pa.nulls(2), "s": pa.nulls(2)})).to_pylist() == [[3], [3]]
    lists = {"p": [[None]], "s": pa.array([None], pa.list_(pa.null()))}
    assert tm.match_many(pa.table(lists)).to_pylist() == [[3]]
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


def maps(rows: list[Any], values: pa.DataType, names: pa.DataType | None = None) -> pa.Array:
    return pa.array(rows, pa.map_(names or pa.string(), values))


OTHER_TYPES = [
    pa.time32("s"), pa.binary(), pa.struct({"a": pa.int8()}), pa.timestamp("s"), pa.duration("s"),
    pa.list_(pa.time32("s")), pa.list_(pa.list_(pa.string())), pa.map_(pa.string(), pa.timestamp("s")),
    pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())),
]  # fmt: skip
GREAT, NAMED = pa.list_(pa.uint64()), "column 'it'.*"
#: Columns of messages that will not do
BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    # Whether a set asks for it or not, and has a value or not
    *(({name: pa.nulls(1, kind)}, f"column '{name}' is of .*: cast it, or leave it out")
      for kind in OTHER_TYPES for name in ("p", "unknown")),
    ({"it": pa.chunked_array([[1, 2], [2**63]], pa.uint64())}, "column 'it': row 2 has 9223372036854775808"),
    ({"it": pa.array([[1, 2], [], [3, 2**64 - 1]], GREAT)}, "column 'it': row 2 has 18446744073709551615"),
    ({"it": maps([{}, {"": 1}], pa.int64())}, f"{NAMED}row 1: the name .* must not be empty"),
    ({"it": maps([{"a": 1}, None, {"b": 1, "a\0": 2}], pa.int64())}, rf"{NAMED}row 2: .*U\+0000"),
    ({"it": maps([{}, {"b": 1, "a": 2**63}], pa.uint64())}, f"{NAMED}row 1 has 9223372036854775808"),
    ({"it": maps([{}, {"b": [], "a": [1, 2**63]}], GREAT)}, f"{NAMED}row 1 has 92233"),
    ({"it": maps([{"a": b"1"}], pa.binary())}, f"{NAMED}map<string, binary>, but attributes are bools"),
    ({"it": maps([{1: 1}], pa.int64(), pa.int64())}, f"{NAMED}the names of attributes are strings: cast them"),
    ({"attributes": ["x"]}, "column 'attributes' must be a struct"),
    ({"attributes": [{"tags": 1}]}, "'attributes' must have no field 'tags'"),
    ({"attributes": [{"a": 1}], "a": [1]}, "'attributes' must have no field 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "message"), BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_columns_of_messages_that_will_not_do(tm: Any, columns: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
        tm.match_many(pa.table(columns))


def test_a_column_twice(tm: Any) -> None:
    """It might be taken for several values, or one for the other."""
    values = pa.array([["a"]])
    for name in ("tags", "p", "unknown"):
        with pytest.raises(InvalidValueError, match=f"there must be one column '{name}', not 2"):
            tm.match_many(table_of((name, values), ("q", pa.array([1])), (name, values)))
    with pytest.raises(InvalidValueError, match="each once, not 'where'"):
        tm.add_subscriptions(table_of(("key", pa.array([1])), ("where", pa.array(["p < 1"])), ("where", pa.nulls(1))))


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
        {"where": ["x = 1", None]}, {"tags": [["a"], None]}, {"tags": [None, None], "where": ["x = 1", None]},
        {"constraints": [CONDITION, None]}, {"area": [{"lon": 9.0, "lat": 45.0, "metres": 5.0}, None]},
        {"tags": pa.chunked_array([pa.array([["a"]]), pa.nulls(1, pa.list_(pa.string()))])},
    ],
)  # fmt: skip
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
    either.add_subscriptions(pa.table({"key": [3], "tags": [[]]}))  # says that it is meant
    assert either.consolidate().added == 1


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
    where = [f"`{name}` = 1" for name in [*MISSPELT, *OTHERS]]
    with index_of([*[[]] * len(where), ["a"]], [*range(len(where)), 99], where=[*where, None]) as tm:
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


def test_other_columns_are_attributes(named: TagMatch) -> None:
    """So is one of a near name where the right one is there."""
    for name in OTHERS:
        assert named.match_many(pa.table({name: [1]})).to_pylist() == [named.match([], {name: 1})]
    (found,) = named.match_many(pa.table({"tags": [["a"]], "Tags": [1]})).to_pylist()
    assert sorted(found) == sorted([99, *named.match([], {"Tags": 1})])


def test_an_id_is_no_attribute() -> None:
    with index_of([[]], [1], where="exists(id)") as tm:
        assert tm.match_many(pa.table({"id": [1, 2]})).to_pylist() == [[], []]
        assert tm.match_many(pa.table({"id": [1], "attributes": [{"id": 7}]})).to_pylist() == [[1]]


@pytest.mark.parametrize(("name", "meant"), MISSPELT_OF_SUBSCRIPTIONS.items())
def test_a_misspelt_column_of_subscriptions_is_an_error(tm: Any, name: str, meant: str) -> None:
    columns = {column: values for column, values in (("key", [1]), ("tags", [["a"]])) if column != meant}
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
