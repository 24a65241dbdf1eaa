"""Clusters: the sets of a segment that share a rarest tag, and how one is searched for those that a query contains.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. A query is a bitmap of its ranks.
A cluster of thousands of rows is walked as the tree that it is: a row is read from where it differs from the row
before, and not at all if that one failed before this place. Of another, short rows are looked at rank by rank, and of
longer ones those whose second-rarest tag the query has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import IntArray, U8Array, U32Array, UIntArray, frozen
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import Segment
from tagmatch.pipeline.tags import contains_ranks

_U = np.uint64

# Most ranks that a row is counted as sharing with the row before
_MOST_SHARED = 255
# So many rows that share a rank which a query does not have are passed over one by one, the others by a search
_NEAR_ROWS = _U(64)
# Ranks of a row that are looked at before it is turned away: to branch for each takes longer
_AT_ONCE = _U(4)

#: Stands for the second rank of a set of one tag
NO_RANK = np.uint32(0xFFFFFFFF)


@kernel
def _second_ranks(offsets, ranks, first, last, out):
    for row in range(first, last):
        out[row] = ranks[offsets[row] + 1] if offsets[row + 1] - offsets[row] > 1 else NO_RANK


#: The bit of `NO_RANK`, in the last byte of a bitmap
NO_RANKS_BIT = _U(1) << (_U(NO_RANK) & _U(7))


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


def shared_ranks(clusters: Clusters, *, threads: int = 1) -> U8Array:
    """How many of its first ranks each row has in common with the one before."""
    offsets, ranks, seconds, _ = clusters
    shared = np.zeros(len(seconds), np.uint8)
    run_rows(
        lambda first, last: _shared_ranks(offsets, ranks, first, last, shared),
        even_ranges(len(seconds), threads),
        threads,
    )
    return frozen(shared)


def rarest_ranks(clusters: Clusters) -> U8Array:
    """Whether each rank is the rarest of some set, a bit for each; some more bits are not set, one at least."""
    first_rows = clusters.first_rows
    return frozen(np.packbits(np.append(first_rows[1:] != first_rows[:-1], np.False_), bitorder="little"))


@lent
def bit_of(bits, rank):
    """Where the bit of a rank is: its byte, and its place there."""
    return (_U(rank) >> _U(3)) & _U(len(bits) - 1), _U(rank) & _U(7)


@lent
def _first_strange(bits, ranks, at, end):
    """The first place from `at` on, below `end`, of a rank whose bit is not set; else `end`."""
    last = _U(len(bits) - 1)
    while at < end and (bits[(_U(ranks[at]) >> _U(3)) & last] >> (_U(ranks[at]) & _U(7))) & _U(1):
        at += _U(1)
    return at


@lent
def all_known(bits, ranks, at, end):
    """Whether the bits of all ranks from `at` on, below `end`, are set."""
    found = _U(1)
    while at < end and found:
        for i in range(_AT_ONCE):
            word, bit = bit_of(bits, ranks[min(at + i, end - _U(1))])
            found &= bits[word] >> bit
        at += _AT_ONCE
    return found


@lent
def _begins_alike(offsets, ranks, row, other, depth):
    """Whether two rows have the same first `depth` ranks; the other has as many."""
    begin, other_begin = _U(offsets[row]), _U(offsets[other])
    if _U(offsets[row + _U(1)]) - begin < depth:
        return False
    for i in range(depth):
        if ranks[begin + i] != ranks[other_begin + i]:
            return False
    return True


@lent
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


@lent
def walk(bits, query, known, edges, most, out, used):
    """Append the rows of a large cluster that a query contains; returns where they end, and how many were read.

    A row begins with ranks of the one before. If that one failed at
    one of these, so does this, unread; else only the ranks behind them are compared.
    """
    ((offsets, ranks, _, first_rows), shared, _), (query_ranks, at, last) = known, query
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


@lent
def scan(bits, query, known, edges, out, used):
    """As `walk`, of a cluster in which that takes less time: by the second-rarest rank of each row."""
    ((offsets, ranks, seconds, first_rows), _, _), (query_ranks, at, last) = known, query
    exact, candidates = 8 * len(bits) >= len(first_rows), _U(used)
    for row in range(_U(edges[0]), _U(edges[1])):
        word, bit = bit_of(bits, seconds[row])
        out[candidates] = row
        candidates += (bits[word] >> bit) & _U(1)
    found = _U(used)
    for i in range(found, candidates):
        candidate = _U(out[i])
        begin, stop = _U(offsets[candidate]) + _U(1), _U(offsets[candidate + _U(1)])
        out[found] = candidate
        contained = all_known(bits, ranks, begin, stop)
        if not exact and contained:
            contained = _U(contains_ranks(query_ranks, at, last, ranks, begin, stop))
        found += contained
    return np.int64(found), np.int64(candidates) - used


@lent
def verify_stamped(stamps_of_query, known, out, used, noted):
    """Leave of the rows `out[used:noted]` those that a query contains; returns where they end.

    And how many have their second-rarest rank in common with it. `stamps` has a byte for each rank, which is the
    query's number if it has the rank. Most rows fail, or end, within a few ranks, which takes no branch.
    """
    (stamps, number), ((offsets, ranks, _, _), _, _), read = stamps_of_query, known, _U(0)
    for i in range(used, noted):
        row = _U(out[i])
        at, end = _U(offsets[row]) + _U(1), _U(offsets[row + _U(1)])
        found = _U(stamps[ranks[min(at, end - _U(1))]] == number)
        read += found
        for place in range(_U(1), _AT_ONCE):
            found &= _U(stamps[ranks[min(at + place, end - _U(1))]] == number)
        at += _AT_ONCE
        while at < end and found:
            found = _U(stamps[ranks[at]] == number)
            at += _U(1)
        out[used] = row
        used += found
    return used, np.int64(read)
