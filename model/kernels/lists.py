"""Columns of lists (and of strings, which are lists of bytes): relabelled, gathered, counted, joined.

Rows of tag numbers or ranks: ascending, each number once.

Bits of words, as the processor counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

from tagmatch.model.arrays import (
    I64Array,
    IntArray,
    Lists,
    Strings,
    U32Array,
    UIntArray,
    list_offsets,
    offsets_of,
    pooled,
)
from tagmatch.model.kernels.jit import copy, kernel
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.parallel import even_ranges, even_work, run, run_rows

_U = np.uint64

# Up to this length insertion sort beats heap sort
_FEW = 32


@kernel
def spread(known, indices, first, out):
    """Write to `out` the number that `known` has for each index, from place `first` on; UNKNOWN where it has none."""
    for i in range(len(out)):
        index = indices[first + i]
        out[i] = known[index] if index < len(known) else UNKNOWN


@kernel
def _sink(values, first, at, count):
    """Restore the heap `values[first:first + count]`, the greatest first, of which only place `at` may be too small."""
    value = values[first + at]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and values[first + child + 1] > values[first + child]:
            child += 1
        if values[first + child] <= value:
            break
        values[first + at] = values[first + child]
        at = child
    values[first + at] = value


@kernel
def sort_values(values, first, last):
    """Sort `values[first:last]`, usually few, in place and ascending, without any other memory (on CUDA as well)."""
    count = last - first
    if count > _FEW:
        for at in range(count // 2 - 1, -1, -1):
            _sink(values, first, at, count)
        for left in range(count - 1, 0, -1):
            values[first], values[first + left] = values[first + left], values[first]
            _sink(values, first, 0, left)
        return
    # Unsigned indices save the test for a negative one
    begin = _U(first)
    for i in range(begin + _U(1), _U(last)):
        value = values[i]
        place = _U(i)
        while place > begin and values[place - _U(1)] > value:
            values[place] = values[place - _U(1)]
            place -= _U(1)
        values[place] = value


@kernel
def ascending_row(numbers, first, last, out):
    """Move `numbers[first:last]` to place `out`, at or before `first`: ascending, once each, without UNKNOWN.

    Returns where they end.
    """
    # Without branches, which would be foretold wrongly where some tags are known and others not
    used = _U(out)
    for i in range(_U(first), _U(last)):
        number = numbers[i]
        numbers[used] = number
        used += _U(number != UNKNOWN)
    sort_values(numbers, out, used)
    distinct = _U(out)
    for i in range(_U(out), used):
        number = numbers[i]
        numbers[distinct] = number
        distinct += _U(i + _U(1) == used or number != numbers[i + _U(1)])
    return np.int64(distinct)


@kernel
def ascending_known(offsets, first, numbers, new_offsets):
    """Make each row of `numbers` ascending, in place, without repetitions and without UNKNOWN.

    Row `i` of `len(new_offsets) - 1` stands at `offsets[first + i] - offsets[first]` at first and at
    `new_offsets[i]` afterwards; returns how many numbers are left in all.
    """
    base = offsets[first]
    used = 0
    for row in range(len(new_offsets) - 1):
        used = ascending_row(numbers, offsets[first + row] - base, offsets[first + row + 1] - base, used)
        new_offsets[row + 1] = used
    return used


# Rows whose cache misses are waited for together
_BATCH_ROWS = 256


@kernel
def _relabel(offsets, values, labels, first, last, out):
    for begin in range(first, last, _BATCH_ROWS):
        end = min(begin + _BATCH_ROWS, last)
        # A loop of its own, so that many cache misses are waited for at once
        for i in range(offsets[begin], offsets[end]):
            out[i] = labels[values[i]]
        for row in range(begin, end):
            sort_values(out, offsets[row], offsets[row + 1])


def relabel(rows: Lists, labels: U32Array, *, threads: int = 1) -> Lists:
    """Rows with `labels[v]` for each value `v`, every row ascending."""
    out = np.empty(len(rows.values), np.uint32)
    ranges = even_work(rows.offsets, threads)
    run_rows(lambda a, b: _relabel(rows.offsets, rows.values, labels, a, b, out), ranges, threads)
    return Lists(rows.offsets, out)


@kernel
def _gather_lengths(offsets, order, first, last, out):
    for i in range(first, last):
        out[i] = offsets[order[i] + 1] - offsets[order[i]]


@kernel
def _gather(offsets, values, order, new_offsets, new_values, first, last):
    begins = np.empty(_BATCH_ROWS, np.int64)
    touched = values[:1].sum()
    for batch in range(first, last, _BATCH_ROWS):
        end = min(batch + _BATCH_ROWS, last)
        # Loops of their own, so that many cache misses are waited for at once
        for i in range(batch, end):
            begins[i - batch] = offsets[order[i]]
        for i in range(batch, end):
            touched ^= values[min(begins[i - batch], len(values) - 1)]
        for i in range(batch, end):
            begin, length = begins[i - batch], new_offsets[i + 1] - new_offsets[i]
            copy(values, begin, begin + length, new_values, new_offsets[i])
    return touched


def _gathered(
    offsets: IntArray, values: UIntArray, order: UIntArray, threads: int
) -> tuple[IntArray, npt.NDArray[np.unsignedinteger[Any]]]:
    ranges = even_ranges(len(order), threads)
    lengths = np.empty(len(order), np.uint32)
    run_rows(lambda a, b: _gather_lengths(offsets, order, a, b, lengths), ranges, threads)
    new_offsets = list_offsets(lengths)
    new_values = np.empty(int(new_offsets[-1]), values.dtype)
    if len(new_values):
        run_rows(lambda a, b: _gather(offsets, values, order, new_offsets, new_values, a, b), ranges, threads)
    return new_offsets, new_values


def gather(rows: Lists, order: UIntArray, *, threads: int = 1) -> Lists:
    """Rows in the order given; `order` may leave rows out."""
    return Lists(*_gathered(rows.offsets, rows.values, order, threads))


def gather_strings(strings: Strings, order: UIntArray, *, threads: int = 1) -> Strings:
    """Strings in the order given; `order` may leave strings out."""
    offsets, data = _gathered(strings.offsets, strings.data, order, threads)
    return Strings(offsets, data.astype(np.uint8, copy=False))


@kernel
def compare_to(offsets, values, row, others, first, last):
    """-1, 0 or 1 as list `row` is before, equal to or after `others[first:last]` in lexicographic order."""
    begin, end = offsets[row], offsets[row + 1]
    for i in range(min(end - begin, last - first)):
        if values[begin + i] != others[first + i]:
            return -1 if values[begin + i] < others[first + i] else 1
    return np.sign((end - begin) - (last - first))


@kernel
def _count_values(values, counts):
    for value in values:
        counts[value] += np.uint32(1)


def count_values(values: UIntArray, count: int) -> U32Array:
    """How often each number below `count` occurs."""
    counts = np.zeros(count, np.uint32)
    _count_values(values, counts)
    return counts


@kernel
def _count_firsts(offsets, values, counts):
    for row in range(len(offsets) - 1):
        if offsets[row] < offsets[row + 1]:
            counts[values[offsets[row]]] += 1


def count_firsts(rows: Lists, count: int) -> I64Array:
    """How many rows begin with each number below `count`."""
    counts = np.zeros(count, np.int64)
    _count_firsts(rows.offsets, rows.values, counts)
    return counts


def join_lists(parts: list[Lists], dtype: np.dtype[np.unsignedinteger], threads: int) -> Lists:
    """One column of lists, with values of type `dtype`; every thread copies some of the parts.

    The list of parts is empty afterwards: each part's memory is free for what comes next as soon as it is copied.
    """
    first_rows = offsets_of(np.array([len(part) for part in parts], np.int64))
    starts = list_offsets(np.array([len(part.values) for part in parts], np.int64))
    offsets = pooled(int(first_rows[-1]) + 1, starts.dtype)
    values = pooled(int(starts[-1]), dtype)
    offsets[0] = 0

    def copy(i: int) -> None:
        part = left.pop(i)
        ends = offsets[first_rows[i] + 1 : first_rows[i + 1] + 1]
        np.add(part.offsets[1:], starts[i], out=ends, casting="same_kind")
        values[starts[i] : starts[i + 1]] = part.values

    left = dict(enumerate(parts))
    parts.clear()
    run(copy, range(len(left)), threads)
    return Lists(offsets, values)


@kernel
def _append(ends, values, places, out):
    for i in range(len(ends) - 1):
        for at in range(ends[i], ends[i + 1]):
            out[places[i]] = values[at]
            places[i] += 1


def side_by_side(parts: Sequence[Lists], space: Callable[[int], UIntArray | None] = lambda _: None) -> Lists:
    """Lists that each have what the lists of all parts with the same number have; in `space`, if it has some."""
    ends = np.zeros(len(parts[0]) + 1, np.int64)
    for part in parts:
        ends += part.offsets
    out = space(int(ends[-1]))
    if out is None:
        out = pooled(int(ends[-1]), np.result_type(*(part.values.dtype for part in parts)))
    places = ends[:-1].copy()
    for part in parts:
        _append(part.offsets, part.values, places, out)
    return Lists(ends, out)


def _trailing_zeros(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


def _leading_zeros(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


def _ones(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


#: In a kernel, `trailing_zeros(word)`: the place of the lowest bit that is set in a uint64 other than 0
trailing_zeros: Any = intrinsic(_trailing_zeros)
#: In a kernel, `leading_zeros(word)`: how many bits of a uint64 other than 0 are above the highest that is set
leading_zeros: Any = intrinsic(_leading_zeros)
#: In a kernel, `ones(word)`: how many bits of a uint64 are set
ones: Any = intrinsic(_ones)
