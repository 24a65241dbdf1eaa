"""Values and the constants of constraints as integer codes, in one order an attribute.

Code 0 says that the attribute is absent. Then gaps and constants take turns: constant `i` has code `2 + 2i`, what lies
between it and the one before `1 + 2i`. So `low <= value < high` is one comparison of codes.

In the order of keys (`tagmatch.model.filters.values`), the constants of an attribute are: what is before all, NaN,
false, true, what is before numbers; the numbers; what is after numbers; the texts; what is after texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U16Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.xxh64 import read64

_NUMBER, _TEXT = tuple(b"ns")
_NAN, _BOOL = tuple(b"!b")
_AFTER_NUMBERS, _AFTER_TEXTS = tuple(b"ot")
_ONE = ord("1")

# Where constants stand in the order of an attribute without numbers and texts
_PLACE_NAN, _PLACE_FALSE, _PLACE_BEFORE_NUMBERS, _NUMBERS = 1, 2, 4, 5
# Constants that an attribute has in any case
_OTHERS = _NUMBERS + 2
#: The least code of an interval that begins before all values
LEAST = 2

# Of a number: the digits of its nearest double, and of what is missing
_DOUBLE, _REST = 16, 3
#: Bytes of the key of a number
NUMBER_KEY = 1 + _DOUBLE + _REST

_U = np.uint64

# Sides of cuts that are not just before a key
_AFTER, _AFTER_PREFIX = tuple(b"]^")


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The constants of all attributes, each attribute's ascending.

    Attributes
    ----------
    number_starts, text_starts : int64 arrays, length attributes + 1
        Which numbers and which texts are an attribute's.
    doubles, rests : uint64 and uint16 arrays
        Of each number: the ordered bits of its nearest double, and what is missing.
    texts : Strings
        Without the letter that they have as keys.
    """

    number_starts: I64Array
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
    def arrays(self) -> tuple[I64Array, U64Array, U16Array, I64Array, I64Array, U8Array]:
        """As `code_of` takes them."""
        return (
            self.number_starts,
            self.doubles,
            self.rests,
            self.text_starts,
            self.texts.offsets.astype(np.int64),
            self.texts.data,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.arrays)


@inlined
def _eight_digits(data, start):
    """The number, 32 bits, that eight hexadecimal digits in lower case write."""
    word = read64(data, _U(start))
    # A digit has its value in the lower half of its byte; of a letter, whose sixth bit is set, that is nine less
    word = (word & _U(0x0F0F0F0F0F0F0F0F)) + _U(9) * ((word >> _U(6)) & _U(0x0101010101010101))
    # The first byte is the lowest, but has the highest digit
    word = ((word << _U(4)) | (word >> _U(8))) & _U(0x00FF00FF00FF00FF)
    word = ((word << _U(8)) | (word >> _U(16))) & _U(0x0000FFFF0000FFFF)
    return ((word << _U(16)) | (word >> _U(32))) & _U(0xFFFFFFFF)


@inlined
def _double_in(data, start):
    """The ordered bits of a number's nearest double, from its key."""
    return (_eight_digits(data, start + 1) << _U(32)) | _eight_digits(data, start + 1 + _DOUBLE // 2)


@inlined
def _rest_in(data, start):
    """What a number's nearest double misses, from its key."""
    return _eight_digits(data, start + NUMBER_KEY - 8) & _U(0xFFF)


@inlined
def _less(data, start, stop, other, other_start, other_stop):
    for i in range(min(stop - start, other_stop - other_start)):
        if data[start + i] != other[other_start + i]:
            return data[start + i] < other[other_start + i]
    return stop - start < other_stop - other_start


@inlined
def code_of(data, start, stop, attribute, number_starts, doubles, rests, text_starts, text_offsets, texts):
    """Code of the value with the key `data[start:stop]`; 0 where that is no key of a value."""
    if start >= stop:
        return 0
    kind = data[start]
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == _NUMBER and stop - start == NUMBER_KEY:
        double, rest = _double_in(data, start), _rest_in(data, start)
        low, left = first, last - first
        # Without a branch, which would be foretold wrongly every other time
        while left > 0:
            half = (left + 1) >> 1
            low += half * np.int64(doubles[low + half - 1] < double)
            left -= half
        while low < last and doubles[low] == double and rests[low] < rest:
            low += 1
        same = low < last and doubles[low] == double and rests[low] == rest
        return 2 * (_NUMBERS + low - first) + 1 + same
    if kind == _TEXT:
        low, high = text_starts[attribute], text_starts[attribute + 1]
        end, before = high, 2 * (_NUMBERS + 1 + last - first) - 2 * low
        while low < high:
            middle = (low + high) >> 1
            if _less(texts, text_offsets[middle], text_offsets[middle + 1], data, start + 1, stop):
                low = middle + 1
            else:
                high = middle
        same = low < end and not _less(data, start + 1, stop, texts, text_offsets[low], text_offsets[low + 1])
        return before + 2 * low + 1 + same
    if kind == _NAN:
        return 2 + 2 * _PLACE_NAN
    if kind == _BOOL and stop - start == 2:
        return 2 + 2 * (_PLACE_FALSE + (data[start + 1] == _ONE))
    return 0


@kernel
def _classify(offsets, data, sides, doubles, rests, places, is_number, is_text):
    """Numbers of cuts, and the places of those that each attribute has; a prefix's end becomes the text after it."""
    for i in range(len(sides)):
        start, stop = offsets[i], offsets[i + 1]
        if stop - start == 0:
            continue
        kind = data[start]
        if kind == _NUMBER and stop - start == NUMBER_KEY:
            is_number[i] = True
            doubles[i], rests[i] = _double_in(data, start), _rest_in(data, start)
        elif kind == _NUMBER:
            places[i] = _PLACE_BEFORE_NUMBERS
        elif kind == _AFTER_NUMBERS:
            places[i] = _NUMBERS
        elif kind == _AFTER_TEXTS:
            places[i] = _NUMBERS + 1
        elif kind == _NAN:
            places[i] = _PLACE_NAN
        elif kind == _BOOL:
            places[i] = _PLACE_FALSE + (stop - start == 2 and data[start + 1] == _ONE)
        elif kind == _TEXT:
            if sides[i] == _AFTER_PREFIX and stop - start == 1:
                places[i] = _NUMBERS + 1
                data[start] = _AFTER_TEXTS
            else:
                is_text[i] = True
                if sides[i] == _AFTER_PREFIX:
                    data[stop - 1] += 1  # UTF-8 has no byte 255


def codes_of_cuts(attributes: I64Array, count: int, keys: Strings, sides: U8Array) -> tuple[Constants, U32Array]:
    """The constants of `count` attributes, and the first code at or after each cut.

    Parameters
    ----------
    attributes : int64 array
        Of each cut.
    keys : Strings
    sides : uint8 array
        As they are written.
    """
    cuts = len(sides)
    data = keys.data.copy()
    doubles, rests = np.zeros(cuts, np.uint64), np.zeros(cuts, np.uint64)
    places = np.zeros(cuts, np.int64)
    is_number, is_text = np.zeros(cuts, np.bool_), np.zeros(cuts, np.bool_)
    _classify(keys.offsets, data, sides, doubles, rests, places, is_number, is_text)

    number = np.flatnonzero(is_number)
    order = number[np.lexsort((rests[number], doubles[number], attributes[number]))]
    is_new, place_of = _distinct(attributes[order], doubles[order], rests[order])
    number_starts = np.searchsorted(attributes[order[is_new]], np.arange(count + 1))
    numbers = np.diff(number_starts)
    places[order] = _NUMBERS + place_of - number_starts[attributes[order]]

    text = np.flatnonzero(is_text)
    all_keys = Strings(keys.offsets, data)
    texts = gather_strings(all_keys, text.astype(np.uint32))
    ranks = _ranks_of(texts)
    by_rank = np.lexsort((ranks, attributes[text]))
    in_order = text[by_rank]
    is_new_text, text_place = _distinct(attributes[in_order], ranks[by_rank])
    distinct = in_order[is_new_text]
    text_starts = np.searchsorted(attributes[distinct], np.arange(count + 1))
    places[in_order] = text_place - text_starts[attributes[in_order]]

    behind = ~is_number & (places >= _NUMBERS) & ~is_text
    places[is_text] += _NUMBERS + 1 + numbers[attributes[is_text]]
    places[behind] += numbers[attributes[behind]]
    last = behind & _begin_with(all_keys, (_TEXT, _AFTER_TEXTS))
    places[last] += np.diff(text_starts)[attributes[last]]
    codes = (2 + 2 * places + (sides == _AFTER)).astype(np.uint32)
    numbers_in_order = order[is_new]
    constants = Constants(
        number_starts,
        doubles[numbers_in_order],
        rests[numbers_in_order].astype(np.uint16),
        text_starts,
        _without_first(all_keys, distinct),
    )
    return constants, codes


def _distinct(*columns: np.ndarray) -> tuple[np.ndarray, I64Array]:
    """Which rows of sorted columns differ from the one before, and how many of these come before each row's own."""
    is_new = np.ones(len(columns[0]), np.bool_)
    if len(is_new):
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return is_new, np.cumsum(is_new) - 1


def _ranks_of(texts: Strings) -> I64Array:
    """The place that each text has in the order of bytes; equal ones have the same."""
    offsets = pa.py_buffer(texts.offsets.astype(np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), len(texts), [None, offsets, pa.py_buffer(texts.data)])
    ranks: I64Array = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _begin_with(keys: Strings, letters: tuple[int, ...]) -> np.ndarray:
    firsts = np.zeros(len(keys), np.uint8)
    some = np.flatnonzero(np.diff(keys.offsets))
    firsts[some] = keys.data[keys.offsets[some]]
    return np.isin(firsts, letters)


def _without_first(keys: Strings, chosen: np.ndarray) -> Strings:
    """Some keys without their first letter."""
    found = gather_strings(keys, chosen.astype(np.uint32))
    keep = np.ones(len(found.data), np.bool_)
    keep[found.offsets[:-1]] = False
    return Strings(offsets_of(np.diff(found.offsets) - 1), found.data[keep])
