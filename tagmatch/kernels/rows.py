"""Rows of tag numbers or ranks: ascending, each number once."""

from __future__ import annotations

from tagmatch.kernels.jit import kernel
from tagmatch.kernels.tag_table import UNKNOWN

# Up to this length insertion sort beats the general sort
_FEW = 32


@kernel
def sort_values(values):
    """Sort an array, usually a short one, in place and ascending."""
    if len(values) > _FEW:
        values.sort()
        return
    for i in range(1, len(values)):
        value = values[i]
        at = i
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@kernel
def ascending_known(offsets, first, numbers, new_offsets):
    """Make each row of `numbers` ascending, in place, without repetitions and without UNKNOWN.

    Row `i` of `len(new_offsets) - 1` stands at `offsets[first + i] - offsets[first]` at first and at
    `new_offsets[i]` in the end; returns how many numbers are left in all.
    """
    base = offsets[first]
    used = 0
    for row in range(len(new_offsets) - 1):
        start = used
        for i in range(offsets[first + row] - base, offsets[first + row + 1] - base):
            if numbers[i] != UNKNOWN:
                numbers[used] = numbers[i]
                used += 1
        sort_values(numbers[start:used])
        distinct = start
        for i in range(start, used):
            if i == start or numbers[i] != numbers[distinct - 1]:
                numbers[distinct] = numbers[i]
                distinct += 1
        used = distinct
        new_offsets[row + 1] = used
    return used
