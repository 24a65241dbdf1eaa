"""The layout `balanced`: partitions with a mask each, as Algorithm 1 makes them, in which sets come by signature."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, U64Array, UIntArray
from tagmatch.model.arrow import from_words, to_numbers, to_words
from tagmatch.model.invariants import fail, first_out_of_order, require
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import compare_to, count_firsts
from tagmatch.model.kernels.signature import SIGNATURE_WORDS, contains, signatures_of
from tagmatch.model.layouts.rules import Implementations
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import PartitionTable, Segment


class Balanced:
    """See `Rules`."""

    table = PartitionTable
    compares_tags = False
    implementations = Implementations(
        lay_out="tagmatch.partitioner.local:by_signature",
        plan="tagmatch.partitioner.spark.subtrees:BalancedPlan",
        subset_match="tagmatch.pipeline.cpu.balanced:BalancedSubsetMatch.of",
        cuda="tagmatch.pipeline.cuda.balanced:CudaBalanced.of",
    )

    def same_tables(self, one: LayoutOptions, other: LayoutOptions) -> bool:
        """As of `Rules`."""
        return one == other

    def no_signatures(self) -> U64Array:
        """As of `Rules`."""
        return np.zeros((0, SIGNATURE_WORDS), np.uint64)

    def no_partitions(self) -> PartitionTable:
        """As of `Rules`."""
        return PartitionTable(self.no_signatures(), np.zeros(1, np.int64))

    def to_arrow(self, table: PartitionTable) -> dict[str, pa.Array]:
        """As of `Rules`."""
        return {
            "mask": from_words(table.masks),
            "first_row": pa.array(table.first_rows[:-1]),
            "rows": pa.array(np.diff(table.first_rows)),
        }

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> PartitionTable:
        """As of `Rules`."""
        return PartitionTable(to_words(columns["mask"]), np.append(to_numbers(columns["first_row"]), sets))

    def of_rows(self, table: PartitionTable, edges: IntArray) -> PartitionTable:
        """As of `Rules`."""
        used = np.flatnonzero(np.diff(edges))
        return PartitionTable(table.masks[used], np.append(edges[used], edges[-1]))

    def sets_by_rarest_tag(self, segment: Segment) -> I64Array:
        """As of `Rules`."""
        return count_firsts(segment.tagsets.ranks, len(segment.vocabulary))

    def saying_rarest_tags(self, segment: Segment) -> tuple[IntArray | UIntArray, ...]:
        """As of `Rules`."""
        return segment.tagsets.ranks.offsets, segment.tagsets.ranks.values

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        """As of `Rules`."""
        rows = np.empty(len(sets), np.int64)
        table, ranks, signatures = segment.partitions, segment.tagsets.ranks, segment.tagsets.signatures
        assert isinstance(table, PartitionTable)
        assert signatures is not None
        _find_rows(
            signatures, ranks.offsets, ranks.values, table.masks, table.first_rows,
            signatures_of(sets, segment.vocabulary.hashes), sets.offsets, sets.values, rows,
        )  # fmt: skip
        return rows

    def check(self, segment: Segment) -> None:
        """As of `Rules`."""
        tagsets, table, max_size = segment.tagsets, segment.partitions, segment.options.max_partition_size
        assert isinstance(table, PartitionTable)
        name = "partition table"
        first_rows, masks = table.first_rows, table.masks
        if len(first_rows) != len(masks) + 1 or masks.shape != (len(masks), SIGNATURE_WORDS):
            fail(name, None, "columns differ in length")
        if first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
            fail(name, None, "partitions do not span the tagset table")
        sizes = np.diff(first_rows)
        require(sizes > 0, name, "partition without sets")
        require((masks != 0).any(axis=1), name, "mask is empty")
        signatures = tagsets.signatures
        if signatures is None:
            fail("tagset table", None, "has no signatures")
        row = _first_without_mask(signatures, masks, first_rows)
        if row >= 0:
            fail("tagset table", row, "signature lacks a bit of its partition's mask")
        ranks = tagsets.ranks
        for partition, (first, last) in enumerate(zip(first_rows[:-1].tolist(), first_rows[1:].tolist(), strict=True)):
            row = first_out_of_order(signatures, ranks.offsets, ranks.values, first, last)
            if row >= 0:
                fail("tagset table", row, "is not after the row before it in signature order")
            if last - first > max_size and (signatures[first] != signatures[last - 1]).any():
                fail(name, partition, f"has {last - first} sets, more than {max_size}, and their signatures differ")


@kernel
def _first_without_mask(signatures, masks, first_rows):
    for partition in range(len(masks)):
        for row in range(first_rows[partition], first_rows[partition + 1]):
            for w in range(SIGNATURE_WORDS):
                if masks[partition, w] & ~signatures[row, w] != np.uint64(0):
                    return row
    return -1


@kernel
def _is_before(signatures, offsets, values, row, signature, set_ranks, first, last):
    """Whether a row is before a set by signature, and by ranks where the signatures are equal."""
    for w in range(SIGNATURE_WORDS):
        if signatures[row, w] != signature[w]:
            return signatures[row, w] < signature[w]
    return compare_to(offsets, values, row, set_ranks, first, last) < 0


@kernel
def _find_rows(signatures, offsets, values, masks, first_rows, set_signatures, set_offsets, set_ranks, rows):
    """Binary search for each set in the partitions whose mask its signature contains; the empty set is row 0."""
    for i in range(len(rows)):
        first, last = set_offsets[i], set_offsets[i + 1]
        rows[i] = 0 if first == last and first_rows[0] > 0 else -1
        for partition in range(len(masks) if first < last else 0):
            if not contains(set_signatures[i], masks[partition]):
                continue
            low, end = first_rows[partition], first_rows[partition + 1]
            high = end
            while low < high:
                middle = (low + high) // 2
                if _is_before(signatures, offsets, values, middle, set_signatures[i], set_ranks, first, last):
                    low = middle + 1
                else:
                    high = middle
            if low < end and compare_to(offsets, values, low, set_ranks, first, last) == 0:
                rows[i] = low
                break
