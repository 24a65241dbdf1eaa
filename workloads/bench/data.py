"""What the benchmarks run on: distinct stored sets and queries that extend them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from partitioner.sorting import group_by
from tagmatch.columns import tag_lists
from tagmatch.kernels.jit import kernel
from tagmatch.kernels.xxh64 import hash_strings
from tagmatch.parallel import even_ranges, run, run_rows
from workloads.queries import Extender, QueryOptions, StoredSets
from workloads.queries.stored import SAMPLE_SETS
from workloads.twitter import Twitter, TwitterOptions

if TYPE_CHECKING:
    from tagmatch.arrays import BoolArray, I64Array, U64Array

# Rows that are generated at once, with their duplicates: about 100 bytes each
_MOST_ROWS = 1 << 26

_ROWS_PER_CHUNK = 1 << 20

# Leading bits of numbers by which they are grouped, so that several threads can work on them
_GROUP_BITS = 10
_GROUPS = 1 << _GROUP_BITS


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
    """Generate the first `sets` distinct sets of the Twitter-like workload; queries extend them or a sample of them."""
    distinct = distinct_sets(TwitterOptions(seed=seed), sets, threads=threads)
    every = -(-len(distinct) // SAMPLE_SETS)
    some = (batch.take(pa.array(np.arange(0, len(batch), every))) for batch in distinct.to_batches())
    return Workload(distinct, extend(pa.Table.from_batches(some), queries, 2, 4, seed, threads=threads))


def extend(
    sets: pa.Table, queries: int, min_extra: int, max_extra: int, seed: int, *, threads: int = 1
) -> pa.ListArray:
    """Make queries of sets, each with some tags more, drawn in proportion to their frequency in the sets."""
    stored = StoredSets.learn(sets["tags"].chunks, sample=len(sets), threads=threads)
    return Extender(stored, QueryOptions(seed, min_extra, max_extra)).queries(0, queries, threads=threads)


def distinct_sets(options: TwitterOptions, count: int, *, threads: int = 1) -> pa.Table:
    """Generate the first `count` distinct sets, each with its first key: columns `tags` and `key`."""
    model, seen = Twitter(options), _Seen()
    taken: list[pa.Table] = []
    users, found, new_share = 0, 0, 1.0
    while found < count:
        # Some more than it takes, as the more sets there are, the fewer rows are new
        rows = min(_MOST_ROWS, 1.1 * (count - found) / new_share)
        more = 1 + round(rows / options.mean_followed)
        fresh = pa.Table.from_batches(model.sets(users, users + more, threads=threads).to_batches())
        new = seen.add(np.concatenate(run(_sums, fresh["tags"].chunks, threads)), threads=threads)
        taken += _rows_of(fresh, new, threads)
        found += len(new)
        new_share = max(1, len(new)) / len(fresh)
        users += more
    return pa.concat_tables(taken)[:count]


class _Seen:
    """The numbers seen so far, which are as good as random: hash tables, one for each value of their first bits."""

    def __init__(self) -> None:
        self._count = 0
        self._tables = np.zeros((_GROUPS, 1), np.uint64)

    def add(self, numbers: U64Array, *, threads: int = 1) -> I64Array:
        """See more numbers; returns, in order, the places of those that were not seen before."""
        # About half full, and with room for a group that is larger than others
        slots = 1 << (2 * (self._count + len(numbers)) // _GROUPS + 64).bit_length()
        if slots > self._tables.shape[1]:
            tables = np.zeros((_GROUPS, slots), np.uint64)
            _place(tables, self._tables[self._tables != 0], threads)
            self._tables = tables
        new = np.flatnonzero(_place(self._tables, numbers, threads))
        self._count += len(new)
        return new


def _place(tables: U64Array, numbers: U64Array, threads: int) -> BoolArray:
    """Add numbers to the tables of their groups; returns which of them are new."""
    labels = (numbers >> np.uint64(64 - _GROUP_BITS)).astype(np.uint32)
    starts, order = group_by(labels, _GROUPS, threads=threads)
    new = np.zeros(len(numbers), np.bool_)

    def work(first: int, last: int) -> None:
        for group in range(first, last):
            _add(numbers, order[starts[group] : starts[group + 1]], tables[group], new)

    run_rows(work, even_ranges(_GROUPS, 4 * threads), threads)
    return new


@kernel
def _add(numbers, places, table, new):
    """Add numbers to a hash table whose free slots hold zero, which stands for no number of a set."""
    last_slot = np.uint64(len(table) - 1)
    for place in places:
        number = numbers[place]
        slot = number & last_slot
        while table[slot] != number and table[slot] != np.uint64(0):
            slot = (slot + np.uint64(1)) & last_slot
        if table[slot] != number:
            table[slot] = number
            new[place] = True


def _rows_of(table: pa.Table, rows: I64Array, threads: int) -> list[pa.Table]:
    """Take rows, in parts of one chunk each."""
    edges = [*range(0, len(table), _ROWS_PER_CHUNK), len(table)]
    wanted = np.split(rows, np.searchsorted(rows, edges[1:-1]))

    def take(part: tuple[int, I64Array]) -> pa.Table:
        first, some = part
        return table[first : first + _ROWS_PER_CHUNK].combine_chunks().take(pa.array(some - first))

    return run(take, zip(edges[:-1], wanted, strict=True), threads)


def _sums(sets: pa.ListArray) -> U64Array:
    """Return a number for each set that depends on its tags only; no set is empty."""
    (rows,) = tag_lists(sets, "tags")
    sums: U64Array = np.add.reduceat(hash_strings(rows.tags), rows.offsets[:-1])
    return np.maximum(sums, np.uint64(1))
