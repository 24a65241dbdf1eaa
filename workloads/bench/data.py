"""What the benchmarks run on: distinct stored sets and queries that extend them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.columns import tag_lists
from tagmatch.kernels.xxh64 import hash_strings
from tagmatch.parallel import run
from workloads.queries import Extender, QueryOptions, StoredSets
from workloads.twitter import Twitter, TwitterOptions

if TYPE_CHECKING:
    from tagmatch.arrays import U64Array


@dataclass(frozen=True, slots=True)
class Workload:
    """Stored sets and queries.

    Attributes
    ----------
    sets : pyarrow.Table
        Columns `tags` and `key`. No set occurs twice, so each has one key: what is measured is matching, not
        the copying of the thousands of keys that the most popular sets would have.
    queries : pyarrow.ListArray
        Lists of strings.
    """

    sets: pa.Table
    queries: pa.ListArray


def make_workload(sets: int, queries: int, seed: int, threads: int) -> Workload:
    """Generate the first `sets` distinct sets of the Twitter-like workload, and queries that extend them."""
    distinct = distinct_sets(TwitterOptions(seed=seed), sets, threads=threads)
    return Workload(distinct, extend(distinct, queries, 2, 4, seed, threads=threads))


def extend(
    sets: pa.Table, queries: int, min_extra: int, max_extra: int, seed: int, *, threads: int = 1
) -> pa.ListArray:
    """Make queries of sets, each with some tags more, drawn in proportion to their frequency in the sets."""
    stored = StoredSets.learn(sets["tags"].chunks, sample=len(sets), threads=threads)
    return Extender(stored, QueryOptions(seed, min_extra, max_extra)).queries(0, queries, threads=threads)


def distinct_sets(options: TwitterOptions, count: int, *, threads: int = 1) -> pa.Table:
    """Generate the first `count` distinct sets, each with its first key: columns `tags` and `key`."""
    model = Twitter(options)
    batches: list[pa.RecordBatch] = []
    sums: list[U64Array] = []
    users, more = 0, 1 + round(1.1 * count / options.mean_followed)
    while True:
        fresh = model.sets(users, users + more, threads=threads).to_batches()
        batches += fresh
        sums += run(_sums, fresh, threads)
        first = np.unique(np.concatenate(sums), return_index=True)[1]
        if len(first) >= count:
            break
        users += more
        more = 1 + int(users * ((count / len(first)) ** 1.5 - 1))  # the more rows, the fewer of them are new
    starts = np.cumsum([0, *map(len, batches)])
    rows = np.split(np.sort(first)[:count], np.searchsorted(np.sort(first)[:count], starts[1:-1]))
    taken = [batch.take(pa.array(kept - start)) for batch, kept, start in zip(batches, rows, starts, strict=False)]
    return pa.Table.from_batches(taken)


def _sums(batch: pa.RecordBatch) -> U64Array:
    """Return a number for each set that depends on its tags only; no set is empty."""
    (rows,) = tag_lists(batch["tags"], "tags")
    sums: U64Array = np.add.reduceat(hash_strings(rows.tags), rows.offsets[:-1])
    return sums
