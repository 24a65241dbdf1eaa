"""Areas as tags and as columns of numbers (`tagmatch.model.filters.areas` says how they are written)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, Strings, U8Array, U32Array, frozen
from tagmatch.model.kernels.jit import inlined, kernel

#: Letters of shapes on the sphere; those of the plane are the same as capitals
CIRCLE, BOX, NEAR = tuple(b"cbn")
#: What makes the letter of a shape on the sphere the one on the plane
TO_PLANE = ord("C") - ord("c")
#: Most numbers that a shape has
NUMBERS = 4

_DIGITS = 16
#: A tag's bytes before the letter: U+0000, the sign, the kind, U+0000
_BEFORE = 4
_NEGATED = ord("-")
_ZERO, _NINE, _A, _F = tuple(b"09af")


class Shapes(NamedTuple):
    """Areas of some tags.

    Attributes
    ----------
    kinds : uint8 array
        `CIRCLE`, `BOX` or `NEAR`, as a capital (with `TO_PLANE` added) on the plane; 0 of a tag that is no area's.
    negated : bool array
    values : float64[n, 4] array
        The numbers of each: `lon`, `lat`, `metres` of a circle, `west`, `south`, `east`, `north` of a box, `metres` of
        near; then zeros.
    """

    kinds: U8Array
    negated: BoolArray
    values: F64Array


@inlined
def _numbers_of(kind):
    """How many numbers a shape has; -1 of what is none."""
    if kind == CIRCLE or kind == CIRCLE + TO_PLANE:
        return 3
    if kind == BOX or kind == BOX + TO_PLANE:
        return 4
    return 1 if kind == NEAR or kind == NEAR + TO_PLANE else -1


@kernel
def _read(offsets, data, ranks, kinds, negated, bits):
    for i in range(len(ranks)):
        start, end = np.int64(offsets[ranks[i]]), np.int64(offsets[ranks[i] + np.uint32(1)])
        if end - start <= _BEFORE:
            continue
        kind = data[start + _BEFORE]
        count = _numbers_of(kind)
        at = start + _BEFORE + 1
        sound = count > 0 and end - at == count * _DIGITS
        if sound:
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
                bits[i, number] = found
        if sound:
            kinds[i], negated[i] = kind, data[start + 1] == _NEGATED
        else:
            bits[i, :] = 0


def shapes_of(tags: Strings, ranks: U32Array) -> Shapes:
    """The areas of these tags of a vocabulary, of those that `areas_among` finds.

    Parameters
    ----------
    tags : Strings
    ranks : uint32 array
        Which of them.
    """
    count = len(ranks)
    kinds, negated = np.zeros(count, np.uint8), np.zeros(count, np.bool_)
    bits = np.zeros((count, NUMBERS), np.uint64)
    _read(tags.offsets, tags.data, frozen(ranks.astype(np.uint32, copy=False)), kinds, negated, bits)
    return Shapes(kinds, negated, bits.view(np.float64))
