"""Stage 2, subset match, for the `rarest` layout: search the clusters of the query's own tags, by one rule with CUDA.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. The rows that share their first
`depth` ranks are searched by leapfrogging: the rows' next ranks and the query's remaining ranks are both ascending,
and whichever is behind gallops to the other. Short ranges are not searched further. Rows that the search does not turn
away become candidates, and all candidates of a batch are verified together.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, U32Array, UIntArray, frozen
from tagmatch.model.kernels.intrinsics import array_at
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.one import (
    ALL,
    LAYOUT,
    LAYOUT_SCALAR,
    RANK_OFFSETS,
    RANKS,
    OneQuery,
    has_empty,
    kernels_of,
    live_of,
    prepare,
    ranks_of,
    scalar,
)
from tagmatch.pipeline.segment import Finder, RowsFound
from tagmatch.pipeline.tags import QueryBatch, TagIndex, contains_ranks, seek

#: Ranges of at most this many rows are not searched but scanned
SCAN_ROWS = 32

#: Stands for the second rank of a set of one tag
NO_RANK = np.uint32(0xFFFFFFFF)


@inlined
def _rank_at(offsets, ranks, seconds, row, depth):
    """Rank `depth` of a row; the second ranks have a column of their own, which is searched most."""
    return seconds[row] if depth == 1 else ranks[offsets[row] + depth]


@kernel
def seek_row(offsets, ranks, seconds, row, end, depth, rank):
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
def next_candidates(offsets, ranks, seconds, query, path, depth):
    """Rows of a cluster that may be contained in a query, range by range."""
    while depth > 0:
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
                row = seek_row(offsets, ranks, seconds, row, end, depth, query[at])
            elif rank > query[at]:
                at = seek(query, at, len(query), rank)
            else:
                child_end = seek_row(offsets, ranks, seconds, row, end, depth, rank + np.uint32(1))
                break
        if child_end > row:
            at += 1
            path[depth, 0], path[depth, 2] = child_end, at
            depth += 1
            path[depth, 0], path[depth, 1], path[depth, 2] = row, child_end, at
        else:
            depth -= 1
    return np.int64(0), np.int64(0), 0


_U = np.uint64


@kernel
def _second_ranks(offsets, ranks, first, last, out):
    for row in range(first, last):
        out[row] = ranks[offsets[row] + 1] if offsets[row + 1] - offsets[row] > 1 else NO_RANK


class Clusters(NamedTuple):
    """The sets of a segment by rarest tag; kernels of the CPU and of CUDA take it."""

    offsets: IntArray | UIntArray  # Row `i` has the ascending ranks `ranks[offsets[i]:offsets[i + 1]]`
    ranks: U32Array
    seconds: U32Array  # The second-rarest rank of each row, `NO_RANK` for sets of one tag
    first_rows: (
        IntArray | UIntArray
    )  # The sets whose rarest tag has rank `r` are rows `first_rows[r]` to `first_rows[r + 1]`


def clusters_of(segment: Segment, *, threads: int = 1) -> Clusters:
    """The clusters of a segment."""
    ranks = segment.tagsets.ranks
    seconds = np.empty(len(ranks), np.uint32)
    run_rows(
        lambda first, last: _second_ranks(ranks.offsets, ranks.values, first, last, seconds),
        even_ranges(len(ranks), threads),
        threads,
    )
    return Clusters(ranks.offsets, ranks.values, frozen(seconds), segment.partitions.first_rows)


@kernel
def _find_candidates(query_offsets, query_ranks, clusters, longest, most, ends):
    """Candidate rows, query by query, each with the place in `query_ranks` after its rarest tag's.

    Once it has more than `most`, it looks for no more in large clusters.
    """
    offsets, ranks, seconds, first_rows = clusters
    # Each miss of the cache gets a loop of its own, without a branch on what is read: the processor then waits for many
    # misses at once instead of for one after the other. Branches come in the loop after it, when the data is at hand.
    begins = np.empty(len(query_ranks), np.int64)
    stops = np.empty(len(query_ranks), np.int64)
    for i in range(len(query_ranks)):
        begins[i], stops[i] = first_rows[query_ranks[i]], first_rows[query_ranks[i] + np.uint32(1)]
    touched = np.uint32(0)
    for i in range(len(query_ranks)):
        touched ^= seconds[min(begins[i], len(seconds) - 1)]
    rows = np.empty(16 * len(ends) + SCAN_ROWS, np.uint32)
    places = np.empty(16 * len(ends) + SCAN_ROWS, np.uint32)
    path = np.empty((longest + 2, 3), np.int64)
    used = np.int64(0)
    for i in range(len(ends) - 1):
        first, last = query_offsets[i], query_offsets[i + 1]
        # One bit for each rank modulo 64: most rows of a cluster are turned away by their second rank. Sets of one
        # tag must pass.
        query_bits = _U(1) << (_U(NO_RANK) & _U(63))
        small = 0
        for place in range(first, last):
            query_bits |= _U(1) << (_U(query_ranks[place]) & _U(63))
            small += min(stops[place] - begins[place], SCAN_ROWS)
        if used + small > len(rows):
            rows, places = with_room(rows, used, small), with_room(places, used, small)
        for place in range(first, last):
            row, end = begins[place], stops[place]
            if end - row <= SCAN_ROWS:
                for candidate in range(row, end):
                    rows[used], places[used] = candidate, place + 1
                    used += np.int64((query_bits >> (_U(seconds[candidate]) & _U(63))) & _U(1))
        for place in range(first, last):
            row, end = begins[place], stops[place]
            if end - row <= SCAN_ROWS:
                continue
            path[1, 0], path[1, 1], path[1, 2] = row, end, place + 1 - first
            depth = 1
            while depth > 0 and used <= most:
                row, end, depth = next_candidates(offsets, ranks, seconds, query_ranks[first:last], path, depth)
                if used + (end - row) > len(rows):
                    rows, places = with_room(rows, used, end - row), with_room(places, used, end - row)
                for candidate in range(row, end):
                    rows[used], places[used] = candidate, place + 1
                    used += 1
        ends[i + 1] = used
    return rows, places, used, touched


@kernel
def _verify(query_offsets, query_ranks, clusters, candidates, has_empty, ends, out):
    """Write to `out` the candidates contained in their queries, after the empty set where it is stored."""
    (offsets, ranks, _, _), (rows, places, candidate_ends) = clusters, candidates
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


_SECONDS, _FIRST_ROWS = LAYOUT, LAYOUT + 1
_LONGEST = LAYOUT_SCALAR


@kernel
def _sets_of(tables, ranks, most, rank_offset, first_row):
    """Sets that one query contains, and how many candidates were turned away; -1 where there are more than `most`."""
    seconds = array_at(tables, _SECONDS, np.uint32)
    offsets, values = array_at(tables, RANK_OFFSETS, rank_offset), array_at(tables, RANKS, np.uint32)
    clusters = (offsets, values, seconds, array_at(tables, _FIRST_ROWS, first_row))
    queries = np.array([0, len(ranks)])
    candidate_ends, ends = np.zeros(2, np.int64), np.zeros(2, np.int64)
    empty = has_empty(tables)
    if len(seconds) == 0:
        return np.empty(0, np.uint32), 0
    rows, places, used, _ = _find_candidates(queries, ranks, clusters, scalar(tables, _LONGEST), most, candidate_ends)
    if used > most:
        return np.empty(0, np.uint32), -1
    out = np.empty(used + empty, np.uint32)
    found, _ = _verify(queries, ranks, clusters, (rows, places, candidate_ends), empty != 0, ends, out)
    return out[:found], len(out) - found


@cache
def _in_segment(first_row: Any) -> Any:
    """What finds the sets of a segment that one query contains; `first_row` is the type of its clusters' edges."""

    @kernel
    def in_segment(tables, tags, _, most, dtypes):
        tag_offset, rank_offset, _, _ = dtypes
        sets, rejected = _sets_of(tables, ranks_of(tables, tags, tag_offset), most, rank_offset, first_row)
        return live_of(tables, sets), rejected

    return in_segment


class RarestSubsetMatch(Finder):
    """Subset match over a snapshot in the `rarest` layout. Always exact: tags are compared, not signatures."""

    def __init__(self, segment: Segment, *, threads: int = 1) -> None:
        assert isinstance(segment.partitions, ClusterTable)
        ranks = segment.tagsets.ranks
        self._clusters = clusters_of(segment, threads=threads)
        self._has_empty = segment.tagsets.has_empty_set
        self._longest = int(ranks.lengths().max(initial=0))

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> RarestSubsetMatch:
        """The subset match of a segment, with these options."""
        return cls(segment, threads=options.threads)

    def __len__(self) -> int:
        return len(self._clusters.seconds)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self._clusters.seconds.nbytes

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        prepared, dtypes = prepare(segment, tags, list(self._clusters[2:]), [self._longest])
        first_row: Any = self._clusters.first_rows.dtype.type
        return OneQuery([prepared], kernels_of(_in_segment(first_row), dtypes, brief=True))

    def find(self, prepared: QueryBatch) -> RowsFound:
        """As `Finder` says."""
        candidate_ends = np.zeros(len(prepared) + 1, np.int64)
        ends = np.zeros(len(prepared) + 1, np.int64)
        if len(self) == 0 or (len(prepared.ranks) == 0 and not self._has_empty):
            return RowsFound(Lists(ends, np.zeros(0, np.uint32)), 0)
        queries = prepared.offsets, prepared.ranks, tuple(self._clusters)  # a named tuple's type takes longer to find
        rows, places, used, _ = _find_candidates(*queries, self._longest, ALL, candidate_ends)
        out = np.empty(used + self._has_empty * len(prepared), np.uint32)
        matches, _ = _verify(*queries, (rows, places, candidate_ends), self._has_empty, ends, out)
        return RowsFound(Lists(ends, out[:matches]), len(out) - int(matches))
