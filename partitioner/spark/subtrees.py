"""Slices of the layout `balanced`: subtrees of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U64Array
from tagmatch.model.arrow import from_words, to_numbers, to_words
from tagmatch.model.kernels.signature import SIGNATURE_WORDS, signatures_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import PartitionTable, TagsetTable
from tagmatch.partitioner.spark.plan import Plan, Slices
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tree import Splits, grow_tree
from tagmatch.partitioner.spark.vocabulary import vocabulary_hashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, eq=False)
class Subtrees:
    """Slices of the layout `balanced`: the empty set, then the nodes of the tree that are not split.

    Attributes
    ----------
    splits : Splits
    places : int64 array
        Slice of each node; one more, for the empty set.
    """

    splits: Splits
    places: I64Array

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""
        signatures = to_words(scratch.read("ranked", shard, "signatures"))
        slices: I64Array = self.places[self.splits.nodes(signatures)]
        return slices


class BalancedPlan:
    """See `LayoutPlan`."""

    def prepare(self, scratch: Scratch, shard: int, ranks: Lists) -> U64Array:
        """Leave signatures."""
        signatures = signatures_of(ranks, vocabulary_hashes(scratch))
        scratch.write("ranked", shard, signatures=from_words(signatures))
        return np.zeros((0, 2), np.uint64)

    def plan(
        self,
        spark: SparkSession,
        scratch: Scratch,
        shards: Sequence[int],
        ranked: Sequence[Any],
        options: LayoutOptions,
        sets_per_task: int,
    ) -> Plan:
        """The empty set is the first slice."""
        sets = sum(shard.sets - shard.empty for shard in ranked)
        tree = grow_tree(spark, scratch, shards, sets, options.max_partition_size, sets_per_task)
        leaves = tree.leaves()
        places = np.zeros(len(tree.nodes) + 1, np.int64)
        places[leaves] = np.arange(1, len(leaves) + 1)
        roots = {number: tree.nodes[leaf].root for number, leaf in enumerate(leaves, 1)}
        return Plan(Subtrees(tree.splits(), places), len(leaves) + 1, roots)

    def partitions(self, scratch: Scratch, slices: Slices, tagsets: TagsetTable, tags: int) -> PartitionTable:  # noqa: ARG002
        """As of `LayoutPlan`."""
        masks, ends, row = [np.zeros((0, SIGNATURE_WORDS), np.uint64)], [], 0
        first = 0
        for number, sets in zip(slices.numbers, slices.sets, strict=True):
            masks.append(to_words(scratch.read("slice", number, "masks")))
            found = to_numbers(scratch.read("slice", number, "ends"))
            if len(found) == 0:  # the empty set, which is in no partition
                first = sets
            ends.append(found + row)
            row += sets
        return PartitionTable(np.concatenate(masks), np.concatenate([np.array([first], np.int64), *ends]))
