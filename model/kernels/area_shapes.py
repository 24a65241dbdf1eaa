"""Areas as tags and as columns of numbers (`tagmatch.model.where.areas` says how they are written)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, Strings, TagLists, U8Array, U32Array, frozen, offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_ranges, run_rows

#: Letters of shapes on the sphere; those of the plane are the same as capitals
CIRCLE, BOX, NEAR = tuple(b"cbn")
#: What makes the letter of a shape on the sphere the one on the plane
TO_PLANE = ord("C") - ord("c")
#: Most numbers that a shape has
MOST_NUMBERS = 4

_DIGITS = 16
#: A tag's bytes before the letter: U+0000, the sign, the kind, U+0000
_BEFORE = 4
_NEGATED = ord("-")
_PLUS, _AREA = tuple(b"+a")
_ZERO, _NINE, _A, _F = tuple(b"09af")
_HEX = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))

_ROWS_PER_TASK = 4096


class WrittenShapes(NamedTuple):
    """Areas of some tags."""

    kinds: U8Array  # `CIRCLE`, `BOX` or `NEAR`, with `TO_PLANE` added on the plane; 0 of a tag that is no area's
    negated: BoolArray
    # [n, 4]: `lon`, `lat`, `metres` of a circle, `west`, `south`, `east`, `north` of a box, `metres` of near; then 0
    values: F64Array


@inlined
def _numbers_of(kind):
    """How many numbers a shape has; -1 of what is none."""
    if kind == CIRCLE or kind == CIRCLE + TO_PLANE:
        return 3
    if kind == BOX or kind == BOX + TO_PLANE:
        return 4
    return 1 if kind == NEAR or kind == NEAR + TO_PLANE else -1


@inlined
def read_shape(data, at, end, count, bits):
    """Read what stands for a shape, a letter and so many numbers, by the letter if `count` is 0; whether it is one.

    `bits` gets those of the numbers, and is not to be used where it is none.
    """
    wanted = count if count > 0 else _numbers_of(data[at])
    at += 1
    sound = wanted > 0 and end - at == wanted * _DIGITS
    bits[:] = 0
    if sound:
        for number in range(wanted):
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
            bits[number] = found
    return sound


@kernel
def _read(offsets, data, ranks, kinds, negated, bits):
    for i in range(len(ranks)):
        start, end = np.int64(offsets[ranks[i]]), np.int64(offsets[ranks[i] + np.uint32(1)])
        if end - start <= _BEFORE:
            continue
        if read_shape(data, start + _BEFORE, end, 0, bits[i]):
            kinds[i], negated[i] = data[start + _BEFORE], data[start + 1] == _NEGATED
        else:
            bits[i, :] = 0


def shapes_of(tags: Strings, ranks: U32Array) -> WrittenShapes:
    """The areas of the tags of a vocabulary with these ranks, of those that `areas_among` finds."""
    count = len(ranks)
    kinds, negated = np.zeros(count, np.uint8), np.zeros(count, np.bool_)
    bits = np.zeros((count, MOST_NUMBERS), np.uint64)
    _read(tags.offsets, tags.data, frozen(ranks.astype(np.uint32, copy=False)), kinds, negated, bits)
    return WrittenShapes(kinds, negated, bits.view(np.float64))


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
def _measure(kinds, lengths):
    for i in range(len(kinds)):
        count = _numbers_of(kinds[i])
        lengths[i] = 0 if count < 0 else _BEFORE + 1 + count * _DIGITS


@kernel
def _write(kinds, bits, places, first, last, digits, data):
    for i in range(first, last):
        at, count = places[i], _numbers_of(kinds[i])
        if count < 0:
            continue
        data[at], data[at + 1], data[at + 2], data[at + 3], data[at + 4] = 0, _PLUS, _AREA, 0, kinds[i]
        at += _BEFORE + 1
        for number in range(count):
            found = bits[i, number]
            for digit in range(_DIGITS):
                data[at + digit] = digits[(found >> np.uint64(60 - 4 * digit)) & np.uint64(15)]
            at += _DIGITS


def area_tags(kinds: U8Array, values: F64Array, threads: int) -> TagLists:
    """Rows with the tag of an area each, or without one where the kind is 0; none of `values` is a negative zero."""
    count = len(kinds)
    lengths = np.empty(count, np.int64)
    _measure(kinds, lengths)
    places, has_area = offsets_of(lengths), lengths > 0
    data = np.empty(int(places[-1]), np.uint8)
    bits = np.ascontiguousarray(values).view(np.uint64)

    def write(first: int, last: int) -> None:
        _write(kinds, bits, places, first, last, _HEX, data)

    run_rows(write, even_ranges(count, min(threads, 1 + count // _ROWS_PER_TASK)), threads)
    return TagLists(offsets_of(has_area), Strings(offsets_of(lengths[has_area]), data))
