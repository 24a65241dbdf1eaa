"""Inputs with tags that are in most sets, or with sets far larger than others: one task may get most of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch_bench.harness.data import Workload, make_workload
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Answers
from tagmatch_bench.harness.timing import alternate
from tagmatch_bench.spark.join import SHIP, SHUFFLE, Joins, run
from tagmatch_bench.spark.partitioning import Job
from tagmatch_bench.systems.catalogue import OURS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tagmatch.model.arrays import BoolArray
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

_SHARED, _EVERYWHERE = "a shared tag", "a tag of all queries"
_LONG_SET = 10_000

# One of so many sets is long, or has the tag that all queries have
_SETS_TO_A_LONG_ONE, _SETS_TO_ONE_WITH_THE_TAG = 20_000, 100
_CHECKED_SETS, _CHECKED_QUERIES = 20_000, 200


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
    """Times of the job and rates of the join for inputs with skew, beside those of the workload without.

    Raises
    ------
    TagMatchError
        The two indexes of the same sets differ.
    """
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
            _check(result, spark, name, change, Path(scratch, "checked"), options.seed, options.threads)
            changed = change(workload)
            job = Job.of(spark, Path(scratch, "job"), changed.sets, options.threads)
            found = alternate(job.works(), options.rounds)
            job.check()
            job.add_usage(result, name, len(changed.sets))
            for system, seconds in found.items():
                times.add(system, name, seconds)
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


def _check(
    result: Result,
    spark: SparkSession,
    name: str,
    change: Callable[[Workload], Workload],
    folder: Path,
    seed: int,
    threads: int,
) -> None:
    """Compare the answers of both strategies with those of brute force, with few sets."""
    workload = change(make_workload(_CHECKED_SETS, _CHECKED_QUERIES, seed, threads))
    joins, queries = Joins.prepare(spark, workload, folder, threads), len(workload.queries)
    keys = right_answers(workload.sets, workload.queries, threads=threads)
    right = Counter((query, key) for query, found in enumerate(keys) for key in found)
    for system in (SHIP, SHUFFLE):
        given = Counter((row.id, row.key) for row in joins.systems()[system](joins.first(queries)).collect())
        wrong, missing = (given - right).total(), (right - given).total()
        result.answers.append(
            Answers(f"{name}, {_CHECKED_SETS:,} sets", system, True, queries, given.total(), wrong, missing)
        )


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
    """Lists of strings, of which some have one more."""
    offsets = lists.offsets.to_numpy()
    values = pa.concat_arrays([lists.values, pa.array([tag])])
    places = np.insert(np.arange(offsets[0], offsets[-1]), (offsets[1:] - offsets[0])[which], len(lists.values))
    more = offsets - offsets[0] + np.concatenate([[0], np.cumsum(which)])
    return pa.ListArray.from_arrays(pa.array(more.astype(np.int32)), values.take(pa.array(places)))
