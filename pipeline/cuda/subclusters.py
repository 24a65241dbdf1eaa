"""Where the sets with each second-rarest tag are in the large clusters of the `rarest` layout: a hash table.

A thread that searches a cluster of thousands of rows waits for memory at each step of a binary search, and the other
threads of its warp wait for it. Here it waits once.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.cuda.memory import grid, to_device
from tagmatch.pipeline.rules.clusters import NO_RANK, SCAN_ROWS, seek_row

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
    """The hash table, in device memory.

    Parameters
    ----------
    rows : int
        Of the device arrays:
    offsets, ranks, seconds, first_rows : device arrays
        The sets' ranks, their second ranks, and where each rarest tag's cluster begins.

    Attributes
    ----------
    table : (uint64 device array of slots x 2, np.uint64)
        The last arguments of `find_subcluster`.
    """

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
