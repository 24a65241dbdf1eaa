"""Areas that stay where they are, and clients that move, in the memory of one device.

Moves are made on the CPU, whose cells answer small packets, and wait in a log. Before the device has a packet, it makes
all that wait, which a kernel scatters, and arranges entries anew: each goes to the cell that the CPU's tree of cuts has
for it, cells in their order are cut into chunks of 16, and bounds of these make the tree that areas which stay have,
too. To count, sort and bound a million entries takes a device less than to copy their moves. Updates and packets have
one workspace, one at a time; so a message sees each client exactly once, either before or after its moves, and sees all
moves that have returned before it was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.model.kernels.sphere import points, reach_of
from tagmatch.pipeline.areas.cells import CellTree, cell_of
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, Places, around
from tagmatch.pipeline.areas.clients import ClientCells, MoveLog, Points
from tagmatch.pipeline.areas.fixed import AXIS, AreaTree, FixedAreas, levels_over
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.cuda.area_search import Searches
from tagmatch.pipeline.cuda.device import (
    Workspace,
    bytes_of,
    clear,
    device_array,
    grid,
    kernel,
    prefix_sums,
    sent,
    to_device,
    typed,
)
from tagmatch.pipeline.cuda.support import on_device

cuda: Any = numba.cuda

_BLOCK = 128


@kernel
def mark_last(moves, clients, first, last):
    """One thread a move, which are numbered from `first` on: `last` has the number of each client's last move."""
    i = cuda.grid(1)
    if i < moves:
        cuda.atomic.max(last, clients[i], first + i)


class PointArrays(NamedTuple):
    """Where clients are; `x` is NaN for one that is nowhere."""

    x: Any
    y: Any
    z: Any


class _Entries(NamedTuple):
    """What does not change of entries, from `EntryTable`."""

    spaces: Any
    clients: Any
    limits: Any


@kernel
def put_last(moves, moved, first, last, at):
    """One thread a move: it takes place if it is its client's last."""
    i = cuda.grid(1)
    if i < moves:
        client = moved.clients[i]
        if last[client] == first + i:
            at.x[client], at.y[client], at.z[client] = moved.x[i], moved.y[i], moved.z[i]


@kernel
def count_cells(count, entries, at, tree, cells, counts):
    """One thread an entry: its cell, any of its space for a client that is nowhere, and how many each cell has."""
    i = cuda.grid(1)
    if i < count:
        space, client = np.int64(entries.spaces[i]), np.int64(entries.clients[i])
        cell = np.int64(tree.space_cells[space])
        if not math.isnan(at.x[client]):
            cell = cell_of(tree, space, at.x[client], at.y[client], at.z[client])
        cells[i] = cell
        cuda.atomic.add(counts, cell, 1)


@kernel
def fill_chunks(count, entries, at, cells, ends, counts, tree):
    """One thread an entry: it takes a slot of its cell's, from the back; `counts` say how many are still to come."""
    i = cuda.grid(1)
    if i < count:
        cell, client = cells[i], np.int64(entries.clients[i])
        place = ends[cell] + cuda.atomic.sub(counts, cell, 1) - 1
        chunk, slot = place // SLOTS, place % SLOTS
        first, words = chunk * WORDS + slot, tree.words
        words[first], words[first + SLOTS], words[first + 2 * SLOTS] = at.x[client], at.y[client], at.z[client]
        words[first + 3 * SLOTS] = entries.limits[i]
        tree.numbers[2 * chunk * WORDS + NUMBERS + slot] = i


@kernel
def bound_chunks(entries, children, axes, words, bounds):
    """One thread a child of the lowest records: the bounds of its chunk, which meet nothing if it has nobody."""
    i = np.int64(cuda.grid(1))
    if i < children:
        for axis in range(axes):
            lowest, highest = math.inf, -math.inf
            for slot in range(min(SLOTS, entries - i * SLOTS)):
                at = i * WORDS + slot
                if not math.isnan(words[at]):
                    low, high = around(words[at + axis * SLOTS], reach_of(words[at + 3 * SLOTS], axes == 2))
                    lowest, highest = min(lowest, low), max(highest, high)
            at = (i // SLOTS * axes + axis) * AXIS + i % SLOTS
            bounds[at], bounds[at + SLOTS] = lowest, highest


@kernel
def bound_records(first_below, below, first, children, axes, bounds):
    """One thread a child of a level's records: the bounds of a record below it, if there is one."""
    i = np.int64(cuda.grid(1))
    if i < children:
        for axis in range(axes):
            lowest, highest = math.inf, -math.inf
            if i < below:
                of_child = ((first_below + i) * axes + axis) * AXIS
                for slot in range(SLOTS):
                    lowest = min(lowest, bounds[of_child + slot])
                    highest = max(highest, bounds[of_child + SLOTS + slot])
            at = ((first + i // SLOTS) * axes + axis) * AXIS + i % SLOTS
            bounds[at], bounds[at + SLOTS] = lowest, highest


class CudaClients(Searches):
    """Entries of clients that move (see `ClientCells`), on a device, with one stream for packets and moves."""

    def __init__(self, cells: ClientCells, device: int = 0) -> None:
        entries = cells.entries
        super().__init__(device, 1, plane=entries.plane, of_points=True)
        self._cells, self._count = cells, len(entries)
        self._axes, clients = 2 if entries.plane else 3, len(entries.table.client_offsets) - 1
        self._log = MoveLog(clients)
        # How many moves there were, and of which tree of cuts the device has a copy
        self._moves = 0
        self._of_tree: CellTree | None = None
        chunks = -(-self._count // SLOTS)
        self._levels = levels_over(chunks)
        sizes = np.bincount(entries.table.spaces, minlength=int(entries.group_spaces[-1]))
        with on_device(device):
            self._entries = sent(_Entries(*entries.table[:3]))
            self._at = typed(PointArrays(*(device_array(np.float64, clients) for _ in range(3))))
            self._last = to_device(np.full(clients, -1))
            words = device_array(np.float64, chunks * WORDS)
            bounds = device_array(np.float64, int(self._levels[-1]) * self._axes * AXIS)
            starts = to_device(offsets_of(sizes)[entries.group_spaces])
            self._tree = typed(AreaTree(starts, words, words.view(np.uint32), bounds, to_device(self._levels)))
        if self._count:
            self.trees.append((self._tree, False))
        cells.tell(self._log)
        # All kernels are compiled by this thread, before others want them
        self.near(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))
        with self.workspace() as workspace:
            self._make([], workspace)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets take on their way."""
        return super().nbytes + bytes_of(self._entries, self._at, self._last)

    #: Entries of clients near each message's place, all at one time
    near = Searches.find

    def update(self) -> None:
        """Make all moves that wait now, not before the next packet, and wait until they are made."""
        if not self._count:
            return
        with self.workspace() as workspace:
            self.ready(workspace)
            workspace.stream.synchronize()

    def ready(self, workspace: Workspace) -> None:
        """Make all moves that wait, and arrange entries by where clients are then."""
        try:
            moves, tree = self._log.take(), self._cells.now.moving.tree
            if moves is None:
                self._copy_all()
            elif moves:
                self._make(moves, workspace)
            elif tree is self._of_tree:
                return
            if tree is not self._of_tree:
                self._cuts, self._of_tree = sent(tree), tree
            self._arrange(int(tree.space_cells[-1]), workspace)
        except BaseException:
            self._log.forget()
            raise

    def _copy_all(self) -> None:
        lon, lat = self._cells.copied(self._log)
        x, y, z = points(lon, lat, plane=self._plane)
        x[np.isnan(lon) | np.isnan(lat)] = np.nan
        for there, here in zip(self._at, (x, y, z), strict=True):
            there.copy_to_device(here)

    def _make(self, moves: Sequence[Points], workspace: Workspace) -> None:
        """Have clients be elsewhere: of several moves of one, the last counts."""
        count, columns = sum(len(each.clients) for each in moves), []
        for column, name in enumerate(Points._fields):
            dtype = np.uint32 if name == "clients" else np.float64
            pinned = workspace.pinned(f"moved {name}", dtype, count)
            np.concatenate([np.empty(0, dtype), *(each[column] for each in moves)], out=pinned)
            columns.append(workspace.upload(f"moved {name}", pinned))
        moved, launched = Points(*columns), (*grid(count, _BLOCK), workspace.stream)
        mark_last[launched](count, moved.clients, self._moves, self._last)
        put_last[launched](count, moved, self._moves, self._last, self._at)
        self._moves += count

    def _arrange(self, cells: int, workspace: Workspace) -> None:
        """Put entries into their cells, cells into chunks, and bounds around these."""
        count, stream, bounds = self._count, workspace.stream, self._tree.bounds
        by_entry = (*grid(count, _BLOCK), stream)
        counts = workspace.device("counts of cells", np.int32, cells)
        cells_of = workspace.device("cells of entries", np.int32, count)
        clear(counts, cells, stream)
        count_cells[by_entry](count, self._entries, self._at, self._cuts, cells_of, counts)
        ends = prefix_sums("ends of cells", counts, cells, workspace)
        fill_chunks[by_entry](count, self._entries, self._at, cells_of, ends, counts, self._tree)
        firsts, sizes = self._levels[:-1].tolist(), np.diff(self._levels).tolist()
        children = sizes[0] * SLOTS
        bound_chunks[(*grid(children, _BLOCK), stream)](count, children, self._axes, self._tree.words, bounds)
        for level in range(1, len(sizes)):
            children = sizes[level] * SLOTS
            bound_records[(*grid(children, _BLOCK), stream)](
                firsts[level - 1], sizes[level - 1], firsts[level], children, self._axes, bounds
            )


class CudaFixedAreas(Searches):
    """Areas in groups (see `FixedAreas`), on a device."""

    def __init__(self, areas: FixedAreas, device: int = 0, streams: int = 1) -> None:
        super().__init__(device, streams, plane=areas.plane, of_points=len(areas.circles.numbers) > 0)
        with on_device(device):
            for tree, boxes in ((areas.circles, False), (areas.boxes, True)):
                if len(tree.numbers):
                    slots, words = to_device(tree.slots), to_device(tree.words)
                    bounds, levels = to_device(tree.bounds), to_device(tree.levels)
                    self.trees.append((typed(AreaTree(slots, words, words.view(np.uint32), bounds, levels)), boxes))
        # All kernels are compiled by this thread, before others want them
        self.holding(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))

    #: Areas that have each message's place
    holding = Searches.find


class CudaAreas:
    """What finds areas and clients of an index on a device: a `Searcher`."""

    def __init__(self, index: AreaIndex, device: int = 0, streams: int = 1) -> None:
        self._fixed = CudaFixedAreas(index.fixed, device, streams)
        self._clients = None if index.followers is None else CudaClients(index.followers.cells, device)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets take on their way."""
        return self._fixed.nbytes + (0 if self._clients is None else self._clients.nbytes)

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that stay, which have each message's place."""
        return self._fixed.holding(places, groups)

    def near(self, places: Places, groups: Lists) -> Lists:
        """Entries of clients near each message's place, of an index that has followers."""
        assert self._clients is not None
        return self._clients.near(places, groups)
