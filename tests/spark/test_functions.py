"""Functions in SQL and of columns beside the oracle, and settings of a session."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.areas_on_spark import PLACE_TYPES, STRUCT, answers, any_messages, frame_of, stored_with_areas
from support.index_files import make_index
from support.tasks import called

import tagmatch.spark.join
from tagmatch import Circle, IndexNotFoundError, InvalidTypeError, InvalidValueError, NullError, TagMatch, TagMatchError
from tagmatch.spark import match_udf, partition, register, subset_join
from tagmatch.spark.errors import errors_of_workers

WAYS = ("sql", "column")
AREA = "struct<kind: string, lon: decimal(5, 3), lat: int, metres: int>"


@pytest.mark.parametrize("way", [*WAYS, "ship", "shuffle"])
@pytest.mark.parametrize(
    ("place", "key_type"), [(PLACE_TYPES[0], "integer"), (PLACE_TYPES[1], "string")], ids=["struct", "array"]
)
def test_answers_are_the_oracles(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, place: str, key_type: str, way: Any
) -> None:
    """Of both functions and both joins: each argument, all of them and none; those that are NULL."""
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 40)
    index, unique = tmp_path / "index", way != "sql" and key_type == "string"
    oracle, messages = stored_with_areas(index, rng, key_type), any_messages(rng, 100)
    frame = frame_of(spark, messages, place)
    register(spark)
    every = {"attributes": ("price",), "location": "here", "within": "around"}
    for asked in (
        every,
        {**every, "attributes": None},
        {"location": "here"},
        {"within": "around"},
        dict.fromkeys(every),
    ):
        given = {name: column for name, column in asked.items() if column}
        right = answers(oracle, messages, *given, unique=unique)
        if way in WAYS:
            assert called(way, frame, index, unique=unique, **asked) == right
        else:
            joined = subset_join(frame, index, output="lists", unique=unique, strategy=way, **given)
            assert {row.id: sorted(row["keys"]) for row in joined.collect()} == right


def test_a_newer_snapshot_is_taken_up_by_the_next_query(spark: Any, tmp_path: Path) -> None:
    register(spark)
    frame = spark.createDataFrame([(1, ["a", "b"])], "id int, tags array<string>")
    for key in (1, 2):
        make_index(tmp_path / "index", [(["a"], key)])
        for way in WAYS:
            assert called(way, frame, tmp_path / "index") == {1: list(range(1, key + 1))}


def test_numbers_as_sql_writes_them(spark: Any, tmp_path: Path) -> None:
    """They are decimals and integers."""
    with TagMatch(tmp_path / "index") as tm:
        for key, metres in ((1, 50_000), (2, 0.001)):
            tm.add_set(["a"], key, area=Circle(9.0051, 45, metres))
        tm.consolidate()
        tm.move([1, 2], [9.005, 20], [45, 0])
        tm.save_positions()
    register(spark)
    circle = ("circle", Decimal("9.005"), 45, 50_000)
    rows = [
        (1, ["a"], (45, Decimal("9.0051")), [Decimal("9.0051"), Decimal(45)], circle),
        (2, ["a"], (45, Decimal("9.0050")), [Decimal("20.5"), Decimal(45)], circle),
    ]
    kinds = f"struct<lat: int, lon: decimal(6, 4)>, here array<decimal(6, 4)>, around {AREA}"
    frame = spark.createDataFrame(rows, f"id int, tags array<string>, there {kinds}")
    for way in WAYS:
        assert called(way, frame, tmp_path / "index", location="there") == {1: [1, 2], 2: [1]}
        assert called(way, frame, tmp_path / "index", location="here", within="around") == {1: [1], 2: []}
    joined = subset_join(frame, tmp_path / "index", location="here", within="around")
    assert [(row.id, row.key) for row in joined.collect()] == [(1, 1)]


_WITHIN = "struct<kind: string, lon: int, lat: double, metres: int>"
MISTAKES: list[Any] = [
    ("location", "string", "x", InvalidTypeError, " must be a struct or an array of lon, lat, not string"),
    ("location", "struct<lon: double>", (9.0,), InvalidTypeError, r" must have the fields lon and lat, not \['lon'"),
    ("location", "struct<at: timestamp>", None, InvalidTypeError, r" must have the fields lon and lat, not \['at'"),
    ("location", "array<string>", ["x"], InvalidTypeError, ": lon must be numbers, not string"),
    ("within", "double", 9.0, InvalidTypeError, " must be structs with kind, lon, lat, .* not double"),
    ("within", "struct<radius: double>", (9.0,), InvalidTypeError, ": areas have fields .* not 'radius'"),
    ("attributes", "double", 9.0, InvalidTypeError, " must be a struct.*, not double"),
    ("location", "array<double>", [9.0, 95.0], InvalidValueError, ".*: lat must be from -90 to 90, not 95"),
    ("location", "array<double>", [9.0], TagMatchError, ".* must .*two numbers"),
    ("location", "struct<lon: double, lat: double>", (9.0, None), TagMatchError, ".* lat"),
    ("within", "struct<metres: int>", (5,), InvalidValueError, ".*: an area must be a circle or a box .*, not n"),
    ("within", _WITHIN, ("circle", 9, 95.0, 5), InvalidValueError, ".* 95"),
    ("within", _WITHIN, ("circle", 9, 45.0, None), NullError, ".* a circle"),
    ("tags", "array<string>", ["a", None], TagMatchError, ".* null"),
    ("tags", "array<string>", None, TagMatchError, ".* null"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("argument", "kind", "value", "error", "message"), MISTAKES)
def test_mistakes(
    spark: Any, tmp_path: Path, way: str, argument: str, kind: str, value: Any, error: type[TagMatchError], message: str
) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    register(spark)
    frame = spark.createDataFrame([(1, ["a"], value)], f"id int, tags array<string>, bad {kind}")
    with pytest.raises(error, match=f"{argument}{message}") as raised, errors_of_workers():
        called(way, frame, index, **{argument: "bad"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_indexes_that_will_not_do(spark: Any, tmp_path: Path, way: str) -> None:
    register(spark)
    index = make_index(tmp_path / "index", [(["a"], 2**63)])
    frame = spark.createDataFrame([(1, ["a"], "x")], "id int, tags array<string>, name string")
    for path, error, message in (
        ("/no/such/folder", IndexNotFoundError, "no such folder"),
        (index, InvalidValueError, f"key {2**63} "),
    ):
        with pytest.raises(error, match=message), errors_of_workers():
            called(way, frame, path)
    if way == "sql":
        with (
            pytest.raises(InvalidTypeError, match="argument tags must be array<string>, not string"),
            errors_of_workers(),
        ):
            called(way, frame, index, tags="name")


def test_attributes_that_would_be_taken_for_others(spark: Any, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1, where='location = "y"', area=Circle(9, 45, 10))
        tm.consolidate()
    register(spark)
    schema = "id int, tags array<string>, own struct<tags: string, location: string>, here array<double>"
    frame = spark.createDataFrame([(1, ["a"], ("x", "y"), [9.0, 45.0])], schema)
    arguments = {"attributes": "own", "location": "here"}
    with pytest.raises(InvalidValueError, match="none of them 'tags', 'location'"), errors_of_workers():
        called("column", frame, tmp_path / "index", **arguments)
    assert called("sql", frame, tmp_path / "index", **arguments) == {1: [1]}


@pytest.mark.parametrize("has_positions", [False, True])
def test_an_index_on_the_plane(spark: Any, tmp_path: Path, *, has_positions: bool) -> None:
    index = tmp_path / "index"
    with TagMatch(index, plane=True) as tm:
        tm.add_set(["a"], 1, area=None if has_positions else Circle(1000, 2000, 50))
        tm.consolidate()
        if has_positions:
            tm.move([1], 1000, 2000)
            tm.save_positions()
    register(spark)
    schema = f"id int, tags array<string>, here array<double>, x {STRUCT}"
    frame = spark.createDataFrame([(1, ["a"], [9.0, 45.0], None)], schema)
    for ask in (
        lambda: subset_join(frame, index, location="here", strategy="ship").collect(),
        lambda: subset_join(frame, index, location="here", strategy="shuffle").collect(),
        lambda: called("column", frame, index, location="here"),
        lambda: called("sql", frame, index, location="here"),
    ):
        message = r"the index .*index is on the plane.* lon and lat.* TagMatch.open\(.*plane=True\)"
        with pytest.raises(InvalidValueError, match=message), errors_of_workers():
            ask()


@pytest.mark.nightly
def test_columns_by_position_and_by_name(session: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    oracle, messages = stored_with_areas(tmp_path / "index", rng), any_messages(rng, 60)
    frame, match = frame_of(session, messages, PLACE_TYPES[0]), match_udf(tmp_path / "index")
    everything = answers(oracle, messages, "attributes", "location", "within")
    found = frame.select(
        "id",
        match("tags", f.struct("price"), "here", "around").alias("by_position"),
        match("tags", within="around", location="here", attributes=f.struct("price")).alias("by_name"),
        match("tags", within="around").alias("within"),
    ).collect()
    within = answers(oracle, messages, "within")
    for name, right in (("by_position", everything), ("by_name", everything), ("within", within)):
        assert {row.id: sorted(row[name]) for row in found} == right


# -- settings and names ----------------------------------------------------------------------------------------------


@pytest.fixture
def settings(spark: Any) -> Iterator[Any]:
    given: list[str] = []

    def give(name: str, value: str) -> None:
        given.append(name)
        spark.conf.set(name, value)

    yield give
    for name in given:
        spark.conf.unset(name)


def test_settings_of_a_session(spark: Any, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_mistakes_in_settings(spark: Any, tmp_path: Path, settings: Any, name: str, value: str, message: str) -> None:
    frame = spark.createDataFrame([(["a"], 1)], "tags array<string>, key long")
    settings(name, value)
    for call in (lambda: partition(frame, tmp_path), lambda: subset_join(frame.select("tags"), tmp_path)):
        with pytest.raises(InvalidValueError, match=message):
            call()
