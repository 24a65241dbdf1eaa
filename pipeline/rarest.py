"""Stage 2, subset match, for the `rarest` layout: descend the clusters of the query's own tags.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. A range of rows that share their
first `depth` ranks is searched by leapfrogging: the rows' next ranks and the query's remaining ranks are both
ascending, and whichever is behind gallops to the other. Short ranges are verified row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.preprocess import QueryBatch
from pipeline.verify import contains_ranks, seek
from tagmatch.arrays import Lists
from tagmatch.kernels.jit import kernel
from tagmatch.tables import ClusterTable, Snapshot

_U = np.uint64

# Ranges of at most this many rows are verified row by row
_SCAN_ROWS = 16


@kernel
def _seek_row(offsets, ranks, row, end, depth, rank):
    """First row from `row` on, below `end`, whose rank at `depth` is not below `rank`; else `end`. Galloping."""
    step = 1
    while row + step <= end and ranks[offsets[row + step - 1] + depth] < rank:
        row += step
        step *= 2
    low, high = row, min(row + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if ranks[offsets[middle] + depth] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _room_for(found, used, more):
    if used + more <= len(found):
        return found
    bigger = np.empty(max(2 * len(found), used + more), np.uint32)
    bigger[:used] = found[:used]
    return bigger


@kernel
def _search_cluster(offsets, ranks, row, end, query, at, size, query_bits, path, found, used):
    """Append the matching rows of `row` to `end`, which all begin with the query's rank before `at`."""
    # path[d] = (next row, end, place in the query) of the range at depth d that is still to be searched
    depth = 1
    path[1, 0], path[1, 1], path[1, 2] = row, end, at
    while depth > 0:
        row, end, at = path[depth, 0], path[depth, 1], path[depth, 2]
        if end - row <= _SCAN_ROWS:
            found = _room_for(found, used, end - row)
            for candidate in range(row, end):
                begin, stop = offsets[candidate] + depth, offsets[candidate + 1]
                if begin < stop and (query_bits >> (_U(ranks[begin]) & _U(63))) & _U(1) == _U(0):
                    continue
                if contains_ranks(query, at, size, ranks, begin, stop):
                    found[used] = candidate
                    used += 1
            depth -= 1
            continue
        if offsets[row + 1] - offsets[row] == depth:
            found = _room_for(found, used, 1)
            found[used] = row
            used += 1
            row += 1
        child_end = row
        while row < end and at < size:
            rank = ranks[offsets[row] + depth]
            if rank < query[at]:
                row = _seek_row(offsets, ranks, row, end, depth, query[at])
            elif rank > query[at]:
                at = seek(query, at, size, rank)
            else:
                child_end = _seek_row(offsets, ranks, row, end, depth, rank + 1)
                break
        if child_end > row:
            at += 1
            path[depth, 0], path[depth, 2] = child_end, at
            depth += 1
            path[depth, 0], path[depth, 1], path[depth, 2] = row, child_end, at
        else:
            depth -= 1
    return found, used


@kernel
def _match_clusters(query_offsets, query_ranks, offsets, ranks, first_rows, has_empty, longest, ends):
    """Set ids of all matches, query by query; `ends[i + 1]` is the end of query `i`'s."""
    found = np.empty(max(64, 4 * len(ends)), np.uint32)
    path = np.empty((longest + 2, 3), np.int64)
    used = 0
    for i in range(len(ends) - 1):
        query = query_ranks[query_offsets[i] : query_offsets[i + 1]]
        if has_empty:
            found = _room_for(found, used, 1)
            found[used] = 0
            used += 1
        # One bit for each rank modulo 64: most rows of a cluster are turned away by their second rank.
        query_bits = _U(0)
        for rank in query:
            query_bits |= _U(1) << (_U(rank) & _U(63))
        for at in range(len(query)):
            row, end = first_rows[query[at]], first_rows[query[at] + 1]
            if row < end:
                found, used = _search_cluster(
                    offsets, ranks, row, end, query, at + 1, len(query), query_bits, path, found, used
                )
        ends[i + 1] = used
    return found[:used]


class RarestSubsetMatch:
    """Subset match over a snapshot in the `rarest` layout. Always exact: tags are compared, not signatures."""

    def __init__(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot.partitions, ClusterTable)
        ranks = snapshot.tagsets.ranks
        self._tables: tuple[Any, ...] = (ranks.offsets, ranks.values, snapshot.partitions.first_rows)
        self._has_empty = snapshot.tagsets.has_empty_set
        self._longest = int(ranks.lengths().max(initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes beside the snapshot's tables."""
        return 0

    def __call__(self, batch: QueryBatch) -> Lists:
        """Set ids, uint32, of the stored sets contained in each query."""
        ends = np.zeros(len(batch) + 1, np.int64)
        found = _match_clusters(batch.offsets, batch.ranks, *self._tables, self._has_empty, self._longest, ends)
        return Lists(ends, found)
