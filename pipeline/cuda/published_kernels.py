"""Algorithms 3 and 4 of the paper: a batch of queries against one partition, and how results are packed (§3.3.1)."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import U8Array, U32Array
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.rules.verify import contains_ranks

cuda: Any = numba.cuda

_U = np.uint64

#: Queries of a batch: 8 bits say which
MOST_QUERIES = 256

#: A query of a batch: its signature with all bits inverted, as all tests want it, and its number in the call
QUERY_WORDS = SIGNATURE_WORDS + 1

# Places in the counters of a launch: results, and candidates that verification turned away
FOUND, REJECTED = 0, 1
COUNTERS = 2

# Four 8-bit query ids, then four 32-bit set ids
_GROUP = 4
_GROUP_WORDS = 5
_GROUP_BYTES = 20


def packed_words(results: int) -> int:
    """Return how many 32-bit words `count` packed results take."""
    return results - (-results // _GROUP)


def unpack(words: U32Array, results: int) -> tuple[U8Array, U32Array]:
    """Query ids and set ids of `count` packed results."""
    groups = np.zeros((-(-results // _GROUP), _GROUP_WORDS), np.uint32)
    groups.reshape(-1)[: len(words)] = words
    return groups[:, :1].view(np.uint8).ravel()[:results], groups[:, 1:].ravel()[:results]


@inlined
def _common_prefix(first, last):
    """Bits of two words before the leftmost in which they differ; zero from there on."""
    rest = first ^ last
    rest |= rest >> _U(1)
    rest |= rest >> _U(2)
    rest |= rest >> _U(4)
    rest |= rest >> _U(8)
    rest |= rest >> _U(16)
    rest |= rest >> _U(32)
    return first & ~rest


@inlined
def prefilter(first, last, first_words, second_words, third_words, batch, size, prefix, passed, ids, queries):
    """Algorithm 4: copy queries that have the common prefix of the rows `first` to `last` to shared memory.

    Rows are in lexicographic order, so that what the first and the last have in common all of them have. The last four
    arguments are in shared memory: the prefix, the number of queries that pass, their ids and their inverted
    signatures.
    """
    thread = cuda.threadIdx.x
    if thread == 0:
        passed[0] = 0
        prefix[0] = _common_prefix(first_words[first], first_words[last])
        prefix[1] = prefix[2] = _U(0)
        if first_words[first] == first_words[last]:
            prefix[1] = _common_prefix(second_words[first], second_words[last])
            if second_words[first] == second_words[last]:
                prefix[2] = _common_prefix(third_words[first], third_words[last])
    cuda.syncthreads()
    a, b, c = prefix[0], prefix[1], prefix[2]
    for i in range(thread, size, cuda.blockDim.x):
        x, y, z = batch[QUERY_WORDS * i], batch[QUERY_WORDS * i + 1], batch[QUERY_WORDS * i + 2]
        if (a & x) | (b & y) | (c & z) == _U(0):
            at = cuda.atomic.add(passed, 0, 1)
            ids[at] = i
            queries[at, 0], queries[at, 1], queries[at, 2] = x, y, z
    cuda.syncthreads()


@inlined
def _contained(a, b, c, queries, i):
    """Whether a query has the bits of three words; most have not even those of the first."""
    return a & queries[i, 0] == _U(0) and b & queries[i, 1] == _U(0) and c & queries[i, 2] == _U(0)


@inlined
def _append(
    query_id, row, row_offsets, ranks, exact, batch, query_offsets, query_ranks, counters, packed_ids, packed_sets
):
    """Append a candidate to the results, unless verification turns it away; what has no room is counted as well."""
    if exact:
        query = np.int64(batch[QUERY_WORDS * query_id + SIGNATURE_WORDS])
        if not contains_ranks(
            query_ranks, query_offsets[query], query_offsets[query + 1], ranks, row_offsets[row], row_offsets[row + 1]
        ):
            cuda.atomic.add(counters, REJECTED, 1)
            return
    at = cuda.atomic.add(counters, FOUND, 1)
    group, place = at // _GROUP, at % _GROUP
    word = _GROUP_WORDS * group + 1 + place
    if word < len(packed_sets):
        packed_ids[_GROUP_BYTES * group + place] = query_id
        packed_sets[word] = row


@kernel
def match_batch(
    begin, end, first_words, second_words, third_words, row_offsets, ranks, exact,
    batch, size, query_offsets, query_ranks, counters, next_counters, packed_ids, packed_sets,
):  # fmt: skip
    """Algorithm 3: a thread for each row from `begin` to `end` checks the queries that its block's prefilter passes.

    Counts in `counters`, which must be zero, and clears `next_counters`. The last two arguments are the same memory.
    """
    prefix = cuda.shared.array(SIGNATURE_WORDS, np.uint64)
    passed = cuda.shared.array(1, np.int32)
    ids = cuda.shared.array(MOST_QUERIES, np.uint8)
    queries = cuda.shared.array((MOST_QUERIES, SIGNATURE_WORDS), np.uint64)
    first = begin + cuda.blockIdx.x * cuda.blockDim.x
    last = min(first + cuda.blockDim.x, end) - 1
    prefilter(first, last, first_words, second_words, third_words, batch, size, prefix, passed, ids, queries)
    if cuda.grid(1) == 0:
        next_counters[FOUND] = 0
        next_counters[REJECTED] = 0
    row = first + cuda.threadIdx.x
    if row < end:
        a, b, c = first_words[row], second_words[row], third_words[row]
        count = passed[0]
        for i in range(0, count, 2):
            if _contained(a, b, c, queries, i):
                _append(
                    np.int64(ids[i]), row, row_offsets, ranks, exact,
                    batch, query_offsets, query_ranks, counters, packed_ids, packed_sets,
                )  # fmt: skip
            if i + 1 < count and _contained(a, b, c, queries, i + 1):
                _append(
                    np.int64(ids[i + 1]), row, row_offsets, ranks, exact,
                    batch, query_offsets, query_ranks, counters, packed_ids, packed_sets,
                )  # fmt: skip
