"""A real Spark: what its users call, once; its workers; and a cluster that loses a machine at work."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from oracle import Oracle
from pyspark.sql import DataFrame, SparkSession, functions
from support.index_files import MANIFEST, contents_of, make_index
from support.jvm import Jvm
from support.spark_functions import called
from support.waiting import wait_until

import tagmatch.spark.join
from tagmatch import IndexChangedError, InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.spark import match_udf, partition, register, subset_join
from tagmatch.spark.columns import errors_of_workers

SCHEMA = "tags array<string>, key string"
TAGS = [f"t{number}" for number in range(20)]


def rows_of(rng: random.Random, count: int) -> list[tuple[list[str], str]]:
    return [(rng.sample(TAGS, rng.randint(0, 3)), f"é {rng.randrange(40)}") for _ in range(count)]


def test_partition_and_join(
    session: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are those of the local partitioner, and the answers the oracle's, also of functions; rows are read."""
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
    register(session)
    for way in ("sql", "column"):
        assert called(way, frame, index) == dict(enumerate(map(oracle.match, queries)))
    with pytest.raises(InvalidTypeError, match="argument index must be a constant string"), errors_of_workers():
        session.sql("SELECT key FROM asked, LATERAL tagmatch_match(tags, tags[0])").collect()
    assert_snapshots_are_chosen(session, tmp_path / "kept")
    read = session.read.format("tagmatch").load(str(index))
    for mode in ("overwrite", "append"):
        read.write.format("tagmatch").mode(mode).save(str(tmp_path / "copy"))
    found = session.read.format("tagmatch").load(str(tmp_path / "copy")).collect()
    assert sorted((sorted(row.tags), row.key) for row in found) == sorted(
        (sorted(tags), key) for tags, keys in oracle for key in keys
    )


def assert_snapshots_are_chosen(session: SparkSession, index: Path) -> None:
    """A function asks the snapshot that was current when it was made, or the one that is named, or the newest."""
    frame, ways = session.createDataFrame([(["b"],)], "tags array<string>"), {}
    frame.createOrReplaceTempView("b")
    sql = "SELECT m.key FROM b, LATERAL tagmatch_match(tags, '{}'{}) m"
    for key in (1, 2):
        with TagMatch(index, keep_snapshots=1, device="cpu") as tm:
            tm.put(key, tags=["b"])
            tm.consolidate()
        for name, chosen in (("made", None), ("newest", "newest"), ("first", TagMatch.snapshots(index)[0].number)):
            ways[name, key] = frame.select(functions.explode(match_udf(index, snapshot=chosen)("tags")).alias("key"))
            given = "" if chosen is None else f", snapshot => {chosen!r}"
            ways[f"{name}, SQL", key] = session.sql(sql.format(index, given))
    found: dict[Any, Any] = {}
    for way, asked in ways.items():
        try:
            with errors_of_workers():
                found[way] = sorted(row.key for row in asked.collect())
        except IndexChangedError as error:
            found[way] = str(error).partition(" than")[0]
    changed = f"the index {index} has another snapshot"
    for sql in ("", ", SQL"):
        assert [found[f"made{sql}", key] for key in (1, 2)] == [changed, [1, 2]]
        assert [found[f"newest{sql}", key] for key in (1, 2)] == [[1, 2], [1, 2]]
        assert [found[f"first{sql}", key] for key in (1, 2)] == [[1], [1]]
    with pytest.raises(InvalidValueError, match="snapshot must be the number"), errors_of_workers():
        session.sql(f"SELECT m.key FROM b, LATERAL tagmatch_match(tags, '{index}', snapshot => 'last') m").collect()


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
        modules = {"tagmatch.partitioner.spark", "tagmatch.spark.join"} <= sys.modules.keys()
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
    # If an array is a few bytes too long for the free memory, the heap grows once more
    assert min(row.faults) < 100


# -- a machine dies: nothing is lost, nor twice ------------------------------------------------------------------------

SETS, QUERIES = 30_000, 3_000
# Seconds in which anything is done, also where other programs have the cores
WAIT = 240


@pytest.fixture
def spark(jvm: Jvm, tmp_path: Path) -> Iterator[SparkSession]:
    """Of a cluster with two machines, of a core each."""
    # Many short tasks, so that some are done and some are not when a machine dies
    many = {"sql.shuffle.partitions": "12", "sql.adaptive.coalescePartitions.enabled": "false"}
    folders = {"local.dir": str(tmp_path / "driver"), "sql.warehouse.dir": str(tmp_path / "warehouse")}
    given = {"master": "local-cluster[2,1,1024]", "app.name": "cluster", "executor.memory": "512m", **many, **folders}
    jvm.stop_spark()
    # Else executors would have their folders in Spark's own
    with jvm.as_started_in(tmp_path, {"spark.testing": "true", "spark.test.home": str(Path(pyspark.__file__).parent)}):
        found = jvm.session(SparkSession.builder.config(map={f"spark.{name}": value for name, value in given.items()}))
        status = found.sparkContext._jsc.sc().statusTracker()
        wait_until(lambda: len(status.getExecutorInfos()) == 3, WAIT)  # one is the driver
        yield found
        jvm.stop_spark()


def random_sets(rng: random.Random, count: int, tags: int) -> list[list[str]]:
    names = [f"t{i}" for i in range(2_000)]
    return [rng.choices(names, k=rng.randint(1, tags)) for _ in range(count)]


@pytest.fixture(scope="module")
def stored(seed: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets, and what the local partitioner makes of them."""
    rows, path = random_sets(random.Random(seed), SETS, 4), tmp_path_factory.mktemp("sets")
    pq.write_table(pa.table({"tags": rows, "key": list(range(SETS))}), path / "sets.parquet")
    make_index(path / "index", list(zip(rows, range(SETS), strict=True)))
    return path


def gated(rows: DataFrame, gate: Path) -> DataFrame:
    """The rows in six tasks; all but the first two wait until there is a file."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ticket in ("first", "second"):
            with contextlib.suppress(FileExistsError):
                gate.with_name(f"{gate.name}-{ticket}").touch(exist_ok=False)
                break
        else:
            wait_until(gate.exists, WAIT)
        yield from batches

    # Spark reads small files, and rows of its driver, in as many tasks as there are cores: two, and none would wait
    return rows.repartition(6).mapInArrow(wait, rows.schema)


def is_in_the_middle(spark: SparkSession) -> bool:
    """Whether some tasks of a stage are done, and each machine has another one."""
    tracker = spark.sparkContext.statusTracker()
    infos = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return any(info is not None and info.numActiveTasks == 2 and info.numCompletedTasks for info in infos)


def command_of(pid: str) -> set[bytes]:
    with contextlib.suppress(OSError):
        return set(Path("/proc", pid, "cmdline").read_bytes().split(b"\0"))
    return set()


def losing_a_machine(spark: SparkSession, work: Callable[[], Any], gate: Path) -> Any:
    """The result of some work, while which an executor is killed with all that it has."""
    of_executor = {b"org.apache.spark.executor.CoarseGrainedExecutorBackend", spark.sparkContext.applicationId.encode()}
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(work)
        try:
            wait_until(lambda: is_in_the_middle(spark) or running.done(), WAIT)
            commands = {
                file.parent.name: set(file.read_bytes().split(b"\0")) for file in Path("/proc").glob("*/cmdline")
            }
            first, _ = (int(pid) for pid, words in commands.items() if of_executor <= words)
            os.kill(first, signal.SIGKILL)
            assert not running.done(), running.exception() or "there was nothing left to do"
        finally:
            gate.touch()
        return running.result(WAIT)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_whose_rows_are_lost(spark: SparkSession, stored: Path, tmp_path: Path) -> None:
    """With a machine, shuffled rows of tasks that were done."""
    gate = tmp_path / "gate"
    sets = gated(spark.read.parquet(str(stored / "sets.parquet")), gate)
    made = losing_a_machine(spark, lambda: partition(sets, tmp_path / "index"), gate)
    assert made.keys == SETS
    assert (tmp_path / "index" / MANIFEST).read_bytes() == (stored / "index" / MANIFEST).read_bytes()
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        tm.check()
    assert not list((tmp_path / "index").glob("unfinished-*"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_a_join_gives_the_same_answers(
    spark: SparkSession, stored: Path, tmp_path: Path, rng: random.Random, strategy: Any
) -> None:
    output: Any = "rows" if strategy == "ship" else "lists"
    rows, gate = random_sets(rng, QUERIES, 60), tmp_path / "gate"
    queries = gated(spark.createDataFrame(list(enumerate(rows)), "n int, tags array<string>"), gate)
    with patch("tagmatch.spark.join.BUCKET_SETS", 8_000):
        joined = subset_join(queries, stored / "index", strategy=strategy, output=output)
    found: list[list[int]] = [[] for _ in rows]
    for n, given in losing_a_machine(spark, joined.select("n", joined.columns[-1]).collect, gate):
        found[n] += given if output == "lists" else [given]
    with TagMatch.open(stored / "index", device="cpu") as tm:
        expected = tm.match_many(rows).to_pylist()
    assert list(map(sorted, found)) == list(map(sorted, expected))
    assert sum(map(len, expected)) > QUERIES
