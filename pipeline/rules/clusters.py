"""The search of a cluster of the `rarest` layout: one rule for the CPU and for CUDA.

Rows are in lexicographic order of their ascending ranks, so the sets that share a rarest tag are adjacent, within
them those that share the second-rarest tag, and so on: a prefix tree without nodes. The rows that share their first
`depth` ranks are searched by leapfrogging: the rows' next ranks and the query's remaining ranks are both ascending,
and whichever is behind gallops to the other. Short ranges are not searched further.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.rules.verify import seek

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
    """Rows of a cluster that may be contained in a query, range by range.

    Parameters
    ----------
    path : int64 array, n x 3
        `path[d]` is the (next row, end, place in the query) of the range at depth d that is still to be searched. The
        caller sets `path[1]` to the cluster. Rows are not searched deeper than `path` reaches.
    depth : int
        1 at first, then what the last call returned.

    Returns
    -------
    (first row, end, depth)
        The search is over when the depth is 0.
    """
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
