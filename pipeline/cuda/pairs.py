"""Queries as ranks on the device (stage 1), and what they find: pairs, which become keys, grouped by query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numba.cuda
import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import INT32_MAX, IntArray, Lists, Strings, TagLists, U64Array, bytes_of, pooled
from tagmatch.model.kernels.hashing import xxh64
from tagmatch.model.kernels.lists import ascending_row
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Vocabulary, is_deleted
from tagmatch.pipeline.cuda.device import (
    Workspace,
    device_array,
    grid,
    inlined,
    kernel,
    prefix_sums,
    sent,
)
from tagmatch.pipeline.tags import Space, no_space

cuda: Any = numba.cuda

_BLOCK = 128
_MOST_BLOCKS = 4096

# Places in the array of counters: matches; candidates that verification turned away; (query, block) pairs that pass
# Algorithm 4; queries whose keys are left to the merge stage
PAIRS, REJECTED, PASSED, TO_MERGE = range(4)
COUNTERS = 4

# Candidates of a block that wait; a block of queries of tweets has some 300
_STAGE = 1024


class QueryArrays(NamedTuple):
    """Queries as ranks on the device: `i` has `ranks[offsets[i]:offsets[i] + counts[i]]`, ascending, each once."""

    offsets: Any
    counts: Any
    ranks: Any
    owners: Any  # The query of each place


class KeyArrays(NamedTuple):
    """Keys on the device: set `i` has `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Any
    values: Any


class PairArrays(NamedTuple):
    """Where kernels append pairs of a query and a set, which are counted also if there is no room."""

    queries: Any
    sets: Any
    counters: Any


@inlined
def new_stage():
    """Shared memory of a block: how many wait, and are left; candidates and rows; and a place for all threads."""
    staged = cuda.shared.array(2, np.int32)
    candidates = cuda.shared.array(_STAGE, np.uint32)
    rows = cuda.shared.array(_STAGE, np.uint32)
    place = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        staged[0] = staged[1] = 0
    cuda.syncthreads()
    return staged, candidates, rows, place


def staging(verified: Callable[..., Any]) -> tuple[Any, Any]:
    """Device functions by which the threads of a block find candidates, and verify them together.

    Threads find very different numbers of candidates; one after the other would have all wait for the unluckiest.
    `verified(candidate, row, asked, known)` says whether a candidate is a match, and its query and set.
    """

    @inlined
    def stage(candidate, row, waiting, asked, known, out):
        """Queue a candidate; without room for it, this thread verifies it."""
        staged, candidates, rows, _ = waiting
        at = cuda.atomic.add(staged, 0, 1)
        if at < len(candidates):
            candidates[at] = candidate
            rows[at] = row
            return
        good, query, set_id = verified(np.int64(candidate), np.int64(row), asked, known)
        at = cuda.atomic.add(out.counters, PAIRS if good else REJECTED, 1)
        if good and at < len(out.queries) and at < len(out.sets):
            out.queries[at] = query
            out.sets[at] = set_id

    @inlined
    def flush(waiting, asked, known, out):
        """Verify the candidates that wait, one a thread, and append matches, with one global atomic; all threads."""
        staged, candidates, rows, place = waiting
        cuda.syncthreads()
        count = min(staged[0], len(candidates))
        if count == 0:
            return
        for start in range(0, count, cuda.blockDim.x):
            at = start + cuda.threadIdx.x
            good = False
            query = np.uint32(0)
            set_id = np.uint32(0)
            if at < count:
                good, query, set_id = verified(np.int64(candidates[at]), np.int64(rows[at]), asked, known)
            cuda.syncthreads()  # all have read theirs: matches close up over the verified candidates
            if good:
                at = cuda.atomic.add(staged, 1, 1)
                candidates[at] = query
                rows[at] = set_id
        cuda.syncthreads()
        left = staged[1]
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(out.counters, REJECTED, count - left)
            if left:
                place[0] = cuda.atomic.add(out.counters, PAIRS, left)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, left, cuda.blockDim.x):
            at = place[0] + i
            if at < len(out.queries) and at < len(out.sets):
                out.queries[at] = candidates[i]
                out.sets[at] = rows[i]
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            staged[0] = staged[1] = 0
        cuda.syncthreads()

    return stage, flush


@kernel
def _clear(queries, has_empty, counts, out):
    """No matches but the empty set's, whose id is 0."""
    i = cuda.grid(1)
    if i == 0:
        for place in range(COUNTERS):
            out.counters[place] = 0
        if has_empty:
            out.counters[PAIRS] = queries
    if i < queries:
        counts[i] = 0
        if has_empty and i < len(out.queries) and i < len(out.sets):
            out.queries[i] = i
            out.sets[i] = 0


@inlined
def _counted_pairs(found):
    return min(found.counters[PAIRS], min(len(found.queries), len(found.sets)))


@kernel
def _count_keys(found, deleted, keys, counts):
    """Add how many keys the set of each pair has to its query's count."""
    for i in range(cuda.grid(1), _counted_pairs(found), cuda.gridsize(1)):
        set_id = found.sets[i]
        if not is_deleted(deleted, set_id):
            more = keys.offsets[set_id + np.uint32(1)] - keys.offsets[set_id]
            cuda.atomic.add(counts, found.queries[i], np.int32(more))


@kernel
def _copy_keys(found, deleted, keys, ends, counts, out):
    """Each pair's keys go to its query's list, from the back; `counts` say how many are still to come."""
    for i in range(cuda.grid(1), found.counters[PAIRS], cuda.gridsize(1)):
        query, set_id = found.queries[i], found.sets[i]
        if not is_deleted(deleted, set_id):
            first, last = keys.offsets[set_id], keys.offsets[set_id + np.uint32(1)]
            at = ends[query] + cuda.atomic.sub(counts, query, np.int32(last - first)) - (last - first)
            for key in range(first, last):
                out[at] = keys.values[key]
                at += 1


# Threads that put a query's keys in order: each compares some with all. More keys than these are left to the CPU
_ORDERING = 16
_MOST_ORDERED = 1024


@kernel
def _order_keys(queries, ends, keys, counts, counters, out):
    """Write each query's keys to the same places, ascending; adds to its count how many there are, each once."""
    thread = cuda.grid(1)
    query, lane = thread // _ORDERING, thread % _ORDERING
    if query < queries:
        begin, end = ends[query], ends[query + 1]
        ordered, different = end - begin <= _MOST_ORDERED, 0
        for i in range(begin + lane, end, _ORDERING):
            key, place, first = keys[i], i, True
            if ordered:
                place = begin
                for other in range(begin, end):
                    is_before = keys[other] == key and other < i
                    place += keys[other] < key or is_before
                    first &= not is_before
            out[place] = key
            different += first
        if different:
            cuda.atomic.add(counts, query, np.int32(different))
        if lane == 0 and not ordered:
            cuda.atomic.add(counters, TO_MERGE, 1)


@kernel
def _copy_once(queries, ends, keys, new_ends, out):
    """Write each query's ascending keys, each once, or as they are if they were left to the CPU."""
    query = cuda.grid(1)
    if query < queries:
        begin, end, at = ends[query], ends[query + 1], new_ends[query]
        whole = new_ends[query + 1] - at == end - begin
        for i in range(begin, end):
            if whole or i == begin or keys[i] != keys[i - 1]:
                out[at] = keys[i]
                at += 1


@kernel
def _count_sets(found, deleted, counts):
    """Add the set of each pair to its query's count."""
    for i in range(cuda.grid(1), _counted_pairs(found), cuda.gridsize(1)):
        if not is_deleted(deleted, found.sets[i]):
            cuda.atomic.add(counts, found.queries[i], np.int32(1))


@kernel
def _copy_sets(found, deleted, ends, counts, out):
    """As `_copy_keys`, of the sets themselves."""
    for i in range(cuda.grid(1), found.counters[PAIRS], cuda.gridsize(1)):
        query, set_id = found.queries[i], found.sets[i]
        if not is_deleted(deleted, set_id):
            out[ends[query] + cuda.atomic.sub(counts, query, np.int32(1)) - 1] = set_id


class Room:
    """How many pairs there is room for: as many as the packet with the most had, as the next may find as many."""

    def __init__(self, pairs: int) -> None:
        self._first = self.pairs = pairs

    def ask(self, pairs: int) -> None:
        """Make room for `count`, and some more."""
        self.pairs = max(self.pairs, pairs + pairs // 8)

    def forget(self) -> None:
        """Begin anew, as there is no memory for that many."""
        self.pairs = self._first


@dataclass(slots=True, eq=False)
class Pairs:
    """The pairs of one packet, which become lists of keys or, without keys on the device, of set ids."""

    queries: int
    has_empty: bool
    keys: KeyArrays | None
    deleted: Any
    workspace: Workspace
    room: Room
    _pairs: Any = None  # `PairArrays`, and of each query how many results it has, and where these end
    _counts: Any = None
    _ends: Any = None
    _found: int = 0  # How many pairs, and results
    _results: int = 0
    once: bool = False  # See `Matched`

    def find(self, launch: Callable[..., None]) -> tuple[int, int]:
        """Launch kernels that append their pairs; once more, with more room, if there was too little."""
        workspace, count = self.workspace, self.queries
        while True:
            queries = workspace.device("pair queries", np.uint32, self.room.pairs)
            sets = workspace.device("pair sets", np.uint32, self.room.pairs)
            counters = workspace.device("counters", np.int64, COUNTERS)
            counts = workspace.device("counts of results", np.int32, count)
            out = self._pairs = workspace.table(PairArrays, queries, sets, counters)
            _clear[(*grid(count, _BLOCK), workspace.stream)](count, self.has_empty, counts, out)
            launch(out)
            launched = (*self._grid(self.room.pairs), workspace.stream)
            if self.keys is None:
                _count_sets[launched](out, self.deleted, counts)
            else:
                _count_keys[launched](out, self.deleted, self.keys, counts)
            found = workspace.download("counters", counters, COUNTERS)
            ends = prefix_sums("ends", counts, count, workspace)
            total = workspace.download("total", ends, 1, count)
            workspace.stream.synchronize()
            self._found, rejected = int(found[PAIRS]), int(found[REJECTED])
            if self._found <= min(len(queries), len(sets)):
                self._counts, self._ends, self._results = counts, ends, int(total[0])
                return self._found, rejected
            self.room.ask(self._found)

    def lists(self, space: Space = no_space, *, unique: bool = False) -> Lists:
        """Each query's keys, in `space` or as wide as the table's, or set ids, uint32; can be asked for once.

        They are in no order; keys that are wanted `unique` ascend and are there once, except if a query has many.
        """
        workspace, ends, counts = self.workspace, self._ends, self._counts
        launched = (*self._grid(self._found), workspace.stream)
        if self.keys is None:
            values, out = None, workspace.device("sets", np.uint32, self._results)
            _copy_sets[launched](self._pairs, self.deleted, ends, counts, out)
        elif unique:
            keys = workspace.device("keys", self.keys.values.dtype, self._results)
            _copy_keys[launched](self._pairs, self.deleted, self.keys, ends, counts, keys)
            ordered, ends = self._ordered(keys)
            values, out = self._place(space)
            _copy_once[(*grid(self.queries, _BLOCK), workspace.stream)](self.queries, self._ends, ordered, ends, out)
        else:
            values, out = self._place(space)
            _copy_keys[launched](self._pairs, self.deleted, self.keys, ends, counts, out)
        offsets: IntArray = np.empty(self.queries + 1, np.int32 if self._results <= INT32_MAX else np.int64)
        workspace.stream.keep(offsets, workspace.download("host ends", ends, self.queries + 1))
        if values is None:
            values = pooled(self._results, out.dtype)
            workspace.stream.keep(values, workspace.download("host results", out, self._results))
        else:
            workspace.stream.download(values, out)
        workspace.stream.synchronize()
        return Lists(offsets, values)

    def _ordered(self, keys: Any) -> tuple[Any, Any]:
        """Each query's keys ascending, at the places of all; and their ends if each is there once."""
        workspace, count = self.workspace, self.queries
        ordered = workspace.device("ordered keys", keys.dtype, self._results)
        counters = self._pairs.counters
        # To copy keys has made all counts 0
        by_thread = (*grid(_ORDERING * count, _BLOCK), workspace.stream)
        _order_keys[by_thread](count, self._ends, keys, self._counts, counters, ordered)
        ends = prefix_sums("ends of keys", self._counts, count, workspace)
        found, total = workspace.download("counters", counters, COUNTERS), workspace.download("total", ends, 1, count)
        workspace.stream.synchronize()
        self.once, self._results = not found[TO_MERGE], int(total[0])
        return ordered, ends

    def _place(self, space: Space) -> tuple[U64Array | None, Any]:
        """Memory of the host for the keys, or `None`, and of the device, as wide."""
        assert self.keys is not None
        values = space(self._results)
        name, dtype = ("narrow keys", self.keys.values.dtype) if values is None else ("wide keys", np.uint64)
        return values, self.workspace.device(name, dtype, self._results)

    def _grid(self, pairs: int) -> tuple[int, int]:
        blocks, threads = grid(pairs, _BLOCK)
        return min(blocks, _MOST_BLOCKS), threads


def kept(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A copy of pinned memory, which the next packet gets."""
    out = pooled(len(values), dtype)
    np.copyto(out, values, casting="same_kind")
    return out


# Of a dictionary, which threads copy and look up together
_STRINGS_A_PIECE = 1 << 19


class _Tags(NamedTuple):
    """The tags that stored sets have, as `find` takes them."""

    slots: Any
    offsets: Any
    data: Any


@kernel
def _look_up(tags, starts, base, data, seed, known, numbers):
    """One thread a tag, whose first byte is at `starts[i] - base`."""
    i = cuda.grid(1)
    if i < tags:
        start, stop = starts[i] - base, starts[i + 1] - base
        tag_hash = xxh64(data, start, stop, seed)
        numbers[i] = find(tag_hash, data, start, stop, known.slots, known.offsets, known.data)[2]


@kernel
def _spread(places, strings, known, indices, ranks):
    """One thread a place: the rank of its string of the dictionary."""
    i = cuda.grid(1)
    if i < places:
        index = indices[i]
        ranks[i] = known[index] if index < strings else UNKNOWN


@kernel
def _sort(queries, starts, base, out):
    """One thread a query: its ranks become ascending, in place."""
    i = cuda.grid(1)
    if i < queries:
        first, last = starts[i] - base, starts[i + 1] - base
        out.offsets[i] = first
        out.counts[i] = ascending_row(out.ranks, first, last, first) - first
        for at in range(first, last):
            out.owners[at] = i


@dataclass(slots=True, eq=False)
class DeviceQueries:
    """Queries as ranks on the device."""

    workspace: Workspace
    count: int  # Of queries, and of all their tags, the unknown ones included
    places: int
    arrays: QueryArrays


class CudaTagIndex:
    """Looks up the ranks of tags on the device."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._seed = np.uint64(vocabulary.seed)
        tags = vocabulary.tags
        self._tags = sent(_Tags(vocabulary.slots_of_queries, tags.offsets, tags.data))
        self.nbytes = bytes_of(self._tags)

    def prepare(self, tags: TagLists, first: int, last: int) -> Callable[[Workspace], DeviceQueries]:
        """Do the CPU's part of stage 1 for queries `first` to `last`; the rest needs a workspace."""
        return partial(self.ranks, tags, first, last)

    def ranks(self, tags: TagLists, first: int, last: int, workspace: Workspace) -> DeviceQueries:
        """Copy queries `first` to `last` to the device and look their tags up; strings of a dictionary for all queries.

        Of these, packets then copy indices only.
        """
        begin, end = int(tags.offsets[first]), int(tags.offsets[last])
        places, queries, stream = end - begin, last - first, workspace.stream
        if tags.indices is None:
            ranks = workspace.device("ranks", np.uint32, places)
            self._look_up(tags.tags, begin, end, workspace, ranks)
        else:
            known = self._looked_up(tags, workspace)
            ranks = workspace.device("ranks", np.uint32, places)
            indices = workspace.send("indices", tags.indices[begin:end])
            if places:
                _spread[(*grid(places, _BLOCK), stream)](places, len(tags.tags), known, indices, ranks)
        starts, base = _starts("starts of queries", tags.offsets[first : last + 1], workspace)
        offsets = workspace.device("offsets", np.int32, queries)
        counts = workspace.device("counts", np.int32, queries)
        arrays = workspace.table(QueryArrays, offsets, counts, ranks, workspace.device("owners", np.uint32, places))
        _sort[(*grid(queries, _BLOCK), stream)](queries, starts, base, arrays)
        return DeviceQueries(workspace, queries, places, arrays)

    def _looked_up(self, tags: TagLists, workspace: Workspace) -> Any:
        """Ranks of a dictionary's strings in memory of the device; threads copy and look up some each."""
        strings = tags.tags

        def begin() -> tuple[Any, list[tuple[int, int]]]:
            pieces = even_ranges(len(strings), 1 + len(strings) // _STRINGS_A_PIECE)
            return device_array(np.uint32, len(strings)), pieces

        def look_up(ranks: Any, ends: tuple[int, int]) -> None:
            first, last = ends
            self._look_up(strings, first, last, workspace, ranks[first:last])
            workspace.stream.synchronize()  # the others have their own streams

        return tags.memo.together(self, begin, look_up)

    def _look_up(self, tags: Strings, first: int, last: int, workspace: Workspace, ranks: Any) -> None:
        """Copy strings `first` to `last` to the device, and write their ranks."""
        begin, end = int(tags.offsets[first]), int(tags.offsets[last])
        data = workspace.send("data", tags.data[begin:end])
        starts, base = _starts("starts of tags", tags.offsets[first : last + 1], workspace)
        if first < last:
            _look_up[(*grid(last - first, _BLOCK), workspace.stream)](
                last - first, starts, base, data, self._seed, self._tags, ranks
            )


def _starts(name: str, offsets: IntArray, workspace: Workspace) -> tuple[Any, int]:
    """Offsets, int32, in memory of the device, and the number to subtract from each, so that the first is 0.

    As they are, if they have 32 bits: to subtract on the host takes longer than to copy.
    """
    base, raw = int(offsets[0]), offsets.dtype == np.int32
    return workspace.send(name, offsets if raw else (offsets - base).astype(np.int32)), base if raw else 0
