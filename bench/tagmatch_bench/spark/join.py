"""Joins of queries with stored sets: our two strategies, plain Spark SQL, and inputs with skew."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tagmatch import TagMatch
from tagmatch.model.arrays import BoolArray
from tagmatch.spark.join import subset_join
from tagmatch.spark.session import Strategy
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.data import Workload, make_workload
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.spark.partitioning import Job, signed_keys, write_parquet
from tagmatch_bench.systems.catalogue import OURS

SHIP, SHUFFLE = "subset_join, ship", "subset_join, shuffle"
EXPLODE, CROSS = "SQL: explode, join, count", "SQL: cross join, array_except"
RAREST = "SQL: rarest tag, join, array_except"
MATCH_MANY, READING = "match_many", "reading the queries"

_SHIP = Target(50_000)
_AGAINST_SQL = Target(3)  # as an engineer writes it; what others write takes thousands of times as long
_AGAINST_MATCH_MANY = Target(0.5)

# Queries that plain SQL gets, which takes some seconds for them with a million sets
_MOST_QUERIES = {EXPLODE: 256, CROSS: 16}

# Few enough that the cross join can be asked for all pairs
_CHECKED_SETS, _CHECKED_QUERIES = 50_000, 300

_COUNTED_QUERIES = 1_000


def join(bench: Bench, spark: SparkSession) -> Result:
    """Queries a second of the join, from Parquet files to rows that are not kept."""
    sets = bench.sets()
    result = bench.result(
        "spark-join",
        "Joining queries with stored sets on Spark",
        f"""{bench.in_words(sets)}; Spark {spark.version} in local mode. End to end: queries are read from Parquet
        files, and a row with the query's number and the key comes out for each match (format `noop`). *ship* opens the
        saved index (layout `rarest`) in the workers, *shuffle* brings sets and queries together in buckets. Plain SQL
        reads the sets from Parquet files: it joins the exploded tags of queries with the sets that have this tag as
        their rarest, a column of the files, and tests the pairs; or it joins all exploded tags and counts, for each
        query and set, whether all were found; or it tests every pair. The last two get fewer queries. *match_many* is
        one call of an open index on as many threads, for the queries in memory; *reading the queries* is what Spark
        takes for these alone, which each join reads.""",
        spark=spark.version,
        sql_queries=_MOST_QUERIES,
    )
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as scratch:
        few, queries = min(sets, _CHECKED_SETS), min(bench.options.queries, _CHECKED_QUERIES)
        with bench.doing("spark-join: checking"):
            checked = make_workload(few, queries, bench.options.seed, bench.options.threads)
            _check(result, f"{few:,} sets", spark, checked, Path(scratch, "checked"))
        with bench.doing("spark-join: preparing"):
            joins = Joins.prepare(spark, bench.workload(sets), Path(scratch, "timed"), bench.options.threads)
        rates = _rates(bench, result, joins)
        result.add("keys of an answer", joins.keys_of_an_answer(), "keys")
    panel = result.panel("join", "distinct sets", "queries/s")
    for name, rate in rates.items():
        panel.add(name, f"{sets:,}", rate)
        target = _SHIP if name == SHIP else None
        result.add(f"{name}: {rate.items:,} queries", rate.median, "queries/s", target)
    for name in (SHIP, SHUFFLE):
        result.add(f"{name} against {RAREST}", rates[name].over(rates[RAREST]), "times", _AGAINST_SQL)
        result.add(f"{name} against {MATCH_MANY}", rates[name].over(rates[MATCH_MANY]), "times", _AGAINST_MATCH_MANY)
        result.add(f"{name} against {READING}", rates[name].over(rates[READING]), "times")
    return result


def _rates(bench: Bench, result: Result, joins: Joins) -> dict[str, Samples]:
    """Queries a second of every system, and its plan."""
    frames = {}
    for name, of_queries in joins.systems().items():
        count = min(len(joins.queries), _MOST_QUERIES.get(name, len(joins.queries)))
        frames[name] = count, of_queries(joins.first(count))
        result.plans[name] = _plan(frames[name][1])
    counts = {name: count for name, (count, _) in frames.items()}
    counts |= dict.fromkeys((MATCH_MANY, READING), len(joins.queries))
    works: dict[str, Callable[[], object]] = {name: partial(run, frame) for name, (_, frame) in frames.items()}
    with TagMatch.open(joins.index, threads=bench.options.threads, device="cpu") as engine:
        works[MATCH_MANY] = partial(engine.match_many, joins.queries)
        works[READING] = partial(run, joins.first(len(joins.queries)))
        with bench.doing("spark-join: warming up"):
            alternate(works, 1)
        with bench.doing("spark-join: joining"):
            taken = alternate(works, bench.options.rounds)
    return {
        name: Samples(tuple(counts[name] / seconds for seconds in samples.values), counts[name])
        for name, samples in taken.items()
    }


def _check(
    result: Result, where: str, spark: SparkSession, workload: Workload, folder: Path, systems: Iterable[str] = ()
) -> None:
    """Compare the answers of some systems, or all, with those of brute force."""
    threads, queries = result.parameters["threads"], len(workload.queries)
    joins = Joins.prepare(spark, workload, folder, threads)
    keys = right_answers(workload.sets, workload.queries, threads=threads)
    for name in systems or joins.systems():
        given: list[list[int]] = [[] for _ in keys]
        for row in joins.systems()[name](joins.first(queries)).collect():
            given[row.id].append(row.key)
        result.compare(where, name, given, keys)


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
        numbered = numbered.append_column("rarest", rarest_tags(_lists(workload.sets["tags"])))
        sets = spark.read.parquet(write_parquet(numbered, folder / "sets"))
        return cls(spark, folder, folder / "index", sets, workload.queries)

    def first(self, count: int) -> DataFrame:
        """The first queries, in their own files, whose size Spark knows when it plans: columns `id`, `tags`."""
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
            RAREST: self._rarest,
            EXPLODE: self._explode,
            CROSS: self._cross,
        }

    def _subset_join(self, strategy: Strategy, queries: DataFrame) -> DataFrame:
        return subset_join(queries, self.index, strategy=strategy, output="rows").select("id", "key")

    def _rarest(self, queries: DataFrame) -> DataFrame:
        by_tag = queries.select("*", f.explode(f.array_distinct("tags")).alias("rarest"))
        pairs = by_tag.join(self.sets.withColumnRenamed("tags", "stored"), "rarest")
        return pairs.where(f.size(f.array_except("stored", "tags")) == 0).select("id", "key")

    def _explode(self, queries: DataFrame) -> DataFrame:
        sets = self.sets.withColumn("tags", f.array_distinct("tags"))
        set_tags = sets.select("set", "key", f.size("tags").alias("tags"), f.explode("tags").alias("tag"))
        query_tags = queries.select("id", f.explode(f.array_distinct("tags")).alias("tag"))
        pairs = query_tags.join(set_tags, "tag").groupBy("id", "set", "key", "tags").count()
        return pairs.where(f.col("count") == f.col("tags")).select("id", "key")

    def _cross(self, queries: DataFrame) -> DataFrame:
        pairs = queries.crossJoin(self.sets.withColumnRenamed("tags", "stored"))
        return pairs.where(f.size(f.array_except("stored", "tags")) == 0).select("id", "key")


def rarest_tags(sets: pa.ListArray) -> pa.Array:
    """The tag of each set that fewest sets have; null of a set without tags."""
    tags = sets.flatten().dictionary_encode()
    numbers, some = tags.indices.to_numpy(), np.flatnonzero(np.diff(sets.offsets.to_numpy()))
    # One number that is the less, the rarer the tag is
    ranked = np.bincount(numbers)[numbers] * np.int64(len(tags.dictionary)) + numbers
    firsts = sets.offsets.to_numpy()[some] - sets.offsets[0].as_py()
    rarest = np.zeros(len(sets), np.int64)
    rarest[some] = np.minimum.reduceat(ranked, firsts) % len(tags.dictionary)
    return tags.dictionary.take(pa.array(rarest, mask=~np.isin(np.arange(len(sets)), some)))


def run(frame: DataFrame) -> None:
    """Make all rows of a DataFrame, which are not kept."""
    frame.write.format("noop").mode("overwrite").save()


def _plan(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(mode="formatted")
    return printed.getvalue().strip()


_SHARED, _EVERYWHERE = "a shared tag", "a tag of all queries"
_LONG_SET = 10_000

# One of this many sets is long, or has the tag that all queries have
_SETS_TO_A_LONG_ONE, _SETS_TO_ONE_WITH_THE_TAG = 20_000, 100
_SKEWED_SETS, _SKEWED_QUERIES = 20_000, 200


def with_shared_tag(workload: Workload) -> Workload:
    """Nine of ten sets have a tag, and all queries."""
    return _with_tag(workload, np.arange(len(workload.sets)) % 10 > 0, _SHARED)


def with_tag_in_every_query(workload: Workload) -> Workload:
    """All queries have a tag, and few sets."""
    return _with_tag(workload, np.arange(len(workload.sets)) % _SETS_TO_ONE_WITH_THE_TAG == 0, _EVERYWHERE)


def with_long_sets(workload: Workload) -> Workload:
    """Few sets, and a few queries, have ten thousand tags."""
    sets = workload.sets.combine_chunks()
    long = [
        [f"tag {tag} of {number}" for tag in range(_LONG_SET)]
        for number in range(max(1, len(sets) // _SETS_TO_A_LONG_ONE))
    ]
    tags = pa.concat_arrays([_lists(sets["tags"]), pa.array(long, pa.list_(pa.string()))])
    keys = pa.concat_arrays([*sets["key"].chunks, pa.array(range(len(long)), sets["key"].type)])
    queries = pa.concat_arrays([_lists(workload.queries), pa.array(long[:2], pa.list_(pa.string()))])
    some = np.concatenate([[len(queries) - 1], np.arange(len(workload.queries) - 1)])
    return replace(workload, sets=pa.table({"tags": tags, "key": keys}), queries=queries.take(pa.array(some)))


#: Changes to the usual workload, by what they are called
INPUTS: dict[str, Callable[[Workload], Workload]] = {
    "as it is": lambda workload: workload,
    "90 % of sets share a tag": with_shared_tag,
    "a tag in every query": with_tag_in_every_query,
    f"sets of {_LONG_SET:,} tags": with_long_sets,
}


def skew(bench: Bench, spark: SparkSession) -> Result:
    """Times of the job and rates of the join for inputs with skew, and for the workload without."""
    sets, options = bench.sets(), bench.options
    result = bench.result(
        "spark-skew",
        "Skew on Spark",
        f"""{bench.in_words(sets)}; Spark {spark.version} in local mode. The same workload with a tag in nine of ten
        sets and in all queries; with a tag in all queries and one of {_SETS_TO_ONE_WITH_THE_TAG} sets; and with a set
        of {_LONG_SET:,} tags to {_SETS_TO_A_LONG_ONE:,} others. Both partitioners made the same files.""",
        spark=spark.version,
    )
    times = result.panel("time of partitioning", "input", "s")
    rates = result.panel("join", "input", "queries/s")
    workload = bench.workload(sets)
    for name, change in INPUTS.items():
        with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as scratch, bench.doing(f"spark-skew: {name}"):
            few = change(make_workload(_SKEWED_SETS, _SKEWED_QUERIES, options.seed, options.threads))
            where, folder = f"{name}, {_SKEWED_SETS:,} sets", Path(scratch, "checked")
            _check(result, where, spark, few, folder, (SHIP, SHUFFLE))
            changed = change(workload)
            job = Job.of(spark, Path(scratch, "job"), changed.sets, options.threads)
            found = alternate(job.works(), options.rounds)
            job.check()
            job.add_usage(result, name, len(changed.sets))
            times.add_all(found, name)
            for each in OURS:
                ratio = found[f"Spark, {each}"].over(found[f"local, {each}"])
                result.add(f"{name}: {each}, Spark against local", ratio, "times")
            joins = Joins.prepare(spark, changed, Path(scratch, "joins"), options.threads)
            queries = len(changed.queries)
            works = {of: partial(run, joins.systems()[of](joins.first(queries))) for of in (SHIP, SHUFFLE)}
            for system, seconds in alternate(works, options.rounds).items():
                rates.add(system, name, queries / seconds.median)
                result.add(f"{name}: {system}", queries / seconds.median, "queries/s")
    return result


def _with_tag(workload: Workload, sets: BoolArray, tag: str) -> Workload:
    """The workload with one more tag in some sets, and in all queries."""
    queries = np.ones(len(workload.queries), np.bool_)
    return replace(
        workload,
        sets=workload.sets.set_column(
            workload.sets.schema.get_field_index("tags"), "tags", _more(_lists(workload.sets["tags"]), sets, tag)
        ),
        queries=_more(_lists(workload.queries), queries, tag),
    )


def _lists(lists: pa.Array | pa.ChunkedArray) -> pa.ListArray:
    """One array of lists of strings."""
    chunks = lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]
    return pa.concat_arrays([chunk.cast(pa.list_(pa.string())) for chunk in chunks])


def _more(lists: pa.ListArray, which: BoolArray, tag: str) -> pa.ListArray:
    """Lists of strings, some with one more."""
    offsets = lists.offsets.to_numpy()
    values = pa.concat_arrays([lists.values, pa.array([tag])])
    places = np.insert(np.arange(offsets[0], offsets[-1]), (offsets[1:] - offsets[0])[which], len(lists.values))
    more = offsets - offsets[0] + np.concatenate([[0], np.cumsum(which)])
    return pa.ListArray.from_arrays(pa.array(more.astype(np.int32)), values.take(pa.array(places)))
