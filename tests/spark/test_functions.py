"""Functions in SQL and of columns, and settings of a session, beside the local engine."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tagmatch import Circle, IndexNotFoundError, InvalidTypeError, InvalidValueError, NullError, TagMatch, TagMatchError
from tagmatch.spark import match_udf, partition, register, subset_join
from tagmatch.spark.errors import errors_of_workers

SQL = "SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{}') m"


@pytest.fixture(params=["integer", "string"])
def tm(request: pytest.FixtureRequest, tmp_path: Path, rng: random.Random) -> Any:
    tags = [f"t{i}" for i in range(15)]
    with TagMatch(tmp_path / "index", key_type=request.param) as tm:
        for number in range(200):
            where = rng.choice([None, None, "price < 50", 'not (city = "Rome")'])
            key = number % 60 if request.param == "integer" else f"é {number % 60}"
            area = rng.choice([None, None, Circle(rng.uniform(-1, 1), rng.uniform(-1, 1), 90_000)])
            tm.add_set(rng.sample(tags, rng.randrange(4)), key, where=where, area=area)
        tm.consolidate()
        yield tm


@pytest.fixture
def queries(spark: SparkSession, rng: random.Random) -> Any:
    rows = [
        (n, rng.sample([f"t{i}" for i in range(17)], rng.randrange(12)), rng.choice([None, 10.0, 70.0]),
         rng.choice([None, "Rome", "Milan"]), (rng.uniform(-1, 1), rng.uniform(-1, 1)))
        for n in range(80)
    ]  # fmt: skip
    kinds = "id int, tags array<string>, price double, city string, place struct<lon: double, lat: double>"
    frame = spark.createDataFrame(rows, kinds).repartition(3).persist()
    frame.createOrReplaceTempView("queries")
    register(spark)
    yield frame
    frame.unpersist()


def by_id(rows: Any) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row[0]] += row[1] if isinstance(row[1], list) else [row[1]]
    return {number: sorted(keys) for number, keys in found.items() if keys}


def expected_of(queries: Any, ask: Any) -> dict[int, list[Any]]:
    found = {row.id: sorted(ask(row)) for row in queries.collect()}
    assert sum(map(len, found.values())) > 80
    return {number: keys for number, keys in found.items() if keys}


def test_the_table_function(spark: SparkSession, tm: TagMatch[Any], queries: Any, tmp_path: Path) -> None:
    table = spark.sql(SQL.format(tmp_path / "index"))
    assert table.dtypes[1] == ("key", "bigint" if tm.stats()["key_type"] == "integer" else "string")
    assert by_id(table.collect()) == expected_of(queries, lambda row: tm.match(row.tags))
    asked = SQL.replace("'{}'", f"'{tmp_path}/index', attributes => struct(q.price, q.city), location => q.place")
    with_all = expected_of(
        queries,
        lambda row: tm.match(row.tags, {"price": row.price, "city": row.city}, location=tuple(row.place)),
    )
    assert by_id(spark.sql(asked).collect()) == with_all
    as_map = asked.replace("struct(q.price, q.city)", "map('price', q.price)")
    as_map = as_map.replace("q.place", "array(q.place.lon, q.place.lat)")
    with_price = expected_of(queries, lambda row: tm.match(row.tags, {"price": row.price}, location=tuple(row.place)))
    assert by_id(spark.sql(as_map).collect()) == with_price


@pytest.mark.parametrize("unique", [False, True])
def test_the_function_of_columns(
    spark: SparkSession, tm: TagMatch[Any], queries: Any, tmp_path: Path, unique: bool
) -> None:
    match = match_udf(tmp_path / "index", unique=unique)
    ask = tm.match_unique if unique else tm.match
    plain = expected_of(queries, lambda row: ask(row.tags))
    assert by_id(queries.select("id", match("tags")).collect()) == plain
    located = queries.select("id", match("tags", f.struct("price", "city"), "place"))
    everything = expected_of(
        queries, lambda row: ask(row.tags, {"price": row.price, "city": row.city}, location=tuple(row.place))
    )
    assert by_id(located.collect()) == everything
    spark.udf.register("keys_of", match)
    assert by_id(spark.sql("SELECT id, explode(keys_of(tags)) FROM queries").collect()) == plain


def test_a_newer_snapshot_is_taken_up_by_the_next_query(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    spark.createDataFrame([(1, ["a", "b"])], "id int, tags array<string>").createOrReplaceTempView("queries")
    with TagMatch(tmp_path / "index") as tm:
        for key in (1, 2):
            tm.add_set(["a"], key)
            tm.consolidate()
            asked = spark.sql(SQL.format(tmp_path / "index")), match_udf(tmp_path / "index")
            assert by_id(asked[0].collect()) == {1: list(range(1, key + 1))}
            assert by_id(spark.table("queries").select("id", asked[1]("tags")).collect()) == {
                1: list(range(1, key + 1))
            }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ("q.tags, '/no/such/folder'", IndexNotFoundError, "no such folder"),
        ("q.tags, q.name", InvalidTypeError, "argument index must be a constant string"),
        ("q.name, '{}'", InvalidTypeError, "argument tags must be array<string>, not string"),
        ("q.tags, '{}', attributes => q.name", InvalidTypeError, "attributes must be a struct or a map, not string"),
        ("q.tags, '{}', location => q.name", InvalidTypeError, "location must be a struct or an array of lon, lat"),
        ("array(q.name, null), '{}'", InvalidValueError, "the tags have a null"),
        ("q.tags, '{}-large'", InvalidValueError, f"key {2**63} of the index"),
    ],
)
def test_mistakes_in_sql(
    spark: SparkSession, tmp_path: Path, arguments: str, error: type[TagMatchError], message: str
) -> None:
    register(spark)
    for name, key in (("index", 1), ("index-large", 2**63)):
        with TagMatch(tmp_path / name) as tm:
            tm.add_set(["a"], key)
            tm.consolidate()
    spark.createDataFrame([(["a"], "x")], "tags array<string>, name string").createOrReplaceTempView("asked")
    with pytest.raises(error, match=message), errors_of_workers():
        spark.sql(f"SELECT key FROM asked q, LATERAL tagmatch_match({arguments.format(tmp_path / 'index')})").collect()


def test_mistakes_of_the_function_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="no such folder"):
        match_udf(tmp_path / "nowhere")
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 2**63)
        tm.consolidate()
    match = match_udf(tmp_path / "index")
    for tags, error, message in ((["a"], InvalidValueError, f"key {2**63} "), (None, NullError, "a null where a set")):
        with pytest.raises(error, match=message), errors_of_workers():
            spark.createDataFrame([(tags,)], "tags array<string>").select(match("tags")).collect()


# -- settings and names ----------------------------------------------------------------------------------------------


@pytest.fixture
def settings(spark: SparkSession) -> Any:
    given: list[str] = []

    def give(name: str, value: str) -> None:
        given.append(name)
        spark.conf.set(name, value)

    yield give
    for name in given:
        spark.conf.unset(name)


def test_settings_of_a_session(
    spark: SparkSession, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = spark.createDataFrame([(["a"], 1), (None, 2)], "tags array<string>, key long")
    settings("spark.tagmatch.layout", "balanced")
    settings("spark.tagmatch.maxPartitionSize", "17")
    settings("spark.tagmatch.skipInvalid", "true")
    assert partition(sets, tmp_path / "index").skipped == {"tags is null": 1}
    with TagMatch.open(tmp_path / "index") as tm:
        assert (tm.stats()["layout"], tm.stats()["max_partition_size"]) == ("balanced", 17)
    partition(sets, tmp_path / "index", mode="append")
    partition(sets, tmp_path / "other", layout="rarest")  # an argument comes before a setting
    with TagMatch.open(tmp_path / "other") as tm:
        assert tm.stats()["layout"] == "rarest"
        partition(sets, tmp_path / "other", mode="append")  # nor is the index's own layout a mistake
    queries = spark.createDataFrame([(["a"],)], "tags array<string>")
    for name, value, nodes in (
        ("shipLimit", str(8 << 30), ["tagmatch_ship"]),
        ("shipLimit", "0", ["tagmatch_send_sets", "tagmatch_send_queries", "tagmatch_match_buckets"]),
        ("strategy", "ship", ["tagmatch_ship"]),
    ):
        settings(f"spark.tagmatch.{name}", value)
        subset_join(queries, tmp_path / "index").explain()
        plan = capsys.readouterr().out
        assert all(node in plan for node in nodes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("spark.tagmatch.layot", "x", r"no setting 'spark.tagmatch.layot'; there are spark.tagmatch.layout, spark"),
        ("spark.tagmatch.layout", "best", "is 'best': it must be one of rarest, balanced"),
        ("spark.tagmatch.setsPerTask", "0", "it must be an integer from 1 on"),
        ("spark.tagmatch.skipInvalid", "yes", "it must be true or false"),
    ],
)
def test_mistakes_in_settings(
    spark: SparkSession, tmp_path: Path, settings: Any, name: str, value: str, message: str
) -> None:
    frame = spark.createDataFrame([(["a"], 1)], "tags array<string>, key long")
    partition(frame, tmp_path / "index")
    settings(name, value)
    with pytest.raises(InvalidValueError, match=message):
        partition(frame, tmp_path / "index")
    with pytest.raises(InvalidValueError, match=message):
        subset_join(frame.select("tags"), tmp_path / "index")
