"""Tags of constraints and of areas in columns: written, and read again from the tags of a vocabulary.

`tagmatch.model.where.constraints` and `tagmatch.model.where.areas` say what these tags look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    F64Array,
    I64Array,
    Strings,
    TagLists,
    U8Array,
    U32Array,
    frozen,
    offsets_of,
)
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import copy, inlined, kernel, lent
from tagmatch.model.kernels.outlines import CORRIDOR, POLYGON
from tagmatch.model.kernels.sphere import LOWER
from tagmatch.model.parallel import run_evenly
from tagmatch.model.where import constraints as table
from tagmatch.model.where.areas import FIELDS
from tagmatch.model.where.constraints import OPERATORS
from tagmatch.model.where.types import AFTER_TYPES, TIMES, TYPED

#: Kinds of constraints: of values between cuts; the end of a text, or a part of it; a tag that must not be there
RANGES, SUFFIX, CONTAINS, WITHOUT_TAG = map(ord, (table.RANGES, table.SUFFIX, table.CONTAINS, table.NO_TAG))
#: All keys of values are in one array of bytes, which begins with the bounds of all numbers, of all texts, and of
#: all values of each other type
CONSTANTS = b"nost" + b"".join(f"{TYPED}{chr(letter)}".encode() for letter in range(ord(TIMES), ord(AFTER_TYPES) + 1))
#: In the place of where a value begins, without one, or if there are several
MISSING, SEVERAL = -1, -2

_BANG, _B, _S, _P, _FIRST_TYPE = tuple(f"!bs{TYPED}{TIMES}".encode())
_AFTER_ALL, _PLUS, _MINUS, _COLON, _ZERO = tuple(b"^+-:0")
_BEFORE = ord("[")
_MANY = table.MANY

# The table of operators as kernels read it, a row each; the sides of the two cuts, and where these are
_COUNT, _TAKES, _KIND, _SIGN, _IS_OTHER, _SIDE, _PLACE = range(7)
_UPPER = 2  # so much further on is the same of the upper cut
_VALUES, _ORDERED, _TEXTS = range(3)
_TAKEN = {"values": _VALUES, "ordered": _ORDERED, "texts": _TEXTS}
_BEGIN, _END, _OPERAND, _SECOND = (ord(place) for place in (table.BEGIN, table.END, table.OPERAND, table.SECOND))


def _rule(own: table.Operator) -> list[int]:
    sign = _MINUS if own.negated else _PLUS
    cuts = [ord(each) for cut in own.cuts for each in cut] or [0, 0, 0, 0]
    return [own.count, _TAKEN[own.takes], ord(own.kind), sign, int(own.is_other), *cuts]


_RULES = frozen(np.array([_rule(own) for own in OPERATORS.values()], np.int64))

_U = np.uint64


class Columns(NamedTuple):
    """Constraints; places are where a name, or the key of a value, begins and ends in `data`."""

    data: U8Array
    operators: I64Array  # by number; -1 if unknown
    names: I64Array  # [n, 2], places of the attributes' names
    values: I64Array  # [n, 2], places of operands
    uppers: I64Array  # [n, 2], places of second operands
    lists: I64Array  # length n + 1: which of `members` each has
    members: I64Array  # [m, 2], places of operands in lists
    has_list: BoolArray


# -- checks ------------------------------------------------------------------------------------------------------------


@inlined
def _is_operand(takes, letter):
    """Whether a value is there, whose key begins with this letter, that an operator takes; NaN equals nothing."""
    if letter < 0 or letter == _BANG:
        return False
    return letter == _S or (takes != _TEXTS and (letter != _B or takes == _VALUES))


@inlined
def _letter(data, place):
    """The letter that a key begins with, and its type, if it has one; or the negative number in its place."""
    if place < 0:
        return place
    letter = np.int64(data[place])
    return (np.int64(data[place + 1]) << 8) | letter if letter == _P else letter


@inlined
def _domain(data, begin):
    """What the value with the key there has an order with: 0 numbers, 1 texts, 2 and more those of other types."""
    if begin < 0:
        return np.int64(0)
    letter = np.int64(data[begin])
    return 2 + np.int64(data[begin + 1]) - _FIRST_TYPE if letter == _P else np.int64(letter == _S)


@kernel
def _check(columns, rules, first, last, sound):
    data, operators, names, values, uppers, lists, members, has_list = columns
    for i in range(first, last):
        are_right = operators[i] >= 0 and names[i, 0] < names[i, 1]
        for at in range(_U(names[i, 0]), _U(names[i, 1])):
            are_right &= data[at] != 0
        count, takes = rules[operators[i], _COUNT], rules[operators[i], _TAKES]
        value, upper = _letter(data, values[i, 0]), _letter(data, uppers[i, 0])
        begin, listed = lists[i], lists[i + 1] - lists[i]
        if count == _MANY or (count == 2 and listed == 2):
            are_right &= value == MISSING and upper == MISSING
        if count == _MANY:
            are_right &= has_list[i]
            for member in range(begin, begin + listed):
                are_right &= _is_operand(takes, _letter(data, members[member, 0]))
        else:
            if count == 2 and listed == 2:
                value, upper, listed = _letter(data, members[begin, 0]), _letter(data, members[begin + 1, 0]), 0
            are_right &= listed == 0
            are_right &= _is_operand(takes, value) if count > 0 else value == MISSING
            are_right &= value == upper if count == 2 else upper == MISSING
        sound[i] = are_right


# -- written -----------------------------------------------------------------------------------------------------------


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
    """Move the greatest key to the root of a heap."""
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


@inlined
def _digits_of(number):
    """How many decimal digits a uint64 has."""
    digits, rest = 1, number // _U(10)
    while rest:
        digits, rest = digits + 1, rest // _U(10)
    return digits


@inlined
def _key_at(place, domain, begin, end, upper_begin, upper_end):
    """Where the key of a cut begins and ends."""
    if place == _OPERAND:
        return begin, end
    if place == _SECOND:
        return upper_begin, upper_end
    if domain > 1:
        at = 4 + 2 * (domain - 2 + (place == _END))
        return at, at + 2
    at = 2 * domain + (place == _END)
    return at, at + 1


@inlined
def _put_tags(columns, ends, rules, first, last, written, writes):
    """Write the tags of some constraints where `offsets` says; without `writes`, their sizes."""
    # No function that is called here gets an array, as that costs as much as all else
    data, operators, names, values, uppers, lists, members, _ = columns
    offsets, out, sizes = written
    for i in range(first, last):
        operator, begin, end = operators[i], values[i, 0], values[i, 1]
        upper_begin, upper_end = uppers[i, 0], uppers[i, 1]
        count, kind, is_other = rules[operator, _COUNT], rules[operator, _KIND], rules[operator, _IS_OTHER]
        start = at = _U(offsets[i]) if writes else _U(0)
        if writes:
            out[at], out[at + _U(1)], out[at + _U(2)] = 0, rules[operator, _SIGN], kind
        at += _U(3)
        source, length = _U(names[i, 0]), _U(names[i, 1] - names[i, 0])
        if writes:
            for byte in range(length):
                out[at + byte] = data[source + byte]
            out[at + length] = 0
        at += length + _U(1)
        if count == 2 and lists[i + 1] > lists[i]:
            begin, end = members[lists[i], 0], members[lists[i], 1]
            upper_begin, upper_end = members[lists[i] + 1, 0], members[lists[i] + 1, 1]
        domain = _domain(data, begin)
        cuts = 2 * (is_other + (ends[i] - lists[i] if count == _MANY else min(count, 1)))
        if kind != RANGES:
            source, length = _U(begin + 1), _U(end - begin - 1)
            if writes:
                for byte in range(length):
                    out[at + byte] = data[source + byte]
            at += length
            cuts = 0
        elif cuts == 2 and count > 0:
            # Without a value between both cuts, which are then in the wrong order or at one place, there are none
            low, low_end = _key_at(rules[operator, _PLACE], domain, begin, end, upper_begin, upper_end)
            high, high_end = _key_at(rules[operator, _PLACE + _UPPER], domain, begin, end, upper_begin, upper_end)
            difference = np.int64(0) if low == high else _compare(data, low, low_end, high, high_end)
            if difference > 0 or (difference == 0 and rules[operator, _SIDE] >= rules[operator, _SIDE + _UPPER]):
                cuts = 0
        for cut in range(cuts):
            side, from_, to = np.int64(_BEFORE), np.int64(0), np.int64(0)
            if is_other and cut == cuts - 1:
                from_, to = np.int64(3), np.int64(4)
            elif cut >= is_other:
                which = _UPPER * ((cut - is_other) & 1)
                if count == _MANY:
                    member = lists[i] + ((cut - is_other) >> 1)
                    begin, end = members[member, 0], members[member, 1]
                    domain = _domain(data, begin)
                side = rules[operator, _SIDE + which]
                from_, to = _key_at(rules[operator, _PLACE + which], domain, begin, end, upper_begin, upper_end)
            source, length = _U(from_), _U(to - from_)
            digits = _U(_digits_of(length))
            if writes:
                out[at] = side
                rest = length
                for digit in range(digits):
                    # A constant divisor, for which the compiler multiplies
                    out[at + digits - digit] = _U(_ZERO) + rest % _U(10)
                    rest //= _U(10)
                out[at + digits + _U(1)] = _COLON
                at_key = at + digits + _U(2)
                for byte in range(length):
                    out[at_key + byte] = data[source + byte]
            at += digits + _U(2) + length
        if not writes:
            sizes[i] = at - start


@inlined
def _is_within(data, places, one, other, is_prefix):
    """Whether the range of one operand has all of that of another one, which does not come before it."""
    begin, end = places[one, 0], places[one, 1]
    other_end = places[other, 1]
    if is_prefix:
        other_end = min(other_end, places[other, 0] + end - begin)
    return _compare(data, begin, end, places[other, 0], other_end) == 0


@kernel
def _sort_members(columns, rules, first, last, ends):
    """Sort the members of lists, drop those within an earlier member's range, and write where each list ends."""
    data, operators, _, _, _, lists, members, _ = columns
    for i in range(first, last):
        ends[i] = lists[i + 1]
        if rules[operators[i], _COUNT] == _MANY and lists[i + 1] > lists[i]:
            _sort(data, members[lists[i] : lists[i + 1]])
            is_prefix = rules[operators[i], _SIDE + _UPPER] == _AFTER_ALL
            end = lists[i] + 1
            for member in range(lists[i] + 1, lists[i + 1]):
                if not _is_within(data, members, end - 1, member, is_prefix):
                    members[end, 0], members[end, 1] = members[member, 0], members[member, 1]
                    end += 1
            ends[i] = end


@kernel
def _measure(columns, ends, rules, first, last, sizes, nothing):
    _put_tags(columns, ends, rules, first, last, (sizes, nothing, sizes), False)


@kernel
def _write(columns, ends, rules, first, last, offsets, out):
    _put_tags(columns, ends, rules, first, last, (offsets, out, offsets), True)


def are_sound(constraints: Columns, threads: int = 1) -> BoolArray:
    """Of each constraint, whether it has a name, an operator and the operands that this needs."""
    sound = np.zeros(len(constraints.operators), np.bool_)
    columns = Columns(*[frozen(each) for each in constraints])
    run_evenly(lambda first, last: _check(columns, _RULES, first, last, sound), len(sound), threads)
    return sound


def constraint_tags(constraints: Columns, threads: int = 1) -> Strings:
    """The tag of each constraint; all must be sound."""
    count = len(constraints.operators)
    ends, sizes, nothing = np.empty(count, np.int64), np.zeros(count, np.int64), np.zeros(0, np.uint8)
    members = constraints.members.copy()
    columns = Columns(*[frozen(each) for each in constraints])
    own = columns._replace(members=members)
    run_evenly(lambda first, last: _sort_members(own, _RULES, first, last, ends), count, threads)
    columns = columns._replace(members=frozen(members))
    run_evenly(lambda first, last: _measure(columns, ends, _RULES, first, last, sizes, nothing), count, threads)
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    run_evenly(lambda first, last: _write(columns, ends, _RULES, first, last, offsets, out), count, threads)
    return Strings(offsets, out)


# -- read --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Constraint tags of a vocabulary, by rank; places are where something begins and ends in its bytes."""

    ranks: U32Array
    negated: BoolArray
    kinds: U8Array  # `RANGES`, `SUFFIX`, `CONTAINS` or `WITHOUT_TAG`
    names: I64Array  # [n, 2], places of the attributes' names
    payloads: I64Array  # [n, 2]
    cut_offsets: I64Array  # length n + 1: which cuts those of kind `RANGES` have
    sides: U8Array  # of each cut, as it is written
    keys: I64Array  # [cuts, 2], places of the keys

    def __len__(self) -> int:
        return len(self.ranks)


@kernel
def _count_cuts(data, at, end):
    """The number of cuts from a place on; -1 for cuts in a wrong form."""
    count = 0
    while at < end:
        at += 1
        length = np.int64(0)
        while at < end and data[at] != _COLON:
            digit = np.int64(data[at]) - 48
            if digit < 0 or digit > 9 or length > end:
                return -1
            length = 10 * length + digit
            at += 1
        at += 1 + length
        count += 1
    return count if at == end and count % 2 == 0 else -1


@kernel
def _parse(offsets, data, ranks, negated, kinds, names, payloads, counts):
    for i in range(len(ranks)):
        start, end = offsets[ranks[i]], offsets[ranks[i] + np.uint32(1)]
        negated[i], kinds[i], counts[i] = data[start + 1] == _MINUS, data[start + 2], 0
        at = start + 3
        names[i, 0] = at
        while at < end and data[at] != 0:
            at += 1
        names[i, 1] = at
        payloads[i, 0], payloads[i, 1] = min(at + 1, end), end
        if at == end:
            kinds[i] = 0
        if kinds[i] == RANGES:
            counts[i] = _count_cuts(data, at + 1, end)
            if counts[i] < 0:
                kinds[i], counts[i] = 0, 0


@kernel
def _cut(data, payloads, cut_offsets, sides, keys):
    for i in range(len(payloads)):
        at = payloads[i, 0]
        for cut in range(cut_offsets[i], cut_offsets[i + 1]):
            sides[cut] = data[at]
            at += 1
            length = np.int64(0)
            while data[at] != _COLON:
                length = 10 * length + np.int64(data[at]) - 48
                at += 1
            keys[cut, 0], keys[cut, 1] = at + 1, at + 1 + length
            at += 1 + length


def parsed(tags: Strings, is_constraint: BoolArray) -> Parsed:
    """The constraint tags of a vocabulary; what only begins like one is left out, and so never holds."""
    ranks = np.flatnonzero(is_constraint).astype(np.uint32)
    count = len(ranks)
    negated, kinds, counts = np.empty(count, np.bool_), np.empty(count, np.uint8), np.empty(count, np.int64)
    names, payloads = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
    _parse(tags.offsets, tags.data, ranks, negated, kinds, names, payloads, counts)
    known = np.isin(kinds, (RANGES, SUFFIX, CONTAINS, WITHOUT_TAG))
    if not known.all():
        ranks, negated, kinds, counts = ranks[known], negated[known], kinds[known], counts[known]
        names, payloads = names[known], payloads[known]
    cut_offsets = offsets_of(counts)
    cuts = int(cut_offsets[-1])
    sides, keys = np.empty(cuts, np.uint8), np.empty((cuts, 2), np.int64)
    _cut(tags.data, payloads, cut_offsets, sides, keys)
    return Parsed(ranks, negated, kinds, names, payloads, cut_offsets, sides, keys)


@kernel
def _copy(data, places, offsets, out):
    for i in range(len(places)):
        copy(data, places[i, 0], places[i, 1], out, offsets[i])


class WrittenParts(NamedTuple):
    """Parts of some tags."""

    least: I64Array  # of each tag, how many parts must hold
    sizes: I64Array  # of each tag, how many parts it has
    sound: BoolArray  # whether each is what it begins like
    places: I64Array  # [n, 2], of all parts


@inlined
def _number_at(data, at, end):
    """The number that a colon ends, and where what follows begins; -1 without one."""
    number, begin = np.int64(0), at
    while at < end and data[at] != _COLON and number <= end:
        digit = np.int64(data[at]) - _ZERO
        number = 10 * number + digit if 0 <= digit <= 9 else end + 1
        at += 1
    return (number, at + 1) if begin < at < end and number <= end else (np.int64(-1), at)


@kernel
def _parts(offsets, data, are_parts, least, sizes, places):
    """Write the places of parts if there is room; how many there are."""
    used = np.int64(0)
    for i in range(len(are_parts)):
        least[i], sizes[i] = 0, 0
        if not are_parts[i]:
            continue
        start, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        least[i], at = _number_at(data, start + _HEAD, end)
        length, before = np.int64(0), used
        while at < end and length >= 0:
            length, at = _number_at(data, at, end)
            if used < len(places):
                places[used, 0], places[used, 1] = at, min(at + length, end)
            at += length
            used += 1
        sizes[i] = used - before
        if data[start + 1] != _PLUS or data[start + 3] != 0 or at != end or not 0 < least[i] <= sizes[i]:
            used, least[i], sizes[i] = before, 0, 0
    return used


def parts_in(tags: Strings, are_parts: BoolArray) -> WrittenParts:
    """The parts of the tags that have some by `are_parts`, from how they begin."""
    least, sizes = np.empty(len(tags), np.int64), np.empty(len(tags), np.int64)
    places = np.empty((0, 2), np.int64)
    for _ in range(2):
        used = _parts(tags.offsets, tags.data, are_parts, least, sizes, places)
        places = np.empty((used, 2), np.int64) if used > len(places) else places
    return WrittenParts(least, sizes, ~are_parts | (sizes > 0), places)


def parts_of(data: U8Array, places: I64Array) -> Strings:
    """The strings between these places of some bytes."""
    offsets = offsets_of(places[:, 1] - places[:, 0])
    out = np.empty(int(offsets[-1]), np.uint8)
    _copy(data, places, offsets, out)
    return Strings(offsets, out)


def ranks_of(strings: Strings) -> I64Array:
    """The place that each string has in the order of bytes; equal ones have the same."""
    offsets = pa.py_buffer(strings.offsets.astype(np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), len(strings), [None, offsets, pa.py_buffer(strings.data)])
    ranks: I64Array = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


# -- areas -------------------------------------------------------------------------------------------------------------

#: Most numbers that an area has
MOST_NUMBERS = 4
# How many each has, by its letter
_COUNTS = np.full(256, -1)
for _name, _fields in FIELDS.items():
    _COUNTS[[ord(_name[0]), ord(_name[0]) ^ int(LOWER)]] = len(_fields)

_DIGITS = 16
# A tag's bytes before the letter: U+0000, the sign, the kind, U+0000
_HEAD = 4
_AREA = ord(table.AREA)
_NINE, _A, _F = tuple(b"9af")
_HEX = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))


class WrittenShapes(NamedTuple):
    """Areas of some tags."""

    # `CIRCLE`, `BOX`, `NEAR`, `POLYGON` or `CORRIDOR`, without `LOWER` on the plane; 0 of a tag that is no area's
    kinds: U8Array
    negated: BoolArray
    # [n, 4]: `lon`, `lat`, `metres` of a circle, `west`, `south`, `east`, `north` of a box, `metres` of near; then 0
    values: F64Array
    # Of polygons and corridors, area `i` has the numbers from `offsets[i]` to `offsets[i + 1]`
    numbers: F64Array
    offsets: I64Array


@lent
def _read_numbers(data, at, count, out, used):
    """Read `count` numbers; returns whether all have only digits."""
    sound = True
    for number in range(count):
        found = np.uint64(0)
        for _ in range(_DIGITS):
            byte = data[at]
            if _ZERO <= byte <= _NINE:
                digit = byte - _ZERO
            elif _A <= byte <= _F:
                digit = byte - _A + 10
            else:
                digit, sound = 0, False
            found = (found << np.uint64(4)) | np.uint64(digit)
            at += 1
        out[used + number] = found
    return sound


@kernel
def _read_areas(offsets, data, ranks, kinds, negated, bits, ends):
    """Read areas; of those of any length, only how many numbers all so far have."""
    for i in range(len(ranks)):
        start, end = np.int64(offsets[ranks[i]]), np.int64(offsets[ranks[i] + np.uint32(1)])
        ends[i + 1] = ends[i]
        if end - start <= _HEAD:
            continue
        letter, count = data[start + _HEAD], (end - start - _HEAD - 1) // _DIGITS
        if end - start != _HEAD + 1 + count * _DIGITS:
            continue
        is_outline = letter | LOWER == POLYGON or letter | LOWER == CORRIDOR
        if is_outline:
            ends[i + 1] += count
        elif count != _COUNTS[letter] or not _read_numbers(data, start + _HEAD + 1, count, bits[i], 0):
            bits[i, :] = 0
            continue
        kinds[i], negated[i] = letter, data[start + 1] == _MINUS


@kernel
def _read_outlines(offsets, data, ranks, kinds, ends, out):
    """Read the numbers of areas of any length."""
    for i in range(len(ranks)):
        start, count = np.int64(offsets[ranks[i]]), ends[i + 1] - ends[i]
        if count > 0 and not _read_numbers(data, start + _HEAD + 1, count, out, ends[i]):
            kinds[i] = 0


def shapes_of(tags: Strings, ranks: U32Array) -> WrittenShapes:
    """The areas of the tags of a vocabulary with these ranks, of those that `areas_among` finds."""
    count = len(ranks)
    kinds, negated = np.zeros(count, np.uint8), np.zeros(count, np.bool_)
    bits = np.zeros((count, MOST_NUMBERS), np.uint64)
    ends, ranks = np.zeros(count + 1, np.int64), frozen(ranks.astype(np.uint32, copy=False))
    _read_areas(tags.offsets, tags.data, ranks, kinds, negated, bits, ends)
    numbers = np.empty(int(ends[-1]), np.uint64)
    if len(numbers):
        _read_outlines(tags.offsets, tags.data, ranks, kinds, ends, numbers)
    return WrittenShapes(kinds, negated, bits.view(np.float64), numbers.view(np.float64), ends)


def check_geometry(kinds: U8Array, what: str, *, plane: bool) -> None:
    """See that areas of some kind are in this geometry; InvalidValueError begins with `what` they are."""
    known = kinds[kinds != 0]
    # Letters of the plane are capitals
    if ((known < ord("a")) != plane).any():
        raise InvalidValueError(
            f"{what} on the {'sphere' if plane else 'plane'}: open the index with plane={not plane} "
            f"({'without' if plane else 'commands:'} --plane)"
        )


@kernel
def _write_areas(kinds, bits, places, first, last, digits, data):
    for i in range(first, last):
        at, count = places[i], _COUNTS[kinds[i]]
        if count < 0:
            continue
        data[at], data[at + 1], data[at + 2], data[at + 3], data[at + 4] = 0, _PLUS, _AREA, 0, kinds[i]
        at += _HEAD + 1
        for number in range(count):
            found = bits[i, number]
            for digit in range(_DIGITS):
                data[at + digit] = digits[(found >> np.uint64(60 - 4 * digit)) & np.uint64(15)]
            at += _DIGITS


def area_tags(kinds: U8Array, values: F64Array, threads: int) -> TagLists:
    """Rows with the tag of an area each, or without one where the kind is 0; none of `values` is a negative zero."""
    count, numbers = len(kinds), _COUNTS[kinds]
    has_area = numbers > 0
    lengths = np.where(has_area, _HEAD + 1 + numbers * _DIGITS, 0)
    places = offsets_of(lengths)
    data = np.empty(int(places[-1]), np.uint8)
    bits = np.ascontiguousarray(values).view(np.uint64)

    def write(first: int, last: int) -> None:
        _write_areas(kinds, bits, places, first, last, _HEX, data)

    run_evenly(write, count, threads)
    return TagLists(offsets_of(has_area), Strings(offsets_of(lengths[has_area]), data))
