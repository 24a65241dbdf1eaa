"""Slices of the layout `rarest`: ranges of the order of rank lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U64Array, narrow_offsets
from tagmatch.model.arrow import to_lists, to_numbers
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.balanced_partitioning import Root
from tagmatch.partitioner.spark.joined import Joined, JoinedTable
from tagmatch.partitioner.spark.plan import LaidOut, Plan, Slices
from tagmatch.partitioner.spark.scratch import Scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Sets of a shard from which the bounds of ranges are taken
_SAMPLE = 256
_LONGEST_FIRST_RANKS = 4


@dataclass(frozen=True, slots=True, eq=False)
class RankRanges:
    """Slices of the layout `rarest`: slice `i` begins with the first set whose first four ranks are `bounds[i - 1]`.

    Attributes
    ----------
    bounds : uint64[slices - 1, 2] array
        The first two words, as `first_words` gives them, in lexicographic order.
    """

    bounds: U64Array

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""
        words = first_words(to_lists(scratch.read("ranked", shard, "ranks")))
        out = np.empty(len(words), np.int64)
        _search(words, self.bounds, out)
        return out


@kernel
def _first_words(offsets, ranks, out):
    """Pack the first four ranks, plus one so that 0 stands for the end, into two words that compare as lists do."""
    for row in range(len(out)):
        out[row, 0] = out[row, 1] = np.uint64(0)
        for i in range(min(_LONGEST_FIRST_RANKS, offsets[row + 1] - offsets[row])):
            shift = np.uint64(32 * (1 - (i & 1)))
            out[row, i >> 1] |= (np.uint64(ranks[offsets[row] + i]) + np.uint64(1)) << shift


def first_words(ranks: Lists) -> U64Array:
    """Return two words of each set, uint64[n, 2], whose order is that of the lists as far as four ranks tell."""
    out = np.empty((len(ranks), 2), np.uint64)
    _first_words(ranks.offsets, ranks.values, out)
    return out


@kernel
def _search(words, bounds, out):
    """Count the bounds that are not after each row of words."""
    for row in range(len(words)):
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) >> 1
            a, b = bounds[middle, 0], bounds[middle, 1]
            if a < words[row, 0] or (a == words[row, 0] and b <= words[row, 1]):
                low = middle + 1
            else:
                high = middle
        out[row] = low


def _bounds(ranked: Sequence[Any], slices: int) -> U64Array:
    """First words at which to begin slices so that they are about as large, judged by some sets of each shard."""
    words = np.array([pair for shard in ranked for pair in zip(shard.first, shard.second, strict=True)], np.int64)
    words = words.reshape(-1, 2).view(np.uint64)
    words = words[np.lexsort((words[:, 1], words[:, 0]))]
    edges = np.linspace(0, len(words), slices + 1)[1:-1].astype(np.int64)
    return np.unique(words[edges], axis=0)


class RarestPlan:
    """See `LayoutPlan`."""

    def prepare(self, scratch: Scratch, shard: int, ranks: Lists) -> U64Array:  # noqa: ARG002
        """First words of some sets."""
        words = first_words(ranks)
        return words[np.linspace(0, len(words), min(_SAMPLE, len(words)), endpoint=False).astype(np.int64)]

    def plan(
        self,
        spark: SparkSession,  # noqa: ARG002
        scratch: Scratch,  # noqa: ARG002
        shards: Sequence[int],  # noqa: ARG002
        ranked: Sequence[Any],
        options: LayoutOptions,  # noqa: ARG002
        sets_per_task: int,
    ) -> Plan:
        """As of `LayoutPlan`."""
        bounds = _bounds(ranked, -(-sum(shard.sets for shard in ranked) // sets_per_task))
        return Plan(RankRanges(bounds), len(bounds) + 1)

    def lay_out(self, ranks: Lists, signatures: U64Array, options: LayoutOptions, root: Root | None) -> LaidOut:  # noqa: ARG002
        """Sets stay in the order of their ranks; `ends` are the rows of the slice behind each of its clusters."""
        firsts = ranks.values[ranks.offsets[:-1][np.diff(ranks.offsets) > 0]]
        tags, counts = np.unique(firsts, return_counts=True)
        ends = len(ranks) - len(firsts) + np.cumsum(counts)
        first, last = (int(tags[0]), int(tags[-1])) if len(tags) else (-1, -1)
        columns = {"tags": pa.array(tags), "ends": pa.array(ends)}
        return LaidOut(columns, signatures, len(tags), first_tag=first, last_tag=last)

    def partitions(self, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:
        """A row for each tag: how many sets have none, or a rarer one; and one more for all."""
        table = JoinedTable(scratch, "slice", slices.numbers)
        sets = int(slices.sets.sum())
        kind = narrow_offsets(np.array([sets])).dtype
        rows = Joined(kind, np.array([0, tags + 1]), partial(_first_rows, scratch, slices))
        array = table.array(rows)
        filled = np.flatnonzero(slices.groups)
        # A cluster may begin in one slice and end in another
        shared = np.count_nonzero(slices.first_tags[filled][1:] == slices.last_tags[filled][:-1])
        return table.file("partitions", first_row=pa.array(array)), int(slices.groups.sum()) - int(shared)


def _first_rows(scratch: Scratch, slices: Slices, _: int, first: int, last: int) -> I64Array:
    """How many sets have no tag, or one that is rarer, for the tags with ranks `first` to `last`."""
    rows = np.zeros(last - first, np.int64)
    before = slices.last_tags < first
    rows[0] = slices.sets[before].sum() + slices.empty[~before].sum()
    for place in np.flatnonzero(~before & (slices.first_tags < last)).tolist():
        number = slices.numbers[place]
        tags, ends = (to_numbers(scratch.read("slice", number, column)) for column in ("tags", "ends"))
        counts = np.diff(ends, prepend=slices.empty[place])
        begin, end = np.searchsorted(tags, [first, last - 1])
        rows[0] += counts[:begin].sum()
        rows[tags[begin:end].astype(np.int64) - first + 1] += counts[begin:end]
    total: I64Array = np.cumsum(rows)
    return total
