"""Stage 2, subset match, of the sets of a segment that have constraints, on the device.

Candidates that the threads of a block find: they wait in shared memory, and all threads verify them.

Threads find very different numbers of candidates, which one after the other would have all wait for the unluckiest.

Stage 2, subset match, of sets with constraints in blocks: half a warp for each block and message.

Stage 2, subset match, of sets with constraints in a trie: one thread for each token of each message.
"""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.device import grid, inlined, kernel, to_device
from tagmatch.pipeline.cuda.pairs import REJECTED, DeviceQueries, append, append_all, keep
from tagmatch.pipeline.cuda.values import DeviceMessages
from tagmatch.pipeline.filters.asked import verified_in_list
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.line_blocks import ABSENT, BLOCK, SEVERAL, bucket_of, in_box, with_value
from tagmatch.pipeline.filters.lines import LineIndex
from tagmatch.pipeline.filters.trie import child_of, rows_of_node
from tagmatch.pipeline.filters.trie_index import DEEPEST, TrieIndex

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


_LINE_BLOCK = 256
# Threads of a block and a message: each has a word of 32 bits of its lines
_LANES = BLOCK // 32
# Bytes that say which line each attribute of a message has; messages come in parts for which this is enough
_BUCKETS = 64 << 20

_U32 = np.uint32


@kernel
def assign_buckets(first, count, offsets, attributes, codes, numbers, edge_offsets, edges, buckets):
    """One thread a message: which line of its column each attribute has."""
    i = cuda.grid(1)
    if i < count:
        known = len(edge_offsets) - 1
        begin = i * known
        for at in range(begin, begin + known):
            buckets[at] = ABSENT
        for place in range(offsets[first + i], offsets[first + i + 1]):
            attribute = np.int64(numbers[attributes[place]])
            if attribute >= 0:
                bucket = bucket_of(codes[place], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
                buckets[begin + attribute] = with_value(buckets[begin + attribute], bucket)


@inlined
def _word_of_several(line, lane, attribute, lines, begin, end, attributes, codes, cut):
    """Sets in the line of any of the values that a message has of an attribute."""
    numbers, edge_offsets, edges = cut
    word = lines[line + SEVERAL, lane]
    for place in range(begin, end):
        if np.int64(numbers[attributes[place]]) == attribute:
            bucket = bucket_of(codes[place], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
            word |= lines[line + bucket, lane]
    return word


@kernel
def match_lines(
    threads, first, count, buckets, offsets, counts, ranks, attribute_offsets, attributes, codes,
    sets, numbers, edge_offsets, edges, column_offsets, columns, box_offsets, boxes, lines,
    rows, record_offsets, records, of_constraint, negated, interval_offsets, lows, highs,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """Append the sets whose constraints and tags messages `first` to `first + count` have.

    Neighbouring half warps have the same block, whose lines they find in the cache.
    """
    waiting = new_stage()
    asked = (record_offsets, records, (of_constraint, negated, interval_offsets, lows, highs))
    known = (offsets, counts, ranks, attribute_offsets, attributes, codes)
    thread = np.int64(cuda.grid(1))
    if thread < threads:
        lane = thread % _LANES
        pair = thread // _LANES
        block, i = pair // count, pair % count
        message, begin = first + i, i * (len(edge_offsets) - 1)
        left = _U32(0xFFFFFFFF)
        for box in range(box_offsets[block], box_offsets[block + 1]):
            if not in_box(buckets[begin + np.int64(boxes[box, 0])], boxes[box, 1], boxes[box, 2]):
                left = _U32(0)
                break
        column, last = column_offsets[block], column_offsets[block + 1]
        while left != _U32(0) and column < last:
            attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
            bucket = np.int64(buckets[begin + attribute])
            if bucket != SEVERAL:
                left &= lines[line + bucket, lane]
            else:
                left &= _word_of_several(
                    line, lane, attribute, lines, attribute_offsets[message], attribute_offsets[message + 1],
                    attributes, codes, (numbers, edge_offsets, edges),
                )  # fmt: skip
            column += 1
        while left != _U32(0):
            candidate = block * BLOCK + lane * 32 + np.int64(cuda.ffs(left)) - 1
            left &= left - _U32(1)
            if candidate < sets:  # a block without columns, the last one, has fewer sets than bits
                stage(message, candidate, waiting, rows, asked, known, pair_queries, pair_sets, counters)
    flush(waiting, rows, asked, known, pair_queries, pair_sets, counters)


class CudaLines:
    """The sets of lines, in device memory."""

    def __init__(self, index: LineIndex) -> None:
        self._sets, self._blocks, self._attributes = len(index), len(index.column_offsets) - 1, len(index.buckets)
        self._cut = tuple(map(to_device, index.buckets.arrays))
        tables: tuple[np.ndarray, ...] = (
            index.column_offsets, index.columns, index.box_offsets, index.boxes, index.lines.view(np.uint32),
            index.rows, index.record_offsets, index.records, *index.constraints.arrays,
        )  # fmt: skip
        self._tables = tuple(map(to_device, tables))
        self.nbytes = sum(int(table.nbytes) for table in (*self._cut, *self._tables))

    def launch(self, messages: DeviceMessages, *results: Any) -> None:
        """Append the matches of all messages to `results`, as `pairs.append` takes them."""
        workspace = messages.workspace
        at_once = max(1, _BUCKETS // max(1, self._attributes))
        values = (messages.attribute_offsets, messages.attributes, messages.codes)
        for first in range(0, messages.count, at_once):
            count = min(at_once, messages.count - first)
            buckets = workspace.device("buckets", np.uint8, count * self._attributes)
            assign_buckets[(*grid(count, _LINE_BLOCK), workspace.stream)](first, count, *values, *self._cut, buckets)
            threads = self._blocks * count * _LANES
            match_lines[(*grid(threads, _LINE_BLOCK), workspace.stream)](
                threads, first, count, buckets, messages.offsets, messages.counts, messages.ranks, *values,
                self._sets, *self._cut, *self._tables, *results,
            )  # fmt: skip


_U = np.uint64
_TRIE_BLOCK = 128
# Sets without tokens, which no token leads to, that a thread looks at
_EACH = 64


@kernel
def match_trie(
    threads, token_places, token_offsets, token_counts, tokens, owners, signatures,
    offsets, counts, ranks, attribute_offsets, attributes, codes,
    tokenless, parts, roots, nodes, edges, children, row_signatures,
    rows, record_offsets, records, of_constraint, negated, interval_offsets, lows, highs,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """Append the sets whose constraints and tags a message has.

    A thread has a place of a message's tokens: it goes depth first to the sets whose least likely token stands there,
    and whose others come after it. Those that need no token are at the root; `parts` threads share them for a message.
    """
    waiting = new_stage()
    # Nodes on the way that have children, and where the search for these goes on; the deepest ones have none
    path = cuda.local.array((DEEPEST, 2), np.int64)
    asked = (record_offsets, records, (of_constraint, negated, interval_offsets, lows, highs))
    known = (offsets, counts, ranks, attribute_offsets, attributes, codes)
    thread = np.int64(cuda.grid(1))
    if thread < token_places:
        message = np.int64(owners[thread])
        last = token_offsets[message] + token_counts[message]
        missing = ~signatures[message]
        node, place, depth = np.int64(0), thread, 0
        if place < last:
            node = np.int64(roots[tokens[place]])
        while node != 0 or depth > 0:
            if node != 0:
                row, end, has_children = rows_of_node(node, nodes)
                for candidate in range(row, end):
                    if row_signatures[candidate] & missing == _U(0):
                        stage(message, candidate, waiting, rows, asked, known, pair_queries, pair_sets, counters)
                if has_children:
                    path[depth, 0], path[depth, 1] = node, place + 1
                    depth += 1
                node = np.int64(0)
            else:
                place = path[depth - 1, 1]
                if place < last:
                    path[depth - 1, 1] = place + 1
                    node = child_of(path[depth - 1, 0], tokens[place], edges, children)
                else:
                    depth -= 1
    elif thread < threads:
        message = (thread - token_places) // parts
        # Neighbours look at neighbouring rows
        for candidate in range((thread - token_places) % parts, tokenless, parts):
            stage(message, candidate, waiting, rows, asked, known, pair_queries, pair_sets, counters)
    flush(waiting, rows, asked, known, pair_queries, pair_sets, counters)


class CudaTrie:
    """The sets of a trie, in device memory."""

    def __init__(self, index: TrieIndex) -> None:
        self._sets = len(index)
        self._tokenless = index.trie.tokenless
        tables = (*index.trie.arrays, index.rows, index.record_offsets, index.records, *index.constraints.arrays)
        self._tables = tuple(map(to_device, tables))
        self.nbytes = sum(int(table.nbytes) for table in self._tables)

    def launch(self, messages: DeviceMessages, *results: Any) -> None:
        """Append the matches of all messages to `results`, as `pairs.append` takes them."""
        tokens = messages.tokens
        assert tokens is not None
        parts = -(-self._tokenless // _EACH)
        threads = tokens.places + messages.count * parts
        if not self._sets or not threads:
            return
        match_trie[(*grid(threads, _TRIE_BLOCK), messages.workspace.stream)](
            threads, tokens.places, tokens.offsets, tokens.counts, tokens.values, tokens.owners, tokens.signatures,
            messages.offsets, messages.counts, messages.ranks,
            messages.attribute_offsets, messages.attributes, messages.codes,
            self._tokenless, parts, *self._tables, *results,
        )  # fmt: skip


class CudaFilters:
    """Those that the trie has, and those that lines have, in device memory."""

    def __init__(self, index: FilterIndex) -> None:
        trie = None if index.trie is None else CudaTrie(index.trie)
        lines = None if index.lines is None else CudaLines(index.lines)
        self._parts = [part for part in (trie, lines) if part is not None]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def launch(self, messages: DeviceQueries, *results: Any) -> None:
        """Append the matches of all messages to `results`, as `pairs.append` takes them."""
        assert isinstance(messages, DeviceMessages)
        for part in self._parts:
            part.launch(messages, *results)
