"""How fast queries are joined with stored sets: our two strategies, and what plain Spark SQL can do."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from tagmatch.local import TagMatch
from tagmatch.spark.join import Strategy, subset_join
from tagmatch_bench.harness.data import make_workload
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Answers, Target
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.spark.session import signed_keys, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.data import Workload
    from tagmatch_bench.harness.results import Result

SHIP, SHUFFLE = "subset_join, ship", "subset_join, shuffle"
EXPLODE, CROSS = "SQL: explode, join, count", "SQL: cross join, array_except"

_SHIP = Target(50_000)
_SHUFFLE_AGAINST_SQL = Target(20)

# Queries that plain SQL gets, which takes some seconds for them where there are a million sets
_MOST_QUERIES = {EXPLODE: 256, CROSS: 16}

# Few enough that the cross join can be asked for all pairs
_CHECKED_SETS, _CHECKED_QUERIES = 50_000, 300

_COUNTED_QUERIES = 1_000


def join(bench: Bench, spark: SparkSession) -> Result:
    """Queries a second of the join, from Parquet files to rows that nobody keeps."""
    sets = bench.sets()
    result = bench.result(
        "spark-join",
        "Joining queries with stored sets on Spark",
        f"""{bench.in_words(sets)}; Spark {spark.version} in local mode. End to end: queries are read from Parquet
        files, and a row with the query's number and the key comes out for each match (format `noop`). *ship* opens the
        saved index (layout `rarest`) in the workers, *shuffle* brings sets and queries together in buckets. Plain SQL
        reads the sets from Parquet files: it either joins the exploded tags and counts, for each query and set, whether
        all were found, or tests every pair. It gets fewer queries.""",
        spark=spark.version,
        sql_queries=_MOST_QUERIES,
    )
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as scratch:
        _check(bench, result, spark, Path(scratch, "checked"))
        with bench.doing("spark-join: preparing"):
            joins = Joins.prepare(spark, bench.workload(sets), Path(scratch, "timed"), bench.options.threads)
        rates = _rates(bench, result, joins)
        result.add("keys of an answer", joins.keys_of_an_answer(), "keys")
    panel = result.panel("join", "distinct sets", "queries/s")
    for name, rate in rates.items():
        panel.add(name, f"{sets:,}", rate)
        target = _SHIP if name == SHIP else None
        result.add(f"{name}: {rate.items:,} queries", rate.median, "queries/s", target)
    ratio = rates[SHUFFLE].over(rates[EXPLODE])
    result.add(f"{SHUFFLE} against {EXPLODE}", ratio, "times", _SHUFFLE_AGAINST_SQL)
    return result


def _rates(bench: Bench, result: Result, joins: Joins) -> dict[str, Samples]:
    """Queries a second of every system, and its plan."""
    frames = {}
    for name, of_queries in joins.systems().items():
        count = min(len(joins.queries), _MOST_QUERIES.get(name, len(joins.queries)))
        frames[name] = count, of_queries(joins.first(count))
        result.plans[name] = _plan(frames[name][1])
    works = {name: partial(run, frame) for name, (_, frame) in frames.items()}
    with bench.doing("spark-join: warming up"):
        alternate(works, 1)
    with bench.doing("spark-join: joining"):
        taken = alternate(works, bench.options.rounds)
    return {
        name: Samples(tuple(frames[name][0] / seconds for seconds in samples.values), frames[name][0])
        for name, samples in taken.items()
    }


def _check(bench: Bench, result: Result, spark: SparkSession, folder: Path) -> None:
    """Compare the answers of all systems with those of brute force."""
    options = bench.options
    sets, queries = min(bench.sets(), _CHECKED_SETS), min(options.queries, _CHECKED_QUERIES)
    with bench.doing("spark-join: checking"):
        workload = make_workload(sets, queries, options.seed, options.threads)
        joins = Joins.prepare(spark, workload, folder, options.threads)
        keys = right_answers(workload.sets, workload.queries, threads=options.threads)
        right = Counter((query, key) for query, found in enumerate(keys) for key in found)
        for name, of_queries in joins.systems().items():
            given = Counter((row.id, row.key) for row in of_queries(joins.first(queries)).collect())
            wrong, missing = (given - right).total(), (right - given).total()
            result.answers.append(Answers(f"{sets:,} sets", name, True, queries, given.total(), wrong, missing))


@dataclass(frozen=True, slots=True)
class Joins:
    """Stored sets, as an index and as a DataFrame, and queries, to be joined in all ways."""

    spark: SparkSession
    folder: Path
    index: Path
    sets: DataFrame
    queries: pa.ListArray

    @classmethod
    def prepare(cls, spark: SparkSession, workload: Workload, folder: Path, threads: int) -> Joins:
        """Save an index, and the same sets, numbered, for SQL."""
        with TagMatch(folder / "index", threads=threads, device="cpu") as engine:
            engine.add_sets(workload.sets["tags"], workload.sets["key"])
            engine.consolidate()
        numbered = signed_keys(workload.sets).append_column("set", pa.array(np.arange(len(workload.sets))))
        sets = spark.read.parquet(write_parquet(numbered, folder / "sets"))
        return cls(spark, folder, folder / "index", sets, workload.queries)

    def first(self, count: int) -> DataFrame:
        """The first queries, in files of their own, of whose size Spark knows when it plans: columns `id`, `tags`."""
        folder = self.folder / f"queries-{count}"
        if not folder.exists():
            write_parquet(pa.table({"id": np.arange(count), "tags": self.queries.slice(0, count)}), folder)
        return self.spark.read.parquet(str(folder))

    def keys_of_an_answer(self) -> float:
        """The mean over some queries."""
        some = self.queries[:_COUNTED_QUERIES]
        with TagMatch.open(self.index, device="cpu") as engine:
            return len(engine.match_many(some).flatten()) / len(some)

    def systems(self) -> Mapping[str, Callable[[DataFrame], DataFrame]]:
        """All ways to get, for queries with the columns `id` and `tags`, rows with `id` and `key`."""
        return {
            SHIP: partial(self._subset_join, "ship"),
            SHUFFLE: partial(self._subset_join, "shuffle"),
            EXPLODE: self._explode,
            CROSS: self._cross,
        }

    def _subset_join(self, strategy: Strategy, queries: DataFrame) -> DataFrame:
        return subset_join(queries, self.index, strategy=strategy, output="rows").select("id", "key")

    def _explode(self, queries: DataFrame) -> DataFrame:
        sets = self.sets.withColumn("tags", f.array_distinct("tags"))
        set_tags = sets.select("set", "key", f.size("tags").alias("tags"), f.explode("tags").alias("tag"))
        query_tags = queries.select("id", f.explode(f.array_distinct("tags")).alias("tag"))
        pairs = query_tags.join(set_tags, "tag").groupBy("id", "set", "key", "tags").count()
        return pairs.where(f.col("count") == f.col("tags")).select("id", "key")

    def _cross(self, queries: DataFrame) -> DataFrame:
        pairs = queries.crossJoin(self.sets.withColumnRenamed("tags", "stored"))
        return pairs.where(f.size(f.array_except("stored", "tags")) == 0).select("id", "key")


def run(frame: DataFrame) -> None:
    """Make all rows of a DataFrame, which nobody keeps."""
    frame.write.format("noop").mode("overwrite").save()


def _plan(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(mode="formatted")
    return printed.getvalue().strip()
