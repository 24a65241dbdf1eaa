"""Areas that stay where they are: which have the place of each message, among those of some groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U32Array, frozen, pooled
from tagmatch.model.kernels.jit import inlined, kernel, lent, with_room
from tagmatch.model.kernels.lists import trailing_zeros
from tagmatch.model.kernels.sphere import longitudes, unit_vector
from tagmatch.pipeline.areas.packing import (
    ALL_SLOTS,
    AXIS,
    BOX,
    CIRCLE,
    FAN_OUT,
    SLOTS,
    Packed,
    Places,
    Shapes,
    boxes_with,
    fetch_chunk,
    hits,
    keep,
    near,
    packed_boxes,
    packed_circles,
    prefetch,
    rounded_down,
    rounded_up,
    way,
)

#: Groups of so many chunks are searched without a look at bounds
FLAT = 3
#: Numbers per message for which there is room at first
FIRST_ROOM = 16
# How many messages go down the tree together, which have so many groups at most, but for one message
_TOGETHER, _GROUPS = 8, 256
# Where a word has the place of a message among those that go together, and a level of the tree
_PLACE, _LEVEL = 59, 55


@lent
def _slots_within(chunk, first, last):
    """Those slots of a chunk that a range of slots has, as bits."""
    before, behind = max(first - chunk * SLOTS, 0), min(last - chunk * SLOTS, SLOTS)
    return (1 << behind) - (1 << before)


@lent
def _wait(words, lanes, chunk, first, last, place, queue, queued):
    """Add a chunk to those that will be tested, and have it fetched."""
    fetch_chunk(words, chunk, lanes)
    queue[queued] = (place << _PLACE) | (chunk << SLOTS) | _slots_within(chunk, first, last)
    return queued + 1


@lent
def _look(bounds, levels, size, place, level, record, i, records, owners, waiting):
    """Add a record to those that will be looked at, and have it fetched."""
    first = (levels[level] + record) * size
    for line in range(0, size, 16):
        prefetch(bounds, first + line)
    records[waiting], owners[waiting] = (place << _PLACE) | (level << _LEVEL) | record, i
    return waiting + 1


@lent
def _begin(packed, lanes, groups, group_offsets, begin, downs, ends, origin, records, owners, queue):
    """Begin at the top of the groups of some messages; how many records are to be looked at, and how many chunks wait.

    There is room for two records and `FLAT` chunks for each group.
    """
    slots, words, _, bounds, levels = packed
    size, waiting, queued = len(origin) * AXIS, 0, 0
    for i in range(group_offsets[begin], group_offsets[begin + len(ends) - 1]):
        prefetch(slots, np.int64(groups[i]))
    for place in range(len(ends) - 1):
        if np.isnan(downs[place, 1]):  # a message without a place
            continue
        for i in range(group_offsets[begin + place], group_offsets[begin + place + 1]):
            first, last = slots[np.int64(groups[i])], slots[np.int64(groups[i]) + 1]
            if first == last:
                continue
            low, high = first // SLOTS, (last - 1) // SLOTS
            if high - low < FLAT:
                for chunk in range(low, high + 1):
                    queued = _wait(words, lanes, chunk, first, last, place, queue, queued)
                continue
            level, shift = 0, FAN_OUT
            while (high >> shift) - (low >> shift) > 1:
                level, shift = level + 1, shift + FAN_OUT
            for record in range(low >> shift, (high >> shift) + 1):
                waiting = _look(bounds, levels, size, place, level, record, i, records, owners, waiting)
    return waiting, queued


@lent
def _descend(way, packed, lanes, groups, downs, ups, origin, records, owners, queue, looked_at, waiting, queued):
    """Go on, as long as there is room, to the chunks whose bounds have a message's place.

    Records are looked at breadth first: while one is fetched, others are looked at.
    """
    slots, words, _, bounds, levels = packed
    size = len(origin) * AXIS
    while looked_at < waiting and queued + SLOTS <= len(queue) and waiting + SLOTS <= len(records):
        record, owner = records[looked_at], owners[looked_at]
        place, level = record >> _PLACE, (record >> _LEVEL) & ((1 << (_PLACE - _LEVEL)) - 1)
        record &= (1 << _LEVEL) - 1
        first, last = slots[np.int64(groups[owner])], slots[np.int64(groups[owner]) + 1]
        shift = FAN_OUT * level
        at = (levels[level] + record) * size
        found = hits(way, bounds, at, _tuple_at(downs, place, origin), _tuple_at(ups, place, origin))
        found &= _slots_within(record, (first // SLOTS) >> shift, (((last - 1) // SLOTS) >> shift) + 1)
        while found:
            child = record * SLOTS + np.int64(trailing_zeros(np.uint64(found)))
            found &= found - 1
            if level == 0:
                queued = _wait(words, lanes, child, first, last, place, queue, queued)
            else:
                waiting = _look(bounds, levels, size, place, level - 1, child, owner, records, owners, waiting)
        looked_at += 1
    return looked_at, waiting, queued


@lent
def _order(queue, queued, ends, in_order):
    """Order the chunks that wait by their messages' places, and write where each one's end."""
    ends[:] = 0
    for i in range(queued):
        ends[(queue[i] >> _PLACE) + 1] += 1
    for place in range(1, len(ends) - 1):
        ends[place + 1] += ends[place]
    for i in range(queued):
        place = queue[i] >> _PLACE
        in_order[ends[place]] = queue[i] & ((1 << _PLACE) - 1)
        ends[place] += 1


@inlined
def _candidates(
    way, packed, lanes, groups, group_offsets, begin, downs, ups, ends, origin, records, owners, queue, in_order
):  # fmt: skip
    """Chunks whose bounds have the places of some messages, which go down the tree together; and where each one's end.

    Arrays grow where nothing is done often, as all that may replace an array counts references.
    """
    many = group_offsets[begin + len(ends) - 1] - group_offsets[begin]
    records, owners = with_room(records, 0, 2 * many + SLOTS), with_room(owners, 0, 2 * many + SLOTS)
    queue = with_room(queue, 0, FLAT * many + SLOTS)
    waiting, queued = _begin(packed, lanes, groups, group_offsets, begin, downs, ends, origin, records, owners, queue)
    looked_at = 0
    while True:
        looked_at, waiting, queued = _descend(
            way, packed, lanes, groups, downs, ups, origin, records, owners, queue, looked_at, waiting, queued
        )
        if looked_at == waiting:
            break
        records, owners = with_room(records, waiting, SLOTS), with_room(owners, waiting, SLOTS)
        queue = with_room(queue, queued, SLOTS)
    in_order = with_room(in_order, 0, queued)
    _order(queue, queued, ends, in_order)
    return records, owners, queue, in_order, queued


@lent
def _tuple_at(array, row, like):
    """A row of as many numbers as a tuple has: two or three."""
    if len(like) == 2:
        return array[row, 0], array[row, 1]
    return array[row, 0], array[row, 1], array[row, 2]


@lent
def _write(array, row, numbers):
    for column in range(len(numbers)):
        array[row, column] = numbers[column]


@lent
def _rounded(point):
    """The float32 numbers next to those of a point: below, and above."""
    if len(point) == 2:
        return (rounded_down(point[0]), rounded_down(point[1])), (rounded_up(point[0]), rounded_up(point[1]))
    x, y, z = point
    return (rounded_down(x), rounded_down(y), rounded_down(z)), (rounded_up(x), rounded_up(y), rounded_up(z))


@lent
def meridians(lon, lat, plane):
    """From where to where boxes reach that may have a place: anywhere, for poles and the anti-meridian."""
    one, other, matters = longitudes(lon, lat, plane)
    if one != other or not matters:
        return -np.inf, np.inf
    return lon, lon


@lent
def _bounds_of_place(lon, lat, plane):
    """Those that boxes meet which may have a place."""
    west, east = meridians(lon, lat, plane)
    return (rounded_down(west), rounded_down(lat)), (rounded_up(east), rounded_up(lat))


@lent
def _point(origin, lon, lat):
    """As `point_of`, in as many numbers as the origin has: two on the plane."""
    if len(origin) == 2:
        return lon, lat
    return unit_vector(lon, lat)


@lent
def _write_bounds(origin, of_circles, lon, lat, begin, count, downs, ups):
    """Write which bounds may have the places of some messages."""
    for i in range(count):
        if np.isnan(lon[begin + i]) or np.isnan(lat[begin + i]):
            downs[i, 1] = np.nan
        elif of_circles:
            down, up = _rounded(_point(origin, lon[begin + i], lat[begin + i]))
            _write(downs, i, down)
            _write(ups, i, up)
        else:
            box_down, box_up = _bounds_of_place(lon[begin + i], lat[begin + i], len(origin) == 2)
            _write(downs, i, box_down)
            _write(ups, i, box_up)


@lent
def _test(way, origin, circles, boxes, lon, lat, begin, of_circles, circle_ends, of_boxes, box_ends, out, used, ends):
    """Append those areas of the chunks that wait for some messages which have their places."""
    circle, box = 0, 0
    for i in range(len(circle_ends) - 1):
        x, y = lon[begin + i], lat[begin + i]
        if circle < circle_ends[i]:
            point = _point(origin, x, y)
            while circle < circle_ends[i]:
                chunk, slots = of_circles[circle] >> SLOTS, of_circles[circle] & ALL_SLOTS
                slots &= near(way, circles[1], chunk, point, None)
                used = keep(way, circles[2], chunk, slots, out, used)
                circle += 1
        one, other, matters = longitudes(x, y, len(origin) == 2)
        while box < box_ends[i]:
            chunk, slots = of_boxes[box] >> SLOTS, of_boxes[box] & ALL_SLOTS
            slots &= boxes_with(way, boxes[1], chunk, one, other, y, matters)
            used = keep(way, boxes[2], chunk, slots, out, used)
            box += 1
        ends[begin + i + 1] = used
    return used


@kernel
def find_fixed(way, origin, circles, boxes, lon, lat, group_offsets, groups, begin, out, ends):
    """Write which areas have each message's place, and where each message's end, from a message on while there is room.

    Returns the message for which there was none, and how much more that needs.
    """
    records, owners, queue = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    of_circles, of_boxes = np.empty(0, np.int64), np.empty(0, np.int64)
    all_circle_ends, all_box_ends = np.zeros(_TOGETHER + 1, np.int64), np.zeros(_TOGETHER + 1, np.int64)
    downs, ups = np.empty((_TOGETHER, 3), np.float32), np.empty((_TOGETHER, 3), np.float32)
    used, messages = ends[begin], len(lon)
    while begin < messages:
        count = 1
        while (
            count < min(_TOGETHER, messages - begin)
            and group_offsets[begin + count + 1] - group_offsets[begin] <= _GROUPS
        ):
            count += 1
        circle_ends, box_ends = all_circle_ends[: count + 1], all_box_ends[: count + 1]
        wanted = 0
        if len(circles[1]):
            _write_bounds(origin, True, lon, lat, begin, count, downs, ups)
            records, owners, queue, of_circles, queued = _candidates(
                way, circles, len(origin), groups, group_offsets, begin, downs, ups, circle_ends, origin, records,
                owners, queue, of_circles,
            )  # fmt: skip
            wanted += queued * SLOTS
        if len(boxes[1]):
            _write_bounds(origin, False, lon, lat, begin, count, downs, ups)
            records, owners, queue, of_boxes, queued = _candidates(
                way, boxes, 3, groups, group_offsets, begin, downs, ups, box_ends, (0.0, 0.0), records, owners, queue,
                of_boxes,
            )  # fmt: skip
            wanted += queued * SLOTS
        if used + wanted > len(out):
            return begin, wanted
        if way is None or way:
            used = _test(
                way, origin, circles, boxes, lon, lat, begin, of_circles, circle_ends, of_boxes, box_ends, out, used,
                ends,
            )  # fmt: skip
        else:  # a test that asks nothing more, compiled for itself
            used = _test(
                False, origin, circles, boxes, lon, lat, begin, of_circles, circle_ends, of_boxes, box_ends, out, used,
                ends,
            )  # fmt: skip
        begin += count
    return messages, 0


def longer(out: U32Array, used: int, more: int, done: float) -> U32Array:
    """Return numbers found so far with room for more, and for what the rest of the messages will probably have."""
    expected = min(1.2 * used / done if done else 0, 16 * len(out))
    copy = pooled(max(int(expected), 2 * len(out), used + more), np.uint32)
    copy[:used] = out[:used]
    return copy


@dataclass(frozen=True, slots=True, eq=False)
class FixedAreas:
    """Areas in groups; area `i` is the one that was given at place `i`."""

    circles: Packed
    boxes: Packed
    plane: bool

    @classmethod
    def of(cls, groups: I64Array, group_count: int, shapes: Shapes, *, plane: bool) -> FixedAreas:
        """Pack areas."""
        parts = [np.flatnonzero(shapes.kinds == kind) for kind in (CIRCLE, BOX)]
        (circles, boxes) = ((groups[at], group_count, at.astype(np.uint32), shapes.values[at]) for at in parts)
        return cls(packed_circles(*circles, plane=plane), packed_boxes(*boxes), plane)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.circles.nbytes + self.boxes.nbytes

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places that some areas have, from all over, and the group of each of these areas; none if there are none."""
        packed = self.circles if len(self.circles.numbers) else self.boxes
        slots = packed.some_slots(count)
        one, other, *_ = lanes = packed.lanes_of(slots)
        if packed is self.circles and not self.plane:
            one, other = np.degrees(np.arctan2(lanes[1], lanes[0])), np.degrees(np.arcsin(np.clip(lanes[2], -1, 1)))
        elif packed is self.boxes:
            other = lanes[2]
        return Places(one, other), packed.groups_of(slots)

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that have the place of each message, in no order."""
        messages, done = len(places), 0
        offsets = frozen(groups.offsets.astype(np.int64, copy=False))
        origin = (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)
        ends, out = np.zeros(messages + 1, np.int64), pooled(FIRST_ROOM * (messages + SLOTS), np.uint32)
        while messages:
            done, more = find_fixed(
                way(marked=self.circles.marked), origin, self.circles.arrays, self.boxes.arrays, places.lon,
                places.lat, offsets, groups.values, done, out, ends,
            )  # fmt: skip
            if done == messages:
                break
            out = longer(out, int(ends[done]), int(more), done / messages)
        return Lists(ends, out[: ends[-1]])
