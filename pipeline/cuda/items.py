"""Algorithms 3 and 4 of the paper (§3.3) for all items of a packet in one launch.

The paper launches a kernel for each batch of up to 256 queries and each partition, a block of threads for each block of
rows. Here a block of threads takes an item, which is a batch of queries and a run of rows of a partition, and goes
through the run block by block, with the queries in registers. Blocks are of one warp and 64 rows, and items of 128
queries, as then most blocks fit a multiprocessor.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.cuda.pairs import PAIRS, PASSED, REJECTED, WORDS, append, keep
from tagmatch.pipeline.rules.packing import GROUP, GROUP_BYTES, GROUP_WORDS, RECORD_HEADER, packed_words
from tagmatch.pipeline.rules.verify import contains_ranks

cuda: Any = numba.cuda

_U = np.uint64

#: Threads of a block
ITEM_THREADS = 32

# Of each thread: queries, which stay in registers; rows; and queries that it tests before it looks at the outcome
_EACH_QUERIES = 4
_EACH_ROWS = 2
_AT_ONCE = 4

#: Queries of an item, and rows of a block
ITEM_QUERIES = _EACH_QUERIES * ITEM_THREADS
BLOCK_ROWS = _EACH_ROWS * ITEM_THREADS

# Candidates that wait for verification; with more than half of that they are verified
_STAGE = 256

#: Bits of a query, of which each rank has one; and the 64-bit words that they take
CHECK_BITS = 256
CHECK_WORDS = CHECK_BITS // 64


@inlined
def check_bit(rank):
    """One of the `CHECK_BITS` bits, by the highest bits of a multiplicative hash."""
    return np.int64(((_U(rank) * _U(2654435761)) >> _U(24)) & _U(CHECK_BITS - 1))


@inlined
def _verified(exact, query, row, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks):
    """Whether a query has the tags of a candidate; the bit of its rarest turns most others away without their ranks."""
    if not exact:
        return True
    bit = np.int64(row_checks[row])
    word = query_checks[np.int64(query) * CHECK_WORDS + (bit >> 6)]
    if (word >> _U(bit & 63)) & _U(1) == _U(0):
        return False
    begin = offsets[query]
    return contains_ranks(
        query_ranks, begin, begin + counts[query], ranks, row_offsets[row], row_offsets[row + np.uint32(1)]
    )


@inlined
def _stage(
    i, row, item, numbers, staged, staged_queries, staged_rows,
    exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
    packed, pair_queries, pair_sets, packed_ids, counters,
):  # fmt: skip
    """Have a candidate wait for verification; one that finds no room is verified at once."""
    at = cuda.atomic.add(staged, 0, 1)
    if at < _STAGE:
        staged_queries[at] = i
        staged_rows[at] = row
    elif not _verified(
        exact, numbers[i], row, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks
    ):
        cuda.atomic.add(counters, REJECTED, 1)
    elif packed:
        cuda.atomic.add(counters, PAIRS, 1)
        at = cuda.atomic.add(counters, WORDS, RECORD_HEADER + packed_words(1))
        if at + RECORD_HEADER + packed_words(1) <= len(pair_sets):
            pair_sets[at] = item
            pair_sets[at + 1] = 1
            packed_ids[4 * (at + RECORD_HEADER)] = i
            pair_sets[at + RECORD_HEADER + 1] = row
    else:
        append(numbers[i], row, pair_queries, pair_sets, counters)


@inlined
def _flush(
    item, numbers, staged, staged_queries, staged_rows, place,
    exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
    packed, pair_queries, pair_sets, packed_ids, counters,
):  # fmt: skip
    """Verify what is staged, a candidate a thread, and append what is left, with one global atomic."""
    thread = cuda.threadIdx.x
    waiting = min(staged[0], _STAGE)
    for first in range(0, waiting, cuda.blockDim.x):
        at = first + thread
        good = False
        i = np.uint8(0)
        row = np.uint32(0)
        if at < waiting:
            i = staged_queries[at]
            row = staged_rows[at]
            good = _verified(
                exact, numbers[i], row, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks
            )
        keep(good, i, row, staged, staged_queries, staged_rows)
    cuda.syncthreads()
    left = staged[1]
    if thread == 0:
        if left < waiting:
            cuda.atomic.add(counters, REJECTED, waiting - left)
        if left:
            place[0] = cuda.atomic.add(counters, PAIRS, left)
            if packed:
                words = RECORD_HEADER + packed_words(left)
                place[0] = cuda.atomic.add(counters, WORDS, words)
                if place[0] + words <= len(pair_sets):
                    pair_sets[place[0]] = item
                    pair_sets[place[0] + 1] = left
                else:
                    place[0] = -1
    cuda.syncthreads()
    if left and place[0] >= 0:
        for k in range(thread, left, cuda.blockDim.x):
            at = place[0] + k
            if packed:
                at = place[0] + RECORD_HEADER
                packed_ids[4 * at + GROUP_BYTES * (k // GROUP) + k % GROUP] = staged_queries[k]
                pair_sets[at + GROUP_WORDS * (k // GROUP) + 1 + k % GROUP] = staged_rows[k]
            elif at < len(pair_queries) and at < len(pair_sets):
                pair_queries[at] = numbers[staged_queries[k]]
                pair_sets[at] = staged_rows[k]
    cuda.syncthreads()
    if thread == 0:
        staged[0] = 0
        staged[1] = 0
    cuda.syncthreads()


@kernel
def match_items(
    item_runs, item_firsts, item_sizes, queued, not_queries,
    first_rows, first_blocks, masks, first_words, second_words, third_words,
    exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
    packed, pair_queries, pair_sets, packed_ids, counters,
):  # fmt: skip
    """Match each item's queries with its run of rows; append (query, row) pairs, or records as `packing` has them.

    Algorithm 4: queries that have all bits that the rows of a block share go to shared memory. The paper takes the
    common prefix of the first and the last row, of which these bits are a superset. Algorithm 3: a thread for each row,
    or two here, checks these queries.
    """
    passed = cuda.shared.array(2, np.int32)
    ids = cuda.shared.array(ITEM_QUERIES, np.uint8)
    x = cuda.shared.array(ITEM_QUERIES, np.uint64)
    y = cuda.shared.array(ITEM_QUERIES, np.uint64)
    z = cuda.shared.array(ITEM_QUERIES, np.uint64)
    numbers = cuda.shared.array(ITEM_QUERIES, np.uint32)
    staged = cuda.shared.array(2, np.int32)
    staged_queries = cuda.shared.array(_STAGE, np.uint8)
    staged_rows = cuda.shared.array(_STAGE, np.uint32)
    place = cuda.shared.array(1, np.int64)
    mine = cuda.local.array((_EACH_QUERIES, SIGNATURE_WORDS), np.uint64)
    rows = cuda.local.array((_EACH_ROWS, SIGNATURE_WORDS), np.uint64)
    missing = cuda.local.array((_AT_ONCE, _EACH_ROWS), np.uint64)

    thread, item = cuda.threadIdx.x, cuda.blockIdx.x
    run = item_runs[item]
    size = item_sizes[item]
    for j in range(_EACH_QUERIES):
        i = thread + j * ITEM_THREADS
        if i < size:
            query = queued[item_firsts[item] + i]
            numbers[i] = query
            for w in range(SIGNATURE_WORDS):
                mine[j, w] = not_queries[query, w]
    if thread == 0:
        passed[0] = passed[1] = 0
        staged[0] = staged[1] = 0
    cuda.syncthreads()

    turn = 0
    survivors = 0
    row = first_rows[run] + thread
    end = first_rows[run + np.uint32(1)]
    for block in range(first_blocks[run], first_blocks[run + np.uint32(1)]):
        a, b, c = masks[block, 0], masks[block, 1], masks[block, 2]
        for j in range(_EACH_QUERIES):
            i = thread + j * ITEM_THREADS
            if i < size and (a & mine[j, 0]) | (b & mine[j, 1]) | (c & mine[j, 2]) == _U(0):
                at = cuda.atomic.add(passed, turn, 1)
                ids[at] = i
                x[at], y[at], z[at] = mine[j, 0], mine[j, 1], mine[j, 2]
        for r in range(_EACH_ROWS):
            # What is no row has all bits, which only few queries have
            rows[r, 0] = rows[r, 1] = rows[r, 2] = ~_U(0)
            if row + r * ITEM_THREADS < end:
                rows[r, 0] = first_words[row + r * ITEM_THREADS]
                rows[r, 1] = second_words[row + r * ITEM_THREADS]
                rows[r, 2] = third_words[row + r * ITEM_THREADS]
        cuda.syncthreads()
        count = passed[turn]
        turn = 1 - turn
        if thread == 0:
            passed[turn] = 0
            survivors += count
        # To branch after each test would cost more than the tests
        for first in range(0, count, _AT_ONCE):
            some = False
            for u in range(_AT_ONCE):
                for r in range(_EACH_ROWS):
                    at = first + u
                    missing[u, r] = (rows[r, 0] & x[at]) | (rows[r, 1] & y[at]) | (rows[r, 2] & z[at])
                    some |= missing[u, r] == _U(0)
            if some:
                for u in range(_AT_ONCE):
                    for r in range(_EACH_ROWS):
                        if missing[u, r] == _U(0) and first + u < count and row + r * ITEM_THREADS < end:
                            _stage(
                                ids[first + u], np.uint32(row + r * ITEM_THREADS), item,
                                numbers, staged, staged_queries, staged_rows,
                                exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
                                packed, pair_queries, pair_sets, packed_ids, counters,
                            )  # fmt: skip
        cuda.syncthreads()
        row += BLOCK_ROWS
        if staged[0] > _STAGE // 2:
            _flush(
                item, numbers, staged, staged_queries, staged_rows, place,
                exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
                packed, pair_queries, pair_sets, packed_ids, counters,
            )  # fmt: skip
    _flush(
        item, numbers, staged, staged_queries, staged_rows, place,
        exact, row_checks, row_offsets, ranks, query_checks, offsets, counts, query_ranks,
        packed, pair_queries, pair_sets, packed_ids, counters,
    )  # fmt: skip
    if thread == 0:
        cuda.atomic.add(counters, PASSED, survivors)
