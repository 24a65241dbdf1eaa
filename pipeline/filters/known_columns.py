"""Columns of those attributes that sets ask for, and the numbers in them as they are."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array, U64Array
from tagmatch.model.columns import strings_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.prepared import Prepared, array_at
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.kernels.value_columns import (
    BOOL,
    FLOAT,
    INTEGER,
    TEXT,
    AttributeColumns,
    count_there,
    places_there,
    row_of,
    values_of_rows,
)
from tagmatch.pipeline.filters.attributes import Attributes

#: Kinds of columns whose values are 64 bits each
NUMBERS = (BOOL, INTEGER, FLOAT)
#: Kinds of the others
TEXTS = (TEXT,)

#: Places of a column's arrays in `Prepared`
ROWS, VALIDITY, VALUE_BITS, BEGINS, ENDS, DATA = range(6)
_ARRAYS = 6


@dataclass(frozen=True, slots=True, eq=False)
class KnownColumns:
    """Columns of attributes that sets ask for.

    Attributes
    ----------
    prepared : Prepared
        The arrays of all columns, which must stay.
    addresses : uint64 array, columns x 12
        Theirs.
    heads : int64 array, columns x 3
        The attribute, and the column's `kind` and `first_bit`.
    """

    prepared: Prepared
    addresses: U64Array
    heads: I64Array

    @classmethod
    def of(cls, given: AttributeColumns, known: Attributes, kinds: Container[int] = NUMBERS + TEXTS) -> KnownColumns:
        """The columns of these kinds."""
        numbers = known.names.numbers(strings_of([column.name.decode() for column in given.columns])).tolist()
        chosen = [
            (number, column)
            for number, column in zip(numbers, given.columns, strict=True)
            if number != UNKNOWN and column.kind in kinds
        ]
        prepared = Prepared(
            *(
                array
                for _, column in chosen
                for array in (column.rows, column.validity, column.bits, column.begins, column.ends, column.text)
            )
        )
        heads = [(number, column.kind, column.first_bit) for number, column in chosen]
        return cls(prepared, prepared.addresses.reshape(-1, 2 * _ARRAYS), np.array(heads, np.int64).reshape(-1, 3))

    def counts(self, first: int, last: int) -> I64Array:
        """How many values messages `first` to `last` have in each column."""
        counts = np.empty(len(self.heads), np.int64)
        _count(self.addresses, self.heads, first, last, counts)
        return counts

    def gather(self, first: int, last: int, owners: U32Array, bits: U64Array) -> None:
        """Write the values of messages `first` to `last` in columns of numbers, column by column, as `counts` says.

        Parameters
        ----------
        first, last : int
        owners : uint32 array
            Gets the message of each value, counted from `first`.
        bits : uint64 array
            Gets its bits, as of `Column`.
        """
        _gather(self.addresses, self.heads, first, last, owners, bits)


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
