"""What the benchmarks run on: distinct stored sets and queries that extend them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tagmatch.columns import tag_lists
from tagmatch.kernels.xxh64 import hash_strings
from workloads import twitter

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.arrays import I64Array


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
    options = twitter.TwitterOptions(seed=seed)
    rows = sets + sets // 8
    while True:
        generated = twitter.sets(options, 0, rows, threads=threads)
        distinct = _first_of_each(generated["tags"].combine_chunks(), threads)[:sets]
        if len(distinct) == sets:
            break
        rows += rows // 8 + 1
    options = replace(options, stored=int(distinct[-1]) + 1)
    asked = twitter.queries(options, 0, queries, threads=threads)
    return Workload(generated.take(distinct), asked["tags"].combine_chunks())


def _first_of_each(sets: pa.ListArray, threads: int) -> I64Array:
    """Return the first row of each distinct set, ascending; no set may be empty or hold a tag twice."""
    (rows,) = tag_lists(sets, "tags")
    sums = np.add.reduceat(hash_strings(rows.tags, threads=threads), rows.offsets[:-1])
    return np.sort(np.unique(sums, return_index=True)[1])
