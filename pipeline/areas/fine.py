"""Small circles, cell by cell, in 16 bits: most messages are decided without a look at the circles themselves.

A group of many small circles has a second grid, besides the one of chunks (`tagmatch.pipeline.areas.grids`). A cell
lists the circles that reach into it, with middles and radii as multiples of the 8192nd part of a cell, counted from the
cell's corner. Rounding moves the edge of a circle by less than two of these: a point that is farther from all edges is
decided, and the cell says the ids. A message with a point that is not decided, one in a few hundred, goes by
chunks, as does one in a cell that lists none: of too many circles, or of one that is too large for 16 bits.

On the plane there is one grid. The sphere has six, as a cube has sides: a point belongs to the axis on which it is
farthest from the middle, and the other two axes say the cell. The tests are in space, so that sides have no seams.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, U32Array
from tagmatch.model.kernels.intrinsics import prefetch
from tagmatch.model.kernels.jit import inlined, kernel, lent
from tagmatch.model.kernels.sphere import is_marked, reach_of
from tagmatch.pipeline.areas.chunks import (
    ALL_SLOTS,
    NUMBERS,
    SLOTS,
    WORDS,
    all_frozen,
    around,
    decided,
    keep_from,
    tuple_at,
)
from tagmatch.pipeline.areas.grids import AreaGrid, along

# Circles of a group that has such cells, at least; and of a cell that lists its circles, at most
_FEWEST, _MOST = 64, 128
# Words of 32 bits for each circle, at most; how many circles say how many words a grid takes; and how much finer
# the next one is
_WORDS, _SAMPLE, _FINER = 8, 1024, 1.2
# A cell is so wide, in the unit of what it lists; and a number from there to there
_UNIT, _LOWEST, _HIGHEST = 8192.0, -32768, 32767
# Most cells that a circle which no cell lists may reach
_TOO_MANY = 4096
# In the place of a grid's first cell: it has no cells. In that of a cell's first word: it lists nothing
_WITHOUT = -1
_LONG = np.uint32(1 << 31)
# What is read behind the last circle
_BEHIND = 2 * SLOTS


class FineCells(NamedTuple):
    """Cells of the groups that have some."""

    first_grids: npt.NDArray[np.int32]  # Of each group: its first grid, or `_WITHOUT`; empty if no group has one
    frames: F64Array  # Of each grid: its least numbers on both axes, and how many cells a unit has
    sides: I64Array  # Of each grid: how many cells both axes have, and the first of its cells
    cells: U32Array  # Of each cell: the place of its first word, and `_LONG`; behind the last one, their number
    words: U32Array  # Of each cell: ids; then, in 16 bits, the middles' numbers axis by axis, and radii
    halves: npt.NDArray[np.int16]  # The same

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self[:-1])


@lent
def _words_of(count, axes):
    """Words of a cell that lists `count` circles."""
    return count + ((axes + 1) * count + 1) // 2


@lent
def _count_of(words, axes):
    """How many circles a cell lists that has `words` words."""
    return 2 * words // (axes + 3)


@lent
def _side_of(point):
    """The side of the sphere, or 0 on the plane, that a point belongs to; and the axes of cells."""
    if len(point) == 2:
        return 0, 0, 1
    x, y, z = abs(point[0]), abs(point[1]), abs(point[len(point) - 1])
    axis = 0 if x >= y and x >= z else (1 if y >= z else 2)
    value = point[0] if axis == 0 else (point[1] if axis == 1 else point[len(point) - 1])
    return 2 * axis + int(value < 0), 1 if axis == 0 else 0, 1 if axis == 2 else 2


@lent
def _height(side, one, other):
    """Where the sphere is above, or below, two numbers of a side."""
    height = math.sqrt(max(0.0, 1 - one * one - other * other))
    return -height if side & 1 else height


@lent
def _corner(frames, grid, side, row, column, origin):
    """Where a cell begins on each axis."""
    low, other_low, by = frames[3 * grid], frames[3 * grid + 1], frames[3 * grid + 2]
    one, other = low + row / by, other_low + column / by
    if len(origin) == 2:
        return one, other
    height = _height(side, one + 0.5 / by, other + 0.5 / by)
    if side < 2:
        return height, one, other
    return (one, height, other) if side < 4 else (one, other, height)


@lent
def _from_corner(point, corner, by):
    """A point as what a cell lists is asked for it."""
    scale = by * _UNIT
    x, y = np.float32((point[0] - corner[0]) * scale), np.float32((point[1] - corner[1]) * scale)
    if len(point) == 2:
        return x, y
    return x, y, np.float32((point[len(point) - 1] - corner[len(point) - 1]) * scale)


@lent
def _within(count):
    """So many slots, or all, as bits."""
    return (1 << count) - 1 if count < SLOTS else ALL_SLOTS


# -- the search --------------------------------------------------------------------------------------------------------


class LookedAt(NamedTuple):
    """Some groups of messages whose cells are looked at together."""

    firsts: I64Array  # The cell of each, then where its words begin
    counts: I64Array  # How many circles it lists; `_WITHOUT` where cells do not decide
    points: npt.NDArray[np.float32]  # From the corners of cells, in their unit
    slots: I64Array  # Which of these circles have the point, 16 by 16


@inlined
def room_to_look(count):
    """Room for `count` groups."""
    slots = np.empty((count, _MOST // SLOTS), np.int64)
    return LookedAt(np.empty(count, np.int64), np.full(count, _WITHOUT), np.empty((count, 3), np.float32), slots)


@lent
def aim_finely(fine, groups, points, looked_at, like):
    """Find the cell of each group that is looked at, if it has cells, and have what it lists fetched."""
    firsts, counts, near = looked_at.firsts, looked_at.counts, looked_at.points
    axes = len(like)
    for i in range(len(groups)):
        counts[i] = _WITHOUT
        grid = np.int64(fine.first_grids[np.int64(groups[i])])
        point = tuple_at(points, i, like)
        if grid < 0 or np.isnan(point[0]):
            continue
        side, one, other = _side_of(point)
        grid += side
        rows, columns, first = fine.sides[3 * grid], fine.sides[3 * grid + 1], fine.sides[3 * grid + 2]
        if first < 0:
            continue
        low, other_low, by = fine.frames[3 * grid], fine.frames[3 * grid + 1], fine.frames[3 * grid + 2]
        row, column = along(points[i, one], low, by, rows), along(points[i, other], other_low, by, columns)
        own = _from_corner(point, _corner(fine.frames, grid, side, row, column, like), by)
        for axis in range(axes):
            near[i, axis] = own[axis]
        firsts[i], counts[i] = first + row * columns + column, 0
        prefetch(fine.cells, firsts[i])
    for i in range(len(groups)):
        if counts[i] == 0:
            cell = firsts[i]
            first, end = fine.cells[cell], np.int64(fine.cells[cell + 1] & ~_LONG)
            counts[i] = _WITHOUT
            if first & _LONG == np.uint32(0):
                firsts[i], counts[i] = np.int64(first), _count_of(end - np.int64(first), axes)
                for word in range(firsts[i], end + SLOTS, SLOTS):
                    prefetch(fine.words, word)


@lent
def decide(fine, i, looked_at, like):
    """Write which of the circles that a cell lists have a point; whether that is decided for all of them."""
    count, unsure = looked_at.counts[i], 0
    point = tuple_at(looked_at.points, i, like)
    for circle in range(0, count, SLOTS):
        slots = decided(fine.halves, 2 * (looked_at.firsts[i] + count) + circle, count, point)
        listed = _within(count - circle)
        looked_at.slots[i, circle // SLOTS] = slots & listed
        unsure |= (slots >> SLOTS) & listed
    return unsure == 0


@lent
def keep_decided(fine, i, looked_at, out, used):
    """Append the ids of the circles that have a point, which is decided; how many ids there are then."""
    for circle in range(0, looked_at.counts[i], SLOTS):
        slots = looked_at.slots[i, circle // SLOTS]
        used = keep_from(fine.words, looked_at.firsts[i] + circle, slots, out, used)
    return used


# -- how cells are made ------------------------------------------------------------------------------------------------


class _Circles(NamedTuple):
    """The circles of a group, and the side of the sphere that a grid is made for."""

    words: F64Array
    numbers: U32Array
    first: int  # From which slot to which one
    last: int
    side: int
    rows_on: int  # The axes of the grid
    columns_on: int
    bounds: F64Array  # Of each circle and each axis: its two ends


class _Out(NamedTuple):
    """What is written; see `FineCells`."""

    frames: F64Array
    sides: I64Array
    cells: U32Array
    words: U32Array
    halves: npt.NDArray[np.int16]


@lent
def _number_at(words, slot, lane):
    return words[slot // SLOTS * WORDS + lane * SLOTS + slot % SLOTS]


@kernel
def _bounds_of(words, first, last, axes):
    """From where to where each circle is on each axis."""
    bounds = np.empty((last - first, axes, 2))
    for slot in range(first, last):
        reach = reach_of(_number_at(words, slot, 3), axes == 2)
        for axis in range(axes):
            bounds[slot - first, axis, 0], bounds[slot - first, axis, 1] = around(_number_at(words, slot, axis), reach)
    return bounds


@lent
def _is_on_side(circles, slot):
    """Whether a circle may have a point that belongs to the side."""
    bounds, i, axis = circles.bounds, slot - circles.first, circles.side // 2
    if bounds.shape[1] == 2:
        return True
    farthest = -bounds[i, axis, 0] if circles.side & 1 else bounds[i, axis, 1]
    for other in (circles.rows_on, circles.columns_on):
        if max(bounds[i, other, 0], -bounds[i, other, 1]) > farthest:
            return False
    return True


@lent
def _spans_of(circles, slot, frame):
    """From which row to which one, and from which column to which one, a circle reaches."""
    low, other_low, by, rows, columns = frame
    bounds, i, one, other = circles.bounds, slot - circles.first, circles.rows_on, circles.columns_on
    across = along(bounds[i, one, 0], low, by, rows), along(bounds[i, one, 1], low, by, rows)
    return across, (
        along(bounds[i, other, 0], other_low, by, columns),
        along(bounds[i, other, 1], other_low, by, columns),
    )


@lent
def _frame_around(circles):
    """Where circles of a side begin on both axes, how far they reach, and how many there are."""
    low = other_low = math.inf
    high = other_high = -math.inf
    count = 0
    for slot in range(circles.first, circles.last):
        if _is_on_side(circles, slot):
            bounds, i, one, other = circles.bounds, slot - circles.first, circles.rows_on, circles.columns_on
            low, high = min(low, bounds[i, one, 0]), max(high, bounds[i, one, 1])
            other_low, other_high = min(other_low, bounds[i, other, 0]), max(other_high, bounds[i, other, 1])
            count += 1
    return low, other_low, high - low, other_high - other_low, count


@lent
def _finest_of(circles, around_all, axes):
    """How many cells a unit of a grid best has; 0 if the grid is of no use."""
    low, other_low, wide, high, count = around_all
    best, by, stride = 0.0, 1 / max(wide, high), max((circles.last - circles.first) // _SAMPLE, 1)
    while np.isfinite(by * _UNIT) and by > 0:
        rows, columns = int(wide * by) + 1, int(high * by) + 1
        if rows * columns > count:
            break
        entries, sampled = 0, 0
        frame = low, other_low, by, rows, columns
        for slot in range(circles.first, circles.last, stride):
            if _is_on_side(circles, slot):
                across, along_columns = _spans_of(circles, slot, frame)
                entries += (across[1] - across[0] + 1) * (along_columns[1] - along_columns[0] + 1)
                sampled += 1
        if rows * columns + _words_of(entries, axes) / max(sampled, 1) * count > _WORDS * count:
            break
        best = by if entries / max(sampled, 1) * count <= _MOST * rows * columns else 0.0
        by *= _FINER
    return best


@lent
def _in_16_bits(circles, slot, corner, by, plane):
    """Whether a cell may list a circle."""
    limit = _number_at(circles.words, slot, 3)
    fits = not is_marked(limit) and reach_of(limit, plane) * by * _UNIT <= _HIGHEST
    for axis in range(len(corner)):
        number = (_number_at(circles.words, slot, axis) - corner[axis]) * by * _UNIT
        fits &= number >= _LOWEST and number <= _HIGHEST
    return fits


@kernel
def _counts_in(circles, frame, grid, frames, origin):
    """How many circles each cell lists, `_WITHOUT` if it cannot list those that reach it; whether it is of use."""
    by, rows, columns, plane = frame[2], frame[3], frame[4], len(origin) == 2
    counts = np.zeros(rows * columns, np.int64)
    for slot in range(circles.first, circles.last):
        if not _is_on_side(circles, slot):
            continue
        across, along_columns = _spans_of(circles, slot, frame)
        reached = (across[1] - across[0] + 1) * (along_columns[1] - along_columns[0] + 1)
        if reached > _TOO_MANY:
            return counts, False
        for row in range(across[0], across[1] + 1):
            for column in range(along_columns[0], along_columns[1] + 1):
                cell = row * columns + column
                corner = _corner(frames, grid, circles.side, row, column, origin)
                if counts[cell] == _MOST or not _in_16_bits(circles, slot, corner, by, plane):
                    counts[cell] = _WITHOUT
                elif counts[cell] >= 0:
                    counts[cell] += 1
    return counts, True


@lent
def _write(circles, slot, place, corner, by, out):
    """Write a circle into a cell; its place is where words begin, how many circles are listed, and which one it is."""
    first, count, at = place
    out.words[first + at] = circles.numbers[2 * (slot // SLOTS) * WORDS + NUMBERS + slot % SLOTS]
    half = 2 * (first + count) + at
    for axis in range(len(corner)):
        number = (_number_at(circles.words, slot, axis) - corner[axis]) * by * _UNIT
        out.halves[half] = np.int16(np.rint(number))
        half += count
    reach = reach_of(_number_at(circles.words, slot, 3), len(corner) == 2)
    out.halves[half] = np.int16(np.rint(reach * by * _UNIT))


@lent
def _begin_cells(counts, used_cells, used, axes, cells):
    """Write where the words of each cell begin, behind those that are used, and how many there are then."""
    for cell in range(len(counts)):
        cells[used_cells + cell] = np.uint32(used) | (_LONG if counts[cell] < 0 else np.uint32(0))
        used += _words_of(max(counts[cell], 0), axes)
    cells[used_cells + len(counts)] = used
    return used


@kernel
def _lay_out(circles, grid, used_cells, used, out, origin):
    """Make the grid of one side; how many cells, and words, there are then."""
    axes = len(origin)
    around_all = _frame_around(circles)
    low, other_low, wide, high, count = around_all
    by = 1.0 if count == 0 else _finest_of(circles, around_all, axes)
    rows, columns = (1, 1) if count == 0 else (int(wide * by) + 1, int(high * by) + 1)
    frame = (low, other_low, by, rows, columns) if count else (0.0, 0.0, by, rows, columns)
    out.frames[3 * grid], out.frames[3 * grid + 1], out.frames[3 * grid + 2] = frame[0], frame[1], by
    out.sides[3 * grid], out.sides[3 * grid + 1], out.sides[3 * grid + 2] = rows, columns, _WITHOUT
    if by == 0:
        return used_cells, used
    counts, is_done = _counts_in(circles, frame, grid, out.frames, origin)
    needed = 0
    for cell in range(len(counts)):
        needed += _words_of(max(counts[cell], 0), axes)
    if not is_done or used + needed > len(out.words) - _BEHIND or used_cells + len(counts) >= len(out.cells):
        return used_cells, used
    out.sides[3 * grid + 2] = used_cells
    end = _begin_cells(counts, used_cells, used, axes, out.cells)
    for slot in range(circles.first, circles.last):
        if not _is_on_side(circles, slot):
            continue
        across, along_columns = _spans_of(circles, slot, frame)
        for row in range(across[0], across[1] + 1):
            for column in range(along_columns[0], along_columns[1] + 1):
                cell = row * columns + column
                if counts[cell] < 0:
                    continue
                counts[cell] -= 1
                first = np.int64(out.cells[used_cells + cell] & ~_LONG)
                of_cell = _count_of(np.int64(out.cells[used_cells + cell + 1] & ~_LONG) - first, axes)
                corner = _corner(out.frames, grid, circles.side, row, column, origin)
                _write(circles, slot, (first, of_cell, counts[cell]), corner, by, out)
    return used_cells + len(counts), end


@kernel
def _laid_out(words, numbers, slots, origin):
    """The grids of groups of circles; see `FineCells`."""
    sides, some, circles_of_some = (1 if len(origin) == 2 else 6), 0, 0
    first_grids = np.full(len(slots) - 1, _WITHOUT, np.int32)
    for group in range(len(first_grids)):
        if slots[group + 1] - slots[group] >= _FEWEST:
            first_grids[group] = sides * some
            some += 1
            circles_of_some += slots[group + 1] - slots[group]
    # Some circles are on several sides
    all_words = np.empty((_WORDS + 1) * circles_of_some + _BEHIND, np.uint32)
    out = _Out(
        np.zeros(3 * sides * some), np.zeros(3 * sides * some, np.int64),
        np.empty(3 * circles_of_some + sides * some + 1, np.uint32), all_words, all_words.view(np.int16),
    )  # fmt: skip
    used_cells, used = 0, 0
    for group in range(len(first_grids)):
        some_circles = first_grids[group] >= 0
        bounds = _bounds_of(words, slots[group], slots[group + 1] if some_circles else slots[group], len(origin))
        for side in range(sides if first_grids[group] >= 0 else 0):
            rows_on, columns_on = 1 if side < 2 and sides == 6 else 0, 1 if side >= 4 or sides == 1 else 2
            circles = _Circles(words, numbers, slots[group], slots[group + 1], side, rows_on, columns_on, bounds)
            used_cells, used = _lay_out(circles, first_grids[group] + side, used_cells, used, out, origin)
    all_words[used : used + _BEHIND] = 0
    return first_grids, out.frames, out.sides, out.cells[: used_cells + 1], all_words[: used + _BEHIND]


_NO_CELLS = all_frozen(
    FineCells(
        np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint32),
        np.zeros(0, np.int16),
    )
)  # fmt: skip


def fine_cells(circles: AreaGrid, *, plane: bool) -> FineCells:
    """The cells of those groups of circles that have some."""
    origin = (0.0, 0.0) if plane else (0.0, 0.0, 0.0)
    if not (np.diff(circles.slots) >= _FEWEST).any():  # for few circles, nothing is compiled
        return _NO_CELLS
    first_grids, frames, sides, cells, words = _laid_out(circles.words, circles.numbers, circles.slots, origin)
    if (sides[2::3] < 0).all():
        first_grids, frames, sides = first_grids[:0], frames[:0], sides[:0]
    words = words.copy()
    return all_frozen(FineCells(first_grids, frames, sides, cells.copy(), words, words.view(np.int16)))
