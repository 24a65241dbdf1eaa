"""Which clients are near messages' places, or in their areas, while they move.

First, the cells are found that can have some, which depends on nothing that changes, and are fetched. Then a message's
cells are read. If the version of any has changed meanwhile, the message is read again, and after a few times, who moves
clients is asked to pause until it has been read.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, U8Array
from tagmatch.model.kernels.intrinsics import add, fence_acquire, give_way, load_acquire, load_relaxed
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import is_in_box, limit_of, point_like, reach_of, unit_vector
from tagmatch.pipeline.areas.cells import FREE, STRIPES, CellTree
from tagmatch.pipeline.areas.packing import (
    ALL_SLOTS,
    BOX,
    CIRCLE,
    NUMBERS,
    SLOTS,
    WORDS,
    around,
    fetch_chunk,
    keep,
    near,
    prefetch,
)

# Messages whose cells are fetched together, and cells of these, but for one message
_TOGETHER, _FETCHED = 8, 64
# Looks at a cell that is being changed before other threads may run; how often a message is read before it asks for a
# pause; and after how many chunks of a cell it is seen whether it changed
_LOOKS, _TRIES, _LOOK_AGAIN = 64, 4, 32
_CHANGED, _NO_ROOM = -1, -2
_NO_AREA = -1
# Much more than what is rounded
_MORE_OF_MIDDLE, _LEAST = 1e-15, 1e-150

_INFINITE = math.inf


class ClientSearch(NamedTuple):
    """What a search reads, of all in it until it ends; the types of its arrays are `PREPARED`."""

    words: Any  # Arrays of `CellChunks`
    numbers: Any
    following: Any
    versions: Any  # Arrays of `MovingCells`
    lon: Any
    lat: Any
    tree: CellTree
    reaches: Any  # How far from their middles the points of the greatest entries of each space are, on each axis
    group_spaces: Any  # Spaces of group `g` are `group_spaces[g]` to `group_spaces[g + 1]`
    clients: Any  # The client of each entry


_OF_TREE: tuple[Any, ...] = (np.int64, np.float64, np.uint8)
PREPARED = ClientSearch(
    np.float64, np.uint32, np.int32, np.int64, np.float64, np.float64, CellTree(*_OF_TREE),
    np.float64, np.int64, np.uint32,
)  # fmt: skip


class AreasOfMessages(NamedTuple):
    """The area of each message (see `Shapes`); arrays are empty if none has one."""

    kinds: U8Array
    values: F64Array


class _Wanted(NamedTuple):
    """The clients that one message looks for: near its place, within its area, or both."""

    near: bool
    kind: np.int64  # Of its area; `_NO_AREA` without
    point: tuple[float, ...]  # The place
    middle: tuple[float, ...]  # Of a circle
    limit: float
    box: tuple[float, float, float, float]


class _Work(NamedTuple):
    """Cells that some messages look at, the version that each had, and room to find them."""

    queue: I64Array
    seen: I64Array
    stack: I64Array
    asks: I64Array  # How many searches ask for a pause


@lent
def _padded(low, high):
    return low - abs(low) * _MORE_OF_MIDDLE - _LEAST, high + abs(high) * _MORE_OF_MIDDLE + _LEAST


@lent
def _degrees_between(west, east, to):
    """Whether longitudes from west to east come by one, of which all names are tried."""
    for turn in range(-1, 2):
        if west <= to + 360.0 * turn and to + 360.0 * turn <= east:
            return True
    return False


@lent
def _across(low, high, least, most):
    """From the least product of two numbers within these ranges, the second not negative, to the greatest; padded."""
    return (low * most if low < 0 else low * least) - 1e-9, (high * most if high > 0 else high * least) + 1e-9


@lent
def _range_of_box(origin, west, south, east, north):
    """Ranges of the points that are in a box, one for each axis of space."""
    if len(origin) == 2:
        if west > east:
            return (-_INFINITE, _INFINITE), _padded(south, north), (0.0, 0.0)
        return _padded(west, east), _padded(south, north), (0.0, 0.0)
    if west > east:
        east += 360.0
    a, b = math.cos(math.radians(south)), math.cos(math.radians(north))
    least, most = min(a, b), 1.0 if south <= 0 <= north else max(a, b)
    a, b = math.cos(math.radians(west)), math.cos(math.radians(east))
    low = -1.0 if _degrees_between(west, east, 180.0) else min(a, b)
    high = 1.0 if _degrees_between(west, east, 0.0) else max(a, b)
    xs = _across(low, high, least, most)
    a, b = math.sin(math.radians(west)), math.sin(math.radians(east))
    low = -1.0 if _degrees_between(west, east, -90.0) else min(a, b)
    high = 1.0 if _degrees_between(west, east, 90.0) else max(a, b)
    ys = _across(low, high, least, most)
    return xs, ys, (math.sin(math.radians(south)) - 1e-9, math.sin(math.radians(north)) + 1e-9)


@lent
def _range_of_shape(origin, shapes, message):
    """Ranges of the points that can be in a message's area."""
    values = shapes.values
    a, b, c, d = values[message, 0], values[message, 1], values[message, 2], values[message, 3]
    if shapes.kinds[message] != CIRCLE:
        return _range_of_box(origin, a, b, c, d)
    reach = reach_of(limit_of(c, len(origin) == 2), len(origin) == 2)
    if len(origin) == 2:
        return around(a, reach), around(b, reach), (0.0, 0.0)
    x, y, z = unit_vector(a, b)
    return around(x, reach), around(y, reach), around(z, reach)


@lent
def _common(one, other):
    return max(one[0], other[0]), min(one[1], other[1])


@lent
def _fetch_cells(known, space, ranges, lanes, work, queued):
    """Add the cells of a space that have points in some ranges, and have them fetched."""
    (xs, ys, zs), (space_cells, cuts, axes), stack = ranges, known.tree, work.stack
    stack[0, 0], stack[0, 1], depth = space_cells[space], space_cells[space + 1], 1
    while depth > 0:
        depth -= 1
        a, b = stack[depth, 0], stack[depth, 1]
        while b - a > 1:
            middle = (a + b) >> 1
            axis, value = axes[middle], cuts[middle]
            low = xs[0] if axis == 0 else (ys[0] if axis == 1 else zs[0])
            high = xs[1] if axis == 0 else (ys[1] if axis == 1 else zs[1])
            if high < value:
                b = middle
            elif low >= value:
                a = middle
            else:
                stack[depth, 0], stack[depth, 1] = middle, b
                depth += 1
                b = middle
        fetch_chunk(known.words, a, lanes)
        work.queue[queued] = a
        queued += 1
    return queued


@lent
def _most_cells(known, visits, begin, end):
    """How many cells there are in the groups of some messages."""
    most, group_spaces, space_cells = 0, known.group_spaces, known.tree.space_cells
    for i in range(visits.offsets[begin], visits.offsets[end]):
        prefetch(group_spaces, np.int64(visits.groups[i]))
    for i in range(visits.offsets[begin], visits.offsets[end]):
        group = np.int64(visits.groups[i])
        most += int(space_cells[group_spaces[group + 1]]) - int(space_cells[group_spaces[group]])
    return most


@lent
def _fetch_message(origin, known, visits, shapes, message, work, queued):
    """Add the cells that can have what a message looks for, and have them fetched."""
    whole = (-_INFINITE, _INFINITE)
    of_shape = whole, whole, whole
    point, near = point_like(origin, 0.0, 0.0), len(visits.lon) > 0
    if len(shapes.kinds):
        if np.isnan(shapes.values[message, 0]):
            return queued
        of_shape = _range_of_shape(origin, shapes, message)
    if near:
        if np.isnan(visits.lon[message]) or np.isnan(visits.lat[message]):
            return queued
        point = point_like(origin, visits.lon[message], visits.lat[message])
    for i in range(visits.offsets[message], visits.offsets[message + 1]):
        group = np.int64(visits.groups[i])
        for space in range(known.group_spaces[group], known.group_spaces[group + 1]):
            xs, ys, zs = of_shape
            if near:
                reach = known.reaches[space]
                xs, ys = _common(xs, around(point[0], reach)), _common(ys, around(point[1], reach))
                if len(origin) == 3:
                    zs = _common(zs, around(point[len(origin) - 1], reach))
            queued = _fetch_cells(known, space, (xs, ys, zs), len(origin), work, queued)
    return queued


@lent
def _wanted_of(origin, visits, shapes, message):
    """The clients that a message looks for."""
    point = middle = point_like(origin, 0.0, 0.0)
    near, kind, limit, box = len(visits.lon) > 0, np.int64(_NO_AREA), 0.0, (0.0, 0.0, 0.0, 0.0)
    if near:
        point = point_like(origin, visits.lon[message], visits.lat[message])
    if len(shapes.kinds):
        kind, values = np.int64(shapes.kinds[message]), shapes.values
        box = values[message, 0], values[message, 1], values[message, 2], values[message, 3]
        middle, limit = point_like(origin, box[0], box[1]), limit_of(box[2], len(origin) == 2)
    return _Wanted(near, kind, point, middle, limit, box)


@lent
def _in_box(known, chunk, wanted):
    """Which slots of a chunk have clients in a box, as bits."""
    found, first, words = 0, chunk * WORDS, known.words
    west, south, east, north = wanted.box
    for slot in range(SLOTS):
        entry = known.numbers[2 * first + NUMBERS + slot]
        if entry == FREE:
            continue
        if len(wanted.point) == 2:
            has = is_in_box(west, east, south, north, words[first + slot], words[first + SLOTS + slot], True)
        else:
            client = np.int64(known.clients[np.int64(entry)])
            has = is_in_box(west, east, south, north, known.lon[client], known.lat[client], False)
        found |= int(has) << slot
    return found


@lent
def _read(way, known, wanted, work, first, last, out, used):
    """Append the entries, in some cells, that a message looks for; how many numbers there are then.

    Or `_CHANGED`, if cells were changed meanwhile, or `_NO_ROOM`, if there was none.
    """
    versions, queue = known.versions, work.queue
    for i in range(first, last):
        chunk, stripe, looks, chunks_read = queue[i], queue[i] & (STRIPES - 1), 0, 0
        version = load_acquire(versions, stripe)
        while version & 1:
            looks += 1
            if looks % _LOOKS == 0:
                give_way()
            version = load_acquire(versions, stripe)
        work.seen[i] = version
        while chunk >= 0:
            if used + SLOTS > len(out):
                return _NO_ROOM
            slots = ALL_SLOTS
            if wanted.kind == CIRCLE:
                slots &= near(way, known.words, chunk, wanted.middle, wanted.limit)
            elif wanted.kind == BOX:
                slots &= _in_box(known, chunk, wanted)
            if wanted.near:
                slots &= near(way, known.words, chunk, wanted.point, None)
            used = keep(way, known.numbers, chunk, slots, out, used)
            chunk, chunks_read = np.int64(load_relaxed(known.following, chunk)), chunks_read + 1
            if chunks_read % _LOOK_AGAIN == 0:  # chains that change may have no end
                fence_acquire()
                if load_relaxed(versions, stripe) != version:
                    return _CHANGED
    fence_acquire()
    for i in range(first, last):
        if load_relaxed(versions, queue[i] & (STRIPES - 1)) != work.seen[i]:
            return _CHANGED
    return used


@lent
def _read_in_peace(way, known, wanted, work, first, last, out, used):
    """As `_read`, until nothing changes meanwhile."""
    tries = 0
    while True:
        now_used = _read(way, known, wanted, work, first, last, out, used)
        if now_used != _CHANGED:
            break
        tries += 1
        if tries == _TRIES:
            add(work.asks, 0, 1)
        if tries > _TRIES:
            give_way()
    if tries >= _TRIES:
        add(work.asks, 0, -1)
    return now_used


@kernel
def find_clients(way, origin, known, visits, shapes, asks, begin, out):
    """Write which entries each message looks for, and where each message's end, from one on, while there is room.

    Messages have no areas if `shapes` are empty, and no places if their arrays are. Returns the message for which there
    was no room.
    """
    none, stack = np.empty(0, np.int64), np.empty((64, 2), np.int64)
    work, cell_ends = _Work(none, none, stack, asks), np.zeros(_TOGETHER + 1, np.int64)
    found, ends = out
    used, messages = ends[begin], len(ends) - 1
    while begin < messages:
        end = min(begin + _TOGETHER, messages)
        most = _most_cells(known, visits, begin, end)
        if most > len(work.queue):
            work = _Work(np.empty(2 * most, np.int64), np.empty(2 * most, np.int64), stack, asks)
        queued = 0
        for message in range(begin, end):
            if queued > _FETCHED:
                end = message
                break
            queued = _fetch_message(origin, known, visits, shapes, message, work, queued)
            cell_ends[message - begin + 1] = queued
        for message in range(begin, end):
            first, last = cell_ends[message - begin], cell_ends[message - begin + 1]
            wanted = _wanted_of(origin, visits, shapes, message)
            now_used = _read_in_peace(way, known, wanted, work, first, last, found, used)
            if now_used == _NO_ROOM:
                return message
            used = ends[message + 1] = now_used
        begin = end
    return messages
