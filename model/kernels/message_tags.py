"""Columns of tags and of attributes' values, written row by row as the tags of messages.

Each column is measured and then written into the memory of the strings, in which the tags of a row stand one after the
other. `tagmatch.model.filters.values` says what the tag of a value is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, Strings, TagLists, U8Array, frozen, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.parallel import even_ranges, run_rows

#: What a value is, by which the length and the form of its key go; a tag is written as it is
TAG, BOOL, NUMBER, TEXT = range(4)
#: Stands for the last digits of a number that is none
NAN = -1

_DIGITS = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))
_BANG, _B, _N, _S, _ZERO = tuple(b"!bns0")

_ROWS_PER_TASK = 4096

NO_NUMBERS = np.zeros(0, np.uint64)
NO_PLACES = np.zeros(0, np.int64)
NO_BYTES = np.zeros(0, np.uint8)


class Column(NamedTuple):
    """Values of messages: row `i` has those from `rows[i]` to `rows[i + 1]`, but for those that are not `valid`.

    Attributes
    ----------
    kind : int
        `TAG`, `BOOL`, `NUMBER` or `TEXT`.
    prefix : uint8 array
        What the tag of each value begins with.
    rows : int64 array, length n + 1
    valid : bool array
    ordered, rest : uint64 and int64 arrays
        Of numbers: the bits of the nearest double, in the order of doubles; and the last digits of the key, or `NAN`.
        Of bools, `ordered` is 0 or 1.
    begins, ends : int64 arrays
        Where in `text` each string stands.
    text : uint8 array
    """

    kind: int
    prefix: U8Array
    rows: I64Array
    valid: npt.NDArray[np.bool_]
    ordered: npt.NDArray[np.uint64] = NO_NUMBERS
    rest: I64Array = NO_PLACES
    begins: I64Array = NO_PLACES
    ends: I64Array = NO_PLACES
    text: U8Array = NO_BYTES


@kernel
def _measure(kind, prefix, rows, valid, rest, begins, ends, first, last, tags, sizes):
    for row in range(first, last):
        for i in range(rows[row], rows[row + 1]):
            if not valid[i]:
                continue
            if kind == TAG:
                size = ends[i] - begins[i]
            elif kind == BOOL:
                size = 2
            elif kind == NUMBER:
                size = 1 if rest[i] == NAN else 20
            else:
                size = 1 + ends[i] - begins[i]
            tags[row] += 1
            sizes[row] += len(prefix) + size


@kernel
def _write(
    kind, prefix, rows, valid, ordered, rest, begins, ends, text, first, last, tag_at, byte_at, offsets, data, digits
):  # fmt: skip
    for row in range(first, last):
        tag, at = tag_at[row], byte_at[row]
        for i in range(rows[row], rows[row + 1]):
            if not valid[i]:
                continue
            for byte in prefix:
                data[at] = byte
                at += 1
            if kind == BOOL:
                data[at], data[at + 1] = _B, _ZERO + ordered[i]
                at += 2
            elif kind == NUMBER and rest[i] == NAN:
                data[at] = _BANG
                at += 1
            elif kind == NUMBER:
                data[at] = _N
                for digit in range(16):
                    shift = np.uint64(60 - 4 * digit)
                    data[at + 1 + digit] = digits[(ordered[i] >> shift) & np.uint64(15)]
                for digit in range(3):
                    data[at + 17 + digit] = digits[(rest[i] >> (8 - 4 * digit)) & 15]
                at += 20
            else:
                if kind == TEXT:
                    data[at] = _S
                    at += 1
                for place in range(begins[i], ends[i]):
                    data[at] = text[place]
                    at += 1
            tag += 1
            offsets[tag] = at
        tag_at[row], byte_at[row] = tag, at


def rows_of_columns(columns: list[Column], count: int, threads: int) -> TagLists:
    """The values of all columns as rows of tags, those of a row column by column."""
    columns = [Column(column.kind, *[frozen(array) for array in column[1:]]) for column in columns]
    tags, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ranges = even_ranges(count, min(threads, 1 + count // _ROWS_PER_TASK))

    def measure(first: int, last: int) -> None:
        for kind, prefix, rows, valid, _, rest, begins, ends, _ in columns:
            _measure(kind, prefix, rows, valid, rest, begins, ends, first, last, tags, sizes)

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
