"""Stage 2, subset match, for the `rarest` layout: the clusters of the query's own tags, and a bitmap of its ranks.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. Rows of a cluster whose
second-rarest tag the query does not have are turned away by a bit of it. One of thousands of rows is walked as the
tree that it is: a row is read from where it differs from the row before, and not at all if that one failed before this
place.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, U8Array, U32Array, UIntArray, frozen
from tagmatch.model.kernels.intrinsics import array_at
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.model.kernels.lists import ascending_row
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.one import (
    ALL,
    LAYOUT,
    RANK_OFFSETS,
    RANKS,
    OneQuery,
    has_empty,
    kernels_of,
    live_of,
    prepare,
    ranks_of,
)
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import QueryBatch, TagIndex, contains_ranks

_U = np.uint64

#: Clusters of at most so many rows are small
SCAN_ROWS = 32

# Queries, and tags but for those of one of them, whose cache misses are waited for together
_BLOCK, _BLOCK_TAGS = 128, 1024
#: Clusters of more rows are walked
WALK_ROWS = 4096
# Rows are counted as sharing at most so many ranks with the row before
_MOST_SHARED = 255
# So many rows that share a rank which a query does not have are passed over one by one, the others by a search
_NEAR_ROWS = _U(64)
# Bytes of the bitmap of a single query's ranks: these for each of its tags, and at most these, which a processor's
# cache has room for. To set a bit has to wait for the bit before it in the same word, so words are short.
_BYTES_A_TAG, _FEWEST_BYTES, _MOST_BYTES = 32, 512, 1 << 19
# More ranks of a query, with a bit each modulo 64, turn hardly any row away
_MANY_RANKS = 32
# Ranks of a row that are looked at before it is turned away: to branch for each takes longer
_AT_ONCE = _U(4)

#: Stands for the second rank of a set of one tag
NO_RANK = np.uint32(0xFFFFFFFF)


@kernel
def _second_ranks(offsets, ranks, first, last, out):
    for row in range(first, last):
        out[row] = ranks[offsets[row] + 1] if offsets[row + 1] - offsets[row] > 1 else NO_RANK


# In the last byte of a bitmap
_NO_RANKS_BIT = _U(1) << (_U(NO_RANK) & _U(7))


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
def _shared_ranks(offsets, ranks, first, last, out):
    for row in range(max(first, 1), last):
        before, begin = offsets[row - 1], offsets[row]
        most = min(begin - before, offsets[row + 1] - begin, _MOST_SHARED)
        shared = 0
        while shared < most and ranks[before + shared] == ranks[begin + shared]:
            shared += 1
        out[row] = shared


@inlined
def _bit_of(bits, rank):
    return (_U(rank) >> _U(3)) & _U(len(bits) - 1), _U(rank) & _U(7)


@inlined
def _first_strange(bits, ranks, at, end):
    """The first place from `at` on, below `end`, of a rank whose bit is not set; else `end`."""
    last = _U(len(bits) - 1)
    while at < end and (bits[(_U(ranks[at]) >> _U(3)) & last] >> (_U(ranks[at]) & _U(7))) & _U(1):
        at += _U(1)
    return at


@inlined
def _all_known(bits, ranks, at, end):
    """Whether the bits of all ranks from `at` on, below `end`, are set."""
    found = _U(1)
    while at < end and found:
        for i in range(_AT_ONCE):
            word, bit = _bit_of(bits, ranks[min(at + i, end - _U(1))])
            found &= bits[word] >> bit
        at += _AT_ONCE
    return found


@inlined
def _clear(bits, ranks, begin, end):
    for at in range(_U(begin), _U(end)):
        bits[_bit_of(bits, ranks[at])[0]] = 0
    bits[len(bits) - 1] = 0


@kernel
def _candidates(block, seconds, bits, rows, ends):
    """Write rows of small clusters whose second-rarest rank the queries may have, and how many others they have.

    Query `i` has the rows up to `ends[i + 1, 0]`, and `ends[i + 1, 1]` rows in clusters that are not small.
    """
    (query_offsets, query_ranks), edges, first, last = block
    base, used = query_offsets[first], _U(0)
    for query in range(first, last):
        # One bit for each rank modulo 64: most rows are turned away by it. Sets of one tag must pass.
        query_bits, others, begun = _U(1) << (_U(NO_RANK) & _U(63)), 0, used
        begin, end = query_offsets[query], query_offsets[query + 1]
        for at in range(begin, end):
            query_bits |= _U(1) << (_U(query_ranks[at]) & _U(63))
        for place in range(begin - base, end - base):
            row, row_end = edges[place, 0], edges[place, 1]
            if row_end - row > SCAN_ROWS:
                others += row_end - row
                continue
            for candidate in range(_U(row), _U(row_end)):
                rows[used] = candidate
                used += (query_bits >> (_U(seconds[candidate]) & _U(63))) & _U(1)
        if end - begin > _MANY_RANKS:
            for at in range(begin, end):
                word, bit = _bit_of(bits, query_ranks[at])
                bits[word] |= _U(1) << bit
            bits[len(bits) - 1] |= _NO_RANKS_BIT
            candidates, used = used, begun
            for i in range(begun, candidates):
                word, bit = _bit_of(bits, seconds[rows[i]])
                rows[used] = rows[i]
                used += (bits[word] >> bit) & _U(1)
            _clear(bits, query_ranks, begin, end)
        ends[query - first + 1, 0], ends[query - first + 1, 1] = used, others
    return used


@inlined
def _begins_alike(offsets, ranks, row, other, depth):
    """Whether two rows have the same first `depth` ranks; the other has as many."""
    begin, other_begin = _U(offsets[row]), _U(offsets[other])
    if _U(offsets[row + _U(1)]) - begin < depth:
        return False
    for i in range(depth):
        if ranks[begin + i] != ranks[other_begin + i]:
            return False
    return True


@kernel
def _behind(offsets, ranks, row, end, depth):
    """The first row from `row` on, below `end`, without the first `depth` ranks of the row before it. Galloping."""
    known, low, step = row - _U(1), row, _U(1)
    while low + step <= end and _begins_alike(offsets, ranks, low + step - _U(1), known, depth):
        low += step
        step *= _U(2)
    high = min(low + step - _U(1), end)
    while low < high:
        middle = (low + high) >> _U(1)
        if _begins_alike(offsets, ranks, middle, known, depth):
            low = middle + _U(1)
        else:
            high = middle
    return low


@kernel
def _walk(bits, query, known, edges, most, out, used):
    """Append the rows of a large cluster that a query contains; returns where they end, and how many were read.

    The query is what it has behind the cluster's rank. A row begins with ranks of the one before. If that one failed at
    one of these, so does this, unread; else only the ranks behind them are compared.
    """
    ((offsets, ranks, _, first_rows), shared), (query_ranks, at, last) = known, query
    exact = 8 * len(bits) >= len(first_rows)
    row, end, depth, read = _U(edges[0]), _U(edges[1]), _U(1), 0
    while row < end and read <= most:
        begin, stop = _U(offsets[row]), _U(offsets[row + _U(1)])
        failed = _first_strange(bits, ranks, begin + depth, stop)
        read += 1
        if failed == stop:
            out[used] = row
            used += np.int64(exact or contains_ranks(query_ranks, at, last, ranks, begin + _U(1), stop))
        row += _U(1)
        if failed < stop:
            near = min(end, row + _NEAR_ROWS)
            while row < near and _U(shared[row]) > failed - begin:
                row += _U(1)
            if row == near and row < end and _U(shared[row]) > failed - begin:
                row = _behind(offsets, ranks, row, end, failed - begin + _U(1))
        if row < end:
            depth = _U(shared[row])
    return used, read


@kernel
def _scan(bits, query, known, edges, out, used):
    """As `_walk`, by the second-rarest rank of each row: of a cluster in which that takes less time."""
    ((offsets, ranks, seconds, first_rows), _), (query_ranks, at, last) = known, query
    exact, candidates = 8 * len(bits) >= len(first_rows), _U(used)
    for row in range(_U(edges[0]), _U(edges[1])):
        word, bit = _bit_of(bits, seconds[row])
        out[candidates] = row
        candidates += (bits[word] >> bit) & _U(1)
    found = _U(used)
    for i in range(found, candidates):
        candidate = _U(out[i])
        begin, stop = _U(offsets[candidate]) + _U(1), _U(offsets[candidate + _U(1)])
        out[found] = candidate
        if _all_known(bits, ranks, begin, stop):
            found += _U(exact or contains_ranks(query_ranks, at, last, ranks, begin, stop))
    return np.int64(found), np.int64(candidates) - used


@kernel
def _verify(block, candidates, known, limits, bits, out, used, ends):
    """Append the rows that each query of a block contains; returns them, where they end, and how many were read."""
    ((query_offsets, query_ranks), edges, first, last), (rows, row_ends, places) = block, candidates
    ((_, ranks, _, first_rows), _), (has_empty, most, walk_rows) = known, limits
    base, exact, read = query_offsets[first], 8 * len(bits) >= len(first_rows), 0
    for query in range(first, last):
        begin, end = query_offsets[query], query_offsets[query + 1]
        candidate, last_candidate = row_ends[query - first, 0], row_ends[query - first + 1, 0]
        others = row_ends[query - first + 1, 1]
        room = last_candidate - candidate + others
        if used + room >= len(out):  # seldom, and a call counts references, which takes longer than most queries
            out = with_room(out, used, room + 1)
        if has_empty:
            out[used] = 0
            used += 1
        if room:
            found, repeated = used, False
            for at in range(begin, end):
                word, bit = _bit_of(bits, query_ranks[at])
                if exact and (bits[word] >> bit) & _U(1):
                    edges[at - base, 1] = edges[at - base, 0]
                    repeated |= query_ranks[at] != UNKNOWN
                bits[word] |= _U(1) << bit
            for i in range(candidate, last_candidate):
                place, stop = _U(places[i, 0]), _U(places[i, 1])
                out[used] = rows[i]
                if _all_known(bits, ranks, place, stop):
                    used += np.int64(exact or contains_ranks(query_ranks, begin, end, ranks, place, stop))
            read += last_candidate - candidate
            if others:
                bits[len(bits) - 1] |= _NO_RANKS_BIT
                for at in range(begin, end):
                    row, row_end = edges[at - base, 0], edges[at - base, 1]
                    if row_end - row > SCAN_ROWS and read <= most:
                        behind = query_ranks, at + 1, end  # here, as to make it counts references
                        if row_end - row > walk_rows:
                            used, more = _walk(bits, behind, known, (row, row_end), most - read, out, used)
                        else:
                            used, more = _scan(bits, behind, known, (row, row_end), out, used)
                        read += more
            _clear(bits, query_ranks, begin, end)
            if repeated:
                used = ascending_row(out, found, used, found)
        ends[query + 1] = used
    return out, used, read


@kernel
def _find_sets(queries, known, limits, bits, ends):
    """Rows that each query contains, the empty set's first, and how many rows except that one were read.

    The limits say whether there is an empty set, after how many rows it goes no further, and of how many rows clusters
    are not walked. Queries have their ranks in any order, also several times, and UNKNOWN; if `bits` has not one for
    each rank, ascending and each once.
    """
    (query_offsets, query_ranks), ((offsets, ranks, seconds, first_rows), _) = queries, known
    longest, count, size = 0, len(ends) - 1, min(_BLOCK, len(ends) - 1)
    for query in range(count):
        longest = max(longest, query_offsets[query + 1] - query_offsets[query])
    longest = max(longest, min(_BLOCK_TAGS, query_offsets[count] - query_offsets[0]))
    # One array in place of two: to make one takes 60 ns
    edges, rows = np.empty((longest + 16 * size, 2), np.int64), np.empty(16 * size, np.uint32)
    row_ends, places = np.zeros((size + 1, 2), np.int64), edges[longest:]
    out, used, total = np.empty(16 * count, np.uint32), 0, 0
    touched, behind = np.uint32(0), _U(len(first_rows) - 1)
    # Each miss of the cache gets a loop of its own, without a branch on what is read: the processor then waits for many
    # misses at once instead of for one after the other. Branches come in the loop after it, when the data is at hand.
    last = 0
    while last < count:
        first, last = last, last + 1
        while last < min(count, first + _BLOCK) and query_offsets[last + 1] - query_offsets[first] <= _BLOCK_TAGS:
            last += 1
        block, room = (queries, edges, first, last), 0
        begin = query_offsets[first]
        for i in range(query_offsets[last] - begin):
            rank = _U(query_ranks[begin + i])  # UNKNOWN is behind them all
            edges[i, 0], edges[i, 1] = first_rows[min(rank, behind)], first_rows[min(rank + _U(1), behind)]
            room += min(edges[i, 1] - edges[i, 0], SCAN_ROWS)
        for i in range(query_offsets[last] - begin):
            touched ^= seconds[min(edges[i, 0], len(seconds) - 1)]
        rows = with_room(rows, 0, room + 1)
        candidates = _candidates(block, seconds, bits, rows, row_ends)
        if candidates > len(places):
            places = np.empty((2 * candidates, 2), np.int64)
        for i in range(candidates):
            places[i, 0], places[i, 1] = offsets[rows[i]] + 1, offsets[rows[i] + np.uint32(1)]
        for i in range(candidates):
            touched ^= ranks[places[i, 0] - 1]
        out, used, read = _verify(block, (rows, row_ends, places), known, limits, bits, out, used, ends)
        total += read
    return out[:used], total, touched


_SECONDS, _FIRST_ROWS, _SHARED = LAYOUT, LAYOUT + 1, LAYOUT + 2


@kernel
def _bitmap(ranks, tags):
    """A bit for each rank, or fewer for a query of few tags: zeros, a power of two of bytes."""
    most = min(max(_BYTES_A_TAG * tags, _FEWEST_BYTES), _MOST_BYTES)
    size = 1
    while 8 * size < ranks and 2 * size <= most:
        size *= 2
    return np.zeros(size, np.uint8)


@kernel
def _sets_of(tables, ranks, most, rank_offset, first_row):
    """Sets that one query contains, and how many candidates were turned away; -1 where there are more than `most`."""
    seconds = array_at(tables, _SECONDS, np.uint32)
    offsets, values = array_at(tables, RANK_OFFSETS, rank_offset), array_at(tables, RANKS, np.uint32)
    clusters = (offsets, values, seconds, array_at(tables, _FIRST_ROWS, first_row))
    empty, ends = has_empty(tables), np.zeros(2, np.int64)
    if len(seconds) == 0:
        return np.empty(0, np.uint32), 0
    known, bits = (clusters, array_at(tables, _SHARED, np.uint8)), _bitmap(len(clusters[3]), len(ranks))
    limits = empty != 0, most, WALK_ROWS
    sets, read, _ = _find_sets((np.array([0, len(ranks)]), ranks), known, limits, bits, ends)
    return sets, read - len(sets) + empty if read <= most else -1


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
        shared = np.zeros(len(ranks), np.uint8)
        run_rows(
            lambda first, last: _shared_ranks(ranks.offsets, ranks.values, first, last, shared),
            even_ranges(len(ranks), threads),
            threads,
        )
        self._clusters = clusters_of(segment, threads=threads)
        self._shared: U8Array = frozen(shared)  # How many of its first ranks each row has in common with the one before
        self._has_empty = segment.tagsets.has_empty_set
        # Bitmaps of all ranks that no thread uses now: zeros
        self._bitmaps: list[U8Array] = []

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> RarestSubsetMatch:
        """The subset match of a segment, with these options."""
        return cls(segment, threads=options.threads)

    def __len__(self) -> int:
        return len(self._shared)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self._clusters.seconds.nbytes + self._shared.nbytes

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        prepared, dtypes = prepare(segment, tags, [*self._clusters[2:], self._shared], [])
        first_row: Any = self._clusters.first_rows.dtype.type
        return OneQuery([prepared], kernels_of(_in_segment(first_row), dtypes, brief=True))

    def prepare(self, messages: SegmentMessages) -> QueryBatch:
        """As `Finder` says; a bitmap needs no order."""
        return messages.unordered

    def find(self, prepared: QueryBatch) -> RowsFound:
        """As `Finder` says."""
        ends = np.zeros(len(prepared) + 1, np.int64)
        if len(self) == 0 or (len(prepared.ranks) == 0 and not self._has_empty):
            return RowsFound(Lists(ends, np.zeros(0, np.uint32)), 0)
        known = tuple(self._clusters), self._shared  # a named tuple's type takes longer to find
        try:
            bits = self._bitmaps.pop()
        except IndexError:
            bits = np.zeros(1 << (len(self._clusters.first_rows) >> 3).bit_length(), np.uint8)
        limits = self._has_empty, ALL, WALK_ROWS
        rows, read, _ = _find_sets((prepared.offsets, prepared.ranks), known, limits, bits, ends)
        self._bitmaps.append(bits)
        return RowsFound(Lists(ends, rows), int(read) + self._has_empty * len(prepared) - len(rows))
