"""Clients that move: which are near a message's place, or in its area, while other threads move them."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array, frozen, offsets_of
from tagmatch.model.kernels.intrinsics import Prepared
from tagmatch.model.kernels.sphere import limits, points, reaches
from tagmatch.pipeline.areas.cells import (
    AVAILABLE,
    NEVER_USED,
    PER_CELL,
    STRIPES,
    CellChunks,
    CellTree,
    EntryTable,
    MoveLog,
    Mover,
    Moves,
    MovingCells,
    clear_all,
    cut,
    divide,
    join_all,
    move_clients,
)
from tagmatch.pipeline.areas.cells import FLAT as FLAT_SPACE
from tagmatch.pipeline.areas.client_search import AreasOfMessages, ClientSearch, find_clients
from tagmatch.pipeline.areas.packing import (
    SLOTS,
    WORDS,
    Places,
    Shapes,
    all_frozen,
    chunks_of,
    found_in,
    longer,
    room_for,
    visits_of,
    way,
)

# How long a mover waits until it looks again whether it may go on
_PAUSE_S = 0.0001
# Cells are made anew when there are more chunks beside the first ones than so many, and than such a part of cells, and
# as many moves as such a part of entries have been made: the least part, and the most, after this has not helped
_FEW_MORE, _PART_OF_CELLS, _PATIENCE, _MOST_PATIENCE = 16, 0.5, 0.5, 16.0
# What helps leaves less than such a part of the chunks beside the first ones
_HELPS = 0.75

_NO_AREAS = AreasOfMessages(np.empty(0, np.uint8), np.empty((0, 4)))


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What does not change: entries, their spaces, and clients' entries."""

    table: EntryTable
    group_spaces: I64Array  # The spaces of group `g` are `group_spaces[g]` to `group_spaces[g + 1]`
    space_reaches: F64Array
    marked: bool  # Whether some limits are
    plane: bool

    @classmethod
    def of(
        cls, groups: I64Array, group_count: int, clients: I64Array, metres: F64Array, client_count: int, *, plane: bool
    ) -> Entries:
        """Put entries into spaces; parameters (see `ClientCells.of`)."""
        limit = limits(metres, plane=plane)
        reach = reaches(limit, plane=plane)
        order = np.lexsort((reach, groups))
        spaces = np.empty(len(groups), np.uint32)
        space_count = divide(groups, reach, order, spaces)
        last_of_space = offsets_of(np.bincount(spaces, minlength=space_count))[1:] - 1
        last = order[last_of_space]
        offsets = offsets_of(np.bincount(clients, minlength=client_count))
        by_client = np.argsort(clients, kind="stable").astype(np.uint32)
        table = EntryTable(spaces, clients.astype(np.uint32), limit, offsets, by_client)
        group_spaces = np.searchsorted(groups[last], np.arange(group_count + 1))
        marked = bool(np.signbit(limit).any())
        return cls(all_frozen(table), frozen(group_spaces), frozen(reach[last]), marked, plane)

    def __len__(self) -> int:
        return len(self.table.spaces)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in (*self.table, self.group_spaces, self.space_reaches))


class _Cells:
    """Cells with all entries that are somewhere, and where clients are; kernels change the arrays.

    There is room for all that can happen: a cell with `n` entries has at most `n / 16` chunks beside its first. Memory
    that is not in use yet is not taken.
    """

    def __init__(self, entries: Entries, lon: F64Array, lat: F64Array, asks: I64Array) -> None:
        table = entries.table
        sizes = np.bincount(table.spaces, minlength=len(entries.space_reaches))
        cell_offsets = offsets_of(np.where(sizes <= FLAT_SPACE, 1, -(-sizes // PER_CELL)))
        count, more = int(cell_offsets[-1]), len(entries) // SLOTS + 1
        words, numbers = chunks_of(count + more)
        clear_all(words[: count * WORDS], numbers)
        following = np.full(count + more, -1, np.int32)
        places = np.int32 if (count + more) * SLOTS < 2**31 else np.int64
        free, where = np.array([-1, count, more]), np.empty(len(entries), places)
        chunks = CellChunks(words, numbers, following, np.empty(more, np.uint32), free, where)
        tree = _tree(entries, lon, lat, sizes, cell_offsets)
        self.moving = MovingCells(count, chunks, np.zeros(STRIPES, np.int64), lon, lat, tree)
        join_all(self.moving, table, entries.plane)
        own = (*chunks[:3], self.moving.versions, lon, lat)
        self.search = ClientSearch(*own, tree, entries.space_reaches, entries.group_spaces, table.clients)
        self.prepared = Prepared(*own, *tree, *self.search[7:], asks)
        # of spaces that have one cell, whatever there is
        self.more_in_any_case = int((np.maximum(sizes[sizes <= FLAT_SPACE] - 1, 0) // SLOTS).sum())

    @property
    def more(self) -> int:
        """How many chunks there are beside the first ones of cells."""
        return len(self.moving.chunks.homes) - int(self.moving.chunks.free[AVAILABLE])

    @property
    def nbytes(self) -> int:
        _, chunks, versions, lon, _, tree = self.moving
        used = int(chunks.free[NEVER_USED])
        others = (chunks.where, versions, lon, lon, *tree)
        return used * (8 * WORDS + 8) + sum(array.nbytes for array in others)


def _tree(entries: Entries, lon: F64Array, lat: F64Array, sizes: I64Array, cell_offsets: I64Array) -> CellTree:
    """Cut spaces of these sizes by where clients are."""
    spaces, clients = entries.table.spaces, entries.table.clients
    cuts, axes = np.zeros(int(cell_offsets[-1])), np.zeros(int(cell_offsets[-1]), np.uint8)
    somewhere = ~(np.isnan(lon) | np.isnan(lat))[clients]
    here = np.flatnonzero(somewhere & (sizes > FLAT_SPACE)[spaces])
    order = here[np.argsort(spaces[here], kind="stable")]
    keys = np.zeros((len(order), 4))
    at = clients[order]
    for axis, values in enumerate(points(lon[at], lat[at], plane=entries.plane)):
        keys[:, axis] = values
    space_entries = offsets_of(np.bincount(spaces[order], minlength=len(sizes)))
    cut(keys, order, space_entries, cell_offsets, cuts, axes)
    return all_frozen(CellTree(cell_offsets, cuts, axes))


class ClientCells:
    """Entries of clients, which move: each has a group, a client and a radius.

    All methods may be called by several threads at once. A search sees each client either before or after a move, in
    all of its entries; a search that begins after `move` has returned sees it after that.
    """

    def __init__(self, entries: Entries, lon: F64Array, lat: F64Array) -> None:
        self._entries = entries
        self._asks = np.zeros(1, np.int64)
        self._cells = _Cells(entries, lon, lat, self._asks)
        self._moving = threading.Lock()
        self._logs: tuple[weakref.ref[MoveLog], ...] = ()
        self._moved, self._patience = 0, _PATIENCE
        most = int(np.diff(entries.table.client_offsets).max(initial=0))
        self._mover = Mover(self._asks, np.empty(most, np.int64), np.empty(STRIPES, np.int64))

    @classmethod
    def of(
        cls,
        groups: I64Array,
        group_count: int,
        clients: I64Array,
        metres: F64Array,
        lon: F64Array,
        lat: F64Array,
        *,
        plane: bool,
    ) -> ClientCells:
        """Put entries into cells."""
        entries = Entries.of(groups, group_count, clients, metres, len(lon), plane=plane)
        return cls(entries, lon.astype(np.float64), lat.astype(np.float64))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._entries.nbytes + self._cells.nbytes

    @property
    def prepared(self) -> Prepared:
        """What a search gets (`PREPARED`) that begins now, of all in it until it ends."""
        return self._cells.prepared

    def near(self, places: Places, groups: Lists) -> Lists:
        """Entries whose client is within their radius of each message's place, in no order."""
        return self._find(None, places, groups)

    def inside(self, shapes: Shapes, places: Places | None, groups: Lists) -> Lists:
        """Entries whose client is in each message's area, and near its place, if there are places; in no order."""
        return self._find(shapes, places, groups)

    def _find(self, shapes: Shapes | None, places: Places | None, groups: Lists) -> Lists:
        entries, cells = self._entries, self._cells  # of one moment: both stay as they are, but for moves
        areas = _NO_AREAS if shapes is None else AreasOfMessages(shapes.kinds, shapes.values)
        messages, done, visits = len(groups), 0, visits_of(places, groups)
        origin = (0.0, 0.0) if entries.plane else (0.0, 0.0, 0.0)
        out = room_for(messages)
        while messages:
            done = find_clients(way(marked=entries.marked), origin, cells.search, visits, areas, self._asks, done, out)
            if done == messages:
                break
            out = longer(out, done, SLOTS)
        return found_in(out)

    def move(self, clients: I64Array, lon: F64Array, lat: F64Array) -> None:
        """Move clients, one after the other: of several moves of a client, the last one counts. Searches go on."""
        self.make(self.ready(clients, lon, lat))

    def ready(self, clients: I64Array, lon: F64Array, lat: F64Array) -> Moves:
        """What `make` needs to move clients: whatever memory that takes. Parameters and errors as `move`."""
        if len(clients) and not (int(clients.min()) >= 0 and int(clients.max()) < len(self._cells.moving.lon)):
            raise IndexError(
                f"clients are numbered from 0 to {len(self._cells.moving.lon) - 1}; to move others, make new cells"
            )
        clients, lon, lat = frozen(clients), frozen(lon), frozen(lat)
        return Moves(clients, lon, lat, *points(lon, lat, plane=self._entries.plane))

    def make(self, moves: Moves) -> None:
        """Make moves. If this is interrupted, call it once more."""
        with self._moving:
            done = 0
            while done < len(moves.clients):
                done = move_clients(self._entries.table, self._cells.moving, moves, done, self._mover)
                while self._asks[0] > 0:
                    time.sleep(_PAUSE_S)
            self._moved += len(moves.clients)
            for ref in self._logs:
                if (log := ref()) is not None:
                    log.add(moves)
            with contextlib.suppress(MemoryError):  # it does not have to be now
                self._even_out()

    @property
    def entries(self) -> Entries:
        """What is looked for, which never changes."""
        return self._entries

    @property
    def tree(self) -> CellTree:
        """The cells of each space; another one when cells have been made anew."""
        return self._cells.moving.tree

    def some(self, count: int) -> tuple[Places, U32Array]:
        """Places of the clients of some entries, from all over, and the groups of these; none if there are none."""
        entries, known = self._entries, len(self._entries)
        chosen = np.linspace(0, max(known - 1, 0), count if known else 0).astype(np.int64)
        at, cells = entries.table.clients[chosen], self._cells.moving
        groups = np.searchsorted(entries.group_spaces, entries.table.spaces[chosen], side="right") - 1
        return Places(cells.lon[at], cells.lat[at]), groups.astype(np.uint32)

    def tell(self, log: MoveLog) -> None:
        """Have moves in a log from now on, as long as somebody has it."""
        with self._moving:
            self._logs = (*(ref for ref in self._logs if ref() is not None), weakref.ref(log))

    def copied(self, log: MoveLog) -> tuple[F64Array, F64Array]:
        """Where all clients are at one time, from which on a log has the moves."""
        with self._moving:
            log.begin()
            return self._cells.moving.lon.copy(), self._cells.moving.lat.copy()

    def begin_anew(self) -> None:
        """Be as after a fork, of which nobody moves clients: no search asks for a pause."""
        self._asks[0] = 0
        self._moving = threading.Lock()

    def _even_out(self) -> None:
        """Make new cells if those that there are have become too full; searches under way go on with the old ones."""
        cells = self._cells
        most = cells.more_in_any_case + _FEW_MORE + _PART_OF_CELLS * cells.moving.size
        if cells.more > most and self._moved > self._patience * len(self._entries):
            self._cells = _Cells(self._entries, cells.moving.lon.copy(), cells.moving.lat.copy(), self._asks)
            helps = self._cells.more < _HELPS * cells.more
            self._patience = _PATIENCE if helps else min(2 * self._patience, _MOST_PATIENCE)
            self._moved = 0
