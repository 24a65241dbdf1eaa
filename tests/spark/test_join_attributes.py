"""The join of queries with attributes, and sets with conditions on these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.spark import subset_join

SETS = [
    (["a"], 1, "price < 10"),
    (["a"], 2, None),
    ([], 3, 'city = "Rome" and not new = true'),
    ([], 4, "exists(`x y`)"),
]
#: With `city` twice, or with no value
QUERIES = [
    (0, ["a"], 9.5, (["Rome", "Oslo"], None)),
    (1, ["a"], None, (None, 7)),
    (2, [], 10.0, (["Rome"], 0)),
    (3, [], 1.0, None),
]
SCHEMA = "id int, tags array<string>, price double, others struct<city: array<string>, `x y`: int>"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tags, keys, where = zip(*SETS, strict=True)
        tm.add_sets(tags, keys, where=where)
        tm.consolidate()
    return tmp_path / "index"


def expected(attributes: list[dict[str, Any]]) -> list[tuple[int, int]]:
    with TagMatch(device="cpu") as tm:
        for tags, key, where in SETS:
            tm.add_set(tags, key, where=where)
        tm.consolidate()
        pairs = zip(QUERIES, attributes, strict=True)
        return sorted((query[0], key) for query, row in pairs for key in tm.match(query[1], row))


def test_attributes_are_columns_and_fields(spark: Any, index: Path) -> None:
    """An index is a path, or made of interests with conditions; without attributes, no condition on them holds."""
    queries = spark.createDataFrame(QUERIES, SCHEMA)
    interests = spark.createDataFrame(SETS, "tags array<string>, key long, where string")
    fields = [dict(zip(("city", "x y"), row[3] or (None, None), strict=True)) for row in QUERIES]
    prices = [{"price": row[2]} for row in QUERIES]
    both = [{**one, **others} for one, others in zip(fields, prices, strict=True)]
    assert expected(both) != expected(prices)
    for stored in (index, interests):
        for names, rows in ((["price", "others"], both), ("price", prices), ("others", fields), ((), [{}] * 4)):
            joined = subset_join(queries, stored, attributes=names)
            assert joined.columns == [*queries.columns, "key"]
            assert sorted((row.id, row.key) for row in joined.collect()) == expected(rows)
    lists = subset_join(queries, index, attributes=["price", "others"], output="lists", unique=True)
    found = {row.id: sorted(row["keys"]) for row in lists.collect()}
    assert found == {number: sorted({key for row, key in expected(both) if row == number}) for number in range(4)}


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_attributes_in_maps(spark: Any, index: Path, strategy: str) -> None:
    """Entries of maps are attributes by their own names, beside a column that is one; a map may be null or empty."""
    maps = [{"price": [9.5, 12.0], "x y": None}, {"x y": [7.0], "nobody asks": [1.0]}, None, {}]
    cities = [["Rome"], None, ["Oslo"], ["Rome"]]
    rows = [(*query[:2], of_map, of_city) for query, of_map, of_city in zip(QUERIES, maps, cities, strict=True)]
    schema = "id int, tags array<string>, some map<string, array<double>>, city array<string>"
    queries = spark.createDataFrame(rows, schema)
    attributes = [{**(of_map or {}), "city": of_city} for of_map, of_city in zip(maps, cities, strict=True)]
    joined = subset_join(queries, index, attributes=["some", "city"], strategy=strategy)
    assert sorted((row.id, row.key) for row in joined.collect()) == expected(attributes)
    assert expected(attributes) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (3, 3)]


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_attributes_may_have_any_name(spark: Any, tmp_path: Path, strategy: str) -> None:
    """Also names that are nearly those of columns with a meaning, where a table of queries must not have them."""
    names = ["Tag", "id", "locations", "attribute"]
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([[]] * 5, range(5), where=[f"`{name}` = 1" for name in [*names, "within"]])
        tm.consolidate()
    schema = ", ".join(["tags array<string>", *(f"{name} int" for name in names), "of map<string, int>"])
    queries = spark.createDataFrame([([], 1, 1, 1, 1, {"within": 1})], schema)
    joined = subset_join(queries, tmp_path / "index", attributes=[*names, "of"], strategy=strategy)
    assert sorted(row.key for row in joined.collect()) == [0, 1, 2, 3, 4]


def test_what_will_not_do(spark: Any, index: Path) -> None:
    queries = spark.createDataFrame(QUERIES, SCHEMA)
    with pytest.raises(InvalidValueError, match="one column 'cost'; its columns are 'id', 'tags'"):
        subset_join(queries, index, attributes=["cost"])
    with pytest.raises(InvalidTypeError, match="column 'day' is of date32"):
        subset_join(queries.selectExpr("tags", "current_date() as day"), index, attributes="day")
    with pytest.raises(InvalidValueError, match="different names, none of them 'tags'"):
        subset_join(queries, index, attributes=["price", "price"])
