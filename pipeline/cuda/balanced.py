"""Stage 2, subset match, of the `balanced` layout on the device: Algorithms 2, 3 and 4 of the paper (§3.2, §3.3).

Partitions are cut into runs of rows, which have masks of their own: how fast queries are matched then hardly depends on
the greatest size of a partition.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.kernels.signature import SIGNATURE_WORDS, add_tag
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import PartitionTable, Segment
from tagmatch.pipeline.cpu.blocks import Blocks, signature_words
from tagmatch.pipeline.cuda.items import BLOCK_ROWS, CHECK_WORDS, ITEM_QUERIES, ITEM_THREADS, check_bit, match_items
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid, to_device
from tagmatch.pipeline.cuda.pairs import COUNTERS, PAIRS, REJECTED, WORDS
from tagmatch.pipeline.cuda.preprocess import DeviceQueries
from tagmatch.pipeline.cuda.routing import Items, items_of, route
from tagmatch.pipeline.matcher import Batches, Found, QueryBatch
from tagmatch.pipeline.rules.packing import unpack

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 128

# Blocks of rows of a run, but for the last
_RUN_BLOCKS = 128

# Words of packed results that there is room for at first
_FIRST_ROOM = 1 << 18


@kernel
def _signatures(queries, offsets, counts, ranks, hashes, not_queries, checks):
    """Signatures with all bits inverted, as all tests want them, and the bits that verification begins with."""
    i = cuda.grid(1)
    if i < queries:
        signature = cuda.local.array(SIGNATURE_WORDS, np.uint64)
        for w in range(SIGNATURE_WORDS):
            signature[w] = _U(0)
        for w in range(CHECK_WORDS):
            checks[i * CHECK_WORDS + w] = _U(0)
        for at in range(offsets[i], offsets[i] + counts[i]):
            add_tag(hashes[ranks[at]], signature)
            bit = check_bit(ranks[at])
            checks[i * CHECK_WORDS + (bit >> 6)] |= _U(1) << _U(bit & 63)
        for w in range(SIGNATURE_WORDS):
            not_queries[i, w] = ~signature[w]


@kernel
def _check_rows(rows, offsets, ranks, checks):
    row = cuda.grid(1)
    if row < rows and offsets[row] < offsets[row + 1]:
        checks[row] = check_bit(ranks[offsets[row]])


class CudaBalanced:
    """Subset match over a snapshot in the `balanced` layout, in device memory; exact, or by signature only."""

    per_device = True

    def __init__(self, segment: Segment, *, exact: bool, threads: int = 1) -> None:
        table = segment.partitions
        assert isinstance(table, PartitionTable)
        self._exact = exact
        words, ranks = signature_words(segment), segment.tagsets.ranks
        runs = Blocks(words, table.first_rows, _RUN_BLOCKS * BLOCK_ROWS, threads=threads)
        first_rows = runs.first_rows()
        blocks = Blocks(words, first_rows, BLOCK_ROWS, threads=threads)
        self._runs, self._first_runs = len(runs.masks), runs.firsts
        self._hashes, self._run_masks = to_device(segment.vocabulary.hashes), to_device(runs.masks)
        self._rows = tuple(map(to_device, (first_rows, blocks.firsts, blocks.masks, *words)))
        tags = tuple(map(to_device, (ranks.offsets, ranks.values)))
        checks = to_device(np.zeros(len(ranks), np.uint8))
        _check_rows[grid(len(ranks), _BLOCK)](len(ranks), *tags, checks)
        self._tags = (checks, *tags)
        self.nbytes = sum(each.nbytes for each in (self._hashes, self._run_masks, *self._rows, *self._tags))

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> CudaBalanced:
        """The subset match of a segment, with these options."""
        return cls(segment, exact=options.exact, threads=options.threads)

    def launch(self, queries: DeviceQueries, pair_queries: Any, pair_sets: Any, counters: Any) -> None:
        """Append the matches of all queries, as `pairs.append` does."""
        if not self._runs:
            return
        workspace = queries.workspace
        signed = self._sign(queries)
        items = route(queries.count, signed[0], self._runs, self._run_masks, ITEM_QUERIES, workspace)
        no_ids = workspace.device("packed ids", np.uint8, 1)
        self._match(items, queries, signed, False, pair_queries, pair_sets, no_ids, counters)

    def match_batches(self, batches: Batches, workspace: Workspace) -> Found:
        """Match batches with their partitions; once more, with more room, if there was too little for the results."""
        items, firsts = items_of(batches, self._first_runs, ITEM_QUERIES, workspace)
        if not items.count:
            return Found(np.empty(0, np.uint32), np.empty(0, np.uint32), 0)
        queries = _uploaded(batches.queries, workspace)
        signed = self._sign(queries)
        room = _FIRST_ROOM
        while True:
            words = workspace.device("packed", np.uint32, room)
            counters = workspace.send("counters", np.zeros(COUNTERS, np.int64))
            self._match(items, queries, signed, True, words, words, words.view(np.uint8), counters)
            counted = workspace.download("counters", counters, COUNTERS)
            workspace.stream.synchronize()
            used, pairs, rejected = (int(counted[place]) for place in (WORDS, PAIRS, REJECTED))
            if used <= len(words):
                break
            room = used
        packed = workspace.download("packed", words, used)
        workspace.stream.synchronize()
        return Found(*unpack(packed, pairs, firsts, batches.queued), rejected)

    def _sign(self, queries: DeviceQueries) -> tuple[Any, Any]:
        """Inverted signatures of queries, and the bits that verification begins with."""
        workspace, count = queries.workspace, queries.count
        signatures = workspace.device("signatures", np.uint64, SIGNATURE_WORDS * count)
        not_queries = signatures[: SIGNATURE_WORDS * count].reshape(count, SIGNATURE_WORDS)
        checks = workspace.device("query checks", np.uint64, CHECK_WORDS * count)
        ranks = (queries.offsets, queries.counts, queries.ranks)
        _signatures[(*grid(count, _BLOCK), workspace.stream)](count, *ranks, self._hashes, not_queries, checks)
        return not_queries, checks

    def _match(self, items: Items, queries: DeviceQueries, signed: tuple[Any, Any], *results: Any) -> None:
        """Launch Algorithms 3 and 4 for all items, if there are any; `results` begin with whether they are packed."""
        if items.count:
            not_queries, checks = signed
            match_items[items.count, ITEM_THREADS, queries.workspace.stream](
                items.runs, items.firsts, items.sizes, items.queued, not_queries, *self._rows,
                self._exact, *self._tags, checks, queries.offsets, queries.counts, queries.ranks, *results,
            )  # fmt: skip


def _uploaded(queries: QueryBatch, workspace: Workspace) -> DeviceQueries:
    """Queries that were looked up on the CPU."""
    offsets = workspace.send("offsets", queries.offsets.astype(np.int32))
    counts = workspace.send("counts", np.diff(queries.offsets).astype(np.int32))
    ranks = workspace.send("ranks", queries.ranks)
    places = len(queries.ranks)
    # The owners of places are what only another layout asks for
    owners = workspace.device("owners", np.uint32, places)
    return DeviceQueries(workspace, len(queries), places, offsets, counts, ranks, owners)
