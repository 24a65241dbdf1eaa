"""Matching (query, set id) pairs on the device, and the keys that they become, grouped by query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import Lists, narrow_offsets, pooled
from tagmatch.model.deletions import is_deleted
from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid
from tagmatch.pipeline.cuda.scan import prefix_sums
from tagmatch.pipeline.matcher import Space, no_space

cuda: Any = numba.cuda

_BLOCK = 128
_MOST_BLOCKS = 4096

# Places in the array of counters: matches; candidates that verification turned away; (query, block) pairs that pass
# Algorithm 4; words of packed results
PAIRS, REJECTED, PASSED, WORDS = range(4)
COUNTERS = 4


@inlined
def append(query, set_id, pair_queries, pair_sets, counters):
    """Append a match; what has no room is counted as well."""
    at = cuda.atomic.add(counters, PAIRS, 1)
    if at < len(pair_queries) and at < len(pair_sets):
        pair_queries[at] = query
        pair_sets[at] = set_id


@inlined
def keep(good, query, row, staged, staged_queries, staged_rows):
    """Close up what a block has staged, over what its threads have verified; all threads. `staged[1]` counts."""
    cuda.syncthreads()  # all have read theirs
    if good:
        at = cuda.atomic.add(staged, 1, 1)
        staged_queries[at] = query
        staged_rows[at] = row


@inlined
def append_all(count, queries, rows, first, pair_queries, pair_sets, counters):
    """Append so many matches that a block has in shared memory, as `first` is, with one global atomic; all threads."""
    if cuda.threadIdx.x == 0 and count:
        first[0] = cuda.atomic.add(counters, PAIRS, count)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        at = first[0] + i
        if at < len(pair_queries) and at < len(pair_sets):
            pair_queries[at] = queries[i]
            pair_sets[at] = rows[i]


@kernel
def _clear(queries, has_empty, counts, counters, pair_queries, pair_sets):
    """No matches but the empty set's, whose id is 0."""
    i = cuda.grid(1)
    if i == 0:
        for place in range(COUNTERS):
            counters[place] = 0
        if has_empty:
            counters[PAIRS] = queries
    if i < queries:
        counts[i] = 0
        if has_empty and i < len(pair_queries) and i < len(pair_sets):
            pair_queries[i] = i
            pair_sets[i] = 0


@kernel
def _count_keys(pair_queries, pair_sets, counters, deleted, key_offsets, counts):
    pairs = min(counters[PAIRS], min(len(pair_queries), len(pair_sets)))
    for i in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        set_id = pair_sets[i]
        if is_deleted(deleted, set_id):
            continue
        cuda.atomic.add(counts, pair_queries[i], np.int32(key_offsets[set_id + np.uint32(1)] - key_offsets[set_id]))


@kernel
def _copy_keys(pair_queries, pair_sets, counters, deleted, key_offsets, ends, counts, keys, out):
    """Each pair's keys go to its query's list, from the back; `counts` say how many are still to come."""
    for i in range(cuda.grid(1), counters[PAIRS], cuda.gridsize(1)):
        query, set_id = pair_queries[i], pair_sets[i]
        if is_deleted(deleted, set_id):
            continue
        first, last = key_offsets[set_id], key_offsets[set_id + np.uint32(1)]
        at = ends[query] + cuda.atomic.sub(counts, query, np.int32(last - first)) - (last - first)
        for key in range(first, last):
            out[at] = keys[key]
            at += 1


@kernel
def _count_sets(pair_queries, pair_sets, counters, deleted, counts):
    pairs = min(counters[PAIRS], min(len(pair_queries), len(pair_sets)))
    for i in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        if not is_deleted(deleted, pair_sets[i]):
            cuda.atomic.add(counts, pair_queries[i], np.int32(1))


@kernel
def _copy_sets(pair_queries, pair_sets, counters, deleted, ends, counts, out):
    for i in range(cuda.grid(1), counters[PAIRS], cuda.gridsize(1)):
        query = pair_queries[i]
        if is_deleted(deleted, pair_sets[i]):
            continue
        out[ends[query] + cuda.atomic.sub(counts, query, np.int32(1)) - 1] = pair_sets[i]


class Room:
    """How many pairs there is room for: as many as the packet with the most had, as the next may find as many."""

    def __init__(self, pairs: int) -> None:
        self._first = self.pairs = pairs

    def ask(self, pairs: int) -> None:
        """Have room for `count`, and some more."""
        self.pairs = max(self.pairs, pairs + pairs // 8)

    def forget(self) -> None:
        """Begin anew, as there is no memory for that many."""
        self.pairs = self._first


class Pairs:
    """The pairs of one packet, which become lists of keys or, without keys on the device, of set ids.

    Parameters
    ----------
    queries : int
    has_empty : bool
        Whether the empty set is stored, which every query contains.
    keys : (device array, device array) or None
        Offsets and values of the key table.
    deleted : device array
        Bits of the sets that are deleted; empty if there are none.
    workspace : Workspace
    room : Room
    """

    def __init__(
        self,
        queries: int,
        has_empty: bool,
        keys: tuple[Any, Any] | None,
        deleted: Any,
        workspace: Workspace,
        room: Room,
    ) -> None:
        self._queries = queries
        self._has_empty = has_empty
        self._keys = keys
        self._deleted = deleted
        self._workspace = workspace
        self._room = room

    def find(self, launch: Callable[..., None]) -> tuple[int, int]:
        """Have kernels append what they find; once more, with more room, if there was too little.

        Parameters
        ----------
        launch : callable
            Gets the last arguments of `append`.

        Returns
        -------
        (int, int)
            Pairs, and candidates that verification turned away.
        """
        workspace = self._workspace
        while True:
            queries = workspace.device("pair queries", np.uint32, self._room.pairs)
            sets = workspace.device("pair sets", np.uint32, self._room.pairs)
            counts = workspace.device("counts of results", np.int32, self._queries)
            counters = workspace.device("counters", np.int64, COUNTERS)
            _clear[(*grid(self._queries, _BLOCK), workspace.stream)](
                self._queries, self._has_empty, counts, counters, queries, sets
            )
            launch(queries, sets, counters)
            self._arrays = (queries, sets, counters, self._deleted)
            if self._keys is None:
                _count_sets[(*self._grid(self._room.pairs), workspace.stream)](*self._arrays, counts)
            else:
                _count_keys[(*self._grid(self._room.pairs), workspace.stream)](*self._arrays, self._keys[0], counts)
            found = workspace.download("counters", counters, COUNTERS)
            ends = prefix_sums("ends", counts, self._queries, workspace)
            total = workspace.download("total", ends[self._queries :], 1)
            workspace.stream.synchronize()
            self._found, rejected = int(found[PAIRS]), int(found[REJECTED])
            if self._found <= min(len(queries), len(sets)):
                self._counts, self._ends, self._results = counts, ends, int(total[0])
                return self._found, rejected
            self._room.ask(self._found)

    def lists(self, space: Space = no_space) -> Lists:
        """Each query's keys, in `space` or as wide as the table's, or set ids, uint32, in no order; asked for once."""
        workspace, ends, counts = self._workspace, self._ends, self._counts
        launched = (*self._grid(self._found), workspace.stream)
        values = None
        if self._keys is None:
            out = workspace.device("sets", np.uint32, self._results)
            _copy_sets[launched](*self._arrays, ends, counts, out)
        else:
            values = space(self._results)
            key_offsets, keys = self._keys
            wide = values is not None
            out = workspace.device("wide keys" if wide else "keys", np.uint64 if wide else keys.dtype, self._results)
            _copy_keys[launched](*self._arrays, key_offsets, ends, counts, keys, out)
        host_ends = workspace.download("host ends", ends, self._queries + 1)
        if values is None:
            host_values = workspace.download("host results", out, self._results)
            workspace.stream.synchronize()
            values = kept(host_values, host_values.dtype)
        else:
            workspace.download_into(values, out)
            workspace.stream.synchronize()
        return Lists(kept(host_ends, narrow_offsets(host_ends[-1:]).dtype), values)

    def _grid(self, pairs: int) -> tuple[int, int]:
        blocks, threads = grid(pairs, _BLOCK)
        return min(blocks, _MOST_BLOCKS), threads


def kept(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A copy of pinned memory, which the next packet gets."""
    out = pooled(len(values), dtype)
    np.copyto(out, values, casting="same_kind")
    return out
