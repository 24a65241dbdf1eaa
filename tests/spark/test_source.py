"""The data source `tagmatch`: what an index has as rows, rows as an index, and changes that a stream brings once."""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions
from support.standalone_cluster import Process
from support.waiting import wait_until

from tagmatch import (
    Circle,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatch,
    TagMatchError,
)
from tagmatch.model.storage.format import manifest_text
from tagmatch.spark import partition
from tagmatch.spark.errors import errors_of_workers

pytest_plugins = ["support.s3_bucket"]

SCHEMA = "tags array<string>, key long"
NAMED = "tags array<string>, key string"
CHANGES = f"{SCHEMA}, removed boolean"
UTC = datetime.UTC


def random_rows(rng: random.Random, count: int) -> list[tuple[list[str], int]]:
    tags = [*(f"t{i}" for i in range(30)), "é", "日本", ""]
    return [(rng.choices(tags, k=rng.randrange(6)), rng.randrange(50)) for _ in range(count)]


def as_pairs(rows: Any) -> set[tuple[frozenset[str], Any]]:
    return {(frozenset(row[0]), row[1]) for row in rows}


def load(spark: SparkSession, index: object) -> Any:
    return spark.read.format("tagmatch").load(str(index))


def save(frame: Any, index: object, mode: str = "overwrite", **options: Any) -> None:
    frame.write.format("tagmatch").mode(mode).options(**options).save(str(index))


def manifest(index: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((index / "MANIFEST.json").read_bytes())
    return found


# -- reading and writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
@pytest.mark.parametrize("named", [False, True], ids=["integers", "strings"])
def test_what_is_written_is_what_the_job_makes(
    spark: SparkSession, tmp_path: Path, rng: random.Random, layout: str, named: bool
) -> None:
    rows: list[Any] = random_rows(rng, 400)
    if named:
        rows = [(tags, f"é {key}") for tags, key in rows]
    frame = spark.createDataFrame(rows, NAMED if named else SCHEMA).repartition(3)
    save(frame, tmp_path / "written", layout=layout, maxPartitionSize="20")
    partition(frame, tmp_path / "job", layout=layout, max_partition_size=20)
    assert (tmp_path / "written" / "MANIFEST.json").read_bytes() == (tmp_path / "job" / "MANIFEST.json").read_bytes()
    read = load(spark, tmp_path / "written")
    assert read.dtypes == [("tags", "array<string>"), ("key", "string" if named else "bigint")]
    found = [tuple(row) for row in read.collect()]
    assert as_pairs(found) == as_pairs(rows)
    assert len(found) == len(as_pairs(rows))


def test_rows_that_are_added_and_removed(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    index, expected = tmp_path / "index", set()
    for number in range(3):
        rows = random_rows(rng, 150)
        gone = rng.sample(sorted(map(repr, expected)), len(expected) // 3)
        removed = [pair for pair in expected if repr(pair) in gone]
        expected = (expected - set(removed)) | as_pairs(rows)
        # Rows of one task take effect in their order
        changes = [(sorted(tags), key, True) for tags, key in removed] + [(*row, None) for row in rows]
        save(spark.createDataFrame(changes, CHANGES).repartition(1), index, "append")
        found = [tuple(row) for row in load(spark, index).collect()]
        assert as_pairs(found) == expected, number
        assert len(found) == len(expected)
    with TagMatch.open(index) as tm:
        tm.check()


def test_a_task_reads_some_rows_of_a_segment(
    spark: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    with TagMatch(tmp_path / "index", device="cpu", durability="none") as tm:
        for _ in range(3):
            rows = random_rows(rng, 100)
            tm.add_sets([tags for tags, _ in rows], [key for _, key in rows])
            tm.consolidate()
        tm.remove_set(*rows[0])
        tm.consolidate()
        expected = {(tags, key) for tags, keys in tm for key in keys}
        assert tm.stats()["segments"] > 1
    read = spark.read.format("tagmatch").option("setsPerPartition", 7).load(str(tmp_path / "index"))
    assert read.rdd.getNumPartitions() > 10
    found = [tuple(row) for row in read.collect()]
    assert as_pairs(found) == expected
    assert len(found) == len(expected)
    only = spark.read.format("tagmatch").schema("key long").load(str(tmp_path / "index"))
    assert sorted(row.key for row in only.collect()) == sorted(key for _, key in expected)


def test_conditions_areas_and_keys_that_expire_go_through(spark: SparkSession, tmp_path: Path) -> None:
    until = datetime.datetime(2126, 1, 1, tzinfo=UTC)
    schema = (
        "tags array<string>, key string, where string, expires timestamp,"
        "constraints array<struct<attr: string, op: string, value: struct<int: bigint, text: string>>>,"
        "area struct<kind: string, lon: double, lat: double, metres: double>"
    )
    rows = [
        (["flat"], "ana", 'price < 900 or tags {"new"}', until, None, None),
        (["flat"], "bo", None, None, [("city", "=", (None, "Milan")), ("price", ">", (500, None))], None),
        (None, "cy", None, None, None, ("circle", 9.19, 45.46, 5000.0)),
    ]
    save(spark.createDataFrame(rows, schema), tmp_path / "index")
    with TagMatch(key_type="string") as tm:
        tm.add_set(["flat"], "ana", where='price < 900 or tags {"new"}', expires=until)
        tm.add_set(["flat"], "bo", where='city = "Milan" and price > 500')
        tm.add_set([], "cy", area=Circle(9.19, 45.46, 5000))
        tm.consolidate()
        expected = tm.to_arrow().to_pylist()
    read = load(spark, tmp_path / "index")
    assert read.columns == ["tags", "key", "where", "expires"]
    key = functions.unix_micros("expires").alias("expires")
    found = [row.asDict() for row in read.select("tags", "key", "where", key).collect()]
    assert {str(row["expires"]) for row in found} == {"None", str(int(until.timestamp()) * 1_000_000)}
    as_text = [sorted((row["key"], sorted(row["tags"]), row["where"]) for row in rows) for rows in (found, expected)]  # type: ignore[arg-type]
    assert as_text[0] == as_text[1]
    # What was read can be written, and is the same
    save(read, tmp_path / "copy")
    assert manifest(tmp_path / "copy")["segments"] == manifest(tmp_path / "index")["segments"]


def test_a_store(spark: SparkSession, uri: str, rng: random.Random) -> None:
    first, more = random_rows(rng, 50), random_rows(rng, 50)
    save(spark.createDataFrame(first, SCHEMA), uri)
    save(spark.createDataFrame(more, SCHEMA), uri, "append")
    assert as_pairs(load(spark, uri).collect()) == as_pairs(first + more)


def test_an_earlier_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", keep_snapshots=2) as tm:
        for key in range(3):
            tm.add_set(["a"], key)
            tm.consolidate()
    for number in (1, 2, 3):
        read = spark.read.format("tagmatch").option("snapshot", number).load(str(tmp_path / "index"))
        assert sorted(row.key for row in read.collect()) == list(range(number))


# -- what fails ------------------------------------------------------------------------------------------------------


def test_a_job_that_fails_leaves_the_index_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    index = tmp_path / "index"
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), index)
    before = {file: file.read_bytes() for file in index.rglob("*") if file.is_file()}
    rows = spark.range(100, numPartitions=4)
    in_a_task = functions.expr("IF(id = 99, raise_error('no'), id)").cast("long").alias("key")
    in_the_end = functions.expr("id - 99").alias("key")
    for key in (in_a_task, in_the_end):
        for mode in ("overwrite", "append"):
            with pytest.raises(Exception, match=r"no|key"):
                save(rows.select(functions.array(functions.lit("b")).alias("tags"), key), index, mode)
            assert {file: file.read_bytes() for file in index.rglob("*") if file.is_file()} == before


def test_rows_of_a_task_that_runs_twice_are_there_once(spark: SparkSession, tmp_path: Path) -> None:
    """As it fails at first, with what it wrote."""
    mark = str(tmp_path / "mark")

    def fail_once(batches: Any) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError("once")

    changes = [(["a"], 1, None), (["a"], 1, True), (["a"], 1, None), (["b"], 2, None)]
    frame = spark.createDataFrame(changes, CHANGES).repartition(1)
    local = spark.conf.get("spark.task.maxFailures", "1")
    assert local == "1"  # of local mode: so the whole job runs twice
    with pytest.raises(Exception, match="once"):
        save(frame.mapInArrow(fail_once, frame.schema), tmp_path / "index", "append")
    assert not (tmp_path / "index").exists()
    save(frame.mapInArrow(fail_once, frame.schema), tmp_path / "index", "append")
    assert sorted((*row.tags, row.key) for row in load(spark, tmp_path / "index").collect()) == [("a", 1), ("b", 2)]


KILLED = """
import sys
from tagmatch.spark import spark_session

rows = [(["b"], key) for key in range(100)]
frame = spark_session("killed", "local[2]").createDataFrame(rows, "tags array<string>, key long")
frame.write.format("tagmatch").mode("append").save(sys.argv[1])
"""
# For all Pythons of the driver, of which one saves: it stops when there is all of the new snapshot but its manifest
STOPPED = """
import signal
from tagmatch.model.storage.folder import Folder

def stop(index, *others):
    (index.path / "stopped").touch()
    signal.pause()

Folder.commit = stop
"""


def test_a_driver_that_is_killed_leaves_the_index_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """With its JVM and its Pythons, as if its machine had lost power."""
    index = tmp_path / "index"
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), index)
    before, files = manifest(index), len(list(index.rglob("*")))
    (tmp_path / "sitecustomize.py").write_text(STOPPED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", KILLED, str(index)]
        popen = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    driver = Process(popen, tmp_path / "log")
    try:
        wait_until(lambda: (index / "stopped").exists() or popen.poll() is not None, 240)
    finally:
        driver.kill()
    assert (index / "stopped").exists(), driver.log.read_text()
    assert manifest(index) == before
    assert as_pairs(load(spark, index).collect()) == {(frozenset("a"), 1)}
    (index / "stopped").unlink()
    assert len(list(index.rglob("*"))) > files
    # What it has left, the next one removes
    for each in (index, tmp_path / "other"):
        save(spark.createDataFrame([(["c"], 2)], SCHEMA), each)
    assert sorted(path.relative_to(index) for path in index.rglob("*")) == sorted(
        path.relative_to(tmp_path / "other") for path in (tmp_path / "other").rglob("*")
    )


@pytest.mark.parametrize(
    ("columns", "mode", "options", "error", "message"),
    [
        (
            SCHEMA,
            "append",
            {"layot": "rarest"},
            InvalidValueError,
            "no option of the data source 'layot'; there are pa",
        ),
        (SCHEMA, "append", {"layout": "best"}, InvalidValueError, "'layout' is 'best': it must be one of rarest, bal"),
        (SCHEMA, "append", {"maxPartitionSize": "0"}, InvalidValueError, "must be an integer from 1 on"),
        (SCHEMA, "append", {"plane": "yes"}, InvalidValueError, "it must be true or false"),
        (SCHEMA, "append", {"layout": "balanced"}, InvalidValueError, "has layout='rarest'"),
        (NAMED, "append", {}, InvalidValueError, 'has key_type "integer"'),
        (CHANGES, "overwrite", {}, InvalidValueError, "rows that replace an index cannot remove any"),
        (f"{SCHEMA}, removed int", "append", {}, InvalidTypeError, "column 'removed' must be boolean"),
        (f"{SCHEMA}, colour int", "append", {}, InvalidValueError, "not 'colour'"),
        (f"{SCHEMA}, wher string", "append", {}, InvalidValueError, "is 'where' meant"),
        ("key long", "append", {}, InvalidValueError, "each would match every message"),
        ("tags array<string>", "append", {}, InvalidValueError, "no column 'key'; there are 'tags'"),
        ("tags array<string>, key double", "append", {}, InvalidTypeError, "column 'key' must be a string"),
    ],
)
def test_mistakes_of_writers(
    spark: SparkSession,
    tmp_path: Path,
    columns: str,
    mode: str,
    options: dict[str, str],
    error: type[TagMatchError],
    message: str,
) -> None:
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), tmp_path / "index")
    before = manifest(tmp_path / "index")
    with pytest.raises(error, match=message), errors_of_workers():
        save(spark.createDataFrame([], columns), tmp_path / "index", mode, **options)
    assert manifest(tmp_path / "index") == before


def test_mistakes_of_readers(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), tmp_path / "index")
    with pytest.raises(IndexNotFoundError, match="no such folder"), errors_of_workers():
        load(spark, tmp_path / "nowhere")
    with pytest.raises(InvalidTypeError, match="no column key string; it has tags array"), errors_of_workers():
        spark.read.format("tagmatch").schema("key string").load(str(tmp_path / "index")).collect()
    with pytest.raises(InvalidValueError, match="for reading 'layout'"), errors_of_workers():
        spark.read.format("tagmatch").option("layout", "rarest").load(str(tmp_path / "index"))
    with pytest.raises(InvalidValueError, match="say where the index is"), errors_of_workers():
        spark.read.format("tagmatch").load()
    with TagMatch(tmp_path / "large") as tm:
        tm.add_set(["a"], 2**63)
        tm.consolidate()
    with pytest.raises(InvalidValueError, match=f"key {2**63} "), errors_of_workers():
        load(spark, tmp_path / "large").collect()


# -- streams ---------------------------------------------------------------------------------------------------------


def write(folder: Path, name: str, changes: list[tuple[list[str], int, bool | None]]) -> None:
    kinds = pa.schema({"tags": pa.list_(pa.string()), "key": pa.int64(), "removed": pa.bool_()})
    tags, keys, removed = map(list, zip(*changes, strict=True))
    pq.write_table(pa.table([tags, keys, removed], schema=kinds), folder / f"{name}.parquet")


def run_stream(spark: SparkSession, folder: Path, index: Path, checkpoint: Path) -> None:
    """Take up what is in the folder."""
    stream = spark.readStream.schema(CHANGES).parquet(str(folder))
    query = (
        stream.writeStream.format("tagmatch")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(index))
    )
    with errors_of_workers():
        query.awaitTermination()


def test_a_stream_of_changes_has_each_epoch_once(spark: SparkSession, tmp_path: Path) -> None:
    folder, index, checkpoint = tmp_path / "changes", tmp_path / "index", tmp_path / "checkpoint"
    folder.mkdir()
    write(folder, "first", [(["a"], 1, None), (["b"], 2, False)])
    run_stream(spark, folder, index, checkpoint)
    write(folder, "second", [(["b"], 2, True), (["c"], 3, None)])
    run_stream(spark, folder, index, checkpoint)
    assert as_pairs(load(spark, index).collect()) == {(frozenset("a"), 1), (frozenset("c"), 3)}
    ((query, epoch),) = manifest(index)["epochs"].items()
    assert epoch == 1
    # Another program removes what the epoch added, and keeps what the index knows of the stream
    with TagMatch.open(index) as tm:
        tm.remove_set(["c"], 3)
        tm.consolidate()
    assert manifest(index)["epochs"] == {query: 1}
    # Spark was stopped before it knew that the last epoch was over, and hands it over once more
    for log in (checkpoint / "commits").glob("*1*"):
        log.unlink()
    run_stream(spark, folder, index, checkpoint)
    assert as_pairs(load(spark, index).collect()) == {(frozenset("a"), 1)}
    write(folder, "third", [(["d"], 4, None)])
    run_stream(spark, folder, index, checkpoint)
    assert as_pairs(load(spark, index).collect()) == {(frozenset("a"), 1), (frozenset("d"), 4)}
    # Of an index that knows nothing of the stream, as after a new start of the stream, rows come in any case
    known = manifest(index)
    del known["epochs"], known["checksum"]
    (index / "MANIFEST.json").write_bytes(manifest_text(known))
    write(folder, "fourth", [(["e"], 5, None)])
    run_stream(spark, folder, index, checkpoint)
    assert (frozenset("e"), 5) in as_pairs(load(spark, index).collect())


def test_a_stream_does_not_write_the_whole_index_each_time(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    write(tmp_path / "changes", "first", [(["a"], 1, None)])
    rows = spark.readStream.schema(CHANGES).parquet(str(tmp_path / "changes"))
    counted = rows.groupBy("key").agg(functions.collect_set(functions.col("tags")[0]).alias("tags"))
    writer = counted.writeStream.format("tagmatch").outputMode("complete").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "index"))
    with pytest.raises(InvalidValueError, match=r"^output mode 'complete' would write"), errors_of_workers():
        query.awaitTermination()
    assert not (tmp_path / "index").exists()


def test_a_stream_with_a_mistake_ends_and_leaves_the_index(spark: SparkSession, tmp_path: Path) -> None:
    folder, index = tmp_path / "changes", tmp_path / "index"
    folder.mkdir()
    write(folder, "first", [(["a"], 1, None)])
    run_stream(spark, folder, index, tmp_path / "checkpoint")
    before = manifest(index)
    write(folder, "second", [(["b"], 2, None), (["b"], -1, None)])
    with pytest.raises(InvalidValueError, match="-1"):
        run_stream(spark, folder, index, tmp_path / "checkpoint")
    assert manifest(index) == before
