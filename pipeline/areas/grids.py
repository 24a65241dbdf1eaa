"""Chunks of areas, and grids of these: the form of fixed areas in memory, and how it is made.

Areas are ordered group by group, and within a group by halves: along the axis on which they differ most, of their
middles' and of their size, the lesser half comes first. So the 16 areas of a chunk lie near each other and are about as
large. A grid says which chunks a place may be in: a cell has the bounds of all chunks that reach into it, 16 in a
bucket, or, in a hot spot, another grid. All groups share chunks, and small ones have no grid, so that many small
ones take no more memory than a large one. Cells divide space, not the sphere: nothing is special about poles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, U32Array, offsets_of
from tagmatch.model.kernels.intrinsics import leading_zeros
from tagmatch.model.kernels.jit import inlined, kernel, lent
from tagmatch.model.kernels.sphere import CIRCLE, limits, points, reach_of, reaches
from tagmatch.pipeline.areas.chunks import (
    NUMBERS,
    SLOTS,
    WORDS,
    Shapes,
    aligned,
    all_frozen,
    around,
    chunks_of,
    select,
    widest_axis,
)

#: What a cell, or a group, has instead of a bucket: nothing; so few chunks that all are tested; or grid `GRID - word`
EMPTY, FEW, GRID = -1, -2, -3
#: Most chunks of a group without a bucket
FLAT = 3
# A grid is as fine as it can be with this number of entries for each chunk, and of cells, by its axes; and with a
# bucket for this number of chunks
_COPIES, _CELLS, _CHUNKS = (0, 0, 3, 6), (0, 0, 4, 8), 2
# And all grids have at most this many times as many entries and cells as a grid of all chunks
_ROOMY = 4
# A cell of more buckets may have another grid, as long as all have no more buckets than there are chunks
_DENSE = 2
#: In the first number of a bucket: the cell has the next one, too
MORE = np.uint32(1 << 31)
# Much more than the rounding of a cell's bounds
_ROUNDED = 1e-12

# -- the grid ----------------------------------------------------------------------------------------------------------


class AreaGrid(NamedTuple):
    """Areas of one kind in chunks, and grids of these chunks' bounds."""

    slots: I64Array  # Areas of group `g` are in slots `slots[g]` to `slots[g + 1]`
    words: F64Array  # Chunks: slot `s` is in chunk `s // 16`
    numbers: U32Array
    roots: npt.NDArray[np.int32]  # The word of each group: its first bucket, or as `EMPTY`, `FEW` and `GRID` say
    frames: F64Array  # Of each grid, for each axis: its beginning, and its cells a unit
    sides: I64Array  # Of each grid: how many cells an axis has, and the first of all its cells
    cells: npt.NDArray[np.int32]  # The word of each cell
    buckets: npt.NDArray[np.float32]  # 16 numbers of chunks, and for each axis 16 lows and 16 highs
    bucket_numbers: U32Array

    @property
    def nbytes(self) -> int:
        """Bytes of memory; numbers are in `words`, and in `buckets`."""
        shared = self.numbers.nbytes + self.bucket_numbers.nbytes
        return sum(array.nbytes for array in self) - shared


@lent
def _rounded_down(value):
    """The greatest float32 that is not greater."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(-np.inf)) if near > value else near


@lent
def _rounded_up(value):
    """The smallest float32 that is not smaller."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(np.inf)) if near < value else near


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


@kernel
def _fill(words, numbers, lanes, ids):
    """Write chunks."""
    for i in range(len(lanes)):
        chunk, slot = i // SLOTS, i % SLOTS
        for lane in range(4):
            words[chunk * WORDS + lane * SLOTS + slot] = lanes[i, lane]
        numbers[2 * chunk * WORDS + NUMBERS + slot] = ids[i]


@lent
def is_everywhere(west, south, east, north, plane):
    """Whether a box is taken to reach around the sphere: it may have a pole, or the anti-meridian by another name."""
    return west > east or (not plane and (max(abs(west), abs(east)) == 180 or max(abs(south), abs(north)) == 90))


@kernel
def chunk_bounds(words, count, is_circle, plane):
    """Lows and highs of chunks on each axis, of circles or boxes: no number of a place in one is beyond."""
    axes = 3 if is_circle and not plane else 2
    bounds = np.empty((-(-count // SLOTS), axes, 2), np.float32)
    for i in range(count):
        chunk, at = i // SLOTS, i // SLOTS * WORDS + i % SLOTS
        for axis in range(axes):
            if i % SLOTS == 0:
                bounds[chunk, axis, 0], bounds[chunk, axis, 1] = np.inf, -np.inf
            if is_circle:
                low, high = around(words[at + axis * SLOTS], reach_of(words[at + 3 * SLOTS], plane))
            else:
                low, high = words[at + 2 * axis * SLOTS], words[at + (2 * axis + 1) * SLOTS]
                west, east, south, north = words[at], words[at + 16], words[at + 32], words[at + 48]
                if axis == 0 and is_everywhere(west, south, east, north, plane):
                    low, high = -np.inf, np.inf
            bounds[chunk, axis, 0] = min(bounds[chunk, axis, 0], _rounded_down(low))
            bounds[chunk, axis, 1] = max(bounds[chunk, axis, 1], _rounded_up(high))
    return bounds


@lent
def along(value, low, by, side):
    """The cell on an axis that has a number; the first and the last have all beyond, too."""
    at = (value - low) * by
    return side - 1 if at >= side else (np.int64(at) if at > 0 else 0)


@lent
def _span(bounds, chunk, frame, side, axis):
    """From which cell on an axis to which one a chunk reaches."""
    low, by = frame[axis, 0], frame[axis, 1] * side
    return along(bounds[chunk, axis, 0], low, by, side), along(bounds[chunk, axis, 1], low, by, side)


@lent
def _entries(bounds, some, frame, side):
    """How many entries some chunks have in a grid."""
    total = 0
    for i in range(len(some)):
        cells = 1
        for axis in range(bounds.shape[1]):
            first, last = _span(bounds, some[i], frame, side, axis)
            cells *= last - first + 1
        total += cells
    return total


@lent
def _frame_of(bounds, some, within, first, frame):
    """Write where the bounds of some chunks begin on each axis, within others, and what part of theirs a unit is."""
    for axis in range(bounds.shape[1]):
        low, high = np.inf, -np.inf
        for i in range(len(some)):
            least, most = np.float64(bounds[some[i], axis, 0]), np.float64(bounds[some[i], axis, 1])
            low, high = min(low, least if np.isfinite(least) else low), max(high, most if np.isfinite(most) else high)
        low, high = max(low, within[first + 2 * axis]), min(high, within[first + 2 * axis + 1])
        part = 1 / (high - low) if high > low else 0.0
        is_some = part > 0 and np.isfinite(part) and np.isfinite(low)
        frame[axis, 0], frame[axis, 1] = low if is_some else 0.0, part if is_some else 0.0


@lent
def _finest(bounds, some, frame):
    """How many cells an axis of a grid of some chunks best has."""
    axes, side = bounds.shape[1], 1
    while True:
        finer = side + side // 4 + 1
        if finer**axes > _CELLS[axes] * len(some) or _entries(bounds, some, frame, finer) > _COPIES[axes] * len(some):
            return side
        side = finer


@lent
def _cell_bounds(frame, side, axis, at):
    """Lows and highs of what a cell of an axis has."""
    wide = 1 / (frame[axis, 1] * side) if frame[axis, 1] > 0 else np.inf
    low = frame[axis, 0] + at * wide if at > 0 else -np.inf
    return low, (frame[axis, 0] + (at + 1) * wide if at + 1 < side else np.inf)


@lent
def _has_sphere(frame, side, x, y, z):
    """Whether a cell may have a point of the sphere."""
    least = most = 0.0
    for axis in range(3):
        low, high = _cell_bounds(frame, side, axis, x if axis == 0 else (y if axis == 1 else z))
        least += 0.0 if low <= 0 <= high else min(low * low, high * high)
        most += max(low * low, high * high)
    return least <= 1 + _ROUNDED and most >= 1 - _ROUNDED


@lent
def _into_cells(bounds, some, frame, side, ends, out):
    """Count the chunks of each cell, or write them; `ends` then say where those of each end."""
    axes = bounds.shape[1]
    for i in range(len(some)):
        xs, ys = _span(bounds, some[i], frame, side, 0), _span(bounds, some[i], frame, side, 1)
        zs = _span(bounds, some[i], frame, side, 2) if axes == 3 else (0, 0)
        for x in range(xs[0], xs[1] + 1):
            for y in range(ys[0], ys[1] + 1):
                for z in range(zs[0], zs[1] + 1):
                    if axes == 3 and not _has_sphere(frame, side, x, y, z):
                        continue
                    cell = (x * side + y) * side + z if axes == 3 else x * side + y
                    if len(out):
                        out[ends[cell + 1]] = some[i]
                        ends[cell + 1] += 1
                    else:
                        ends[cell + 2] += 1


# Where `_Growing.used` counts grids, their cells, members, buckets, and cells that wait; and how many buckets are left
_GRIDS, _USED_CELLS, _MEMBERS, _BUCKETS, _WAITING, _LEFT = range(6)


class _Growing(NamedTuple):
    """Grids as they are made, in room that is known beforehand."""

    frames: F64Array  # See `AreaGrid`
    sides: I64Array
    cells: I64Array
    members: I64Array  # Chunks of buckets, and of cells that wait
    parts: I64Array  # Of each bucket: from where to where its chunks are, and whether its cell has the next one, too
    tasks: I64Array  # Of each cell that waits: where its word goes, and from where to where its chunks are
    around: F64Array  # From where to where such a cell is on each axis
    used: I64Array


@inlined
def _room_for(count, axes):
    """Room for grids of `count` chunks: more than hot spots take, and twice all chunks, as groups share them."""
    frames, sides, parts = np.empty(2 * axes * count), np.empty(2 * count, np.int64), np.empty(6 * count, np.int64)
    cells = np.empty(_ROOMY * _CELLS[axes] * count, np.int64)
    members = np.empty(_ROOMY * _COPIES[axes] * count, np.int64)
    tasks, around, used = np.empty(3 * count, np.int64), np.empty(2 * axes * count), np.zeros(6, np.int64)
    used[_LEFT] = count
    return _Growing(frames, sides, cells, members, parts, tasks, around, used)


@lent
def _wait_for(grown, place, begin, end):
    """Let a cell with these members wait; the number of the task."""
    waiting = grown.used[_WAITING]
    tasks = grown.tasks
    tasks[3 * waiting], tasks[3 * waiting + 1], tasks[3 * waiting + 2] = place, begin, end
    grown.used[_WAITING] += 1
    return waiting


@inlined
def _ends_in(bounds, some, frame, grown):
    """How many cells an axis of a grid of some chunks has, one for no grid, and where the chunks of each cell end."""
    axes, used, side, ends = bounds.shape[1], grown.used, _finest(bounds, some, frame), np.zeros(1, np.int64)
    while side > 1:
        ends = np.zeros(side**axes + 2, np.int64)
        _into_cells(bounds, some, frame, side, ends, some[:0])
        buckets = 0
        for cell in range(side**axes):
            buckets += (ends[cell + 2] + SLOTS - 1) // SLOTS
            ends[cell + 2] += ends[cell + 1]
        has_room = used[_USED_CELLS] + side**axes <= len(grown.cells)
        has_room &= used[_MEMBERS] + ends[-1] <= len(grown.members) - 2 * len(bounds)
        if _CHUNKS * buckets <= len(some) and buckets <= used[_LEFT] and has_room:
            used[_LEFT] -= buckets
            break
        side //= 2
    return side, ends


@lent
def _add_grid(bounds, some, frame, side, ends, grown):
    """Add a grid of some chunks, whose cells wait; the word that says so."""
    axes, used = bounds.shape[1], grown.used
    grid, first_cell, first_member, size = used[_GRIDS], used[_USED_CELLS], used[_MEMBERS], side**axes
    for axis in range(axes):
        grown.frames[2 * (axes * grid + axis)] = frame[axis, 0]
        grown.frames[2 * (axes * grid + axis) + 1] = frame[axis, 1] * side
    grown.sides[2 * grid], grown.sides[2 * grid + 1] = side, first_cell
    _into_cells(bounds, some, frame, side, ends, grown.members[first_member:])
    for cell in range(size):
        low, high = first_member + ends[cell], first_member + ends[cell + 1]
        if low == high:
            grown.cells[first_cell + cell] = EMPTY
            continue
        task, rest = _wait_for(grown, first_cell + cell, low, high), cell
        for i in range(axes):
            axis = axes - 1 - i
            bound = _cell_bounds(frame, side, axis, rest % side)
            grown.around[2 * (axes * task + axis)], grown.around[2 * (axes * task + axis) + 1] = bound
            rest //= side
    used[_MEMBERS], used[_GRIDS], used[_USED_CELLS] = first_member + ends[size], grid + 1, first_cell + size
    return GRID - grid


@lent
def _add_buckets(begin, end, grown):
    """Add buckets for some members; the word that says so."""
    word = grown.used[_BUCKETS]
    for low in range(begin, end, SLOTS):
        place = 3 * grown.used[_BUCKETS]
        grown.parts[place], grown.parts[place + 1] = low, min(low + SLOTS, end)
        grown.parts[place + 2] = low + SLOTS < end
        grown.used[_BUCKETS] += 1
    return word


@kernel
def _gridded(bounds, slots):
    """Roots, frames, sides and cells (see `AreaGrid`) of groups of chunks with these bounds; members and parts."""
    axes, roots = bounds.shape[1], np.empty(len(slots) - 1, np.int64)
    grown, frame = _room_for(len(bounds), axes), np.empty((axes, 2))
    used = grown.used
    for group in range(len(roots)):
        first, last = slots[group] // SLOTS, (slots[group + 1] - 1) // SLOTS + 1
        if slots[group] == slots[group + 1] or last - first <= FLAT:
            roots[group] = EMPTY if slots[group] == slots[group + 1] else FEW
            continue
        begin = used[_MEMBERS]
        for i in range(last - first):
            grown.members[begin + i] = first + i
        used[_MEMBERS] += last - first
        _wait_for(grown, -1, begin, used[_MEMBERS])
        for axis in range(axes):
            grown.around[2 * axis], grown.around[2 * axis + 1] = -np.inf, np.inf
        while used[_WAITING]:
            used[_WAITING] -= 1
            task = used[_WAITING]
            place, begin, end = grown.tasks[3 * task], grown.tasks[3 * task + 1], grown.tasks[3 * task + 2]
            some, side, ends = grown.members[begin:end], 1, np.zeros(1, np.int64)
            if len(some) > _DENSE * SLOTS:
                _frame_of(bounds, some, grown.around, 2 * axes * task, frame)
                side, ends = _ends_in(bounds, some, frame, grown)
            word = _add_grid(bounds, some, frame, side, ends, grown) if side > 1 else _add_buckets(begin, end, grown)
            if place < 0:
                roots[group] = word
            else:
                grown.cells[place] = word
    found = grown.frames[: 2 * axes * used[_GRIDS]], grown.sides[: 2 * used[_GRIDS]], grown.cells[: used[_USED_CELLS]]
    return roots, found[0], found[1], found[2], grown.members, grown.parts[: 3 * used[_BUCKETS]]


@kernel
def _fill_buckets(bounds, members, parts, buckets, numbers):
    """Write the numbers and bounds of the chunks of each bucket."""
    axes = bounds.shape[1]
    for bucket in range(len(parts) // 3):
        begin, end, more = parts[3 * bucket], parts[3 * bucket + 1], parts[3 * bucket + 2]
        at = bucket * SLOTS * (1 + 2 * axes)
        for lane in range(SLOTS):
            is_there = begin + lane < end
            chunk = members[begin + lane] if is_there else 0
            numbers[at + lane] = chunk
            for axis in range(axes):
                low = at + lane + SLOTS * (1 + 2 * axis)
                buckets[low] = bounds[chunk, axis, 0] if is_there else np.inf
                buckets[low + SLOTS] = bounds[chunk, axis, 1] if is_there else -np.inf
        if more:
            numbers[at] |= MORE


def packed(shapes: Shapes, kind: int, groups: I64Array, group_count: int, ids: U32Array, plane: bool) -> AreaGrid:
    """Pack the areas of one kind; what lies in order differs in the middle, or in size."""
    some = np.flatnonzero(shapes.kinds == kind)
    groups, columns = groups[some], np.ascontiguousarray(shapes.values[some].T)
    with np.errstate(over="ignore"):  # infinity, too, tells them apart
        if kind == CIRCLE:
            lon, lat, metres, _ = columns
            point, limit = points(lon, lat, plane=plane), limits(metres, plane=plane)
            lanes, keys = (*point, limit), (*point, 2 * reaches(limit, plane=plane))
        else:
            west, south, east, north = columns
            goes_round = (west > east) | (not plane) & (np.abs([west, east]).max(axis=0) == 180)
            width = np.where(goes_round, np.inf, east - west)
            lanes, keys = (west, east, south, north), (west / 2 + east / 2, south / 2 + north / 2, width, north - south)
    order, slots = np.argsort(groups, kind="stable"), offsets_of(np.bincount(groups, minlength=group_count))
    _arrange(np.stack(keys, axis=1)[order], order, slots)
    chunk_count = -(-len(some) // SLOTS)
    words, numbers = chunks_of(chunk_count)
    words[(chunk_count - 1) * WORDS :] = 0.0  # not all slots of the last chunk are used
    _fill(words, numbers, np.stack(lanes, axis=1)[order], ids[some[order]])
    bounds = chunk_bounds(words, len(some), kind == CIRCLE, plane)
    roots, frames, sides, cells, members, parts = _gridded(bounds, slots)
    buckets = aligned(len(parts) // 3 * SLOTS * (1 + 2 * bounds.shape[1]), np.float32)
    _fill_buckets(bounds, members, parts, buckets, buckets.view(np.uint32))
    grids = roots.astype(np.int32), frames.copy(), sides.copy(), cells.astype(np.int32)
    return all_frozen(AreaGrid(slots, words, numbers, *grids, buckets, buckets.view(np.uint32)))
