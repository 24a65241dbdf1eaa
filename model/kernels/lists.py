"""Columns of lists: relabelled, gathered, joined, and their rows in order, by a number or by 64-bit words.

One sort serves both layouts. A *table* is either the rank lists of sets, `(offsets, values)`, whose word `d` packs
two ranks, or the signature matrix, uint64[n, 3], whose word `d` is column `d`. Words are compared as unsigned
integers; a list that ends comes before the longer lists that it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import overload

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    U32Array,
    U64Array,
    UIntArray,
    list_offsets,
    offsets_of,
    pooled,
)
from tagmatch.model.kernels.intrinsics import trailing_zeros
from tagmatch.model.kernels.jit import copy, kernel
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.parallel import even_work, run, run_evenly, run_rows

_U = np.uint64

# Up to this length insertion sort beats heap sort
_FEW = 32
# Words of bits that take as long to make as it takes to sort one of many numbers
_WORDS_A_NUMBER = 16


@kernel
def spread(known, indices, first, out):
    """Write to `out` the number that `known` has for each index, from place `first` on; UNKNOWN if it has no number."""
    for i in range(_U(len(out))):
        index = _U(indices[_U(first) + i])
        out[i] = known[index] if index < _U(len(known)) else UNKNOWN


@kernel
def _sink(values, first, at, count):
    """Restore the heap `values[first:first + count]`, the greatest first; only place `at` may be too small."""
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

    Returns their end.
    """
    # Without branches, which would be predicted badly if some tags are known and others not
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
def _by_bits(numbers, first, last, words, above, out):
    """As `ascending_row`, by a bit for each number in `words`, and by one for each word in `above`; all are 0 again."""
    for i in range(_U(first), _U(last)):
        if numbers[i] != UNKNOWN:
            word = _U(numbers[i]) >> _U(6)
            words[word] |= _U(1) << (_U(numbers[i]) & _U(63))
            above[word >> _U(6)] |= _U(1) << (word & _U(63))
    used = _U(out)
    for i in range(_U(len(above))):
        while above[i] != _U(0):
            word = (i << _U(6)) | trailing_zeros(above[i])
            above[i] &= above[i] - _U(1)
            bits = words[word]
            words[word] = _U(0)
            while bits != _U(0):
                numbers[used] = (word << _U(6)) | trailing_zeros(bits)
                bits &= bits - _U(1)
                used += _U(1)
    return np.int64(used)


@kernel
def ascending_known(offsets, first, numbers, new_offsets):
    """Make each row of `numbers` ascending, in place, without repetitions and without UNKNOWN.

    Row `i` of `len(new_offsets) - 1` is at `offsets[first + i] - offsets[first]` at first and at
    `new_offsets[i]` afterwards; returns how many numbers are left in all.
    """
    base, greatest, long, used = offsets[first], _U(0), 0, 0
    for row in range(len(new_offsets) - 1):
        begin, end = offsets[first + row] - base, offsets[first + row + 1] - base
        if end - begin > _FEW:
            long += end - begin
            for i in range(begin, end):
                greatest = max(greatest, _U(numbers[i]) if numbers[i] != UNKNOWN else _U(0))
    # A bit for each number, and one for each of their words: to read them in order takes less time than to sort, unless
    # it takes more to make them
    by_bits = (greatest >> _U(6)) < _U(_WORDS_A_NUMBER * long)
    words = np.zeros((greatest >> _U(6)) + _U(1) if by_bits else _U(0), np.uint64)
    above = np.zeros((len(words) + 63) >> 6, np.uint64)
    for row in range(len(new_offsets) - 1):
        begin, end = offsets[first + row] - base, offsets[first + row + 1] - base
        if by_bits and end - begin > _FEW and len(above) <= _FEW * (end - begin):
            used = _by_bits(numbers, begin, end, words, above, used)
        else:
            used = ascending_row(numbers, begin, end, used)
        new_offsets[row + 1] = used
    return used


# Rows whose cache misses are waited for together
_BATCH_ROWS = 256


@kernel
def _relabel(offsets, values, labels, first, last, out):
    for begin in range(first, last, _BATCH_ROWS):
        end = min(begin + _BATCH_ROWS, last)
        # A separate loop, so that the processor waits for many cache misses at once
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
        # Separate loops, so that the processor waits for many cache misses at once
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
    lengths = np.empty(len(order), np.uint32)
    run_evenly(lambda a, b: _gather_lengths(offsets, order, a, b, lengths), len(order), threads)
    new_offsets = list_offsets(lengths)
    new_values = np.empty(int(new_offsets[-1]), values.dtype)
    if len(new_values):
        run_evenly(lambda a, b: _gather(offsets, values, order, new_offsets, new_values, a, b), len(order), threads)
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

    The list of parts is empty afterwards: each part's memory is free again as soon as the part is copied.
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
        places[i] = copy(values, ends[i], ends[i + 1], out, places[i])


def side_by_side(parts: Sequence[Lists], space: Callable[[int], UIntArray | None] = lambda _: None) -> Lists:
    """Lists that each have what the lists of all parts with the same number have; in `space`, if it has some."""
    ends = np.zeros(len(parts[0]) + 1, np.int64)
    for part in parts:
        ends += part.offsets
    out = space(int(ends[-1]))
    if out is None:
        out = pooled(int(ends[-1]), np.result_type(*[part.values.dtype for part in parts]))
    places = ends[:-1].copy()
    for part in parts:
        _append(part.offsets, part.values, places, out)
    return Lists(ends, out)


_LOW32 = np.uint64(0xFFFFFFFF)

# Below this many rows comparing lists beats counting digits (measured: level between 16 and 64)
_FEW_ROWS = 32


def _word(table: Any, row: Any, depth: Any) -> Any:
    """Word `depth` of a row of the table; compiled code has one of the two functions."""
    return (_lists_word if isinstance(table, tuple) else _matrix_word)(table, row, depth)


def _is_last(table: Any, word: Any, depth: Any) -> Any:
    """Whether no word follows `word`, which is word `depth` of its row; as `_word`."""
    return (_lists_is_last if isinstance(table, tuple) else _matrix_is_last)(table, word, depth)


def _matrix_word(table, row, depth):
    return table[row, depth]


def _matrix_is_last(table, word, depth):  # noqa: ARG001
    return depth == table.shape[1] - 1


def _lists_word(table, row, depth):
    # A rank is stored as rank + 1 so that 0 can mark the end of the list.
    offsets, values = table
    at = offsets[row] + 2 * depth
    left = offsets[row + 1] - at
    word = _U(0)
    if left > 0:
        word = (_U(values[at]) + _U(1)) << _U(32)
    if left > 1:
        word |= _U(values[at + 1]) + _U(1)
    return word


def _lists_is_last(table, word, depth):  # noqa: ARG001
    return word & _LOW32 == _U(0)


@overload(_word)
def _word_of(table, row, depth):  # noqa: ARG001
    return _matrix_word if isinstance(table, types.Array) else _lists_word


@overload(_is_last)
def _is_last_of(table, word, depth):  # noqa: ARG001
    return _matrix_is_last if isinstance(table, types.Array) else _lists_is_last


@kernel
def _compare(table, a, b, depth):
    """-1, 0 or 1 as row `a` is before, equal to or after row `b` from word `depth` on."""
    while True:
        x, y = _word(table, a, depth), _word(table, b, depth)
        if x != y:
            return -1 if x < y else 1
        if _is_last(table, x, depth):
            return 0
        depth += 1


@kernel
def _insertion_sort(table, order, begin, end, depth):
    for i in range(begin + 1, end):
        row = order[i]
        at = i
        while at > begin and _compare(table, order[at - 1], row, depth) > 0:
            order[at] = order[at - 1]
            at -= 1
        order[at] = row


@kernel
def radix_sort(words, order, begin, end, words_swap, order_swap):
    """Sort `order[begin:end]` by `words[begin:end]`, both in place and stably, least significant byte first.

    `words_swap` and `order_swap` are as large, and only used.
    """
    varying = _U(0)
    for i in range(begin, end):
        varying |= words[i] ^ words[begin]
    if varying == _U(0):
        return
    shift = trailing_zeros(varying)
    varying >>= shift
    counts = np.empty(257, np.int64)
    swapped = False
    while varying != _U(0):
        if varying & _U(255) != _U(0):
            counts[:] = 0
            for i in range(begin, end):
                counts[((words[i] >> shift) & _U(255)) + _U(1)] += 1
            for digit in range(1, 257):
                counts[digit] += counts[digit - 1]
            for i in range(begin, end):
                digit = (words[i] >> shift) & _U(255)
                at = begin + counts[digit]
                counts[digit] += 1
                words_swap[at] = words[i]
                order_swap[at] = order[i]
            words, words_swap = words_swap, words
            order, order_swap = order_swap, order
            swapped = not swapped
        shift += _U(8)
        varying >>= _U(8)
    if swapped:
        copy(words, begin, end, words_swap, begin)
        copy(order, begin, end, order_swap, begin)


@kernel
def _sort_hashes(hashes, shift, starts, words, order, words_swap, order_swap):
    for i in range(len(hashes)):
        starts[(hashes[i] >> shift) + _U(1)] += 1
    for bucket in range(len(starts) - 1):
        starts[bucket + 1] += starts[bucket]
    for i in range(len(hashes)):
        bucket = hashes[i] >> shift
        at = starts[bucket]
        starts[bucket] += 1
        words[at], order[at] = hashes[i], i
    begin = 0
    for bucket in range(len(starts) - 1):
        end = starts[bucket]  # by now
        if end - begin > _FEW_ROWS:
            radix_sort(words, order, begin, end, words_swap, order_swap)
        else:
            for i in range(begin + 1, end):
                word, row, at = words[i], order[i], i
                while at > begin and words[at - 1] > word:
                    words[at], order[at] = words[at - 1], order[at - 1]
                    at -= 1
                words[at], order[at] = word, row
        begin = end


def sort_hashes(hashes: U64Array) -> U32Array:
    """Places of hashes in ascending order, equal ones in the order given; in a quarter to two thirds of NumPy's time.

    Hashes are spread evenly, so their first bits bring nearly all to their places. If an attacker has made many
    that are not, it takes twice as long.
    """
    bits = max(1, len(hashes).bit_length() - 2)
    words, order = np.empty(len(hashes), np.uint64), np.empty(len(hashes), np.uint32)
    starts = np.zeros((1 << bits) + 1, np.int64)
    _sort_hashes(hashes, _U(64 - bits), starts, words, order, np.empty_like(words), np.empty_like(order))
    return order


@kernel
def _sort_segment(table, order, words, words_swap, order_swap, todo):
    """Sort all of `order` by the table's words, stably: by the first word, then within equal words by the next."""
    # Waiting segments are disjoint and hold two rows or more, so `todo` never outgrows half the rows.
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, len(order), 0
    waiting = 1
    while waiting > 0:
        waiting -= 1
        begin, end, depth = todo[waiting, 0], todo[waiting, 1], todo[waiting, 2]
        if end - begin <= _FEW_ROWS:
            _insertion_sort(table, order, begin, end, depth)
            continue
        for i in range(begin, end):
            words[i] = _word(table, order[i], depth)
        radix_sort(words, order, begin, end, words_swap, order_swap)
        run = begin
        for i in range(begin + 1, end + 1):
            if i == end or words[i] != words[run]:
                if i - run > 1 and not _is_last(table, words[run], depth):
                    todo[waiting, 0], todo[waiting, 1], todo[waiting, 2] = run, i, depth + 1
                    waiting += 1
                run = i


@kernel
def _sort_groups(table, order, first_rows, first_group, last_group):
    longest = 0
    for group in range(first_group, last_group):
        longest = max(longest, first_rows[group + 1] - first_rows[group])
    words = np.empty(longest, np.uint64)
    words_swap = np.empty(longest, np.uint64)
    order_swap = np.empty(longest, order.dtype)
    todo = np.empty((longest // 2 + 1, 3), np.int64)
    for group in range(first_group, last_group):
        begin, end = first_rows[group], first_rows[group + 1]
        if end - begin > 1:
            _sort_segment(table, order[begin:end], words, words_swap, order_swap, todo)


@kernel
def _place_by_label(labels, first_label, last_label, next_place, order):
    for row in range(len(labels)):
        label = labels[row]
        if first_label <= label < last_label:
            order[next_place[label]] = row
            next_place[label] += 1


def group_by(labels: UIntArray, count: int, *, threads: int = 1) -> tuple[I64Array, U32Array]:
    """Rows grouped by label, in row order within a group."""
    first_rows = offsets_of(count_values(labels, count))
    order = np.empty(len(labels), np.uint32)
    next_place = first_rows[:-1].copy()

    # Every thread reads all labels and places those of one range: no two of them write the same group.
    def work(first: int, last: int) -> None:
        _place_by_label(labels, first, last, next_place, order)

    run_rows(work, even_work(first_rows, threads), threads)
    return first_rows, order


def sort_groups(
    table: tuple[Any, Any] | U64Array,
    order: U32Array,
    first_rows: I64Array,
    *,
    threads: int = 1,
) -> None:
    """Sort, in place and stably, each group of `order` lexicographically by the table's words."""

    def work(first: int, last: int) -> None:
        _sort_groups(table, order, first_rows, first, last)

    # More tasks than threads, as groups take unequal time
    run_rows(work, even_work(first_rows, 8 * threads), threads)


@kernel
def _first_values(offsets, values, first, last, out):
    for row in range(first, last):
        begin = offsets[row]
        out[row] = values[begin] + np.uint32(1) if offsets[row + 1] > begin else np.uint32(0)


def sort_rows(rows: Lists, labels: int, *, threads: int = 1) -> tuple[Lists, I64Array, U32Array]:
    """Ascending rank lists in lexicographic order."""
    firsts = np.empty(len(rows), np.uint32)
    offsets, values = rows.offsets, rows.values
    run_evenly(lambda a, b: _first_values(offsets, values, a, b, firsts), len(rows), threads)
    first_rows, order = group_by(firsts, labels + 1, threads=threads)
    # Brought together first, rows that begin alike are compared next to each other.
    rows = gather(rows, order, threads=threads)
    within = np.arange(len(rows), dtype=np.uint32)
    sort_groups((rows.offsets, rows.values), within, first_rows[1:], threads=threads)
    return gather(rows, within, threads=threads), first_rows, order[within]


@kernel
def _same_as_previous(table, first, last, out):
    for row in range(first, last):
        out[row] = row > 0 and _compare(table, row - 1, row, 0) == 0


def equal_to_previous(rows: Lists, *, threads: int = 1) -> BoolArray:
    """For each row, whether it equals the row before."""
    out = np.empty(len(rows), np.bool_)
    table = (rows.offsets, rows.values)
    run_evenly(lambda a, b: _same_as_previous(table, a, b, out), len(rows), threads)
    return out
