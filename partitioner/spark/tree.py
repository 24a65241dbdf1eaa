"""Algorithm 1 (§3.1) on sets in many files: the splits of nodes that are too large for one task.

In a pass over all signatures every task walks its sets down the splits so far and counts the bits of each node that is
still to be split. The driver sees a histogram of 192 counts a node, of every task where these are few, else added up by
tasks, and takes the pivots from them by the rule of the local partitioner.

A shard's sets are a sample of all sets, as they came there by hash. So the pivot of a shard's own part of a node is
mostly that of the node. A task goes on with it, and counts the bits of both halves, and of theirs. Where all tasks have
done so with the pivot that the driver then finds, it has the histograms of these, too, and one pass does for many
levels. Where some have not, the halves wait for the next pass.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, U64Array
from tagmatch.model.arrow import to_words
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.signature import SIGNATURE_BITS
from tagmatch.model.kernels.sorting import group_by
from tagmatch.partitioner.balanced_partitioning import Root, count_bits
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import Batches, for_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_U = np.uint64
_COUNTS = "node long, path string, sets long, counts array<long>"
# Some megabytes; to add up fewer by tasks takes longer than all else of a pass
_HISTOGRAMS_AT_ONCE = 4096
# Of the sets that a half must have to be split, in its part of a shard: the others have a little more, or less
_NEARLY = 0.9

#: By a node and a path below it: how many sets there are, and how many have each bit
_Counted: TypeAlias = dict[tuple[int, str], tuple[int, I64Array]]
_NONE = (0, np.zeros(SIGNATURE_BITS, np.int64))

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Node:
    """Sets that some splits leave together; `pivot` -1 if they are not split."""

    size: int
    root: Root
    pivot: int = -1
    zeros: int = -1
    ones: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Which node a signature comes to.

    Attributes
    ----------
    pivots : int64 array
        The bit by which each node is split; -1: it is not.
    children : int64[n, 2] array
        Nodes of the sets without and with that bit.
    """

    pivots: I64Array
    children: I64Array

    def nodes(self, signatures: U64Array) -> I64Array:
        """Node of each signature, uint64[n, 3]; -1 for signatures without a bit, which only the empty set has."""
        out = np.empty(len(signatures), np.int64)
        _walk(signatures, self.pivots, self.children, out)
        return out


@kernel
def _walk(signatures, pivots, children, out):
    for row in range(len(out)):
        node = 0
        if signatures[row, 0] | signatures[row, 1] | signatures[row, 2] == _U(0):
            node = -1
        while node >= 0 and pivots[node] >= 0:
            pivot = pivots[node]
            bit = (signatures[row, pivot >> 6] >> _U(63 - (pivot & 63))) & _U(1)
            node = children[node, np.int64(bit)]
        out[row] = node


@dataclass(slots=True, eq=False)
class Tree:
    """The nodes of Algorithm 1 down to those that one task can split further."""

    nodes: list[_Node] = field(default_factory=list)

    def splits(self) -> Splits:
        """Return how signatures come to nodes."""
        pivots = np.array([node.pivot for node in self.nodes], np.int64)
        children = np.array([(node.zeros, node.ones) for node in self.nodes], np.int64)
        return Splits(pivots, children.reshape(-1, 2))

    def leaves(self) -> list[int]:
        """Nodes that are not split, in the order of the rows: sets without the pivot come first."""
        found, waiting = [], [0]
        while waiting:
            node = self.nodes[number := waiting.pop()]
            if node.pivot >= 0:
                waiting += [node.ones, node.zeros]
            elif node.size:
                found.append(number)
        return found

    def split(self, number: int, counts: I64Array, max_partition_size: int) -> list[tuple[int, str]]:
        """Split a node, of whose bits these are the counts.

        Returns its halves, and the step of a path to each; none if it is a partition: the task that gets the node comes
        to the same end, and to the mask that belongs to it.
        """
        node = self.nodes[number]
        pivot = node.root.pivot(counts, node.size, max_partition_size)
        if pivot < 0:
            return []
        ones = int(counts[pivot])
        node.pivot, node.zeros, node.ones = pivot, len(self.nodes), len(self.nodes) + 1
        sizes = (node.size - ones, ones)
        self.nodes += [_Node(size, root) for size, root in zip(sizes, node.root.halves(pivot), strict=True)]
        return [*zip((node.zeros, node.ones), _steps(pivot), strict=True)]

    def split_below(self, number: int, counted: _Counted, max_partition_size: int, sets_per_task: int) -> list[int]:
        """Split a node and what comes of it, as far as all tasks have counted; returns what is still to be split."""
        left, waiting = list[int](), [(number, "")]
        while waiting:
            below, path = waiting.pop()
            sets, counts = counted.get((number, path), _NONE)
            if sets < self.nodes[below].size:
                left.append(below)  # some tasks did not come by: their own pivots were others, or their parts too small
                continue
            halves = self.split(below, counts, max_partition_size)
            waiting += [(half, path + step) for half, step in halves if self.nodes[half].size > sets_per_task]
        return left


def _steps(pivot: int) -> tuple[str, str]:
    """What paths say of going on with the sets without a pivot, and with those with it."""
    return f"{pivot}-", f"{pivot}+"


def grow_tree(
    spark: SparkSession, scratch: Scratch, shards: Sequence[int], sets: int, max_partition_size: int, sets_per_task: int
) -> Tree:
    """Split nodes until each has at most `sets_per_task` sets, or is a partition.

    Parameters
    ----------
    shards
        Numbers of the tables `ranked`, whose column `signatures` is read.
    sets : int
        How many there are, without the empty one.
    """
    tree = Tree([_Node(sets, Root())])
    passes, large = 0, [0] if sets > sets_per_task else []
    while large:
        most = _HISTOGRAMS_AT_ONCE // (len(shards) * len(large))
        wanted = {number: tree.nodes[number] for number in large}
        count = partial(_count, scratch, tree.splits(), wanted, sets_per_task, max(1, most))
        counted = for_each(spark, shards, count, _COUNTS)
        if not most:
            counted = counted.repartition("node").mapInArrow(_add_up, _COUNTS)
        sums = _sums(counted.toArrow().to_batches())
        large = [left for node in large for left in tree.split_below(node, sums, max_partition_size, sets_per_task)]
        passes += 1
        _log.info("pass %d: %d nodes, %d still to be split", passes, len(tree.nodes), len(large))
    return tree


def _count(
    scratch: Scratch, splits: Splits, wanted: dict[int, _Node], sets_per_task: int, most: int, shard: int
) -> Iterator[pa.RecordBatch]:
    """Count the bits of a shard's sets in each of the wanted nodes, and in `most - 1` others below each of them."""
    signatures = to_words(scratch.read("ranked", shard, "signatures"))
    nodes = splits.nodes(signatures)
    place = np.full(len(splits.pivots) + 1, len(wanted), np.uint32)  # the last is for -1
    place[[*wanted]] = np.arange(len(wanted), dtype=np.uint32)
    firsts, order = group_by(place[nodes], len(wanted) + 1)
    counted: _Counted = {}
    for i, (number, node) in enumerate(wanted.items()):
        own = signatures[order[firsts[i] : firsts[i + 1]]]
        enough = _NEARLY * sets_per_task * len(own) / node.size
        for path, sets, counts in islice(_count_below(own, node.root, enough), most):
            counted[number, path] = sets, counts
    yield _record(counted)


def _count_below(signatures: U64Array, root: Root, enough: float) -> Iterator[tuple[str, int, I64Array]]:
    """Count the bits of sets, then those of the halves with enough sets by the pivot of these sets, and of theirs.

    Gives the path to each, and how many sets there are; those that are near the root come first.
    """
    waiting = deque([("", signatures, root)])
    while waiting:
        path, some, root = waiting.popleft()
        counts = np.zeros(SIGNATURE_BITS, np.int64)
        count_bits(some, 0, len(some), counts)
        yield path, len(some), counts
        if (pivot := root.pivot(counts, len(some), 0)) >= 0:
            has_bit = some[:, pivot // 64] >> _U(63 - pivot % 64) & _U(1) != 0
            for step, chosen, half in zip(_steps(pivot), (~has_bit, has_bit), root.halves(pivot), strict=True):
                if np.count_nonzero(chosen) > enough:
                    waiting.append((path + step, some[chosen], half))


def _add_up(batches: Batches) -> Iterator[pa.RecordBatch]:
    if sums := _sums(batches):
        yield _record(sums)


def _sums(batches: Batches) -> _Counted:
    sums: _Counted = {}
    for batch in batches:
        histograms: I64Array = batch["counts"].flatten().to_numpy().reshape(-1, SIGNATURE_BITS)
        keys = zip(batch["node"].to_pylist(), batch["path"].to_pylist(), strict=True)
        for key, some, counts in zip(keys, batch["sets"].to_pylist(), histograms, strict=True):
            sets, sum_ = sums.get(key, _NONE)
            sums[key] = sets + some, sum_ + counts
    return sums


def _record(counted: _Counted) -> pa.RecordBatch:
    nodes, paths = zip(*counted, strict=True)
    sets, counts = zip(*counted.values(), strict=True)
    offsets = pa.array(np.arange(len(counted) + 1, dtype=np.int32) * SIGNATURE_BITS)
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(counts)))
    return pa.record_batch(
        [pa.array(nodes), pa.array(paths), pa.array(sets), lists], ["node", "path", "sets", "counts"]
    )
