"""A plan of the offline job for more sets than one machine has, from costs that are measured on it."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tagmatch.model.options import Layout
from tagmatch.partitioner.local import MAX_ROWS
from tagmatch.workloads.twitter import TwitterOptions
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.data import distinct_sets
from tagmatch_bench.harness.results import Result
from tagmatch_bench.spark.partitioning import Job, Usage, usage_of

#: Sets that are measured, and sets of a task of `partition`
MEASURED, _SETS_PER_TASK = 2_000_000, 1 << 20
#: Partitions of each shuffle of the job that bounds the cost of starting tasks, and its sets
TINY, TINY_SETS = 2_000, 100_000
# Of the job with as many shards as ranges of hashes: stages that have a task for each of these
_STAGES = 10
_PART_BYTES = 1 << 26
_LAYOUT: Layout = "rarest"


def plan(bench: Bench, spark: SparkSession, sets: float) -> Result:
    """Tasks, shuffle and memory of a job for some sets, by the costs of a job in few tasks and of one in many."""
    measured, tiny = MEASURED, TINY
    result = bench.result(
        "spark-plan",
        f"A job of {sets:.0e} sets on Spark",
        f"""The offline job, layout `{_LAYOUT}`, Spark {spark.version}, with {measured:,} sets in about four tasks a
        stage, and with {TINY_SETS:,} sets in {tiny:,}. A task costs as much as one of the second job, a set the
        rest of the first job. The rest is arithmetic: tasks of {_SETS_PER_TASK:,} sets, and as many shards.""",
        spark=spark.version,
        sets=sets,
        measured=measured,
        tiny=tiny,
    )
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as scratch:
        few, _ = _run(bench, spark, Path(scratch, "few"), measured, 4)
        many, seconds = _run(bench, spark, Path(scratch, "many"), TINY_SETS, tiny)
        saved = sum(file.stat().st_size for file in Path(scratch, "few").rglob("index/**/*") if file.is_file())
    of_task, indexes = many.task_seconds / many.tasks, math.ceil(sets / MAX_ROWS)
    of_set = max(0.0, few.task_seconds - few.tasks * of_task) / measured
    result.add(f"measured: tasks of the job with {tiny:,} partitions", many.tasks, "tasks")
    result.add("measured: a task, of a core", of_task * 1e3, "ms")
    result.add("measured: a task, of the job's time", seconds / many.tasks * 1e3, "ms")
    result.add("measured: a set, of a core", of_set * 1e6, "µs")
    result.add("measured: the driver's Python grew by, a partition", many.python / tiny / 1024, "KiB")
    shards = math.ceil(sets / indexes / _SETS_PER_TASK)
    tasks = _STAGES * shards + math.ceil(saved * sets / indexes / measured / _PART_BYTES)
    worker = few.worker * max(1.0, 4 * _SETS_PER_TASK / measured)
    result.add(f"{sets:.0e} sets: indexes", indexes, "indexes")
    result.add(f"{sets:.0e} sets: tasks of each index", tasks, "tasks")
    result.add(f"{sets:.0e} sets: time of all tasks", indexes * tasks * of_task / 3600 + of_set * sets / 3600, "hours")
    result.add(f"{sets:.0e} sets: of this, starting tasks", indexes * tasks * of_task / 3600, "hours")
    result.add(f"{sets:.0e} sets: shuffled", few.shuffled * sets / measured / 1e9, "GB")
    result.add(f"{sets:.0e} sets: index", saved * sets / measured / 1e9, "GB")
    result.add(f"{sets:.0e} sets: memory of a task, at most", worker / 2**20, "MiB")
    result.add(f"{sets:.0e} sets: memory of the driver's Python", many.python / tiny * shards / 2**20, "MiB")
    return result


def _run(bench: Bench, spark: SparkSession, folder: Path, sets: int, tasks: int) -> tuple[Usage, float]:
    """Usage of a job with these numbers of sets and of tasks for a stage, and its seconds."""
    options = bench.options
    with bench.doing(f"spark-plan: {sets:,} sets, {tasks:,} tasks"):
        table = distinct_sets(TwitterOptions(seed=options.seed), sets, threads=options.threads)
        job = Job.of(spark, folder, table, options.threads)
        with _partitions(spark, tasks):
            work = partial(job.on_spark, _LAYOUT, folder / "index", sets_per_task=max(1, -(-sets // tasks)))
            begun = time.perf_counter()
            return usage_of(spark, work), time.perf_counter() - begun


@contextmanager
def _partitions(spark: SparkSession, count: int) -> Iterator[None]:
    """Make shuffles have exactly this number of partitions."""
    settings = {"spark.sql.shuffle.partitions": str(count), "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, given in before.items():
            spark.conf.unset(name) if given is None else spark.conf.set(name, given)
