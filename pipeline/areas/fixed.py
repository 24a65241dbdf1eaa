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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Lists, U8Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel, lent, with_room
from tagmatch.model.kernels.lists import leading_zeros, trailing_zeros
from tagmatch.model.kernels.sphere import (
    BOX,
    CIRCLE,
    is_in_area,
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
    all_frozen,
    around,
    boxes_with,
    chunks_of,
    fetch_chunk,
    found_in,
    hits,
    keep,
    longer,
    near,
    prefetch,
    room_for,
    select,
    visits_of,
    widest_axis,
)

#: float32 words of a record for each axis: 16 lows and 16 highs
AXIS = 32
#: Of how many times this are a record's children, as a power of two
FAN_OUT = 4
#: Groups of so many chunks are searched without a look at bounds
FLAT = 3
# How many messages go down the tree together, which have so many groups at most, but for one message
_TOGETHER, _GROUPS = 8, 256
# Where a word has the place of a message among those that go together, and a level of the tree
_PLACE, _LEVEL = 59, 55

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


class _Wanted(NamedTuple):
    """What bounds must meet, for each of the messages that go down a tree together; NaN for one without a place."""

    lanes: int  # Of a chunk, what a test reads
    origin: tuple[float, ...]  # As many zeros as bounds have axes
    downs: npt.NDArray[np.float32]
    ups: npt.NDArray[np.float32]


class _Search(NamedTuple):
    """What is still to be looked at."""

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
def _descend(tree, wanted, groups, search, looked_at, waiting, queued):
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
        found = hits(tree.bounds, at, _tuple_at(wanted.downs, place, origin), _tuple_at(wanted.ups, place, origin))
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
def _with_more(search, waiting, queued, more_records, more_chunks):
    """The same with room for more. It is done rarely, as to replace an array, or to put it into a tuple, takes time."""
    records, owners = with_room(search.records, waiting, more_records), with_room(search.owners, waiting, more_records)
    queue = with_room(search.queue, queued, more_chunks)
    return _Search(records, owners, queue, np.empty(len(queue), np.int64), search.ends)


@inlined
def _candidates(tree, wanted, visits, begin, count, search):
    """Chunks whose bounds have the places of some messages, which go down the tree together, in a search."""
    many = visits.offsets[begin + count] - visits.offsets[begin]
    if 2 * many + SLOTS > len(search.records) or FLAT * many + SLOTS > len(search.queue):
        search = _with_more(search, 0, 0, 2 * many + SLOTS, FLAT * many + SLOTS)
    waiting, queued = _begin(tree, wanted, visits, begin, count, search)
    looked_at = 0
    while True:
        looked_at, waiting, queued = _descend(tree, wanted, visits.groups, search, looked_at, waiting, queued)
        if looked_at == waiting:
            break
        search = _with_more(search, waiting, queued, SLOTS, SLOTS)
    _order(search, queued, count)
    return search


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
def _test(marked, origin, trees, visits, part, of_circles, of_boxes, out):
    """Append those areas of the chunks that wait for a part of the messages which have their places."""
    (circles, boxes), (begin, count) = trees, part
    circle, box, used = 0, 0, out.ends[begin]
    for i in range(count):
        x, y = visits.lon[begin + i], visits.lat[begin + i]
        if circle < of_circles.ends[i]:
            point = point_like(origin, x, y)
            while circle < of_circles.ends[i]:
                chunk, slots = of_circles.in_order[circle] >> SLOTS, of_circles.in_order[circle] & ALL_SLOTS
                slots &= near(marked, circles.words, chunk, point, None)
                used = keep(circles.numbers, chunk, slots, out.values, used)
                circle += 1
        one, other, matters = longitudes(x, y, len(origin) == 2)
        while box < of_boxes.ends[i]:
            chunk, slots = of_boxes.in_order[box] >> SLOTS, of_boxes.in_order[box] & ALL_SLOTS
            slots &= boxes_with(boxes.words, chunk, one, other, y, matters)
            used = keep(boxes.numbers, chunk, slots, out.values, used)
            box += 1
        out.ends[begin + i + 1] = used


@inlined
def _new_search():
    none = np.empty(0, np.int64)
    return _Search(none, none, none, none, np.zeros(_TOGETHER + 1, np.int64))


@kernel
def find_fixed(marked, origin, trees, visits, begin, out):
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
            of_circles = _candidates(circles, points, visits, begin, count, of_circles)
            wanted += of_circles.ends[count - 1] * SLOTS
        if len(boxes.words):
            _write_bounds(origin, False, visits, begin, count, places)
            of_boxes = _candidates(boxes, places, visits, begin, count, of_boxes)
            wanted += of_boxes.ends[count - 1] * SLOTS
        if ends[begin] + wanted > len(found):
            return begin, wanted
        if marked:
            _test(True, origin, trees, visits, (begin, count), of_circles, of_boxes, out)
        else:  # a test that asks nothing more, compiled for itself
            _test(False, origin, trees, visits, (begin, count), of_circles, of_boxes, out)
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

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that have the place of each message, in no order."""
        messages, done = len(groups), 0
        visits = visits_of(places, groups)
        origin = (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)
        out = room_for(messages)
        while messages:
            done, more = find_fixed(self.marked, origin, (self.circles, self.boxes), visits, done, out)
            if done == messages:
                break
            out = longer(out, done, int(more))
        return found_in(out)


# -- several areas of a set --------------------------------------------------------------------------------------------


class ShapeTests(NamedTuple):
    """What is left to be tested of sets that have several areas, or one that must not have the message's place."""

    of_rows: I64Array  # Of each row of the segment, its number here; -1 for most
    offsets: I64Array  # Row number `i` has the tests from `offsets[i]` to `offsets[i + 1]`
    kinds: U8Array
    values: F64Array  # [n, 4]; both (see `Shapes`)
    negated: BoolArray


@kernel
def spread_rows(offsets, rows, visits, ends, most):
    """The rows of all groups of each message, unless there are more than `most`, and how many; where each's end."""
    count, groups = 0, visits.groups
    for i in range(visits.offsets[0], visits.offsets[len(ends) - 1]):
        count += offsets[np.int64(groups[i]) + 1] - offsets[np.int64(groups[i])]
    found, used = np.empty(count if count <= most else 0, np.uint32), 0
    for message in range(len(ends) - 1 if count <= most else 0):
        for i in range(visits.offsets[message], visits.offsets[message + 1]):
            for place in range(offsets[np.int64(groups[i])], offsets[np.int64(groups[i]) + 1]):
                found[used] = rows[place]
                used += 1
        ends[message + 1] = used
    return found, count


@kernel
def keep_tested(found, tests, lon, lat, plane, out):
    """Write what was found of each message for which all tests of its row hold; how many."""
    (offsets, values, rows), (kept, ends), used = found, out, 0
    of_rows, test_offsets, kinds, shapes, negated = tests
    for message in range(len(ends) - 1):
        somewhere = not np.isnan(lon[message])
        for i in range(offsets[message], offsets[message + 1]):
            number, holds = of_rows[np.int64(rows[i])], True
            if number >= 0:
                for test in range(test_offsets[number], test_offsets[number + 1]):
                    has = somewhere and is_in_area(kinds[test], shapes[test], lon[message], lat[message], plane)
                    holds &= has != negated[test]
            if holds:
                kept[used] = values[i]
                used += 1
        ends[message + 1] = used
    return used
