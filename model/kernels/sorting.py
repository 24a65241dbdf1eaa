"""Ordering rows: grouping by a number, and lexicographic order over 64-bit words.

One sort serves both layouts. A *table* is either the rank lists of sets, `(offsets, values)`, whose word `d` packs
two ranks, or the signature matrix, uint64[n, 3], whose word `d` is column `d`. Words are compared as unsigned
integers; a list that ends comes before the longer lists that it begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U32Array, U64Array, UIntArray, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import count_values, gather, trailing_zeros
from tagmatch.model.parallel import even_ranges, even_work, run_rows

_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)

# Below this many rows comparing lists beats counting digits (measured: level between 16 and 64)
_FEW_ROWS = 32


def _word(table: Any, row: Any, depth: Any) -> Any:
    """Word `depth` of a row of the table."""
    raise NotImplementedError


def _is_last(table: Any, word: Any, depth: Any) -> Any:
    """Whether no word follows `word`, which is word `depth` of its row."""
    raise NotImplementedError


def _matrix_word(table, row, depth):
    return table[row, depth]


def _matrix_is_last(table, word, depth):  # noqa: ARG001
    return depth == table.shape[1] - 1


def _lists_word(table, row, depth):
    # A rank is stored as rank + 1 so that 0 can stand for the end of the list.
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
        words_swap[begin:end] = words[begin:end]
        order_swap[begin:end] = order[begin:end]


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

    Hashes are spread evenly, so their first bits bring nearly all to where they belong. Where somebody has made many
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

    # Every thread reads all labels and places those of its own range: no two of them write the same group.
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
    ranges = even_ranges(len(rows), threads)
    offsets, values = rows.offsets, rows.values
    run_rows(lambda a, b: _first_values(offsets, values, a, b, firsts), ranges, threads)
    first_rows, order = group_by(firsts, labels + 1, threads=threads)
    # Brought together first, rows that begin alike are compared where they lie side by side.
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
    run_rows(lambda a, b: _same_as_previous(table, a, b, out), even_ranges(len(rows), threads), threads)
    return out
