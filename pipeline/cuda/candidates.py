"""Candidates that the threads of a block find: they wait in shared memory, and all threads verify them.

Threads find very different numbers of candidates, which one after the other would have all wait for the unluckiest.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.jit import inlined
from tagmatch.pipeline.cuda.pairs import REJECTED, append, append_all, keep
from tagmatch.pipeline.filters.verify import verified_in_list

cuda: Any = numba.cuda

# Candidates of a block that wait
_STAGE = 1024


@inlined
def new_stage():
    """Shared memory of a block: how many wait, and are left; their messages and rows; and for `append_all`."""
    staged = cuda.shared.array(2, np.int32)
    messages = cuda.shared.array(_STAGE, np.uint32)
    rows = cuda.shared.array(_STAGE, np.uint32)
    first = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        staged[0] = staged[1] = 0
    cuda.syncthreads()
    return staged, messages, rows, first


@inlined
def _verified(message, row, asked, known):
    """Whether a message has all that the set of a row asks."""
    record_offsets, records, constraints = asked
    offsets, counts, ranks, attribute_offsets, attributes, codes = known
    begin = offsets[message]
    return verified_in_list(
        record_offsets[row], record_offsets[row + 1], records,
        attributes, codes, attribute_offsets[message], attribute_offsets[message + 1],
        ranks, begin, begin + counts[message], constraints,
    )  # fmt: skip


@inlined
def stage(message, row, waiting, rows, asked, known, pair_queries, pair_sets, counters):
    """Have a candidate wait; without room for it, this thread verifies it."""
    staged, staged_messages, staged_rows, _ = waiting
    at = cuda.atomic.add(staged, 0, 1)
    if at < _STAGE:
        staged_messages[at] = message
        staged_rows[at] = row
    elif _verified(message, row, asked, known):
        append(message, rows[row], pair_queries, pair_sets, counters)
    else:
        cuda.atomic.add(counters, REJECTED, 1)


@inlined
def flush(waiting, rows, asked, known, pair_queries, pair_sets, counters):
    """Verify what waits, a candidate a thread, and append what is left; all threads."""
    staged, staged_messages, staged_rows, first = waiting
    cuda.syncthreads()
    count = min(staged[0], _STAGE)
    if count == 0:
        return
    for start in range(0, count, cuda.blockDim.x):
        at = start + cuda.threadIdx.x
        good = False
        message = np.uint32(0)
        set_id = np.uint32(0)
        if at < count:
            message = staged_messages[at]
            row = np.int64(staged_rows[at])
            set_id = rows[row]
            good = _verified(np.int64(message), row, asked, known)
        keep(good, message, set_id, staged, staged_messages, staged_rows)
    cuda.syncthreads()
    left = staged[1]
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(counters, REJECTED, count - left)
    append_all(left, staged_messages, staged_rows, first, pair_queries, pair_sets, counters)
