"""Time and memory of the offline job on Spark, compared with the local partitioner on the same files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tagmatch import TagMatch, TagMatchError
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.spark.join import partition as partition_on_spark
from tagmatch.workloads.twitter import TwitterOptions
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.data import distinct_sets
from tagmatch_bench.harness.processes import forget_peak, resident
from tagmatch_bench.harness.results import Result, Row, Target
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.systems.catalogue import OURS

_FEWEST_FILES, _ROWS_PER_FILE = 4, 250_000


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
    """What the stages of a run used, and the processes at most."""

    stages: int  # stages that ran, and their tasks
    tasks: int
    task_seconds: float  # time of all tasks together
    longest_alone: float  # seconds of the longest stage that had one task only
    shuffled: int  # bytes that tasks wrote for others, and that they wrote to disk as memory was short
    spilled: int
    # peaks of resident memory, in bytes: of the JVM, which is driver and executor in one; of the largest Python worker;
    # and of the driver's Python, by which it grew
    jvm: int
    worker: int
    python: int


def usage_of(spark: SparkSession, work: Callable[[], object]) -> Usage:
    """Run something, and return what it used."""
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
        sum(stage.numCompleteTasks() for stage in stages),
        sum(stage.executorRunTime() for stage in stages) / 1e3,
        max(alone, default=0) / 1e3,
        sum(stage.shuffleWriteBytes() for stage in stages),
        sum(stage.diskBytesSpilled() for stage in stages),
        resident("VmHWM", jvm.pid),
        max(workers),
        python,
    )


def add_usage(result: Result, what: str, usage: Usage, sets: int) -> None:
    """Add to a result what partitioning `sets` sets used."""
    result.add(f"{what}: time of all tasks, a set", usage.task_seconds / sets * 1e6, "µs")
    result.add(f"{what}: longest stage of one task", usage.longest_alone, "s")
    result.add(f"{what}: shuffled, a set", usage.shuffled / sets, "bytes")
    result.add(f"{what}: spilled to disk", usage.spilled / _MIB, "MiB")
    result.add(f"{what}: peak of the JVM, driver and executor", usage.jvm / _MIB, "MiB")
    result.add(f"{what}: peak of a Python worker", usage.worker / _MIB, "MiB")
    result.add(f"{what}: the driver's Python grew by", usage.python / _MIB, "MiB")


def add_a_billion(result: Result, what: str, usage: Usage, index: Path, sets: int) -> None:
    """Add to a result what a billion sets would need at the rate of the given ones, whose index is in a folder."""
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


SIZES = (1_000_000, 4_000_000, 8_000_000)

# What starting tasks costs counts for less and less, so both hold from this many sets on
_TARGETS_FROM = 4_000_000
_AGAINST_LOCAL = Target(1.6, at_most=True)
_TWICE_THE_SETS = Target(2.3, at_most=True)


def partition(bench: Bench, spark: SparkSession, sizes: Iterable[int] = SIZES) -> Result:
    """Time of partitioning against the number of sets, on Spark and without it."""
    sizes = sorted(set(sizes))
    result = bench.result(
        "spark-partition",
        "Partitioning on Spark",
        f"""From Parquet files with distinct sets to a saved index: the offline job on Spark {spark.version}, in local
        mode, and the local partitioner (`add_sets` and `consolidate`), in turns, each with {bench.options.threads}
        threads. Spark's Python workers are forks of `tagmatch.spark.daemon`. Both made the same files, down to the last
        byte. One round with the fewest sets came before, to warm up.""",
        sizes=sizes,
        spark=spark.version,
        max_partition_size=LayoutOptions().max_partition_size,
    )
    times = result.panel("time of partitioning", "million sets", "s", "lines")
    ratios = result.panel("Spark against local", "million sets", "times", "lines", log=False)
    on_spark: dict[Layout, dict[int, Samples]] = {each: {} for each in OURS}
    local: dict[Layout, dict[int, Samples]] = {each: {} for each in OURS}
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as scratch:
        for size in sizes:
            job = _job(bench, spark, Path(scratch, str(size)), size)
            if size == sizes[0]:
                # All of it, as Java goes on compiling what runs often for a minute
                with bench.doing("spark-partition: warming up"):
                    alternate(job.works(), 1)
            with bench.doing(f"spark-partition: {size:,} sets"):
                found = alternate(job.works(), bench.options.rounds)
            job.check()
            if size == sizes[-1]:
                with bench.doing(f"spark-partition: {size:,} sets, once more"):
                    for each, usage in job.add_usage(result, f"{size:,} sets", size).items():
                        add_a_billion(result, each, usage, job.index("Spark", each), size)
            job.clear()
            for each in OURS:
                on_spark[each][size], local[each][size] = found[f"Spark, {each}"], found[f"local, {each}"]
                ratios.add(each, size / 1e6, on_spark[each][size].over(local[each][size]))
            times.add_all(found, size / 1e6)
    for each in OURS:
        result.lines += comparisons(each, on_spark[each], local[each])
    return result


def comparisons(layout: Layout, on_spark: Mapping[int, Samples], local: Mapping[int, Samples]) -> list[Row]:
    """Compare seconds, by the number of sets: those of Spark with the local ones, and with those of half the sets."""
    lines = []
    for size, seconds in on_spark.items():
        target = _AGAINST_LOCAL if size >= _TARGETS_FROM else None
        lines.append(Row(f"{layout}: {size:,} sets, Spark against local", seconds.over(local[size]), "times", target))
    for size, seconds in on_spark.items():
        if 2 * size in on_spark:
            target = _TWICE_THE_SETS if size >= _TARGETS_FROM else None
            what = f"{layout}: {2 * size:,} sets against {size:,}, on Spark"
            lines.append(Row(what, on_spark[2 * size].over(seconds), "times", target))
    return lines


@dataclass(frozen=True, slots=True)
class Job:
    """Some sets as files, and the indexes that are made of them."""

    spark: SparkSession
    folder: Path
    sets: str
    threads: int

    @classmethod
    def of(cls, spark: SparkSession, folder: Path, sets: pa.Table, threads: int) -> Job:
        """Sets and keys, columns `tags` and `key`, which are written to files in a new folder."""
        return cls(spark, folder, write_parquet(signed_keys(sets), folder / "sets"), threads)

    def works(self) -> dict[str, Callable[[], object]]:
        """What is measured; each makes its index anew."""
        return {
            f"{where}, {each}": partial(work, each)
            for each in OURS
            for where, work in (("Spark", self._on_spark), ("local", self._locally))
        }

    def check(self) -> None:
        """See that Spark made what the local partitioner did: names, sizes and checksums of all files."""
        for each in OURS:
            manifests = {(self.index(where, each) / "MANIFEST.json").read_bytes() for where in ("Spark", "local")}
            if len(manifests) > 1:
                raise TagMatchError(f"{self.folder.name} sets, layout {each}: Spark and local made different indexes")

    def add_usage(self, result: Result, what: str, sets: int) -> Mapping[Layout, Usage]:
        """Partition once more on Spark, and have a result say what that used."""
        used = {each: usage_of(self.spark, partial(self._on_spark, each)) for each in OURS}
        for each, usage in used.items():
            add_usage(result, f"{what}, {each}", usage, sets)
        return used

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder)

    def index(self, where: str, layout: Layout) -> Path:
        """Where an index is made: of a layout, on `Spark` or `local`."""
        return self.folder / f"{where}-{layout}"

    def on_spark(self, layout: Layout, index: Path, *, sets_per_task: int | None = None) -> None:
        """Make an index by the job."""
        shutil.rmtree(index, ignore_errors=True)
        partition_on_spark(self.spark.read.parquet(self.sets), index, layout=layout, sets_per_task=sets_per_task)

    def _on_spark(self, layout: Layout) -> None:
        self.on_spark(layout, self.index("Spark", layout))

    def _locally(self, layout: Layout) -> None:
        index = self.index("local", layout)
        shutil.rmtree(index, ignore_errors=True)
        sets: pa.Table = pq.read_table(self.sets)
        with TagMatch(index, layout=layout, threads=self.threads, device="cpu", durability="none") as engine:
            engine.add_sets(sets["tags"], sets["key"])
            engine.consolidate()


def _job(bench: Bench, spark: SparkSession, folder: Path, size: int) -> Job:
    options = bench.options
    with bench.doing(f"generating {size:,} sets"):
        sets = distinct_sets(TwitterOptions(seed=options.seed), size, threads=options.threads)
        return Job.of(spark, folder, sets, options.threads)
