"""Stage 2, subset match, of the sets of a segment that have constraints, on the device.

Of sets in blocks: half a warp for each block and message. Of sets in a trie: a thread for each token of each message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.device import bytes_of, grid, inlined, kernel, sent, typed
from tagmatch.pipeline.cuda.pairs import DeviceQueries, PairArrays, QueryArrays, staging
from tagmatch.pipeline.cuda.values import DeviceMessages, ValueArrays
from tagmatch.pipeline.filters.asked import verified_in_list
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.line_blocks import ABSENT, BLOCK, SEVERAL, bucket_of, in_box, with_value
from tagmatch.pipeline.filters.lines import LineIndex
from tagmatch.pipeline.filters.trie import DEEPEST, TrieIndex, child_of, rows_of_node

cuda: Any = numba.cuda


class _Asked(NamedTuple):
    """Messages as tags and as attributes."""

    queries: QueryArrays
    values: ValueArrays


class _Sets(NamedTuple):
    """What sets ask."""

    rows: Any
    record_offsets: Any
    records: Any
    constraints: tuple[Any, ...]  # Arrays of `Constraints`


@inlined
def _verified(message, row, asked, known):
    """Whether a message has all that the set of a row asks; both."""
    queries, values = asked.queries, asked.values
    begin, first, last = queries.offsets[message], known.record_offsets[row], known.record_offsets[row + 1]
    own = (
        values.attributes, values.codes, values.offsets[message], values.offsets[message + 1],
        queries.ranks, begin, begin + queries.counts[message],
    )  # fmt: skip
    good = verified_in_list(first, last, known.records, own, known.constraints)
    return good, np.uint32(message), known.rows[row]


_new_stage, _stage, _flush = staging(_verified)

_LINE_BLOCK = 256
# Threads of a block and a message: each has a word of 32 bits of its lines
_LANES = BLOCK // 32
# Bytes that say which line each attribute of a message has; messages come in parts for which this is enough
_BUCKETS = 64 << 20

_U32 = np.uint32


class _Cut(NamedTuple):
    """Codes of attributes cut into buckets (see `Buckets`)."""

    numbers: Any
    edge_offsets: Any
    edges: Any


class _Lines(NamedTuple):
    """Sets in blocks (see `LineIndex`)."""

    sets: int
    cut: _Cut
    column_offsets: Any
    columns: Any
    box_offsets: Any
    boxes: Any
    lines: Any


@kernel
def assign_buckets(first, count, values, cut, buckets):
    """One thread a message: which line of its column each attribute has."""
    i = cuda.grid(1)
    if i < count:
        known = len(cut.edge_offsets) - 1
        begin = i * known
        for at in range(begin, begin + known):
            buckets[at] = ABSENT
        for place in range(values.offsets[first + i], values.offsets[first + i + 1]):
            attribute = np.int64(cut.numbers[values.attributes[place]])
            if attribute >= 0:
                edges, last = cut.edge_offsets[attribute], cut.edge_offsets[attribute + 1]
                bucket = bucket_of(values.codes[place], cut.edges, edges, last)
                buckets[begin + attribute] = with_value(buckets[begin + attribute], bucket)


@inlined
def _word_of_several(line, lane, attribute, lines, values, message):
    """Sets in the line of any of the values that a message has of an attribute."""
    cut, word = lines.cut, lines.lines[line + SEVERAL, lane]
    for place in range(values.offsets[message], values.offsets[message + 1]):
        if np.int64(cut.numbers[values.attributes[place]]) == attribute:
            edges, last = cut.edge_offsets[attribute], cut.edge_offsets[attribute + 1]
            word |= lines.lines[line + bucket_of(values.codes[place], cut.edges, edges, last), lane]
    return word


@kernel
def match_lines(threads, first, count, buckets, asked, lines, known, out):
    """Append the sets whose constraints and tags messages `first` to `first + count` have.

    Neighbouring half warps have the same block, whose lines they find in the cache.
    """
    waiting = _new_stage()
    thread = np.int64(cuda.grid(1))
    if thread < threads:
        lane = thread % _LANES
        pair = thread // _LANES
        block, i = pair // count, pair % count
        message, begin = first + i, i * (len(lines.cut.edge_offsets) - 1)
        left, boxes, columns = _U32(0xFFFFFFFF), lines.boxes, lines.columns
        for box in range(lines.box_offsets[block], lines.box_offsets[block + 1]):
            if not in_box(buckets[begin + np.int64(boxes[box, 0])], boxes[box, 1], boxes[box, 2]):
                left = _U32(0)
                break
        column, last = lines.column_offsets[block], lines.column_offsets[block + 1]
        while left != _U32(0) and column < last:
            attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
            bucket = np.int64(buckets[begin + attribute])
            if bucket != SEVERAL:
                left &= lines.lines[line + bucket, lane]
            else:
                left &= _word_of_several(line, lane, attribute, lines, asked.values, message)
            column += 1
        while left != _U32(0):
            candidate = block * BLOCK + lane * 32 + np.int64(cuda.ffs(left)) - 1
            left &= left - _U32(1)
            if candidate < lines.sets:  # a block without columns, the last one, has fewer sets than bits
                _stage(message, candidate, waiting, asked, known, out)
    _flush(waiting, asked, known, out)


class CudaLines:
    """The sets of lines, in device memory."""

    def __init__(self, index: LineIndex) -> None:
        self._blocks, self._attributes = len(index.column_offsets) - 1, len(index.buckets)
        tables = (index.column_offsets, index.columns, index.box_offsets, index.boxes, index.lines.view(np.uint32))
        self._lines = sent(_Lines(len(index), _Cut(*index.buckets.arrays), *tables))
        self._sets = _sets_of(index)
        self.nbytes = bytes_of(self._lines, self._sets)

    def launch(self, messages: DeviceMessages, out: PairArrays) -> None:
        """Append the matches of all messages."""
        workspace, values = messages.workspace, messages.values
        at_once = max(1, _BUCKETS // max(1, self._attributes))
        asked = typed(_Asked(messages.arrays, values))
        for first in range(0, messages.count, at_once):
            count = min(at_once, messages.count - first)
            buckets = workspace.device("buckets", np.uint8, count * self._attributes)
            by_message = (*grid(count, _LINE_BLOCK), workspace.stream)
            assign_buckets[by_message](first, count, values, self._lines.cut, buckets)
            threads = self._blocks * count * _LANES
            match_lines[(*grid(threads, _LINE_BLOCK), workspace.stream)](
                threads, first, count, buckets, asked, self._lines, self._sets, out
            )


def _sets_of(index: LineIndex | TrieIndex) -> _Sets:
    return sent(_Sets(index.rows, index.record_offsets, index.records, index.constraints.arrays))


_U = np.uint64
_TRIE_BLOCK = 128
# Sets without tokens, which no token leads to, that a thread looks at
_EACH = 64


class _Trie(NamedTuple):
    """The trie of sets (see `Trie`)."""

    tokenless: int
    roots: Any
    nodes: Any
    edges: Any
    children: Any
    signatures: Any


@kernel
def match_trie(threads, token_places, parts, tokens, asked, trie, known, out):
    """Append the sets whose constraints and tags a message has.

    A thread has a place of a message's tokens: it goes depth first to the sets whose least likely token stands there,
    and whose others come after it. Those that need no token are at the root; `parts` threads share them for a message.
    """
    waiting = _new_stage()
    # Nodes on the way that have children, and where the search for these goes on; the deepest ones have none
    path = cuda.local.array((DEEPEST, 2), np.int64)
    thread = np.int64(cuda.grid(1))
    if thread < token_places:
        message = np.int64(tokens.owners[thread])
        last = tokens.offsets[message] + tokens.counts[message]
        missing = ~tokens.signatures[message]
        node, place, depth = np.int64(0), thread, 0
        if place < last:
            node = np.int64(trie.roots[tokens.values[place]])
        while node != 0 or depth > 0:
            if node != 0:
                row, end, has_children = rows_of_node(node, trie.nodes)
                for candidate in range(row, end):
                    if trie.signatures[candidate] & missing == _U(0):
                        _stage(message, candidate, waiting, asked, known, out)
                if has_children:
                    path[depth, 0], path[depth, 1] = node, place + 1
                    depth += 1
                node = np.int64(0)
            else:
                place = path[depth - 1, 1]
                if place < last:
                    path[depth - 1, 1] = place + 1
                    node = child_of(path[depth - 1, 0], tokens.values[place], trie.edges, trie.children)
                else:
                    depth -= 1
    elif thread < threads:
        message = (thread - token_places) // parts
        # Neighbours look at neighbouring rows
        for candidate in range((thread - token_places) % parts, trie.tokenless, parts):
            _stage(message, candidate, waiting, asked, known, out)
    _flush(waiting, asked, known, out)


class CudaTrie:
    """The sets of a trie, in device memory."""

    def __init__(self, index: TrieIndex) -> None:
        self._count = len(index)
        self._trie, self._sets = sent(_Trie(index.trie.tokenless, *index.trie.arrays)), _sets_of(index)
        self.nbytes = bytes_of(self._trie, self._sets)

    def launch(self, messages: DeviceMessages, out: PairArrays) -> None:
        """Append the matches of all messages."""
        tokens = messages.tokens
        assert tokens is not None
        parts = -(-self._trie.tokenless // _EACH)
        threads = tokens.places + messages.count * parts
        if not self._count or not threads:
            return
        asked = typed(_Asked(messages.arrays, messages.values))
        match_trie[(*grid(threads, _TRIE_BLOCK), messages.workspace.stream)](
            threads, tokens.places, parts, tokens.arrays, asked, self._trie, self._sets, out
        )


class CudaFilters:
    """Those that the trie has, and those that lines have, in device memory."""

    def __init__(self, index: FilterIndex) -> None:
        trie = None if index.trie is None else CudaTrie(index.trie)
        lines = None if index.lines is None else CudaLines(index.lines)
        self._parts = [part for part in (trie, lines) if part is not None]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def launch(self, messages: DeviceQueries, out: PairArrays) -> None:
        """Append the matches of all messages."""
        assert isinstance(messages, DeviceMessages)
        for part in self._parts:
            part.launch(messages, out)
