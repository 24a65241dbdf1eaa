"""Stage 2, subset match, of sets with constraints in blocks: half a warp for each block and message."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.candidates import flush, new_stage, stage
from tagmatch.pipeline.cuda.jit import inlined, kernel
from tagmatch.pipeline.cuda.memory import grid, to_device
from tagmatch.pipeline.cuda.messages import DeviceMessages
from tagmatch.pipeline.filters.line_blocks import ABSENT, BLOCK, SEVERAL, bucket_of, in_box, with_value
from tagmatch.pipeline.filters.lines import LineIndex

cuda: Any = numba.cuda

_BLOCK = 256
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
            assign_buckets[(*grid(count, _BLOCK), workspace.stream)](first, count, *values, *self._cut, buckets)
            threads = self._blocks * count * _LANES
            match_lines[(*grid(threads, _BLOCK), workspace.stream)](
                threads, first, count, buckets, messages.offsets, messages.counts, messages.ranks, *values,
                self._sets, *self._cut, *self._tables, *results,
            )  # fmt: skip
