"""Areas that stay where they are: which have the place of each message, of those in some groups.

Areas are ordered group by group, and within a group by halves: along the axis on which they differ most, of their
middles' and of their size, the lesser half comes first. So the 16 areas of a chunk lie near each other and are about as
large. A grid says which chunks a place may be in: a cell has the bounds of all chunks that reach into it, 16 in a
bucket, or, in a hot spot, another grid. All groups share chunks, and small ones have no grid, so that many small
ones take no more memory than a large one. Cells divide space, not the sphere: nothing is special about poles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array, offsets_of
from tagmatch.model.kernels.intrinsics import leading_zeros, trailing_zeros
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import (
    BOX,
    CIRCLE,
    limits,
    longitudes,
    point_like,
    points,
    reach_of,
    reaches,
)
from tagmatch.pipeline.areas.chunks import (
    ALL_SLOTS,
    NUMBERS,
    SLOTS,
    WORDS,
    Places,
    Shapes,
    aligned,
    all_found,
    all_frozen,
    around,
    boxes_with,
    chunks_of,
    fetch_chunk,
    hits,
    keep,
    near,
    prefetch,
    select,
    widest_axis,
)

# What a cell, or a group, has instead of a bucket: nothing; so few chunks that all are tested; or grid `_GRID - word`
_EMPTY, _FEW, _GRID = -1, -2, -3
# Most chunks of a group without a bucket
_FLAT = 3
# A grid is as fine as it can be with so many entries for each chunk, and so many cells, by its axes; and with a bucket
# for so many chunks
_COPIES, _CELLS, _CHUNKS = (0, 0, 3, 6), (0, 0, 4, 8), 2
# And all grids have so many times as many entries and cells as a grid of all chunks
_ROOMY = 4
# A cell of more buckets may have another grid, as long as all have no more buckets than there are chunks
_DENSE = 2
# In the first number of a bucket: the cell has the next one, too
_MORE = np.uint32(1 << 31)
# Much more than the rounding of a cell's bounds
_ROUNDED = 1e-12
# How many groups of messages are looked at together, and for how many chunks of theirs there is room at first
_TOGETHER, _ROOM = 16, 512

# -- the grid ----------------------------------------------------------------------------------------------------------


class AreaGrid(NamedTuple):
    """Areas of one kind in chunks, and grids of these chunks' bounds."""

    slots: I64Array  # Areas of group `g` are in slots `slots[g]` to `slots[g + 1]`
    words: F64Array  # Chunks: slot `s` is in chunk `s // 16`
    numbers: U32Array
    roots: npt.NDArray[np.int32]  # The word of each group: its first bucket, or as `_EMPTY`, `_FEW` and `_GRID` say
    frames: F64Array  # Of each grid, for each axis: where it begins, and how many cells a unit has
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
def _along(value, low, by, side):
    """The cell on an axis that has a number; the first and the last have all beyond, too."""
    at = (value - low) * by
    return side - 1 if at >= side else (np.int64(at) if at > 0 else 0)


@lent
def _span(bounds, chunk, frame, side, axis):
    """From which cell on an axis to which one a chunk reaches."""
    low, by = frame[axis, 0], frame[axis, 1] * side
    return _along(bounds[chunk, axis, 0], low, by, side), _along(bounds[chunk, axis, 1], low, by, side)


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


@kernel
def _gridded(bounds, slots):
    """Roots, frames, sides and cells (see `AreaGrid`) of groups of chunks with these bounds.

    And chunks, and of each bucket, from where to where these are its own, and whether its cell has the next one, too.
    """
    axes, count, roots = bounds.shape[1], len(bounds), np.empty(len(slots) - 1, np.int64)
    frames, frame, sides = np.empty(2 * axes * count), np.empty((axes, 2)), np.empty(2 * count, np.int64)
    # More room than hot spots take, and two times all chunks, as groups share them; cells have long lists without
    cells, members = (
        np.empty(_ROOMY * _CELLS[axes] * count, np.int64),
        np.empty(_ROOMY * _COPIES[axes] * count, np.int64),
    )
    parts, grids, used_cells, used, used_buckets, left = np.empty(6 * count, np.int64), 0, 0, 0, 0, count
    # Of cells that wait: where their words go, and from where to where their chunks are among members
    tasks, around_tasks = np.empty(3 * count, np.int64), np.empty(2 * axes * count)
    for group in range(len(roots)):
        first, last = slots[group] // SLOTS, (slots[group + 1] - 1) // SLOTS + 1
        if slots[group] == slots[group + 1] or last - first <= _FLAT:
            roots[group] = _EMPTY if slots[group] == slots[group + 1] else _FEW
            continue
        waiting = 1
        for i in range(last - first):
            members[used + i] = first + i
        tasks[0], tasks[1], tasks[2] = -1, used, used + last - first
        used += last - first
        for axis in range(axes):
            around_tasks[2 * axis], around_tasks[2 * axis + 1] = -np.inf, np.inf
        while waiting:
            waiting -= 1
            place, begin, end = tasks[3 * waiting], tasks[3 * waiting + 1], tasks[3 * waiting + 2]
            some, side, ends = members[begin:end], 1, np.zeros(1, np.int64)
            if len(some) > _DENSE * SLOTS:
                _frame_of(bounds, some, around_tasks, 2 * axes * waiting, frame)
                side = _finest(bounds, some, frame)
            while side > 1:
                ends = np.zeros(side**axes + 2, np.int64)
                _into_cells(bounds, some, frame, side, ends, some[:0])
                more = 0
                for cell in range(side**axes):
                    more += (ends[cell + 2] + SLOTS - 1) // SLOTS
                    ends[cell + 2] += ends[cell + 1]
                has_room = used_cells + side**axes <= len(cells) and used + ends[-1] <= len(members) - 2 * count
                if _CHUNKS * more <= len(some) and more <= left and has_room:
                    left -= more
                    break
                side //= 2
            if side > 1:
                word, size = _GRID - grids, side**axes
                for axis in range(axes):
                    frames[2 * (axes * grids + axis)] = frame[axis, 0]
                    frames[2 * (axes * grids + axis) + 1] = frame[axis, 1] * side
                sides[2 * grids], sides[2 * grids + 1] = side, used_cells
                _into_cells(bounds, some, frame, side, ends, members[used:])
                for cell in range(size):
                    low, high = used + ends[cell], used + ends[cell + 1]
                    if low == high:
                        cells[used_cells + cell] = _EMPTY
                        continue
                    tasks[3 * waiting], tasks[3 * waiting + 1], tasks[3 * waiting + 2] = used_cells + cell, low, high
                    rest = cell
                    for i in range(axes):
                        axis = axes - 1 - i
                        bound = _cell_bounds(frame, side, axis, rest % side)
                        around_tasks[2 * (axes * waiting + axis)] = bound[0]
                        around_tasks[2 * (axes * waiting + axis) + 1] = bound[1]
                        rest //= side
                    waiting += 1
                used, grids, used_cells = used + ends[size], grids + 1, used_cells + size
            else:
                word = used_buckets
                for low in range(begin, end, SLOTS):
                    parts[3 * used_buckets], parts[3 * used_buckets + 1] = low, min(low + SLOTS, end)
                    parts[3 * used_buckets + 2] = low + SLOTS < end
                    used_buckets += 1
            if place < 0:
                roots[group] = word
            else:
                cells[place] = word
    found = frames[: 2 * axes * grids], sides[: 2 * grids], cells[:used_cells]
    return roots, found[0], found[1], found[2], members, parts[: 3 * used_buckets]


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
            numbers[at] |= _MORE


def _packed(shapes: Shapes, kind: int, groups: I64Array, group_count: int, ids: U32Array, plane: bool) -> AreaGrid:
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


# -- the search --------------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Some groups of messages that are looked at together."""

    owners: I64Array  # The message of each
    points: F64Array  # Where it is, as the grids of a kind have it
    words: I64Array  # Places of cells, then words
    ends: I64Array  # Where the chunks of each end in the queue of a kind


@lent
def _slots_within(chunk, first, last):
    """Those slots of a chunk that a range of slots has, as bits."""
    before, behind = max(first - chunk * SLOTS, 0), min(last - chunk * SLOTS, SLOTS)
    return (1 << behind) - (1 << before)


@lent
def _tuple_at(array, row, like):
    """A row of as many numbers as a tuple has: two or three."""
    if len(like) == 2:
        return array[row, 0], array[row, 1]
    return array[row, 0], array[row, 1], array[row, 2]


@lent
def _single(point):
    """A point as buckets are asked for it: bounds that have it are not less, and not greater, after rounding either."""
    if len(point) == 2:
        return np.float32(point[0]), np.float32(point[1])
    return np.float32(point[0]), np.float32(point[1]), np.float32(point[len(point) - 1])


@lent
def _cell_with(grids, number, point):
    """The cell of a grid that has a point."""
    cell, side, at = 0, grids.sides[2 * number], 2 * len(point) * number
    for axis in range(len(point)):
        low, by = grids.frames[at + 2 * axis], grids.frames[at + 2 * axis + 1]
        cell = cell * side + _along(point[axis], low, by, side)
    return grids.sides[2 * number + 1] + cell


@lent
def _aim(origin, space, grids, visits, first, block):
    """Find the word of each group that is looked at, and fetch the cell of that word."""
    owners, words = block.owners, block.words
    for i in range(len(owners)):
        prefetch(grids.roots, np.int64(visits.groups[first + i]))
    for i in range(len(owners)):
        lon, lat = visits.lon[owners[i]], visits.lat[owners[i]]
        word = np.int64(_EMPTY)
        if not (np.isnan(lon) or np.isnan(lat)):
            word = np.int64(grids.roots[np.int64(visits.groups[first + i])])
        words[i] = word
        if word == _EMPTY:
            continue
        if i > 0 and owners[i] == owners[i - 1] and words[i - 1] != _EMPTY:
            for axis in range(len(space)):
                block.points[i, axis] = block.points[i - 1, axis]
        else:
            point = point_like(origin, lon, lat)
            for axis in range(len(space)):
                block.points[i, axis] = point[axis]
        prefetch(grids.slots, np.int64(visits.groups[first + i]))
        if word <= _GRID:
            cell = _cell_with(grids, _GRID - word, _tuple_at(block.points, i, space))
            prefetch(grids.cells, cell)
            words[i] = _GRID - cell
    size = SLOTS * (1 + 2 * len(space))
    for i in range(len(owners)):
        word = words[i]
        while word <= _GRID:
            word = np.int64(grids.cells[_GRID - word])
            if word <= _GRID:
                word = _GRID - _cell_with(grids, _GRID - word, _tuple_at(block.points, i, space))
        words[i] = word
        for line in range(0, size if word >= 0 else 0, 16):
            prefetch(grids.buckets, word * size + line)


@lent
def _wait(has_third, grids, chunk, first, last, queue, queued):
    """Add a chunk to those that will be tested, and have it fetched."""
    fetch_chunk(grids.words, chunk, has_third)
    queue[queued] = (chunk << SLOTS) | _slots_within(chunk, first, last)
    return queued + 1


@lent
def _choose(has_third, space, grids, visits, first, block, queue):
    """Add the chunks that may have the place of each; whether there was room for all."""
    queued, size = 0, SLOTS * (1 + 2 * len(space))
    for i in range(len(block.owners)):
        word, group = block.words[i], np.int64(visits.groups[first + i])
        if word != _EMPTY:
            slot, end = grids.slots[group], grids.slots[group + 1]
            if word == _FEW:
                if queued + _FLAT + 1 > len(queue):
                    return False
                for chunk in range(slot // SLOTS, (end - 1) // SLOTS + 1):
                    queued = _wait(has_third, grids, chunk, slot, end, queue, queued)
            point = _single(_tuple_at(block.points, i, space))
            while word >= 0:
                if queued + SLOTS > len(queue):
                    return False
                at = word * size
                found = hits(grids.buckets, at + SLOTS, point)
                while found:
                    lane = np.int64(trailing_zeros(np.uint64(found)))
                    found &= found - 1
                    number = np.int64(grids.bucket_numbers[at + lane] & ~_MORE)
                    queued = _wait(has_third, grids, number, slot, end, queue, queued)
                word = word + 1 if grids.bucket_numbers[at] & _MORE else _EMPTY
        block.ends[i] = queued
    return True


@kernel
def find_fixed(marked, origin, kinds, visits, begin, out):
    """Write which areas, circles and boxes, have each message's place, from a message on while there is room.

    Returns the message for which there was none.
    """
    (circles, boxes), (lon, lat, offsets, _), (found, ends) = kinds, visits, out
    owners, points, words = np.empty(_TOGETHER, np.int64), np.empty((2, _TOGETHER, 3)), np.empty(_TOGETHER, np.int64)
    circle_ends, box_ends = np.zeros(_TOGETHER, np.int64), np.zeros(_TOGETHER, np.int64)
    circle_queue, box_queue = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    message, owner, used, first, last = begin, begin, ends[begin], offsets[begin], offsets[len(lon)]
    while first < last:
        count, flat = min(_TOGETHER, last - first), (0.0, 0.0)
        for i in range(count):
            while offsets[owner + 1] <= first + i:
                owner += 1
            owners[i] = owner
        if len(circles.words):
            block = _Block(owners[:count], points[0], words, circle_ends)
            _aim(origin, origin, circles, visits, first, block)
            while not _choose(len(origin) == 3, origin, circles, visits, first, block, circle_queue):
                circle_queue = np.empty(2 * len(circle_queue), np.int64)
        if len(boxes.words):
            block = _Block(owners[:count], points[1], words, box_ends)
            _aim(flat, flat, boxes, visits, first, block)
            while not _choose(True, flat, boxes, visits, first, block, box_queue):
                box_queue = np.empty(2 * len(box_queue), np.int64)
        while message < owners[0]:
            ends[message + 1] = used
            message += 1
        if used + SLOTS * (circle_ends[count - 1] + box_ends[count - 1]) > len(found):
            return message
        circle, box = 0, 0
        for i in range(count):
            while message < owners[i]:
                ends[message + 1] = used
                message += 1
            x, y = lon[message], lat[message]
            if circle < circle_ends[i]:
                point = _tuple_at(points[0], i, origin)
                while circle < circle_ends[i]:
                    chunk, slots = circle_queue[circle] >> SLOTS, circle_queue[circle] & ALL_SLOTS
                    slots &= near(marked, circles.words, chunk, point, None)
                    used = keep(circles.numbers, chunk, slots, found, used)
                    circle += 1
            if box < box_ends[i]:
                one, other, matters = longitudes(x, y, len(origin) == 2)
                while box < box_ends[i]:
                    chunk, slots = box_queue[box] >> SLOTS, box_queue[box] & ALL_SLOTS
                    slots &= boxes_with(boxes.words, chunk, one, other, y, matters)
                    used = keep(boxes.numbers, chunk, slots, found, used)
                    box += 1
        first += count
    while message < len(lon):
        ends[message + 1] = used
        message += 1
    return message


@dataclass(frozen=True, slots=True, eq=False)
class FixedAreas:
    """Areas in groups, and the id of each."""

    circles: AreaGrid
    boxes: AreaGrid
    plane: bool
    marked: bool  # Whether some are marked circles

    @classmethod
    def of(
        cls, groups: I64Array, group_count: int, shapes: Shapes, ids: U32Array | None = None, *, plane: bool
    ) -> FixedAreas:
        """Pack areas; the id of one is its place among those given, if none are given."""
        if ids is None:
            ids = np.arange(len(groups), dtype=np.uint32)
        circles, boxes = (_packed(shapes, kind, groups, group_count, ids, plane) for kind in (CIRCLE, BOX))
        limits = circles.words.reshape(-1, WORDS)[:, 3 * SLOTS : 4 * SLOTS]
        return cls(circles, boxes, plane, bool(np.signbit(limits).any()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.circles.nbytes + self.boxes.nbytes

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places that some areas have, from all over, and the group of each of these areas; none if there are none."""
        kind = self.circles if len(self.circles.numbers) else self.boxes
        slots = np.linspace(0, max(kind.slots[-1] - 1, 0), count if kind.slots[-1] else 0).astype(np.int64)
        at = slots // SLOTS * WORDS + slots % SLOTS
        one, other, third = (kind.words[at + lane * SLOTS] for lane in range(3))
        if kind is self.boxes:
            other = third
        elif not self.plane:
            one, other = np.degrees(np.arctan2(other, one)), np.degrees(np.arcsin(np.clip(third, -1, 1)))
        return Places(one, other), (np.searchsorted(kind.slots, slots, side="right") - 1).astype(np.uint32)

    def find(self, places: Places, groups: Lists) -> Lists:
        """Ids of the areas that have the place of each message, in no order."""
        origin = (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)
        return all_found(partial(find_fixed, self.marked, origin, (self.circles, self.boxes)), places, groups)
