"""Areas that stay where they are, and clients that move, in the memory of one device.

Clients that move, on a device: a copy of where they are, of which each packet of messages reads one version.

Moves are made on the CPU, whose cells answer small packets, and wait in a log. Before the device has a packet, it makes
all that wait, which a kernel scatters, and arranges entries anew: each goes to the cell that the CPU's tree of cuts has
for it, cells in their order are cut into chunks of 16, and bounds of these make the tree that areas which stay have,
too. To count, sort and bound a million entries takes a device less than to copy their moves. Updates and packets are on
one stream, under one lock; so a message sees each client exactly once, either before or after its moves, and sees all
moves that have returned before it was sent.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Sequence
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.model.kernels.sphere import points, reach_of
from tagmatch.pipeline.areas.cells import MoveLog, Points, cell_of
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.areas.packing import AXIS, NUMBERS, SLOTS, WORDS, Packed, Places, around, levels_over
from tagmatch.pipeline.cuda.area_search import Answers, Askings, no_lists
from tagmatch.pipeline.cuda.device import Workspace, device_array, grid, kernel, prefix_sums, to_device
from tagmatch.pipeline.cuda.support import on_device

cuda: Any = numba.cuda

_BLOCK = 128
# Answers of the first packet for which there is room
_FIRST_ROOM = 1 << 16


@kernel
def mark_last(moves, clients, first, last):
    """One thread a move, which are numbered from `first` on: `last` has the number of each client's last move."""
    i = cuda.grid(1)
    if i < moves:
        cuda.atomic.max(last, clients[i], first + i)


@kernel
def put_last(moves, clients, x, y, z, first, last, all_x, all_y, all_z):
    """One thread a move: it takes place if it is its client's last."""
    i = cuda.grid(1)
    if i < moves:
        client = clients[i]
        if last[client] == first + i:
            all_x[client], all_y[client], all_z[client] = x[i], y[i], z[i]


@kernel
def clear_counts(cells, counts):
    """One thread a cell."""
    i = cuda.grid(1)
    if i < cells:
        counts[i] = 0


@kernel
def count_cells(entries, spaces, clients, x, y, z, space_cells, cuts, axes, cells, counts):
    """One thread an entry: its cell, any of its space for a client that is nowhere, and how many each cell has."""
    i = cuda.grid(1)
    if i < entries:
        space, client = np.int64(spaces[i]), np.int64(clients[i])
        cell = np.int64(space_cells[space])
        if not math.isnan(x[client]):
            cell = cell_of(space, x[client], y[client], z[client], space_cells, cuts, axes)
        cells[i] = cell
        cuda.atomic.add(counts, cell, 1)


@kernel
def fill_chunks(entries, clients, limits, x, y, z, cells, ends, counts, words, numbers):
    """One thread an entry: it takes a slot of its cell's, from the back; `counts` say how many are still to come."""
    i = cuda.grid(1)
    if i < entries:
        cell, client = cells[i], np.int64(clients[i])
        at = ends[cell] + cuda.atomic.sub(counts, cell, 1) - 1
        chunk, slot = at // SLOTS, at % SLOTS
        first = chunk * WORDS + slot
        words[first], words[first + SLOTS], words[first + 2 * SLOTS] = x[client], y[client], z[client]
        words[first + 3 * SLOTS] = limits[i]
        numbers[2 * chunk * WORDS + NUMBERS + slot] = i


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


class CudaClients:
    """Entries of clients that move, as of `ClientCells`, on a device. Any number of threads may share it."""

    def __init__(self, cells: ClientCells, device: int = 0) -> None:
        entries = cells.entries
        self._cells, self._device, self._plane = cells, device, entries.plane
        self._count, self._clients = len(entries.spaces), len(entries.client_offsets) - 1
        self._axes = 2 if entries.plane else 3
        self._lock = threading.Lock()
        self._log = MoveLog(self._clients)
        # How many moves there were, and of which tree of cuts the device has a copy
        self._moves = 0
        self._of_tree: tuple[Any, ...] | None = None
        self._levels = levels_over(-(-self._count // SLOTS))
        sizes = np.bincount(entries.spaces, minlength=int(entries.group_spaces[-1]))
        with on_device(device):
            self._workspace = Workspace()
            self._entries = tuple(to_device(each) for each in (entries.spaces, entries.clients, entries.limits))
            self._points = tuple(device_array(np.float64, self._clients) for _ in range(3))
            self._last = to_device(np.full(self._clients, -1))
            words = device_array(np.float64, -(-self._count // SLOTS) * WORDS)
            bounds = device_array(np.float64, int(self._levels[-1]) * self._axes * AXIS)
            starts = to_device(offsets_of(sizes)[entries.group_spaces])
            self._tree = (starts, words, words.view(np.uint32), bounds, to_device(self._levels))
            self._answers = Answers([(self._tree, False)], _FIRST_ROOM, device)
        cells.tell(self._log)
        # All kernels are compiled by this thread, before others want them
        self.near(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))
        with on_device(device):
            self._make([])

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets and moves take on their way."""
        arrays = (*self._entries, *self._points, self._last, *self._tree[:2], *self._tree[3:])
        return sum(int(array.nbytes) for array in arrays)

    def near(self, places: Places, groups: Lists) -> Lists:
        """As of `ClientCells`, of one version for all messages."""
        if not self._count or not len(groups.values):
            return no_lists(len(places))
        with self._lock:
            try:
                with on_device(self._device):
                    self._workspace.stream.synchronize()  # a call that failed may have left something behind
                    self._update()
                    askings = self.sent(places, groups, self._workspace)
                    return self._answers.lists(askings)
            except DeviceMemoryError:
                self._answers.forget()
                with on_device(self._device):
                    self._workspace.clear()
                raise

    def sent(self, places: Places, groups: Lists, workspace: Workspace) -> Askings:
        """Copy messages' places and groups to the device."""
        return Askings.sent(places, groups, workspace, plane=self._plane, of_points=True)

    def launch(self, askings: Askings) -> None:
        """Have kernels find what they ask for, where clients were at the last update, and nothing more."""
        self._answers.search(askings)

    def update(self) -> None:
        """Make all moves that wait now, not before the next packet, and wait until they are made."""
        if not self._count:
            return
        with self._lock, on_device(self._device):
            self._workspace.stream.synchronize()
            self._update()
            self._workspace.stream.synchronize()

    def _update(self) -> None:
        """Make all moves that wait, and arrange entries by where clients are then."""
        try:
            moves, tree = self._log.take(), self._cells.tree
            if moves is None:
                self._copy_all()
            elif moves:
                self._make(moves)
            elif tree is self._of_tree:
                return
            if tree is not self._of_tree:
                self._cuts, self._of_tree = tuple(map(to_device, tree)), tree
            self._arrange(int(tree[0][-1]))
        except BaseException:
            self._log.forget()
            raise

    def _copy_all(self) -> None:
        lon, lat = self._cells.copied(self._log)
        x, y, z = points(lon, lat, plane=self._plane)
        x[np.isnan(lon) | np.isnan(lat)] = np.nan
        for there, here in zip(self._points, (x, y, z), strict=True):
            there.copy_to_device(here)

    def _make(self, moves: Sequence[Points]) -> None:
        """Have clients be elsewhere: of several moves of one, the last counts."""
        workspace, count = self._workspace, sum(len(each.clients) for each in moves)
        sent = []
        for column, name in enumerate(Points._fields):
            dtype = np.uint32 if name == "clients" else np.float64
            pinned = workspace.pinned(f"moved {name}", dtype, count)
            np.concatenate([np.empty(0, dtype), *(each[column] for each in moves)], out=pinned)
            sent.append(workspace.upload(f"moved {name}", pinned))
        launched = (*grid(count, _BLOCK), workspace.stream)
        mark_last[launched](count, sent[0], self._moves, self._last)
        put_last[launched](count, *sent, self._moves, self._last, *self._points)
        self._moves += count

    def _arrange(self, cells: int) -> None:
        """Put entries into their cells, cells into chunks, and bounds around these."""
        workspace, count = self._workspace, self._count
        stream, entries = workspace.stream, (*grid(count, _BLOCK), workspace.stream)
        counts = workspace.device("counts of cells", np.int32, cells)
        cells_of = workspace.device("cells of entries", np.int32, count)
        spaces, clients, limits = self._entries
        _, words, numbers, bounds, _ = self._tree
        clear_counts[(*grid(cells, _BLOCK), stream)](cells, counts)
        count_cells[entries](count, spaces, clients, *self._points, *self._cuts, cells_of, counts)
        ends = prefix_sums("ends of cells", counts, cells, workspace)
        fill_chunks[entries](count, clients, limits, *self._points, cells_of, ends, counts, words, numbers)
        firsts, sizes = self._levels[:-1].tolist(), np.diff(self._levels).tolist()
        children = sizes[0] * SLOTS
        bound_chunks[(*grid(children, _BLOCK), stream)](count, children, self._axes, words, bounds)
        for level in range(1, len(sizes)):
            children = sizes[level] * SLOTS
            bound_records[(*grid(children, _BLOCK), stream)](
                firsts[level - 1], sizes[level - 1], firsts[level], children, self._axes, bounds
            )


# Answers of the first packet for which there is room


def _sent(packed: Packed) -> tuple[Any, ...]:
    """The arrays of areas of one kind on the device, where numbers are in the words, too."""
    words = to_device(packed.words)
    return (
        to_device(packed.group_offsets),
        words,
        words.view(np.uint32),
        to_device(packed.bounds),
        to_device(packed.levels),
    )


class CudaFixedAreas:
    """Areas in groups, as of `FixedAreas`, on a device. Any number of threads may share it."""

    def __init__(self, areas: FixedAreas, device: int = 0, streams: int = 1) -> None:
        self._device, self._plane = device, areas.plane
        self._has_circles = len(areas.circles.numbers) > 0
        self._free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        with on_device(device):
            kinds = ((areas.circles, False), (areas.boxes, True))
            self._trees = [(_sent(packed), boxes) for packed, boxes in kinds if len(packed.numbers)]
            self._answers = Answers(self._trees, _FIRST_ROOM, device)
            for _ in range(streams):
                self._free.put(Workspace())
        # `numbers` are in `words`
        self.nbytes = sum(int(array.nbytes) for tree, _ in self._trees for array in (*tree[:2], *tree[3:]))
        # All kernels are compiled by this thread, before others want them
        self.holding(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))

    def holding(self, places: Places, groups: Lists) -> Lists:
        """As of `FixedAreas`."""
        if not self._trees or not len(groups.values):
            return no_lists(len(places))
        workspace = self._free.get()
        try:
            with on_device(self._device):
                workspace.stream.synchronize()  # a call that failed may have left something behind
                askings = self.sent(places, groups, workspace)
                return self._answers.lists(askings)
        except DeviceMemoryError:
            self._answers.forget()
            with on_device(self._device):
                workspace.clear()
            raise
        finally:
            self._free.put(workspace)

    def sent(self, places: Places, groups: Lists, workspace: Workspace) -> Askings:
        """Copy messages' places and groups to the device."""
        return Askings.sent(places, groups, workspace, plane=self._plane, of_points=self._has_circles)

    def launch(self, askings: Askings) -> None:
        """Have kernels find what they ask for, and nothing more."""
        self._answers.search(askings)


class CudaAreas:
    """What finds areas and clients of an index on a device, as of `DeviceFinder`."""

    def __init__(self, index: AreaIndex, device: int = 0, streams: int = 1) -> None:
        self._fixed = CudaFixedAreas(index.fixed, device, streams) if len(index.fixed_rows) else None
        self._clients = None if index.followers is None else CudaClients(index.followers.cells, device)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets take on their way."""
        return sum(part.nbytes for part in (self._fixed, self._clients) if part is not None)

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that stay, which have each message's place."""
        return no_lists(len(places)) if self._fixed is None else self._fixed.holding(places, groups)

    def near(self, places: Places, groups: Lists) -> Lists:
        """Entries of clients near each message's place."""
        return no_lists(len(places)) if self._clients is None else self._clients.near(places, groups)
