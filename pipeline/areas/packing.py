"""Areas in an order in which those that are near each other share chunks, and bounds of these in a tree.

Areas are ordered group by group, and within a group by halves: along the axis on which they differ most, of their
middles' and of their size, the lesser half comes first. Places of the order at which it is cut are multiples of powers
of two, so that 16 chunks in a row, as well as 16 times as many, are such a part. A record of the tree has the bounds of
16 chunks, or of 16 records of the level below it. Thus hot spots have smaller parts, and large areas parts of their
own, whatever there is; and as bounds are boxes in space, nothing is special about poles and the anti-meridian.

All groups share chunks and records, so that many small ones take no more memory than a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, U32Array, frozen, offsets_of
from tagmatch.model.kernels.bits import leading_zeros
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import limits, points, reach_of, reaches
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, aligned, chunks_of
from tagmatch.pipeline.areas.shapes import BOX, CIRCLE

#: float32 words of a record for each axis: 16 lows and 16 highs
AXIS = 32
#: Of how many times this are a record's children, as a power of two
FAN_OUT = 4
# Much more than the tests' rounding, and their underflow
_MORE, _MORE_OF_MIDDLE, _LEAST = 1 + 1e-9, 1e-15, 1e-150
_AXES = 4


@lent
def rounded_down(value):
    """The greatest float32 that is not greater."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(-np.inf)) if near > value else near


@lent
def rounded_up(value):
    """The smallest float32 that is not smaller."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(np.inf)) if near < value else near


@lent
def _swap(keys, order, i, j):
    for axis in range(_AXES):
        keys[i, axis], keys[j, axis] = keys[j, axis], keys[i, axis]
    order[i], order[j] = order[j], order[i]


@lent
def select(keys, order, first, last, middle, axis, state):
    """Have no key before `middle` that is greater than one after it."""
    low, high = first, last - 1
    while low < high:
        # a place by chance, so that no order of areas makes this slow
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        pivot = keys[low + np.int64((state >> np.uint64(33)) % np.uint64(high - low + 1)), axis]
        i, j = low, high
        while i <= j:
            while keys[i, axis] < pivot:
                i += 1
            while keys[j, axis] > pivot:
                j -= 1
            if i <= j:
                _swap(keys, order, i, j)
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            break
    return state


@lent
def widest_axis(keys, first, last):
    """The axis on which keys differ most; -1 if all are the same."""
    widest, most = -1, 0.0
    for axis in range(_AXES):
        low = high = keys[first, axis]
        for i in range(first + 1, last):
            low, high = min(low, keys[i, axis]), max(high, keys[i, axis])
        if high - low > most:
            widest, most = axis, high - low
    return widest


@kernel
def _arrange(keys, order, group_offsets):
    """Order the keys within each group."""
    stack, state = np.empty((128, 2), np.int64), np.uint64(1)
    for group in range(len(group_offsets) - 1):
        stack[0, 0], stack[0, 1] = group_offsets[group], group_offsets[group + 1]
        depth = 1
        while depth > 0:
            depth -= 1
            first, last = stack[depth, 0], stack[depth, 1]
            if last - first < 2 or first // SLOTS == (last - 1) // SLOTS:
                continue
            axis = widest_axis(keys, first, last)
            if axis < 0:
                continue
            bit = 63 - np.int64(leading_zeros(np.uint64(first ^ (last - 1))))
            middle = ((last - 1) >> bit) << bit
            state = select(keys, order, first, last, middle, axis, state)
            stack[depth, 0], stack[depth, 1] = first, middle
            stack[depth + 1, 0], stack[depth + 1, 1] = middle, last
            depth += 2


@lent
def _bound(bounds, axes, record, child, axis, low, high):
    """Have a child's bounds reach from a low to a high at least."""
    at = (record * axes + axis) * AXIS + child
    bounds[at] = min(bounds[at], low)
    bounds[at + SLOTS] = max(bounds[at + SLOTS], high)


@lent
def around(middle, reach):
    """Bounds of a circle on one axis."""
    reach = reach * _MORE + abs(middle) * _MORE_OF_MIDDLE + _LEAST
    return middle - reach, middle + reach


@kernel
def _fill(lanes, ids, circles, axes, words, numbers, bounds, levels):
    """Write chunks and the tree above them."""
    everywhere = np.float32(np.inf)
    bounds.reshape(-1, 2, SLOTS)[:, 0] = everywhere
    bounds.reshape(-1, 2, SLOTS)[:, 1] = -everywhere
    for i in range(len(lanes)):
        chunk, slot = i // SLOTS, i % SLOTS
        for lane in range(4):
            words[chunk * WORDS + lane * SLOTS + slot] = lanes[i, lane]
        numbers[2 * chunk * WORDS + NUMBERS + slot] = ids[i]
        record, child = chunk // SLOTS, chunk % SLOTS
        if circles:
            reach = reach_of(lanes[i, 3], axes == 2)
            for axis in range(axes):
                low, high = around(lanes[i, axis], reach)
                _bound(bounds, axes, record, child, axis, rounded_down(low), rounded_up(high))
        else:
            west, east, south, north = lanes[i, 0], lanes[i, 1], lanes[i, 2], lanes[i, 3]
            if west <= east:
                _bound(bounds, axes, record, child, 0, rounded_down(west), rounded_up(east))
            else:
                _bound(bounds, axes, record, child, 0, -everywhere, everywhere)
            _bound(bounds, axes, record, child, 1, rounded_down(south), rounded_up(north))
    for level in range(len(levels) - 2):
        for record in range(levels[level + 1] - levels[level]):
            parent = levels[level + 1] + record // SLOTS
            for axis in range(axes):
                at = ((levels[level] + record) * axes + axis) * AXIS
                low, high = bounds[at : at + SLOTS].min(), bounds[at + SLOTS : at + 2 * SLOTS].max()
                _bound(bounds, axes, parent, record % SLOTS, axis, low, high)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Areas of one kind in chunks, and the tree of their bounds.

    Attributes
    ----------
    group_offsets : int64 array
        Areas of group `g` are slots `group_offsets[g]` to `group_offsets[g + 1]`.
    words, numbers : float64 and uint32 arrays
        Chunks: slot `s` is in chunk `s // 16`. Its number is the area's.
    bounds : float32 array
        Records, `AXIS` words for each axis of space.
    levels : int64 array
        Of each level its first record, from the level above the chunks on; at last how many records there are.
    marked : bool
        Whether some are marked circles.
    """

    group_offsets: I64Array
    words: F64Array
    numbers: U32Array
    bounds: npt.NDArray[np.float32]
    levels: I64Array
    marked: bool

    def __post_init__(self) -> None:
        for name in ("group_offsets", "words", "numbers", "bounds", "levels"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What kernels get."""
        return self.group_offsets, self.words, self.numbers, self.bounds, self.levels

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.arrays if array is not self.numbers)

    def some_slots(self, count: int) -> I64Array:
        """So many slots from all over; none if there is none."""
        slots = int(self.group_offsets[-1])
        return np.linspace(0, max(slots - 1, 0), count if slots else 0).astype(np.int64)

    def lanes_of(self, slots: I64Array) -> F64Array:
        """What some slots have in each lane, shape (4, n)."""
        at = slots // SLOTS * WORDS + slots % SLOTS
        return np.stack([self.words[at + lane * SLOTS] for lane in range(4)])

    def groups_of(self, slots: I64Array) -> U32Array:
        """The groups of some slots."""
        return (np.searchsorted(self.group_offsets, slots, side="right") - 1).astype(np.uint32)


def levels_over(chunk_count: int) -> I64Array:
    """The levels of a tree over so many chunks, as of `Packed`."""
    records = [-(-chunk_count // SLOTS)]
    while records[-1] > 1:
        records.append(-(-records[-1] // SLOTS))
    levels: I64Array = offsets_of(np.array(records))
    return levels


def packed(
    groups: I64Array, group_count: int, ids: U32Array, lanes: F64Array, keys: F64Array, kind: int, axes: int
) -> Packed:
    """Pack areas: the lanes of each, and its middle and size as `keys`, both float64, shape (n, 4)."""
    order = np.argsort(groups, kind="stable")
    keys = keys[order]
    group_offsets = offsets_of(np.bincount(groups, minlength=group_count))
    _arrange(keys, order, group_offsets)
    chunk_count = -(-len(groups) // SLOTS)
    words, numbers = chunks_of(chunk_count)
    words[(chunk_count - 1) * WORDS :] = 0.0  # not all slots of the last chunk are used
    levels = levels_over(chunk_count)
    bounds = aligned(int(levels[-1]) * axes * AXIS, np.float32)
    _fill(lanes[order], ids[order], kind == CIRCLE, axes, words, numbers, bounds, levels)
    marked = kind == CIRCLE and bool(np.signbit(lanes[:, 3]).any())
    return Packed(group_offsets, words, numbers, bounds, levels, marked)


def packed_circles(groups: I64Array, group_count: int, ids: U32Array, values: F64Array, *, plane: bool) -> Packed:
    """Pack circles, whose values are lon, lat, metres."""
    lon, lat, metres = (np.ascontiguousarray(values[:, column]) for column in range(3))
    point, limit = points(lon, lat, plane=plane), limits(metres, plane=plane)
    lanes = np.stack([*point, limit], axis=1)
    with np.errstate(over="ignore"):  # infinity, too, tells them apart
        keys = np.stack([*point, 2 * reaches(limit, plane=plane)], axis=1)
    return packed(groups, group_count, ids, lanes, keys, CIRCLE, 2 if plane else 3)


def packed_boxes(groups: I64Array, group_count: int, ids: U32Array, values: F64Array) -> Packed:
    """Pack boxes, whose values are west, south, east, north."""
    west, south, east, north = values.T
    with np.errstate(over="ignore"):
        width, height = np.where(west <= east, east - west, np.inf), north - south
    keys = np.stack([west / 2 + east / 2, south / 2 + north / 2, width, height], axis=1)
    return packed(groups, group_count, ids, np.stack([west, east, south, north], axis=1), keys, BOX, 2)
