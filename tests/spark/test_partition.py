"""The offline job makes the files that the local partitioner makes, for any rows; or nothing, and says why."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyspark.sql import functions
from support.areas import AREAS, FIELDS, struct_of
from support.expiring import set_clock, times_of
from support.hashes import colliding_tags
from support.index_files import contents_of, make_index
from support.spark_functions import settings_of
from support.strategies import COMMON_NAMES
from support.tasks import session

from tagmatch import FilterError, IndexExistsError, InvalidTypeError, InvalidValueError, NullError, TagMatch
from tagmatch.model.options import Layout
from tagmatch.partitioner.spark import slices, tables
from tagmatch.spark import partition

Rows = Sequence[tuple[list[str], Any]]
SCHEMA = "tags array<string>, key long"
NAMED = "tags array<string>, key string"


def schema_of(rows: Rows) -> str:
    return NAMED if any(isinstance(key, str) for _, key in rows) else SCHEMA


def few_tags(rng: random.Random) -> Rows:
    """One tag in all sets, 500 others; the empty set, equal sets, equal rows, tags twice in a set, large keys."""
    names = [f"t{i}" for i in range(500)]
    rows = [(["all", *rng.sample(names, rng.randint(0, 4))], rng.randrange(50)) for _ in range(1_500)]
    rows += [([], 5), ([], 2**63 - 1), (["all", "t1", "t1"], 3), (["t1", "all"], 3), (["t1", "all"], 3)]
    return rng.sample(rows, len(rows))


def long_sets(rng: random.Random) -> Rows:
    """Sets of 300 tags and some short ones, of Unicode; no key needs more than 32 bits."""
    tags = ["ä", "日本", "🦊", "e\u0301", "é", "", " ", "a\x00b", *(f"tag-{i}" for i in range(600))]
    rows = [(rng.sample(tags, 300), key) for key in range(40)]
    return rows + [(rng.sample(tags, rng.randint(1, 3)), rng.randrange(2**32)) for _ in range(400)]


def colliding(_: random.Random) -> Rows:
    """Forty tags with one hash, which are different tags nevertheless."""
    tags = colliding_tags(40)
    pairs = (tags[i : i + 2] for i in range(40))
    sets = [*([tag] for tag in tags), *pairs, ["x", *tags], *([f"t{i}"] for i in range(9))]
    return [(tags, key) for key, tags in enumerate(sets)]


def named(rng: random.Random) -> Rows:
    """Keys that are strings, each of many sets."""
    names = [*COMMON_NAMES, *(rng.choice(COMMON_NAMES) + str(i) for i in range(60))]
    return [(tags, names[key % len(names)]) for tags, key in few_tags(rng)]


def named_alike(_: random.Random) -> Rows:
    """Keys with one hash, of a set each."""
    return [([f"t{i % 3}", f"u{i}"], name) for i, name in enumerate(colliding_tags(40))]


#: Rows, `max_partition_size` and `sets_per_task`
SIZES: dict[str, tuple[Any, int, int]] = {
    "few tags": (few_tags, 100, 400),
    "large partitions": (few_tags, 200_000, 1 << 20),
    "long sets": (long_sets, 7, 50),
    "colliding": (colliding, 1, 5),
    "named": (named, 100, 400),
    "named alike": (named_alike, 3, 5),
    "nothing": (lambda _: [], 7, 5),
    "the empty set": (lambda _: [([], "")], 7, 5),
}


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("sizes", SIZES)
def test_files_are_those_of_the_local_partitioner(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, layout: str, sizes: str
) -> None:
    """Also if tasks add up many histograms, or if sets come with their signatures."""
    make, max_partition_size, sets_per_task = SIZES[sizes]
    rows = make(rng)
    options: dict[str, Any] = {"layout": layout, "max_partition_size": max_partition_size}
    if make is named:
        monkeypatch.setattr(slices, "_HISTOGRAMS_AT_ONCE", 0)
    if make in (long_sets, colliding):
        monkeypatch.setattr(tables, "MAPPED_TAGS", 0)
    make_index(tmp_path / "local", rows, **options)
    frame = spark.createDataFrame(rows, schema_of(rows)).repartition(3)
    # Where there are few rows, Spark else puts partitions together
    with settings_of(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        made = partition(frame, tmp_path / "spark", sets_per_task=sets_per_task, **options)
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    assert sorted(os.listdir(tmp_path / "spark")) == sorted(os.listdir(tmp_path / "local"))
    with TagMatch.open(tmp_path / "spark") as tm:
        tm.check()
        stats = tm.stats()
        assert (made.sets, made.keys, made.tags) == (len(tm), stats["keys"], stats["tags"])
        assert made.partitions == stats["partitions"]
    assert made.skipped == {}


@pytest.mark.usefixtures("segments_stay")
@pytest.mark.parametrize(("layout", "key"), [("rarest", str), ("balanced", int)])
def test_tasks_that_run_twice_leave_the_same_files(
    tmp_path: Path, rng: random.Random, seed: int, layout: Any, key: Any
) -> None:
    """Batches come in another order each time."""
    tags, seen = [*(f"t{i}" for i in range(60)), *colliding_tags(20)], dict[Path, bytes]()

    def look() -> bool:
        """What a job has left stays as it is: this job is to run once more."""
        there = {path: path.read_bytes() for path in (tmp_path / "spark").rglob("*") if path.is_file()}
        assert all(there.get(path, contents) == contents for path, contents in seen.items())
        seen.update(there)
        return True

    options: Any = {"layout": layout, "max_partition_size": 20}
    with session(seed) as spark:
        spark.loses_tasks = look
        spark.conf.set("spark.sql.shuffle.partitions", "6")
        for mode in ("overwrite", "append"):
            rows = [(rng.sample(tags, rng.randint(0, 4)), key(rng.randrange(50))) for _ in range(300)]
            make_index(tmp_path / "local", rows, **options)
            seen.clear()
            partition(
                spark.createDataFrame(rows, schema_of(rows)), tmp_path / "spark", mode=mode, sets_per_task=20, **options
            )
            assert len(seen) > 20
            assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")


def test_other_columns_and_smaller_integers(spark: Any, tmp_path: Path) -> None:
    schema = "who string, `what.``is`` it` array<string>, n short"
    frame = spark.createDataFrame([("x", ["a"], 1), ("y", ["b", "a"], 2)], schema)
    make_index(tmp_path / "local", [(["a"], 1), (["b", "a"], 2)])
    own: dict[str, str] = {"tags": "what.`is` it", "key": "n"}
    with pytest.raises(InvalidValueError, match="columns without a meaning: 'who'; name those that are data of keys"):
        partition(frame, (tmp_path / "spark").as_uri(), **own)  # type: ignore[arg-type]
    partition(frame.drop("who"), (tmp_path / "spark").as_uri(), **own)  # type: ignore[arg-type]
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")


def test_unsigned_keys(spark: Any, tmp_path: Path) -> None:
    """As Spark has those of Parquet files of other programs, our own among these."""
    rows, schema = [(["a"], 2**64 - 1), (["a"], 0), (["b"], 2**63)], "tags array<string>, key decimal(20, 0)"
    partition(spark.createDataFrame([(tags, Decimal(key)) for tags, key in rows], schema), tmp_path / "spark")
    make_index(tmp_path / "local", rows)
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    with pytest.raises(InvalidValueError, match=r"key is 2\*\*64 or more: 1"):
        partition(spark.createDataFrame([(["a"], Decimal(2**64))], schema), tmp_path / "other")
    frame = spark.createDataFrame([(["a"], Decimal(10**37)), (["b"], Decimal(7))], schema.replace("20", "38"))
    with pytest.raises(InvalidValueError, match=r"key is 2\*\*64 or more: 1"):
        partition(frame, tmp_path / "other")
    assert partition(frame, tmp_path / "other", skip_invalid=True).keys == 1


BAD_ROWS: list[tuple[list[Any], dict[str, int]]] = [
    (
        [(["a"], 1), (None, 2), (None, None), (["a", None], 3), (["b"], None), (["c"], -1), (["d"], -2), (["e"], 4)],
        {"tags is null": 2, "a tag is null": 1, "key is null": 1, "key is negative": 2},
    ),
    (  # keys that no other row has leave no trace
        [(["a"], "m"), (None, "a"), (["a", None], "z"), (None, None), (["b"], None), (["c"], "b"), (None, "b")],
        {"tags is null": 3, "a tag is null": 1, "key is null": 1},
    ),
]


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize(("rows", "skipped"), BAD_ROWS, ids=["integers", "strings"])
def test_rows_that_cannot_be_stored(
    spark: Any, tmp_path: Path, layout: Any, rows: Any, skipped: dict[str, int]
) -> None:
    frame = spark.createDataFrame(rows, schema_of(rows))
    told = ", ".join(f"{problem}: {count}" for problem, count in skipped.items())
    with pytest.raises(InvalidValueError, match=f"cannot be stored: {told}; filter them"):
        partition(frame, tmp_path / "index", layout=layout)
    assert not (tmp_path / "index").exists()
    assert partition(frame, tmp_path / "index", layout=layout, skip_invalid=True).skipped == skipped
    good = [row for row in rows if row[0] and None not in row[0] and row[1] not in (None, -1, -2)]
    make_index(tmp_path / "local", good, layout=layout)
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "local")


def test_null_tags_with_a_condition_are_none(spark: Any, tmp_path: Path) -> None:
    """As `add_subscriptions` and the command take them."""
    schema = "tags array<string>, key long, where string, area struct<lon: double, lat: double, metres: double>"
    rows = [(["a"], 1, None, None), (None, 2, "price < 5", None), (None, 3, None, (9.0, 45.0, 500.0))]
    table = pa.table({"key": [1, 2, 3], "tags": [["a"], None, None], "where": [None, "price < 5", None],
                      "area": [None, None, {"lon": 9.0, "lat": 45.0, "metres": 500.0}]})  # fmt: skip
    partition(spark.createDataFrame(rows, schema), tmp_path / "index")
    with TagMatch(device="cpu") as tm, TagMatch.open(tmp_path / "index", device="cpu") as made:
        tm.add_subscriptions(table)
        tm.consolidate()
        assert dict(made) == dict(tm)
    frame = spark.createDataFrame([*rows, (None, 4, None, None)], schema)
    with pytest.raises(InvalidValueError, match="tags is null: 1"):
        partition(frame, tmp_path / "index")


EVERY = "tags array<string>, key {}, {} string, constraints array<struct<attr: string, op: string, value: double>>"
EVERY += f", area struct<kind: string, {', '.join(f'{name}: double' for name in FIELDS)}>"
CONDITIONS = [
    None, None, None, "price < 10", 'city = "Rome" or not tags {"t1"}', "not price >= 3 and exists(city)",
    'not within circle(9, 45, 50000) or tags {"t1"}', "within near(60000) and price = 2",
]  # fmt: skip


@pytest.mark.parametrize(("layout", "key_of"), [("rarest", "é {}".format), ("balanced", int)])
def test_conditions_and_areas(spark: Any, tmp_path: Path, rng: random.Random, layout: Any, key_of: Any) -> None:
    """The files are those of the local partitioner, also where rows are appended."""

    def any_row() -> tuple[Any, ...]:
        cheap = [{"attr": "price", "op": "<", "value": rng.randrange(4) + 0.0}]
        tags, where = rng.sample([f"t{number}" for number in range(6)], rng.choice([0, 1, 1, 2, 3])), CONDITIONS
        number, area = rng.randrange(80), struct_of(rng.choice([None, *AREAS]))
        return tags, key_of(number), rng.choice([*where, f"x = {number}"]), rng.choice([None, None, cheap]), area

    options = {"layout": layout, "max_partition_size": 20}
    kind, key_type = ("long", "integer") if key_of is int else ("string", "string")
    with TagMatch(tmp_path / "local", device="cpu", durability="none", key_type=key_type, **options) as tm:
        for mode, where in (("overwrite", "where"), ("append", "w h")):
            frame = spark.createDataFrame([any_row() for _ in range(400)], EVERY.format(kind, f"`{where}`"))
            tm.add_subscriptions(frame.toArrow().rename_columns(["tags", "key", "where", "constraints", "area"]))
            tm.consolidate()
            given = {} if where == "where" else {"where": where}  # the default
            partition(frame.repartition(3), tmp_path / "spark", mode=mode, sets_per_task=100, **given, **options)
            assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")


@pytest.mark.parametrize("sets_per_task", [50, 1 << 20])
@pytest.mark.parametrize("key_of", [int, "é {}".format])
def test_keys_that_expire(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, sets_per_task: int, key_of: Any
) -> None:
    """The files are those of the local partitioner; of one set and key, the latest time counts; some are past."""
    clock = set_clock(monkeypatch)
    times = [None, None, *(clock.after(seconds) for seconds in (-5, 0, 5, 60))]
    rows = [(tags, key_of(key % 40), rng.choice(times)) for tags, key in few_tags(rng)[:600]]
    rows += [(tags, key, rng.choice(times)) for tags, key, _ in rows[:60]]
    frame = spark.createDataFrame(rows, f"{schema_of([row[:2] for row in rows])}, until timestamp").repartition(3)
    with settings_of(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        partition(frame, tmp_path / "spark", expires="until", sets_per_task=sets_per_task)
    never = clock.after(1e9)
    rows.sort(key=lambda row: row[2] or never)
    make_index(tmp_path / "local", [row[:2] for row in rows], expires=[row[2] for row in rows])
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    with TagMatch.open(tmp_path / "spark", device="cpu") as tm:
        assert {at is None for at in times_of(tm).values()} == {True, False}
        assert min(filter(None, times_of(tm).values())) == clock.after(5)
    gone = [(["a"], key_of(1), clock.after(-5))]
    frame = spark.createDataFrame(
        gone, f"tags array<string>, key {'long' if key_of is int else 'string'}, expires timestamp"
    )
    assert partition(frame, tmp_path / "gone").keys == 0


def test_areas_on_the_plane(spark: Any, tmp_path: Path) -> None:
    rows = [(["a"], 1, ("circle", 5000.0, -900.5, 10.0), None), (["a"], 2, None, "within box(-1000, 0, 4000, 9)")]
    schema = f"{SCHEMA}, area struct<kind: string, lon: double, lat: double, metres: double>, where string"
    frame = spark.createDataFrame(rows, schema)
    partition(frame, tmp_path / "spark", plane=True)
    with TagMatch(tmp_path / "local", plane=True, device="cpu", durability="none") as tm:
        tm.add_subscriptions(frame.toArrow())
        tm.consolidate()
        assert tm.match(["a"], location=(5001, -901)) == [1]
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    with pytest.raises(InvalidValueError, match="lon must be from -180 to 180, not 5000"):
        partition(frame.drop("where"), tmp_path / "spark")


def test_conditions_that_will_not_do(spark: Any, tmp_path: Path) -> None:
    rows = [(["a"], 1, "price < 10"), (["b"], 2, "price <"), (["c"], 3, None), (["d"], None, "x =")]
    frame = spark.createDataFrame(rows, f"{SCHEMA}, where string")
    with pytest.raises(FilterError, match=r"where: '(price <|x =)': column \d: expected a value"):
        partition(frame, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    made = partition(frame, tmp_path / "index", skip_invalid=True)
    assert made.skipped == {"key is null": 1, "where has a mistake": 1}
    assert made.sets == 2
    far, where = {"kind": "circle", "lon": 9.0, "lat": 145.0, "metres": 5.0}, "within circle(9, 145, 5)"
    for row, kind, message in (
        ((None, None, far), InvalidValueError, "lat must be from -90 to 90, not 145"),
        ((None, None, far | {"lat": None}), NullError, "field 'lat' is null; a circle has"),
        ((where, None, None), FilterError, "lat must be from -90 to 90, not 145"),
        ((None, [{"attr": "x", "op": "?", "value": 1.0}], None), InvalidValueError, "constraints: row 0"),
    ):
        frame = spark.createDataFrame([(["a"], 1, *row)], EVERY.format("long", "where"))
        with pytest.raises(kind, match=message):
            partition(frame, tmp_path / "other")
        if row[0]:
            made = partition(frame, tmp_path / "other", skip_invalid=True)
            assert made.skipped == {"where has a mistake": 1}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("tags string, key long", "column 'tags' must be array<string>, not string"),
        ("tags array<int>, key long", "column 'tags' must be array<string>, not array<int>"),
        ("tags array<string>, key double", "column 'key' must be a string, an integer or a decimal of scale 0, not "),
        ("tags array<string>, keys long", "no column 'key'; there are 'tags', 'keys'"),
        (f"{SCHEMA}, where long", "column 'where' must be string, not bigint"),
        (f"{SCHEMA}, expires date", "column 'expires' must be timestamps with a time zone, not date32"),
        (f"{SCHEMA}, expires timestamp_ntz", "column 'expires' are timestamps without a time zone"),
        (f"{SCHEMA}, wher string", "column 'wher' means nothing here; is 'where' meant?"),
        (f"{SCHEMA}, Where string", "column 'Where' means nothing here; is 'where' meant?"),
        (f"{SCHEMA}, expiry timestamp", "column 'expiry' means nothing here; is 'expires' meant?"),
        (f"{SCHEMA}, constraints string", "column 'constraints' must be lists of structs"),
        (f"{SCHEMA}, area long", "column 'area' must be texts, WKB, lists of rings, or structs with kind, lon"),
        (f"{SCHEMA}, area struct<radius: double>", "column 'area': areas have fields kind, lon, .* not 'radius'"),
        (f"{SCHEMA}, constraints array<struct<attr: string, op: string, value: binary>>", "'value' has values of b"),
    ],
)
def test_columns_that_will_not_do(spark: Any, tmp_path: Path, schema: str, message: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
        partition(spark.createDataFrame([], schema), tmp_path / "index")


def test_paths_and_numbers_that_will_not_do(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(IndexExistsError, match="is a folder with other files in it"):
        partition(frame, tmp_path)
    with pytest.raises(IndexExistsError, match=r"notes.txt is a file, not an index folder"):
        partition(frame, tmp_path / "notes.txt")
    with pytest.raises(InvalidValueError, match="sets_per_task must be an integer from 1 on, not 0"):
        partition(frame, tmp_path / "index", sets_per_task=0)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_partitions_that_spark_does_not_put_together(session: Any, tmp_path: Path) -> None:
    """Spark looks at the number of initial ones only if it does."""
    rows = session.range(300).selectExpr("array(concat('t', id), concat('u', id % 7)) tags", "id key")
    number = {"spark.sql.adaptive.coalescePartitions.initialPartitionNum": "32", "spark.sql.shuffle.partitions": "4"}
    for name in ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled"):
        with settings_of(session, {name: "false"} | number):
            assert partition(rows, tmp_path / "index", sets_per_task=100).sets == 300


@pytest.mark.nightly
def test_keys_are_compared_as_bytes(session: Any, tmp_path: Path) -> None:
    """Whatever the column's collation; they must be UTF-8."""
    rows = [(["a"], "Ana"), (["a"], "ana"), (["b"], "ANA")]
    frame = session.createDataFrame(rows, NAMED).selectExpr("tags", "key collate UTF8_LCASE as who")
    partition(frame, tmp_path / "spark", key="who")
    make_index(tmp_path / "local", rows)
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    for column, other in (("array('a') tags", "key"), ("1L key", "tags")):
        bad = f"cast(x'c328' as string) {other}" if other == "key" else "array(cast(x'c328' as string)) tags"
        with pytest.raises(InvalidValueError, match=f"{other}: rows 0 to 0: Invalid UTF8 sequence"):
            partition(session.sql(f"select {column}, {bad}"), tmp_path / "index")


@pytest.mark.nightly
def test_keys_that_are_others_each_time(session: Any, tmp_path: Path) -> None:
    """Rows are made once."""
    change = functions.udf(lambda: secrets.token_hex(8), "string").asNondeterministic()
    frame = session.range(3).select(functions.array(functions.lit("a")).alias("tags"), change().alias("key"))
    made = partition(frame, tmp_path / "index")
    assert (made.sets, made.keys) == (1, 3)
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        tm.check()
        assert sorted(map(len, tm.match(["a"]))) == [16, 16, 16]


def test_a_path_is_no_dataframe(tmp_path: Path) -> None:
    """As the command takes one."""
    with pytest.raises(InvalidTypeError, match=r"sets must be a Spark DataFrame, .* not str"):
        partition("interests", tmp_path / "index")  # type: ignore[arg-type]
