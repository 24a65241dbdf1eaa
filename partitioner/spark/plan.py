"""How sets are divided into slices, consecutive ranges of the tagset table: what each layout has to say of it.

Algorithm 1 (§3.1) on sets in many files: the splits of nodes that are too large for one task.

In a pass over all signatures every task walks its sets down the splits so far and counts the bits of each node that is
still to be split. The driver sees a histogram of 192 counts a node, of every task where these are few, else added up by
tasks, and takes the pivots from them by the rule of the local partitioner.

A shard's sets are a sample of all sets, as they came there by hash. So the pivot of a shard's own part of a node is
mostly that of the node. A task goes on with it, and counts the bits of both halves, and of theirs. Where all tasks have
done so with the pivot that the driver then finds, it has the histograms of these, too, and one pass does for many
levels. Where some have not, the halves wait for the next pass.

Slices of the layout `balanced`: subtrees of Algorithm 1.

Slices of the layout `rarest`: ranges of the order of rank lists.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U32Array, U64Array, narrow_offsets, offsets_of
from tagmatch.model.arrow import from_words, to_lists, to_numbers, to_words
from tagmatch.model.kernels.hashing import SIGNATURE_BITS, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import group_by
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.balanced_partitioning import Root, balanced_partitions, count_bits
from tagmatch.partitioner.spark.batches import Batches, Scratch, for_each
from tagmatch.partitioner.spark.joined import Joined, JoinedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SliceRoutes(Protocol):
    """To which slice each set belongs."""

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The slices of a job."""

    routes: SliceRoutes
    slices: int  # How many there are
    # Of slices that are subtrees of Algorithm 1, where each begins
    roots: dict[int, Root] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """What a layout says of the sets of a slice."""

    columns: dict[str, pa.Array]  # What the slice has beside sets and keys: its partitions or clusters
    signatures: U64Array  # uint64[n, 3] array: of the sets, in their order
    groups: int  # How many of these there are
    order: U32Array | None = None  # In which the sets are to come; `None`: as they do
    first_tag: int = -1  # Of clusters, ranks of their tags; -1 where there is none
    last_tag: int = -1


class Slices:
    """Numbers of slices in order, and what each has."""

    def __init__(self, rows: Sequence[Any]) -> None:
        def of_each(name: str) -> I64Array:
            return np.array([row[name] for row in rows], np.int64)

        self.numbers = of_each("slice").tolist()
        self.sets, self.empty, self.ranks, self.keys = map(of_each, ("sets", "empty", "ranks", "keys"))
        self.groups, self.first_tags, self.last_tags = map(of_each, ("groups", "first_tag", "last_tag"))
        self.greatest_key = max((int(row.greatest_key) for row in rows), default=0)
        self.some_expire = any(row.some_expire for row in rows)


class LayoutPlan(Protocol):
    """What a layout has to say."""

    def prepare(self, scratch: Scratch, shard: int, ranks: Lists) -> U64Array:
        """Leave what a shard's sets are routed by; returns words, uint64[n, 2], that `plan` gets of all shards."""

    def plan(
        self,
        spark: SparkSession,
        scratch: Scratch,
        shards: Sequence[int],
        ranked: Sequence[Any],
        options: LayoutOptions,
        sets_per_task: int,
    ) -> Plan:
        """Divide the sets; `ranked` has rows (`shard`, `sets`, `empty`, `first`, `second`)."""

    def lay_out(self, ranks: Lists, signatures: U64Array, options: LayoutOptions, root: Root | None) -> LaidOut:
        """Lay out the sets of a slice, which come in the order of their ranks."""

    def partitions(self, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:
        """The table of partitions, or clusters, of all slices, and how many there are."""


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
    """Which node a signature comes to."""

    pivots: I64Array  # The bit by which each node is split; -1: it is not
    children: I64Array  # int64[n, 2] array: nodes of the sets without and with that bit

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
    """Split nodes until each has at most `sets_per_task` sets, or is a partition."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Subtrees:
    """Slices of the layout `balanced`: the empty set, then the nodes of the tree that are not split."""

    splits: Splits
    places: I64Array  # Slice of each node; one more, for the empty set

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
        """See `LayoutPlan`."""
        table = JoinedTable(scratch, "slice", slices.numbers)
        starts, kind = offsets_of(slices.groups), np.dtype(np.int64)
        firsts = Joined(kind, starts, partial(_first_rows_of_slice, scratch, slices.numbers, offsets_of(slices.sets)))
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


def _first_rows_of_slice(
    scratch: Scratch, numbers: Sequence[int], bases: I64Array, run: int, first: int, last: int
) -> I64Array:
    rows: I64Array = _edges(scratch, numbers[run])[first:last] + bases[run]
    return rows


def _sizes(scratch: Scratch, numbers: Sequence[int], run: int, first: int, last: int) -> I64Array:
    sizes: I64Array = np.diff(_edges(scratch, numbers[run]))[first:last]
    return sizes


# Sets of a shard from which the bounds of ranges are taken
_SAMPLE = 256
_LONGEST_FIRST_RANKS = 4


@dataclass(frozen=True, slots=True, eq=False)
class RankRanges:
    """Slices of the layout `rarest`: slice `i` begins with the first set whose first four ranks are `bounds[i - 1]`."""

    # uint64[slices - 1, 2] array: the first two words, as `first_words` gives them, in lexicographic order
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
        """See `LayoutPlan`."""
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
        rows = Joined(kind, np.array([0, tags + 1]), partial(_first_rows_of_ranks, scratch, slices))
        array = table.array(rows)
        filled = np.flatnonzero(slices.groups)
        # A cluster may begin in one slice and end in another
        shared = np.count_nonzero(slices.first_tags[filled][1:] == slices.last_tags[filled][:-1])
        return table.file("partitions", first_row=pa.array(array)), int(slices.groups.sum()) - int(shared)


def _first_rows_of_ranks(scratch: Scratch, slices: Slices, _: int, first: int, last: int) -> I64Array:
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
