"""Slices of the layout `balanced`: subtrees of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U64Array, offsets_of
from tagmatch.model.arrow import from_words, to_lists, to_numbers, to_words
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.balanced_partitioning import Root, balanced_partitions
from tagmatch.partitioner.spark.joined import Joined, JoinedTable
from tagmatch.partitioner.spark.plan import LaidOut, Plan, Slices
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tree import Splits, grow_tree

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

    def prepare(self, scratch: Scratch, shard: int, ranks: Lists) -> U64Array:  # noqa: ARG002
        """Leave signatures, made by the hashes that the shard itself has: they are near each other in memory."""
        of_shard = to_lists(scratch.read("shard", shard, "ranks"))
        signatures = signatures_of(of_shard, to_numbers(scratch.read("shard", shard, "hashes")))
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

    def lay_out(self, ranks: Lists, signatures: U64Array, options: LayoutOptions, root: Root | None) -> LaidOut:  # noqa: ARG002
        """Algorithm 1, from the root of the subtree on; the empty set is in no partition."""
        if root is None:
            none = {"masks": from_words(signatures[:0]), "ends": pa.array(np.zeros(0, np.int64))}
            return LaidOut(none, signatures, 0)
        partitions, order, signatures = balanced_partitions(signatures, 0, options.max_partition_size, root=root)
        masks, ends = from_words(partitions.masks), pa.array(partitions.first_rows[1:])
        return LaidOut({"masks": masks, "ends": ends}, signatures, len(partitions), order)

    def partitions(self, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:  # noqa: ARG002
        """As of `LayoutPlan`."""
        table = JoinedTable(scratch, "slice", slices.numbers)
        starts, kind = offsets_of(slices.groups), np.dtype(np.int64)
        firsts = Joined(kind, starts, partial(_first_rows, scratch, slices.numbers, offsets_of(slices.sets)))
        sizes = Joined(kind, starts, partial(_sizes, scratch, slices.numbers))
        file = table.file(
            "partitions",
            mask=table.words("masks", slices.groups),
            first_row=pa.array(table.array(firsts)),
            rows=pa.array(table.array(sizes)),
        )
        return file, int(starts[-1])


def _edges(scratch: Scratch, number: int) -> I64Array:
    """The rows of a slice with which its partitions begin, and how many rows there are."""
    return np.concatenate([np.zeros(1, np.int64), to_numbers(scratch.read("slice", number, "ends"))])


def _first_rows(scratch: Scratch, numbers: Sequence[int], bases: I64Array, run: int, first: int, last: int) -> I64Array:
    rows: I64Array = _edges(scratch, numbers[run])[first:last] + bases[run]
    return rows


def _sizes(scratch: Scratch, numbers: Sequence[int], run: int, first: int, last: int) -> I64Array:
    sizes: I64Array = np.diff(_edges(scratch, numbers[run]))[first:last]
    return sizes
