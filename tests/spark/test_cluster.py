"""The job and the join on a cluster, of which a machine dies while they run: nothing is lost, nor twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.index_files import MANIFEST, make_index
from support.jvm import Jvm
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.spark import partition, subset_join

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

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
    """The rows in six tasks, of which all but the first two wait until there is a file."""

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
    """What some work gives, in the middle of which an executor is killed, and with it all that it has."""
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
