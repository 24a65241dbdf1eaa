"""Values and the constants of constraints as integer codes, in one order an attribute.

Code 0 says that the attribute is absent. Then gaps and constants take turns: constant `i` has code `2 + 2i`, what lies
between it and the one before `1 + 2i`. So `low <= value < high` is one comparison of codes.

In the order of keys (`tagmatch.model.filters.values`), the constants of an attribute are: what is before all, NaN,
false, true, what is before numbers; the numbers; what is after numbers; the texts; what is after texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, Strings, U8Array, U16Array, U32Array, U64Array
from tagmatch.model.filters import values as keys
from tagmatch.model.kernels import value_columns as columns
from tagmatch.model.kernels.hashing import read64
from tagmatch.model.kernels.jit import kernel, lent

#: First letters of keys
NUMBER, TEXT = tuple(b"ns")
NAN, BOOL = tuple(b"!b")
ONE = ord("1")

#: Where constants stand in the order of an attribute without numbers and texts
PLACE_NAN, PLACE_FALSE, PLACE_BEFORE_NUMBERS, NUMBERS = 1, 2, 4, 5
_CODE_OF_NAN = 2 + 2 * PLACE_NAN
# Constants that an attribute has in any case
_OTHERS = NUMBERS + 2
#: The least code of an interval that begins before all values
LEAST = 2

# Of a number: the digits of its nearest double, and of what is missing
_DOUBLE, _REST = 16, 3
#: Bytes of the key of a number
NUMBER_KEY = 1 + _DOUBLE + _REST
#: What a number misses that is its nearest double
EXACT = np.uint16(keys.EXACT)

_U = np.uint64
_U32 = np.uint32


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The constants of all attributes, each attribute's ascending.

    Attributes
    ----------
    number_starts, text_starts : int64 arrays, length attributes + 1
        Which numbers and which texts are an attribute's.
    halves, doubles : uint32 and uint64 arrays
        Of each number, the ordered bits of its nearest double: the upper half where all of the lower halves are zero,
        as those of small integers are, and all 64 otherwise. The other array is empty.
    rests : uint16 array
        What each number's nearest double misses; empty where that is nothing (`EXACT`).
    texts : Strings
        Without the letter that they have as keys.
    """

    number_starts: I64Array
    halves: U32Array
    doubles: U64Array
    rests: U16Array
    text_starts: I64Array
    texts: Strings

    @property
    def last_codes(self) -> I64Array:
        """Of each attribute, the greatest code that a value can have."""
        return 2 * (_OTHERS + np.diff(self.number_starts) + np.diff(self.text_starts)) - 1

    @property
    def bits(self) -> I64Array:
        """Of each attribute, with how many bits its codes can be written."""
        bits: I64Array = np.ceil(np.log2(self.last_codes + 2)).astype(np.int64)
        return bits

    @property
    def arrays(self) -> tuple[I64Array, tuple[U32Array, U64Array], U16Array, I64Array, I64Array, U8Array]:
        """As `code_of` takes them."""
        return (
            self.number_starts,
            (self.halves, self.doubles),
            self.rests,
            self.text_starts,
            self.texts.offsets.astype(np.int64),
            self.texts.data,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        numbers = (self.number_starts, self.halves, self.doubles, self.rests)
        return sum(array.nbytes for array in (*numbers, self.text_starts)) + self.texts.nbytes


@lent
def _eight_digits(data, start):
    """The number, 32 bits, that eight hexadecimal digits in lower case write."""
    word = read64(data, _U(start))
    # A digit has its value in the lower half of its byte; of a letter, whose sixth bit is set, that is nine less
    word = (word & _U(0x0F0F0F0F0F0F0F0F)) + _U(9) * ((word >> _U(6)) & _U(0x0101010101010101))
    # The first byte is the lowest, but has the highest digit
    word = ((word << _U(4)) | (word >> _U(8))) & _U(0x00FF00FF00FF00FF)
    word = ((word << _U(8)) | (word >> _U(16))) & _U(0x0000FFFF0000FFFF)
    return ((word << _U(16)) | (word >> _U(32))) & _U(0xFFFFFFFF)


@lent
def double_in(data, start):
    """The ordered bits of a number's nearest double, from its key."""
    return (_eight_digits(data, start + 1) << _U(32)) | _eight_digits(data, start + 1 + _DOUBLE // 2)


@lent
def rest_in(data, start):
    """What a number's nearest double misses, from its key."""
    return _eight_digits(data, start + NUMBER_KEY - 8) & _U(0xFFF)


@lent
def _less(data, start, stop, other, other_start, other_stop):
    for i in range(min(stop - start, other_stop - other_start)):
        if data[start + i] != other[other_start + i]:
            return data[start + i] < other[other_start + i]
    return stop - start < other_stop - other_start


@lent
def _number_place(double, rest, first, last, doubles, rests):
    """Which number of those from `first` to `last` is the first that is not less, and whether it equals it."""
    halves, wholes = doubles
    low, left = first, last - first
    # Without a branch, which would be foretold wrongly every other time
    if len(halves):
        bound = (double >> _U(32)) + _U(double & _U(0xFFFFFFFF) != _U(0))
        while left > 0:
            half = (left + 1) >> 1
            low += half * np.int64(_U(halves[low + half - 1]) < bound)
            left -= half
        same = low < last and _U(halves[low]) << _U(32) == double
    else:
        while left > 0:
            half = (left + 1) >> 1
            low += half * np.int64(wholes[low + half - 1] < double)
            left -= half
        same = low < last and wholes[low] == double
    if len(rests) == 0:
        return low + np.int64(same and rest > _U(EXACT)), same and rest == _U(EXACT)
    while same and _U(rests[low]) < rest:
        low += 1
        same = low < last and (_U(halves[low]) << _U(32) if len(halves) else wholes[low]) == double
    return low, same and _U(rests[low]) == rest


@lent
def _code_of_number(double, rest, first, last, doubles, rests):
    """Code of the number with these bits; `first` to `last` are the attribute's numbers."""
    low, same = _number_place(double, rest, first, last, doubles, rests)
    return 2 * (NUMBERS + low - first) + 1 + same


@lent
def _code_of_text(data, start, stop, numbers, first, last, text_offsets, texts):
    """Code of the text `data[start:stop]`; the attribute has so many numbers, and the texts `first` to `last`."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if _less(texts, text_offsets[middle], text_offsets[middle + 1], data, start, stop):
            low = middle + 1
        else:
            high = middle
    same = low < last and not _less(data, start, stop, texts, text_offsets[low], text_offsets[low + 1])
    return 2 * (NUMBERS + 1 + numbers + low - first) + 1 + same


@lent
def _code_of_bool(is_true):
    return 2 + 2 * (PLACE_FALSE + is_true)


@lent
def code_of(data, start, stop, attribute, number_starts, doubles, rests, text_starts, text_offsets, texts):
    """Code of the value with the key `data[start:stop]`; 0 where that is no key of a value."""
    if start >= stop:
        return 0
    kind = data[start]
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == NUMBER and stop - start == NUMBER_KEY:
        return _code_of_number(double_in(data, start), rest_in(data, start), first, last, doubles, rests)
    if kind == TEXT:
        first_text, last_text = text_starts[attribute], text_starts[attribute + 1]
        return _code_of_text(data, start + 1, stop, last - first, first_text, last_text, text_offsets, texts)
    if kind == NAN:
        return _CODE_OF_NAN
    if kind == BOOL and stop - start == 2:
        return _code_of_bool(data[start + 1] == ONE)
    return 0


@lent
def code_of_bits(kind, bits, first, last, doubles, rests):
    """Code of a bool or a number; `first` to `last` are the attribute's numbers."""
    if kind == columns.BOOL:
        return _code_of_bool(bits != _U(0))
    double, rest = columns.number_of(kind, bits)
    return _code_of_number(double, _U(rest), first, last, doubles, rests) if rest != columns.NAN else _CODE_OF_NAN


@lent
def code_of_value(
    kind, bits, data, begin, end, attribute, number_starts, doubles, rests, text_starts, text_offsets, texts
):
    """Code of a value with this kind and these bits, or of the text `data[begin:end]`."""
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == columns.TEXT:
        first_text, last_text = text_starts[attribute], text_starts[attribute + 1]
        return _code_of_text(data, begin, end, last - first, first_text, last_text, text_offsets, texts)
    return code_of_bits(kind, bits, first, last, doubles, rests)


@kernel
def write_codes(kind, attribute, bits, begins, ends, data, places, constants, codes):
    """Write the codes of some values of an attribute, those with the numbers in `places`.

    Parameters
    ----------
    kind, bits, begins, ends, data
        As of a `Column`, of which `data` is the `text`.
    constants : tuple
        `Constants.arrays`.
    """
    number_starts, doubles, rests, text_starts, text_offsets, texts = constants
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == columns.TEXT:
        first_text, last_text = text_starts[attribute], text_starts[attribute + 1]
        for i in range(len(places)):
            begin, end = begins[places[i]], ends[places[i]]
            codes[i] = _code_of_text(data, begin, end, last - first, first_text, last_text, text_offsets, texts)
        return
    # In a loop of its own, so that the processor waits for many at a time
    own = np.empty(len(places), np.uint64)
    for i in range(len(places)):
        own[i] = bits[places[i]]
    for i in range(len(places)):
        codes[i] = code_of_bits(kind, own[i], first, last, doubles, rests)
