"""Step 3: sets come together in parts, consecutive ranges of the tagset table, and each part is laid out by one task.

A part is a range of the order of rank lists in the layout `rarest`, a subtree of Algorithm 1 in `balanced`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U32Array, U64Array
from tagmatch.model.arrow import from_lists, from_words, to_lists, to_words
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.signature import SIGNATURE_WORDS, signatures_of
from tagmatch.model.kernels.sorting import sort_groups
from tagmatch.model.options import LayoutOptions
from tagmatch.partitioner.balanced import Root, balanced_partitions
from tagmatch.partitioner.spark.packs import PACKS, Packer, by_number, labels_for
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import for_each, one_row
from tagmatch.partitioner.spark.tree import Splits, grow_tree
from tagmatch.partitioner.spark.vocabulary import rank_sets, vocabulary_hashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANKED = "shard long, sets long, empty long, first array<long>, second array<long>"
_PART = "part long, sets long, keys long, greatest_key string"

# Sets of a shard from which the bounds of ranges are taken
_SAMPLE = 256
_LONGEST_FIRST_RANKS = 4


class Routes(Protocol):
    """To which part each set belongs."""

    def parts(self, scratch: Scratch, shard: int) -> I64Array:
        """Part of each set of a shard."""


@dataclass(frozen=True, slots=True, eq=False)
class RankRanges:
    """Parts of the layout `rarest`: part `i` begins with the first set whose first four ranks are `bounds[i - 1]`.

    Attributes
    ----------
    bounds : uint64[parts - 1, 2] array
        The first two words, as `first_words` gives them, in lexicographic order.
    """

    bounds: U64Array

    def parts(self, scratch: Scratch, shard: int) -> I64Array:
        """Part of each set of a shard."""
        words = first_words(to_lists(scratch.read("ranked", shard, "ranks")))
        out = np.empty(len(words), np.int64)
        _search(words, self.bounds, out)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Subtrees:
    """Parts of the layout `balanced`: the empty set, then the nodes of the tree that are not split.

    Attributes
    ----------
    splits : Splits
    places : int64 array
        Part of each node; one more, for the empty set.
    """

    splits: Splits
    places: I64Array

    def parts(self, scratch: Scratch, shard: int) -> I64Array:
        """Part of each set of a shard."""
        signatures = to_words(scratch.read("ranked", shard, "signatures"))
        parts: I64Array = self.places[self.splits.nodes(signatures)]
        return parts


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


def lay_out_parts(
    spark: SparkSession,
    scratch: Scratch,
    shards: Sequence[int],
    options: LayoutOptions,
    sets_per_task: int,
) -> list[Any]:
    """Leave each part in the scratch folder; returns rows (`part`, `sets`, `keys`, `greatest_key`) in order."""
    ranked = for_each(spark, shards, partial(_rank, scratch, options), _RANKED).collect()
    sets = sum(shard.sets for shard in ranked)
    routes: Routes
    roots: dict[int, Root] = {}
    if options.layout == "rarest":
        bounds = _bounds(ranked, -(-sets // sets_per_task))
        routes, parts = RankRanges(bounds), len(bounds) + 1
    else:
        empty = sum(shard.empty for shard in ranked)
        tree = grow_tree(spark, scratch, shards, sets - empty, options.max_partition_size, sets_per_task)
        leaves = tree.leaves()
        places = np.zeros(len(tree.nodes) + 1, np.int64)
        places[leaves] = np.arange(1, len(leaves) + 1)
        routes, parts = Subtrees(tree.splits(), places), len(leaves) + 1
        roots = {part: tree.nodes[leaf].root for part, leaf in enumerate(leaves, 1)}
    routed = for_each(spark, shards, partial(_route, scratch, routes, labels_for(spark, parts)[0]), PACKS)
    laid_out = by_number(routed, parts, partial(_lay_out, scratch, options, roots), _PART)
    return sorted(laid_out.collect(), key=lambda row: row.part)


def _rank(scratch: Scratch, options: LayoutOptions, shard: int) -> Iterator[pa.RecordBatch]:
    """Leave a shard's sets as ranks; with signatures for Algorithm 1, else first words of some sets are told."""
    ranks = rank_sets(scratch, shard)
    scratch.write("ranked", shard, ranks=from_lists(ranks))
    words = np.zeros((0, 2), np.uint64)
    if options.layout == "balanced":
        signatures = signatures_of(ranks, vocabulary_hashes(scratch))
        scratch.write("ranked", shard, signatures=from_words(signatures))
    else:
        words = first_words(ranks)
        words = words[np.linspace(0, len(words), min(_SAMPLE, len(words)), endpoint=False).astype(np.int64)]
    first, second = (np.ascontiguousarray(words[:, i]).view(np.int64) for i in range(2))
    empty = int(np.count_nonzero(ranks.lengths() == 0))
    yield one_row(shard=shard, sets=len(ranks), empty=empty, first=first, second=second)


def _bounds(ranked: list[Any], parts: int) -> U64Array:
    """First words at which to begin parts so that they are about as large, judged by some sets of each shard."""
    words = np.array([pair for shard in ranked for pair in zip(shard.first, shard.second, strict=True)], np.int64)
    words = words.reshape(-1, 2).view(np.uint64)
    words = words[np.lexsort((words[:, 1], words[:, 0]))]
    edges = np.linspace(0, len(words), parts + 1)[1:-1].astype(np.int64)
    return np.unique(words[edges], axis=0)


def _route(scratch: Scratch, routes: Routes, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send each set of a shard, and its keys, to the part that it belongs to."""
    # Large lists, as those of many shards come together, and keys of 64 bits, as some shards have such
    ranks = scratch.read("ranked", shard, "ranks").cast(pa.large_list(pa.uint32()))
    keys = scratch.read("shard", shard, "keys").cast(pa.large_list(pa.uint64()))
    records = pa.record_batch([ranks, keys], ["ranks", "keys"])
    packer = Packer()
    packer.scatter(routes.parts(scratch, shard).astype(np.uint32), labels, np.arange(len(labels)), records.take)
    yield from packer.take()


def _lay_out(
    scratch: Scratch, options: LayoutOptions, roots: dict[int, Root], part: int, packs: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Order the sets of one part and leave them in the scratch folder."""
    ranks, keys = map(to_lists, pa.concat_batches(list(packs)).columns)
    root = roots.get(part)
    order: U32Array = np.arange(len(ranks), dtype=np.uint32)
    sort_groups((ranks.offsets, ranks.values), order, np.array([0, len(order)]))
    ranks, keys = gather(ranks, order), gather(keys, order)
    signatures = signatures_of(ranks, vocabulary_hashes(scratch))
    masks, ends = np.zeros((0, SIGNATURE_WORDS), np.uint64), np.zeros(0, np.int64)
    if root is not None:
        partitions, order, signatures = balanced_partitions(signatures, 0, options.max_partition_size, root=root)
        ranks, keys = gather(ranks, order), gather(keys, order)
        masks, ends = partitions.masks, partitions.first_rows[1:]
    scratch.write(
        "part",
        part,
        ranks=from_lists(ranks),
        keys=from_lists(keys),
        signatures=from_words(signatures),
        masks=from_words(masks),
        ends=pa.array(ends),
    )
    greatest = int(keys.values.max()) if len(keys.values) else 0
    yield one_row(part=part, sets=len(ranks), keys=len(keys.values), greatest_key=str(greatest))
