"""A real Spark: what its users call, once; and its workers."""

from __future__ import annotations

import gc
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from oracle import Oracle
from pyspark.sql import SparkSession
from support.index_files import contents_of, make_index
from support.spark_functions import called

import tagmatch.spark.join
from tagmatch import InvalidTypeError, InvalidValueError
from tagmatch.spark import partition, register, subset_join
from tagmatch.spark.errors import errors_of_workers

SCHEMA = "tags array<string>, key string"
TAGS = [f"t{number}" for number in range(20)]


def rows_of(rng: random.Random, count: int) -> list[tuple[list[str], str]]:
    return [(rng.sample(TAGS, rng.randint(0, 3)), f"é {rng.randrange(40)}") for _ in range(count)]


def test_partition_and_join(
    session: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are those of the local partitioner, and the answers the oracle's."""
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 100)
    index, oracle = tmp_path / "index", Oracle()
    for mode in ("overwrite", "append"):
        rows = rows_of(rng, 300)
        partition(session.createDataFrame(rows, SCHEMA).repartition(3), index, mode=mode, sets_per_task=100)
        assert contents_of(index) == contents_of(make_index(tmp_path / "local", rows))
        oracle.add_sets(*zip(*rows, strict=True))
        oracle.consolidate()
    queries = [rng.sample(TAGS, rng.randrange(8)) for _ in range(50)]
    frame = session.createDataFrame(list(enumerate(queries)), "id int, tags array<string>").repartition(2)
    for strategy, output in (("ship", "rows"), ("shuffle", "lists")):
        found: list[list[str]] = [[] for _ in queries]
        for row in subset_join(frame, index, strategy=strategy, output=output).collect():
            found[row.id] += [row.key] if output == "rows" else row["keys"]
        assert list(map(sorted, found)) == list(map(oracle.match, queries))


def test_data_source_and_functions(session: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    index, oracle, stored = tmp_path / "index", Oracle(), set[Any]()
    for mode in ("overwrite", "append"):
        rows = rows_of(rng, 100)
        session.createDataFrame(rows, SCHEMA).write.format("tagmatch").mode(mode).save(str(index))
        oracle.add_sets(*zip(*rows, strict=True))
        stored |= {(frozenset(tags), key) for tags, key in rows}
    found = session.read.format("tagmatch").load(str(index)).collect()
    assert sorted((sorted(row.tags), row.key) for row in found) == sorted((sorted(tags), key) for tags, key in stored)
    oracle.consolidate()
    queries = [rng.sample(TAGS, rng.randrange(8)) for _ in range(50)]
    frame = session.createDataFrame(list(enumerate(queries)), "id int, tags array<string>")
    register(session)
    for way in ("sql", "column"):
        assert called(way, frame, index) == dict(enumerate(map(oracle.match, queries)))
    with pytest.raises(InvalidTypeError, match="argument index must be a constant string"), errors_of_workers():
        session.sql("SELECT key FROM asked, LATERAL tagmatch_match(tags, tags[0])").collect()


def test_a_stream_of_changes_and_a_stream_that_is_joined(session: SparkSession, tmp_path: Path) -> None:
    changes, index = tmp_path / "changes", tmp_path / "index"
    for number, rows in enumerate(([(["a"], "ana"), (["b"], "bo")], [(["c"], "cy")])):
        session.createDataFrame(rows, SCHEMA).write.mode("append").parquet(str(changes))
        writer = session.readStream.schema(SCHEMA).parquet(str(changes)).writeStream.format("tagmatch")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(str(index)).awaitTermination()
        stream = session.readStream.schema(SCHEMA).parquet(str(changes)).withColumnRenamed("key", "of")
        with pytest.raises(InvalidValueError, match="'shuffle' cannot join a stream"):
            subset_join(stream, index, strategy="shuffle")
        joined = subset_join(stream, index, ship_limit=0)
        query = joined.writeStream.format("memory").queryName(f"found{number}").trigger(availableNow=True).start()
        query.awaitTermination()
        found = session.table(f"found{number}").collect()
        assert sorted((row.of, row.key) for row in found) == [
            (name, name) for name in ("ana", "bo", "cy")[: number + 2]
        ]


@pytest.mark.nightly
def test_workers_have_all_and_no_garbage_is_looked_for_among_it(session: SparkSession) -> None:
    def told(_: Any) -> Iterator[pa.RecordBatch]:
        from numba.core import event

        with event.install_recorder("numba:compile") as compiled:
            from tagmatch import TagMatch

            loaded = len(sys.modules)
            with TagMatch(threads=1) as tm:
                tm.add_sets([["a"]], [1])
                tm.consolidate()
        modules = {"tagmatch.partitioner.spark.job", "tagmatch.spark.join"} <= sys.modules.keys()
        yield pa.record_batch({
            "frozen": [gc.get_freeze_count()], "living": [len(gc.get_objects())],
            "modules": [modules], "more": [len(sys.modules) - loaded], "compiled": [len(compiled.buffer)],
        })  # fmt: skip

    schema = "frozen long, living long, modules boolean, more long, compiled long"
    (row,) = session.range(1).repartition(1).mapInArrow(told, schema).collect()
    assert row.modules
    assert row.more == row.compiled == 0
    assert row.frozen > 100_000 > row.living


@pytest.mark.nightly
def test_workers_use_memory_again_that_they_have_freed(session: SparkSession) -> None:
    def told(_: Any) -> Iterator[pa.RecordBatch]:
        faults, mib = [], 1 << 20
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            arrays = [np.ones(64 * mib, np.uint8), pa.array(np.ones(8 * mib)).cast(pa.int64())]
            del arrays
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        yield pa.record_batch({"faults": [faults], "pool": [pa.default_memory_pool().backend_name]})

    (row,) = session.range(1).repartition(1).mapInArrow(told, "faults array<long>, pool string").collect()
    assert row.pool == "system"
    # Where an array is a few bytes too long for what is free, the heap grows once more
    assert min(row.faults) < 100
