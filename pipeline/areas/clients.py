"""Clients that move: which are near a message's place, or in its area, while other threads move them.

First, the cells are found that can have some, which depends on nothing that changes, and are fetched. Then a message's
cells are read. If the version of any has changed during that, the message is read again, and after a few times, the
mover of clients is asked to pause until it has been read.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array, frozen
from tagmatch.model.kernels.intrinsics import add, fence_acquire, give_way, load_acquire, load_relaxed, prefetch
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import (
    BOX,
    CIRCLE,
    is_in_box,
    limit_of,
    point_like,
    points,
    reach_of,
)
from tagmatch.pipeline.areas.cells import FREE, STRIPES, Cells, Mover, Moves, entries_of, move_clients
from tagmatch.pipeline.areas.chunks import (
    ALL_SLOTS,
    NUMBERS,
    SLOTS,
    WORDS,
    Hits,
    Places,
    Shapes,
    Visits,
    all_found,
    all_frozen,
    around,
    fetch_chunk,
    keep,
    near,
)

# Messages whose cells are fetched together, and cells of these, except for one message
_TOGETHER, _FETCHED = 8, 64
# Looks at a cell that is being changed before other threads may run; how often a message is read before it asks for a
# pause; and after how many chunks of a cell it is seen whether it changed
_LOOKS, _TRIES, _LOOK_AGAIN = 64, 4, 32
_CHANGED, _NO_ROOM = -1, -2
_NO_AREA = -1
# Much more than rounding changes
_MORE_OF_MIDDLE, _LEAST, _MORE_OF_COSINES = 1e-15, 1e-150, 1e-9


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
def _cosines(first, last):
    """The least and the greatest cosine of the angles from one to another, in degrees, and all names are tried."""
    one, other = math.cos(math.radians(first)), math.cos(math.radians(last))
    low = -1.0 if 360.0 * math.ceil((first - 180.0) / 360.0) + 180.0 <= last else min(one, other)
    high = 1.0 if 360.0 * math.ceil(first / 360.0) <= last else max(one, other)
    return low - _MORE_OF_COSINES, high + _MORE_OF_COSINES


@lent
def _across(cosines, across):
    """From the least product of two numbers within these ranges, the second hardly negative, to the greatest."""
    (low, high), (least, most) = cosines, across
    return low * most if low < 0 else low * least, high * most if high > 0 else high * least


@lent
def _range_of_box(origin, west, south, east, north):
    """Ranges of the points that are in a box, one for each axis of space."""
    if len(origin) == 2:
        if west > east:
            return (-math.inf, math.inf), _padded(south, north), (0.0, 0.0)
        return _padded(west, east), _padded(south, north), (0.0, 0.0)
    if west > east:
        east += 360.0
    across = _cosines(south, north)
    xs, ys = _across(_cosines(west, east), across), _across(_cosines(west - 90.0, east - 90.0), across)
    return xs, ys, _cosines(south - 90.0, north - 90.0)


@lent
def _range_of_shape(origin, wanted):
    """Ranges of the points that can be in a message's area."""
    middle, (west, south, east, north) = wanted.middle, wanted.box
    if wanted.kind == BOX:
        return _range_of_box(origin, west, south, east, north)
    reach = reach_of(wanted.limit, len(origin) == 2)
    z = 0.0 if len(origin) == 2 else middle[len(origin) - 1]
    return around(middle[0], reach), around(middle[1], reach), around(z, reach)


@lent
def _common(one, other):
    return max(one[0], other[0]), min(one[1], other[1])


@lent
def _fetch_cells(known, space, ranges, work, queued, has_third):
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
        fetch_chunk(known.words, a, has_third)
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
def _wanted_of(origin, visits, shapes, message):
    """The clients that a message looks for."""
    point = middle = point_like(origin, 0.0, 0.0)
    kind, limit, box = np.int64(_NO_AREA), 0.0, (0.0, 0.0, 0.0, 0.0)
    near = not (np.isnan(visits.lon[message]) or np.isnan(visits.lat[message]))
    if near:
        point = point_like(origin, visits.lon[message], visits.lat[message])
    if len(shapes.kinds) and (shapes.kinds[message] == CIRCLE or shapes.kinds[message] == BOX):
        kind, values = np.int64(shapes.kinds[message]), shapes.values
        box = values[message, 0], values[message, 1], values[message, 2], values[message, 3]
        middle, limit = point_like(origin, box[0], box[1]), limit_of(box[2], len(origin) == 2)
    return _Wanted(near, kind, point, middle, limit, box)


@lent
def _fetch_message(origin, known, visits, message, wanted, work, queued):
    """Add the cells that can have what a message looks for, and have them fetched."""
    whole, point = (-math.inf, math.inf), wanted.point
    of_shape = whole, whole, whole
    if wanted.kind != _NO_AREA:
        of_shape = _range_of_shape(origin, wanted)
    elif not wanted.near:
        return queued
    for i in range(visits.offsets[message], visits.offsets[message + 1]):
        group = np.int64(visits.groups[i])
        for space in range(known.group_spaces[group], known.group_spaces[group + 1]):
            xs, ys, zs = of_shape
            if wanted.near:
                reach = known.reaches[space]
                xs, ys = _common(xs, around(point[0], reach)), _common(ys, around(point[1], reach))
                if len(origin) == 3:
                    zs = _common(zs, around(point[len(origin) - 1], reach))
            queued = _fetch_cells(known, space, (xs, ys, zs), work, queued, len(origin) == 3)
    return queued


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
def _read(marked, known, wanted, work, first, last, out, used):
    """Append the entries, in some cells, that a message looks for; how many numbers there are then.

    Or `_CHANGED`, if cells were changed during the search, or `_NO_ROOM`, if there was none.
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
                slots &= near(marked, known.words, chunk, wanted.middle, wanted.limit)
            elif wanted.kind == BOX:
                slots &= _in_box(known, chunk, wanted)
            if wanted.near:
                slots &= near(marked, known.words, chunk, wanted.point, None)
            used = keep(known.numbers, chunk, slots, out, used)
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
def _read_in_peace(marked, known, wanted, work, first, last, out, used):
    """As `_read`, until nothing changes during it."""
    tries = 0
    while True:
        now_used = _read(marked, known, wanted, work, first, last, out, used)
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
def find_clients(marked, origin, known, visits, shapes, asks, begin, out):
    """Write which entries each message looks for, and where each message's end, from one on, while there is room.

    No message has an area if `shapes` are empty. Returns the message for which there was no room.
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
            wanted = _wanted_of(origin, visits, shapes, message)
            queued = _fetch_message(origin, known, visits, message, wanted, work, queued)
            cell_ends[message - begin + 1] = queued
        for message in range(begin, end):
            first, last = cell_ends[message - begin], cell_ends[message - begin + 1]
            wanted = _wanted_of(origin, visits, shapes, message)
            now_used = _read_in_peace(marked, known, wanted, work, first, last, found, used)
            if now_used == _NO_ROOM:
                return message
            used = ends[message + 1] = now_used
        begin = end
    return messages


# How long a mover waits until it looks again whether it may go on
_PAUSE_S = 0.0001
# Cells are made anew if they have more further chunks than this number, and than this part of the cells, and if
# moves were as many as this part of entries: the least part, and the most, after making them anew has not helped
_FEW_MORE, _PART_OF_CELLS, _PATIENCE, _MOST_PATIENCE = 16, 0.5, 0.5, 16.0
# It has helped if it leaves less than this part of the further chunks
_HELPS = 0.75

#: Of messages without areas
NO_AREAS = Shapes(np.empty(0, np.uint8), np.empty((0, 4)))


class Points(NamedTuple):
    """Clients with their new points, one after the other; `x` is NaN for one that goes nowhere."""

    clients: U32Array
    x: F64Array
    y: F64Array
    z: F64Array


class MoveLog:
    """Moves that were made, in their order, for one who makes them, too, and takes them whenever that is needed.

    Who falls too far behind has to copy all positions instead.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        # `None` until all positions have been copied
        self._moves: list[Points] | None = None

    def begin(self) -> None:
        """Keep moves from now on: its owner copies positions, and no client moves during that."""
        with self._lock:
            self._moves = []

    def forget(self) -> None:
        """Keep nothing until all positions have been copied."""
        with self._lock:
            self._moves = None

    def add(self, moves: Moves) -> None:
        """Take moves that were made; their clients may be in the caller's memory."""
        with self._lock:
            known, self._moves = self._moves, None
            if known is not None and sum(len(each.clients) for each in known) + len(moves.clients) <= self._most:
                with contextlib.suppress(MemoryError):  # then all have to be copied, too
                    known.append(Points(moves.clients.astype(np.uint32), moves.x, moves.y, moves.z))
                    self._moves = known

    def take(self) -> list[Points] | None:
        """The moves since this was last called; `None` if all positions have to be copied."""
        with self._lock:
            moves = self._moves
            if moves is not None:
                self._moves = []
            return moves


class ClientCells:
    """Entries of clients, which move: each has a group, a client and a radius.

    All methods may be called by several threads at once. A search sees each client either before or after a move, in
    all of its entries; a search that begins after `move` has returned sees it after that.
    """

    def __init__(
        self,
        groups: I64Array,
        group_count: int,
        clients: I64Array,
        metres: F64Array,
        at: tuple[F64Array, F64Array],
        *,
        plane: bool,
    ) -> None:
        lon, lat = (column.astype(np.float64) for column in at)
        self.entries = entries_of(groups, group_count, clients, metres, len(lon), plane=plane)
        self.plane = plane
        self._marked = bool(np.signbit(self.entries.limits).any())
        self._asks = np.zeros(1, np.int64)
        # What a search gets that begins now, of all in it until it ends: others when cells have been made anew
        self.now = Cells(self.entries, lon, lat, self._asks, plane=plane)
        self._moving = threading.Lock()
        self._logs: tuple[weakref.ref[MoveLog], ...] = ()
        self._moved, self._patience = 0, _PATIENCE
        most = int(np.diff(self.entries.client_offsets).max(initial=0))
        self._mover = Mover(self._asks, np.empty(most, np.int64), np.empty(STRIPES, np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.entries) + self.now.nbytes

    def find(self, places: Places, groups: Lists, shapes: Shapes = NO_AREAS) -> Lists:
        """Entries whose client is within their radius of each message's place, and in its area, if it has one."""
        cells = self.now  # of one moment: they stay as they are, except for moves
        areas = all_frozen(shapes)
        origin = (0.0, 0.0) if self.plane else (0.0, 0.0, 0.0)

        def find(visits: Visits, begin: int, out: Hits) -> int:
            done: int = find_clients(self._marked, origin, cells.search, visits, areas, self._asks, begin, out)
            return done

        return all_found(find, places, groups)

    def move(self, clients: I64Array, lon: F64Array, lat: F64Array) -> None:
        """Move clients, one after the other: of several moves of a client, the last one counts. Searches go on."""
        self.make(self.ready(clients, lon, lat))

    def ready(self, clients: I64Array, lon: F64Array, lat: F64Array) -> Moves:
        """What `make` needs to move clients, with all memory that it takes. Parameters and errors as `move`."""
        known = len(self.entries.client_offsets) - 1
        if len(clients) and not (int(clients.min()) >= 0 and int(clients.max()) < known):
            raise IndexError(f"clients are numbered from 0 to {known - 1}; to move others, make new cells")
        clients, lon, lat = frozen(clients), frozen(lon), frozen(lat)
        x, y, z = points(lon, lat, plane=self.plane)
        x[np.isnan(y)] = np.nan  # nowhere, if only one of both is missing
        return Moves(clients, lon, lat, x, y, z)

    def make(self, moves: Moves) -> None:
        """Make moves. If this is interrupted, call it once more."""
        with self._moving:
            done = 0
            while done < len(moves.clients):
                done = move_clients(self.entries, self.now.moving, moves, done, self._mover)
                while self._asks[0] > 0:
                    time.sleep(_PAUSE_S)
            self._moved += len(moves.clients)
            for ref in self._logs:
                if (log := ref()) is not None:
                    log.add(moves)
            with contextlib.suppress(MemoryError):  # it does not have to be now
                self._even_out()

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places of the clients of some entries, from all over, and the groups of these."""
        entries, known = self.entries, len(self.entries.spaces)
        chosen = np.linspace(0, max(known - 1, 0), count if known else 0).astype(np.int64)
        at, cells = entries.clients[chosen], self.now.search
        groups = np.searchsorted(entries.group_spaces, entries.spaces[chosen], side="right") - 1
        return Places(cells.lon[at], cells.lat[at]), groups.astype(np.uint32)

    def tell(self, log: MoveLog) -> None:
        """Write moves to a log from now on, as long as it is referred to."""
        with self._moving:
            self._logs = (*(ref for ref in self._logs if ref() is not None), weakref.ref(log))

    def copied(self, log: MoveLog) -> tuple[F64Array, F64Array]:
        """Where all clients are at one time, from which on a log has the moves."""
        with self._moving:
            log.begin()
            return self.now.search.lon.copy(), self.now.search.lat.copy()

    def begin_anew(self) -> None:
        """Reset the state after a fork, in which no thread moves clients: no search asks for a pause."""
        self._asks[0] = 0
        self._moving = threading.Lock()

    def _even_out(self) -> None:
        """Make new cells if the present ones have become too full; searches under way go on with the old ones."""
        cells = self.now
        most = cells.more_in_any_case + _FEW_MORE + _PART_OF_CELLS * len(cells)
        if cells.more > most and self._moved > self._patience * len(self.entries.spaces):
            lon, lat = cells.search.lon.copy(), cells.search.lat.copy()
            self.now = Cells(self.entries, lon, lat, self._asks, plane=self.plane)
            helps = self.now.more < _HELPS * cells.more
            self._patience = _PATIENCE if helps else min(2 * self._patience, _MOST_PATIENCE)
            self._moved = 0
