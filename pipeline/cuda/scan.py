"""Exclusive prefix sums on the device."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid

cuda: Any = numba.cuda

_THREADS = 256
_EACH = 8
_TILE = _THREADS * _EACH


@kernel
def _scan_tiles(count, values, ends, totals):
    """Sums within each tile: every thread adds up its own, the threads' sums are added up in shared memory."""
    sums = cuda.shared.array(_THREADS, np.int64)
    thread = cuda.threadIdx.x
    first = cuda.blockIdx.x * _TILE + thread * _EACH
    mine = np.int64(0)
    for i in range(first, min(first + _EACH, count)):
        mine += values[i]
    sums[thread] = mine
    cuda.syncthreads()
    step = 1
    while step < _THREADS:
        before = sums[thread - step] if thread >= step else np.int64(0)
        cuda.syncthreads()
        sums[thread] += before
        cuda.syncthreads()
        step *= 2
    total = sums[thread] - mine
    for i in range(first, min(first + _EACH, count)):
        total += values[i]
        ends[i + 1] = total
    if thread == _THREADS - 1:
        totals[cuda.blockIdx.x] = sums[thread]


@kernel
def _scan_totals(count, totals):
    total = np.int64(0)
    for i in range(count):
        total += totals[i]
        totals[i] = total


@kernel
def _add_totals(count, ends, totals):
    i = cuda.grid(1)
    if i == 0:
        ends[0] = 0
    if i < count and i >= _TILE:
        ends[i + 1] += totals[i // _TILE - 1]


def prefix_sums(name: str, values: Any, count: int, workspace: Workspace) -> Any:
    """Ends, the int64 device array `name` of at least `count + 1`, of lists with these lengths; the first is 0."""
    ends = workspace.device(name, np.int64, count + 1)
    tiles, threads = grid(count, _TILE)[0], _THREADS
    totals = workspace.device("totals", np.int64, tiles)
    _scan_tiles[tiles, threads, workspace.stream](count, values, ends, totals)
    _scan_totals[1, 1, workspace.stream](tiles, totals)
    _add_totals[(*grid(count, _THREADS), workspace.stream)](count, ends, totals)
    return ends
