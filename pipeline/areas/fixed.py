"""Areas that stay where they are: which have the place of each message, among those of some groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, Lists, U32Array
from tagmatch.model.kernels.jit import inlined, kernel, lent, with_room
from tagmatch.model.kernels.lists import trailing_zeros
from tagmatch.model.kernels.sphere import longitudes, point_like
from tagmatch.pipeline.areas.packing import (
    ALL_SLOTS,
    AXIS,
    BOX,
    CIRCLE,
    FAN_OUT,
    SLOTS,
    WORDS,
    AreaTree,
    Places,
    Shapes,
    boxes_with,
    fetch_chunk,
    found_in,
    hits,
    keep,
    longer,
    near,
    packed_boxes,
    packed_circles,
    prefetch,
    room_for,
    rounded_down,
    rounded_up,
    visits_of,
    way,
)

#: Groups of so many chunks are searched without a look at bounds
FLAT = 3
# How many messages go down the tree together, which have so many groups at most, but for one message
_TOGETHER, _GROUPS = 8, 256
# Where a word has the place of a message among those that go together, and a level of the tree
_PLACE, _LEVEL = 59, 55


@lent
def _slots_within(chunk, first, last):
    """Those slots of a chunk that a range of slots has, as bits."""
    before, behind = max(first - chunk * SLOTS, 0), min(last - chunk * SLOTS, SLOTS)
    return (1 << behind) - (1 << before)


class _Wanted(NamedTuple):
    """What bounds must meet, for each of the messages that go down a tree together; NaN for one without a place."""

    lanes: int  # Of a chunk, what a test reads
    origin: tuple[float, ...]  # As many zeros as bounds have axes
    downs: npt.NDArray[np.float32]
    ups: npt.NDArray[np.float32]


class _Search(NamedTuple):
    """What is still to be looked at; arrays grow where nothing is done often, as to replace one counts references."""

    records: I64Array  # Records of the tree, and for which of the messages' groups
    owners: I64Array
    queue: I64Array  # Chunks that wait to be tested
    in_order: I64Array  # The same by message, and where each message's end
    ends: I64Array


@lent
def _wait(words, lanes, chunk, first, last, place, queue, queued):
    """Add a chunk to those that will be tested, and have it fetched."""
    fetch_chunk(words, chunk, lanes)
    queue[queued] = (place << _PLACE) | (chunk << SLOTS) | _slots_within(chunk, first, last)
    return queued + 1


@lent
def _look(tree, size, place, level, record, owner, search, waiting):
    """Add a record to those that will be looked at, and have it fetched."""
    first = (tree.levels[level] + record) * size
    for line in range(0, size, 16):
        prefetch(tree.bounds, first + line)
    search.records[waiting], search.owners[waiting] = (place << _PLACE) | (level << _LEVEL) | record, owner
    return waiting + 1


@lent
def _begin(tree, wanted, visits, begin, count, search):
    """Begin at the top of the groups of some messages; how many records are to be looked at, and how many chunks wait.

    There is room for two records and `FLAT` chunks for each group.
    """
    slots, size, waiting, queued = tree.slots, len(wanted.origin) * AXIS, 0, 0
    for i in range(visits.offsets[begin], visits.offsets[begin + count]):
        prefetch(slots, np.int64(visits.groups[i]))
    for place in range(count):
        if np.isnan(wanted.downs[place, 1]):  # a message without a place
            continue
        for i in range(visits.offsets[begin + place], visits.offsets[begin + place + 1]):
            group = np.int64(visits.groups[i])
            first, last = slots[group], slots[group + 1]
            if first == last:
                continue
            low, high = first // SLOTS, (last - 1) // SLOTS
            if high - low < FLAT:
                for chunk in range(low, high + 1):
                    queued = _wait(tree.words, wanted.lanes, chunk, first, last, place, search.queue, queued)
                continue
            level, shift = 0, FAN_OUT
            while (high >> shift) - (low >> shift) > 1:
                level, shift = level + 1, shift + FAN_OUT
            for record in range(low >> shift, (high >> shift) + 1):
                waiting = _look(tree, size, place, level, record, i, search, waiting)
    return waiting, queued


@lent
def _descend(way, tree, wanted, groups, search, looked_at, waiting, queued):
    """Go on, as long as there is room, to the chunks whose bounds have a message's place.

    Records are looked at breadth first: while one is fetched, others are looked at.
    """
    origin, records, queue = wanted.origin, search.records, search.queue
    size = len(origin) * AXIS
    while looked_at < waiting and queued + SLOTS <= len(queue) and waiting + SLOTS <= len(records):
        record, owner = records[looked_at], search.owners[looked_at]
        place, level = record >> _PLACE, (record >> _LEVEL) & ((1 << (_PLACE - _LEVEL)) - 1)
        record &= (1 << _LEVEL) - 1
        group = np.int64(groups[owner])
        first, last = tree.slots[group], tree.slots[group + 1]
        shift = FAN_OUT * level
        at = (tree.levels[level] + record) * size
        found = hits(way, tree.bounds, at, _tuple_at(wanted.downs, place, origin), _tuple_at(wanted.ups, place, origin))
        found &= _slots_within(record, (first // SLOTS) >> shift, (((last - 1) // SLOTS) >> shift) + 1)
        while found:
            child = record * SLOTS + np.int64(trailing_zeros(np.uint64(found)))
            found &= found - 1
            if level == 0:
                queued = _wait(tree.words, wanted.lanes, child, first, last, place, queue, queued)
            else:
                waiting = _look(tree, size, place, level - 1, child, owner, search, waiting)
        looked_at += 1
    return looked_at, waiting, queued


@lent
def _order(search, queued, count):
    """Order the chunks that wait by their messages' places, and write where each one's end."""
    queue, ends = search.queue, search.ends
    ends[:] = 0
    for i in range(queued):
        ends[(queue[i] >> _PLACE) + 1] += 1
    for place in range(1, count):
        ends[place + 1] += ends[place]
    for i in range(queued):
        place = queue[i] >> _PLACE
        search.in_order[ends[place]] = queue[i] & ((1 << _PLACE) - 1)
        ends[place] += 1


@inlined
def _candidates(way, tree, wanted, visits, begin, count, search):
    """Chunks whose bounds have the places of some messages, which go down the tree together, in a search; how many."""
    many = visits.offsets[begin + count] - visits.offsets[begin]
    records, owners = with_room(search.records, 0, 2 * many + SLOTS), with_room(search.owners, 0, 2 * many + SLOTS)
    search = _Search(records, owners, with_room(search.queue, 0, FLAT * many + SLOTS), search.in_order, search.ends)
    waiting, queued = _begin(tree, wanted, visits, begin, count, search)
    looked_at = 0
    while True:
        looked_at, waiting, queued = _descend(way, tree, wanted, visits.groups, search, looked_at, waiting, queued)
        if looked_at == waiting:
            break
        records, owners = with_room(search.records, waiting, SLOTS), with_room(search.owners, waiting, SLOTS)
        search = _Search(records, owners, with_room(search.queue, queued, SLOTS), search.in_order, search.ends)
    in_order = with_room(search.in_order, 0, queued)
    search = _Search(search.records, search.owners, search.queue, in_order, search.ends)
    _order(search, queued, count)
    return search, queued


@lent
def _tuple_at(array, row, like):
    """A row of as many numbers as a tuple has: two or three."""
    if len(like) == 2:
        return array[row, 0], array[row, 1]
    return array[row, 0], array[row, 1], array[row, 2]


@lent
def meridians(lon, lat, plane):
    """From where to where boxes reach that may have a place: anywhere, for poles and the anti-meridian."""
    one, other, matters = longitudes(lon, lat, plane)
    if one != other or not matters:
        return -np.inf, np.inf
    return lon, lon


@lent
def _write_bounds(origin, of_circles, visits, begin, count, wanted):
    """Write which bounds may have the places of some messages, in the next float32 numbers."""
    downs, ups = wanted.downs, wanted.ups
    for i in range(count):
        lon, lat = visits.lon[begin + i], visits.lat[begin + i]
        if np.isnan(lon) or np.isnan(lat):
            downs[i, 1] = np.nan
        elif of_circles:
            point = point_like(origin, lon, lat)
            for axis in range(len(point)):
                downs[i, axis], ups[i, axis] = rounded_down(point[axis]), rounded_up(point[axis])
        else:
            west, east = meridians(lon, lat, len(origin) == 2)
            downs[i, 0], ups[i, 0] = rounded_down(west), rounded_up(east)
            downs[i, 1], ups[i, 1] = rounded_down(lat), rounded_up(lat)


@lent
def _test(way, origin, trees, visits, begin, count, searches, out):
    """Append those areas of the chunks that wait for some messages which have their places."""
    circles, boxes = trees
    of_circles, of_boxes = searches
    circle, box, used = 0, 0, out.ends[begin]
    for i in range(count):
        x, y = visits.lon[begin + i], visits.lat[begin + i]
        if circle < of_circles.ends[i]:
            point = point_like(origin, x, y)
            while circle < of_circles.ends[i]:
                chunk, slots = of_circles.in_order[circle] >> SLOTS, of_circles.in_order[circle] & ALL_SLOTS
                slots &= near(way, circles.words, chunk, point, None)
                used = keep(way, circles.numbers, chunk, slots, out.values, used)
                circle += 1
        one, other, matters = longitudes(x, y, len(origin) == 2)
        while box < of_boxes.ends[i]:
            chunk, slots = of_boxes.in_order[box] >> SLOTS, of_boxes.in_order[box] & ALL_SLOTS
            slots &= boxes_with(way, boxes.words, chunk, one, other, y, matters)
            used = keep(way, boxes.numbers, chunk, slots, out.values, used)
            box += 1
        out.ends[begin + i + 1] = used


@inlined
def _new_search():
    none = np.empty(0, np.int64)
    return _Search(none, none, none, none, np.zeros(_TOGETHER + 1, np.int64))


@kernel
def find_fixed(way, origin, trees, visits, begin, out):
    """Write which areas, circles and boxes, have each message's place, from a message on while there is room.

    Returns the message for which there was none, and how much more that needs.
    """
    circles, boxes = trees
    of_circles, of_boxes = _new_search(), _new_search()
    downs, ups = np.empty((_TOGETHER, 3), np.float32), np.empty((_TOGETHER, 3), np.float32)
    points, places = _Wanted(len(origin), origin, downs, ups), _Wanted(3, (0.0, 0.0), downs, ups)
    offsets, (found, ends), messages = visits.offsets, out, len(visits.lon)
    while begin < messages:
        count, most = 1, min(_TOGETHER, messages - begin)
        while count < most and offsets[begin + count + 1] - offsets[begin] <= _GROUPS:
            count += 1
        wanted = 0
        if len(circles.words):
            _write_bounds(origin, True, visits, begin, count, points)
            of_circles, queued = _candidates(way, circles, points, visits, begin, count, of_circles)
            wanted += queued * SLOTS
        if len(boxes.words):
            _write_bounds(origin, False, visits, begin, count, places)
            of_boxes, queued = _candidates(way, boxes, places, visits, begin, count, of_boxes)
            wanted += queued * SLOTS
        if ends[begin] + wanted > len(found):
            return begin, wanted
        searches = of_circles, of_boxes
        if way is None or way:
            _test(way, origin, trees, visits, begin, count, searches, out)
        else:  # a test that asks nothing more, compiled for itself
            _test(False, origin, trees, visits, begin, count, searches, out)
        begin += count
    return messages, 0


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
        parts = [np.flatnonzero(shapes.kinds == kind) for kind in (CIRCLE, BOX)]
        (circles, boxes) = ((groups[at], group_count, at.astype(np.uint32), shapes.values[at]) for at in parts)
        tree = packed_circles(*circles, plane=plane)
        limits = tree.words.reshape(-1, WORDS)[:, 3 * SLOTS : 4 * SLOTS]
        return cls(tree, packed_boxes(*boxes), plane, bool(np.signbit(limits).any()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.circles.nbytes + self.boxes.nbytes

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places that some areas have, from all over, and the group of each of these areas; none if there are none."""
        tree = self.circles if len(self.circles.numbers) else self.boxes
        slots = tree.some_slots(count)
        one, other, *_ = lanes = tree.lanes_of(slots)
        if tree is self.circles and not self.plane:
            one, other = np.degrees(np.arctan2(lanes[1], lanes[0])), np.degrees(np.arcsin(np.clip(lanes[2], -1, 1)))
        elif tree is self.boxes:
            other = lanes[2]
        return Places(one, other), tree.groups_of(slots)

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that have the place of each message, in no order."""
        messages, done = len(places), 0
        visits = visits_of(places, groups)
        origin = (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)
        out = room_for(messages)
        while messages:
            done, more = find_fixed(way(marked=self.marked), origin, (self.circles, self.boxes), visits, done, out)
            if done == messages:
                break
            out = longer(out, done, int(more))
        return found_in(out)
