"""Slices of the layout `rarest`: ranges of the order of rank lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U64Array, narrow_offsets, offsets_of
from tagmatch.model.arrow import to_lists
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import count_firsts
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import ClusterTable, TagsetTable
from tagmatch.partitioner.spark.plan import Plan, Slices
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

    def partitions(self, scratch: Scratch, slices: Slices, tagsets: TagsetTable, tags: int) -> ClusterTable:  # noqa: ARG002
        """Sets come by their first ranks, after the empty set."""
        return ClusterTable(narrow_offsets(int(tagsets.has_empty_set) + offsets_of(count_firsts(tagsets.ranks, tags))))
