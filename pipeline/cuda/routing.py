"""Algorithm 2 on the device: queries go to the runs of rows in which there may be sets that they contain (§3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, offsets_of
from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid
from tagmatch.pipeline.cuda.scan import prefix_sums
from tagmatch.pipeline.matcher import Batches

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 256

# Runs whose queries a block counts in shared memory before it adds them up with those of other blocks
_TILE = 1024


@inlined
def _count_in_block(queries, not_queries, runs, masks, counts):
    """Count this block's queries that have the mask of each run of a tile.

    Returns the first run of the tile, the end of the last, and this thread's query.
    """
    first = cuda.blockIdx.y * _TILE
    last = min(first + _TILE, runs)
    query = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for run in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        counts[run - first] = 0
    cuda.syncthreads()
    if query < queries:
        x, y, z = not_queries[query, 0], not_queries[query, 1], not_queries[query, 2]
        for run in range(first, last):
            if (masks[run, 0] & x) | (masks[run, 1] & y) | (masks[run, 2] & z) == _U(0):
                cuda.atomic.add(counts, run - first, 1)
    cuda.syncthreads()
    return first, last, query


@kernel
def _count(queries, not_queries, runs, masks, totals):
    """Add to `totals` how many queries each run gets."""
    counts = cuda.shared.array(_TILE, np.int32)
    first, last, _ = _count_in_block(queries, not_queries, runs, masks, counts)
    for run in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        if counts[run - first]:
            cuda.atomic.add(totals, run, counts[run - first])


@kernel
def _queue(queries, not_queries, runs, masks, offsets, used, queued):
    """Write each run's queries to its place in `queued`; `used`, zeros before, has how many stand there already."""
    counts = cuda.shared.array(_TILE, np.int32)
    first, last, query = _count_in_block(queries, not_queries, runs, masks, counts)
    for run in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        if counts[run - first]:
            counts[run - first] = cuda.atomic.add(used, run, counts[run - first])
    cuda.syncthreads()
    if query < queries:
        x, y, z = not_queries[query, 0], not_queries[query, 1], not_queries[query, 2]
        for run in range(first, last):
            if (masks[run, 0] & x) | (masks[run, 1] & y) | (masks[run, 2] & z) == _U(0):
                queued[offsets[run] + cuda.atomic.add(counts, run - first, 1)] = query


@kernel
def _clear(runs, totals, used):
    run = cuda.grid(1)
    if run < runs:
        totals[run] = 0
        used[run] = 0


@kernel
def _count_items(runs, totals, item_queries, items):
    run = cuda.grid(1)
    if run < runs:
        items[run] = (totals[run] + item_queries - 1) // item_queries


@kernel
def _make_items(runs, offsets, first_items, item_queries, item_runs, item_firsts, item_sizes):
    """One thread a run: its queries become items of `item_queries`, but for the last."""
    run = cuda.grid(1)
    if run < runs:
        first = offsets[run]
        for item in range(first_items[run], first_items[run + 1]):
            item_runs[item] = run
            item_firsts[item] = first
            item_sizes[item] = min(item_queries, offsets[run + 1] - first)
            first += item_queries


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Batches of queries, each to be matched with one run of rows.

    Attributes
    ----------
    count : int
    runs : uint32 device array
        The run of each item.
    firsts, sizes : int64 and int32 device arrays
        Item `i` has the queries `queued[firsts[i]:firsts[i] + sizes[i]]`.
    queued : uint32 device array
        Numbers of queries.
    """

    count: int
    runs: Any
    firsts: Any
    sizes: Any
    queued: Any


def route(queries: int, not_queries: Any, runs: int, masks: Any, item_queries: int, workspace: Workspace) -> Items:
    """Group queries by the runs whose masks they have (Algorithm 2), in items of at most `item_queries`.

    Every query is tested with every mask: threads of a warp that walked the one-bits of their own queries would read
    masks from different places.

    Parameters
    ----------
    queries : int
    not_queries : uint64 device array, queries x 3
        Signatures with all bits inverted.
    runs : int
    masks : uint64 device array, runs x 3
    """
    stream = workspace.stream
    by_run = (*grid(runs, _BLOCK), stream)
    totals = workspace.device("queries of runs", np.int32, runs)
    used = workspace.device("queued of runs", np.int32, runs)
    _clear[by_run](runs, totals, used)
    tiles = ((grid(queries, _BLOCK)[0], grid(runs, _TILE)[0]), _BLOCK, stream)
    _count[tiles](queries, not_queries, runs, masks, totals)
    offsets = prefix_sums("offsets of runs", totals, runs, workspace)
    items = workspace.device("items of runs", np.int32, runs)
    _count_items[by_run](runs, totals, item_queries, items)
    first_items = prefix_sums("first items", items, runs, workspace)
    ends = [workspace.download(name, ends[runs:], 1) for name, ends in (("queued", offsets), ("items", first_items))]
    stream.synchronize()
    pairs, count = (int(end[0]) for end in ends)
    queued = workspace.device("queued", np.uint32, pairs)
    _queue[tiles](queries, not_queries, runs, masks, offsets, used, queued)
    made = Items(count, *_item_arrays(count, workspace), queued)
    _make_items[by_run](runs, offsets, first_items, item_queries, made.runs, made.firsts, made.sizes)
    return made


def items_of(batches: Batches, first_runs: I64Array, item_queries: int, workspace: Workspace) -> tuple[Items, I64Array]:
    """Batches that were routed on the CPU: every item is a part of a batch and a run of its partition.

    Parameters
    ----------
    batches : Batches
    first_runs : int64 array, partitions + 1
        Run that each partition begins with.

    Returns
    -------
    (Items, int64 array)
        The array has the `firsts` on the host.
    """
    runs = np.diff(first_runs)[batches.partitions]
    parts = -(-np.diff(batches.offsets) // item_queries)
    counts = runs * parts
    batch = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(batch)) - np.repeat(offsets_of(counts)[:-1], counts)
    firsts = batches.offsets[batch] + number % parts[batch] * item_queries
    item_runs = first_runs[batches.partitions[batch]] + number // parts[batch]
    sizes = np.minimum(batches.offsets[batch + 1] - firsts, item_queries)
    arrays = (item_runs.astype(np.uint32), firsts, sizes.astype(np.int32), batches.queued.astype(np.uint32))
    names = ("item runs", "item firsts", "item sizes", "queued")
    return Items(len(batch), *(workspace.send(*each) for each in zip(names, arrays, strict=True))), firsts


def _item_arrays(count: int, workspace: Workspace) -> tuple[Any, Any, Any]:
    return (
        workspace.device("item runs", np.uint32, count),
        workspace.device("item firsts", np.int64, count),
        workspace.device("item sizes", np.int32, count),
    )
