"""The layout `rarest`: sets by their ranks, rarest tag first; those that share their rarest tag are a cluster."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists
from tagmatch.model.arrow import to_numbers
from tagmatch.model.invariants import fail, first_out_of_order, require
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import compare_to
from tagmatch.model.layouts.rules import Implementations
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import ClusterTable, Segment


class Rarest:
    """See `Rules`."""

    table = ClusterTable
    compares_tags = True
    implementations = Implementations(
        lay_out="tagmatch.partitioner.local:by_rarest_tag",
        plan="tagmatch.partitioner.spark.rank_ranges:RarestPlan",
        subset_match="tagmatch.pipeline.cpu.rarest:RarestSubsetMatch.of",
        cuda="tagmatch.pipeline.cuda.rarest:CudaRarest.of",
    )

    def same_tables(self, one: LayoutOptions, other: LayoutOptions) -> bool:  # noqa: ARG002 - sizes make no difference
        """As of `Rules`."""
        return True

    def no_signatures(self) -> None:
        """As of `Rules`."""
        return

    def no_partitions(self) -> ClusterTable:
        """As of `Rules`."""
        return ClusterTable(np.zeros(1, np.int32))

    def to_arrow(self, table: ClusterTable) -> dict[str, pa.Array]:
        """As of `Rules`."""
        return {"first_row": pa.array(table.first_rows)}

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> ClusterTable:  # noqa: ARG002
        """As of `Rules`."""
        return ClusterTable(to_numbers(columns["first_row"]))

    def of_rows(self, table: ClusterTable, edges: IntArray) -> ClusterTable:
        """As of `Rules`."""
        return ClusterTable(edges.astype(table.first_rows.dtype))

    def sets_by_rarest_tag(self, segment: Segment) -> I64Array:
        """As of `Rules`."""
        return np.diff(segment.partitions.first_rows).astype(np.int64)

    def saying_rarest_tags(self, segment: Segment) -> tuple[IntArray, ...]:
        """As of `Rules`."""
        return (segment.partitions.first_rows,)

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        """As of `Rules`."""
        rows = np.empty(len(sets), np.int64)
        ranks = segment.tagsets.ranks
        _find_rows(ranks.offsets, ranks.values, segment.partitions.first_rows, sets.offsets, sets.values, rows)
        return rows

    def check(self, segment: Segment) -> None:
        """As of `Rules`."""
        tagsets, table, tags = segment.tagsets, segment.partitions, len(segment.vocabulary)
        name = "partition table"
        first_rows, ranks = table.first_rows, tagsets.ranks
        if len(first_rows) != tags + 1 or first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
            fail(name, None, "clusters do not span the tagset table")
        require(np.diff(first_rows) >= 0, name, "first rows descend")
        rarest = ranks.values[ranks.offsets[first_rows[0] : -1]]
        expected = np.repeat(np.arange(tags, dtype=np.uint32), np.diff(first_rows))
        require(rarest == expected, "tagset table", "set is not in the cluster of its rarest tag", int(first_rows[0]))
        row = first_out_of_order(np.zeros((len(tagsets), 0), np.uint64), ranks.offsets, ranks.values, 0, len(tagsets))
        if row >= 0:
            fail("tagset table", row, "is not after the row before it in rank order")


@kernel
def _find_rows(offsets, values, first_rows, set_offsets, set_ranks, rows):
    """Binary search for each set in the cluster of its rarest tag; the empty set can only be row 0."""
    for i in range(len(rows)):
        first, last = set_offsets[i], set_offsets[i + 1]
        if first == last:
            rows[i] = 0 if first_rows[0] > 0 else -1
            continue
        low, end = first_rows[set_ranks[first]], first_rows[set_ranks[first] + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if compare_to(offsets, values, middle, set_ranks, first, last) < 0:
                low = middle + 1
            else:
                high = middle
        found = low < end and compare_to(offsets, values, low, set_ranks, first, last) == 0
        rows[i] = low if found else -1
