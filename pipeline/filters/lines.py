"""Sets with constraints, for messages that carry the attributes of nearly all: lines of bits in blocks of sets.

The codes of an attribute are cut into buckets. A block has 512 sets that ask for alike values. Of each attribute that
many of them ask for it has a column: for each bucket, a line of 512 bits says which of the sets a value there leaves.
What a line cannot say it does not clear; what the lines of a message leave is verified.

While blocks are made, what a set asks is two words: a bit for each line that it leaves the set in; and twice the number
of the attribute, or one more for a negated constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tagmatch.model.arrays import I64Array, IntArray, Lists, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.interpreted import instead
from tagmatch.model.kernels.intrinsics import leading_zeros, ones, trailing_zeros
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.pipeline.filters.asked import Asked, Requirements, Sets, keep_verified, sets_of
from tagmatch.pipeline.filters.attributes import Constraints
from tagmatch.pipeline.filters.codes import LEAST
from tagmatch.pipeline.filters.messages import MessageTable
from tagmatch.pipeline.segment import RowsFound

#: Sets of a block, and 64-bit words of a line
BLOCK, WORDS = 512, 8
#: Lines of a column: of sets that several values may satisfy together, of no value, and then one for each bucket
SEVERAL, ABSENT, FIRST = 0, 1, 2

_U, _U8, _U32 = np.uint64, np.uint8, np.uint32
# In the place of the second word, of a tag
_NO_ATTRIBUTE = ~_U(0)


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


@inlined
def with_value(line, other):
    """The line of an attribute whose value, or none, has a line, and which has another value, too."""
    return other if line in (ABSENT, other) else SEVERAL


@inlined
def in_box(line, first, span):
    """Whether a line is among those that all sets of a block ask for; several values may be anywhere."""
    return (np.uint8(line - first) <= span) | (line == SEVERAL)


@inlined
def _bits(begin, end):
    """The bits from `begin` to `end`; none if the end comes first."""
    return (_U(1) << _U(end)) - (_U(1) << _U(begin)) if begin < end else _U(0)


@kernel
def lines_of_constraints(constraints, last_codes, numbers, edge_offsets, edges, out):
    """Write the two words of each constraint: it may hold with no value, and with those of some buckets."""
    attributes, negated, offsets, lows, highs = constraints
    for i in range(len(attributes)):
        attribute = np.int64(numbers[attributes[i]])
        if attribute < 0:
            continue
        first, last = edge_offsets[attribute], edge_offsets[attribute + 1]
        end = FIRST + last - first + 1
        found = _bits(ABSENT, end) if negated[i] else _U(0)
        for interval in range(offsets[i], offsets[i + 1]):
            low, high = np.int64(lows[interval]), np.int64(highs[interval])
            if negated[i]:  # only buckets that are wholly in the interval
                begin = FIRST if low <= LEAST else bucket_of(low - 1, edges, first, last) + 1
                stop = end if high >= last_codes[attributes[i]] else bucket_of(high + 1, edges, first, last)
                found &= ~_bits(begin, stop)
            else:
                found |= _bits(bucket_of(low, edges, first, last), bucket_of(high, edges, first, last) + 1)
        out[i, 0], out[i, 1] = found, 2 * _U(attribute) + _U(negated[i])


@kernel
def lines_and_keys(starts, asked, of_constraints, edge_offsets, coarse, things, keys):
    """Bring the words of what sets ask together, and write each set's keys.

    Those are the first attributes that it asks a value of, with the bucket of the interval's middle, made so coarse.
    """
    for row in range(len(keys)):
        for i in range(starts[row], starts[row + 1]):
            if asked[i] < 0:
                things[i, 1] = _NO_ATTRIBUTE
                continue
            lines, attribute = of_constraints[asked[i], 0], of_constraints[asked[i], 1]
            things[i, 0], things[i, 1] = lines, attribute
            if attribute & _U(1) or lines == _U(0):
                continue
            number = np.int64(attribute >> _U(1))
            buckets = edge_offsets[number + 1] - edge_offsets[number] + 1
            ends = np.int64(trailing_zeros(lines)) + 63 - np.int64(leading_zeros(lines)) - 2 * FIRST
            key = np.uint32(number * coarse + (ends >> 1) * coarse // buckets)
            for level in range(keys.shape[1]):
                if key < keys[row, level]:
                    key, keys[row, level] = keys[row, level], key


@kernel
def choose_columns(order, asked, edge_offsets, few, most_boxes, of_columns, of_boxes):
    """The columns and boxes of each block; how many of both there are, and lines of the columns.

    One of `few` sets of a block must ask for an attribute that has a column.
    """
    (starts, things), (column_ends, columns), (box_ends, boxes) = asked, of_columns, of_boxes
    count = len(edge_offsets) - 1
    # Of the block's attributes: sets that ask for it, the last one, those that ask for a value, the last of these, and
    # their lines; constraints, and the lines that leave their sets
    sets, last_set = np.zeros(count, np.int64), np.zeros(count, np.int64)
    with_value, last_with_value = np.zeros(count, np.int64), np.zeros(count, np.int64)
    wanted = np.zeros(count, np.uint64)
    asking, left = np.zeros(count, np.int64), np.zeros(count, np.int64)
    touched = np.empty(count, np.int64)
    used, boxed, lines = 0, 0, 0
    for block in range(len(column_ends) - 1):
        attributes, begin, end = 0, block * BLOCK, min((block + 1) * BLOCK, len(order))
        for place in range(begin, end):
            for i in range(starts[order[place]], starts[order[place] + 1]):
                word = things[i, 1]
                if word == _NO_ATTRIBUTE:
                    continue
                attribute = np.int64(word >> _U(1))
                if asking[attribute] == 0:
                    touched[attributes] = attribute
                    attributes += 1
                asking[attribute] += 1
                left[attribute] += np.int64(ones(things[i, 0]))
                if last_set[attribute] != place + 1:
                    last_set[attribute] = place + 1
                    sets[attribute] += 1
                if word & _U(1) == _U(0):
                    wanted[attribute] |= things[i, 0]
                    if last_with_value[attribute] != place + 1:
                        last_with_value[attribute] = place + 1
                        with_value[attribute] += 1
        some = touched[:attributes]
        all_lines = edge_offsets[some + 1] - edge_offsets[some] + 2
        left_out = asking[some] - left[some] / all_lines
        by_left_out = np.argsort(-left_out, kind="mergesort")
        chosen = some[by_left_out]
        lows, spans = np.full(attributes, FIRST, np.int64), np.zeros(attributes, np.int64)
        for i in range(attributes):
            of_values = wanted[chosen[i]] & ~_U(ABSENT << 1)
            if of_values != _U(0):
                lows[i] = np.int64(trailing_zeros(of_values))
                spans[i] = 63 - np.int64(leading_zeros(of_values)) - lows[i]
        parts = (spans + 1) / (all_lines[by_left_out] - 1)
        for i in np.argsort(parts, kind="mergesort"):
            if with_value[chosen[i]] == end - begin and boxed - box_ends[block] < most_boxes:
                boxes[boxed, 0], boxes[boxed, 1], boxes[boxed, 2] = chosen[i], lows[i], spans[i]
                boxed += 1
        box_ends[block + 1] = boxed
        for attribute in chosen:
            all_lines_of_one = edge_offsets[attribute + 1] - edge_offsets[attribute] + 2
            if left[attribute] < asking[attribute] * all_lines_of_one and sets[attribute] * few >= end - begin:
                columns[used, 0], columns[used, 1] = attribute, lines
                used += 1
                lines += 1 + all_lines_of_one
        column_ends[block + 1] = used
        for attribute in chosen:
            sets[attribute], with_value[attribute], wanted[attribute] = 0, 0, 0
            asking[attribute], left[attribute] = 0, 0
    return used, boxed, lines


@inlined
def _transpose(words, begin):
    """Swap bit `i` of word `begin + k` and bit `k` of word `begin + i`, in 64 words."""
    step, mask = 32, _U(0xFFFFFFFF)
    while step:
        k = 0
        while k < 64:
            one, other = words[begin + k], words[begin + k + step]
            moved = ((one >> _U(step)) ^ other) & mask
            words[begin + k], words[begin + k + step] = one ^ (moved << _U(step)), other ^ moved
            k = (k + step + 1) & ~step
        step >>= 1
        mask ^= mask << _U(step)


@kernel
def fill_lines(order, starts, things, edge_offsets, column_offsets, columns, lines):
    """Write the lines of all columns: each has the sets of its block except for those that leave it out."""
    count = len(edge_offsets) - 1
    column_of, last_set = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    most = 0
    for block in range(len(column_offsets) - 1):
        most = max(most, column_offsets[block + 1] - column_offsets[block])
    # Of each column, the lines of each set
    of_sets = np.empty((most, BLOCK), np.uint64)
    for block in range(len(column_offsets) - 1):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, len(order))
        first, last = column_offsets[block], column_offsets[block + 1]
        for column in range(first, last):
            column_of[columns[column, 0]] = column
            lines[columns[column, 1] + SEVERAL] = _U(0)
            of_sets[column - first, : end - begin] = ~_U(0)
            of_sets[column - first, end - begin :] = _U(0)
        for place in range(begin, end):
            for i in range(starts[order[place]], starts[order[place] + 1]):
                word = things[i, 1]
                if word == _NO_ATTRIBUTE:
                    continue
                attribute = np.int64(word >> _U(1))
                column = column_of[attribute]
                if column < 0:
                    continue
                of_sets[column - first, place - begin] &= things[i, 0]
                if word & _U(1) == _U(0):
                    if last_set[attribute] == place + 1:  # each of its constraints may hold for another value
                        at = place - begin
                        lines[columns[column, 1] + SEVERAL, at >> 6] |= _U(1) << _U(at & 63)
                    last_set[attribute] = place + 1
        for column in range(first, last):
            attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
            column_of[attribute] = -1
            all_lines = FIRST + edge_offsets[attribute + 1] - edge_offsets[attribute] + 1
            of_column = of_sets[column - first]
            for word in range(WORDS):
                _transpose(of_column, 64 * word)
                for each in range(ABSENT, all_lines):
                    lines[line + each, word] = of_column[64 * word + each]


# Buckets of an attribute at most
_BUCKETS = 32
# Sets of a block are alike in the buckets, made this coarse, of this number of attributes
_COARSE, _LEVELS = 8, 3
# One in this number of sets of a block must ask for an attribute that has a column
_FEW = 8
# Boxes of a block at most
_BOXES = 6

_NO_KEY = np.uint32(0xFFFFFFFF)


class Buckets(NamedTuple):
    """Codes of attributes, cut into buckets so that as many constraints begin or end in each; kernels take it."""

    numbers: IntArray  # int32; of each attribute, its number among those that sets ask for, most frequent first, or -1
    edge_offsets: I64Array
    edges: U32Array  # the first code of each bucket but an attribute's first


class LineBlocks(NamedTuple):
    """The columns of blocks of sets, their lines, and what all sets of a block ask for; kernels take it."""

    column_offsets: I64Array  # length blocks + 1
    # [n, 2]: the number of the attribute, and the first line; those of a block that leave the fewest come first
    columns: U32Array
    box_offsets: I64Array  # length blocks + 1
    # [n, 3], what all sets of a block ask for: the number of the attribute, the first of its lines, and how many more
    boxes: U32Array
    lines: U64Array  # [n, 8]


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """Sets with constraints, in blocks."""

    buckets: Buckets
    blocks: LineBlocks
    sets: Sets  # in the order of the blocks

    def __len__(self) -> int:
        return len(self.sets.rows)

    @property
    def arrays(self) -> tuple[tuple[Any, ...], ...]:
        """As `match_in_lines` takes them, which finds the type of a named tuple later."""
        return tuple(self.buckets), tuple(self.blocks), tuple(self.sets)

    def match(self, messages: MessageTable, attributes: int) -> RowsFound:
        """Rows of the segment whose tags and constraints each message satisfies; `attributes` counts them."""
        ends, first_codes = np.zeros(len(messages.offsets), np.int64), np.zeros(attributes, np.uint32)
        buckets = np.empty((len(self.buckets.edge_offsets) - 1, min(_BATCH, len(ends) - 1)), np.uint8)
        rows, rejected, _ = match_in_lines(messages, *self.arrays, first_codes, buckets, ends)
        return RowsFound(Lists(ends, rows), int(rejected))


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


def line_index(required: Requirements) -> LineIndex:
    """The blocks of some sets."""
    asked, constraints = required.asked, required.constraints
    last_codes = required.attributes.constants.last_codes
    buckets = _buckets(asked, constraints, last_codes)
    of_constraints = np.empty((len(constraints), 2), np.uint64)
    lines_of_constraints(constraints.arrays, last_codes, *buckets, of_constraints)
    starts, edge_offsets = offsets_of(asked.counts), buckets.edge_offsets
    things = np.empty((len(asked.numbers), 2), np.uint64)
    keys = np.full((len(asked), _LEVELS), _NO_KEY, np.uint32)
    lines_and_keys(starts, asked.numbers, of_constraints, edge_offsets, _COARSE, things, keys)
    order = np.lexsort(keys.T[::-1])
    blocks = -(-len(asked) // BLOCK)
    column_offsets, box_offsets = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    columns = np.empty((len(asked.numbers), 2), np.uint32)
    boxes = np.empty((_BOXES * blocks, 3), np.uint32)
    used, boxed, count = choose_columns(
        order, (starts, things), edge_offsets, _FEW, _BOXES, (column_offsets, columns), (box_offsets, boxes)
    )
    columns, lines = columns[:used].copy(), np.empty((count, WORDS), np.uint64)
    fill_lines(order, starts, things, edge_offsets, column_offsets, columns, lines)
    all_blocks = LineBlocks(column_offsets, columns, box_offsets, boxes[:boxed].copy(), lines)
    return LineIndex(buckets, all_blocks, sets_of(asked, required.tests, required.likely.chances, order))


# Messages for which the lines of a block are used while they are in the cache: with 256, most lines would be fetched
# for one or two. The first batch of a packet is smaller, and says how many candidates to expect. There is room for so
# many of these at first, and later batches, if they have many messages, have no more than a few million
_BATCH, _FIRST_BATCH, _CANDIDATES, _MOST_CANDIDATES = 2048, 512, 4096, 1 << 22


@kernel
def _bucketed(offsets, attributes, codes, first, count, buckets, cut):
    """Write which line of its column each attribute of some messages has."""
    numbers, edge_offsets, edges = cut
    buckets[:, :] = ABSENT
    for message in range(count):
        for i in range(offsets[first + message], offsets[first + message + 1]):
            attribute = np.int64(numbers[attributes[i]])
            if attribute < 0:
                continue
            bucket = bucket_of(codes[i], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
            buckets[attribute, message] = with_value(buckets[attribute, message], bucket)


@inlined
def _in_boxes(boxes, first, last, buckets, live):
    """Write which messages have values in all boxes."""
    live[:] = 1
    for box in range(first, last):
        of_attribute, low, span = buckets[boxes[box, 0]], _U8(boxes[box, 1]), _U8(boxes[box, 2])
        for message in range(len(live)):
            live[message] &= in_box(of_attribute[message], low, span)


_BIT, _BYTE, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_LINE = ir.VectorType(_I64, WORDS)
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic
#: In the place of a column: no set is left
_NOTHING = -1


@_intrinsic
def _meet_all(typing, left, lines, columns, first, last, buckets, message):  # noqa: ARG001
    """Leave those sets of `left` that are in the lines of a message in columns, from one column to another one.

    Returns the column in which the message has several values, `last` if it has in none, or `_NOTHING`. As a loop of
    vectors, which Numba would make of single words: a line is one or two registers.
    """

    def generate(context, builder, signature, arguments):
        def element(argument, row, beyond=0):
            array = context.make_array(signature.args[argument])(context, builder, arguments[argument])
            beyond = ir.Constant(_I64, beyond) if isinstance(beyond, int) else beyond
            place = builder.add(builder.mul(row, builder.extract_value(array.strides, 0)), beyond)
            return builder.gep(builder.bitcast(array.data, _BYTE.as_pointer()), [place])

        def number_at(argument, kind, row, beyond):
            at = builder.bitcast(element(argument, row, beyond), kind.as_pointer())
            return builder.zext(builder.load(at), _I64)

        def line_at(argument, row):
            at = builder.bitcast(element(argument, row), _LINE.as_pointer())
            return at, builder.load(at, align=8)

        first, last, message = arguments[3], arguments[4], arguments[6]
        kept, begun = line_at(0, ir.Constant(_I64, 0))
        before = builder.block
        blocks = [builder.append_basic_block(name) for name in ("column", "one", "next", "end")]
        in_column, in_one, in_next, at_end = blocks
        builder.cbranch(builder.icmp_signed("<", first, last), in_column, at_end)
        builder.position_at_end(in_column)
        column, left = builder.phi(_I64), builder.phi(_LINE)
        attribute = number_at(2, _I32, column, 0)
        line = number_at(2, _I32, column, 4)
        bucket = number_at(5, _BYTE, attribute, message)
        builder.cbranch(builder.icmp_signed("==", bucket, ir.Constant(_I64, SEVERAL)), at_end, in_one)
        builder.position_at_end(in_one)
        met = builder.and_(left, line_at(1, builder.add(line, bucket))[1])
        any_of = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I64, [_LINE]), f"llvm.vector.reduce.or.v{WORDS}i64"
        )
        is_empty = builder.icmp_signed("==", builder.call(any_of, [met]), ir.Constant(_I64, 0))
        builder.cbranch(is_empty, at_end, in_next)
        builder.position_at_end(in_next)
        following = builder.add(column, ir.Constant(_I64, 1))
        builder.cbranch(builder.icmp_signed("<", following, last), in_column, at_end)
        for value, entering, again in ((column, first, following), (left, begun, met)):
            value.add_incoming(entering, before)
            value.add_incoming(again, in_next)
        builder.position_at_end(at_end)
        stopped, rest = builder.phi(_I64), builder.phi(_LINE)
        nothing = ir.Constant(_I64, _NOTHING)
        for block, place, sets in (
            (before, last, begun), (in_column, column, left), (in_one, nothing, met), (in_next, last, met)
        ):  # fmt: skip
            stopped.add_incoming(place, block)
            rest.add_incoming(sets, block)
        builder.store(rest, kept, align=8)
        return stopped

    return types.int64(left, lines, columns, types.int64, types.int64, buckets, types.int64), generate


def _meet_each(left: Any, lines: Any, columns: Any, first: int, last: int, buckets: Any, message: int) -> int:
    for column in range(first, last):
        attribute, line = columns[column]
        bucket = buckets[attribute, message]
        if bucket == SEVERAL:
            return column
        left[0] &= lines[line + bucket]
        if not left[0].any():
            return _NOTHING
    return last


instead(_meet_all, _meet_each)


@kernel
def _meet_several(left, attribute, line, attributes, codes, lines, cut, union):
    """Leave those sets of `left` that are in the line of any value that a message has; whether there are some."""
    numbers, edge_offsets, edges = cut
    for word in range(WORDS):
        union[word] = lines[line + SEVERAL, word]
    for i in range(len(attributes)):
        if numbers[attributes[i]] == attribute:
            bucket = bucket_of(codes[i], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
            for word in range(WORDS):
                union[word] |= lines[line + bucket, word]
    some = _U(0)
    for word in range(WORDS):
        left[0, word] &= union[word]
        some |= left[0, word]
    return some != _U(0)


@kernel
def _candidates(messages, some, buckets, cut, blocks, sets, found, by):
    """Sets that the lines leave for some messages, `count` from `first` on, with the message of each; how many."""
    _, _, offsets, attributes, codes = messages
    first, count = some
    column_offsets, columns, box_offsets, boxes, lines = blocks
    live, union, left, used = np.empty(count, np.uint8), np.empty(WORDS, np.uint64), np.empty((1, WORDS), np.uint64), 0
    for block in range(len(column_offsets) - 1):
        _in_boxes(boxes, box_offsets[block], box_offsets[block + 1], buckets, live)
        last = column_offsets[block + 1]
        for message in range(len(live)):
            if live[message] == 0:
                continue
            for word in range(WORDS):
                left[0, word] = ~_U(0)
            column = _meet_all(left, lines, columns, column_offsets[block], last, buckets, message)
            while column >= 0 and column < last:
                begin, end = offsets[first + message], offsets[first + message + 1]
                attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
                own = attributes[begin:end], codes[begin:end]
                if not _meet_several(left, attribute, line, own[0], own[1], lines, cut, union):
                    column = _NOTHING
                    break
                column = _meet_all(left, lines, columns, column + 1, last, buckets, message)
            if column == _NOTHING:
                continue
            if used + BLOCK > len(found):
                found, by = with_room(found, used, BLOCK), with_room(by, used, BLOCK)
            for word in range(WORDS):
                rest = left[0, word]
                while rest != _U(0):
                    place = block * BLOCK + 64 * word + np.int64(trailing_zeros(rest))
                    rest &= rest - _U(1)
                    found[used], by[used] = place, message
                    used += place < sets  # a block without columns, the last one, has fewer sets than bits
    return used, found, by


@kernel
def match_in_lines(messages, cut, blocks, sets, first_codes, buckets, ends):
    """Rows that each message satisfies, and where each message's end; how many candidates were turned away."""
    _, _, offsets, attributes, codes = messages
    total, rejected, touched = 0, 0, _U32(0)
    out = np.empty(16 * len(ends), np.uint32)
    found, by = np.empty(_CANDIDATES, np.uint32), np.empty(_CANDIDATES, np.uint16)
    first, most = 0, _FIRST_BATCH
    while first < len(ends) - 1:
        count = min(most, len(ends) - 1 - first)
        _bucketed(offsets, attributes, codes, first, count, buckets, cut)
        used, found, by = _candidates(messages, (first, count), buckets, cut, blocks, len(sets[1]), found, by)
        out = with_room(out, total, used)
        left, last = (by, found, used), first + count
        total, touch = keep_verified(first, last, left, messages, sets, first_codes, (out, total, ends))
        touched ^= touch
        rejected += used
        first, most = last, min(max(_MOST_CANDIDATES * count // (used + 1), 1), _BATCH)
    return out[:total], rejected - total, touched


# Python looks at most sets for each message
match_in_lines.elements = lambda arguments: len(arguments[-1]) * len(arguments[3][1])
