"""Functions in SQL and of columns, settings of a session, and arguments of joins; `test_join.py` has answers."""

from __future__ import annotations

import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from support.index_files import make_index
from support.spark_functions import called, settings_of

import tagmatch.spark.functions
import tagmatch.spark.join
from tagmatch import Circle, TagMatch
from tagmatch.model.errors import IndexNotFoundError, InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.spark import match_udf, partition, register, subset_join
from tagmatch.spark.columns import errors_of_workers
from tagmatch.spark.shuffle import shuffle_join

WAYS = ("sql", "column")
AREA = "struct<kind: string, lon: decimal(5, 3), lat: int, metres: int>"


def test_a_newer_snapshot_is_taken_up_by_the_next_query(spark: Any, tmp_path: Path) -> None:
    register(spark)
    frame = spark.createDataFrame([(1, ["a", "b"])], "id int, tags array<string>")
    for key in (1, 2):
        make_index(tmp_path / "index", [(["a"], key)])
        for way in WAYS:
            assert called(way, frame, tmp_path / "index") == {1: list(range(1, key + 1))}


def test_functions_of_two_snapshots_in_one_query(session: SparkSession, tmp_path: Path) -> None:
    """Each asks its own, batch by batch, in the same worker."""
    with TagMatch(tmp_path / "index", keep_snapshots=5) as tm:
        for key in (1, 2):
            tm.add_set(["a"], key)
            tm.consolidate()
    numbers = [info.number for info in TagMatch.snapshots(tmp_path / "index")]
    before, after = (match_udf(tmp_path / "index", snapshot=number) for number in numbers)
    frame = session.createDataFrame([(["a"],)] * 4, "tags array<string>").coalesce(1)
    with settings_of(session, {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}):
        found = frame.select(before("tags"), after("tags")).collect()
    assert sorted(map(tuple, found)) == [([1], [1, 2])] * 4


def test_times_of_messages(session: SparkSession, tmp_path: Path) -> None:
    """With a zone, which no value names; without one they are an error."""
    index = make_index(tmp_path / "index", [(["a"], 1, 'posted >= timestamp "2026-01-01T00:00:00Z"')])
    register(session)
    for zone, time in itertools.product(("UTC", "Europe/Rome"), ("2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z")):
        with settings_of(session, {"spark.sql.session.timeZone": zone}):
            for given in ("struct({} AS posted)", "map('posted', {})", "map('posted', array({}))"):
                asked = given.format(f"timestamp '{time}'")
                frame = session.sql(f"SELECT 1 id, array('a') tags, {asked} asked")
                for way in WAYS:
                    assert called(way, frame, index, attributes="asked") == {1: [1] * (time > "2026")}
    for given in ("struct({} AS posted)", "map('posted', array({}))"):
        asked = given.format("timestamp_ntz '2026-01-01T00:00:00'")
        session.sql(f"SELECT array('a') tags, {asked} asked").createOrReplaceTempView("naive")
        with pytest.raises(AnalysisException, match="argument attributes has times without a time zone"):
            session.sql(
                f"SELECT m.key FROM naive q, LATERAL tagmatch_match(q.tags, '{index}', attributes => q.asked) m"
            )


def test_numbers_as_sql_writes_them(spark: Any, tmp_path: Path) -> None:
    """They are decimals and integers."""
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([["a"]] * 2, [1, 2], area=[Circle(9.0051, 45, metres) for metres in (50_000, 0.001)])
        tm.consolidate()
        tm.move([1, 2], [9.005, 20], [45, 0])
        tm.save_positions()
    register(spark)
    lon, circle = Decimal("9.0051"), ("circle", Decimal("9.005"), 45, 50_000)
    rows = [
        (1, ["a"], (45, lon), [lon, Decimal(45)], circle),
        (2, ["a"], (45, Decimal("9.0050")), [Decimal("20.5"), Decimal(45)], circle),
    ]
    kinds = f"struct<lat: int, lon: decimal(6, 4)>, here array<decimal(6, 4)>, around {AREA}"
    frame = spark.createDataFrame(rows, f"id int, tags array<string>, there {kinds}")
    for way in WAYS:
        assert called(way, frame, tmp_path / "index", location="there") == {1: [1, 2], 2: [1]}
        assert called(way, frame, tmp_path / "index", location="here", within="around") == {1: [1], 2: []}
    joined = subset_join(frame, tmp_path / "index", location="here", within="around")
    assert [(row.id, row.key) for row in joined.collect()] == [(1, 1)]


def test_a_null_has_no_answer(spark: Any, tmp_path: Path) -> None:
    """Though the empty set is stored, which all others have; `match_udf` gives null, the table function no row."""
    index = make_index(tmp_path / "index", [([], 1), (["a"], 2)])
    register(spark)
    frame = spark.createDataFrame([(1, ["a"]), (2, None), (3, [])], "id int, tags array<string>")
    for way in WAYS:
        assert called(way, frame, index) == {1: [1, 2], 2: [], 3: [1]}
    for output, wanted in (("lists", [[1, 2], None, [1]]), ("counts", [2, None, 1]), ("exists", [True, None, True])):
        match = match_udf(index, output=output)
        tags = pa.array([["a", "a"], None, []], pa.list_(pa.string()))
        assert [
            each and sorted(each) if isinstance(each, list) else each for each in match.func(tags).to_pylist()
        ] == wanted
        assert match.func(tags[:0]).to_pylist() == []


def test_rows_with_a_null_among_their_tags_may_be_skipped(spark: Any, tmp_path: Path) -> None:
    """They then have no answer, but null; else they are an error."""
    index = make_index(tmp_path / "index", [([], 1), (["a"], 2)])
    rows = [["a", None], ["a"], None, [None], []]
    for output, wanted in (("lists", [None, [1, 2], None, None, [1]]), ("counts", [None, 2, None, None, 1])):
        tags = pa.array(rows, pa.list_(pa.string()))
        found = match_udf(index, output=output, skip_invalid=True).func(tags).to_pylist()
        assert [sorted(each) if isinstance(each, list) else each for each in found] == wanted
    frame = spark.createDataFrame([*enumerate(rows)], "id int, tags array<string>")
    assert called("column", frame, index, skip_invalid=True) == {0: [], 1: [1, 2], 2: [], 3: [], 4: [1]}
    with pytest.raises(NullError, match=r"^column 'tags' of the queries holds a null") as raised, errors_of_workers():
        called("column", frame, index)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_letters_of_names_count_if_the_session_says_so(spark: Any, tmp_path: Path, strategy: Any) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1), (["b"], 2)])
    one = spark.createDataFrame([(["a"],)], "Tags array<string>")
    both = spark.createDataFrame([(["a"], ["b"])], "Tags array<string>, TAGS array<string>")
    assert [row.key for row in subset_join(one, index, strategy=strategy).collect()] == [1]
    with pytest.raises(InvalidValueError, match="one column 'tags'; its columns are 'Tags', 'TAGS'"):
        subset_join(both, index, strategy=strategy)
    for value in ("true", "TRUE"):
        with settings_of(spark, {"spark.sql.caseSensitive": value}):
            with pytest.raises(InvalidValueError, match="one column 'tags'; its columns are 'Tags'; is 'Tags' meant"):
                subset_join(one, index, strategy=strategy)
            for name, key in (("Tags", 1), ("TAGS", 2)):
                joined = subset_join(both, index, tags=name, strategy=strategy)
                assert [row.key for row in joined.collect()] == [key]


_WITHIN = "struct<kind: string, lon: int, lat: double, metres: int>"
MISTAKES: list[Any] = [
    ("location", "string", "x", InvalidTypeError, " must be a struct or an array of lon, lat, not string"),
    ("location", "struct<lon: double>", (9.0,), InvalidTypeError, r" must have the fields lon and lat, not \['lon'"),
    ("location", "struct<at: timestamp>", None, InvalidTypeError, r" must have the fields lon and lat, not \['at'"),
    ("location", "array<string>", ["x"], InvalidTypeError, ": lon must be numbers, not string"),
    ("within", "double", 9.0, InvalidTypeError, " must be texts, .* kind, lon, lat, .* not double"),
    ("within", "struct<radius: double>", (9.0,), InvalidTypeError, ": areas have fields .* not 'radius'"),
    ("attributes", "double", 9.0, InvalidTypeError, " must be a struct.*, not double"),
    ("location", "array<double>", [9.0, 95.0], InvalidValueError, ".*: lat must be from -90 to 90, not 95"),
    ("location", "array<double>", [9.0], TagMatchError, ".* must .*two numbers"),
    ("location", "struct<lon: double, lat: double>", (9.0, None), TagMatchError, ".* lat"),
    ("within", "struct<metres: int>", (5,), TagMatchError, ".* must be a circle, .* a corridor: n"),
    ("within", _WITHIN, ("circle", 9, 95.0, 5), InvalidValueError, ".* 95"),
    ("within", _WITHIN, ("circle", 9, 45.0, None), TagMatchError, ".* a circle"),
    ("tags", "array<string>", ["a", None], TagMatchError, ".* null"),
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
    """And attributes that would be taken for other columns, which SQL tells apart."""
    register(spark)
    large, index = make_index(tmp_path / "large", [(["a"], 2**63)]), tmp_path / "index"
    with TagMatch(index) as tm:
        tm.add_set(["a"], 1, where='location = "y"', area=Circle(9, 45, 10))
        tm.consolidate()
    schema = "id int, tags array<string>, name string, own struct<tags: string, location: string>, here array<double>"
    frame = spark.createDataFrame([(1, ["a"], "x", ("x", "y"), [9.0, 45.0])], schema)
    arguments = {"attributes": "own", "location": "here"}
    wrong: list[tuple[Any, dict[str, str], type[TagMatchError], str]] = [
        ("/no/such/folder", {}, IndexNotFoundError, "no such folder"),
        (large, {}, InvalidValueError, f"key {2**63} "),
    ]
    if way == "sql":
        wrong += [(large, {"tags": "name"}, InvalidTypeError, "argument tags must be array<string>, not string")]
        assert called(way, frame, index, **arguments) == {1: [1]}
    else:
        wrong += [(index, arguments, InvalidValueError, "none of them 'tags', 'location'")]
    for path, asked, error, message in wrong:
        with pytest.raises(error, match=message), errors_of_workers():
            called(way, frame, path, **asked)


PLACE, HERE = ", here array<double>", {"location": "here"}
BAD: list[tuple[str, dict[str, Any], type[TagMatchError], str]] = [
    (
        "words array<string>",
        {},
        InvalidValueError,
        "tags: queries must have one column 'tags'; its",
    ),
    ("Tag array<string>", {}, InvalidValueError, "one column 'tags'; its columns are 'Tag'; is 'Tag' meant"),
    ("tags string", {}, InvalidTypeError, "column 'tags' of the queries must be array<string>, not string"),
    ("tags array<int>", {}, InvalidTypeError, "must be array<string>, not array<int>"),
    (", key int", {}, InvalidValueError, "column 'key' already"),
    (", Keys int", {"output": "lists"}, InvalidValueError, "column 'Keys' already"),
    ("", {"strategy": "broadcast"}, InvalidValueError, "strategy must be one of 'auto'"),
    ("", {"output": "set"}, InvalidValueError, "output must be one of 'rows'"),
    ("", {"index": 3}, InvalidTypeError, "index must be"),
    ("", {"index": ""}, InvalidValueError, "index is empty; give the path of a folder"),
    ("", {"index": "ftp://host/index"}, InvalidValueError, "Arrow does not reach ftp://host/in"),
    ("", {"index": "no/such/folder"}, IndexNotFoundError, "no such folder"),
    ("", {"attributes": ["cost"]}, InvalidValueError, "one column 'cost'; its columns are 'tags'"),
    (", day binary", {"attributes": "day"}, InvalidTypeError, "column 'day' is of binary"),
    (", x int", {"attributes": ["x", "x"]}, InvalidValueError, "names, none of them 'tags'"),
    ("", {"folder": "x"}, InvalidValueError, "folder is where the index of interests is made"),
    ("", {"location": "there"}, InvalidValueError, "location: queries must have one column 'there'"),
    (", n int", {"location": "n"}, InvalidTypeError, "location: column 'n' must be a struct or an array of lon, lat, "),
    (", n int", {"within": "n"}, InvalidTypeError, "within: column 'n' must be texts, WKB"),
    (
        f"{PLACE}, location int",
        {"attributes": "location", "location": "here"},
        InvalidValueError,
        "none of them 'tags'",
    ),
]


@pytest.mark.parametrize(("columns", "arguments", "error", "message"), BAD)
def test_arguments_of_joins_that_will_not_do(
    spark: Any, tmp_path: Path, columns: str, arguments: dict[str, Any], error: type[TagMatchError], message: str
) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    columns = columns if columns[:1].isalpha() else f"tags array<string>{columns}"
    with pytest.raises(error, match=message):
        subset_join(spark.createDataFrame([], columns), **{"index": index, **arguments})
    with pytest.raises(InvalidTypeError, match="must be a Spark DataFrame, not list"):
        subset_join([["a"]], tmp_path)  # type: ignore[arg-type]


def test_settings_of_a_session(spark: Any, tmp_path: Path) -> None:
    sets = spark.createDataFrame([(["a"], 1), (None, 2)], "tags array<string>, key long")
    queries = spark.createDataFrame([(["a"],)], "tags array<string>")
    index, other = tmp_path / "index", tmp_path / "other"
    given = {"layout": "balanced", "maxPartitionSize": "17", "skipInvalid": "true"}
    with settings_of(spark, {f"spark.tagmatch.{name}": value for name, value in given.items()}):
        assert partition(sets, index).skipped == {"tags is null": 1}
        partition(sets, index, mode="append")
        partition(sets, other, layout="rarest")  # an argument comes before a setting
        partition(sets, other, mode="append")  # nor is the index's own layout a mistake
    for path, expected in ((index, "balanced"), (other, "rarest")):
        with TagMatch.open(path) as tm:
            assert (tm.stats()["layout"], tm.stats()["max_partition_size"]) == (expected, 17)
    for given, argument, ships in (
        ({"shipLimit": str(8 << 30)}, None, True),
        ({"shipLimit": "0"}, None, False),
        ({"shipLimit": "0"}, 8 << 30, True),
        ({"shipLimit": "0", "strategy": "ship"}, None, True),
    ):
        with (
            settings_of(spark, {f"spark.tagmatch.{name}": value for name, value in given.items()}),
            patch.object(tagmatch.spark.join, "shuffle_join", wraps=shuffle_join) as shuffles,
        ):
            assert [row.key for row in subset_join(queries, index, ship_limit=argument).collect()] == [1]
        assert shuffles.called != ships


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layot", "x", r"no setting 'spark.tagmatch.layot'; there are spark.tagmatch.layout, spark"),
        ("layout", "best", "is 'best': it must be one of rarest, balanced"),
        ("setsPerTask", "0", "it must be an integer from 1 on"),
        ("skipInvalid", "yes", "it must be true or false"),
        ("device", "gpu", "it must be one of cpu, cuda"),
    ],
)
def test_mistakes_in_settings(spark: Any, tmp_path: Path, name: str, value: str, message: str) -> None:
    frame = spark.createDataFrame([(["a"], 1)], "tags array<string>, key long")
    for call in (lambda: partition(frame, tmp_path), lambda: subset_join(frame.select("tags"), tmp_path)):
        with settings_of(spark, {f"spark.tagmatch.{name}": value}), pytest.raises(InvalidValueError, match=message):
            call()
