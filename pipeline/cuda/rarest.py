"""Stage 2, subset match, of the `rarest` layout on the device: one thread for each tag of each query."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.cpu.rarest import second_ranks
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import grid, to_device
from tagmatch.pipeline.cuda.pairs import REJECTED, append
from tagmatch.pipeline.cuda.preprocess import DeviceQueries
from tagmatch.pipeline.rules.clusters import NO_RANK, next_candidates
from tagmatch.pipeline.rules.verify import contains_ranks

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 128
# Ranks by which clusters are searched; what is left then is scanned
_DEEPEST = 12
_PATH = _DEEPEST + 1


@kernel
def _query_bits(queries, offsets, counts, ranks, bits):
    """One bit for each rank modulo 64: most rows are turned away by their second rank. Sets of one tag must pass."""
    i = cuda.grid(1)
    if i < queries:
        found = _U(1) << (_U(NO_RANK) & _U(63))
        for at in range(offsets[i], offsets[i] + counts[i]):
            found |= _U(1) << (_U(ranks[at]) & _U(63))
        bits[i] = found


@kernel
def _match(
    places, offsets, counts, query_ranks, owners, bits,
    row_offsets, ranks, seconds, first_rows,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """Append the sets whose rarest tag stands at one place of a query and whose others come after it."""
    place = cuda.grid(1)
    if place >= places:
        return
    query = owners[place]
    begin = offsets[query]
    last = begin + counts[query]
    if place >= last:
        return
    rank = query_ranks[place]
    path = cuda.local.array((_PATH, 3), np.int64)
    path[1, 0], path[1, 1], path[1, 2] = first_rows[rank], first_rows[rank + np.uint32(1)], place + 1 - begin
    depth = 1
    rejected = 0
    while depth > 0:
        row, end, depth = next_candidates(row_offsets, ranks, seconds, query_ranks[begin:last], path, depth)
        for candidate in range(row, end):
            if (bits[query] >> (_U(seconds[candidate]) & _U(63))) & _U(1) == _U(0):
                continue
            if contains_ranks(
                query_ranks, place + 1, last, ranks, row_offsets[candidate] + 1, row_offsets[candidate + 1]
            ):
                append(query, candidate, pair_queries, pair_sets, counters)
            else:
                rejected += 1
    if rejected:
        cuda.atomic.add(counters, REJECTED, rejected)


class CudaRarest:
    """Subset match over a snapshot in the `rarest` layout, in device memory."""

    #: The interpreter is as busy as the device: six threads on two are half as fast as three on one
    per_device = False
    match_batches = None

    def __init__(self, segment: Segment) -> None:
        assert isinstance(segment.partitions, ClusterTable)
        ranks = segment.tagsets.ranks
        tables = (ranks.offsets, ranks.values, second_ranks(segment), segment.partitions.first_rows)
        self._tables = tuple(map(to_device, tables))
        self.nbytes = sum(table.nbytes for table in self._tables)

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> CudaRarest:  # noqa: ARG003 - compares tags in any case
        """The subset match of a segment."""
        return cls(segment)

    def launch(self, queries: DeviceQueries, *results: Any) -> None:
        """Append the matches of all queries to `results`, as `pairs.append` takes them."""
        if not queries.places:
            return
        stream = queries.workspace.stream
        bits = queries.workspace.device("bits", np.uint64, queries.count)
        arrays = (queries.offsets, queries.counts, queries.ranks)
        _query_bits[(*grid(queries.count, _BLOCK), stream)](queries.count, *arrays, bits)
        _match[(*grid(queries.places, _BLOCK), stream)](
            queries.places, *arrays, queries.owners, bits, *self._tables, *results
        )
