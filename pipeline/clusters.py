"""Clusters: the sets of a segment that share a rarest tag, and how one is searched for those that a query contains.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. A query is a bitmap of its ranks.
A cluster of thousands of rows is walked as this tree: a row is read from its first difference to the row
before, and not at all if that one failed before this place. Of another, short rows are looked at rank by rank, and of
longer ones those whose second-rarest tag the query has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, U8Array, U32Array, U64Array, UIntArray, frozen
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import Segment, is_deleted
from tagmatch.pipeline.tags import contains_ranks

_U = np.uint64

# Most ranks that a row is counted as sharing with the row before
_MOST_SHARED = 255
# So many rows that share a rank which a query does not have are passed over one by one, the others by a search
_NEAR_ROWS = _U(64)
# Ranks of a row that are looked at before it is turned away: to branch for each takes longer
_RANKS_AT_ONCE = _U(4)

# Ranks that are known of a row by its head, with the one of its cluster; bits of each rank in the head
_RANKS_OF_HEAD, _HEAD_BITS, _HEAD = _U(4), _U(21), _U((1 << 21) - 1)

#: How many runs are read before a check whether the keys are enough; and how many rows a short one has at most
AT_ONCE, SHORT_RUN = _U(64), _U(16)
# Stands for the third rank of a set of two tags; the bit of it is that of `NO_RANK`
_SHORTER = _U(0x7FFFFFFF)
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


class Runs(NamedTuple):
    """The rows of each cluster in runs with the same second-rarest rank, by which they are counted."""

    first_runs: U32Array  # The cluster of rank `r` has runs `first_runs[r]` to `first_runs[r + 1]`
    starts: U32Array  # The first row of each run, and the one behind the last
    seconds: U32Array  # Of each run
    thirds: U32Array  # Of each row, the third-rarest rank, with the highest bit if there are more, or not one key


@kernel
def _runs(clusters, key_offsets, first_runs, starts, thirds):
    offsets, ranks, seconds, first_rows = clusters
    used = 0
    for rank in range(len(first_rows) - 1):
        first_runs[rank] = used
        for row in range(first_rows[rank], first_rows[rank + 1]):
            begin, count = offsets[row], offsets[row + 1] - offsets[row]
            third, is_left = _SHORTER, count > 3 or key_offsets[row + 1] - key_offsets[row] != 1
            if count > 2:
                third = _U(ranks[begin + 2])
            thirds[row] = third | _U(is_left) << _U(31)
            if row == first_rows[rank] or seconds[row] != seconds[row - 1]:
                starts[used] = row
                used += 1
    first_runs[len(first_rows) - 1] = used
    starts[used] = len(seconds)
    return used


def runs_of(clusters: Clusters, keys: Lists) -> Runs:
    """The runs of a segment's clusters, whose rows have such keys."""
    count = len(clusters.seconds)
    first_runs, starts, thirds = (np.empty(size, np.uint32) for size in (len(clusters.first_rows), count + 1, count))
    starts = starts[: 1 + _runs(tuple(clusters), keys.offsets, first_runs, starts, thirds)].copy()
    return Runs(*(frozen(each) for each in (first_runs, starts, clusters.seconds[starts[:-1]], thirds)))


@kernel
def _heads(offsets, ranks, out):
    for row in range(len(out)):
        begin, count, head = _U(offsets[row]), _U(offsets[row + 1]) - _U(offsets[row]), _U(0)
        for place in range(_U(1), _RANKS_OF_HEAD if count else _U(0)):  # a query has the first one, as of the cluster
            head |= _U(ranks[begin + (place if place < count else _U(0))]) << (_HEAD_BITS * (place - _U(1)))
        out[row] = head | _U(count > _RANKS_OF_HEAD) << _U(63)


def heads_of(clusters: Clusters) -> U64Array:
    """Of each row the second, third and fourth rank, or the first in their place, and whether there are more.

    In 21 bits each, so there must not be more than two million tags.
    """
    heads = np.empty(len(clusters.seconds), np.uint64)
    _heads(clusters.offsets, clusters.ranks, heads)
    return frozen(heads)


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
        for i in range(_RANKS_AT_ONCE):
            word, bit = bit_of(bits, ranks[min(at + i, end - _U(1))])
            found &= bits[word] >> bit
        at += _RANKS_AT_ONCE
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
    """Append the rows of a large cluster that a query contains; returns their end, and how many were read.

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
def keys_at(weights, row):
    """How many keys a row has; none if it is deleted."""
    key_offsets, is_single, deleted = weights
    count = _U(1)
    if not is_single:
        count = _U(key_offsets[row + 1]) - _U(key_offsets[row])
    return count * (_U(1) - is_deleted(deleted, row))


@lent
def _choose(bits, ranks, first, stop, chosen):
    """Put the places from `first` to `stop` whose rank is known into `chosen`, without a branch; returns how many."""
    count = _U(0)
    for each in range(first, stop):
        word, bit = bit_of(bits, ranks[each])
        chosen[count] = each
        count += _U(bits[word] >> bit) & _U(1)
    return count


@lent
def _tally_row(bits, thirds, row, is_left, longer, tallied):
    """Count a row whose second rank is known, if its third one is, too; `longer` gets it if it has more, or all do."""
    (waiting, found), third = tallied, _U(thirds[row])
    word, bit = bit_of(bits, third & _SHORTER)
    is_known = _U(bits[word] >> bit) & _U(1)
    longer[waiting] = row
    return waiting + (is_known & (third >> _U(31) | is_left)), found + is_known


@lent
def _tally_longer(bits, known, weights, longer, tallied):
    """How many rows were counted, and their keys, when those that were left have been looked at."""
    (offsets, ranks, _, _), (waiting, found) = known[0], tallied
    found -= waiting
    keys = found
    for place in range(waiting):
        row = _U(longer[place])
        if all_known(bits, ranks, _U(offsets[row]) + _U(3), _U(offsets[row + _U(1)])):
            own = keys_at(weights, row)
            found += _U(own > _U(0))
            keys += own
    return found, keys


@lent
def tally(bits, known, runs, ends, weights, most, room):
    """How many keys the rows of some runs have that a query contains, or some, if `most` or more.

    And how many rows these are, and were read. There is a bit for each rank. It does not branch on the second rank of
    a run, nor on the third one of a row, nor on how many rows a short run has.
    """
    (_, starts, of_runs, thirds), (chosen, rows, longer) = runs, room
    run, end, read, found, keys, is_left = _U(ends[0]), _U(ends[1]), _U(0), _U(0), _U(0), _U(len(weights[2]) > 0)
    while run < end and keys < most:
        stop, tallied, short = min(end, run + AT_ONCE), (_U(0), _U(0)), _U(0)
        count = _choose(bits, of_runs, run, stop, chosen)
        run = stop
        for i in range(count):
            row, row_end = _U(starts[chosen[i]]), _U(starts[_U(chosen[i]) + _U(1)])
            read += row_end - row
            if row_end - row <= SHORT_RUN:
                for place in range(SHORT_RUN):
                    rows[short + place] = row + place
                short += row_end - row
                continue
            while row < row_end and keys < most:
                stop, of_run = min(row_end, row + AT_ONCE), (_U(0), _U(0))
                for each in range(row, stop):
                    of_run = _tally_row(bits, thirds, each, is_left, longer, of_run)
                own_rows, own = _tally_longer(bits, known, weights, longer, of_run)
                found, keys, row = found + own_rows, keys + own, stop
        for i in range(short):
            tallied = _tally_row(bits, thirds, _U(rows[i]), is_left, longer, tallied)
        own_rows, own = _tally_longer(bits, known, weights, longer, tallied)
        found, keys = found + own_rows, keys + own
    return keys, found, np.int64(read)


@lent
def turned_away(stamps_of_query, heads, row, found):
    """Append a row to those that were found, or to those whose other ranks have to be read, or to neither.

    Without branches. `found` is an array, where the two lists end, and how many rows have their second-rarest rank in
    common with the query; returns the latter three. `stamps` has a byte for each rank, which is the query's number if
    it has the rank.
    """
    (stamps, number), (out, used, waiting, read) = stamps_of_query, found
    head = heads[row]
    second = _U(stamps[head & _HEAD] == number)
    known = second & _U(stamps[(head >> _HEAD_BITS) & _HEAD] == number)
    known &= _U(stamps[(head >> (_HEAD_BITS + _HEAD_BITS)) & _HEAD] == number)
    has_more = head >> _U(63)
    out[used] = out[waiting] = row
    return used + (known & ~has_more), waiting + (known & has_more), read + second


@lent
def verify_longer(stamps_of_query, clusters, out, waiting, used):
    """Append those rows between two places whose ranks behind the first ones a query has; returns their end."""
    (stamps, number), (offsets, ranks, _, _), (first, last) = stamps_of_query, clusters, waiting
    for i in range(first, last):
        row = _U(out[i])
        at, end, found = _U(offsets[row]) + _RANKS_OF_HEAD, _U(offsets[row + _U(1)]), _U(1)
        while at + _RANKS_AT_ONCE <= end and found:
            for place in range(_RANKS_AT_ONCE):
                found &= _U(stamps[ranks[at + place]] == number)
            at += _RANKS_AT_ONCE
        while at < end and found:
            found = _U(stamps[ranks[at]] == number)
            at += _U(1)
        out[used] = row
        used += found
    return used
