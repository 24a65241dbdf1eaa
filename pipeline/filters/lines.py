"""Sets with constraints, for messages that carry the attributes of nearly all: lines of bits in blocks of sets.

The codes of an attribute are cut into buckets. A block has 512 sets that ask for alike values. Of each attribute that
many of them ask for it has a column: for each bucket, a line of 512 bits says which of the sets a value there leaves.
What a line cannot say it does not clear; what the lines of a message leave is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, IntArray, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.pipeline.filters.asked import Asked, Tests, records_of
from tagmatch.pipeline.filters.attributes import Attributes, Constraints
from tagmatch.pipeline.filters.codes import LEAST
from tagmatch.pipeline.filters.line_blocks import (
    BLOCK,
    WORDS,
    choose_columns,
    fill_lines,
    lines_and_keys,
    lines_of_constraints,
)

# Buckets of an attribute at most
_BUCKETS = 32
# Sets of a block are alike in the buckets, made this coarse, of so many attributes
_COARSE, _LEVELS = 8, 3
# One of so many sets of a block must ask for an attribute that has a column
_FEW = 8
# Boxes of a block at most
_BOXES = 6

_NO_KEY = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Codes of attributes, cut into buckets so that as many constraints begin or end in each."""

    numbers: IntArray  # int32; of each attribute, its number among those that sets ask for, most frequent first, or -1
    offsets: I64Array
    edges: U32Array  # the first code of each bucket but an attribute's first

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def arrays(self) -> tuple[IntArray, I64Array, U32Array]:
        """As the kernels take them."""
        return self.numbers, self.offsets, self.edges


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """Sets with constraints, in blocks."""

    attributes: Attributes
    constraints: Constraints  # those that are more than an interval
    buckets: Buckets
    column_offsets: I64Array  # length blocks + 1
    # [n, 2]: the number of the attribute, and the first line; those of a block that leave the fewest come first
    columns: U32Array
    box_offsets: I64Array  # length blocks + 1
    # [n, 3], what all sets of a block ask for: the number of the attribute, the first of its lines, and how many more
    boxes: U32Array
    lines: U64Array  # [n, 8]
    rows: U32Array  # the segment's row of each set, in the order of the blocks
    record_offsets: I64Array  # what a set asks of a message (see `Records`)
    records: U32Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """As `match_in_lines` takes them."""
        return (
            self.buckets.arrays, (self.column_offsets, self.columns, self.box_offsets, self.boxes, self.lines),
            (self.constraints.arrays, self.rows, self.record_offsets, self.records),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of attributes and constraints."""
        blocks = (self.column_offsets, self.columns, self.box_offsets, self.boxes, self.lines)
        sets = (self.rows, self.record_offsets, self.records)
        return sum(array.nbytes for array in (*self.buckets.arrays, *blocks, *sets))


@kernel
def _count_cuts(constraints, times, last_codes, starts, counts):
    """Count, at each code of each attribute, the intervals that begin there or end just before it, as sets ask."""
    attributes, _, offsets, lows, highs = constraints
    for i in range(len(attributes)):
        if times[i] == 0:
            continue
        last, start = last_codes[attributes[i]], starts[attributes[i]]
        for interval in range(offsets[i], offsets[i + 1]):
            low, end = np.int64(lows[interval]), np.int64(highs[interval]) + 1
            if LEAST < low <= last:
                counts[start + low] += times[i]
            if LEAST < end <= last:
                counts[start + end] += times[i]


@kernel
def _edges(by_use, starts, counts, most, ends, edges):
    """Of the cuts of each attribute all if they are few, else some with as many between each and the next."""
    used = 0
    for i in range(len(by_use)):
        first, last = starts[by_use[i]], starts[by_use[i] + 1]
        cuts, different = np.int64(0), 0
        for at in range(first, last):
            cuts += counts[at]
            different += counts[at] > 0
        before, chosen = np.int64(0), 1
        for at in range(first, last):
            before += counts[at]
            if different <= most:
                is_edge = counts[at] > 0
            else:
                is_edge = chosen <= most and before > chosen * cuts // (most + 1)
                while chosen <= most and before > chosen * cuts // (most + 1):
                    chosen += 1
            if is_edge:
                edges[used] = at - first
                used += 1
        ends[i + 1] = used
    return used


def _buckets(asked: Asked, constraints: Constraints, last_codes: I64Array) -> Buckets:
    times = np.bincount(asked.numbers[~asked.is_tag], minlength=len(constraints))
    wanted = np.zeros(len(last_codes), np.int64)
    np.add.at(wanted, constraints.attributes, times)
    by_use = np.argsort(-wanted, kind="stable")[: np.count_nonzero(wanted)]
    numbers = np.full(len(last_codes), -1, np.int32)
    numbers[by_use] = np.arange(len(by_use))
    starts = offsets_of(last_codes + 1)
    counts = np.zeros(int(starts[-1]), np.uint32)
    _count_cuts(constraints.arrays, times, last_codes, starts, counts)
    ends, edges = np.zeros(len(by_use) + 1, np.int64), np.empty((_BUCKETS - 1) * len(by_use), np.uint32)
    count = _edges(by_use, starts, counts, _BUCKETS - 1, ends, edges)
    return Buckets(numbers, ends, edges[:count].copy())


def line_index(
    asked: Asked,
    attributes: Attributes,
    constraints: Constraints,
    tests: Tests,
    chances: F64Array,
) -> LineIndex:
    """The blocks of some sets; `chances` says how likely messages have each thing that they ask."""
    last_codes = attributes.constants.last_codes
    buckets = _buckets(asked, constraints, last_codes)
    of_constraints = np.empty((len(constraints), 2), np.uint64)
    lines_of_constraints(constraints.arrays, last_codes, *buckets.arrays, of_constraints)
    starts = offsets_of(asked.counts)
    things = np.empty((len(asked.numbers), 2), np.uint64)
    keys = np.full((len(asked), _LEVELS), _NO_KEY, np.uint32)
    lines_and_keys(starts, asked.numbers, of_constraints, buckets.offsets, _COARSE, things, keys)
    order = np.lexsort(keys.T[::-1])
    blocks = -(-len(asked) // BLOCK)
    column_offsets, box_offsets = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    columns = np.empty((len(asked.numbers), 2), np.uint32)
    boxes = np.empty((_BOXES * blocks, 3), np.uint32)
    used, boxed, count = choose_columns(
        order, (starts, things), buckets.offsets, _FEW, _BOXES, (column_offsets, columns), (box_offsets, boxes)
    )
    columns = columns[:used].copy()
    lines = np.empty((count, WORDS), np.uint64)
    fill_lines(order, starts, things, buckets.offsets, column_offsets, columns, lines)
    records = records_of(asked, tests, chances, order)
    return LineIndex(
        attributes, tests.complexes, buckets, column_offsets, columns, box_offsets, boxes[:boxed].copy(), lines,
        asked.rows[order].astype(np.uint32), records.offsets, records.values,
    )  # fmt: skip
