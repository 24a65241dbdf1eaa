"""Columns of those attributes that sets ask for, and the numbers in them as they are."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array, U64Array, frozen
from tagmatch.model.columns import strings_of
from tagmatch.model.input.attributes import AttributeColumns
from tagmatch.model.input.values import (
    BOOL,
    FLOAT,
    INTEGER,
    NO_BYTES,
    TEXT,
    Column,
    count_there,
    kind_within,
    places_there,
    row_of,
    values_of_rows,
    wide_numbers,
)
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.prepared import Prepared, array_at
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.pipeline.filters.attributes import Attributes

#: Kinds of columns whose values are 64 bits each
NUMBERS = (BOOL, INTEGER, FLOAT)
#: Kinds of the others
TEXTS = (TEXT,)

#: Places of a column's arrays, each of which has an address and a length
ROWS, VALIDITY, VALUE_BITS, BEGINS, ENDS, DATA = range(6)
_ARRAYS, _HEAD = 6, 3
_NO_ADDRESSES, _NO_TEXTS = (0,) * 2 * _ARRAYS, (0,) * 2 * len((BEGINS, ENDS, DATA))


@dataclass(frozen=True, slots=True, eq=False)
class KnownColumns:
    """Columns of attributes that sets ask for."""

    addresses: U64Array  # Of the arrays of each column, as of `Prepared`
    heads: I64Array  # The attribute, and the column's `kind` and `first_bit`
    kept: list[object]  # What must stay as long as the addresses
    # Of columns that `_read` is still to see to, the number and the place among all that are given
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...] = NUMBERS + TEXTS) -> KnownColumns:
        """The columns of these kinds, which threads that ask at the same time make together, and only once."""

        def choose(chosen: list[KnownColumns], _: object) -> None:
            chosen.append(cls._chosen(given, known, kinds))

        # As a piece of work, for two threads would only take the interpreter lock from each other
        chosen: list[KnownColumns] = given.memo.of((known, kinds), lambda: ([], [None]), choose)
        found: KnownColumns = given.memo.of(chosen[0], lambda: (chosen[0], chosen[0].places), partial(_read, given))
        return found

    @classmethod
    def _chosen(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...]) -> KnownColumns:
        """The columns, of which those of wide numbers are used as they lie in memory."""
        addresses, heads = array("Q"), array("q")
        kept: list[object] = []
        left: list[tuple[int, int]] = []
        for place, number in enumerate(known.names.numbers(strings_of(given.names)).tolist()):
            if number == UNKNOWN:
                continue
            values = given.given(place)
            kind = kind_within(values.type)
            if kind not in kinds or values.null_count == len(values):
                continue
            wide = wide_numbers(values)
            if wide is None:
                left.append((len(heads) // _HEAD, place))
                addresses.extend(_NO_ADDRESSES)
                heads.extend((number, kind, 0))
            else:
                addresses.extend((0, 0, *wide.validity, *wide.bits, *_NO_TEXTS))
                heads.extend((number, kind, wide.first_bit))
                kept.append(values)
        return cls(np.array(addresses).reshape(-1, 2 * _ARRAYS), np.array(heads).reshape(-1, _HEAD), kept, left)

    def counts(self, first: int, last: int) -> I64Array:
        """How many values messages `first` to `last` have in each column."""
        counts = np.empty(len(self.heads), np.int64)
        _count(self.addresses, self.heads, first, last, counts)
        return counts

    def gather(self, first: int, last: int, owners: U32Array, bits: U64Array) -> None:
        """Write the values of messages `first` to `last` in columns of numbers, column by column, as `counts` says."""
        _gather(self.addresses, self.heads, first, last, owners, bits)


def _read(given: AttributeColumns, columns: KnownColumns, which: tuple[int, int]) -> None:
    """Read one of the columns whose values must be copied."""
    number, place = which
    column = given.column(place)
    if column is None:  # lists without any values
        column = Column(TEXT, NO_BYTES, frozen(np.zeros(len(given.batch) + 1, np.int64)))
    prepared = Prepared(column.rows, column.validity, column.bits, column.begins, column.ends, column.text)
    columns.kept.append(prepared)
    columns.addresses[number], columns.heads[number, 2] = prepared.addresses, column.first_bit


@kernel
def _count(columns, heads, first, last, counts):
    for column in range(len(heads)):
        rows, validity = array_at(columns[column], ROWS, np.int64), array_at(columns[column], VALIDITY, np.uint8)
        begin, stop = values_of_rows(rows, first, last)
        counts[column] = count_there(validity, heads[column, 2], begin, stop)


@kernel
def _gather(columns, heads, first, last, owners, bits):
    used, places = np.int64(0), np.empty(0, np.int64)
    for column in range(len(heads)):
        arrays = columns[column]
        rows, validity = array_at(arrays, ROWS, np.int64), array_at(arrays, VALIDITY, np.uint8)
        values, row = array_at(arrays, VALUE_BITS, np.uint64), first
        begin, stop = values_of_rows(rows, first, last)
        if len(places) < stop - begin:
            places = np.empty(stop - begin, np.int64)
        count = places_there(validity, heads[column, 2], begin, stop, places)
        for place in places[:count]:
            row = row_of(rows, row, place)
            owners[used], bits[used] = row - first, values[place]
            used += 1
