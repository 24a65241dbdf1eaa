"""Areas that stay where they are: a tree of their bounds, and which have the place of each message, of some groups.

Areas are ordered group by group, and within a group by halves: along the axis on which they differ most, of their
middles' and of their size, the lesser half comes first. Places of the order at which it is cut are multiples of powers
of two, so that 16 chunks in a row, as well as 16 times as many, are such a part. A record of the tree has the bounds of
16 chunks, or of 16 records of the level below it. Thus hot spots have smaller parts, and large areas parts of their
own; and as bounds are boxes in space, nothing is special about poles and the anti-meridian. All groups share chunks and
records, so that many small ones take no more memory than a large one.
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
    Visits,
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

#: float32 words of a record for each axis: 16 lows and 16 highs
AXIS = 32
#: Of how many times this are a record's children, as a power of two
FAN_OUT = 4
#: Groups of so many chunks are searched without a look at bounds
FLAT = 3
# How many messages go down the trees together, which have so many groups at most, but for one message; and for how many
# chunks, and records, of theirs there is room at first
_TOGETHER, _GROUPS, _ROOM = 8, 256, 1024
# Where a word has its owner, and where a level of the tree. The owner is the place of a message among those that go
# together, twice, and one more for boxes.
_OWNER, _LEVEL = 58, 54
_CIRCLES, _BOXES = 0, 1

# -- the tree ----------------------------------------------------------------------------------------------------------


class AreaTree(NamedTuple):
    """Areas of one kind in chunks, and the tree of their bounds; kernels of the CPU and of CUDA take it."""

    slots: I64Array  # Areas of group `g` are in slots `slots[g]` to `slots[g + 1]`
    words: F64Array  # Chunks: slot `s` is in chunk `s // 16`. Its number is the area's.
    numbers: U32Array
    bounds: npt.NDArray[np.float32]  # Records, `AXIS` words for each axis of space
    # Of each level its first record, from the level above the chunks on; at last how many records there are
    levels: I64Array

    @property
    def nbytes(self) -> int:
        """Bytes of memory; `numbers` are in `words`."""
        return sum(array.nbytes for array in self if array is not self.numbers)


@lent
def spans(bounds, at, down, up):
    """Whether bounds on one axis, whose low is at a place, meet what lies from one number to another."""
    return bounds[at] <= up and bounds[at + SLOTS] >= down


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
def _bound(bounds, at, low, high):
    """Have the bounds of a child on an axis reach from a low to a high at least."""
    bounds[at] = min(bounds[at], low)
    bounds[at + SLOTS] = max(bounds[at + SLOTS], high)


@kernel
def _fill(tree, lanes, ids, axes):
    """Write chunks and the tree above them, of circles in a space of so many axes or, without, of boxes."""
    words, numbers, bounds, levels = tree.words, tree.numbers, tree.bounds, tree.levels
    everywhere = np.float32(np.inf)
    bounds.reshape(-1, 2, SLOTS)[:, 0] = everywhere
    bounds.reshape(-1, 2, SLOTS)[:, 1] = -everywhere
    size = (axes if axes else 2) * AXIS
    for i in range(len(lanes)):
        chunk, slot = i // SLOTS, i % SLOTS
        for lane in range(4):
            words[chunk * WORDS + lane * SLOTS + slot] = lanes[i, lane]
        numbers[2 * chunk * WORDS + NUMBERS + slot] = ids[i]
        at = chunk // SLOTS * size + chunk % SLOTS
        if axes:
            reach = reach_of(lanes[i, 3], axes == 2)
            for axis in range(axes):
                low, high = around(lanes[i, axis], reach)
                _bound(bounds, at + axis * AXIS, rounded_down(low), rounded_up(high))
        else:
            west, east, south, north = lanes[i, 0], lanes[i, 1], lanes[i, 2], lanes[i, 3]
            if west <= east:
                _bound(bounds, at, rounded_down(west), rounded_up(east))
            else:
                _bound(bounds, at, -everywhere, everywhere)
            _bound(bounds, at + AXIS, rounded_down(south), rounded_up(north))
    for level in range(len(levels) - 2):
        for record in range(levels[level + 1] - levels[level]):
            parent = (levels[level + 1] + record // SLOTS) * size + record % SLOTS
            of_record = (levels[level] + record) * size
            for axis in range(0, size, AXIS):
                lows, highs = of_record + axis, of_record + axis + SLOTS
                _bound(bounds, parent + axis, bounds[lows:highs].min(), bounds[highs : highs + SLOTS].max())


def levels_over(chunk_count: int) -> I64Array:
    """The levels of a tree over so many chunks (see `AreaTree`)."""
    records = [-(-chunk_count // SLOTS)]
    while records[-1] > 1:
        records.append(-(-records[-1] // SLOTS))
    levels: I64Array = offsets_of(np.array(records))
    return levels


def _packed(shapes: Shapes, kind: int, groups: I64Array, group_count: int, *, plane: bool) -> AreaTree:
    """Pack the areas of one kind; what lies in order differs in the middle, or in size."""
    ids = np.flatnonzero(shapes.kinds == kind)
    groups, columns = groups[ids], np.ascontiguousarray(shapes.values[ids].T)
    with np.errstate(over="ignore"):  # infinity, too, tells them apart
        if kind == CIRCLE:
            lon, lat, metres, _ = columns
            point, limit, axes = points(lon, lat, plane=plane), limits(metres, plane=plane), 2 if plane else 3
            lanes, keys = (*point, limit), (*point, 2 * reaches(limit, plane=plane))
        else:
            west, south, east, north = columns
            width, axes = np.where(west <= east, east - west, np.inf), 0
            lanes, keys = (west, east, south, north), (west / 2 + east / 2, south / 2 + north / 2, width, north - south)
    order, slots = np.argsort(groups, kind="stable"), offsets_of(np.bincount(groups, minlength=group_count))
    _arrange(np.stack(keys, axis=1)[order], order, slots)
    chunk_count = -(-len(ids) // SLOTS)
    words, numbers = chunks_of(chunk_count)
    words[(chunk_count - 1) * WORDS :] = 0.0  # not all slots of the last chunk are used
    levels = levels_over(chunk_count)
    bounds = aligned(int(levels[-1]) * (axes or 2) * AXIS, np.float32)
    tree = AreaTree(slots, words, numbers, bounds, levels)
    _fill(tree, np.stack(lanes, axis=1)[order], ids[order].astype(np.uint32), axes)
    return all_frozen(tree)


# -- the search --------------------------------------------------------------------------------------------------------


@lent
def _slots_within(chunk, first, last):
    """Those slots of a chunk that a range of slots has, as bits."""
    before, behind = max(first - chunk * SLOTS, 0), min(last - chunk * SLOTS, SLOTS)
    return (1 << behind) - (1 << before)


class _Search(NamedTuple):
    """Some messages on their way down the trees, and what of them is still to be looked at."""

    downs: npt.NDArray[np.float32]  # What bounds must meet, for each message
    ups: npt.NDArray[np.float32]
    records: I64Array  # Records of a tree, each with the group that it is looked at for
    groups: I64Array
    queue: I64Array  # Chunks that wait to be tested
    in_order: I64Array  # The same by message and by kind, and where those of each end
    ends: I64Array


@lent
def meridians(lon, lat, plane):
    """From where to where boxes reach that may have a place: anywhere, for poles and the anti-meridian."""
    one, other, matters = longitudes(lon, lat, plane)
    if one != other or not matters:
        return -np.inf, np.inf
    return lon, lon


@lent
def _wait(tree, chunk, first, last, owner, search, queued):
    """Add a chunk to those that will be tested, and have it fetched."""
    fetch_chunk(tree.words, chunk)
    search.queue[queued] = (owner << _OWNER) | (chunk << SLOTS) | _slots_within(chunk, first, last)
    return queued + 1


@lent
def _look(tree, size, level, record, owner, group, search, waiting):
    """Add a record to those that will be looked at, and have it fetched."""
    first = (tree.levels[level] + record) * size
    for line in range(0, size, 16):
        prefetch(tree.bounds, first + line)
    search.records[waiting], search.groups[waiting] = (owner << _OWNER) | (level << _LEVEL) | record, group
    return waiting + 1


@lent
def _begin(kind, origin, size, tree, asked, search, queued):
    """Begin at the top of the groups of some messages; how many records are to be looked at, and how many chunks wait.

    There is room for two records and `FLAT` chunks for each group.
    """
    slots, downs, ups, waiting = tree.slots, search.downs, search.ups, 0
    for i in range(asked.offsets[0], asked.offsets[len(asked.lon)]):
        prefetch(slots, np.int64(asked.groups[i]))
    for place in range(len(asked.lon)):
        lon, lat, owner = asked.lon[place], asked.lat[place], 2 * place + kind
        if np.isnan(lon) or np.isnan(lat):
            continue
        if kind == _CIRCLES:
            point = point_like(origin, lon, lat)
            for axis in range(len(point)):
                downs[place, axis], ups[place, axis] = rounded_down(point[axis]), rounded_up(point[axis])
        else:
            west, east = meridians(lon, lat, len(origin) == 2)
            downs[place, 0], ups[place, 0] = rounded_down(west), rounded_up(east)
            downs[place, 1], ups[place, 1] = rounded_down(lat), rounded_up(lat)
        for i in range(asked.offsets[place], asked.offsets[place + 1]):
            group = np.int64(asked.groups[i])
            first, last = slots[group], slots[group + 1]
            if first == last:
                continue
            low, high = first // SLOTS, (last - 1) // SLOTS
            if high - low < FLAT:
                for chunk in range(low, high + 1):
                    queued = _wait(tree, chunk, first, last, owner, search, queued)
                continue
            level, shift = 0, FAN_OUT
            while (high >> shift) - (low >> shift) > 1:
                level, shift = level + 1, shift + FAN_OUT
            for record in range(low >> shift, (high >> shift) + 1):
                waiting = _look(tree, size, level, record, owner, group, search, waiting)
    return waiting, queued


@lent
def _tuple_at(array, row, like):
    """A row of as many numbers as a tuple has: two or three."""
    if len(like) == 2:
        return array[row, 0], array[row, 1]
    return array[row, 0], array[row, 1], array[row, 2]


@lent
def _descend(kind, origin, space, tree, asked, search, queued):
    """Add the chunks whose bounds have the places of some messages; how many wait then, or -1 if there is no room.

    Records are looked at breadth first: while one is fetched, others are looked at.
    """
    many, size = asked.offsets[len(asked.lon)] - asked.offsets[0], len(space) * AXIS
    room, looked_at = len(search.queue) - SLOTS, 0
    if 2 * many > room or queued + FLAT * many > room:
        return -1
    waiting, queued = _begin(kind, origin, size, tree, asked, search, queued)
    while looked_at < waiting:
        if queued > room or waiting > room:
            return -1
        record, group = search.records[looked_at], search.groups[looked_at]
        owner, level = record >> _OWNER, (record >> _LEVEL) & ((1 << (_OWNER - _LEVEL)) - 1)
        record &= (1 << _LEVEL) - 1
        first, last = tree.slots[group], tree.slots[group + 1]
        shift = FAN_OUT * level
        at = (tree.levels[level] + record) * size
        down, up = _tuple_at(search.downs, owner >> 1, space), _tuple_at(search.ups, owner >> 1, space)
        found = hits(tree.bounds, at, down, up)
        found &= _slots_within(record, (first // SLOTS) >> shift, (((last - 1) // SLOTS) >> shift) + 1)
        while found:
            child = record * SLOTS + np.int64(trailing_zeros(np.uint64(found)))
            found &= found - 1
            if level == 0:
                queued = _wait(tree, child, first, last, owner, search, queued)
            else:
                waiting = _look(tree, size, level - 1, child, owner, group, search, waiting)
        looked_at += 1
    return queued


@lent
def _order(search, queued, owners):
    """Order the chunks that wait by their owners, and write where those of each end."""
    queue, ends = search.queue, search.ends
    ends[:] = 0
    for i in range(queued):
        ends[(queue[i] >> _OWNER) + 1] += 1
    for owner in range(1, owners):
        ends[owner + 1] += ends[owner]
    for i in range(queued):
        owner = queue[i] >> _OWNER
        search.in_order[ends[owner]] = queue[i] & ((1 << _OWNER) - 1)
        ends[owner] += 1


@lent
def _test(marked, origin, trees, asked, search, out, ends):
    """Append those areas of the chunks that wait for some messages which have their places."""
    (circles, boxes), in_order, i, used = trees, search.in_order, 0, ends[0]
    for place in range(len(asked.lon)):
        x, y = asked.lon[place], asked.lat[place]
        if i < search.ends[2 * place]:
            point = point_like(origin, x, y)
            while i < search.ends[2 * place]:
                chunk, slots = in_order[i] >> SLOTS, in_order[i] & ALL_SLOTS
                slots &= near(marked, circles.words, chunk, point, None)
                used = keep(circles.numbers, chunk, slots, out, used)
                i += 1
        one, other, matters = longitudes(x, y, len(origin) == 2)
        while i < search.ends[2 * place + 1]:
            chunk, slots = in_order[i] >> SLOTS, in_order[i] & ALL_SLOTS
            slots &= boxes_with(boxes.words, chunk, one, other, y, matters)
            used = keep(boxes.numbers, chunk, slots, out, used)
            i += 1
        ends[place + 1] = used


@lent
def _find(marked, origin, trees, visits, begin, search, out):
    """As `find_fixed`, while there is room in the search, too; without, it says that -1 more is needed."""
    (circles, boxes), (lon, lat, offsets, groups), queued = trees, visits, 0
    while begin < len(lon):
        end, most = begin + 1, min(begin + _TOGETHER, len(lon))
        while end < most and offsets[end + 1] - offsets[begin] <= _GROUPS:
            end += 1
        asked, queued = Visits(lon[begin:end], lat[begin:end], offsets[begin : end + 1], groups), 0
        if len(circles.words):
            queued = _descend(_CIRCLES, origin, origin, circles, asked, search, queued)
        if len(boxes.words) and queued >= 0:
            queued = _descend(_BOXES, origin, (0.0, 0.0), boxes, asked, search, queued)
        if queued < 0 or out.ends[begin] + queued * SLOTS > len(out.values):
            return begin, max(queued * SLOTS, -1)
        _order(search, queued, 2 * len(asked.lon))
        _test(marked, origin, trees, asked, search, out.values, out.ends[begin : end + 1])
        begin = end
    return begin, 0


@kernel
def find_fixed(marked, origin, trees, visits, begin, out):
    """Write which areas, circles and boxes, have each message's place, from a message on while there is room.

    Returns the message for which there was none, and how much more that needs.
    """
    room, more, bounds = _ROOM, -1, np.empty((2, _TOGETHER, 3), np.float32)
    ends = np.empty(2 * _TOGETHER + 1, np.int64)
    while more < 0:
        lists = np.empty((4, room), np.int64)
        search = _Search(bounds[0], bounds[1], lists[0], lists[1], lists[2], lists[3], ends)
        begin, more = _find(marked, origin, trees, visits, begin, search, out)
        room *= 2
    return begin, more


@dataclass(frozen=True, slots=True, eq=False)
class FixedAreas:
    """Areas in groups; area `i` is the one that was given at place `i`."""

    circles: AreaTree
    boxes: AreaTree
    plane: bool
    marked: bool  # Whether some are marked circles

    @classmethod
    def of(cls, groups: I64Array, group_count: int, shapes: Shapes, *, plane: bool) -> FixedAreas:
        """Pack areas."""
        circles, boxes = (_packed(shapes, kind, groups, group_count, plane=plane) for kind in (CIRCLE, BOX))
        limits = circles.words.reshape(-1, WORDS)[:, 3 * SLOTS : 4 * SLOTS]
        return cls(circles, boxes, plane, bool(np.signbit(limits).any()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.circles.nbytes + self.boxes.nbytes

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places that some areas have, from all over, and the group of each of these areas; none if there are none."""
        tree = self.circles if len(self.circles.numbers) else self.boxes
        slots = np.linspace(0, max(tree.slots[-1] - 1, 0), count if tree.slots[-1] else 0).astype(np.int64)
        at = slots // SLOTS * WORDS + slots % SLOTS
        one, other, third = (tree.words[at + lane * SLOTS] for lane in range(3))
        if tree is self.boxes:
            other = third
        elif not self.plane:
            one, other = np.degrees(np.arctan2(other, one)), np.degrees(np.arcsin(np.clip(third, -1, 1)))
        return Places(one, other), (np.searchsorted(tree.slots, slots, side="right") - 1).astype(np.uint32)

    def find(self, places: Places, groups: Lists) -> Lists:
        """Areas that have the place of each message, in no order."""
        trees, origin = (self.circles, self.boxes), (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)
        return all_found(partial(find_fixed, self.marked, origin, trees), places, groups)
