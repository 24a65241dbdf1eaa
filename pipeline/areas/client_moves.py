"""Moves of clients, while other threads search.

Cells share versions, which are odd while something in them changes. A move makes those of all cells odd in which the
client has entries and will have some, changes them, and makes them even again. So who has read some cells, and finds
all their versions as they were before, has seen all entries of a client either before or after its move.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.atomics import fence_release, load_relaxed, store_relaxed, store_release
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.pipeline.areas.cells import NOWHERE, cell_of, home_of, join, leave, write_point
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, prefetch

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
def _cell_that_has(where, entry, cells, homes):
    """The cell that an entry is in."""
    slot = np.int64(where[entry])
    return home_of(slot // SLOTS, cells, homes) if slot >= 0 else NOWHERE


@lent
def _move(entries, chunks, positions, tree, cells, client, lon, lat, point, new_cells, marked):
    """Move one client; one that is nowhere then leaves."""
    client_offsets, client_entries, spaces, limits = entries
    versions, all_lon, all_lat = positions
    space_cells, cuts, axes = tree
    where, homes = chunks[5], chunks[3]
    x, y, z = point
    somewhere = not (np.isnan(lon) or np.isnan(lat))
    first, last, count = np.int64(client_offsets[client]), np.int64(client_offsets[client + 1]), 0
    for i in range(first, last):
        entry = np.int64(client_entries[i])
        cell = cell_of(np.int64(spaces[entry]), x, y, z, space_cells, cuts, axes) if somewhere else NOWHERE
        new_cells[i - first] = cell
        count = _mark(versions, cell, marked, count)
        count = _mark(versions, _cell_that_has(where, entry, cells, homes), marked, count)
    fence_release()
    all_lon[client], all_lat[client] = lon, lat
    for i in range(first, last):
        entry, cell = np.int64(client_entries[i]), new_cells[i - first]
        before = _cell_that_has(where, entry, cells, homes)
        if before == cell and cell >= 0:
            slot = np.int64(where[entry])
            write_point(chunks[0], slot // SLOTS, slot % SLOTS, x, y, z)
            continue
        if before >= 0:
            leave(chunks, before, entry)
        if cell >= 0:
            join(chunks, cell, cells, x, y, z, limits[entry], entry)
    for i in range(count):
        store_release(versions, marked[i], versions[marked[i]] + 1)


@lent
def _fetch_slot(words, numbers, chunk, slot):
    """Have what a slot has fetched."""
    for lane in range(4):
        prefetch(words, chunk * WORDS + lane * SLOTS + slot)
    prefetch(numbers, 2 * chunk * WORDS + NUMBERS)


@lent
def _fetch(entries, chunks, tree, clients, x, y, z, at):
    """Have fetched what moves will need that are not far away."""
    client_offsets, client_entries, spaces, limits = entries
    words, numbers, following, _, _, where = chunks
    space_cells, cuts, axes = tree
    if at + 4 * _AHEAD < len(clients):
        prefetch(client_offsets, clients[at + 4 * _AHEAD])
    if at + 3 * _AHEAD < len(clients):
        prefetch(client_entries, np.int64(client_offsets[clients[at + 3 * _AHEAD]]))
    if at + 2 * _AHEAD < len(clients):
        client = clients[at + 2 * _AHEAD]
        first, last = np.int64(client_offsets[client]), np.int64(client_offsets[client + 1])
        for i in range(first, min(last, first + _FETCHED)):
            entry = np.int64(client_entries[i])
            prefetch(where, entry)
            prefetch(spaces, entry)
            prefetch(limits, entry)
    if at + _AHEAD < len(clients):
        client = clients[at + _AHEAD]
        first, last = np.int64(client_offsets[client]), np.int64(client_offsets[client + 1])
        for i in range(first, min(last, first + _FETCHED)):
            entry = np.int64(client_entries[i])
            slot = np.int64(where[entry])
            if slot >= 0:
                _fetch_slot(words, numbers, slot // SLOTS, slot % SLOTS)
                prefetch(following, slot // SLOTS)
            cell = cell_of(
                np.int64(spaces[entry]), x[at + _AHEAD], y[at + _AHEAD], z[at + _AHEAD], space_cells, cuts, axes
            )
            _fetch_slot(words, numbers, cell, SLOTS // 2)
            prefetch(following, cell)


@kernel
def move_clients(entries, chunks, positions, tree, cells, clients, lon, lat, x, y, z, begin, asks, new_cells, marked):
    """Move clients one after the other, from one of them on, until a pause is asked for; returns where to go on."""
    for i in range(begin, len(clients)):
        if i > begin and load_relaxed(asks, 0) > 0:
            return i
        _fetch(entries, chunks, tree, clients, x, y, z, i)
        _move(
            entries, chunks, positions, tree, cells, clients[i], lon[i], lat[i], (x[i], y[i], z[i]), new_cells, marked
        )
    return len(clients)
