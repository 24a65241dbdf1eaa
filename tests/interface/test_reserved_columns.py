"""Columns with a meaning are meant exactly as they are written: names that are nearly theirs are errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.model.names import near_name

#: Of queries
MISSPELT = {
    "tag": "tags",
    "Tags": "tags",
    "TAGS": "tags",
    "tasg": "tags",
    " tags": "tags",
    "Location": "location",
    "locations": "location",
    "loaction": "location",
    "with_in": "within",
    "Within": "within",
    "attribute": "attributes",
    "Attributes": "attributes",
    "ID": "id",
    "ids": "id",
}
#: Attributes that are no misspelt columns
OTHERS = ["price", "bags", "stage", "age", "location_name", "location_id", "width", "vacation", "uid", "key"]
SUBSCRIPTIONS = {
    "keys": "key",
    "Key": "key",
    "tag": "tags",
    "wher": "where",
    "Where": "where",
    "constraint": "constraints",
    "areas": "area",
    "expire": "expires",
    "expiry": "expires",
    "Expires": "expires",
}


@pytest.fixture(scope="module")
def tm() -> Any:
    with TagMatch() as tm:
        for key, name in enumerate([*MISSPELT, *OTHERS]):
            tm.add_set([], key, where=f"`{name}` = 1")
        tm.add_set(["a"], 99)
        tm.consolidate()
        yield tm


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_a_misspelt_column_of_queries_is_an_error(tm: TagMatch, name: str, meant: str) -> None:
    for columns in ({name: [["a"]]}, {name: [1], "price": [1]}, {name: pa.nulls(1)}):
        with pytest.raises(InvalidValueError, match=rf"column '{name}' means nothing here; is '{meant}' meant\?"):
            tm.match_many(pa.table(columns))
        with pytest.raises(InvalidValueError, match="'attributes', a struct or a map"):
            tm.match_many(pa.record_batch(columns))


@pytest.mark.parametrize("name", [*MISSPELT, *OTHERS])
def test_an_attribute_may_have_any_name_on_purpose(tm: TagMatch, name: str) -> None:
    wanted = [[tm.match([], {name: 1})[0]], [99]]
    for kind in (pa.struct([(name, pa.int64())]), pa.map_(pa.string(), pa.int64())):
        values = pa.array([{name: 1} if pa.types.is_struct(kind) else [(name, 1)], None], kind)
        for chunks in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
            table = pa.table({"tags": [[], ["a"]], "attributes": chunks, "id": ["x", "y"]})
            assert tm.match_many(table).to_pylist() == wanted
    assert tm.match_many(pa.table({"attributes": [{name: 1}]})).to_pylist() == wanted[:1]


@pytest.mark.parametrize("name", OTHERS)
def test_other_columns_are_attributes(tm: TagMatch, name: str) -> None:
    assert tm.match_many(pa.table({name: [1]})).to_pylist() == [tm.match([], {name: 1})]


def test_a_near_name_means_itself_where_the_right_one_is_there(tm: TagMatch) -> None:
    table = pa.table({"tags": [["a"]], "Tags": [1]})
    assert sorted(tm.match_many(table).to_pylist()[0]) == sorted([99, *tm.match([], {"Tags": 1})])


def test_an_id_is_no_attribute() -> None:
    with TagMatch() as tm:
        tm.add_set([], 1, where="exists(id)")
        tm.consolidate()
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
def test_attributes_that_will_not_do(tm: TagMatch, columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tm.match_many(pa.table(columns))


@pytest.mark.parametrize(("name", "meant"), SUBSCRIPTIONS.items())
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
