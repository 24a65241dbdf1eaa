"""The offline job makes the files that the local partitioner makes, whatever the rows; or nothing, and says why."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions
from support.collisions import colliding_tags
from support.index_files import manifest_as_first
from support.jvm import Jvm
from support.killed import run_killed_job
from support.spark_settings import settings_of
from support.strategies import COMMON_NAMES

from tagmatch import (
    FilterError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatch,
)
from tagmatch.model.options import Layout
from tagmatch.partitioner.spark import tree
from tagmatch.spark import SparkUnavailableError, partition
from tagmatch.spark.session import check_java

Rows = Sequence[tuple[list[str], Any]]
SCHEMA = "tags array<string>, key long"
NAMED = "tags array<string>, key string"


KEY_TYPES = ["integers", "strings"]


def key_type(rows: Rows) -> str:
    return "string" if any(isinstance(key, str) for _, key in rows) else "integer"


def manifest(index: Path) -> bytes:
    """Names, sizes and checksums of all files, and all options."""
    return (index / "MANIFEST.json").read_bytes()


def local(rows: Rows, index: Path, **options: Any) -> bytes:
    options = {"key_type": key_type(rows), **options}
    with TagMatch(index, threads=2, device="cpu", durability="none", **options) as tm:
        for tags, key in rows:
            tm.add_set(tags, key)
        tm.consolidate()
    return manifest(index)


def few_tags(rng: random.Random) -> Rows:
    """One tag in all sets, 500 others; the empty set, equal sets, equal rows, tags twice in a set, large keys."""
    rows = [
        (["all", *rng.sample([f"t{i}" for i in range(500)], rng.randint(0, 4))], rng.randrange(50))
        for _ in range(3_000)
    ]
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
    sets = [
        *([tag] for tag in tags),
        *(tags[i : i + 2] for i in range(40)),
        ["x", *tags],
        *([f"t{i}"] for i in range(9)),
    ]
    return [(tags, key) for key, tags in enumerate(sets)]


def named(rng: random.Random) -> Rows:
    """Keys that are strings, each of many sets."""
    names = [*COMMON_NAMES, *(rng.choice(COMMON_NAMES) + str(i) for i in range(60))]
    return [(tags, names[key % len(names)]) for tags, key in few_tags(rng)]


def named_alike(_: random.Random) -> Rows:
    """Keys with one hash, of a set each."""
    return [([f"t{i % 3}", f"u{i}"], name) for i, name in enumerate(colliding_tags(40))]


@pytest.fixture
def ranges_stay_apart(spark: Any) -> Iterator[None]:
    """Where there are few rows, Spark else puts partitions together."""
    with settings_of(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        yield


@pytest.mark.usefixtures("ranges_stay_apart")
@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize(
    ("make", "max_partition_size", "sets_per_task"),
    [
        (few_tags, 100, 400),
        (few_tags, 200_000, 1 << 20),
        (long_sets, 7, 50),
        (colliding, 1, 5),
        (named, 100, 400),
        (named_alike, 3, 5),
    ],
)
def test_files_are_those_of_the_local_partitioner(
    spark: Any, tmp_path: Path, rng: random.Random, layout: str, make: Any, max_partition_size: int, sets_per_task: int
) -> None:
    rows = make(rng)
    options = {"layout": layout, "max_partition_size": max_partition_size}
    expected = local(rows, tmp_path / "local", **options)
    frame = spark.createDataFrame(rows, NAMED if key_type(rows) == "string" else SCHEMA).repartition(3)
    made = partition(frame, tmp_path / "spark", sets_per_task=sets_per_task, **options)
    assert manifest(tmp_path / "spark") == expected
    assert sorted(os.listdir(tmp_path / "spark")) == sorted(os.listdir(tmp_path / "local"))
    with TagMatch.open(tmp_path / "spark") as tm:
        tm.check()
        stats = tm.stats()
        assert (made.sets, made.keys, made.tags) == (len(tm), stats["keys"], stats["tags"])
        assert made.partitions == stats["partitions"]
    assert made.skipped == {}


def test_many_histograms_are_added_up_by_tasks(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_HISTOGRAMS_AT_ONCE", 0)
    rows = few_tags(rng)
    expected = local(rows, tmp_path / "local", layout="balanced", max_partition_size=100)
    frame = spark.createDataFrame(rows, SCHEMA).repartition(3)
    partition(frame, tmp_path / "spark", layout="balanced", max_partition_size=100, sets_per_task=400)
    assert manifest(tmp_path / "spark") == expected


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize(
    ("rows", "schema", "kind"),
    [([], SCHEMA, "integer"), ([([], 1)], SCHEMA, "integer"), ([], NAMED, "string"), ([([], "")], NAMED, "string")],
    ids=["nothing", "the empty set", "nothing, of strings", "the empty set, of the empty string"],
)
def test_next_to_nothing(spark: Any, tmp_path: Path, layout: str, rows: Rows, schema: str, kind: str) -> None:
    expected = local(rows, tmp_path / "local", layout=layout, key_type=kind)
    partition(spark.createDataFrame(rows, schema), tmp_path / "spark", layout=layout)
    assert manifest(tmp_path / "spark") == expected


def test_other_columns_and_smaller_integers(spark: Any, tmp_path: Path) -> None:
    schema = "who string, `what.is` array<string>, n short"
    frame = spark.createDataFrame([("x", ["a"], 1), ("y", ["b", "a"], 2)], schema)
    expected = local([(["a"], 1), (["b", "a"], 2)], tmp_path / "local")
    partition(frame, (tmp_path / "spark").as_uri(), tags="what.is", key="n")
    assert manifest(tmp_path / "spark") == expected


def test_unsigned_keys(spark: Any, tmp_path: Path) -> None:
    """As Parquet files of other programs have them, our own among these."""
    rows = [(["a"], 2**64 - 1), (["a"], 0), (["b"], 2**63)]
    tags, keys = zip(*rows, strict=True)
    pq.write_table(pa.table({"tags": list(tags), "key": pa.array(keys, pa.uint64())}), tmp_path / "sets.parquet")
    frame = spark.read.parquet(str(tmp_path / "sets.parquet"))
    partition(frame, tmp_path / "spark")
    assert manifest(tmp_path / "spark") == local(rows, tmp_path / "local")
    too_large = spark.sql("select array('a') tags, cast(18446744073709551616 as decimal(20, 0)) key")
    with pytest.raises(InvalidValueError, match=r"key is 2\*\*64 or more: 1"):
        partition(too_large, tmp_path / "other")


def test_rows_that_cannot_be_stored(spark: Any, tmp_path: Path) -> None:
    rows = [(["a"], 1), (None, 2), (None, None), (["a", None], 3), (["b"], None), (["c"], -1), (["d"], -2), (["e"], 4)]
    frame = spark.createDataFrame(rows, SCHEMA)
    told = ["tags is null: 2", "a tag is null: 1", "key is null: 1", "key is negative: 2"]
    with pytest.raises(InvalidValueError, match=f"cannot be stored: {', '.join(told)}; filter them"):
        partition(frame, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    made = partition(frame, tmp_path / "index", skip_invalid=True)
    assert made.skipped == {"tags is null": 2, "a tag is null": 1, "key is null": 1, "key is negative": 2}
    assert manifest(tmp_path / "index") == local([(["a"], 1), (["e"], 4)], tmp_path / "local")


@pytest.mark.parametrize("layout", get_args(Layout))
def test_rows_of_string_keys_that_cannot_be_stored(spark: Any, tmp_path: Path, layout: str) -> None:
    """Keys that no other row has leave no trace."""
    rows = [(["a"], "m"), (None, "a"), (["a", None], "z"), (None, None), (["b"], None), (["c"], "b"), (None, "b")]
    frame = spark.createDataFrame(rows, NAMED)
    told = ["tags is null: 3", "a tag is null: 1", "key is null: 1"]
    with pytest.raises(InvalidValueError, match=f"cannot be stored: {', '.join(told)}; filter them"):
        partition(frame, tmp_path / "index", layout=layout)
    assert not (tmp_path / "index").exists()
    made = partition(frame, tmp_path / "index", layout=layout, skip_invalid=True)
    assert made.skipped == {"tags is null": 3, "a tag is null": 1, "key is null": 1}
    assert manifest(tmp_path / "index") == local([(["a"], "m"), (["c"], "b")], tmp_path / "local", layout=layout)


def test_keys_are_compared_as_bytes(spark: Any, tmp_path: Path) -> None:
    """Whatever the column's collation."""
    rows = [(["a"], "Ana"), (["a"], "ana"), (["b"], "ANA")]
    frame = spark.createDataFrame(rows, NAMED).selectExpr("tags", "key collate UTF8_LCASE as who")
    partition(frame, tmp_path / "spark", key="who")
    assert manifest(tmp_path / "spark") == local(rows, tmp_path / "local")


def test_keys_that_are_not_utf8(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("select array('a') tags, cast(x'c328' as string) key")
    with pytest.raises(InvalidValueError, match="key: rows 0 to 0: Invalid UTF8 sequence"):
        partition(frame, tmp_path / "index")


def test_keys_that_are_others_each_time(spark: Any, tmp_path: Path) -> None:
    change = functions.udf(lambda: secrets.token_hex(8), "string").asNondeterministic()
    frame = spark.range(3).select(functions.array(functions.lit("a")).alias("tags"), change().alias("key"))
    """Rows are made once."""
    made = partition(frame, tmp_path / "index")
    assert (made.sets, made.keys) == (1, 3)
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        tm.check()
        assert sorted(map(len, tm.match(["a"]))) == [16, 16, 16]


CONDITIONS = [None, "price < 10", 'city = "Rome" or not tags {"t1"}', "not price >= 3 and exists(city)"]


@pytest.mark.parametrize("layout", get_args(Layout))
def test_conditions(spark: Any, tmp_path: Path, rng: random.Random, layout: Any) -> None:
    """The files are those of the local partitioner, also where rows are appended."""
    rows = [(tags, key, rng.choice(CONDITIONS)) for tags, key in few_tags(rng)[:600]]
    rows += [(tags, key, f"x = {key}") for tags, key, _ in rows[:50]]
    first, more = rows[:300], rows[300:]
    schema = f"{SCHEMA}, where string"
    with TagMatch(tmp_path / "local", layout=layout, device="cpu") as tm:
        for part in (first, more):
            tags, keys, where = zip(*part, strict=True)
            tm.add_sets(tags, keys, where=where)
            tm.consolidate()
    partition(spark.createDataFrame(first, schema), tmp_path / "spark", layout=layout, sets_per_task=100)
    renamed = spark.createDataFrame(more, schema).withColumnRenamed("where", "w h")
    partition(renamed, tmp_path / "spark", mode="append", where="w h", sets_per_task=100)
    with TagMatch.open(tmp_path / "spark") as tm, TagMatch.open(tmp_path / "local") as expected:
        tm.check()
        assert dict(tm) == dict(expected)
        for attributes in ({}, {"price": 2, "city": "Rome"}, {"price": [3, 11]}, {"city": "Oslo", "x": 7}):
            assert sorted(tm.match(["all", "t1", "t2"], attributes)) == sorted(
                expected.match(["all", "t1", "t2"], attributes)
            )
    one = partition(spark.createDataFrame(rows, schema), tmp_path / "one", layout=layout, sets_per_task=100)
    with TagMatch(tmp_path / "whole", layout=layout, device="cpu", durability="none") as tm:
        tags, keys, where = zip(*rows, strict=True)
        tm.add_sets(tags, keys, where=where)
        tm.consolidate()
        assert one.sets == len(tm)
    assert manifest(tmp_path / "one") == manifest(tmp_path / "whole")


def test_conditions_that_will_not_do(spark: Any, tmp_path: Path) -> None:
    rows = [(["a"], 1, "price < 10"), (["b"], 2, "price <"), (["c"], 3, None), (["d"], None, "x =")]
    frame = spark.createDataFrame(rows, "tags array<string>, key long, where string")
    with pytest.raises(FilterError, match=r"where: '(price <|x =)': column \d: expected a value"):
        partition(frame, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    made = partition(frame, tmp_path / "index", skip_invalid=True)
    assert made.skipped == {"key is null": 1, "where has a mistake": 1}
    assert made.sets == 2
    for schema, message in [
        ("tags array<string>, key long, where long", "column 'where' must be string, not bigint"),
        ("tags array<string>, key long, expires timestamp", "column 'expires': keys that `partition` stores never exp"),
        ("tags array<string>, key long, wher string", "column 'wher' means nothing here; is 'where' meant?"),
        ("tags array<string>, key long, Where string", "column 'Where' means nothing here; is 'where' meant?"),
        ("tags array<string>, key long, expiry timestamp", "column 'expiry' means nothing here; is 'expires' meant?"),
        ("tags array<string>, key long, constraints string", "column 'constraints' must be lists of structs"),
    ]:
        with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
            partition(spark.createDataFrame([], schema), tmp_path / "index")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("tags string, key long", "column 'tags' must be array<string>, not string"),
        ("tags array<int>, key long", "column 'tags' must be array<string>, not array<int>"),
        (
            "tags array<string>, key double",
            "column 'key' must be a string, an integer or a decimal of scale 0, not ",
        ),
        ("tags array<string>, keys long", "no column 'key'; there are 'tags', 'keys'"),
    ],
)
def test_columns_that_will_not_do(spark: Any, tmp_path: Path, schema: str, message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        partition(spark.createDataFrame([], schema), tmp_path / "index")


def test_paths_that_will_not_do(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(IndexExistsError, match="is a folder with other files in it"):
        partition(frame, tmp_path)
    with pytest.raises(IndexExistsError, match=r"notes.txt is a file, not an index folder"):
        partition(frame, tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_errors_of_workers_are_errors_of_tagmatch(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("select array(cast(x'c328' as string)) tags, 1L key")
    with pytest.raises(InvalidValueError, match="tags: rows 0 to 0: Invalid UTF8 sequence"):
        partition(frame, tmp_path / "index")


@pytest.mark.parametrize(("schema", "key", "second"), [(SCHEMA, int, []), (NAMED, str, ["keys"])], ids=KEY_TYPES)
def test_steps_are_told(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, schema: str, key: Any, second: list[str]
) -> None:
    """In the log, with a line for each pass, and on Spark's pages, where other jobs keep the names that they have."""
    rows = [([f"t{i}", f"u{i % 7}"], key(i)) for i in range(64)]
    expected = ["shards", *second, "vocabulary", "slices", "index"]
    spark.conf.set("spark.job.description", "tagmatch: shards")  # as from a job in another thread
    partition(spark.createDataFrame([], schema), tmp_path / "empty")
    assert spark.conf.get("spark.job.description", None) is None
    spark.conf.set("spark.job.description", "mine")
    with caplog.at_level("INFO", "tagmatch.partitioner"):
        partition(spark.createDataFrame(rows, schema), tmp_path / "index", layout="balanced", sets_per_task=20)
    spark.range(1).collect()
    spark.conf.unset("spark.job.description")
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    told = [jobs.apply(i).description() for i in range(jobs.size())]
    names = [description.get() for description in told if description.isDefined()]
    assert {f"tagmatch: {step}" for step in expected} < set(names)
    assert "mine" in names
    steps = [record.getMessage() for record in caplog.records]
    assert [step for step in steps if not step.startswith("pass ")] == expected
    passes = [re.fullmatch(r"pass (\d+): (\d+) nodes, (\d+) still to be split", step) for step in steps]
    counted = [tuple(map(int, found.groups())) for found in passes if found]
    assert [number for number, _, _ in counted] == [*range(1, len(counted) + 1)]
    assert all(3 <= nodes < 2 * 64 for _, nodes, _ in counted)
    assert counted[-1][2] == 0


def test_a_job_that_is_killed_leaves_the_index_as_it_was(tmp_path: Path, free_jvm: Jvm, builder: Any) -> None:
    """At the beginning of each step, and of none: then it has not come to an end either, but to another one."""
    index, sets = tmp_path / "index", tmp_path / "sets.parquet"
    pq.write_table(pa.table({"tags": [["new"]], "key": ["ana"]}), sets)
    for step in ("shards", "keys", "vocabulary", "slices", "index"):
        existed = step != "shards"
        if existed:
            before = local([(["old"], 1)], index)
        run_killed_job(sets, index, step, free_jvm.environment)
        free_jvm.stop_spark()
        assert any(name.startswith("unfinished-job-") for name in os.listdir(index))
        if existed:
            assert manifest(index) == before
            with TagMatch.open(index) as tm:
                assert tm.match(["old", "new"]) == [1]
        else:
            with pytest.raises(IndexNotFoundError, match="its build did not finish"):
                TagMatch.open(index)
    spark = free_jvm.session(builder)
    for _ in range(2):
        partition(spark.createDataFrame([(["new"], "ana")], NAMED), index)
        assert manifest_as_first(index) == local([(["new"], "ana")], tmp_path / "local")
        assert sorted(name.partition("-")[0] for name in os.listdir(index)) == ["LOCK", "MANIFEST.json", "segment"]


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import collect_list
from tagmatch.spark import match_udf, partition, register, subset_join

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
rows = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4)]
sets = spark.createDataFrame(rows, "tags array<string>, key long")
named = sets.withColumn("key", sets.key.cast("string"))
for frame, each in ((sets, "rarest"), (sets, "balanced"), (named, "balanced")):
    partition(frame.limit(2), f"{sys.argv[1]}/{each}", layout=each, sets_per_task=1)
    partition(frame, f"{sys.argv[1]}/{each}", mode="append", sets_per_task=1)
    queries = spark.createDataFrame([(1, ["b", "a"]), (2, ["x"])], "id long, tags array<string>")
    for strategy in ("ship", "shuffle"):
        joined = subset_join(queries, f"{sys.argv[1]}/{each}", strategy=strategy, output="lists")
        print("FOUND", sorted((row.id, sorted(row["keys"])) for row in joined.collect()))

register(spark)
source = f"{sys.argv[1]}/source"
for mode, frame in (("overwrite", sets.limit(2)), ("append", sets)):
    frame.write.format("tagmatch").mode(mode).save(source)
read = spark.read.format("tagmatch").load(source)
assert sorted((sorted(row.tags), row.key) for row in read.collect()) == sorted(rows)
queries.createOrReplaceTempView("queries")
sql = f"SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{source}') m"
lists = queries.select("id", match_udf(source)("tags").alias("keys"))
for found in (spark.sql(sql).groupBy("id").agg(collect_list("key").alias("keys")), lists):
    print("FOUND", sorted((row.id, sorted(row["keys"])) for row in found.collect()))
"""


def test_spark_connect(tmp_path: Path, free_jvm: Jvm) -> None:
    environment = free_jvm.environment | {"SPARK_TESTING": "1"}  # which means any free port
    run = subprocess.run(
        [sys.executable, "-c", CONNECTED, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = [line for line in run.stdout.splitlines() if line.startswith("FOUND")]
    named = ["FOUND [(1, ['1', '2', '4']), (2, ['4'])]"]
    integers = ["FOUND [(1, [1, 2, 4]), (2, [4])]"]
    assert found == integers * 4 + named * 2 + integers * 2
    for layout, key in (("rarest", int), ("balanced", str)):
        rows: Rows = [(["a"], key(1)), (["a", "b"], key(2)), (["c"], key(3)), ([], key(4))]
        assert manifest_as_first(tmp_path / layout) == local(rows, tmp_path / f"local-{layout}", layout=layout)


@pytest.mark.parametrize("keys", [(1, 2), ("ana", "bo")], ids=KEY_TYPES)
def test_command(tmp_path: Path, free_jvm: Jvm, keys: tuple[Any, Any]) -> None:
    sets, index = tmp_path / "sets.jsonl", tmp_path / "index"
    rows = [{"tags": ["a", "b"], "key": keys[0]}, {"tags": None, "key": keys[1]}]
    sets.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-c", "from tagmatch.cli.partition import main; main()", str(sets), str(index)]
    command += ["--master", "local[2]", "--layout", "balanced"]

    def run(*more: str) -> tuple[int, str]:
        done = subprocess.run([*command, *more], env=free_jvm.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.splitlines()[-1]

    code, told = run()
    assert code == 1
    assert told.startswith("tagmatch: there are rows that cannot be stored: tags is null: 1; filter them")
    code, told = run("--skip-invalid")
    assert (code, told) == (0, "tagmatch-partition: skipped rows: tags is null: 1")
    assert manifest(index) == local([(["a", "b"], keys[0])], tmp_path / "local", layout="balanced")
    assert run()[1].endswith("already; give --overwrite to replace it, or --append to add to it")
    assert run("--append", "--overwrite")[0] == 2
    sets.write_text(json.dumps({"tags": ["c"], "key": keys[1], "wher": "x = 1"}) + "\n")
    assert run("--append", "--ignore-columns", "*")[0] == 0
    more = [(["a", "b"], keys[0]), (["c"], keys[1])]
    assert manifest_as_first(index) == local(more, tmp_path / "more", layout="balanced")
    command.extend(["--max-partition-size", "5"])
    assert "so rows cannot be appended with max_partition_size=5" in run("--append", "--ignore-columns", "wher")[1]


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tagmatch.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkUnavailableError, match=r"pyspark.*; pip install 'tagmatch\[spark\]'"):
        importlib.import_module("tagmatch.spark")


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="which has no bin/java; install Java 17 or newer"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="there is no java on the PATH; install Java 17 or newer"):
        check_java()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SparkUnavailableError, match=r'Spark needs Java 17, but .*java is openjdk version "1.8.0_402"'):
        check_java()
