"""The best of each message's keys: those with the least ranks, kept in heaps while rows are looked up."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U32Array
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import sort_values


@kernel
def _keep_best(ends, rows, key_offsets, ranks, heaps, sizes):
    """Keep the least ranks of the keys of each message's rows, each once: in heaps, the greatest of them first."""
    limit = heaps.shape[1]
    for message in range(len(ends) - 1):
        heap, size = heaps[message], sizes[message]
        for i in range(ends[message], ends[message + 1]):
            row = rows[i]
            for place in range(key_offsets[row], key_offsets[row + np.uint32(1)]):
                rank = ranks[place]
                if size == limit and rank >= heap[0]:
                    continue
                known = False
                for at in range(size):
                    known |= heap[at] == rank
                if known:
                    continue
                if size < limit:
                    at = size
                    size += 1
                    while at > 0 and heap[(at - 1) >> 1] < rank:
                        heap[at] = heap[(at - 1) >> 1]
                        at = (at - 1) >> 1
                else:
                    at = 0
                    while True:
                        child = 2 * at + 1
                        if child >= size:
                            break
                        if child + 1 < size and heap[child + 1] > heap[child]:
                            child += 1
                        if heap[child] <= rank:
                            break
                        heap[at] = heap[child]
                        at = child
                heap[at] = rank
        sizes[message] = size


@kernel
def _in_order(heaps, sizes, ends, out):
    """Write the ranks of each message, ascending."""
    used = 0
    for message in range(len(sizes)):
        sort_values(heaps[message], 0, sizes[message])
        for at in range(sizes[message]):
            out[used] = heaps[message, at]
            used += 1
        ends[message + 1] = used


class Best:
    """The least ranks of each of some messages, each once."""

    def __init__(self, messages: int, limit: int) -> None:
        self._heaps, self._sizes = np.empty((messages, limit), np.uint32), np.zeros(messages, np.int64)

    def add(self, rows: Lists, key_offsets: I64Array, ranks: U32Array) -> None:
        """Rows of a segment that each message satisfies; the rank of each key, and where those of a row begin."""
        ends = rows.offsets.astype(np.int64, copy=False)
        _keep_best(ends, rows.values, key_offsets, ranks, self._heaps, self._sizes)

    def lists(self) -> Lists:
        """The ranks of each message, ascending."""
        ends, out = np.zeros(len(self._sizes) + 1, np.int64), np.empty(int(self._sizes.sum()), np.uint32)
        _in_order(self._heaps, self._sizes, ends, out)
        return Lists(ends, out)
