"""Rows of tag numbers or ranks: ascending, each number once."""

from __future__ import annotations

from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.tag_table import UNKNOWN

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
    for i in range(first + 1, last):
        value = values[i]
        at = i
        while at > first and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@kernel
def ascending_row(numbers, first, last, out):
    """Move `numbers[first:last]` to place `out`, at or before `first`: ascending, once each, without UNKNOWN.

    Returns where they end.
    """
    used = out
    for i in range(first, last):
        if numbers[i] != UNKNOWN:
            numbers[used] = numbers[i]
            used += 1
    sort_values(numbers, out, used)
    distinct = out
    for i in range(out, used):
        if i == out or numbers[i] != numbers[distinct - 1]:
            numbers[distinct] = numbers[i]
            distinct += 1
    return distinct


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
