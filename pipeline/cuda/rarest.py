"""Stage 2, subset match, of the `rarest` layout on the device: one thread for each tag of each query.

A hash table says where the sets with each second-rarest tag are in large clusters. A thread that searches a cluster of
thousands of rows waits for memory at each step of a binary search, and the other threads of its warp wait for it. Here
it waits once. What shares those two ranks is searched by leapfrogging: the rows' next ranks and the query's remaining
ranks are both ascending, and the one behind gallops to the other.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import bytes_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.clusters import NO_RANK, Clusters, clusters_of
from tagmatch.pipeline.cuda.device import grid, inlined, kernel, sent, to_device
from tagmatch.pipeline.cuda.pairs import DeviceQueries, PairArrays, new_stage, staging
from tagmatch.pipeline.rarest import SCAN_ROWS
from tagmatch.pipeline.tags import contains_ranks, seek

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 128

# Of a slot that nothing is in; no tag is a set's rarest and second-rarest, so no pair of ranks is this
_FREE = _U(0)
# About 2**64 divided by the golden ratio, and odd: the high bits of products are those that are spread best
_SPREAD = _U(0x9E3779B97F4A7C15)


@inlined
def _rank_at(offsets, ranks, seconds, row, depth):
    """Rank `depth` of a row; the second ranks have their own column, which is searched most."""
    return seconds[row] if depth == 1 else ranks[offsets[row] + depth]


@inlined
def _seek_row(offsets, ranks, seconds, row, end, depth, rank):
    """First row from `row` on, below `end`, whose rank at `depth` is not below `rank`; else `end`. Galloping."""
    step = 1
    while row + step <= end and _rank_at(offsets, ranks, seconds, row + step - 1, depth) < rank:
        row += step
        step *= 2
    low, high = row, min(row + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if _rank_at(offsets, ranks, seconds, middle, depth) < rank:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _next_candidates(offsets, ranks, seconds, query, path, depth):
    """Rows of a subcluster that may be contained in a query, range by range; the first two ranks are known."""
    while depth > 1:
        row, end, at = path[depth, 0], path[depth, 1], path[depth, 2]
        if end - row <= SCAN_ROWS or depth == len(path) - 1:
            return row, end, depth - 1
        if offsets[row + 1] - offsets[row] == depth:
            path[depth, 0] = row + 1
            return row, row + 1, depth
        child_end = row
        while row < end and at < len(query):
            rank = _rank_at(offsets, ranks, seconds, row, depth)
            if rank < query[at]:
                row = _seek_row(offsets, ranks, seconds, row, end, depth, query[at])
            elif rank > query[at]:
                at = seek(query, at, len(query), rank)
            else:
                child_end = _seek_row(offsets, ranks, seconds, row, end, depth, rank + np.uint32(1))
                break
        if child_end > row:
            at += 1
            path[depth, 0], path[depth, 2] = child_end, at
            depth += 1
            path[depth, 0], path[depth, 1], path[depth, 2] = row, child_end, at
        else:
            depth -= 1
    return np.int64(0), np.int64(0), 0


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
def _begins(row, clusters):
    """Whether a row is the first of a subcluster of a large cluster."""
    offsets, seconds = clusters.offsets, clusters.seconds
    if offsets[row] == offsets[row + 1] or seconds[row] == NO_RANK:
        return False
    first = clusters.ranks[offsets[row]]
    same = row > clusters.first_rows[first] and seconds[row - 1] == seconds[row]
    return is_large(first, clusters.first_rows) and not same


@kernel
def _count(clusters, counted):
    row = cuda.grid(1)
    if row < len(clusters.seconds) and _begins(row, clusters):
        cuda.atomic.add(counted, 0, 1)


@kernel
def _fill(clusters, slots, shift):
    row = cuda.grid(1)
    if row < len(clusters.seconds) and _begins(row, clusters):
        offsets, ranks, seconds, first_rows = clusters
        first, second = ranks[offsets[row]], seconds[row]
        end = _seek_row(offsets, ranks, seconds, row, first_rows[first + np.uint32(1)], 1, second + np.uint32(1))
        pair = _pair(first, second)
        at = (pair * _SPREAD) >> shift
        while cuda.atomic.cas(slots, (at, 0), _FREE, pair) != _FREE:
            at = (at + _U(1)) & _U(len(slots) - 1)
        slots[at, 1] = (_U(row) << _U(32)) | _U(end)


def _subclusters(rows: int, clusters: Clusters) -> tuple[Any, np.uint64]:
    """The hash table, in device memory, and the shift of its hashes."""
    counted = to_device(np.zeros(1, np.int64))
    if rows:
        _count[grid(rows, _BLOCK)](clusters, counted)
    bits = max(1, (2 * int(counted.copy_to_host()[0])).bit_length())
    slots, shift = to_device(np.zeros((1 << bits, 2), np.uint64)), np.uint64(64 - bits)
    if rows:
        _fill[grid(rows, _BLOCK)](clusters, slots, shift)
    return slots, shift


# Ranks by which clusters are searched; the rest is scanned
_DEEPEST = 12
_PATH = _DEEPEST + 1


@kernel
def _query_bits(count, queries, bits):
    """One bit for each rank modulo 64: most rows are turned away by their second rank. Sets of one tag must pass."""
    i = cuda.grid(1)
    if i < count:
        found = _U(1) << (_U(NO_RANK) & _U(63))
        for at in range(queries.offsets[i], queries.offsets[i] + queries.counts[i]):
            found |= _U(1) << (_U(queries.ranks[at]) & _U(63))
        bits[i] = found


@inlined
def _contained(place, row, queries, clusters):
    """Whether the tags after the rarest of a row are in a query from a place on, not its first; both."""
    query, offsets = queries.owners[place - 1], clusters.offsets
    last = queries.offsets[query] + queries.counts[query]
    good = contains_ranks(queries.ranks, place, last, clusters.ranks, offsets[row] + 1, offsets[row + 1])
    return good, query, np.uint32(row)


_stage, _flush = staging(_contained)


@kernel
def _match(places, queries, bits, clusters, slots, shift, out):
    """Append the sets with their rarest tag at a place of a query, a thread for each, and the other tags behind it."""
    waiting = new_stage()
    place = cuda.grid(1)
    query = queries.owners[place] if place < places else np.uint32(0)
    begin = queries.offsets[query]
    last = begin + queries.counts[query]
    if place < places and place < last:
        offsets, ranks, seconds, first_rows = clusters
        rank = queries.ranks[place]
        row, end = np.int64(first_rows[rank]), np.int64(first_rows[rank + np.uint32(1)])
        if is_large(rank, first_rows):
            if seconds[row] == NO_RANK:
                _stage(place + 1, row, waiting, queries, clusters, out)
            path = cuda.local.array((_PATH, 3), np.int64)
            for second in range(place + 1, last):
                path[2, 0], path[2, 1] = find_subcluster(rank, queries.ranks[second], slots, shift)
                path[2, 2] = second + 1 - begin
                depth = 2
                while depth > 1:
                    own = queries.ranks[begin:last]
                    row, end, depth = _next_candidates(offsets, ranks, seconds, own, path, depth)
                    for candidate in range(row, end):
                        _stage(second, candidate, waiting, queries, clusters, out)
        else:
            for candidate in range(row, end):
                if (bits[query] >> (_U(seconds[candidate]) & _U(63))) & _U(1) != _U(0):
                    _stage(place + 1, candidate, waiting, queries, clusters, out)
    _flush(waiting, queries, clusters, out)


class CudaRarest:
    """Subset match over a snapshot in the `rarest` layout, in device memory."""

    match_batches = None

    def __init__(self, segment: Segment) -> None:
        assert isinstance(segment.partitions, ClusterTable)
        self._clusters = sent(clusters_of(segment))
        self._subclusters = _subclusters(len(segment), self._clusters)
        self.nbytes = bytes_of(self._clusters, self._subclusters[0])

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> CudaRarest:  # noqa: ARG003 - compares tags in any case
        """The subset match of a segment."""
        return cls(segment)

    def launch(self, queries: DeviceQueries, out: PairArrays) -> None:
        """Append the matches of all queries."""
        if not queries.places:
            return
        stream = queries.workspace.stream
        bits = queries.workspace.device("bits", np.uint64, queries.count)
        _query_bits[(*grid(queries.count, _BLOCK), stream)](queries.count, queries.arrays, bits)
        _match[(*grid(queries.places, _BLOCK), stream)](
            queries.places, queries.arrays, bits, self._clusters, *self._subclusters, out
        )
