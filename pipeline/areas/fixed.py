"""Fixed areas: which have the place of each message, of those in some groups.

Several groups of messages are looked at together, so that the processor waits for many cache misses at a time. Cells of
small circles (`tagmatch.pipeline.areas.fine`) decide what they can; for all else there are grids of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array
from tagmatch.model.kernels.intrinsics import prefetch, trailing_zeros
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import BOX, CIRCLE, longitudes, point_like
from tagmatch.pipeline.areas.chunks import (
    ALL_SLOTS,
    SLOTS,
    WORDS,
    Places,
    Shapes,
    all_found,
    boxes_with,
    fetch_chunk,
    hits,
    keep,
    near,
    tuple_at,
)
from tagmatch.pipeline.areas.fine import FineCells, aim_finely, decide, fine_cells, keep_decided, room_to_look
from tagmatch.pipeline.areas.grids import EMPTY, FEW, FLAT, GRID, MORE, AreaGrid, along, packed

# How many groups of messages are looked at together, and for how many chunks of theirs there is room at first
_TOGETHER, _ROOM = 16, 512


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
        cell = cell * side + along(point[axis], low, by, side)
    return grids.sides[2 * number + 1] + cell


@lent
def _place(origin, space, visits, block):
    """Write the point of each group that is looked at; without a place, no number."""
    owners, points = block.owners, block.points
    for i in range(len(owners)):
        if i > 0 and owners[i] == owners[i - 1]:
            for axis in range(len(space)):
                points[i, axis] = points[i - 1, axis]
            continue
        lon, lat = visits.lon[owners[i]], visits.lat[owners[i]]
        if np.isnan(lon) or np.isnan(lat):
            points[i, 0] = np.nan
            continue
        point = point_like(origin, lon, lat)
        for axis in range(len(space)):
            points[i, axis] = point[axis]


@lent
def _aim(space, grids, visits, first, block, decided):
    """Find the word of each group that is looked at and not decided, and fetch the cell of that word."""
    owners, points, words = block.owners, block.points, block.words
    for i in range(len(owners)):
        prefetch(grids.roots, np.int64(visits.groups[first + i]))
    for i in range(len(owners)):
        words[i] = EMPTY
        if np.isnan(points[i, 0]) or decided[i] >= 0:
            continue
        group = np.int64(visits.groups[first + i])
        word = np.int64(grids.roots[group])
        prefetch(grids.slots, group)
        if word <= GRID:
            cell = _cell_with(grids, GRID - word, tuple_at(points, i, space))
            prefetch(grids.cells, cell)
            word = GRID - cell
        words[i] = word
    size = SLOTS * (1 + 2 * len(space))
    for i in range(len(owners)):
        word = words[i]
        while word <= GRID:
            word = np.int64(grids.cells[GRID - word])
            if word <= GRID:
                word = GRID - _cell_with(grids, GRID - word, tuple_at(block.points, i, space))
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
        if word != EMPTY:
            slot, end = grids.slots[group], grids.slots[group + 1]
            if word == FEW:
                if queued + FLAT + 1 > len(queue):
                    return False
                for chunk in range(slot // SLOTS, (end - 1) // SLOTS + 1):
                    queued = _wait(has_third, grids, chunk, slot, end, queue, queued)
            point = _single(tuple_at(block.points, i, space))
            while word >= 0:
                if queued + SLOTS > len(queue):
                    return False
                at = word * size
                found = hits(grids.buckets, at + SLOTS, point)
                while found:
                    lane = np.int64(trailing_zeros(np.uint64(found)))
                    found &= found - 1
                    number = np.int64(grids.bucket_numbers[at + lane] & ~MORE)
                    queued = _wait(has_third, grids, number, slot, end, queue, queued)
                word = word + 1 if grids.bucket_numbers[at] & MORE else EMPTY
        block.ends[i] = queued
    return True


@lent
def _decide_some(fine, visits, first, block, looked_at, space):
    """Decide messages by cells; whether some are left."""
    if len(fine.first_grids) == 0:
        return True
    count, is_left = len(block.owners), False
    aim_finely(fine, visits.groups[first : first + count], block.points, looked_at, space)
    for i in range(count):
        if looked_at.counts[i] > 0 and not decide(fine, i, looked_at, space):
            looked_at.counts[i] = -1
        is_left |= looked_at.counts[i] < 0
    return is_left


@kernel
def find_fixed(marked, origin, kinds, visits, begin, out):
    """Write which areas, circles and boxes, have each message's place, from a message on while there is room.

    Returns the message for which there was none.
    """
    (circles, boxes, fine), (lon, lat, offsets, _), (found, ends) = kinds, visits, out
    owners, points, words = np.empty(_TOGETHER, np.int64), np.empty((2, _TOGETHER, 3)), np.empty(_TOGETHER, np.int64)
    circle_ends, box_ends = np.zeros(_TOGETHER, np.int64), np.zeros(_TOGETHER, np.int64)
    circle_queue, box_queue = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    looked_at, not_decided = room_to_look(_TOGETHER), np.full(_TOGETHER, -1)
    message, owner, used, first, last = begin, begin, ends[begin], offsets[begin], offsets[len(lon)]
    while first < last:
        count, flat, decided = min(_TOGETHER, last - first), (0.0, 0.0), 0
        for i in range(count):
            while offsets[owner + 1] <= first + i:
                owner += 1
            owners[i] = owner
        if len(circles.words):
            block = _Block(owners[:count], points[0], words, circle_ends)
            _place(origin, origin, visits, block)
            circle_ends[:] = 0
            if _decide_some(fine, visits, first, block, looked_at, origin):
                _aim(origin, circles, visits, first, block, looked_at.counts)
                while not _choose(len(origin) == 3, origin, circles, visits, first, block, circle_queue):
                    circle_queue = np.empty(2 * len(circle_queue), np.int64)
            for i in range(count):
                decided += max(looked_at.counts[i], 0)
        if len(boxes.words):
            block = _Block(owners[:count], points[1], words, box_ends)
            _place(flat, flat, visits, block)
            _aim(flat, boxes, visits, first, block, not_decided)
            while not _choose(True, flat, boxes, visits, first, block, box_queue):
                box_queue = np.empty(2 * len(box_queue), np.int64)
        while message < owners[0]:
            ends[message + 1] = used
            message += 1
        if used + SLOTS * (circle_ends[count - 1] + box_ends[count - 1] + 1) + decided > len(found):
            return message
        circle, box = 0, 0
        for i in range(count):
            while message < owners[i]:
                ends[message + 1] = used
                message += 1
            x, y = lon[message], lat[message]
            used = keep_decided(fine, i, looked_at, found, used)
            if circle < circle_ends[i]:
                point = tuple_at(points[0], i, origin)
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
    fine: FineCells  # Of circles
    plane: bool
    marked: bool  # Whether some are marked circles

    @classmethod
    def of(
        cls, groups: I64Array, group_count: int, shapes: Shapes, ids: U32Array | None = None, *, plane: bool
    ) -> FixedAreas:
        """Pack areas; the id of one is its place among those given, if none are given."""
        if ids is None:
            ids = np.arange(len(groups), dtype=np.uint32)
        circles, boxes = (packed(shapes, kind, groups, group_count, ids, plane) for kind in (CIRCLE, BOX))
        limits = circles.words.reshape(-1, WORDS)[:, 3 * SLOTS : 4 * SLOTS]
        return cls(circles, boxes, fine_cells(circles, plane=plane), plane, bool(np.signbit(limits).any()))

    @property
    def kinds(self) -> tuple[AreaGrid, AreaGrid, FineCells]:
        """Circles and boxes, as kernels take them."""
        return self.circles, self.boxes, self.fine

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.circles.nbytes + self.boxes.nbytes + self.fine.nbytes

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places that some areas have, from all over, and the group of each of these areas."""
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
        return all_found(partial(find_fixed, self.marked, origin, self.kinds), places, groups)
