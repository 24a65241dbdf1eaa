"""Constraints in columns, checked and written as tags: `tagmatch.model.filters.constraints` says what these look like.

All keys of values, and the names of attributes, lie in one array of bytes, which begins with what `CONSTANTS` has. A
place in it is where something begins and ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U8Array, frozen, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_ranges, run_rows

#: Operators by number; what is no operator is -1
OPERATORS = (
    "=", "!=", "<", "<=", ">", ">=", "between", "in", "not in", "prefix", "suffix", "contains", "exists", "not exists",
)  # fmt: skip
(
    EQUAL, UNEQUAL, LESS, AT_MOST, GREATER, AT_LEAST, BETWEEN, IN, NOT_IN, PREFIX, SUFFIX, CONTAINS, EXISTS, NOT_EXISTS,
) = range(len(OPERATORS))  # fmt: skip

#: What the keys of numbers begin with, and what is after all of them; the same of texts
CONSTANTS = b"nost"
#: In the place of where a value begins, if there is none, or if there are several
MISSING, SEVERAL = -1, -2

_BANG, _B, _S = tuple(b"!bs")
_BEFORE, _AFTER, _AFTER_ALL = tuple(b"[]^")
_PLUS, _MINUS, _COLON, _ZERO = tuple(b"+-:0")
_OF_RANGES, _OF_SUFFIX, _OF_CONTAINS = tuple(b"rsc")

_CONSTRAINTS_PER_TASK = 16384

_U = np.uint64


class Columns(NamedTuple):
    """Constraints.

    Attributes
    ----------
    data : uint8 array
    operators : int64 array, length n
        By their places in `OPERATORS`.
    names : int64[n, 2] array
        Places of the attributes' names.
    values, uppers : int64[n, 2] arrays
        Places of the keys of operands.
    lists : int64 array, length n + 1
        Which of `members` each has.
    members : int64[m, 2] array
        Places of the keys of operands in lists.
    has_list : bool array, length n
    """

    data: U8Array
    operators: I64Array
    names: I64Array
    values: I64Array
    uppers: I64Array
    lists: I64Array
    members: I64Array
    has_list: BoolArray


# -- checks ------------------------------------------------------------------------------------------------------------


@inlined
def _is_comparable(letter):
    """Whether a value is there, whose key begins with this letter, that equals itself."""
    return letter >= 0 and letter != _BANG


@inlined
def _has_order(letter):
    return _is_comparable(letter) and letter != _B


@inlined
def _is_sound(operator, letter, upper, members, has_list):
    """Whether operands are those that an operator needs; they are first letters of keys, and how many are in a list."""
    if operator in (IN, NOT_IN):
        return has_list and letter == MISSING and upper == MISSING
    if operator == BETWEEN:
        return _has_order(letter) and letter == upper
    if members or upper != MISSING:
        return False
    if operator in (EXISTS, NOT_EXISTS):
        return letter == MISSING
    if operator in (EQUAL, UNEQUAL):
        return _is_comparable(letter)
    if operator in (PREFIX, SUFFIX, CONTAINS):
        return letter == _S
    return _has_order(letter)


@inlined
def _letter(data, place):
    """The letter that a key begins with, or what stands in its place."""
    return np.int64(data[place]) if place >= 0 else place


@kernel
def _check(data, operators, names, values, uppers, lists, members, has_list, first, last, sound):
    for i in range(first, last):
        are_right = operators[i] >= 0 and names[i, 0] < names[i, 1]
        for at in range(_U(names[i, 0]), _U(names[i, 1])):
            are_right &= data[at] != 0
        letter, upper = _letter(data, values[i, 0]), _letter(data, uppers[i, 0])
        begin, count = lists[i], lists[i + 1] - lists[i]
        if operators[i] == BETWEEN and count:
            are_right &= count == 2 and letter == MISSING and upper == MISSING
            letter, upper = _letter(data, members[begin, 0]), _letter(data, members[begin + count - 1, 0])
        elif count:
            for member in range(begin, begin + count):
                are_right &= _is_comparable(_letter(data, members[member, 0]))
        sound[i] = are_right and _is_sound(operators[i], letter, upper, count, has_list[i])


# -- order -------------------------------------------------------------------------------------------------------------


@inlined
def _compare(data, begin, end, other_begin, other_end):
    """Below 0, 0 or above 0, as one key comes before another, equals it, or comes after it."""
    for i in range(min(end - begin, other_end - other_begin)):
        difference = np.int64(data[begin + i]) - np.int64(data[other_begin + i])
        if difference:
            return difference
    return (end - begin) - (other_end - other_begin)


@inlined
def _compare_at(data, places, one, other):
    return _compare(data, places[one, 0], places[one, 1], places[other, 0], places[other, 1])


@inlined
def _sift(data, places, root, count):
    """Have the greatest key at the root of a heap."""
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and _compare_at(data, places, child, child + 1) < 0:
            child += 1
        if _compare_at(data, places, root, child) >= 0:
            return
        for side in range(2):
            places[root, side], places[child, side] = places[child, side], places[root, side]
        root = child


@inlined
def _sort(data, places):
    count = len(places)
    for root in range(count // 2 - 1, -1, -1):
        _sift(data, places, root, count)
    for last in range(count - 1, 0, -1):
        for side in range(2):
            places[0, side], places[last, side] = places[last, side], places[0, side]
        _sift(data, places, 0, last)


# -- tags --------------------------------------------------------------------------------------------------------------


@inlined
def _digits_of(number):
    """How many decimal digits a uint64 has."""
    digits, rest = 1, number // _U(10)
    while rest:
        digits, rest = digits + 1, rest // _U(10)
    return digits


@inlined
def _cut_of(operator, place, begin, end, upper_begin, upper_end, is_text):
    """Cut `place` of an operator: side, and where its key begins and ends."""
    least = 2 if is_text else 0
    if operator == UNEQUAL and place == 0:
        return _BEFORE, 0, 0
    if operator == UNEQUAL and place == 3:
        return _BEFORE, 3, 4
    if operator == UNEQUAL:
        return _BEFORE if place == 1 else _AFTER, begin, end
    if place == 0 and operator in (LESS, AT_MOST):
        return _BEFORE, least, least + 1
    if place == 0:
        return _AFTER if operator == GREATER else _BEFORE, begin, end
    if operator == BETWEEN:
        return _AFTER, upper_begin, upper_end
    if operator in (GREATER, AT_LEAST):
        return _BEFORE, least + 1, least + 2
    if operator == LESS:
        return _BEFORE, begin, end
    return _AFTER_ALL if operator == PREFIX else _AFTER, begin, end


@inlined
def _cut_of_points(points, first, last, place, are_left_out):
    """Cut `place` of the values that equal one of these, or none of them."""
    if are_left_out and place == 0:
        return _BEFORE, 0, 0
    place -= are_left_out
    point = first + (place >> 1)
    if point == last:
        return _BEFORE, 3, 4
    return _AFTER if place & 1 else _BEFORE, points[point, 0], points[point, 1]


@inlined
def _count_cuts(data, operator, begin, end, upper_begin, upper_end):
    """Cuts of an operator that has no list."""
    if operator == UNEQUAL:
        return 4
    if operator == LESS:  # before the empty text there is none
        return 0 if data[begin] == _S and end - begin == 1 else 2
    if operator == BETWEEN:
        return 0 if _compare(data, begin, end, upper_begin, upper_end) > 0 else 2
    return 2


@inlined
def _put_tags(data, operators, names, values, uppers, lists, members, ends, first, last, offsets, out, sizes, writes):
    """Write the tags of some constraints where `offsets` says; without `writes`, their sizes."""
    # Hardly a function here gets an array, as that costs as much as all else
    for i in range(first, last):
        operator, begin, end = operators[i], values[i, 0], values[i, 1]
        upper_begin, upper_end = uppers[i, 0], uppers[i, 1]
        kind = _OF_SUFFIX if operator == SUFFIX else _OF_CONTAINS if operator == CONTAINS else _OF_RANGES
        start = at = _U(offsets[i]) if writes else _U(0)
        if writes:
            out[at], out[at + _U(1)] = 0, _MINUS if operator == NOT_EXISTS else _PLUS
            out[at + _U(2)] = kind
        at += _U(3)
        source, length = _U(names[i, 0]), _U(names[i, 1] - names[i, 0])
        if writes:
            for byte in range(length):
                out[at + byte] = data[source + byte]
            out[at + length] = 0
        at += length + _U(1)
        if kind != _OF_RANGES:
            source, length = _U(begin + 1), _U(end - begin - 1)
            if writes:
                for byte in range(length):
                    out[at + byte] = data[source + byte]
            at += length
            cuts = 0
        elif operator in (IN, NOT_IN, EXISTS, NOT_EXISTS):
            cuts = 2 * (ends[i] - lists[i] + (operator != IN))
        else:
            if operator == BETWEEN and lists[i + 1] > lists[i]:
                begin, end = members[lists[i], 0], members[lists[i], 1]
                upper_begin, upper_end = members[lists[i] + 1, 0], members[lists[i] + 1, 1]
            cuts = _count_cuts(data, operator, begin, end, upper_begin, upper_end)
        is_text = begin >= 0 and data[begin] == _S
        for cut in range(cuts):
            if operator in (IN, NOT_IN, EXISTS, NOT_EXISTS):
                side, from_, to = _cut_of_points(members, lists[i], ends[i], cut, operator != IN)
            else:
                side, from_, to = _cut_of(operator, cut, begin, end, upper_begin, upper_end, is_text)
            source, length = _U(from_), _U(to - from_)
            digits = _U(_digits_of(length))
            if writes:
                out[at] = side
                rest = length
                for digit in range(digits):
                    # Divided by what is constant, for which the compiler multiplies
                    out[at + digits - digit] = _U(_ZERO) + rest % _U(10)
                    rest //= _U(10)
                out[at + digits + _U(1)] = _COLON
                at_key = at + digits + _U(2)
                for byte in range(length):
                    out[at_key + byte] = data[source + byte]
            at += digits + _U(2) + length
        if not writes:
            sizes[i] = at - start


@kernel
def _sort_members(data, operators, lists, members, first, last, ends):
    """Sort what is in lists, each once, and write where it ends."""
    for i in range(first, last):
        ends[i] = lists[i + 1]
        if (operators[i] == IN or operators[i] == NOT_IN) and lists[i + 1] > lists[i]:
            _sort(data, members[lists[i] : lists[i + 1]])
            end = lists[i] + 1
            for member in range(lists[i] + 1, lists[i + 1]):
                if _compare_at(data, members, end - 1, member) != 0:
                    members[end, 0], members[end, 1] = members[member, 0], members[member, 1]
                    end += 1
            ends[i] = end


@kernel
def _measure(data, operators, names, values, uppers, lists, members, ends, first, last, offsets, out, sizes):
    _put_tags(data, operators, names, values, uppers, lists, members, ends, first, last, offsets, out, sizes, False)


@kernel
def _write(data, operators, names, values, uppers, lists, members, ends, first, last, offsets, out, sizes):
    _put_tags(data, operators, names, values, uppers, lists, members, ends, first, last, offsets, out, sizes, True)


def are_sound(constraints: Columns, threads: int = 1) -> BoolArray:
    """Of each constraint, whether it has a name, an operator and the operands that this needs."""
    sound = np.zeros(len(constraints.operators), np.bool_)
    columns = _frozen(constraints)
    run_rows(lambda first, last: _check(*columns, first, last, sound), _ranges(constraints, threads), threads)
    return sound


def constraint_tags(constraints: Columns, threads: int = 1) -> Strings:
    """The tag of each constraint; all must be sound."""
    ranges = _ranges(constraints, threads)
    members, ends = constraints.members.copy(), np.empty(len(constraints.operators), np.int64)
    data, operators, names, values, uppers, lists, *_ = _frozen(constraints)
    run_rows(lambda first, last: _sort_members(data, operators, lists, members, first, last, ends), ranges, threads)
    columns = (data, operators, names, values, uppers, lists, frozen(members), frozen(ends))
    sizes, nothing = np.zeros(len(operators), np.int64), np.zeros(0, np.uint8)
    run_rows(lambda first, last: _measure(*columns, first, last, sizes, nothing, sizes), ranges, threads)
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    run_rows(lambda first, last: _write(*columns, first, last, offsets, out, sizes), ranges, threads)
    return Strings(offsets, out)


def _frozen(constraints: Columns) -> Columns:
    return Columns(*[frozen(array) for array in constraints])


def _ranges(constraints: Columns, threads: int) -> list[tuple[int, int]]:
    count = len(constraints.operators)
    return even_ranges(count, min(threads, 1 + count // _CONSTRAINTS_PER_TASK))
