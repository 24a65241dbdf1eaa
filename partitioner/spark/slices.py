"""Slices, consecutive ranges of the tagset table: sets come together there, one task lays out each; then their files.

Slices of the layout `rarest` are ranges of the order of rank lists, those of `balanced` are subtrees of Algorithm 1
(§3.1). Its nodes that are too large for one task are split by histograms: in a pass over all signatures every task
counts the bits of its sets in each such node, and the driver takes the pivots by the rule of the local partitioner.

A shard's sets are a sample of all sets, as they came there by hash. So the pivot of a shard's own part of a node is
mostly that of the node. A task goes on with it, and counts the bits of both halves, and of theirs. Where all tasks have
done so with the pivot that the driver then finds, one pass does for many levels. Else the halves wait for the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U32Array, U64Array, narrow_offsets, offsets_of
from tagmatch.model.arrow import from_lists, from_words, to_lists, to_numbers, to_words
from tagmatch.model.kernels.hashing import SIGNATURE_BITS, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather, group_by, sort_groups
from tagmatch.model.layouts import implementations_of
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.tables import TableFile, segment_entry
from tagmatch.model.tables import KeyTable
from tagmatch.partitioner.balanced_partitioning import Root, balanced_partitions, count_bits
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    Scratch,
    by_number,
    for_each,
    in_groups,
    labels_for,
    lists_of,
    one_row,
)
from tagmatch.partitioner.spark.records import Records
from tagmatch.partitioner.spark.tables import Job, JoinedTable, ShardTags, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANKED = "shard long, sets long, empty long, sample binary"

# Of each slice, and how many it has; the greatest key as the `long` with the same bits, and 1 if keys may expire; of
# clusters, the ranks of the first tag and the last one, else -1
_OF_SLICES = (
    "slice", "sets", "empty", "ranks", "keys", "greatest_key", "expiring", "groups", "first_tag", "last_tag"
)  # fmt: skip

#: The values of `_OF_SLICES`, an array of each by its name, with the slices in order
Slices: TypeAlias = dict[str, I64Array]

#: How a layout arranges the sets of a slice: their new order, `None` if it is the old one; their
#: signatures, in that order; the columns of the slice's partitions or clusters, with `rows`, the number in each
LaidOut: TypeAlias = tuple[U32Array | None, U64Array, dict[str, pa.Array]]


def lay_out_slices(spark: SparkSession, job: Job, shards: Sequence[int], tags: ShardTags) -> Slices:
    """Leave each slice in the scratch folder."""
    kind: type[Plan] = resolve_name(implementations_of(job.layout).plan)
    ranked = tags.for_shards(spark, shards, partial(_rank, kind, tags), _RANKED).collect()
    plan = kind.of(spark, job, ranked)
    labels = labels_for(spark, len(plan))[0]
    routed = for_each(spark, shards, partial(_route, job, tags, plan, labels), SERIALIZED)
    schema = ", ".join(f"{name} long" for name in _OF_SLICES)
    laid_out = by_number(routed, len(plan), partial(_lay_out, job, tags, plan), schema)
    rows = sorted(laid_out.collect(), key=lambda row: row.slice)
    return {name: np.array([row[name] for row in rows], np.int64) for name in _OF_SLICES}


def _rank(kind: type[Plan], tags: ShardTags, shard: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave a shard's sets as ranks and, if need be, their signatures, made by the hashes that the shard itself has."""
    ranks, read = tags.rank_sets(shard, batches), partial(tags.scratch.read, "shard", shard)
    columns = {"ranks": from_lists(ranks)}
    if kind.by_signatures or not tags.maps_hashes:
        signatures = signatures_of(to_lists(read("ranks")), to_numbers(read("hashes")))
        columns["signatures"] = from_words(signatures)
    tags.scratch.write("ranked", shard, **columns)
    yield one_row(shard=shard, sets=len(ranks), empty=_empty(ranks), sample=kind.sample(ranks))


def _empty(ranks: Lists) -> int:
    return int(np.count_nonzero(ranks.lengths() == 0))


def _route(job: Job, tags: ShardTags, plan: Plan, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send each set of a shard, and its keys, to the slice that it belongs to."""
    # Large lists, as those of many shards come together
    ranks, table = job.scratch.read("ranked", shard, "ranks"), job.as_numbers(shard)
    columns = {"ranks": ranks, "keys": from_lists(table.keys)}
    if table.expires is not None:
        columns["expires"] = lists_of(table.keys.offsets, pa.array(table.expires))
    columns = {name: lists.cast(pa.large_list(lists.type.value_type)) for name, lists in columns.items()}
    if not tags.maps_hashes:
        columns["signatures"] = job.scratch.read("ranked", shard, "signatures")
    firsts, order = group_by(plan.slices(job.scratch, shard).astype(np.uint32), len(labels))
    return in_groups(firsts, labels, np.arange(len(labels)), pa.record_batch(columns).take(pa.array(order)))


def _lay_out(
    job: Job, tags: ShardTags, plan: Plan, number: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Order the sets of one slice and leave them in the scratch folder."""
    lists = pa.concat_batches(list(batches)).columns
    words = None if tags.maps_hashes else lists.pop()
    ranks, numbers, *times = map(to_lists, lists)
    table = KeyTable(numbers, expires=times[0].values.view(np.int64) if times else None)
    order: U32Array = np.arange(len(ranks), dtype=np.uint32)
    sort_groups((ranks.offsets, ranks.values), order, np.array([0, len(order)]))
    ranks, table = gather(ranks, order), table.of_sets(order)
    signatures = signatures_of(ranks, tags.hashes()) if words is None else to_words(words)[order]
    again, signatures, columns = plan.lay_out(number, ranks, signatures)
    if again is not None:
        ranks, table = gather(ranks, again), table.of_sets(again)
    job.scratch.write(
        "slice", number, ranks=from_lists(ranks), **job.columns(table), signatures=from_words(signatures), **columns
    )
    values, firsts = table.keys.values, columns.get("tags", ())
    yield one_row(
        slice=number,
        sets=len(ranks),
        empty=_empty(ranks),
        ranks=len(ranks.values),
        keys=len(values),
        greatest_key=values.max(initial=0).astype(np.uint64).view(np.int64),
        expiring=int(table.expires is not None),
        groups=len(columns["rows"]),
        first_tag=firsts[0].as_py() if len(firsts) else -1,
        last_tag=firsts[-1].as_py() if len(firsts) else -1,
    )


def write_slices(spark: SparkSession, job: Job, slices: Slices, tags: ShardTags, records: Records) -> tuple[int, Entry]:
    """Leave a segment's files in the scratch folder; returns how many partitions, and what manifests say."""
    kind: type[Plan] = resolve_name(implementations_of(job.layout).plan)
    table, sets = JoinedTable(job.scratch, "slice", slices["slice"].tolist()), slices["sets"]
    signatures, ranks = table.words("signatures", sets), table.lists("ranks", sets, slices["ranks"], np.uint32)
    files = [table.file("tagsets", signature=signatures, ranks=ranks)]
    greatest = slices["greatest_key"].view(np.uint64).max(initial=0)
    kind_of_keys = np.uint32 if greatest < 2**32 else np.uint64
    numbers = table.lists("keys", sets, slices["keys"], kind_of_keys)
    files.append(table.file("keys", keys=numbers))
    if slices["expiring"].any():
        files.append(table.file("expires", expires=table.numbers("expires", slices["keys"], np.int64)))
    partitions, count = kind.partitions(table, job.scratch, slices, tags.count)
    of_tagsets, of_keys, *of_times, of_partitions = write_files(spark, job.scratch, [*files, partitions])
    of_records = records.write(spark, job, slices["slice"].tolist(), kind_of_keys)
    entries: dict[str, Entry] = {}
    # In the order of `tables_of`
    for some in (tags.files, of_tagsets, of_keys, job.names or {}, *of_times, of_records, of_partitions):
        entries |= some
    return count, segment_entry(entries, int(sets.sum()), tags.count, 0) | tags.kinds


# -- the layout `rarest` -----------------------------------------------------------------------------------------------

# Sets of a shard from which the bounds of ranges are taken
_SAMPLE = 256
_LONGEST_FIRST_RANKS, _FIRST_RANKS = 4, "S16"


@dataclass(frozen=True, slots=True, eq=False)
class RankRanges:
    """Slices of the layout `rarest`: slice `i` begins with the first set whose first four ranks are `bounds[i - 1]`."""

    bounds: npt.NDArray[np.bytes_]  # As `_first_ranks_of` gives them, ascending
    by_signatures: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.bounds) + 1

    @staticmethod
    def sample(ranks: Lists) -> bytes:
        """The first ranks of some sets of a shard; those of all shards are what slices are found by."""
        firsts = _first_ranks_of(ranks)
        return firsts[np.linspace(0, len(firsts), min(_SAMPLE, len(firsts)), endpoint=False).astype(np.int64)].tobytes()

    @classmethod
    def of(cls, spark: SparkSession, job: Job, ranked: Sequence[Any]) -> RankRanges:  # noqa: ARG003
        """Find slices that are about as large, given rows of all shards: `_RANKED`."""
        firsts = np.sort(np.frombuffer(b"".join(shard.sample for shard in ranked), _FIRST_RANKS))
        slices = -(-sum(shard.sets for shard in ranked) // job.sets_per_task)
        return cls(np.unique(firsts[np.linspace(0, len(firsts), slices + 1)[1:-1].astype(np.int64)]))

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""
        return self.bounds.searchsorted(_first_ranks_of(to_lists(scratch.read("ranked", shard, "ranks"))), "right")

    def lay_out(self, number: int, ranks: Lists, signatures: U64Array) -> LaidOut:  # noqa: ARG002
        """Sets stay in the order of their ranks."""
        tags, counts = np.unique(ranks.values[ranks.offsets[:-1][np.diff(ranks.offsets) > 0]], return_counts=True)
        return None, signatures, {"tags": pa.array(tags), "rows": pa.array(counts)}

    @staticmethod
    def partitions(table: JoinedTable, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:
        """A row for each tag: how many sets have none, or a rarer one; and one more for all."""
        kind = narrow_offsets(np.array([slices["sets"].sum()])).dtype
        first_rows = table.array(kind, [tags + 1], partial(_first_rows_of_ranks, scratch, slices))
        filled = np.flatnonzero(slices["groups"])
        # A cluster may begin in one slice and end in another
        shared = np.count_nonzero(slices["first_tag"][filled][1:] == slices["last_tag"][filled][:-1])
        return table.file("partitions", first_row=pa.array(first_rows)), int(slices["groups"].sum() - shared)


@kernel
def _first_words(offsets, ranks, out):
    """Pack the first four ranks, plus one so that 0 marks the end, into two words that compare as lists do."""
    for row in range(len(out)):
        out[row, 0] = out[row, 1] = np.uint64(0)
        for i in range(min(_LONGEST_FIRST_RANKS, offsets[row + 1] - offsets[row])):
            shift = np.uint64(32 * (1 - (i & 1)))
            out[row, i >> 1] |= (np.uint64(ranks[offsets[row] + i]) + np.uint64(1)) << shift


def _first_ranks_of(ranks: Lists) -> npt.NDArray[np.bytes_]:
    """Bytes of each set, whose order is that of the lists as far as four ranks tell."""
    words = np.empty((len(ranks), 2), np.uint64)
    _first_words(ranks.offsets, ranks.values, words)
    return words.astype(">u8").view(_FIRST_RANKS).reshape(-1)


def _first_rows_of_ranks(scratch: Scratch, slices: Slices, _: int, first: int, last: int) -> I64Array:
    """How many sets have no tag, or one that is rarer, for the tags with ranks `first` to `last`."""
    rows = np.zeros(last - first, np.int64)
    before = slices["last_tag"] < first
    rows[0] = slices["sets"][before].sum() + slices["empty"][~before].sum()
    for number in slices["slice"][~before & (slices["first_tag"] < last)].tolist():
        tags, counts = (to_numbers(scratch.read("slice", number, column)) for column in ("tags", "rows"))
        begin, end = np.searchsorted(tags, [first, last - 1])
        rows[0] += counts[:begin].sum()
        rows[tags[begin:end].astype(np.int64) - first + 1] += counts[begin:end]
    total: I64Array = np.cumsum(rows)
    return total


# -- the layout `balanced` ---------------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True, eq=False)
class Subtrees:
    """Slices of the layout `balanced`: the empty set, then the nodes of the tree that are not split."""

    by_signatures: ClassVar[bool] = True
    splits: Splits
    places: I64Array  # slice of each node; one more, for the empty set
    roots: tuple[Root, ...]  # where each slice after the first begins
    max_partition_size: int

    def __len__(self) -> int:
        return len(self.roots) + 1

    @staticmethod
    def sample(ranks: Lists) -> bytes:  # noqa: ARG004
        """Nothing: slices are found by signatures."""
        return b""

    @classmethod
    def of(cls, spark: SparkSession, job: Job, ranked: Sequence[Any]) -> Subtrees:
        """Grow the tree, given rows of all shards: `_RANKED`."""
        sets, shards = sum(shard.sets - shard.empty for shard in ranked), [shard.shard for shard in ranked]
        tree = grow_tree(spark, job, shards, sets)
        leaves = tree.leaves()
        places = np.zeros(len(tree.nodes) + 1, np.int64)
        places[leaves] = np.arange(1, len(leaves) + 1)
        return cls(
            tree.splits(), places, tuple(tree.nodes[leaf].root for leaf in leaves), job.layout.max_partition_size
        )

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""
        slices: I64Array = self.places[nodes_of(to_words(scratch.read("ranked", shard, "signatures")), self.splits)]
        return slices

    def lay_out(self, number: int, ranks: Lists, signatures: U64Array) -> LaidOut:  # noqa: ARG002
        """Algorithm 1, from the root of the subtree on; the empty set is in no partition."""
        order, masks, first_rows = None, signatures[:0], np.zeros(1, np.int64)
        if number:
            root = self.roots[number - 1]
            table, order, signatures = balanced_partitions(signatures, 0, self.max_partition_size, root=root)
            masks, first_rows = table.masks, table.first_rows
        rows = pa.array(np.diff(first_rows))
        return order, signatures, {"masks": from_words(masks), "first_rows": pa.array(first_rows[:-1]), "rows": rows}

    @staticmethod
    def partitions(table: JoinedTable, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:  # noqa: ARG004
        """The partitions of all slices, and how many there are."""
        groups = slices["groups"]
        file = table.file(
            "partitions",
            mask=table.words("masks", groups),
            first_row=table.numbers("first_rows", groups, np.int64, offsets_of(slices["sets"])),
            rows=table.numbers("rows", groups, np.int64),
        )
        return file, int(groups.sum())


#: How each layout divides sets into slices, and what it makes of a slice
Plan: TypeAlias = RankRanges | Subtrees


@dataclass(slots=True, eq=False)
class _Node:
    """Sets that some splits leave together; `pivot` -1 if they are not split."""

    size: int
    root: Root
    pivot: int = -1
    zeros: int = -1  # the node of the sets without the pivot; the next one has those with it


#: Which node a signature comes to: the bit by which each node is split, -1 if it is not, and, int64[n, 2], the nodes of
#: the sets without and with that bit
Splits: TypeAlias = tuple[I64Array, I64Array]


def nodes_of(signatures: U64Array, splits: Splits) -> I64Array:
    """Node of each signature, uint64[n, 3]; -1 for signatures without a bit, which only the empty set has."""
    out = np.empty(len(signatures), np.int64)
    _walk(signatures, *splits, out)
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


class Tree:
    """The nodes of Algorithm 1 down to those that one task can split further."""

    def __init__(self, sets: int, max_partition_size: int, sets_per_task: int) -> None:
        self.nodes = [_Node(sets, Root())]
        self._max_partition_size, self._sets_per_task = max_partition_size, sets_per_task

    def splits(self) -> Splits:
        """How signatures come to nodes."""
        pivots = np.array([node.pivot for node in self.nodes], np.int64)
        return pivots, np.array([(node.zeros, node.zeros + 1) for node in self.nodes], np.int64)

    def leaves(self) -> list[int]:
        """Nodes that are not split, in the order of the rows: sets without the pivot come first."""
        found, waiting = [], [0]
        while waiting:
            node = self.nodes[number := waiting.pop()]
            if node.pivot >= 0:
                waiting += [node.zeros + 1, node.zeros]
            elif node.size:
                found.append(number)
        return found

    def split_below(self, number: int, counted: _Counted) -> list[int]:
        """Split a node and its descendants, as far as all tasks have counted; returns the nodes still to split."""
        left, waiting = list[int](), [(number, "")]
        while waiting:
            below, path = waiting.pop()
            node, (sets, counts) = self.nodes[below], counted.get((number, path), _NONE)
            if sets < node.size:
                left.append(below)  # some tasks did not come by: their own pivots were others, or their parts too small
                continue
            pivot = node.root.pivot(counts, node.size, self._max_partition_size)
            if pivot < 0:  # a partition: the task that gets the node comes to the same end, and to the node's mask
                continue
            node.pivot, node.zeros = pivot, len(self.nodes)
            sizes = (node.size - int(counts[pivot]), int(counts[pivot]))
            for half, step, size, root in zip(range(2), _steps(pivot), sizes, node.root.halves(pivot), strict=True):
                self.nodes.append(_Node(size, root))
                if size > self._sets_per_task:
                    waiting.append((node.zeros + half, path + step))
        return left


def _steps(pivot: int) -> tuple[str, str]:
    """What paths say of going on with the sets without a pivot, and with those with it."""
    return f"{pivot}-", f"{pivot}+"


def grow_tree(spark: SparkSession, job: Job, shards: Sequence[int], sets: int) -> Tree:
    """Split nodes until each has at most `sets_per_task` sets, or is a partition."""
    sets_per_task = job.sets_per_task
    tree = Tree(sets, job.layout.max_partition_size, sets_per_task)
    passes, large = 0, [0] if sets > sets_per_task else []
    while large:
        most = _HISTOGRAMS_AT_ONCE // (len(shards) * len(large))
        wanted = {number: tree.nodes[number] for number in large}
        count = partial(_count, job.scratch, tree.splits(), wanted, sets_per_task, max(1, most))
        counted = for_each(spark, shards, count, _COUNTS)
        if not most:
            counted = counted.repartition("node").mapInArrow(_add_up, _COUNTS)
        sums = _sums(counted.toArrow().to_batches())
        large = [left for node in large for left in tree.split_below(node, sums)]
        passes += 1
        _log.info("pass %d: %d nodes, %d still to be split", passes, len(tree.nodes), len(large))
    return tree


def _count(
    scratch: Scratch, splits: Splits, wanted: dict[int, _Node], sets_per_task: int, most: int, shard: int
) -> Iterator[pa.RecordBatch]:
    """Count the bits of a shard's sets in each of the wanted nodes, and in `most - 1` others below each of them."""
    signatures = to_words(scratch.read("ranked", shard, "signatures"))
    nodes = nodes_of(signatures, splits)
    place = np.full(len(splits[0]) + 1, len(wanted), np.uint32)  # the last is for -1
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
    """Give paths, sets and counts of bits: of all sets, then of the halves by their pivot, and of theirs."""
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
    columns = [*zip(*counted, strict=True), *zip(*counted.values(), strict=True)]
    return pa.record_batch([*map(pa.array, columns)], ["node", "path", "sets", "counts"])
