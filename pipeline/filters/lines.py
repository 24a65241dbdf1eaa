"""Sets with constraints, for messages that carry the attributes of nearly all: lines of bits in blocks of sets.

The codes of an attribute are cut into buckets. A block has 512 sets that ask for alike values. Of each attribute that
many of them ask for it has a column: for each bucket, a line of 512 bits says which of the sets a value there leaves.
What a line cannot say it does not clear; what the lines of a message leave is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, IntArray, U32Array, U64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.filters.asked import Asked, Tests, records_of
from tagmatch.pipeline.filters.attributes import Attributes, Constraints
from tagmatch.pipeline.filters.codes import LEAST

#: Sets of a block, and 64-bit words of a line
BLOCK, WORDS = 512, 8
#: Lines of a column: of sets that several values may satisfy together, of no value, and then one for each bucket
SEVERAL, ABSENT, FIRST = 0, 1, 2

# Buckets of an attribute at most
_BUCKETS = 32
# Sets of a block are alike in the buckets, made this coarse, of so many attributes
_COARSE, _LEVELS = 8, 3
# One of so many sets of a block must ask for an attribute that has a column
_FEW = 8
# Boxes of a block at most
_BOXES = 6

_U = np.uint64
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


@inlined
def bucket_of(code, edges, first, last):
    """The line of a code, where the edges of its attribute are those from `first` to `last`."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return FIRST + low - first


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


@kernel
def _allow(number, constraints, last_codes, edges, first, last, allowed):
    """Write whether a constraint may hold with no value, and with one of each bucket; how many of these it leaves."""
    attributes, negated, offsets, lows, highs = constraints
    end = FIRST + last - first + 1
    allowed[ABSENT:end] = negated[number]
    for interval in range(offsets[number], offsets[number + 1]):
        low, high = np.int64(lows[interval]), np.int64(highs[interval])
        if negated[number]:  # only buckets that are wholly in the interval
            begin = FIRST if low <= LEAST else bucket_of(low - 1, edges, first, last) + 1
            stop = end if high >= last_codes[attributes[number]] else bucket_of(high + 1, edges, first, last)
            for line in range(begin, stop):
                allowed[line] = False
        else:
            for line in range(bucket_of(low, edges, first, last), bucket_of(high, edges, first, last) + 1):
                allowed[line] = True
    left = 0
    for line in range(ABSENT, end):
        left += allowed[line]
    return left


@kernel
def _keys(starts, asked, some, lows, highs, of_attribute, numbers, edge_offsets, edges, keys):
    """Of each set, the first attributes that it asks a value of, with the coarse bucket of the interval's middle."""
    for row in range(len(keys)):
        for i in range(starts[row], starts[row + 1]):
            constraint = asked[i]
            if constraint < 0 or not some[constraint]:
                continue
            attribute = np.int64(numbers[of_attribute[constraint]])
            first, last = edge_offsets[attribute], edge_offsets[attribute + 1]
            low = bucket_of(lows[constraint], edges, first, last) - FIRST
            high = bucket_of(highs[constraint], edges, first, last) - FIRST
            key = np.uint32(attribute * _COARSE + ((low + high) >> 1) * _COARSE // (last - first + 1))
            for level in range(keys.shape[1]):
                if key < keys[row, level]:
                    key, keys[row, level] = keys[row, level], key


@kernel
def _columns(
    order, starts, asked, constraints, last_codes, numbers, edge_offsets, edges,
    column_ends, columns, box_ends, boxes,
):  # fmt: skip
    """The columns and boxes of each block; how many lines they need."""
    of_attribute, negated = constraints[:2]
    count = len(edge_offsets) - 1
    # Of the block's attributes: sets that ask for it, the last one, those that ask for a value, and of these
    # the last one and where all are; what part of its sets a line leaves out, summed up
    sets, last_set = np.zeros(count, np.int64), np.zeros(count, np.int64)
    with_value, last_with_value = np.zeros(count, np.int64), np.zeros(count, np.int64)
    lows, highs = np.zeros(count, np.int64), np.zeros(count, np.int64)
    left_out = np.zeros(count, np.float64)
    touched, allowed = np.empty(count, np.int64), np.zeros(FIRST + _BUCKETS, np.bool_)
    used, boxed, lines = 0, 0, 0
    for block in range(len(column_ends) - 1):
        attributes, begin, end = 0, block * BLOCK, min((block + 1) * BLOCK, len(order))
        for place in range(begin, end):
            for i in range(starts[order[place]], starts[order[place] + 1]):
                if asked[i] < 0:
                    continue
                attribute = np.int64(numbers[of_attribute[asked[i]]])
                first, last = edge_offsets[attribute], edge_offsets[attribute + 1]
                if sets[attribute] == 0:
                    touched[attributes] = attribute
                    attributes += 1
                    lows[attribute], highs[attribute] = FIRST + last - first, FIRST
                if last_set[attribute] != place + 1:
                    last_set[attribute] = place + 1
                    sets[attribute] += 1
                left = _allow(asked[i], constraints, last_codes, edges, first, last, allowed)
                left_out[attribute] += 1 - left / (last - first + 2)
                if not negated[asked[i]]:
                    if last_with_value[attribute] != place + 1:
                        last_with_value[attribute] = place + 1
                        with_value[attribute] += 1
                    for line in range(FIRST, FIRST + last - first + 1):
                        if allowed[line]:
                            lows[attribute], highs[attribute] = min(lows[attribute], line), max(highs[attribute], line)
        chosen = touched[:attributes][np.argsort(-left_out[touched[:attributes]], kind="mergesort")]
        spans = (highs[chosen] - lows[chosen] + 1) / (edge_offsets[chosen + 1] - edge_offsets[chosen] + 1)
        for attribute in chosen[np.argsort(spans, kind="mergesort")]:
            if with_value[attribute] == end - begin and boxed - box_ends[block] < _BOXES:
                boxes[boxed, 0], boxes[boxed, 1] = attribute, lows[attribute]
                boxes[boxed, 2] = max(highs[attribute] - lows[attribute], 0)
                boxed += 1
        box_ends[block + 1] = boxed
        for attribute in chosen:
            if left_out[attribute] > 0 and sets[attribute] * _FEW >= end - begin:
                columns[used, 0], columns[used, 1] = attribute, lines
                used += 1
                lines += FIRST + edge_offsets[attribute + 1] - edge_offsets[attribute] + 1
        column_ends[block + 1] = used
        for attribute in chosen:
            sets[attribute], with_value[attribute], left_out[attribute] = 0, 0, 0
    return used, boxed, lines


@kernel
def _fill(
    order, starts, asked, constraints, last_codes, numbers, edge_offsets, edges, column_offsets, columns, lines
):  # fmt: skip
    """Have all sets of a block in the lines of its columns, but for those that each line leaves out."""
    of_attribute, negated = constraints[:2]
    count = len(edge_offsets) - 1
    first_lines, last_set = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    allowed = np.zeros(FIRST + _BUCKETS, np.bool_)
    for block in range(len(column_offsets) - 1):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, len(order))
        for column in range(column_offsets[block], column_offsets[block + 1]):
            attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
            first_lines[attribute] = line
            after = line + FIRST + edge_offsets[attribute + 1] - edge_offsets[attribute] + 1
            lines[line + ABSENT : after] = ~_U(0)
            if end - begin < BLOCK:
                word = (end - begin) >> 6
                lines[line + ABSENT : after, word] = (_U(1) << _U((end - begin) & 63)) - _U(1)
                lines[line + ABSENT : after, word + 1 :] = _U(0)
        for place in range(begin, end):
            word, bit = (place - begin) >> 6, _U(1) << _U((place - begin) & 63)
            for i in range(starts[order[place]], starts[order[place] + 1]):
                if asked[i] < 0:
                    continue
                attribute = np.int64(numbers[of_attribute[asked[i]]])
                line = first_lines[attribute]
                if line < 0:
                    continue
                first, last = edge_offsets[attribute], edge_offsets[attribute + 1]
                _allow(asked[i], constraints, last_codes, edges, first, last, allowed)
                for bucket in range(ABSENT, FIRST + last - first + 1):
                    if not allowed[bucket]:
                        lines[line + bucket, word] &= ~bit
                if not negated[asked[i]]:
                    if last_set[attribute] == place + 1:  # each of its constraints may hold for another value
                        lines[line + SEVERAL, word] |= bit
                    last_set[attribute] = place + 1
        for column in range(column_offsets[block], column_offsets[block + 1]):
            first_lines[columns[column, 0]] = -1


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
    order = np.argsort((owners << 32) | cuts)
    offsets = np.searchsorted(owners[order], np.arange(len(by_use) + 1))
    ends, edges = np.zeros(len(by_use) + 1, np.int64), np.empty(len(cuts), np.uint32)
    count = _edges(offsets, cuts[order], _BUCKETS - 1, ends, edges)
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
    counts = asked.counts
    starts = np.concatenate([[0], np.cumsum(counts)])
    keys = np.full((len(asked), _LEVELS), _NO_KEY, np.uint32)
    lows, highs = constraints.hulls
    _keys(starts, asked.numbers, constraints.some, lows, highs, constraints.attributes, *buckets.arrays, keys)
    order = np.lexsort(keys.T[::-1])
    blocks = -(-len(asked) // BLOCK)
    column_offsets, box_offsets = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    columns = np.empty((len(asked.numbers), 2), np.uint32)
    boxes = np.empty((_BOXES * blocks, 3), np.uint32)
    built_of = (order, starts, asked.numbers, constraints.arrays, last_codes, *buckets.arrays)
    used, boxed, count = _columns(*built_of, column_offsets, columns, box_offsets, boxes)
    columns = columns[:used].copy()
    lines = np.zeros((count, WORDS), np.uint64)
    _fill(*built_of, column_offsets, columns, lines)
    records = records_of(asked, tests, chances, order)
    return LineIndex(
        attributes, tests.complexes, buckets, column_offsets, columns, box_offsets, boxes[:boxed].copy(), lines,
        asked.rows[order].astype(np.uint32), records.offsets, records.values,
    )  # fmt: skip
