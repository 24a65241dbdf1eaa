"""Cells of clients that move: chunks in chains, and how a client's entry leaves one and joins another.

A *space* has entries of one group whose radii differ little, so that a search looks no farther than it has to. Its
cells are the leaves of a tree that halves it, along the axis on which entries differed most when it was made: hot spots
have smaller cells, and nothing is special about poles and the anti-meridian, as cells divide space, not the sphere. A
space with `n` cells has `n - 1` cuts. The one between cells `i - 1` and `i` is at place `i`; the cut of cells `a` to
`b` is the one in the middle.

The first chunk of a cell has its number. Where it is full, `following` has the next one: of a cell's chunks, only the
one after the first may have free slots, or the first, if there is no other.

Cells share versions, which are odd while something in them changes. A move makes those of all cells odd in which the
client has entries or will have some, changes them, and makes them even again. So a reader of some cells that finds
all their versions as they were before, saw all entries of a client either before or after its move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, U8Array, U32Array, offsets_of
from tagmatch.model.kernels.intrinsics import (
    Prepared,
    fence_release,
    load_relaxed,
    prefetch,
    store_relaxed,
    store_release,
)
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import limits, point_of, points, reaches
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, all_frozen, chunks_of, select, widest_axis

#: Number of a slot that is free; its x is NaN, so that no test finds it
FREE = np.uint32(2**32 - 1)
# Entries of a cell in the mean, when cells are made
_PER_CELL = 12
# Entries of a space at least, if some of the group have greater radii; and of one that has a single cell at most
_FEW, _FLAT = 64, 32
# Where an entry is whose client is nowhere
_NOWHERE = -1

_Y, _Z, _LIMIT = SLOTS, 2 * SLOTS, 3 * SLOTS
# Places in `free`: the first chunk of those that were given back, the first that never was in use, and how many there
# are of both
_GIVEN_BACK, _NEVER_USED, _AVAILABLE = 0, 1, 2


class CellTree(NamedTuple):
    """Which cells spaces have."""

    space_cells: I64Array  # Space `s` has the cells `space_cells[s]` to `space_cells[s + 1]`
    cuts: F64Array  # Between cells: where, and on which axis
    axes: U8Array


class CellSearch(NamedTuple):
    """What a search reads, of all in it until it ends; the types of its arrays are `PREPARED`."""

    words: Any  # The chunks of cells, which moves change, with the entry of each slot, and the next chunk of each
    numbers: Any
    following: Any
    versions: Any
    lon: Any  # Where clients are
    lat: Any
    tree: CellTree
    reaches: Any  # How far from their middles the points of the greatest entries of each space are, on each axis
    group_spaces: Any  # Spaces of group `g` are `group_spaces[g]` to `group_spaces[g + 1]`
    clients: Any  # The client of each entry


_OF_TREE: tuple[Any, ...] = (np.int64, np.float64, np.uint8)
PREPARED = CellSearch(
    np.float64, np.uint32, np.int32, np.int64, np.float64, np.float64, CellTree(*_OF_TREE),
    np.float64, np.int64, np.uint32,
)  # fmt: skip


class MovingCells(NamedTuple):
    """Cells, and what else moves change."""

    cells: CellSearch
    homes: U32Array  # The cell of each chunk, except the first ones
    free: I64Array
    where: npt.NDArray[Any]  # The slot that each entry is in, or `_NOWHERE`


class Entries(NamedTuple):
    """What does not change: entries of clients, each with the space that it is in."""

    spaces: U32Array
    clients: U32Array
    limits: F64Array  # How far from its client an entry is found (see `sphere.limits`)
    client_offsets: npt.NDArray[Any]
    client_entries: U32Array  # Client `i` has the entries from `client_offsets[i]` to `client_offsets[i + 1]` of these
    group_spaces: I64Array  # See `CellSearch`
    reaches: F64Array


def entries_of(
    groups: I64Array, group_count: int, clients: I64Array, metres: F64Array, client_count: int, *, plane: bool
) -> Entries:
    """Put entries into spaces; each has a group, a client and a radius."""
    limit = limits(metres, plane=plane)
    reach = reaches(limit, plane=plane)
    order = np.lexsort((reach, groups))
    spaces = np.empty(len(groups), np.uint32)
    space_count = _divide(groups, reach, order, spaces)
    last = order[offsets_of(np.bincount(spaces, minlength=space_count))[1:] - 1]
    offsets = offsets_of(np.bincount(clients, minlength=client_count))
    by_client = np.argsort(clients, kind="stable").astype(np.uint32)
    group_spaces = np.searchsorted(groups[last], np.arange(group_count + 1))
    return all_frozen(Entries(spaces, clients.astype(np.uint32), limit, offsets, by_client, group_spaces, reach[last]))


@kernel
def _divide(groups, reaches, order, spaces):
    """Write which space each entry is in, of entries in order of group and radius; returns how many there are."""
    space, first = -1, 0
    for i in range(len(order)):
        entry = order[i]
        starts = i == 0 or groups[entry] != groups[order[i - 1]]
        if starts or (i - first >= _FEW and reaches[entry] > 2 * reaches[order[first]]):
            space, first = space + 1, i
        spaces[entry] = space
    return space + 1


@kernel
def _cut(keys, order, space_entries, space_cells, cuts, axes):
    """Write where spaces are cut, such that cells have as many entries; orders entries within each space."""
    stack, state = np.empty((64, 4), np.int64), np.uint64(1)
    for space in range(len(space_cells) - 1):
        stack[0, 0], stack[0, 1] = space_cells[space], space_cells[space + 1]
        stack[0, 2], stack[0, 3] = space_entries[space], space_entries[space + 1]
        depth = 1
        while depth > 0:
            depth -= 1
            a, b, first, last = stack[depth]
            if b - a < 2:
                continue
            middle = (a + b) // 2
            split = first + (last - first) * (middle - a) // (b - a)
            axis = widest_axis(keys, first, last) if last > first else -1
            if axis < 0:  # nothing tells them apart: all will be in the last cell
                cuts[middle], axes[middle] = -np.inf, 0
                split = first
            else:
                state = select(keys, order, first, last, split, axis, state)
                cuts[middle], axes[middle] = keys[split, axis], axis
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = a, middle, first, split
            depth += 1
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = middle, b, split, last
            depth += 1


@lent
def cell_of(tree, space, point):
    """The cell of a space that has a point."""
    x, y, z = point
    a, b = np.int64(tree.space_cells[space]), np.int64(tree.space_cells[space + 1])
    while b - a > 1:
        middle = (a + b) >> 1
        axis = tree.axes[middle]
        value = x if axis == 0 else (y if axis == 1 else z)
        if value < tree.cuts[middle]:
            b = middle
        else:
            a = middle
    return a


@lent
def _clear(words, numbers, chunk, slot):
    words[chunk * WORDS + slot] = np.nan
    numbers[2 * chunk * WORDS + NUMBERS + slot] = FREE


@lent
def _write_point(words, chunk, slot, point):
    """Write where a slot's client is."""
    at = chunk * WORDS + slot
    words[at], words[at + _Y], words[at + _Z] = point


@lent
def _join(moving, cell, point, limit, entry):
    """Put an entry into a cell; there is a chunk available."""
    words, numbers, following, free = moving.cells.words, moving.cells.numbers, moving.cells.following, moving.free
    chunk = np.int64(following[cell])
    if chunk < 0:
        chunk = cell
    slot, first = 0, 2 * chunk * WORDS + NUMBERS
    while slot < SLOTS and numbers[first + slot] != FREE:
        slot += 1
    if slot == SLOTS:
        chunk, slot = free[_GIVEN_BACK], 0
        if chunk >= 0:
            free[_GIVEN_BACK] = following[chunk]
        else:
            chunk = free[_NEVER_USED]
            free[_NEVER_USED] += 1
        free[_AVAILABLE] -= 1
        for other in range(SLOTS):
            _clear(words, numbers, chunk, other)
        moving.homes[chunk - len(moving.cells.tree.axes)] = cell
        store_relaxed(following, chunk, following[cell])
        store_relaxed(following, cell, np.int32(chunk))
    _write_point(words, chunk, slot, point)
    words[chunk * WORDS + slot + _LIMIT] = limit
    numbers[2 * chunk * WORDS + NUMBERS + slot] = np.uint32(entry)
    moving.where[entry] = chunk * SLOTS + slot


@lent
def _leave(moving, cell, entry):
    """Take an entry out of its cell, and put the last one of its only chunk that may have free slots there instead."""
    words, numbers, following = moving.cells.words, moving.cells.numbers, moving.cells.following
    free, where = moving.free, moving.where
    head = np.int64(following[cell])
    if head < 0:
        head = cell
    last, numbers_of_head = SLOTS - 1, 2 * head * WORDS + NUMBERS
    while numbers[numbers_of_head + last] == FREE:
        last -= 1
    chunk, slot = np.int64(where[entry]) // SLOTS, np.int64(where[entry]) % SLOTS
    moved = numbers[numbers_of_head + last]
    for lane in range(4):
        words[chunk * WORDS + lane * SLOTS + slot] = words[head * WORDS + lane * SLOTS + last]
    numbers[2 * chunk * WORDS + NUMBERS + slot] = moved
    where[np.int64(moved)] = chunk * SLOTS + slot
    where[entry] = _NOWHERE
    _clear(words, numbers, head, last)
    if last == 0 and head != cell:
        store_relaxed(following, cell, following[head])
        store_relaxed(following, head, np.int32(free[_GIVEN_BACK]))
        free[_GIVEN_BACK] = head
        free[_AVAILABLE] += 1


@kernel
def _clear_all(words, numbers):
    """Make all slots free."""
    for chunk in range(len(words) // WORDS):
        for slot in range(SLOTS):
            _clear(words, numbers, chunk, slot)


@kernel
def _join_all(moving, entries, plane):
    """Put all entries whose clients are somewhere into their cells."""
    lon, lat = moving.cells.lon, moving.cells.lat
    for entry in range(len(entries.spaces)):
        client = np.int64(entries.clients[entry])
        if np.isnan(lon[client]) or np.isnan(lat[client]):
            moving.where[entry] = _NOWHERE
            continue
        point = point_of(lon[client], lat[client], plane)
        cell = cell_of(moving.cells.tree, np.int64(entries.spaces[entry]), point)
        _join(moving, cell, point, entries.limits[entry], entry)


#: Versions, which cells share: a power of two
STRIPES = 4096
# How many moves ahead, and of how many of its entries, the data of a move is fetched
_AHEAD, _FETCHED = 8, 4


@lent
def _mark(versions, cell, marked, count):
    """Make the version of a cell odd, unless it is; how many are."""
    if cell < 0:
        return count
    stripe = cell & (STRIPES - 1)
    version = versions[stripe]
    if version & 1:
        return count
    store_relaxed(versions, stripe, version + 1)
    marked[count] = stripe
    return count + 1


@lent
def _cell_that_has(moving, entry):
    """The cell that an entry is in."""
    slot, size = np.int64(moving.where[entry]), len(moving.cells.tree.axes)
    if slot < 0:
        return _NOWHERE
    chunk = slot // SLOTS
    return chunk if chunk < size else np.int64(moving.homes[chunk - size])


class Moves(NamedTuple):
    """Clients with their new places, one after the other."""

    clients: I64Array
    lon: F64Array
    lat: F64Array
    x: F64Array
    y: F64Array
    z: F64Array


class Mover(NamedTuple):
    """What the mover of clients needs."""

    asks: I64Array  # How many searches ask for a pause
    new_cells: I64Array  # Room for the cells of a client's entries, and for versions that are made odd
    marked: I64Array


@lent
def _point_at(moves, i):
    return moves.x[i], moves.y[i], moves.z[i]


@lent
def _move(entries, moving, moves, i, mover):
    """Make one move; a client that is nowhere then leaves."""
    client, lon, lat, point = moves.clients[i], moves.lon[i], moves.lat[i], _point_at(moves, i)
    cells, marked, new_cells = moving.cells, mover.marked, mover.new_cells
    somewhere = not (np.isnan(lon) or np.isnan(lat))
    first, last, count = np.int64(entries.client_offsets[client]), np.int64(entries.client_offsets[client + 1]), 0
    for i in range(first, last):
        entry = np.int64(entries.client_entries[i])
        cell = cell_of(cells.tree, np.int64(entries.spaces[entry]), point) if somewhere else _NOWHERE
        new_cells[i - first] = cell
        count = _mark(cells.versions, cell, marked, count)
        count = _mark(cells.versions, _cell_that_has(moving, entry), marked, count)
    fence_release()
    cells.lon[client], cells.lat[client] = lon, lat
    for i in range(first, last):
        entry, cell = np.int64(entries.client_entries[i]), new_cells[i - first]
        before = _cell_that_has(moving, entry)
        if before == cell and cell >= 0:
            slot = np.int64(moving.where[entry])
            _write_point(cells.words, slot // SLOTS, slot % SLOTS, point)
            continue
        if before >= 0:
            _leave(moving, before, entry)
        if cell >= 0:
            _join(moving, cell, point, entries.limits[entry], entry)
    for i in range(count):
        store_release(cells.versions, marked[i], cells.versions[marked[i]] + 1)


@lent
def _fetch_slot(cells, chunk, slot):
    """Prefetch the words and numbers of a slot, and the number of the chunk after its chunk."""
    for lane in range(4):
        prefetch(cells.words, chunk * WORDS + lane * SLOTS + slot)
    prefetch(cells.numbers, 2 * chunk * WORDS + NUMBERS)
    prefetch(cells.following, chunk)


@lent
def _fetch(entries, moving, moves, at):
    """Fetch the lines that the next moves will need."""
    clients, offsets, where = moves.clients, entries.client_offsets, moving.where
    if at + 4 * _AHEAD < len(clients):
        prefetch(offsets, clients[at + 4 * _AHEAD])
    if at + 3 * _AHEAD < len(clients):
        prefetch(entries.client_entries, np.int64(offsets[clients[at + 3 * _AHEAD]]))
    if at + 2 * _AHEAD < len(clients):
        client = clients[at + 2 * _AHEAD]
        first, last = np.int64(offsets[client]), np.int64(offsets[client + 1])
        for i in range(first, min(last, first + _FETCHED)):
            entry = np.int64(entries.client_entries[i])
            prefetch(where, entry)
            prefetch(entries.spaces, entry)
            prefetch(entries.limits, entry)
    if at + _AHEAD < len(clients):
        client, point = clients[at + _AHEAD], _point_at(moves, at + _AHEAD)
        first, last = np.int64(offsets[client]), np.int64(offsets[client + 1])
        for i in range(first, min(last, first + _FETCHED)):
            entry = np.int64(entries.client_entries[i])
            slot = np.int64(where[entry])
            if slot >= 0:
                _fetch_slot(moving.cells, slot // SLOTS, slot % SLOTS)
            cell = cell_of(moving.cells.tree, np.int64(entries.spaces[entry]), point)
            _fetch_slot(moving.cells, cell, SLOTS // 2)


@kernel
def move_clients(entries, moving, moves, begin, mover):
    """Move clients one after the other, from one of them on, until a pause is asked for; returns where to go on."""
    for i in range(begin, len(moves.clients)):
        if i > begin and load_relaxed(mover.asks, 0) > 0:
            return i
        _fetch(entries, moving, moves, i)
        _move(entries, moving, moves, i, mover)
    return len(moves.clients)


class Cells:
    """Cells with all entries that are somewhere, and where clients are; kernels change the arrays.

    There is room for all that can happen: a cell with `n` entries has at most `n / 16` chunks besides its first. Memory
    that is not in use yet is not taken.
    """

    def __init__(self, entries: Entries, lon: F64Array, lat: F64Array, asks: I64Array, *, plane: bool) -> None:
        sizes = np.bincount(entries.spaces, minlength=len(entries.reaches))
        cell_offsets = offsets_of(np.where(sizes <= _FLAT, 1, -(-sizes // _PER_CELL)))
        count, more = int(cell_offsets[-1]), len(entries.spaces) // SLOTS + 1
        words, numbers = chunks_of(count + more)
        _clear_all(words[: count * WORDS], numbers)
        following = np.full(count + more, -1, np.int32)
        places = np.int32 if (count + more) * SLOTS < 2**31 else np.int64
        free, where = np.array([-1, count, more]), np.empty(len(entries.spaces), places)
        tree = _tree(entries, lon, lat, sizes, cell_offsets, plane=plane)
        own = (words, numbers, following, np.zeros(STRIPES, np.int64), lon, lat)
        known = (entries.reaches, entries.group_spaces, entries.clients)
        self.search = CellSearch(*own, tree, *known)
        self.moving = MovingCells(self.search, np.empty(more, np.uint32), free, where)
        _join_all(self.moving, entries, plane)
        self.prepared = Prepared(*own, *tree, *known, asks)
        # Of spaces that have one cell
        self.more_in_any_case = int((np.maximum(sizes[sizes <= _FLAT] - 1, 0) // SLOTS).sum())

    def __len__(self) -> int:
        return len(self.search.tree.axes)

    @property
    def more(self) -> int:
        """How many chunks there are besides the first ones of cells."""
        return len(self.moving.homes) - int(self.moving.free[_AVAILABLE])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        search, used = self.search, int(self.moving.free[_NEVER_USED])
        others = (self.moving.where, search.versions, search.lon, search.lat, *search.tree)
        return used * (8 * WORDS + 8) + sum(array.nbytes for array in others)


def _tree(
    entries: Entries, lon: F64Array, lat: F64Array, sizes: I64Array, cell_offsets: I64Array, *, plane: bool
) -> CellTree:
    """Cut spaces of these sizes by where clients are."""
    cuts, axes = np.zeros(int(cell_offsets[-1])), np.zeros(int(cell_offsets[-1]), np.uint8)
    somewhere = ~(np.isnan(lon) | np.isnan(lat))[entries.clients]
    here = np.flatnonzero(somewhere & (sizes > _FLAT)[entries.spaces])
    order = here[np.argsort(entries.spaces[here], kind="stable")]
    at, keys = entries.clients[order], np.zeros((len(order), 4))
    for axis, values in enumerate(points(lon[at], lat[at], plane=plane)):
        keys[:, axis] = values
    space_entries = offsets_of(np.bincount(entries.spaces[order], minlength=len(sizes)))
    _cut(keys, order, space_entries, cell_offsets, cuts, axes)
    return all_frozen(CellTree(cell_offsets, cuts, axes))
