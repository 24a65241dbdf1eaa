"""Columns of values as Arrow has them in memory, and the order of numbers, for kernels that read values one by one.

`tagmatch.model.filters.values` says what the order of values is, and the key that says where a value stands in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, U8Array, U64Array, frozen
from tagmatch.model.filters import values as keys
from tagmatch.model.kernels.hashing import read64
from tagmatch.model.kernels.jit import lent
from tagmatch.model.kernels.lists import ones, trailing_zeros

#: What a value is; a tag is no value, but stands for itself
TAG, BOOL, INTEGER, FLOAT, TEXT = range(5)
#: Stands for what the nearest double misses, of a number that is none
NAN = -1

NO_NUMBERS: U64Array = frozen(np.zeros(0, np.uint64))
NO_PLACES: I64Array = frozen(np.zeros(0, np.int64))
NO_BYTES: U8Array = frozen(np.zeros(0, np.uint8))

_U = np.uint64
_SIGN, _INFINITY, _ALL_BUT_SIGN = _U(keys.SIGN), _U(0x7FF0000000000000), _U(2**63 - 1)
_EXACT, _TOO_GREAT, _GREATEST = keys.EXACT, 2.0**63, 2**63 - 1


class Column(NamedTuple):
    """Values of messages: row `i` has those from `rows[i]` to `rows[i + 1]`, but for those that are null.

    Attributes
    ----------
    kind : int
        `TAG`, `BOOL`, `INTEGER`, `FLOAT` or `TEXT`.
    prefix : uint8 array
        What the tag of each value begins with; of all values one after the other where there are `prefix_offsets`.
    rows : int64 array, length n + 1
        Empty where row `i` has value `i`.
    validity : uint8 array
        A bit for each value, the lowest of a byte first, from bit `first_bit` on: whether it is not null. Empty where
        none is.
    first_bit : int
    bits : uint64 array
        Of integers (int64), and of doubles; of bools 0 or 1.
    begins, ends : int64 arrays
        Where in `text` each string stands.
    prefix_offsets : int64 array, length values + 1
        Where in `prefix` what belongs to each value begins. Empty where all begin with the same.
    text : uint8 array
    """

    kind: int
    prefix: U8Array
    rows: I64Array
    validity: U8Array = NO_BYTES
    first_bit: int = 0
    bits: U64Array = NO_NUMBERS
    begins: I64Array = NO_PLACES
    ends: I64Array = NO_PLACES
    prefix_offsets: I64Array = NO_PLACES
    text: U8Array = NO_BYTES

    @property
    def name(self) -> bytes:
        """The name of the attribute whose values these all are, from their prefix."""
        return self.prefix[len(keys.ATTRIBUTE) : -len(keys.RESERVED)].tobytes()


@lent
def next_there(validity, first_bit, value, stop):
    """The first value from `value` on that is not null; `stop` or more if there is none before."""
    if len(validity) == 0:
        return value
    while value < stop:
        bit = first_bit + value
        left = validity[bit >> 3] >> (bit & 7)
        if left != 0:
            return value + np.int64(trailing_zeros(_U(left)))
        value += 8 - (bit & 7)
    return value


@lent
def places_there(validity, first_bit, value, stop, places):
    """Write the numbers of the values from `value` to `stop` that are not null; returns how many there are."""
    count = np.int64(0)
    if len(validity) == 0:
        for place in range(value, stop):
            places[count] = place
            count += 1
        return count
    # Word by word: most values of most columns may be null
    bit, end = first_bit + value, first_bit + stop
    while bit < end:
        byte, skipped = bit >> 3, bit & 7
        if byte + 8 <= len(validity):
            left, bits = read64(validity, _U(byte)), np.int64(64)
        else:
            left, bits = _U(validity[byte]), np.int64(8)
        left = (left >> _U(skipped)) << _U(skipped)
        base, bit = 8 * byte, 8 * byte + bits
        if bit > end:
            left &= (_U(1) << _U(end - base)) - _U(1)
        while left != _U(0):
            places[count] = base + np.int64(trailing_zeros(left)) - first_bit
            count += 1
            left &= left - _U(1)
    return count


@lent
def count_there(validity, first_bit, value, stop):
    """How many of the values from `value` to `stop` are not null."""
    if len(validity) == 0:
        return stop - value
    count, bit, end = np.int64(0), first_bit + value, first_bit + stop
    while bit < end:
        byte, skipped = bit >> 3, bit & 7
        if byte + 8 <= len(validity):
            left, bits = read64(validity, _U(byte)), np.int64(64)
        else:
            left, bits = _U(validity[byte]), np.int64(8)
        left >>= _U(skipped)
        bits -= skipped
        if bit + bits > end:
            left &= (_U(1) << _U(end - bit)) - _U(1)
        count += np.int64(ones(left))
        bit += bits
    return count


@lent
def values_of_rows(rows, first, last):
    """From which to which the values of rows `first` to `last` are."""
    return (rows[first], rows[last]) if len(rows) else (first, last)


@lent
def row_of(rows, row, value):
    """The row of a value; `row` is that of one before it."""
    if len(rows) == 0:
        return value
    while rows[row + 1] <= value:
        row += 1
    return row


@lent
def prefix_of(prefix, prefix_offsets, value):
    """Where the prefix of a value begins and ends."""
    return (prefix_offsets[value], prefix_offsets[value + 1]) if len(prefix_offsets) else (0, len(prefix))


@lent
def number_of(kind, bits):
    """Where an integer or a double stands: the bits of the nearest double, in the order of doubles, and what it misses.

    The latter is `NAN` for what is no number.
    """
    if kind == INTEGER:
        value = np.int64(bits)
        nearest = np.float64(value)
        # The double nearest to the greatest integers is beyond them
        rest = value - _GREATEST - 1 if nearest >= _TOO_GREAT else value - np.int64(nearest)
        double, rest = nearest.view(np.uint64), rest + _EXACT
    else:
        double, rest = bits, np.int64(_EXACT)
        if double & _ALL_BUT_SIGN > _INFINITY:
            rest = np.int64(NAN)
        if double == _SIGN:  # -0.0 is 0.0
            double = _U(0)
    return (~double if double & _SIGN else double ^ _SIGN), rest
