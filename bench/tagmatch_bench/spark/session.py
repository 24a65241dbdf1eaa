"""The Spark that is measured, the files that it reads, and what a run on it uses."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.spark.session import spark_session
from tagmatch_bench.harness.processes import forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tagmatch_bench.harness.results import Result


_SETTINGS = {
    "spark.driver.memory": "4g",  # in local mode the driver's is all that there is
    # These two as docs/spark.md has them
    "spark.python.daemon.module": "tagmatch.spark.daemon",
    "spark.shuffle.sort.bypassMergeThreshold": "0",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_FEWEST_FILES, _ROWS_PER_FILE = 4, 250_000


def local_spark(threads: int) -> SparkSession:
    """Return the running session, or start one on some cores of this machine; it ends with the process."""
    return spark_session("tagmatch-bench", f"local[{threads}]", _SETTINGS)


def signed_keys(sets: pa.Table) -> pa.Table:
    """Return the columns `tags` and `key` with keys that Spark reads as `long`; unsigned ones are decimals to it."""
    return pa.table({"tags": sets["tags"], "key": sets["key"].cast(pa.int64())})


def write_parquet(table: pa.Table, folder: Path) -> str:
    """Write a table as several files into a new folder, whose path is returned."""
    folder.mkdir(parents=True)
    step = max(1, min(_ROWS_PER_FILE, -(-len(table) // _FEWEST_FILES)))
    for number, first in enumerate(range(0, len(table), step)):
        pq.write_table(table.slice(first, step), folder / f"part-{number:05}.parquet")
    return str(folder)


_MIB = 1 << 20
_BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What the stages of a run used, and the processes at most.

    Attributes
    ----------
    stages : int
        Stages that ran.
    task_seconds : float
        Time of all tasks together.
    longest_alone : float
        Seconds of the longest stage that had one task only.
    shuffled, spilled : int
        Bytes that tasks wrote for others, and that they wrote to disk as memory was short.
    jvm, worker, python : int
        Peaks of resident memory, in bytes: of the JVM, which is driver and executor in one; of the largest Python
        worker; and of the driver's Python, by which it grew.
    """

    stages: int
    task_seconds: float
    longest_alone: float
    shuffled: int
    spilled: int
    jvm: int
    worker: int
    python: int


def usage_of(spark: SparkSession, work: Callable[[], object]) -> Usage:
    """Run something, and return what it used.

    Raises
    ------
    OSError
        This system has no `/proc`, or does not let a process forget its peak.
    """
    jvm = psutil.Process(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    before = {int(stage.stageId()) for stage in _stages(spark)}
    for process in (psutil.Process(), jvm, *jvm.children(recursive=True)):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a worker has ended
            forget_peak(process.pid)
    before_work = resident("VmRSS")
    work()
    python = resident("VmHWM") - before_work
    workers = [0]
    for child in jvm.children(recursive=True):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            workers.append(resident("VmHWM", child.pid))
    stages = [stage for stage in _stages(spark) if stage.stageId() not in before and stage.numCompleteTasks()]
    alone = [stage.executorRunTime() for stage in stages if stage.numCompleteTasks() == 1]
    return Usage(
        len(stages),
        sum(stage.executorRunTime() for stage in stages) / 1e3,
        max(alone, default=0) / 1e3,
        sum(stage.shuffleWriteBytes() for stage in stages),
        sum(stage.diskBytesSpilled() for stage in stages),
        resident("VmHWM", jvm.pid),
        max(workers),
        python,
    )


def add_usage(result: Result, what: str, usage: Usage, sets: int) -> None:
    """Have a result say what partitioning so many sets used."""
    result.add(f"{what}: time of all tasks, a set", usage.task_seconds / sets * 1e6, "µs")
    result.add(f"{what}: longest stage of one task", usage.longest_alone, "s")
    result.add(f"{what}: shuffled, a set", usage.shuffled / sets, "bytes")
    result.add(f"{what}: spilled to disk", usage.spilled / _MIB, "MiB")
    result.add(f"{what}: peak of the JVM, driver and executor", usage.jvm / _MIB, "MiB")
    result.add(f"{what}: peak of a Python worker", usage.worker / _MIB, "MiB")
    result.add(f"{what}: the driver's Python grew by", usage.python / _MIB, "MiB")


def add_a_billion(result: Result, what: str, usage: Usage, index: Path, sets: int) -> None:
    """Have a result say what a billion sets would need at the rate of so many, whose index is in a folder."""
    saved = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
    times = _BILLION / sets
    result.add(f"{what}: a billion sets at this rate, time of all tasks", usage.task_seconds * times / 3600, "hours")
    result.add(f"{what}: a billion sets at this rate, shuffled", usage.shuffled * times / 1e9, "GB")
    result.add(f"{what}: a billion sets at this rate, index", saved * times / 1e9, "GB")


def _stages(spark: SparkSession) -> Iterator[Any]:
    """What Spark knows of all its stages, once it has heard of the end of each."""
    context, java = spark.sparkContext, spark.sparkContext._jvm
    status = context._jsc.sc()
    status.listenerBus().waitUntilEmpty()
    quantiles = context._gateway.new_array(java.double, 0)  # type: ignore[union-attr]
    stages = status.statusStore().stageList(None, False, False, quantiles, java.java.util.ArrayList())  # type: ignore[union-attr]
    each = stages.iterator()
    while each.hasNext():
        yield each.next()
