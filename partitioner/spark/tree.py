"""Algorithm 1 (§3.1) on sets in many files: the splits of nodes that are too large for one task.

A level is one pass over all signatures, in which every task walks its sets down the splits so far and counts the bits
of each node that is still to be split. The driver sees a histogram of 192 counts a node, of every task where these are
few, else added up by tasks, and takes the pivots from them by the rule of the local partitioner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, U64Array
from tagmatch.model.arrow import to_words
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.signature import SIGNATURE_BITS, SIGNATURE_WORDS
from tagmatch.model.kernels.sorting import group_by
from tagmatch.partitioner.balanced_partitioning import Root, choose_pivot, count_bits
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import Batches, for_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_U = np.uint64
_COUNTS = "node long, counts array<long>"
# Some megabytes; to add up fewer by tasks takes longer than all else of a level
_HISTOGRAMS_AT_ONCE = 4096

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

    def split(self, number: int, counts: I64Array, max_partition_size: int) -> list[int]:
        """Split a node, of whose bits these are the counts; returns its children, none if it is a partition."""
        node = self.nodes[number]
        mask, used = node.root.mask.copy(), node.root.used.copy()
        pivot = int(choose_pivot(counts, node.size, max_partition_size, mask, used))
        if pivot < 0:
            return []  # the task that gets the node comes to the same end, and to the mask that belongs to it
        bit = np.zeros(SIGNATURE_WORDS, np.uint64)
        bit[pivot // 64] = 1 << (63 - pivot % 64)
        ones = int(counts[pivot])
        node.pivot, node.zeros, node.ones = pivot, len(self.nodes), len(self.nodes) + 1
        self.nodes += [_Node(node.size - ones, Root(mask, used | bit)), _Node(ones, Root(mask | bit, used | bit))]
        return [node.zeros, node.ones]


def grow_tree(
    spark: SparkSession, scratch: Scratch, shards: Sequence[int], sets: int, max_partition_size: int, sets_per_task: int
) -> Tree:
    """Split nodes level by level until each has at most `sets_per_task` sets, or is a partition.

    Parameters
    ----------
    shards
        Numbers of the tables `ranked`, whose column `signatures` is read.
    sets : int
        How many there are, without the empty one.
    """
    tree = Tree([_Node(sets, Root())])
    level, large = 0, [0] if sets > sets_per_task else []
    while large:
        counted = for_each(spark, shards, partial(_count, scratch, tree.splits(), tuple(large)), _COUNTS)
        if len(shards) * len(large) > _HISTOGRAMS_AT_ONCE:
            counted = counted.repartition("node").mapInArrow(_add_up, _COUNTS)
        (sums,) = _add_up(counted.toArrow().to_batches())
        children = [
            child
            for node, counts in zip(sums["node"].to_pylist(), _histograms(sums), strict=True)
            for child in tree.split(node, counts, max_partition_size)
        ]
        level += 1
        _log.info("level %d: %d nodes of more than %d sets, %d halves", level, len(large), sets_per_task, len(children))
        large = [child for child in children if tree.nodes[child].size > sets_per_task]
    return tree


def _count(scratch: Scratch, splits: Splits, wanted: tuple[int, ...], shard: int) -> Iterator[pa.RecordBatch]:
    """Count the bits of a shard's sets in each of the wanted nodes."""
    signatures = to_words(scratch.read("ranked", shard, "signatures"))
    nodes = splits.nodes(signatures)
    place = np.full(len(splits.pivots) + 1, len(wanted), np.uint32)  # the last is for -1
    place[list(wanted)] = np.arange(len(wanted), dtype=np.uint32)
    firsts, order = group_by(place[nodes], len(wanted) + 1)
    grouped = signatures[order[: firsts[len(wanted)]]]
    counts = np.zeros((len(wanted), SIGNATURE_BITS), np.int64)
    for i in range(len(wanted)):
        count_bits(grouped, firsts[i], firsts[i + 1], counts[i])
    yield _counted(np.array(wanted, np.int64), counts)


def _add_up(batches: Batches) -> Iterator[pa.RecordBatch]:
    sums: dict[int, I64Array] = {}
    for batch in batches:
        for node, some in zip(batch["node"].to_pylist(), _histograms(batch), strict=True):
            sums[node] = sums.get(node, 0) + some
    if sums:
        yield _counted(np.array(list(sums), np.int64), np.array(list(sums.values())))


def _histograms(counted: pa.RecordBatch) -> I64Array:
    """The counts of each row, int64[n, 192]."""
    counts: I64Array = counted["counts"].flatten().to_numpy().reshape(-1, SIGNATURE_BITS)
    return counts


def _counted(nodes: I64Array, counts: I64Array) -> pa.RecordBatch:
    offsets = pa.array(np.arange(len(nodes) + 1, dtype=np.int32) * SIGNATURE_BITS)
    lists = pa.ListArray.from_arrays(offsets, pa.array(counts.reshape(-1)))
    return pa.record_batch([pa.array(nodes), lists], ["node", "counts"])
