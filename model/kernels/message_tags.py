"""Columns of tags and of attributes' values, written row by row as the tags of messages.

Each column is measured and then written into the memory of the strings, in which the tags of a row stand one after the
other. `tagmatch.model.filters.values` says what the tag of a value is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tagmatch.model.arrays import Strings, TagLists, frozen, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.value_columns import (
    BOOL,
    NAN,
    TAG,
    TEXT,
    Column,
    next_there,
    number_of,
    prefix_of,
    values_of_rows,
)
from tagmatch.model.parallel import even_ranges, run_rows

_DIGITS = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))
_BANG, _B, _N, _S, _ZERO = tuple(b"!bns0")

_ROWS_PER_TASK = 4096


@kernel
def _measure(
    kind, prefix, rows, validity, first_bit, bits, begins, ends, prefix_offsets, first, last, tags, sizes,
):  # fmt: skip
    for row in range(first, last):
        i, stop = values_of_rows(rows, row, row + 1)
        i = next_there(validity, first_bit, i, stop)
        while i < stop:
            if kind == TAG:
                size = ends[i] - begins[i]
            elif kind == BOOL:
                size = 2
            elif kind == TEXT:
                size = 1 + ends[i] - begins[i]
            else:
                size = 1 if number_of(kind, bits[i])[1] == NAN else 20
            begin, end = prefix_of(prefix, prefix_offsets, i)
            tags[row] += 1
            sizes[row] += end - begin + size
            i = next_there(validity, first_bit, i + 1, stop)


@kernel
def _write(
    kind, prefix, rows, validity, first_bit, bits, begins, ends, prefix_offsets, text,
    first, last, tag_at, byte_at, offsets, data, digits,
):  # fmt: skip
    for row in range(first, last):
        tag, at = tag_at[row], byte_at[row]
        i, stop = values_of_rows(rows, row, row + 1)
        i = next_there(validity, first_bit, i, stop)
        while i < stop:
            begin, end = prefix_of(prefix, prefix_offsets, i)
            for place in range(begin, end):
                data[at] = prefix[place]
                at += 1
            if kind == BOOL:
                data[at], data[at + 1] = _B, _ZERO + bits[i]
                at += 2
            elif kind in (TAG, TEXT):
                if kind == TEXT:
                    data[at] = _S
                    at += 1
                for place in range(begins[i], ends[i]):
                    data[at] = text[place]
                    at += 1
            else:
                double, rest = number_of(kind, bits[i])
                if rest == NAN:
                    data[at] = _BANG
                    at += 1
                else:
                    data[at] = _N
                    for digit in range(16):
                        shift = np.uint64(60 - 4 * digit)
                        data[at + 1 + digit] = digits[(double >> shift) & np.uint64(15)]
                    for digit in range(3):
                        data[at + 17 + digit] = digits[(rest >> (8 - 4 * digit)) & 15]
                    at += 20
            tag += 1
            offsets[tag] = at
            i = next_there(validity, first_bit, i + 1, stop)
        tag_at[row], byte_at[row] = tag, at


def rows_of_columns(columns: Sequence[Column], count: int, threads: int) -> TagLists:
    """The values of all columns as rows of tags, those of a row column by column."""
    tags, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ranges = even_ranges(count, min(threads, 1 + count // _ROWS_PER_TASK))

    def measure(first: int, last: int) -> None:
        for column in columns:
            _measure(*column[:-1], first, last, tags, sizes)

    run_rows(measure, ranges, threads)
    row_offsets, byte_offsets = offsets_of(tags), offsets_of(sizes)
    offsets = np.zeros(int(row_offsets[-1]) + 1, np.int64)
    data = np.empty(int(byte_offsets[-1]), np.uint8)
    tag_at, byte_at = row_offsets[:-1].copy(), byte_offsets[:-1].copy()

    def write(first: int, last: int) -> None:
        for column in columns:
            _write(*column, first, last, tag_at, byte_at, offsets, data, _DIGITS)

    run_rows(write, ranges, threads)
    return TagLists(row_offsets, Strings(offsets, data))
