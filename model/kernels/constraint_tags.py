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
def _is_name(data, begin, end):
    if begin >= end:
        return False
    for at in range(begin, end):
        if data[at] == 0:
            return False
    return True


@inlined
def _is_comparable(data, place):
    """Whether a value is there that equals itself."""
    return place[0] >= 0 and data[place[0]] != _BANG


@inlined
def _has_order(data, place):
    return _is_comparable(data, place) and data[place[0]] != _B


@inlined
def _are_ends(data, low, high):
    return _has_order(data, low) and _has_order(data, high) and data[low[0]] == data[high[0]]


@inlined
def _is_sound(data, operator, name, value, upper, members, has_list):
    if operator < 0 or not _is_name(data, name[0], name[1]):
        return False
    many = len(members)
    if operator in (IN, NOT_IN):
        for i in range(many):
            if not _is_comparable(data, members[i]):
                return False
        return has_list and value[0] == MISSING and upper[0] == MISSING
    if operator == BETWEEN and many:
        return many == 2 and value[0] == MISSING and upper[0] == MISSING and _are_ends(data, members[0], members[1])
    if operator == BETWEEN:
        return _are_ends(data, value, upper)
    if many or upper[0] != MISSING:
        return False
    if operator in (EXISTS, NOT_EXISTS):
        return value[0] == MISSING
    if operator in (EQUAL, UNEQUAL):
        return _is_comparable(data, value)
    if operator in (PREFIX, SUFFIX, CONTAINS):
        return value[0] >= 0 and data[value[0]] == _S
    return _has_order(data, value)


@kernel
def _check(data, operators, names, values, uppers, lists, members, has_list, first, last, sound):
    for i in range(first, last):
        some = members[lists[i] : lists[i + 1]]
        sound[i] = _is_sound(data, operators[i], names[i], values[i], uppers[i], some, has_list[i])


# -- order -------------------------------------------------------------------------------------------------------------


@inlined
def _compare(data, one, other):
    """Below 0, 0 or above 0, as one key comes before another, equals it, or comes after it."""
    length, other_length = one[1] - one[0], other[1] - other[0]
    for i in range(min(length, other_length)):
        difference = np.int64(data[one[0] + i]) - np.int64(data[other[0] + i])
        if difference:
            return difference
    return length - other_length


@inlined
def _sift(data, places, root, count):
    """Have the greatest key at the root of a heap."""
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and _compare(data, places[child], places[child + 1]) < 0:
            child += 1
        if _compare(data, places[root], places[child]) >= 0:
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
def _put_byte(out, at, byte, writes):
    if writes:
        out[at] = byte
    return at + 1


@inlined
def _put(out, at, data, begin, end, writes):
    if writes:
        for i in range(begin, end):
            out[at + i - begin] = data[i]
    return at + end - begin


@inlined
def _put_cut(out, at, side, data, begin, end, writes):
    at = _put_byte(out, at, side, writes)
    length = end - begin
    power = 1
    while 10 * power <= length:
        power *= 10
    while power:
        at = _put_byte(out, at, _ZERO + length // power % 10, writes)
        power //= 10
    at = _put_byte(out, at, _COLON, writes)
    return _put(out, at, data, begin, end, writes)


@inlined
def _put_points(out, at, data, points, are_left_out, writes):
    """The values that equal one of these, which are in order, or none of them."""
    if are_left_out:
        at = _put_cut(out, at, _BEFORE, data, 0, 0, writes)
    for i in range(len(points)):
        if i == 0 or _compare(data, points[i - 1], points[i]) != 0:
            first, second = (_BEFORE, _AFTER)
            at = _put_cut(out, at, first, data, points[i, 0], points[i, 1], writes)
            at = _put_cut(out, at, second, data, points[i, 0], points[i, 1], writes)
    if are_left_out:
        at = _put_cut(out, at, _BEFORE, data, 3, 4, writes)
    return at


@inlined
def _put_order(out, at, data, operator, value, writes):
    """The values of the same type before a value, or after it."""
    least = 2 if data[value[0]] == _S else 0
    if operator in (LESS, AT_MOST):
        if operator == LESS and value[1] - value[0] == 1:  # before the empty text there is none
            return at
        at = _put_cut(out, at, _BEFORE, data, least, least + 1, writes)
        return _put_cut(out, at, _BEFORE if operator == LESS else _AFTER, data, value[0], value[1], writes)
    at = _put_cut(out, at, _AFTER if operator == GREATER else _BEFORE, data, value[0], value[1], writes)
    return _put_cut(out, at, _BEFORE, data, least + 1, least + 2, writes)


@inlined
def _put_tag(out, at, data, operator, name, value, upper, members, writes):
    """Where the tag ends; without `writes`, nothing is written."""
    at = _put_byte(out, at, 0, writes)
    at = _put_byte(out, at, _MINUS if operator == NOT_EXISTS else _PLUS, writes)
    kind = _OF_SUFFIX if operator == SUFFIX else _OF_CONTAINS if operator == CONTAINS else _OF_RANGES
    at = _put_byte(out, at, kind, writes)
    at = _put(out, at, data, name[0], name[1], writes)
    at = _put_byte(out, at, 0, writes)
    if kind != _OF_RANGES:
        return _put(out, at, data, value[0] + 1, value[1], writes)
    if operator == BETWEEN:
        low, high = (members[0], members[1]) if len(members) else (value, upper)
        if _compare(data, low, high) > 0:
            return at
        at = _put_cut(out, at, _BEFORE, data, low[0], low[1], writes)
        return _put_cut(out, at, _AFTER, data, high[0], high[1], writes)
    if operator == PREFIX:
        at = _put_cut(out, at, _BEFORE, data, value[0], value[1], writes)
        return _put_cut(out, at, _AFTER_ALL, data, value[0], value[1], writes)
    if operator in (EQUAL, UNEQUAL):
        return _put_points(out, at, data, value.reshape(1, 2), operator == UNEQUAL, writes)
    if operator in (LESS, AT_MOST, GREATER, AT_LEAST):
        return _put_order(out, at, data, operator, value, writes)
    return _put_points(out, at, data, members, operator != IN, writes)


@kernel
def _sort_members(data, operators, lists, members, first, last):
    for i in range(first, last):
        if operators[i] == IN or operators[i] == NOT_IN:
            _sort(data, members[lists[i] : lists[i + 1]])


@kernel
def _measure(data, operators, names, values, uppers, lists, members, has_list, first, last, sizes, nothing):  # noqa: ARG001
    for i in range(first, last):
        some = members[lists[i] : lists[i + 1]]
        sizes[i] = _put_tag(nothing, 0, data, operators[i], names[i], values[i], uppers[i], some, False)


@kernel
def _write(data, operators, names, values, uppers, lists, members, has_list, first, last, offsets, out):  # noqa: ARG001
    for i in range(first, last):
        some = members[lists[i] : lists[i + 1]]
        _put_tag(out, offsets[i], data, operators[i], names[i], values[i], uppers[i], some, True)


def are_sound(constraints: Columns, threads: int = 1) -> BoolArray:
    """Of each constraint, whether it has a name, an operator and the operands that this needs."""
    sound = np.zeros(len(constraints.operators), np.bool_)
    columns = _frozen(constraints)
    run_rows(lambda first, last: _check(*columns, first, last, sound), _ranges(constraints, threads), threads)
    return sound


def constraint_tags(constraints: Columns, threads: int = 1) -> Strings:
    """The tag of each constraint; all must be sound."""
    ranges = _ranges(constraints, threads)
    members = constraints.members.copy()
    data, operators, _, _, _, lists, *_ = _frozen(constraints)
    run_rows(lambda first, last: _sort_members(data, operators, lists, members, first, last), ranges, threads)
    columns = _frozen(constraints._replace(members=members))
    sizes, nothing = np.zeros(len(operators), np.int64), np.zeros(0, np.uint8)
    run_rows(lambda first, last: _measure(*columns, first, last, sizes, nothing), ranges, threads)
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    run_rows(lambda first, last: _write(*columns, first, last, offsets, out), ranges, threads)
    return Strings(offsets, out)


def _frozen(constraints: Columns) -> Columns:
    return Columns(*[frozen(array) for array in constraints])


def _ranges(constraints: Columns, threads: int) -> list[tuple[int, int]]:
    count = len(constraints.operators)
    return even_ranges(count, min(threads, 1 + count // _CONSTRAINTS_PER_TASK))
