"""Rows of tag numbers or ranks: ascending, each number once."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.tag_table import UNKNOWN

_U = np.uint64

# Up to this length insertion sort beats heap sort
_FEW = 32


@kernel
def spread(known, indices, first, out):
    """Write to `out` the number that `known` has for each index, from place `first` on; UNKNOWN where it has none."""
    for i in range(len(out)):
        index = indices[first + i]
        out[i] = known[index] if index < len(known) else UNKNOWN


@kernel
def _sink(values, first, at, count):
    """Restore the heap `values[first:first + count]`, the greatest first, of which only place `at` may be too small."""
    value = values[first + at]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and values[first + child + 1] > values[first + child]:
            child += 1
        if values[first + child] <= value:
            break
        values[first + at] = values[first + child]
        at = child
    values[first + at] = value


@kernel
def sort_values(values, first, last):
    """Sort `values[first:last]`, usually few, in place and ascending, without any other memory (on CUDA as well)."""
    count = last - first
    if count > _FEW:
        for at in range(count // 2 - 1, -1, -1):
            _sink(values, first, at, count)
        for left in range(count - 1, 0, -1):
            values[first], values[first + left] = values[first + left], values[first]
            _sink(values, first, 0, left)
        return
    # Unsigned indices save the test for a negative one
    begin = _U(first)
    for i in range(begin + _U(1), _U(last)):
        value = values[i]
        place = _U(i)
        while place > begin and values[place - _U(1)] > value:
            values[place] = values[place - _U(1)]
            place -= _U(1)
        values[place] = value


@kernel
def ascending_row(numbers, first, last, out):
    """Move `numbers[first:last]` to place `out`, at or before `first`: ascending, once each, without UNKNOWN.

    Returns where they end.
    """
    # Without branches, which would be foretold wrongly where some tags are known and others not
    used = _U(out)
    for i in range(_U(first), _U(last)):
        number = numbers[i]
        numbers[used] = number
        used += _U(number != UNKNOWN)
    sort_values(numbers, out, used)
    distinct = _U(out)
    for i in range(_U(out), used):
        number = numbers[i]
        numbers[distinct] = number
        distinct += _U(i + _U(1) == used or number != numbers[i + _U(1)])
    return np.int64(distinct)


@kernel
def ascending_known(offsets, first, numbers, new_offsets):
    """Make each row of `numbers` ascending, in place, without repetitions and without UNKNOWN.

    Row `i` of `len(new_offsets) - 1` stands at `offsets[first + i] - offsets[first]` at first and at
    `new_offsets[i]` afterwards; returns how many numbers are left in all.
    """
    base = offsets[first]
    used = 0
    for row in range(len(new_offsets) - 1):
        used = ascending_row(numbers, offsets[first + row] - base, offsets[first + row + 1] - base, used)
        new_offsets[row + 1] = used
    return used
