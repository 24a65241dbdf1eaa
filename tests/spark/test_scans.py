"""Plain columns of Parquet files are read by tasks themselves, with the same outcome; all else is left to Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.index_files import contents_of, make_index

from tagmatch.partitioner.spark import scans
from tagmatch.partitioner.spark.scans import Scan
from tagmatch.spark import partition

pytestmark = pytest.mark.nightly


def written(folder: Path, rows: list[tuple[Any, Any]], kind: pa.DataType, tags: str = "tags") -> Any:
    """Three files of rows, in row groups of ten, with a column more."""
    folder.mkdir()
    for number in range(3):
        own = rows[number::3]
        table = pa.table({
            "junk": pa.array(["x" * 50] * len(own), pa.string()),
            "key": pa.array([key for _, key in own], kind),
            tags: pa.array([each for each, _ in own], pa.list_(pa.string())),
        })  # fmt: skip
        pq.write_table(table, folder / f"part é%20 {number}.parquet", row_group_size=10)
    return folder


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_files_are_read_by_tasks(
    session: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(scans, "_FEWEST_BYTES", 700)  # several splits of a file, some without row groups
    monkeypatch.setattr(scans, "_MOST_BYTES", 700)
    rows: list[tuple[Any, Any]] = [(rng.sample("abcdefgh", rng.randrange(4)), number) for number in range(200)]
    if pa.types.is_string(kind):
        rows = [(tags, f"é{key}") for tags, key in rows]
    with_nulls = [*rows, (None, rows[0][1]), (["a"], None)]
    frame = session.read.parquet(str(written(tmp_path / "wor ds%2F", with_nulls, kind, "Words")))
    chosen = Scan.of(frame.select(f.col("words").alias("tags"), "key"))
    assert chosen is not None
    assert len(chosen.parts) > 3
    assert sum(len(part) for part in chosen.parts) > 20
    made = partition(frame.drop("junk"), tmp_path / "index", tags="Words", skip_invalid=True)
    assert (made.sets, made.skipped) == (
        len({frozenset(tags) for tags, _ in rows}), {"tags is null": 1, "key is null": 1}
    )  # fmt: skip
    make_index(tmp_path / "local", rows)
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "local")


def test_all_else_is_left_to_spark(session: SparkSession, tmp_path: Path) -> None:
    rows = [(["a"], 1), (["b"], 2)]
    folder = written(tmp_path / "files", rows, pa.int64())
    frame = session.read.parquet(str(folder)).select("tags", "key")
    assert Scan.of(frame) is not None
    parted = session.createDataFrame([(["a"], 1, 2)], "tags array<string>, junk long, key long")
    parted.write.partitionBy("key").parquet(str(tmp_path / "parted"))
    for other in (
        frame.where("key > 1"),
        frame.limit(1),
        frame.select("tags", f.col("key").cast("int").cast("long").alias("key")),
        frame.select("tags", (f.col("key") + 1).alias("key")),
        frame.union(frame),
        frame.distinct(),
        session.read.option("mergeSchema", "true").parquet(str(folder)).select("tags", "key"),
        session.read.parquet(str(tmp_path / "parted")).select("tags", f.col("key").cast("long")),
        session.read.parquet(str(tmp_path / "parted")).select("tags", "key"),
        session.createDataFrame(rows, "tags array<string>, key long"),
        frame.withColumn("where", f.lit("a = 1")),
    ):
        assert Scan.of(other) is None
    cached = frame.cache()
    assert cached.count() == 2
    assert Scan.of(cached.select("tags", "key")) is None
    frame.unpersist()


def test_a_file_that_is_otherwise(session: SparkSession, tmp_path: Path) -> None:
    """Spark finds its columns by its own rules, or says that one is broken."""
    folder = written(tmp_path / "files", [(["a"], 1), (["b"], 2)], pa.int64())
    pq.write_table(pa.table({"Tags": [["c"]], "KEY": [3]}), folder / "other.parquet")
    frame = session.read.schema("tags array<string>, key long").parquet(str(folder))
    assert Scan.of(frame) is not None
    assert partition(frame, tmp_path / "index").sets == 3
    (folder / "broken.parquet").write_bytes(b"no file of Parquet")
    frame = session.read.schema("tags array<string>, key long").parquet(str(folder))
    with pytest.raises(Exception, match=r"broken\.parquet"):
        partition(frame, tmp_path / "index")
