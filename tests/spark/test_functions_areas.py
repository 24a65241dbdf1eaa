"""Where messages are, and in which areas clients must be, in SQL and functions of columns: beside the oracle."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.areas_on_spark import PLACE_TYPES, STRUCT, answers, any_messages, frame_of, stored_with_areas

from tagmatch import Circle, InvalidTypeError, InvalidValueError, NullError, TagMatch, TagMatchError
from tagmatch.spark import match_udf, register, subset_join
from tagmatch.spark.errors import errors_of_workers

#: Each way to ask, as arguments in SQL and as what is asked
ASKED = [
    (", attributes => struct(q.price), location => q.here, within => q.around", ("attributes", "location", "within")),
    (", NULL, q.here, q.around", ("location", "within")),
    (", location => q.here", ("location",)),
    (", within => q.around", ("within",)),
    (", attributes => NULL, location => NULL, within => NULL", ()),
]
CIRCLE = "named_struct('kind', 'circle', 'lon', 9.005, 'lat', 45, 'metres', 50000)"


def by_id(rows: Any, count: int) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row[0]] += row[1] if isinstance(row[1], list) else [row[1]]
    return {number: sorted(found[number]) for number in range(count)}


@pytest.mark.parametrize("place", PLACE_TYPES, ids=["struct", "array"])
def test_answers_are_the_oracles(spark: SparkSession, tmp_path: Path, rng: random.Random, place: str) -> None:
    index, unique = tmp_path / "index", place == PLACE_TYPES[1]
    oracle, messages = stored_with_areas(index, rng), any_messages(rng, 120)
    frame_of(spark, messages, place).persist().createOrReplaceTempView("queries")
    register(spark)
    spark.udf.register("keys_of", match_udf(index, unique=unique))
    for arguments, asked in ASKED:
        table = spark.sql(f"SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{index}'{arguments}) m")
        assert by_id(table.collect(), len(messages)) == answers(oracle, messages, *asked)
        column = spark.sql(f"SELECT q.id, keys_of(q.tags{arguments}) FROM queries q")
        assert by_id(column.collect(), len(messages)) == answers(oracle, messages, *asked, unique=unique)
    spark.catalog.uncacheTable("queries")


def test_columns_by_position_and_by_name(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    oracle, messages = stored_with_areas(tmp_path / "index", rng), any_messages(rng, 60)
    frame, match = frame_of(spark, messages, PLACE_TYPES[0]).persist(), match_udf(tmp_path / "index")
    everything = answers(oracle, messages, "attributes", "location", "within")
    found = frame.select(
        "id",
        match("tags", f.struct("price"), "here", "around").alias("by_position"),
        match("tags", within="around", location="here", attributes=f.struct("price")).alias("by_name"),
        match("tags", within="around").alias("within"),
    ).collect()
    for name, right in (
        ("by_position", everything), ("by_name", everything), ("within", answers(oracle, messages, "within"))
    ):  # fmt: skip
        assert {row.id: sorted(row[name]) for row in found} == right
    frame.unpersist()


def test_numbers_as_sql_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    """They are decimals and integers."""
    with TagMatch(tmp_path / "index") as tm:
        for key, metres in ((1, 50_000), (2, 0.001)):
            tm.add_set(["a"], key, area=Circle(9.0051, 45, metres))
        tm.consolidate()
        tm.move([1, 2], [9.005, 20], [45, 0])
        tm.save_positions()
    frame = spark.createDataFrame([(["a"],)], "tags array<string>")
    frame.createOrReplaceTempView("queries")
    register(spark)
    spark.udf.register("keys_of", match_udf(tmp_path / "index"))
    for arguments, keys in (
        ("location => named_struct('lat', 45, 'lon', 9.0051)", [1, 2]),
        ("location => array(9.005, 45.0)", [1]),
        (f"location => array(9.0051, 45.0), within => {CIRCLE}", [1]),
        (f"location => array(20.5, 45.0), within => {CIRCLE}", []),
    ):
        table = spark.sql(f"SELECT key FROM queries q, LATERAL tagmatch_match(tags, '{tmp_path}/index', {arguments})")
        assert sorted(row.key for row in table.collect()) == keys
        [(found,)] = spark.sql(f"SELECT keys_of(tags, {arguments}) FROM queries").collect()
        assert sorted(found) == keys
    asked = frame.select("tags", f.expr("array(9.0051, 45.0)").alias("here"), f.expr(CIRCLE).alias("around"))
    joined = subset_join(asked, tmp_path / "index", location="here", within="around")
    assert [row.key for row in joined.collect()] == [1]


MISTAKES = [
    ("location => q.name", InvalidTypeError, "argument location must be a struct or an array of lon, lat, not string"),
    ("location => struct(q.lon)", InvalidTypeError, r"argument location must have the fields lon and lat, not \['lon'"),
    ("location => array(q.name)", InvalidTypeError, "argument location: lon must be numbers, not string"),
    ("within => q.lon", InvalidTypeError, "argument within must be structs with kind, lon, lat, .* not double"),
    ("within => struct(q.lon AS radius)", InvalidTypeError, "argument within: areas have fields .* not 'radius'"),
    ("attributes => q.lon", InvalidTypeError, "argument attributes must be a struct.*, not double"),
    ("location => array(q.lon, q.lat)", InvalidValueError, "location.*: lat must be from -90 to 90, not 95"),
    ("location => array(q.lon)", TagMatchError, "location.* must .*two numbers"),
    ("location => struct(q.lon, q.none AS lat)", TagMatchError, "location.* lat"),
    ("within => named_struct('metres', 5)", InvalidValueError, "within.*: an area must be a circle or a box .*, not n"),
    ("within => named_struct('kind', 'circle', 'lon', 9, 'lat', q.lat, 'metres', 5)", InvalidValueError, "within.* 95"),
    ("within => named_struct('kind', 'circle', 'lon', 9, 'lat', 45, 'metres', q.none)", NullError, "within.* a circle"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), MISTAKES)
def test_mistakes(
    spark: SparkSession, tmp_path: Path, arguments: str, error: type[TagMatchError], message: str
) -> None:
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    register(spark)
    spark.udf.register("keys_of", match_udf(tmp_path / "index"))
    spark.createDataFrame(
        [(["a"], "x", 9.0, 95.0, None)], "tags array<string>, name string, lon double, lat double, none double"
    ).createOrReplaceTempView("asked")
    for sql in (
        f"SELECT key FROM asked q, LATERAL tagmatch_match(tags, '{tmp_path}/index', {arguments})",
        f"SELECT keys_of(tags, {arguments}) FROM asked q",
    ):
        with pytest.raises(error, match=message) as raised, errors_of_workers():
            spark.sql(sql).collect()
        assert "\n" not in str(raised.value)


def test_attributes_that_would_be_taken_for_others(spark: SparkSession, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1, where='location = "y"', area=Circle(9, 45, 10))
        tm.consolidate()
    register(spark)
    match = match_udf(tmp_path / "index")
    frame = spark.createDataFrame(
        [(["a"], ("x", "y"), [9.0, 45.0])],
        "tags array<string>, own struct<tags: string, location: string>, here array<double>",
    )
    frame.createOrReplaceTempView("asked")
    with pytest.raises(InvalidValueError, match="none of them 'tags', 'location'"), errors_of_workers():
        frame.select(match("tags", "own", "here")).collect()
    table = f"SELECT key FROM asked, LATERAL tagmatch_match(tags, '{tmp_path}/index', own, here)"
    assert [row.key for row in spark.sql(table).collect()] == [1]


@pytest.mark.parametrize("has_positions", [False, True])
def test_an_index_on_the_plane(spark: SparkSession, tmp_path: Path, *, has_positions: bool) -> None:
    with TagMatch(tmp_path / "index", plane=True) as tm:
        tm.add_set(["a"], 1, area=None if has_positions else Circle(1000, 2000, 50))
        tm.consolidate()
        if has_positions:
            tm.move([1], 1000, 2000)
            tm.save_positions()
    register(spark)
    frame = spark.createDataFrame([(["a"], [9.0, 45.0], None)], f"tags array<string>, here array<double>, x {STRUCT}")
    frame.createOrReplaceTempView("asked")
    table = f"SELECT key FROM asked, LATERAL tagmatch_match(tags, '{tmp_path}/index', location => here)"
    for asked in (
        subset_join(frame, tmp_path / "index", location="here", strategy="ship"),
        subset_join(frame, tmp_path / "index", location="here", strategy="shuffle"),
        frame.select(match_udf(tmp_path / "index")("tags", location="here")),
        spark.sql(table),
    ):
        with (
            pytest.raises(
                InvalidValueError,
                match=r"the index .*index is on the plane.* lon and lat.* TagMatch.open\(.*plane=True\)",
            ),
            errors_of_workers(),
        ):
            asked.collect()
