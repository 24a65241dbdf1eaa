"""The search of a cluster of the `rarest` layout: one rule for the CPU and for CUDA.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. The rows that share their first
`depth` ranks are searched by leapfrogging: the rows' next ranks and the query's remaining ranks are both ascending,
and whichever is behind gallops to the other. Short ranges are not searched further.

Exact verification: whether an ascending rank list is contained in a query's ascending ranks.

How pairs go back to the host: four 8-bit query ids, then four 32-bit set ids (§3.3.1).

A record has the number of an item, the number of its pairs, and these pairs: their query ids count within the item.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array
from tagmatch.model.kernels.jit import inlined, kernel

# Up to this many of the query's ranks walking beats galloping
_FEW_RANKS = 16


@kernel
def seek(query, at, end, rank):
    """First place from `at` on, below `end`, whose rank is not below `rank`; else `end`. Galloping search.

    Its time grows with the logarithm of the distance, so that checking many sets against a query of thousands of
    tags does not walk the query each time.
    """
    step = 1
    while at + step <= end and query[at + step - 1] < rank:
        at += step
        step *= 2
    low, high = at, min(at + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if query[middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def contains_ranks(query, at, end, ranks, begin, stop):
    """Whether all of `ranks[begin:stop]` are in `query[at:end]`; both ascending."""
    if end - at > _FEW_RANKS:
        for i in range(begin, stop):
            at = seek(query, at, end, ranks[i])
            if at == end or query[at] != ranks[i]:
                return False
            at += 1
        return True
    for i in range(begin, stop):
        while at < end and query[at] < ranks[i]:
            at += 1
        if at == end or query[at] != ranks[i]:
            return False
        at += 1
    return True


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


#: Words, of 32 bits, with which a record begins
RECORD_HEADER = 2

#: Pairs of a group, and the words and bytes that it takes
GROUP = 4
GROUP_WORDS = GROUP + 1
GROUP_BYTES = 4 * GROUP_WORDS


@kernel
def packed_words(pairs):
    """How many 32-bit words the pairs of a record take."""
    return pairs + (pairs + GROUP - 1) // GROUP


@kernel
def _unpack(words, firsts, queued, queries, sets):
    used = 0
    at = 0
    while at < len(words):
        first, count = firsts[words[at]], np.int64(words[at + 1])
        at += RECORD_HEADER
        for i in range(count):
            group, place = at + GROUP_WORDS * (i // GROUP), i % GROUP
            queries[used] = queued[first + ((words[group] >> np.uint32(8 * place)) & np.uint32(255))]
            sets[used] = words[group + 1 + place]
            used += 1
        at += packed_words(count)


def unpack(words: U32Array, pairs: int, firsts: I64Array, queued: I64Array) -> tuple[U32Array, U32Array]:
    """Query numbers and set ids, `pairs` of each, of the items whose queries begin at `firsts` in `queued`."""
    queries, sets = np.empty(pairs, np.uint32), np.empty(pairs, np.uint32)
    _unpack(words, firsts, queued, queries, sets)
    return queries, sets
