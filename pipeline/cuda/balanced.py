"""Stage 2, subset match, of the `balanced` layout on the device, for whole packets of queries.

The paper launches a kernel for each batch of up to 256 queries and each partition, and filters the batch by the prefix
that a block of sets shares (§3.3, Algorithms 3 and 4). Here one launch has all queries and all partitions, and a block
of sets filters by all bits that its sets have in common.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.kernels.signature import SIGNATURE_WORDS, add_tag
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import PartitionTable, Segment
from tagmatch.pipeline.cpu.blocks import Blocks, signature_words
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import grid, to_device
from tagmatch.pipeline.cuda.pairs import REJECTED, append
from tagmatch.pipeline.cuda.preprocess import DeviceQueries
from tagmatch.pipeline.rules.verify import contains_ranks

cuda: Any = numba.cuda

_U = np.uint64
_THREADS = 128

# Sets, and threads, of a block; and queries that it tests at a time, whose signatures must fit shared memory
_BLOCK_ROWS = 256
_TILE = 1024


@kernel
def _signatures(queries, offsets, counts, ranks, hashes, out):
    """Signatures with all bits inverted, as all tests want them."""
    i = cuda.grid(1)
    if i < queries:
        signature = cuda.local.array(SIGNATURE_WORDS, np.uint64)
        for w in range(SIGNATURE_WORDS):
            signature[w] = _U(0)
        for at in range(offsets[i], offsets[i] + counts[i]):
            add_tag(hashes[ranks[at]], signature)
        for w in range(SIGNATURE_WORDS):
            out[i, w] = ~signature[w]


@kernel
def _match(
    queries, not_queries, tiles, offsets, counts, query_ranks, exact,
    masks, first_rows, first_words, second_words, third_words, row_offsets, ranks,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """A block of sets against a tile of queries: those with its common bits are tested by a thread for each set.

    Tiles of the same sets run side by side, so that the sets are read from memory once.
    """
    passed = cuda.shared.array(1, np.int32)
    numbers = cuda.shared.array(_TILE, np.uint32)
    tile = cuda.shared.array((_TILE, SIGNATURE_WORDS), np.uint64)
    thread = cuda.threadIdx.x
    block, first = cuda.blockIdx.x // tiles, (cuda.blockIdx.x % tiles) * _TILE
    if thread == 0:
        passed[0] = 0
    cuda.syncthreads()
    a, b, c = masks[block, 0], masks[block, 1], masks[block, 2]
    for query in range(first + thread, min(first + _TILE, queries), cuda.blockDim.x):
        x, y, z = not_queries[query, 0], not_queries[query, 1], not_queries[query, 2]
        if (a & x) | (b & y) | (c & z) == _U(0):
            at = cuda.atomic.add(passed, 0, 1)
            numbers[at] = query
            tile[at, 0], tile[at, 1], tile[at, 2] = x, y, z
    cuda.syncthreads()
    rejected = 0
    for row in range(first_rows[block] + thread, first_rows[block + 1], cuda.blockDim.x):
        a, b, c = first_words[row], second_words[row], third_words[row]
        for i in range(passed[0]):
            if (a & tile[i, 0]) | (b & tile[i, 1]) | (c & tile[i, 2]) == _U(0):
                query = numbers[i]
                begin = offsets[query]
                if not exact or contains_ranks(
                    query_ranks, begin, begin + counts[query], ranks, row_offsets[row], row_offsets[row + 1]
                ):
                    append(query, row, pair_queries, pair_sets, counters)
                else:
                    rejected += 1
    if rejected:
        cuda.atomic.add(counters, REJECTED, rejected)


class CudaBalanced:
    """Subset match over a snapshot in the `balanced` layout, in device memory; exact, or by signature only."""

    per_device = True

    def __init__(self, segment: Segment, *, exact: bool, threads: int = 1) -> None:
        table = segment.partitions
        assert isinstance(table, PartitionTable)
        self._exact = exact
        words, ranks = signature_words(segment), segment.tagsets.ranks
        blocks = Blocks(words, table.first_rows, _BLOCK_ROWS, threads=threads)
        self._blocks = len(blocks.masks)
        self._hashes = to_device(segment.vocabulary.hashes)
        self._tables = tuple(map(to_device, (blocks.masks, blocks.first_rows(), *words, ranks.offsets, ranks.values)))
        self.nbytes = sum(each.nbytes for each in (self._hashes, *self._tables))

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> CudaBalanced:
        """The subset match of a segment, with these options."""
        return cls(segment, exact=options.exact, threads=options.threads)

    def launch(self, queries: DeviceQueries, *results: Any) -> None:
        """Append the matches of all queries to `results`, as `pairs.append` takes them."""
        if not self._blocks:
            return
        workspace, count = queries.workspace, queries.count
        ranks = (queries.offsets, queries.counts, queries.ranks)
        signatures = workspace.device("signatures", np.uint64, SIGNATURE_WORDS * count)
        not_queries = signatures[: SIGNATURE_WORDS * count].reshape(count, SIGNATURE_WORDS)
        _signatures[(*grid(count, _THREADS), workspace.stream)](count, *ranks, self._hashes, not_queries)
        tiles = -(-count // _TILE)
        _match[self._blocks * tiles, _BLOCK_ROWS, workspace.stream](
            count, not_queries, tiles, *ranks, self._exact, *self._tables, *results
        )
