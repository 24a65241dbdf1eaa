"""Cells of clients that move: chunks in chains, and how a client's entry leaves one and joins another.

A *space* has entries of one group whose radii differ little, so that a search looks no farther than it has to. Its
cells are the leaves of a tree that halves it, along the axis on which entries differed most when it was made: hot spots
have smaller cells, and nothing is special about poles and the anti-meridian, as cells divide space, not the sphere. A
space with `n` cells has `n - 1` cuts. The one between cells `i - 1` and `i` is at place `i`; the cut of cells `a` to
`b` is the one in the middle.

The first chunk of a cell has its number. Where it is full, `following` has the next one: of a cell's chunks, only the
one after the first may have free slots, or the first, if there is no other.

Cells share versions, which are odd while something in them changes. A move makes those of all cells odd in which the
client has entries and will have some, changes them, and makes them even again. So who has read some cells, and finds
all their versions as they were before, has seen all entries of a client either before or after its move.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import F64Array, I64Array, U8Array, U32Array
from tagmatch.model.kernels.intrinsics import fence_release, load_relaxed, store_relaxed, store_release
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.sphere import point_of
from tagmatch.pipeline.areas.packing import NUMBERS, SLOTS, WORDS, prefetch, select, widest_axis

#: Number of a slot that is free; its x is NaN, so that no test finds it
FREE = np.uint32(2**32 - 1)
#: Entries of a cell in the mean, when cells are made
PER_CELL = 12
#: Entries of a space at least, if some of the group have greater radii; and of one that has a single cell at most
_FEW, FLAT = 64, 32
#: Where an entry is whose client is nowhere
NOWHERE = -1

_Y, _Z, _LIMIT = SLOTS, 2 * SLOTS, 3 * SLOTS
#: Places in `free`: the first chunk of those that were given back, the first that never was in use, and how
#: many there are of both
GIVEN_BACK, NEVER_USED, AVAILABLE = 0, 1, 2


class CellTree(NamedTuple):
    """Which cells spaces have."""

    space_cells: I64Array  # Space `s` has the cells `space_cells[s]` to `space_cells[s + 1]`
    cuts: F64Array  # Between cells: where, and on which axis
    axes: U8Array


class CellChunks(NamedTuple):
    """The chunks of cells, which moves change."""

    words: F64Array
    numbers: U32Array  # The entry of each slot
    following: npt.NDArray[np.int32]
    homes: U32Array  # The cell of each chunk beside the first ones
    free: I64Array
    where: npt.NDArray[Any]  # The slot that each entry is in, or `NOWHERE`


class MovingCells(NamedTuple):
    """Cells, with where their clients are."""

    size: int  # How many there are
    chunks: CellChunks
    versions: I64Array
    lon: F64Array
    lat: F64Array
    tree: CellTree


class EntryTable(NamedTuple):
    """What does not change: entries of clients, each with the space that it is in."""

    spaces: U32Array
    clients: U32Array
    limits: F64Array  # What says how far from its client an entry is found (see `limits`)
    client_offsets: npt.NDArray[Any]
    client_entries: U32Array  # Client `i` has the entries from `client_offsets[i]` to `client_offsets[i + 1]` of these


@kernel
def divide(groups, reaches, order, spaces):
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
def cut(keys, order, space_entries, space_cells, cuts, axes):
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
def cell_of(tree, space, x, y, z):
    """The cell of a space that has a point."""
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
def _write_point(words, chunk, slot, x, y, z):
    """Write where a slot's client is."""
    at = chunk * WORDS + slot
    words[at], words[at + _Y], words[at + _Z] = x, y, z


@lent
def _join(cells, cell, x, y, z, limit, entry):
    """Put an entry into a cell; there is a chunk available."""
    words, numbers, following, homes, free, where = cells.chunks
    chunk = np.int64(following[cell])
    if chunk < 0:
        chunk = cell
    slot, first = 0, 2 * chunk * WORDS + NUMBERS
    while slot < SLOTS and numbers[first + slot] != FREE:
        slot += 1
    if slot == SLOTS:
        chunk, slot = free[GIVEN_BACK], 0
        if chunk >= 0:
            free[GIVEN_BACK] = following[chunk]
        else:
            chunk = free[NEVER_USED]
            free[NEVER_USED] += 1
        free[AVAILABLE] -= 1
        for other in range(SLOTS):
            _clear(words, numbers, chunk, other)
        homes[chunk - cells.size] = cell
        store_relaxed(following, chunk, following[cell])
        store_relaxed(following, cell, np.int32(chunk))
    _write_point(words, chunk, slot, x, y, z)
    words[chunk * WORDS + slot + _LIMIT] = limit
    numbers[2 * chunk * WORDS + NUMBERS + slot] = np.uint32(entry)
    where[entry] = chunk * SLOTS + slot


@lent
def _leave(cells, cell, entry):
    """Take an entry out of its cell, and put the last one of its only chunk that may have free slots there instead."""
    words, numbers, following, _, free, where = cells.chunks
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
    where[entry] = NOWHERE
    _clear(words, numbers, head, last)
    if last == 0 and head != cell:
        store_relaxed(following, cell, following[head])
        store_relaxed(following, head, np.int32(free[GIVEN_BACK]))
        free[GIVEN_BACK] = head
        free[AVAILABLE] += 1


@kernel
def clear_all(words, numbers):
    """Make all slots free."""
    for chunk in range(len(words) // WORDS):
        for slot in range(SLOTS):
            _clear(words, numbers, chunk, slot)


@kernel
def join_all(cells, entries, plane):
    """Put all entries whose clients are somewhere into their cells."""
    (spaces, clients, limits, _, _), lon, lat, where = entries, cells.lon, cells.lat, cells.chunks.where
    for entry in range(len(spaces)):
        client = np.int64(clients[entry])
        if np.isnan(lon[client]) or np.isnan(lat[client]):
            where[entry] = NOWHERE
            continue
        x, y, z = point_of(lon[client], lat[client], plane)
        _join(cells, cell_of(cells.tree, np.int64(spaces[entry]), x, y, z), x, y, z, limits[entry], entry)


#: Versions, which cells share: a power of two
STRIPES = 4096
# So many moves before one, what it will need is fetched; and of so many of its entries
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
def _cell_that_has(cells, entry):
    """The cell that an entry is in."""
    slot = np.int64(cells.chunks.where[entry])
    if slot < 0:
        return NOWHERE
    chunk = slot // SLOTS
    return chunk if chunk < cells.size else np.int64(cells.chunks.homes[chunk - cells.size])


class Moves(NamedTuple):
    """Clients with where each is to be, one after the other."""

    clients: I64Array
    lon: F64Array
    lat: F64Array
    x: F64Array
    y: F64Array
    z: F64Array


class Mover(NamedTuple):
    """What one who moves clients needs."""

    asks: I64Array  # How many searches ask for a pause
    new_cells: I64Array  # Room for the cells of a client's entries, and for versions that are made odd
    marked: I64Array


@lent
def _move(entries, cells, moves, i, mover):
    """Make one move; a client that is nowhere then leaves."""
    client, lon, lat = moves.clients[i], moves.lon[i], moves.lat[i]
    x, y, z = moves.x[i], moves.y[i], moves.z[i]
    versions, marked, new_cells = cells.versions, mover.marked, mover.new_cells
    somewhere = not (np.isnan(lon) or np.isnan(lat))
    first, last, count = np.int64(entries.client_offsets[client]), np.int64(entries.client_offsets[client + 1]), 0
    for i in range(first, last):
        entry = np.int64(entries.client_entries[i])
        cell = cell_of(cells.tree, np.int64(entries.spaces[entry]), x, y, z) if somewhere else NOWHERE
        new_cells[i - first] = cell
        count = _mark(versions, cell, marked, count)
        count = _mark(versions, _cell_that_has(cells, entry), marked, count)
    fence_release()
    cells.lon[client], cells.lat[client] = lon, lat
    for i in range(first, last):
        entry, cell = np.int64(entries.client_entries[i]), new_cells[i - first]
        before = _cell_that_has(cells, entry)
        if before == cell and cell >= 0:
            slot = np.int64(cells.chunks.where[entry])
            _write_point(cells.chunks.words, slot // SLOTS, slot % SLOTS, x, y, z)
            continue
        if before >= 0:
            _leave(cells, before, entry)
        if cell >= 0:
            _join(cells, cell, x, y, z, entries.limits[entry], entry)
    for i in range(count):
        store_release(versions, marked[i], versions[marked[i]] + 1)


@lent
def _fetch_slot(chunks, chunk, slot):
    """Have what a slot has fetched, and which chunk comes after its one."""
    for lane in range(4):
        prefetch(chunks.words, chunk * WORDS + lane * SLOTS + slot)
    prefetch(chunks.numbers, 2 * chunk * WORDS + NUMBERS)
    prefetch(chunks.following, chunk)


@lent
def _fetch(entries, cells, moves, at):
    """Have fetched what moves will need that are not far away."""
    clients, offsets, where = moves.clients, entries.client_offsets, cells.chunks.where
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
        soon = at + _AHEAD
        client = clients[soon]
        first, last = np.int64(offsets[client]), np.int64(offsets[client + 1])
        for i in range(first, min(last, first + _FETCHED)):
            entry = np.int64(entries.client_entries[i])
            slot = np.int64(where[entry])
            if slot >= 0:
                _fetch_slot(cells.chunks, slot // SLOTS, slot % SLOTS)
            x, y, z = moves.x[soon], moves.y[soon], moves.z[soon]
            _fetch_slot(cells.chunks, cell_of(cells.tree, np.int64(entries.spaces[entry]), x, y, z), SLOTS // 2)


@kernel
def move_clients(entries, cells, moves, begin, mover):
    """Move clients one after the other, from one of them on, until a pause is asked for; returns where to go on."""
    for i in range(begin, len(moves.clients)):
        if i > begin and load_relaxed(mover.asks, 0) > 0:
            return i
        _fetch(entries, cells, moves, i)
        _move(entries, cells, moves, i, mover)
    return len(moves.clients)


class Points(NamedTuple):
    """Clients with the point where each is to be, one after the other; `x` is NaN for one that is to be nowhere."""

    clients: U32Array
    x: F64Array
    y: F64Array
    z: F64Array


class MoveLog:
    """Moves that were made, in their order, for one who makes them, too, and takes them whenever that is needed.

    Who falls too far behind has to copy all positions instead.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._lock = threading.Lock()
        # `None` until all positions have been copied
        self._moves: list[Points] | None = None

    def begin(self) -> None:
        """Keep moves from now on: who has this copies positions, and nobody moves meanwhile."""
        with self._lock:
            self._moves, self._count = [], 0

    def forget(self) -> None:
        """Keep nothing until all positions have been copied."""
        with self._lock:
            self._moves, self._count = None, 0

    def add(self, moves: Moves) -> None:
        """Have moves that were made, whose clients and places may be in the memory of who has asked for them."""
        with self._lock:
            if self._moves is None:
                return
            self._count += len(moves.clients)
            try:
                if self._count <= self._most:
                    nowhere = np.isnan(moves.lon) | np.isnan(moves.lat)
                    x = np.where(nowhere, np.nan, moves.x)
                    self._moves.append(Points(moves.clients.astype(np.uint32), x, moves.y, moves.z))
                    return
            except MemoryError:
                """Then all have to be copied, too."""
            self._moves = None

    def take(self) -> list[Points] | None:
        """The moves since this was last called; `None` if all positions have to be copied."""
        with self._lock:
            moves = self._moves
            if moves is not None:
                self._moves, self._count = [], 0
            return moves
