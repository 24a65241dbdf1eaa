"""Sets with constraints, for messages that carry the attributes of nearly all: lines of bits in blocks of sets.

The codes of an attribute are cut into buckets. A block has 512 sets that ask for alike values. Of each attribute that
many of them ask for it has a column: for each bucket, a line of 512 bits says which of the sets a value there leaves.
What a line cannot say it does not clear; what the lines of a message leave is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Codes of attributes, cut into buckets so that as many constraints begin or end in each.

    Attributes
    ----------
    numbers : int32 array
        Of each attribute, its number among those that sets ask for, most frequent first; -1 for others.
    offsets : int64 array
    edges : uint32 array
        The first code of each bucket but an attribute's first.
    """

    numbers: IntArray
    offsets: I64Array
    edges: U32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def arrays(self) -> tuple[IntArray, I64Array, U32Array]:
        """As the kernels take them."""
        return self.numbers, self.offsets, self.edges


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """Sets with constraints, in blocks.

    Attributes
    ----------
    attributes, constraints
        See the classes; the constraints are those that are more than an interval.
    buckets : Buckets
    column_offsets : int64 array, length blocks + 1
    columns : uint32[n, 2] array
        The number of the attribute, and the first line. Those of a block that leave the fewest come first.
    box_offsets : int64 array, length blocks + 1
    boxes : uint32[n, 3] array
        What all sets of a block ask for: the number of the attribute, the first of its lines, and how many more.
    lines : uint64[n, 8] array
    rows : uint32 array
        The segment's row of each set, in the order of the blocks.
    record_offsets, records : int64 and uint32[n, 3] arrays
        What a set asks of a message, as of `Records`.
    """

    attributes: Attributes
    constraints: Constraints
    buckets: Buckets
    column_offsets: I64Array
    columns: U32Array
    box_offsets: I64Array
    boxes: U32Array
    lines: U64Array
    rows: U32Array
    record_offsets: I64Array
    records: U32Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of attributes and constraints."""
        blocks = (self.column_offsets, self.columns, self.box_offsets, self.boxes, self.lines)
        sets = (self.rows, self.record_offsets, self.records)
        return sum(array.nbytes for array in (*self.buckets.arrays, *blocks, *sets))


@kernel
def _edges(offsets, cuts, most, ends, edges):
    """Of each attribute's cuts, which ascend, all if they are few, else some with as many between each and the next."""
    used = 0
    for attribute in range(len(offsets) - 1):
        first, last = offsets[attribute], offsets[attribute + 1]
        different = 0
        for i in range(first, last):
            different += i == first or cuts[i] != cuts[i - 1]
        begin = used
        chosen = last - first if different <= most else most
        for i in range(chosen):
            cut = cuts[first + i] if different <= most else cuts[first + (i + 1) * (last - first) // (most + 1)]
            if used == begin or cut != edges[used - 1]:
                edges[used] = cut
                used += 1
        ends[attribute + 1] = used
    return used


def _buckets(asked: Asked, constraints: Constraints, last_codes: I64Array) -> Buckets:
    used = asked.numbers[~asked.is_tag]
    wanted = np.bincount(constraints.attributes[used], minlength=len(last_codes))
    by_use = np.argsort(-wanted, kind="stable")[: np.count_nonzero(wanted)]
    numbers = np.full(len(last_codes), -1, np.int32)
    numbers[by_use] = np.arange(len(by_use))
    # As often as sets ask: where intervals begin, and what comes after them
    sizes = np.diff(constraints.offsets)
    times = np.repeat(np.bincount(used, minlength=len(constraints)), sizes)
    of_interval = np.repeat(constraints.attributes, sizes)
    cuts = np.concatenate([constraints.lows.astype(np.int64), constraints.highs.astype(np.int64) + 1])
    tell = (cuts > LEAST) & (cuts <= np.tile(last_codes[of_interval], 2))
    cuts = np.repeat(cuts, np.where(tell, np.tile(times, 2), 0))
    owners = np.repeat(np.tile(numbers[of_interval], 2), np.where(tell, np.tile(times, 2), 0)).astype(np.int64)
    in_order = np.sort((owners << 32) | cuts)
    offsets = np.searchsorted(in_order, np.arange(len(by_use) + 1) << 32)
    ends, edges = np.zeros(len(by_use) + 1, np.int64), np.empty(len(cuts), np.uint32)
    count = _edges(offsets, in_order.astype(np.uint32), _BUCKETS - 1, ends, edges)
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
        order, starts, things, buckets.offsets, _FEW, _BOXES, column_offsets, columns, box_offsets, boxes
    )
    columns = columns[:used].copy()
    lines = np.empty((count, WORDS), np.uint64)
    fill_lines(order, starts, things, buckets.offsets, column_offsets, columns, lines)
    records = records_of(asked, tests, chances, order)
    return LineIndex(
        attributes, tests.complexes, buckets, column_offsets, columns, box_offsets, boxes[:boxed].copy(), lines,
        asked.rows[order].astype(np.uint32), records.offsets, records.values,
    )  # fmt: skip
