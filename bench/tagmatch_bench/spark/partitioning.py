"""How long the offline job takes on Spark, beside the local partitioner on the same files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import TagMatchError
from tagmatch.model.options import LayoutOptions
from tagmatch.spark.join import partition as partition_on_spark
from tagmatch.workloads.laws import TwitterOptions
from tagmatch_bench.harness.data import distinct_sets
from tagmatch_bench.harness.results import Row, Target
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.spark.session import Usage, add_a_billion, add_usage, signed_keys, usage_of, write_parquet
from tagmatch_bench.systems.catalogue import OURS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tagmatch.model.options import Layout
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

SIZES = (1_000_000, 4_000_000, 8_000_000)

# What starting tasks costs counts for less and less, so both hold from this many sets on
_TARGETS_FROM = 4_000_000
_AGAINST_LOCAL = Target(2.5, at_most=True)
_TWICE_THE_SETS = Target(2.3, at_most=True)


def partition(bench: Bench, spark: SparkSession, sizes: Iterable[int] = SIZES) -> Result:
    """Time of partitioning against the number of sets, on Spark and without it.

    Raises
    ------
    TagMatchError
        The two indexes of the same sets differ.
    """
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
            for name, seconds in found.items():
                times.add(name, size / 1e6, seconds)
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

    def _on_spark(self, layout: Layout) -> None:
        index = self.index("Spark", layout)
        shutil.rmtree(index, ignore_errors=True)
        partition_on_spark(self.spark.read.parquet(self.sets), index, layout=layout)

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
