"""Values and the constants of constraints as integer codes, in one order an attribute.

Code 0 says that the attribute is absent. Then gaps and constants take turns: constant `i` has code `2 + 2i`, what lies
between it and the one before `1 + 2i`. So `low <= value < high` is one comparison of codes.

In the order of keys (`tagmatch.model.where.values`), the constants of an attribute are: the beginning, NaN,
false, true, a bound before numbers; the numbers; a bound after them; the texts; a bound after texts. The texts begin
with those that represent values of other types (`tagmatch.model.where.types`). There are also those of decimals that
are neither integers nor doubles, which have their place among the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U8Array, U16Array, U32Array, U64Array
from tagmatch.model.input import values as columns
from tagmatch.model.kernels.hashing import read64
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.lists import gather_strings, radix_sort
from tagmatch.model.where import types
from tagmatch.model.where import values as keys
from tagmatch.model.where.tag_columns import parts_of, ranks_of

#: First letters of keys
NUMBER, TEXT, TYPED = tuple(f"ns{types.TYPED}".encode())
#: Begins a text that represents a value of another type
(MARKED,) = types.MARK
NAN, BOOL = tuple(b"!b")
ONE = ord("1")

#: Places of constants in the order of an attribute without numbers and texts
PLACE_NAN, PLACE_FALSE, PLACE_BEFORE_NUMBERS, NUMBERS = 1, 2, 4, 5
_CODE_OF_NAN = 2 + 2 * PLACE_NAN
# Constants that an attribute has in any case
_OTHERS = NUMBERS + 2
#: The least code of an interval that begins before all values
LEAST = 2

# Of a number: the digits of its nearest double, and those of the rest
_DOUBLE, _REST = 16, 3
#: Bytes of the key of a number
NUMBER_KEY = 1 + _DOUBLE + _REST
#: Twice what a number misses that is its nearest double; of a decimal with a number below it, one more
EXACT = np.uint16(2 * keys.EXACT)

_AFTER_NUMBERS, _AFTER_TEXTS = tuple(b"ot")

# Sides of cuts that are not just before a key
_AFTER, _AFTER_PREFIX = tuple(b"]^")

# What a cut is by: a place that each attribute has, one of its numbers or texts, or a place behind them
_FIXED, _BY_NUMBER, _BY_TEXT, _BEHIND_NUMBERS, _BEHIND_TEXTS = range(5)

_LOW32 = np.uint64(0xFFFFFFFF)

_U = np.uint64
_U32 = np.uint32


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The constants of all attributes, each attribute's ascending."""

    number_starts: I64Array  # length attributes + 1: which numbers are an attribute's
    # Of each number, the ordered bits of its nearest double: the upper half if all of the lower halves are zero, as
    # those of small integers are, and all 64 otherwise; the other array is empty
    halves: U32Array
    doubles: U64Array
    # Twice the rest of each number beyond its nearest double, plus one for decimals with texts; empty if all are exact
    rests: U16Array
    text_starts: I64Array  # length attributes + 1: which texts are an attribute's
    texts: Strings  # without the letter that they have as keys

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
        """As `code_of_value` takes them."""
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
def rest_in(data, start, stop):
    """Twice what a number's nearest double misses, from its key, and one more if that has a tail."""
    missed = _eight_digits(data, start + NUMBER_KEY - 8) & _U(0xFFF)
    return (missed << _U(1)) | _U(stop - start > NUMBER_KEY)


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
def _is_marked(data, start, stop):
    return start < stop and data[start] == MARKED


@lent
def _text_place(data, start, stop, first, last, text_offsets, texts):
    """Which text of those from `first` to `last` is the first that is not less, and whether it equals `data`'s."""
    low, high, is_marked = first, last, _is_marked(data, start, stop)
    while low < high:
        middle = (low + high) >> 1
        begin, end = text_offsets[middle], text_offsets[middle + 1]
        # Those of other types come first
        alike = _is_marked(texts, begin, end) == is_marked
        if _less(texts, begin, end, data, start, stop) if alike else not is_marked:
            low = middle + 1
        else:
            high = middle
    same = False
    if low < last:
        begin, end = text_offsets[low], text_offsets[low + 1]
        same = _is_marked(texts, begin, end) == is_marked and not _less(data, start, stop, texts, begin, end)
    return low, same


@lent
def _code_of_decimal(data, start, stop, numbers, texts):
    """Code of the decimal with the text `data[start:stop]`."""
    (first, last, doubles, rests), (first_text, last_text, text_offsets, heap) = numbers, texts
    key = start + 1
    double, rest = double_in(data, key), rest_in(data, key, stop)
    low, same = _number_place(double, rest, first, last, doubles, rests)
    if same and stop - key > NUMBER_KEY:
        # Constants with the same number below are as many as their texts, and in the order of these
        before, _ = _text_place(data, start, key + NUMBER_KEY, first_text, last_text, text_offsets, heap)
        place, same = _text_place(data, start, stop, first_text, last_text, text_offsets, heap)
        low += place - before
    return 2 * (NUMBERS + low - first) + 1 + same


@lent
def _code_of_text(data, start, stop, numbers, texts):
    """Code of the text `data[start:stop]`, or of its value; the attribute has these numbers and texts."""
    (first, last, _, _), (first_text, last_text, text_offsets, heap) = numbers, texts
    if _is_marked(data, start, stop) and stop - start > 1:
        if data[start + 1] == NAN:
            return _CODE_OF_NAN
        if data[start + 1] == NUMBER and stop - start > NUMBER_KEY:
            return _code_of_decimal(data, start, stop, numbers, texts)
    low, same = _text_place(data, start, stop, first_text, last_text, text_offsets, heap)
    return 2 * (NUMBERS + 1 + last - first + low - first_text) + 1 + same


@lent
def _code_of_bool(is_true):
    return 2 + 2 * (PLACE_FALSE + is_true)


@lent
def code_of_bits(kind, bits, first, last, doubles, rests):
    """Code of a bool or a number; `first` to `last` are the attribute's numbers."""
    if kind == columns.BOOL:
        return _code_of_bool(bits != _U(0))
    double, rest = columns.number_of(kind, bits)
    return _code_of_number(double, _U(2 * rest), first, last, doubles, rests) if rest != columns.NAN else _CODE_OF_NAN


@lent
def code_of_value(kind, bits, data, begin, end, attribute, constants):
    """Code of a value with this kind and these bits, or of the text `data[begin:end]`."""
    number_starts, doubles, rests, text_starts, text_offsets, texts = constants
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == columns.TEXT:
        all_texts = (text_starts[attribute], text_starts[attribute + 1], text_offsets, texts)
        return _code_of_text(data, begin, end, (first, last, doubles, rests), all_texts)
    return code_of_bits(kind, bits, first, last, doubles, rests)


@kernel
def write_codes(kind, attribute, values, places, constants, codes):
    """Write the codes of the values of a `Column` with the numbers in `places`."""
    bits, begins, ends, data = values
    number_starts, doubles, rests, text_starts, text_offsets, texts = constants
    first, last = number_starts[attribute], number_starts[attribute + 1]
    if kind == columns.TEXT:
        all_numbers = (first, last, doubles, rests)
        all_texts = (text_starts[attribute], text_starts[attribute + 1], text_offsets, texts)
        for i in range(len(places)):
            begin, end = begins[places[i]], ends[places[i]]
            codes[i] = _code_of_text(data, begin, end, all_numbers, all_texts)
        return
    # In its own loop, so that the processor waits for many at a time
    own = np.empty(len(places), np.uint64)
    for i in range(len(places)):
        own[i] = bits[places[i]]
    for i in range(len(places)):
        codes[i] = code_of_bits(kind, own[i], first, last, doubles, rests)


# -- cuts become constants and codes -----------------------------------------------------------------------------------


@kernel
def _classify(data, keys, sides, kinds, doubles, rests, places):
    """Write by what each cut is, its number, and the place of what each attribute has."""
    for i in range(len(sides)):
        start, stop = keys[i, 0], keys[i, 1]
        if start == stop:
            continue
        kind = data[start]
        if kind == NUMBER and stop - start >= NUMBER_KEY:
            kinds[i] = _BY_NUMBER
            doubles[i], rests[i] = double_in(data, start), rest_in(data, start, stop)
        elif kind == NUMBER:
            places[i] = PLACE_BEFORE_NUMBERS
        elif kind == _AFTER_NUMBERS:
            kinds[i] = _BEHIND_NUMBERS
        elif kind == _AFTER_TEXTS or (kind == TEXT and sides[i] == _AFTER_PREFIX and stop - start == 1):
            kinds[i] = _BEHIND_TEXTS
        elif kind == NAN:
            places[i] = PLACE_NAN
        elif kind == BOOL:
            places[i] = PLACE_FALSE + (stop - start == 2 and data[start + 1] == ONE)
        elif kind in (TEXT, TYPED):
            kinds[i] = _BY_TEXT


@kernel
def _sort_numbers(cuts, attributes, doubles, starts, words, order):
    """Write the doubles of these cuts, each attribute's ascending and equal ones as they come, and their cuts."""
    nexts = starts.copy()
    for i in range(len(cuts)):
        cut = cuts[i]
        at = nexts[attributes[cut]]
        nexts[attributes[cut]] = at + 1
        words[at], order[at] = doubles[cut], cut
    most = 0
    for attribute in range(len(starts) - 1):
        most = max(most, starts[attribute + 1] - starts[attribute])
    words_swap, order_swap = np.empty(most, np.uint64), np.empty(most, np.uint32)
    for attribute in range(len(starts) - 1):
        begin, end = starts[attribute], starts[attribute + 1]
        radix_sort(words[begin:end], order[begin:end], 0, end - begin, words_swap, order_swap)


@kernel
def _place_numbers(starts, words, order, rests, number_starts, of_numbers, places):
    """Write the place of each number's cut, and bring the different numbers to the front; how many there are.

    `rests`, by cut, is copied to `of_numbers`.
    """
    used = 0
    for attribute in range(len(starts) - 1):
        number_starts[attribute] = used
        for i in range(starts[attribute], starts[attribute + 1]):
            same = i > starts[attribute] and words[i] == words[used - 1]
            if not same or (len(rests) and rests[order[i]] != rests[order[i - 1]]):
                words[used] = words[i]
                if len(rests):
                    of_numbers[used] = rests[order[i]]
                used += 1
            places[order[i]] = NUMBERS + used - 1 - number_starts[attribute]
    number_starts[len(starts) - 1] = used
    return used


def _numbers(
    cuts: U32Array, attributes: I64Array, count: int, doubles: U64Array, distances: U64Array, places: U32Array
) -> tuple[I64Array, U64Array, U64Array]:
    """Where the numbers of each attribute begin, and these, after their places were written.

    There are distances of all, or of none.
    """
    if len(distances):
        cuts = cuts[np.argsort(distances[cuts], kind="stable")]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(attributes[cuts], minlength=count))])
    words, order, number_starts = np.empty(len(cuts), np.uint64), np.empty(len(cuts), np.uint32), np.empty_like(starts)
    _sort_numbers(cuts, attributes, doubles, starts, words, order)
    of_numbers = np.empty(len(cuts) if len(distances) else 0, np.uint64)
    used = _place_numbers(starts, words, order, distances, number_starts, of_numbers, places)
    return number_starts, words[:used], of_numbers[:used].copy()


def codes_of_cuts(
    data: U8Array, keys: I64Array, sides: U8Array, attributes: I64Array, count: int
) -> tuple[Constants, U32Array]:
    """The constants of `count` attributes, and the first code at or after each cut.

    Of each cut, `keys` ([n, 2]) says where in `data` its key is, `sides` has how its side is written, and `attributes`
    the attribute.
    """
    cuts = len(sides)
    kinds, places = np.zeros(cuts, np.uint8), np.zeros(cuts, np.uint32)
    doubles, rests = np.zeros(cuts, np.uint64), np.full(cuts, EXACT)
    _classify(data, keys, sides, kinds, doubles, rests, places)

    has_tail = (kinds == _BY_NUMBER) & (rests & np.uint16(1) == 1)
    text = np.flatnonzero((kinds == _BY_TEXT) | has_tail)
    are_marked = (data[keys[text, 0]] != TEXT) if len(text) else np.zeros(0, np.bool_)
    texts = _texts(data, keys[text], sides[text] == _AFTER_PREFIX, are_marked)
    ranks = ranks_of(texts)
    distances = rests.astype(np.uint64) << np.uint64(32)
    distances[has_tail] |= ranks[has_tail[text]].astype(np.uint64)
    exact = distances[:0] if (rests == EXACT).all() else distances
    by_number = np.flatnonzero(kinds == _BY_NUMBER).astype(np.uint32)
    number_starts, numbers, distances = _numbers(by_number, attributes, count, doubles, exact, places)

    by_rank = np.lexsort((ranks, ~are_marked, attributes[text]))
    in_order = text[by_rank]
    is_new, text_place = _distinct(attributes[in_order], ranks[by_rank])
    distinct = by_rank[is_new]
    text_starts = np.searchsorted(attributes[text[distinct]], np.arange(count + 1))
    is_place = ~has_tail[in_order]
    places[in_order[is_place]] = (text_place - text_starts[attributes[in_order]])[is_place]

    for kind, first in ((_BY_TEXT, NUMBERS + 1), (_BEHIND_NUMBERS, NUMBERS), (_BEHIND_TEXTS, NUMBERS + 1)):
        some = np.flatnonzero(kinds == kind)
        places[some] += (first + np.diff(number_starts)[attributes[some]]).astype(np.uint32)
    places[some] += np.diff(text_starts)[attributes[some]].astype(np.uint32)
    codes = _U32(2) * (places + _U32(1)) + (sides == _AFTER)
    halves = (numbers >> np.uint64(32)).astype(np.uint32)
    if (numbers & _LOW32).any():
        halves = halves[:0]
    else:
        numbers = numbers[:0]
    constants = Constants(
        number_starts,
        halves.copy(),
        numbers.copy(),
        (distances >> np.uint64(32)).astype(np.uint16),
        text_starts,
        gather_strings(texts, distinct.astype(np.uint32)),
    )
    return constants, codes


def _texts(data: U8Array, keys: I64Array, are_prefixes: BoolArray, are_marked: BoolArray) -> Strings:
    """Texts without the letter of their keys; instead of a prefix, the first text after all that begin with it.

    Those that represent values of other types begin with a byte before their keys.
    """
    shifts = np.zeros((len(keys), 2), np.int64)
    shifts[:, 0] = np.where(are_marked, -1, 1)
    found = parts_of(data, keys + shifts)
    after = found.data.copy()
    after[found.offsets[1:][are_prefixes] - 1] += 1  # UTF-8 has no byte 255
    after[found.offsets[:-1][are_marked]] = MARKED
    return Strings(found.offsets, after)


def _distinct(*columns: np.ndarray) -> tuple[np.ndarray, I64Array]:
    """Which rows of sorted columns differ from the one before, and how many of these come before each row's own."""
    is_new = np.ones(len(columns[0]), np.bool_)
    if len(is_new):
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return is_new, np.cumsum(is_new) - 1
