"""Stage 2, subset match, for the `rarest` layout: search the clusters of the query's own tags.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. The rows that share their first
`depth` ranks are searched by leapfrogging: the rows' next ranks and the query's remaining ranks are both ascending,
and whichever is behind gallops to the other. Short ranges are not searched further: their rows become candidates,
and all candidates of a batch are verified together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.backend import Matches
from pipeline.preprocess import QueryBatch
from pipeline.verify import contains_ranks, seek
from tagmatch.arrays import Lists
from tagmatch.kernels.jit import inlined, kernel
from tagmatch.parallel import even_ranges, run_rows
from tagmatch.tables import ClusterTable, Snapshot

_U = np.uint64

# Ranges of at most this many rows are not searched but scanned
_SCAN_ROWS = 32

# Stands for the second rank of a set of one tag
_NO_RANK = np.uint32(0xFFFFFFFF)


@kernel
def _second_ranks(offsets, ranks, first, last, out):
    for row in range(first, last):
        out[row] = ranks[offsets[row] + 1] if offsets[row + 1] - offsets[row] > 1 else _NO_RANK


@inlined
def _rank_at(offsets, ranks, seconds, row, depth):
    """Rank `depth` of a row; the second ranks have a column of their own, which is searched most."""
    return seconds[row] if depth == 1 else ranks[offsets[row] + depth]


@kernel
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


@kernel
def _grown(array, used, more):
    """A copy with room for `more` after the first `used` and, so that this stays rare, for twice as many as before."""
    bigger = np.empty(max(2 * len(array), used + more), array.dtype)
    bigger[:used] = array[:used]
    return bigger


@kernel
def _search_cluster(offsets, ranks, seconds, row, end, query, at, place, path, rows, places, used):
    """Append to the candidates those of the rows from `row` to `end` that may be contained in the query.

    All of them begin with the query's rank before `at`; `place` is stored with each candidate.
    """
    # path[d] = (next row, end, place in the query) of the range at depth d that is still to be searched
    depth = 1
    path[1, 0], path[1, 1], path[1, 2] = row, end, at
    while depth > 0:
        row, end, at = path[depth, 0], path[depth, 1], path[depth, 2]
        if end - row <= _SCAN_ROWS:
            if used + _SCAN_ROWS > len(rows):
                rows, places = _grown(rows, used, _SCAN_ROWS), _grown(places, used, _SCAN_ROWS)
            for candidate in range(row, end):
                rows[used], places[used] = candidate, place
                used += 1
            depth -= 1
            continue
        if offsets[row + 1] - offsets[row] == depth:
            if used == len(rows):
                rows, places = _grown(rows, used, 1), _grown(places, used, 1)
            rows[used], places[used] = row, place
            used += 1
            row += 1
        child_end = row
        while row < end and at < len(query):
            rank = _rank_at(offsets, ranks, seconds, row, depth)
            if rank < query[at]:
                row = _seek_row(offsets, ranks, seconds, row, end, depth, query[at])
            elif rank > query[at]:
                at = seek(query, at, len(query), rank)
            else:
                child_end = _seek_row(offsets, ranks, seconds, row, end, depth, rank + 1)
                break
        if child_end > row:
            at += 1
            path[depth, 0], path[depth, 2] = child_end, at
            depth += 1
            path[depth, 0], path[depth, 1], path[depth, 2] = row, child_end, at
        else:
            depth -= 1
    return rows, places, used


@kernel
def _find_candidates(query_offsets, query_ranks, offsets, ranks, seconds, first_rows, longest, ends):
    """Candidate rows, query by query, each with the place in `query_ranks` after its rarest tag's."""
    # Each miss of the cache gets a loop of its own, without a branch on what is read: the processor then waits for many
    # misses at once instead of for one after the other. Branches come in the loop after it, when the data is at hand.
    begins = np.empty(len(query_ranks), np.int64)
    stops = np.empty(len(query_ranks), np.int64)
    for i in range(len(query_ranks)):
        begins[i], stops[i] = first_rows[query_ranks[i]], first_rows[query_ranks[i] + np.uint32(1)]
    touched = np.uint32(0)
    for i in range(len(query_ranks)):
        touched ^= seconds[min(begins[i], len(seconds) - 1)]
    rows = np.empty(16 * len(ends) + _SCAN_ROWS, np.uint32)
    places = np.empty(16 * len(ends) + _SCAN_ROWS, np.uint32)
    path = np.empty((longest + 2, 3), np.int64)
    used = np.int64(0)
    for i in range(len(ends) - 1):
        first, last = query_offsets[i], query_offsets[i + 1]
        # One bit for each rank modulo 64: most rows of a cluster are turned away by their second rank. Sets of one
        # tag must pass.
        query_bits = _U(1) << (_U(_NO_RANK) & _U(63))
        small = 0
        for place in range(first, last):
            query_bits |= _U(1) << (_U(query_ranks[place]) & _U(63))
            small += min(stops[place] - begins[place], _SCAN_ROWS)
        if used + small > len(rows):
            rows, places = _grown(rows, used, small), _grown(places, used, small)
        for place in range(first, last):
            row, end = begins[place], stops[place]
            if end - row <= _SCAN_ROWS:
                for candidate in range(row, end):
                    rows[used], places[used] = candidate, place + 1
                    used += np.int64((query_bits >> (_U(seconds[candidate]) & _U(63))) & _U(1))
        for place in range(first, last):
            row, end = begins[place], stops[place]
            if end - row > _SCAN_ROWS:
                rows, places, used = _search_cluster(
                    offsets, ranks, seconds, row, end, query_ranks[first:last], place + 1 - first, place + 1,
                    path, rows, places, used,
                )  # fmt: skip
        ends[i + 1] = used
    return rows, places, used, touched


@kernel
def _verify(query_offsets, query_ranks, offsets, ranks, rows, places, candidate_ends, has_empty, ends, out):
    """Write to `out` the candidates contained in their queries, after the empty set where it is stored."""
    begins = np.empty(candidate_ends[-1], np.int64)
    stops = np.empty(candidate_ends[-1], np.int64)
    for i in range(len(begins)):
        begins[i], stops[i] = offsets[rows[i]] + 1, offsets[rows[i] + np.uint32(1)]
    touched = np.uint32(0)
    for i in range(len(begins)):
        touched ^= ranks[begins[i] - 1]
    used = 0
    for query in range(len(ends) - 1):
        last = query_offsets[query + 1]
        if has_empty:
            out[used] = 0
            used += 1
        for i in range(candidate_ends[query], candidate_ends[query + 1]):
            if contains_ranks(query_ranks, places[i], last, ranks, begins[i], stops[i]):
                out[used] = rows[i]
                used += 1
        ends[query + 1] = used
    return used, touched


class RarestSubsetMatch:
    """Subset match over a snapshot in the `rarest` layout. Always exact: tags are compared, not signatures."""

    def __init__(self, snapshot: Snapshot, *, threads: int = 1) -> None:
        assert isinstance(snapshot.partitions, ClusterTable)
        ranks = snapshot.tagsets.ranks
        self._ranks: tuple[Any, ...] = (ranks.offsets, ranks.values)
        self._seconds = np.empty(len(ranks), np.uint32)
        run_rows(
            lambda a, b: _second_ranks(*self._ranks, a, b, self._seconds), even_ranges(len(ranks), threads), threads
        )
        self._first_rows = snapshot.partitions.first_rows
        self._has_empty = snapshot.tagsets.has_empty_set
        self._longest = int(ranks.lengths().max(initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes beside the snapshot's tables."""
        return self._seconds.nbytes

    def __call__(self, batch: QueryBatch) -> Matches:
        """Sets that each query contains."""
        candidate_ends = np.zeros(len(batch) + 1, np.int64)
        ends = np.zeros(len(batch) + 1, np.int64)
        queries = (batch.offsets, batch.ranks)
        if len(self._seconds) == 0:
            return Matches(Lists(ends, np.zeros(0, np.uint32)), 0)
        rows, places, used, _ = _find_candidates(
            *queries, *self._ranks, self._seconds, self._first_rows, self._longest, candidate_ends
        )
        out = np.empty(used + self._has_empty * len(batch), np.uint32)
        matches, _ = _verify(*queries, *self._ranks, rows, places, candidate_ends, self._has_empty, ends, out)
        return Matches(Lists(ends, out[:matches]), len(out) - int(matches))
