"""Which clients are near messages' places, or in their areas, while they move.

First, the cells are found that can have some, which depends on nothing that changes, and are fetched. Then a message's
cells are read. If the version of any has changed meanwhile, the message is read again, and after a few times, who moves
clients is asked to pause until it has been read.
"""

from __future__ import annotations

import math

import numpy as np

from tagmatch.model.kernels.atomics import add, fence_acquire, give_way, load_acquire, load_relaxed
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import is_in_box, limit_of, reach_of, unit_vector
from tagmatch.pipeline.areas.cells import FREE, STRIPES
from tagmatch.pipeline.areas.packing import ALL_SLOTS, CIRCLE, NUMBERS, SLOTS, WORDS, fetch_chunk, keep, near, prefetch

# Messages whose cells are fetched together, and cells of these, but for one message
_TOGETHER, _FETCHED = 8, 64
# Looks at a cell that is being changed before other threads may run; how often a message is read before it asks for a
# pause; and after how many chunks of a cell it is seen whether it changed
_LOOKS, _TRIES, _LOOK_AGAIN = 64, 4, 32
_CHANGED, _NO_ROOM = -1, -2
# Much more than what is rounded
_MORE, _MORE_OF_MIDDLE, _LEAST = 1 + 1e-9, 1e-15, 1e-150

_INFINITE = math.inf


@lent
def point_like(origin, lon, lat):
    """A place in as many numbers as the origin has: x and y on the plane, else a unit vector."""
    if len(origin) == 2:
        return lon, lat
    return unit_vector(lon, lat)


@lent
def _padded(low, high):
    return low - abs(low) * _MORE_OF_MIDDLE - _LEAST, high + abs(high) * _MORE_OF_MIDDLE + _LEAST


@lent
def _around(middle, reach):
    return _padded(middle - reach * _MORE, middle + reach * _MORE)


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
def _range_of_shape(origin, kinds, values, message):
    """Ranges of the points that can be in a message's area."""
    a, b, c, d = values[message, 0], values[message, 1], values[message, 2], values[message, 3]
    if kinds[message] != CIRCLE:
        return _range_of_box(origin, a, b, c, d)
    reach = reach_of(limit_of(c, len(origin) == 2), len(origin) == 2)
    if len(origin) == 2:
        return _around(a, reach), _around(b, reach), (0.0, 0.0)
    x, y, z = unit_vector(a, b)
    return _around(x, reach), _around(y, reach), _around(z, reach)


@lent
def _common(one, other):
    return max(one[0], other[0]), min(one[1], other[1])


@lent
def _fetch_cells(space_cells, cuts, axes, words, space, ranges, lanes, stack, queue, queued):
    """Add the cells of a space that have points in some ranges, and have them fetched."""
    xs, ys, zs = ranges
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
        fetch_chunk(words, a, lanes)
        queue[queued] = a
        queued += 1
    return queued


@lent
def _most_cells(space_cells, group_spaces, group_offsets, groups, begin, end):
    """How many cells there are in the groups of some messages."""
    most = 0
    for i in range(group_offsets[begin], group_offsets[end]):
        prefetch(group_spaces, np.int64(groups[i]))
    for i in range(group_offsets[begin], group_offsets[end]):
        group = np.int64(groups[i])
        most += int(space_cells[group_spaces[group + 1]]) - int(space_cells[group_spaces[group]])
    return most


@lent
def _fetch_message(
    origin, tree, reaches, group_spaces, words, kinds, values, lon, lat, group_offsets, groups, message, stack, queue,
    queued,
):  # fmt: skip
    """Add the cells that can have what a message looks for, and have them fetched."""
    space_cells, cuts, axes = tree
    whole = (-_INFINITE, _INFINITE)
    of_shape = whole, whole, whole
    point = point_like(origin, 0.0, 0.0)
    if len(kinds):
        if np.isnan(values[message, 0]):
            return queued
        of_shape = _range_of_shape(origin, kinds, values, message)
    if len(lon):
        if np.isnan(lon[message]) or np.isnan(lat[message]):
            return queued
        point = point_like(origin, lon[message], lat[message])
    for i in range(group_offsets[message], group_offsets[message + 1]):
        group = np.int64(groups[i])
        for space in range(group_spaces[group], group_spaces[group + 1]):
            xs, ys, zs = of_shape
            if len(lon):
                reach = reaches[space]
                xs, ys = _common(xs, _around(point[0], reach)), _common(ys, _around(point[1], reach))
                if len(origin) == 3:
                    zs = _common(zs, _around(point[len(origin) - 1], reach))
            queued = _fetch_cells(
                space_cells, cuts, axes, words, space, (xs, ys, zs), len(origin), stack, queue, queued
            )
    return queued


@lent
def _in_box(origin, words, numbers, chunk, entry_clients, all_lon, all_lat, box):
    """Which slots of a chunk have clients in a box, as bits."""
    found, first = 0, chunk * WORDS
    west, south, east, north = box
    for slot in range(SLOTS):
        entry = numbers[2 * first + NUMBERS + slot]
        if entry == FREE:
            continue
        if len(origin) == 2:
            has = is_in_box(west, east, south, north, words[first + slot], words[first + SLOTS + slot], True)
        else:
            client = np.int64(entry_clients[np.int64(entry)])
            has = is_in_box(west, east, south, north, all_lon[client], all_lat[client], False)
        found |= int(has) << slot
    return found


@lent
def _read(
    way, origin, chunks, positions, entry_clients, kinds, values, lon, lat, message, queue, first, last, seen, out, used
):  # fmt: skip
    """Append the entries, in some cells, that a message looks for; how many numbers there are then.

    Or `_CHANGED`, if cells were changed meanwhile, or `_NO_ROOM`, if there was none.
    """
    words, numbers, following = chunks
    versions, all_lon, all_lat = positions
    point = middle = point_like(origin, 0.0, 0.0)
    limit, box = 0.0, (0.0, 0.0, 0.0, 0.0)
    if len(lon):
        point = point_like(origin, lon[message], lat[message])
    if len(kinds):
        box = values[message, 0], values[message, 1], values[message, 2], values[message, 3]
        middle, limit = point_like(origin, box[0], box[1]), limit_of(box[2], len(origin) == 2)
    for i in range(first, last):
        chunk, stripe, looks, chunks_read = queue[i], queue[i] & (STRIPES - 1), 0, 0
        version = load_acquire(versions, stripe)
        while version & 1:
            looks += 1
            if looks % _LOOKS == 0:
                give_way()
            version = load_acquire(versions, stripe)
        seen[i] = version
        while chunk >= 0:
            if used + SLOTS > len(out):
                return _NO_ROOM
            slots = ALL_SLOTS
            if len(kinds):
                if kinds[message] == CIRCLE:
                    slots &= near(way, words, chunk, middle, limit)
                else:
                    slots &= _in_box(origin, words, numbers, chunk, entry_clients, all_lon, all_lat, box)
            if len(lon):
                slots &= near(way, words, chunk, point, None)
            used = keep(way, numbers, chunk, slots, out, used)
            chunk, chunks_read = np.int64(load_relaxed(following, chunk)), chunks_read + 1
            if chunks_read % _LOOK_AGAIN == 0:  # chains that change may have no end
                fence_acquire()
                if load_relaxed(versions, stripe) != version:
                    return _CHANGED
    fence_acquire()
    for i in range(first, last):
        if load_relaxed(versions, queue[i] & (STRIPES - 1)) != seen[i]:
            return _CHANGED
    return used


@lent
def _read_in_peace(
    way, origin, chunks, positions, entry_clients, kinds, values, lon, lat, message, queue, first, last, seen, out,
    used, asks,
):  # fmt: skip
    """As `_read`, until nothing changes meanwhile."""
    tries = 0
    while True:
        now_used = _read(
            way, origin, chunks, positions, entry_clients, kinds, values, lon, lat, message, queue, first, last, seen,
            out, used,
        )  # fmt: skip
        if now_used != _CHANGED:
            break
        tries += 1
        if tries == _TRIES:
            add(asks, 0, 1)
        if tries > _TRIES:
            give_way()
    if tries >= _TRIES:
        add(asks, 0, -1)
    return now_used


@kernel
def find_clients(
    way, origin, chunks, positions, tree, reaches, group_spaces, entry_clients, kinds, values, lon, lat, group_offsets,
    groups, begin, out, ends, asks,
):  # fmt: skip
    """Write which entries each message looks for, and where each message's end, from one on, while there is room.

    Messages have no areas where `kinds` is empty, and no places where `lon` is. Returns the message for which there was
    no room.
    """
    queue, seen, stack = np.empty(0, np.int64), np.empty(0, np.int64), np.empty((64, 2), np.int64)
    cell_ends = np.zeros(_TOGETHER + 1, np.int64)
    used, messages = ends[begin], len(ends) - 1
    while begin < messages:
        end = min(begin + _TOGETHER, messages)
        most = _most_cells(tree[0], group_spaces, group_offsets, groups, begin, end)
        if most > len(queue):
            queue, seen = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
        queued = 0
        for message in range(begin, end):
            if queued > _FETCHED:
                end = message
                break
            queued = _fetch_message(
                origin, tree, reaches, group_spaces, chunks[0], kinds, values, lon, lat, group_offsets, groups, message,
                stack, queue, queued,
            )  # fmt: skip
            cell_ends[message - begin + 1] = queued
        for message in range(begin, end):
            at = message - begin
            now_used = _read_in_peace(
                way, origin, chunks, positions, entry_clients, kinds, values, lon, lat, message, queue, cell_ends[at],
                cell_ends[at + 1], seen, out, used, asks,
            )  # fmt: skip
            if now_used == _NO_ROOM:
                return message
            used = ends[message + 1] = now_used
        begin = end
    return messages
