"""The join of streams, which follows the index from micro-batch to micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from tagmatch import TagMatch
from tagmatch.model.errors import NullError
from tagmatch.spark.errors import errors_of_workers
from tagmatch.spark.join import subset_join
from tagmatch.spark.offline import partition

pytestmark = pytest.mark.nightly

SCHEMA = "n int, tags array<string>"
SETS = "tags array<string>, key long"


KEYS: dict[Any, Any] = {"integer": int, "string": "key {}".format}


@pytest.fixture
def tm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TagMatch[Any]]:
    key_type = getattr(request, "param", "integer")
    with TagMatch(tmp_path / "index", key_type=key_type) as tm:
        tm.add_sets([["a"], ["a", "b"], []], list(map(KEYS[key_type], [1, 2, 3])))
        tm.consolidate()
        yield tm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "queries").mkdir()
    return tmp_path / "queries"


def write(folder: Path, name: str, queries: dict[int, list[str] | None]) -> None:
    kind = pa.schema({"n": pa.int32(), "tags": pa.list_(pa.string())})
    pq.write_table(pa.table([list(queries), list(queries.values())], schema=kind), folder / f"{name}.parquet")


@contextmanager
def running(joined: DataFrame, name: str) -> Iterator[Any]:
    query = joined.writeStream.format("memory").queryName(name).start()
    try:
        yield query
    finally:
        query.stop()


@pytest.mark.parametrize("tm", KEYS, indirect=True)
def test_files_with_a_newer_snapshot_in_between(
    session: SparkSession, tm: TagMatch[Any], tmp_path: Path, folder: Path
) -> None:
    key = KEYS[tm.stats()["key_type"]]
    stream = session.readStream.schema(SCHEMA).parquet(str(folder))
    rows = subset_join(stream, tmp_path / "index", unique=True)
    lists = subset_join(stream, tmp_path / "index", output="lists", ship_limit=0)
    assert rows.isStreaming
    with running(rows, "rows") as of_rows, running(lists, "lists") as of_lists:

        def process(name: str, queries: dict[int, list[str] | None]) -> None:
            write(folder, name, queries)
            of_rows.processAllAvailable()
            of_lists.processAllAvailable()

        process("first", {1: ["a", "x"], 2: ["b", "a"], 3: []})
        tm.add_set(["x"], key(4))
        tm.remove_set([], key(3))
        tm.consolidate()
        process("second", {11: ["a", "x"], 12: ["b", "a"], 13: []})
        numbers = {1: [1, 3], 2: [1, 2, 3], 3: [3], 11: [1, 4], 12: [1, 2], 13: []}
        expected = {n: list(map(key, found)) for n, found in numbers.items()}
        assert {row.n: sorted(row["keys"]) for row in session.table("lists").collect()} == expected
        pairs = sorted((row.n, row.key) for row in session.table("rows").collect())
        assert pairs == [(n, key) for n, keys in expected.items() for key in keys]


def test_segments_and_deletions_that_spark_appends_in_between(
    session: SparkSession, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    index, sets = tmp_path / "index", [(["a"], 1), (["b"], 2), ([], 3), (["c"], 4)]
    partition(session.createDataFrame(sets, SETS), index)
    joined = subset_join(session.readStream.schema(SCHEMA).parquet(str(folder)), index, output="lists")
    rows = list[Any]()
    query = joined.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect())).start()
    try:
        for n, (more, segments) in enumerate([([], 1), ([(["a"], 5), (["x"], 6)], 2), ([([], 7)], 3)]):
            partition(session.createDataFrame(more, SETS), index, mode="append")
            with TagMatch.open(index) as tm:
                assert tm.stats()["segments"] == segments
            write(folder, str(n), {n: ["a", "x"], 10 + n: ["b", "c"]})
            query.processAllAvailable()
    finally:
        query.stop()
    found = {row.n: sorted(row["keys"]) for row in rows}
    assert found == {0: [1, 3], 1: [1, 3, 5, 6], 2: [1, 3, 5, 6, 7], 10: [2, 3, 4], 11: [2, 3, 4], 12: [2, 3, 4, 7]}


@pytest.mark.usefixtures("tm")
def test_a_watermark_after_the_join(session: SparkSession, tmp_path: Path, folder: Path) -> None:
    """The join loses one that was set before."""
    stream = session.readStream.schema(SCHEMA).parquet(str(folder))
    timed = subset_join(stream.withColumn("at", functions.timestamp_seconds("n")), tmp_path / "index")
    counts = timed.withWatermark("at", "1 second").groupBy(functions.window("at", "1 minute"), "key").count()
    counts = counts.withColumn("minute", functions.col("window.start").cast("long") / 60)
    with running(counts, "counts") as query:
        write(folder, "first", {1: ["a"], 59: ["a", "b"], 60: ["a"]})
        query.processAllAvailable()
        write(folder, "second", {100: []})
        query.processAllAvailable()
        found = {(row.minute, row.key): row["count"] for row in session.table("counts").collect()}
    assert found == {(0, 1): 2, (0, 2): 1, (0, 3): 2}  # the second minute is not over


@pytest.mark.usefixtures("tm")
def test_a_null_ends_the_stream(session: SparkSession, tmp_path: Path, folder: Path) -> None:
    write(folder, "first", {1: None})
    joined = subset_join(session.readStream.schema(SCHEMA).parquet(str(folder)), tmp_path / "index")
    with running(joined, "nulls") as query, pytest.raises(NullError, match="column 'tags'"), errors_of_workers():
        query.processAllAvailable()
