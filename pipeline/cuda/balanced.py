"""Stage 2, subset match, of the `balanced` layout on the device: Algorithms 2, 3 and 4 of the paper (§3.2, §3.3).

Partitions are cut into runs of rows, which have their own masks: how fast queries are matched then hardly depends on
the greatest size of a partition.

The paper launches a kernel for each batch of up to 256 queries and each partition, a block of threads for each block of
rows. Here one launch has all items of a packet, a block of threads each: an item is a batch of queries and a run of
rows of a partition, which the block goes through block by block, with the queries in registers. Blocks are of one warp
and 64 rows, and items of 128 queries, as then most blocks fit a multiprocessor.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, bytes_of, offsets_of
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, add_tag
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import PartitionTable, Segment
from tagmatch.pipeline.balanced import Blocks, signature_words
from tagmatch.pipeline.cuda.device import (
    Workspace,
    clear,
    grid,
    inlined,
    kernel,
    prefix_sums,
    sent,
    to_device,
    typed,
)
from tagmatch.pipeline.cuda.pairs import (
    COUNTERS,
    PAIRS,
    PASSED,
    REJECTED,
    DeviceQueries,
    PairArrays,
    QueryArrays,
    kept,
    staging,
)
from tagmatch.pipeline.segment import Batches, Found
from tagmatch.pipeline.tags import QueryBatch, contains_ranks

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

# Of each thread. With 85, as many as the compiler would take, fewer blocks fit a multiprocessor: a tenth slower
_REGISTERS = 72

# Candidates that wait for verification, for which there is shared memory; with more than half they are verified
_STAGE = 256

#: Bits of a query, one for each rank; and the 64-bit words that they take
CHECK_BITS = 256
CHECK_WORDS = CHECK_BITS // 64


@inlined
def check_bit(rank):
    """One of the `CHECK_BITS` bits, by the highest bits of a multiplicative hash."""
    return np.int64(((_U(rank) * _U(2654435761)) >> _U(24)) & _U(CHECK_BITS - 1))


class Items(NamedTuple):
    """Batches of queries, each to be matched with one run of rows."""

    runs: Any  # The run of each item
    firsts: Any  # Item `i` has the queries `queued[firsts[i]:firsts[i] + sizes[i]]`
    sizes: Any
    queued: Any  # Numbers of queries


class _Asked(NamedTuple):
    """Queries, as ranks and as signatures with all bits inverted, as all tests want them."""

    queries: QueryArrays
    not_queries: Any
    checks: Any  # The bits that candidates are tested by first


class _Runs(NamedTuple):
    """Runs of rows, which are cut into blocks."""

    exact: bool
    first_rows: Any
    first_blocks: Any
    masks: Any  # Of blocks
    words: tuple[Any, ...]  # The three columns of `signature_words`
    checks: Any  # The bit of each row's rarest tag
    offsets: Any
    ranks: Any


@inlined
def _contained(query, row, asked, known):
    """Whether a query, by its place in the item, has the tags of a row."""
    asked, numbers = asked
    query, row = numbers[query], np.uint32(row)
    if not known.exact:
        return True, query, row
    queries, offsets = asked.queries, known.offsets
    begin = queries.offsets[query]
    end = begin + queries.counts[query]
    good = contains_ranks(queries.ranks, begin, end, known.ranks, offsets[row], offsets[row + np.uint32(1)])
    return good, query, row


_stage, _flush = staging(_contained)


@partial(kernel, max_registers=_REGISTERS)
def match_items(items, asked, known, out):
    """Match each item's queries with its run of rows; append (query, row) pairs.

    Algorithm 4: queries that have all bits that the rows of a block share go to shared memory. The paper takes the
    common prefix of the first and the last row; these bits are a superset of it. Algorithm 3: a thread for each row,
    or two here, checks these queries.
    """
    passed = cuda.shared.array(2, np.int32)
    ids = cuda.shared.array(ITEM_QUERIES, np.uint8)
    x = cuda.shared.array(ITEM_QUERIES, np.uint64)
    y = cuda.shared.array(ITEM_QUERIES, np.uint64)
    z = cuda.shared.array(ITEM_QUERIES, np.uint64)
    numbers = cuda.shared.array(ITEM_QUERIES, np.uint32)
    staged = cuda.shared.array(2, np.int32)
    candidates = cuda.shared.array(_STAGE, np.uint32)
    candidate_rows = cuda.shared.array(_STAGE, np.uint32)
    place = cuda.shared.array(1, np.int64)
    mine = cuda.local.array((_EACH_QUERIES, SIGNATURE_WORDS), np.uint64)
    rows = cuda.local.array((_EACH_ROWS, SIGNATURE_WORDS), np.uint64)
    missing = cuda.local.array((_AT_ONCE, _EACH_ROWS), np.uint64)
    bits = cuda.local.array(_EACH_ROWS, np.int64)

    waiting = staged, candidates, candidate_rows, place
    taken = asked, numbers
    first_words, second_words, third_words = known.words
    thread, item = cuda.threadIdx.x, cuda.blockIdx.x
    run = items.runs[item]
    size = items.sizes[item]
    for j in range(_EACH_QUERIES):
        i = thread + j * ITEM_THREADS
        if i < size:
            query = items.queued[items.firsts[item] + i]
            numbers[i] = query
            for w in range(SIGNATURE_WORDS):
                mine[j, w] = asked.not_queries[query, w]
    if thread == 0:
        passed[0] = passed[1] = 0
        staged[0] = staged[1] = 0
    cuda.syncthreads()

    turn = 0
    survivors = 0
    turned_away = 0
    row = known.first_rows[run] + thread
    end = known.first_rows[run + np.uint32(1)]
    for block in range(known.first_blocks[run], known.first_blocks[run + np.uint32(1)]):
        a, b, c = known.masks[block, 0], known.masks[block, 1], known.masks[block, 2]
        for j in range(_EACH_QUERIES):
            i = thread + j * ITEM_THREADS
            if i < size and (a & mine[j, 0]) | (b & mine[j, 1]) | (c & mine[j, 2]) == _U(0):
                at = cuda.atomic.add(passed, turn, 1)
                ids[at] = i
                x[at], y[at], z[at] = mine[j, 0], mine[j, 1], mine[j, 2]
        for r in range(_EACH_ROWS):
            # What is no row has all bits, which only few queries have
            rows[r, 0] = rows[r, 1] = rows[r, 2] = ~_U(0)
            bits[r] = 0
            if row + r * ITEM_THREADS < end:
                rows[r, 0] = first_words[row + r * ITEM_THREADS]
                rows[r, 1] = second_words[row + r * ITEM_THREADS]
                rows[r, 2] = third_words[row + r * ITEM_THREADS]
                bits[r] = np.int64(known.checks[row + r * ITEM_THREADS])
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
                            # The bit of its rarest tag turns most away that do not match, before they wait
                            query, bit = ids[first + u], bits[r]
                            word = asked.checks[np.int64(numbers[query]) * CHECK_WORDS + (bit >> 6)]
                            if known.exact and (word >> _U(bit & 63)) & _U(1) == _U(0):
                                turned_away += 1
                            else:
                                _stage(query, np.uint32(row + r * ITEM_THREADS), waiting, taken, known, out)
        cuda.syncthreads()
        row += BLOCK_ROWS
        if staged[0] > _STAGE // 2:
            _flush(waiting, taken, known, out)
    _flush(waiting, taken, known, out)
    cuda.atomic.add(passed, turn, turned_away)
    cuda.syncthreads()
    if thread == 0:
        cuda.atomic.add(out.counters, PASSED, survivors)
        cuda.atomic.add(out.counters, REJECTED, passed[turn])


_ROUTING_BLOCK = 256

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
def _count_items(runs, totals, item_queries, items):
    run = cuda.grid(1)
    if run < runs:
        items[run] = (totals[run] + item_queries - 1) // item_queries


@kernel
def _make_items(runs, offsets, first_items, item_queries, items):
    """One thread a run: its queries become items of `item_queries`, except for the last."""
    run = cuda.grid(1)
    if run < runs:
        first = offsets[run]
        for item in range(first_items[run], first_items[run + 1]):
            items.runs[item] = run
            items.firsts[item] = first
            items.sizes[item] = min(item_queries, offsets[run + 1] - first)
            first += item_queries


def route(
    queries: int, not_queries: Any, runs: int, masks: Any, item_queries: int, workspace: Workspace
) -> tuple[int, Items]:
    """Group queries by the runs whose masks they have (Algorithm 2), in items of at most `item_queries`; how many.

    Every query is tested with every mask: threads of a warp that walked their own one-bits queries would read
    masks from different places.
    """
    stream = workspace.stream
    by_run = (*grid(runs, _ROUTING_BLOCK), stream)
    totals = workspace.device("queries of runs", np.int32, runs)
    used = workspace.device("queued of runs", np.int32, runs)
    clear(totals, runs, stream)
    clear(used, runs, stream)
    tiles = ((grid(queries, _ROUTING_BLOCK)[0], grid(runs, _TILE)[0]), _ROUTING_BLOCK, stream)
    _count[tiles](queries, not_queries, runs, masks, totals)
    offsets = prefix_sums("offsets of runs", totals, runs, workspace)
    items = workspace.device("items of runs", np.int32, runs)
    _count_items[by_run](runs, totals, item_queries, items)
    first_items = prefix_sums("first items", items, runs, workspace)
    ends = [workspace.download(name, ends, 1, runs) for name, ends in (("queued", offsets), ("items", first_items))]
    stream.synchronize()
    pairs, count = (int(end[0]) for end in ends)
    queued = workspace.device("queued", np.uint32, pairs)
    _queue[tiles](queries, not_queries, runs, masks, offsets, used, queued)
    made = typed(Items(
        workspace.device("item runs", np.uint32, count),
        workspace.device("item firsts", np.int64, count),
        workspace.device("item sizes", np.int32, count),
        queued,
    ))  # fmt: skip
    _make_items[by_run](runs, offsets, first_items, item_queries, made)
    return count, made


def _items_of(batches: Batches, first_runs: I64Array, workspace: Workspace) -> tuple[int, Items]:
    """Batches that were routed on the CPU: how many items, and these.

    Every item is a part of a batch and a run of its partition.
    """
    runs = np.diff(first_runs)[batches.partitions]
    parts = -(-np.diff(batches.offsets) // ITEM_QUERIES)
    counts = runs * parts
    batch = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(batch)) - np.repeat(offsets_of(counts)[:-1], counts)
    firsts = batches.offsets[batch] + number % parts[batch] * ITEM_QUERIES
    item_runs = first_runs[batches.partitions[batch]] + number // parts[batch]
    sizes = np.minimum(batches.offsets[batch + 1] - firsts, ITEM_QUERIES)
    arrays = (item_runs.astype(np.uint32), firsts, sizes.astype(np.int32), batches.queued.astype(np.uint32))
    names = ("item runs", "item firsts", "item sizes", "queued")
    return len(firsts), typed(Items(*(workspace.send(*each) for each in zip(names, arrays, strict=True))))


_BLOCK = 128

# Blocks of rows of a run, except for the last
_RUN_BLOCKS = 128

# Pairs of batches for which there is room at first
_FIRST_ROOM = 1 << 17


@kernel
def _sign(count, asked, hashes):
    """One thread a query: write its signature, with all bits inverted, and the bits that are tested after it."""
    i = cuda.grid(1)
    if i < count:
        (offsets, counts, ranks, _), not_queries, checks = asked
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
        rows = first_rows, blocks.firsts, blocks.masks, words
        self._known = sent(_Runs(exact, *rows, np.zeros(len(ranks), np.uint8), ranks.offsets, ranks.values))
        checked = self._known.offsets, self._known.ranks, self._known.checks
        _check_rows[grid(len(ranks), _BLOCK)](len(ranks), *checked)
        self.nbytes = bytes_of(self._hashes, self._run_masks, self._known)

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> CudaBalanced:
        """The subset match of a segment, with these options."""
        return cls(segment, exact=options.exact, threads=options.threads)

    def launch(self, queries: DeviceQueries, out: PairArrays) -> None:
        """Append the matches of all queries."""
        if not self._runs:
            return
        workspace = queries.workspace
        asked = self._signed(queries)
        count, items = route(queries.count, asked.not_queries, self._runs, self._run_masks, ITEM_QUERIES, workspace)
        self._match(count, items, asked, out, workspace)

    def match_batches(self, batches: Batches, workspace: Workspace) -> Found:
        """Match batches with their partitions; once more, with more room, if there was too little for the results."""
        count, items = _items_of(batches, self._first_runs, workspace)
        asked, room = self._signed(_uploaded(batches.queries, workspace)), _FIRST_ROOM
        while True:
            queries, sets = (workspace.device(name, np.uint32, room) for name in ("pair queries", "pair sets"))
            out = typed(PairArrays(queries, sets, workspace.send("counters", np.zeros(COUNTERS, np.int64))))
            self._match(count, items, asked, out, workspace)
            counted = workspace.download("counters", out.counters, COUNTERS)
            workspace.stream.synchronize()
            found = int(counted[PAIRS])
            if found <= min(len(queries), len(sets)):
                break
            room = found
        rejected = int(counted[REJECTED])
        of_pairs = workspace.download("queries", queries, found), workspace.download("sets", sets, found)
        workspace.stream.synchronize()
        of_queries, of_sets = (kept(each, np.uint32) for each in of_pairs)
        return Found(of_queries, of_sets, rejected)

    def _signed(self, queries: DeviceQueries) -> _Asked:
        """Queries with their signatures."""
        workspace, count = queries.workspace, queries.count
        signatures = workspace.device("signatures", np.uint64, SIGNATURE_WORDS * count)
        not_queries = signatures[: SIGNATURE_WORDS * count].reshape(count, SIGNATURE_WORDS)
        checks = workspace.device("query checks", np.uint64, CHECK_WORDS * count)
        asked = typed(_Asked(queries.arrays, not_queries, checks))
        _sign[(*grid(count, _BLOCK), workspace.stream)](count, asked, self._hashes)
        return asked

    def _match(self, count: int, items: Items, asked: _Asked, out: PairArrays, workspace: Workspace) -> None:
        """Launch Algorithms 3 and 4 for all items."""
        if count:
            match_items[count, ITEM_THREADS, workspace.stream](items, asked, self._known, out)


def _uploaded(queries: QueryBatch, workspace: Workspace) -> DeviceQueries:
    """Queries that were looked up on the CPU."""
    offsets = workspace.send("offsets", queries.offsets.astype(np.int32))
    counts = workspace.send("counts", np.diff(queries.offsets).astype(np.int32))
    ranks = workspace.send("ranks", queries.ranks)
    # The owners of places are what only another layout asks for
    owners = workspace.device("owners", np.uint32, len(queries.ranks))
    arrays = typed(QueryArrays(offsets, counts, ranks, owners))
    return DeviceQueries(workspace, len(queries), len(queries.ranks), arrays)
