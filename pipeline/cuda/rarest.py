"""Stage 2, subset match, of the `rarest` layout on the device: one thread for each tag of each query.

Where the sets with each second-rarest tag are in the large clusters of the `rarest` layout: a hash table.

A thread that searches a cluster of thousands of rows waits for memory at each step of a binary search, and the other
threads of its warp wait for it. Here it waits once.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.cuda.device import grid, inlined, kernel, to_device
from tagmatch.pipeline.cuda.pairs import REJECTED, DeviceQueries, append, append_all, keep
from tagmatch.pipeline.rarest import second_ranks
from tagmatch.pipeline.rules import NO_RANK, SCAN_ROWS, contains_ranks, next_candidates, seek_row

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 128

# Of a slot that nothing is in; no tag is a set's rarest and second-rarest, so no pair of ranks is this
_FREE = _U(0)
# About 2**64 divided by the golden ratio, and odd: the high bits of products are those that are spread best
_SPREAD = _U(0x9E3779B97F4A7C15)


@inlined
def _pair(first, second):
    return (_U(first) << _U(32)) | _U(second)


@inlined
def is_large(rank, first_rows):
    """Whether the cluster of a rarest tag is one that the table is about."""
    return first_rows[rank + np.uint32(1)] - first_rows[rank] > SCAN_ROWS


@inlined
def find_subcluster(first, second, slots, shift):
    """Rows, `(begin, end)`, of a large cluster's sets with this second-rarest tag."""
    wanted = _pair(first, second)
    at = (wanted * _SPREAD) >> shift
    while slots[at, 0] != _FREE and slots[at, 0] != wanted:
        at = (at + _U(1)) & _U(len(slots) - 1)
    rows = slots[at, 1]
    return np.int64(rows >> _U(32)), np.int64(rows & _U(0xFFFFFFFF))


@inlined
def _begins(row, offsets, ranks, seconds, first_rows):
    """Whether a row is the first of a subcluster of a large cluster."""
    if offsets[row] == offsets[row + 1] or seconds[row] == NO_RANK:
        return False
    first = ranks[offsets[row]]
    same = row > first_rows[first] and seconds[row - 1] == seconds[row]
    return is_large(first, first_rows) and not same


@kernel
def _count(offsets, ranks, seconds, first_rows, counted):
    row = cuda.grid(1)
    if row < len(seconds) and _begins(row, offsets, ranks, seconds, first_rows):
        cuda.atomic.add(counted, 0, 1)


@kernel
def _fill(offsets, ranks, seconds, first_rows, slots, shift):
    row = cuda.grid(1)
    if row < len(seconds) and _begins(row, offsets, ranks, seconds, first_rows):
        first, second = ranks[offsets[row]], seconds[row]
        end = seek_row(offsets, ranks, seconds, row, first_rows[first + np.uint32(1)], 1, second + np.uint32(1))
        pair = _pair(first, second)
        at = (pair * _SPREAD) >> shift
        while cuda.atomic.cas(slots, (at, 0), _FREE, pair) != _FREE:
            at = (at + _U(1)) & _U(len(slots) - 1)
        slots[at, 1] = (_U(row) << _U(32)) | _U(end)


class Subclusters:
    """The hash table, in device memory."""

    def __init__(self, rows: int, *tables: Any) -> None:
        counted = to_device(np.zeros(1, np.int64))
        if rows:
            _count[grid(rows, _BLOCK)](*tables, counted)
        bits = max(1, (2 * int(counted.copy_to_host()[0])).bit_length())
        slots = to_device(np.zeros((1 << bits, 2), np.uint64))
        self.table = slots, np.uint64(64 - bits)
        if rows:
            _fill[grid(rows, _BLOCK)](*tables, *self.table)
        self.nbytes = int(slots.nbytes)


# Ranks by which clusters are searched; what is left then is scanned
_DEEPEST = 12
_PATH = _DEEPEST + 1
# Candidates that wait for verification; a block of queries of tweets has some 300
_STAGE = 1024


@kernel
def _query_bits(queries, offsets, counts, ranks, bits):
    """One bit for each rank modulo 64: most rows are turned away by their second rank. Sets of one tag must pass."""
    i = cuda.grid(1)
    if i < queries:
        found = _U(1) << (_U(NO_RANK) & _U(63))
        for at in range(offsets[i], offsets[i] + counts[i]):
            found |= _U(1) << (_U(ranks[at]) & _U(63))
        bits[i] = found


@inlined
def _contained(query, place, row, offsets, counts, query_ranks, row_offsets, ranks):
    """Whether what comes after the rarest tag of a row is in a query, from a place of the query on."""
    last = offsets[query] + counts[query]
    return contains_ranks(query_ranks, place, last, ranks, row_offsets[row] + 1, row_offsets[row + np.uint32(1)])


@inlined
def _stage(
    place, row, staged, staged_places, staged_rows,
    owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
):  # fmt: skip
    """Have a candidate wait for verification from a place on, not its query's first; without room it does not wait."""
    at = cuda.atomic.add(staged, 0, 1)
    if at < _STAGE:
        staged_places[at] = place
        staged_rows[at] = row
        return
    query = owners[place - 1]
    if _contained(query, place, np.uint32(row), offsets, counts, query_ranks, row_offsets, ranks):
        append(query, row, pair_queries, pair_sets, counters)
    else:
        cuda.atomic.add(counters, REJECTED, 1)


@inlined
def _flush(
    staged, staged_places, staged_rows, first,
    owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
):  # fmt: skip
    """Verify what is staged, a candidate a thread, and append what is left."""
    waiting = min(staged[0], _STAGE)
    if waiting == 0:
        return
    for start in range(0, waiting, cuda.blockDim.x):
        at = start + cuda.threadIdx.x
        good = False
        query = np.uint32(0)
        row = np.uint32(0)
        if at < waiting:
            place = np.int64(staged_places[at])
            row = staged_rows[at]
            query = owners[place - 1]
            good = _contained(query, place, row, offsets, counts, query_ranks, row_offsets, ranks)
        keep(good, query, row, staged, staged_places, staged_rows)
    cuda.syncthreads()
    left = staged[1]
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(counters, REJECTED, waiting - left)
    append_all(left, staged_places, staged_rows, first, pair_queries, pair_sets, counters)


@kernel
def _match(
    places, offsets, counts, query_ranks, owners, bits,
    row_offsets, ranks, seconds, first_rows, slots, shift,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """Append the sets whose rarest tag stands at a place of a query, a thread each, and whose others come after it.

    Threads find very different numbers of candidates, so that a block's share the verification.
    """
    staged = cuda.shared.array(2, np.int32)
    staged_places = cuda.shared.array(_STAGE, np.uint32)
    staged_rows = cuda.shared.array(_STAGE, np.uint32)
    first = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        staged[0] = staged[1] = 0
    cuda.syncthreads()
    place = cuda.grid(1)
    query = owners[place] if place < places else np.uint32(0)
    begin = offsets[query]
    last = begin + counts[query]
    if place < places and place < last:
        rank = query_ranks[place]
        row, end = np.int64(first_rows[rank]), np.int64(first_rows[rank + np.uint32(1)])
        if is_large(rank, first_rows):
            if seconds[row] == NO_RANK:
                _stage(
                    place + 1, row, staged, staged_places, staged_rows,
                    owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
                )  # fmt: skip
            path = cuda.local.array((_PATH, 3), np.int64)
            for second in range(place + 1, last):
                path[2, 0], path[2, 1] = find_subcluster(rank, query_ranks[second], slots, shift)
                path[2, 2] = second + 1 - begin
                depth = 2
                while depth > 1:
                    row, end, depth = next_candidates(row_offsets, ranks, seconds, query_ranks[begin:last], path, depth)
                    for candidate in range(row, end):
                        _stage(
                            second, candidate, staged, staged_places, staged_rows,
                            owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
                        )  # fmt: skip
        else:
            for candidate in range(row, end):
                if (bits[query] >> (_U(seconds[candidate]) & _U(63))) & _U(1) != _U(0):
                    _stage(
                        place + 1, candidate, staged, staged_places, staged_rows,
                        owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
                    )  # fmt: skip
    cuda.syncthreads()
    _flush(
        staged, staged_places, staged_rows, first,
        owners, offsets, counts, query_ranks, row_offsets, ranks, pair_queries, pair_sets, counters,
    )  # fmt: skip


class CudaRarest:
    """Subset match over a snapshot in the `rarest` layout, in device memory."""

    #: The interpreter is as busy as the device: six threads on two are half as fast as three on one
    per_device = False
    match_batches = None

    def __init__(self, segment: Segment) -> None:
        assert isinstance(segment.partitions, ClusterTable)
        ranks = segment.tagsets.ranks
        tables = (ranks.offsets, ranks.values, second_ranks(segment), segment.partitions.first_rows)
        on_device = tuple(map(to_device, tables))
        subclusters = Subclusters(len(segment), *on_device)
        self._tables = (*on_device, *subclusters.table)
        self.nbytes = sum(table.nbytes for table in on_device) + subclusters.nbytes

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
