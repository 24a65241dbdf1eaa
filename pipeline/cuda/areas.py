"""Fixed areas, and clients that move, in the memory of one device, and the search of both.

Chunks and their bounds are those of `tagmatch.pipeline.areas.fixed`, and so are all rules: bounds only say where to
look, and float64 decides, by products and sums that are rounded as on the CPU. Above the chunks is a tree of bounds: a
record has those of 16 chunks, or of 16 records of the level below it. A warp, which is a block, goes down a tree for a
message and a group at a time, with a stack of the records to look at in shared memory: chunks, and records of the tree
by level. It takes two at once, so that each lane has a slot: of a chunk it tests the area, of a record the
bounds of a child, which then goes on the stack. From the top of a group, a level adds 32 at most.

Clients' moves are made on the CPU, whose cells answer small packets, and wait in a log. Before the device has a packet,
it makes all that wait, which a kernel scatters, and arranges entries anew: each goes to the cell that the CPU's tree of
cuts has for it, cells in their order are cut into chunks of 16, and bounds of these make a tree, too. To count, sort
and bound a million entries takes a device less than to copy their moves. Updates and packets have one workspace, one at
a time; so a message sees each client exactly once, either before or after its moves, and sees all moves that have
returned before it was sent.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, Lists, bytes_of, narrow_offsets, offsets_of
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.model.kernels.sphere import is_in_box, near_rules, points, reach_of
from tagmatch.pipeline.areas.cells import CellTree, cell_of
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, Places, around
from tagmatch.pipeline.areas.clients import ClientCells, MoveLog, Points
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.grids import AreaGrid, chunk_bounds
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.device import (
    PinnedPool,
    Workspace,
    clear,
    device_array,
    grid,
    inlined,
    kernel,
    plus,
    prefix_sums,
    sent,
    times,
    to_device,
    typed,
)
from tagmatch.pipeline.cuda.pairs import Room, kept

cuda: Any = numba.cuda

# Words of a record for each axis: 16 lows and 16 highs; and of how many times a record its children are 16, as a power
# of two
_AXIS, _FAN_OUT = 2 * SLOTS, 4
# Most chunks of a group that is searched without a look at bounds
_FLAT = 3
_BLOCK = 128
# Answers of the first packet for which there is room
_FIRST_ROOM = 1 << 16
#: Threads of a block, a warp; what it takes from its stack at once; and messages with a group each that it has in turn
_THREADS = 32
_AT_ONCE = 2
_EACH = 4
# Room of the stack: 2**32 areas have seven levels of records; each adds 32, to at most three at the top
_STACK = 256
# Where a word of the stack has the level: 0 for chunks, at most 2**28 in number
_LEVEL = 28
# Answers of a block that wait to be written together; with room for less than what one step adds, they are written
_HITS = 256
# Places in `state`: how many are on the stack, and how many of these were taken
_WAITING, _TAKEN = 0, 1
# Places in `staged`: answers that wait, and segments of these; and in counters, how many of both were written
_FOUND, _SEGMENTS = 0, 1

_, _is_near = near_rules(times, plus, inlined)


class AreaTree(NamedTuple):
    """Areas of one kind in chunks, or entries of clients, and the tree of their bounds."""

    slots: Any  # Areas of group `g` are in slots `slots[g]` to `slots[g + 1]`
    words: Any  # Chunks, and their numbers
    numbers: Any
    bounds: Any  # Records, `_AXIS` words for each axis of space
    # Of each level its first record, from the level above the chunks on; at last how many records there are
    levels: Any


def _levels_over(chunk_count: int) -> I64Array:
    """The levels of a tree over this number of chunks (see `AreaTree`)."""
    records = [-(-chunk_count // SLOTS)]
    while records[-1] > 1:
        records.append(-(-records[-1] // SLOTS))
    levels: I64Array = offsets_of(np.array(records))
    return levels


def _tree_of(areas: AreaGrid, *, boxes: bool, plane: bool) -> AreaTree:
    """Areas on a device, with a tree of the bounds that their chunks have."""
    below = chunk_bounds(areas.words, int(areas.slots[-1]), not boxes, plane)
    levels, records = _levels_over(len(below)), []
    for count in np.diff(levels).tolist():
        children = np.full((count * SLOTS, *below.shape[1:]), [np.inf, -np.inf], np.float32)
        children[: len(below)] = below
        records.append(children.reshape(count, SLOTS, -1, 2).transpose(0, 2, 3, 1))
        below = np.stack([records[-1][:, :, 0].min(axis=-1), records[-1][:, :, 1].max(axis=-1)], axis=-1)
    bounds = np.concatenate([each.ravel() for each in records])
    slots, words, bounds, levels = (to_device(each) for each in (areas.slots, areas.words, bounds, levels))
    return typed(AreaTree(slots, words, words.view(np.uint32), bounds, levels))


class AskingArrays(NamedTuple):
    """Groups to be sought in messages' places: an asking is one group of a message."""

    owners: Any  # The message of each asking, and its group
    groups: Any
    lon: Any  # Of each message; on the plane, `z` is not used, nor are `x` to `z` if no points are asked for
    lat: Any
    x: Any
    y: Any
    z: Any


class SegmentArrays(NamedTuple):
    """What is found, in segments of one message each."""

    found: Any
    messages: Any  # Of each segment its message, the first place in `found`, and how many are there
    firsts: Any
    sizes: Any
    counts: Any  # How many each message has
    counters: Any


@kernel
def spread_owners(messages, offsets, owners):
    """One thread a message: `owners` names it at each place of its list."""
    i = cuda.grid(1)
    if i < messages:
        for at in range(offsets[i], offsets[i + 1]):
            owners[at] = i


@inlined
def _begin(stack, first, last):
    """Put the top of a group, whose slots are these, on the stack: two records or a few chunks; returns how many."""
    low, high, level = first // SLOTS, (last - 1) // SLOTS, 0
    if high - low >= _FLAT:
        level = 1
        while (high >> (_FAN_OUT * level)) - (low >> (_FAN_OUT * level)) > 1:
            level += 1
    low, high = low >> (_FAN_OUT * level), high >> (_FAN_OUT * level)
    for number in range(low, high + 1):
        stack[number - low] = (np.int64(level) << _LEVEL) | number
    return high + 1 - low


@inlined
def _spans(bounds, at, value):
    """Whether bounds on one axis, whose low is at a place, have a number."""
    return bounds[at] <= value and bounds[at + SLOTS] >= value


@inlined
def _open(segments, waiting, message):
    """Count the answers from now on as a message's; one thread."""
    staged, _, messages, firsts, _ = waiting
    messages[segments] = message
    firsts[segments] = staged[_FOUND]
    staged[_SEGMENTS] = segments + 1


@inlined
def _write_all(waiting, out):
    """Append the answers that wait, and their messages, as far as there is room; all threads."""
    staged, areas, messages, firsts, place = waiting
    cuda.syncthreads()
    count, segments = staged[_FOUND], staged[_SEGMENTS]
    if cuda.threadIdx.x == 0 and count:
        place[_FOUND] = cuda.atomic.add(out.counters, _FOUND, count)
        place[_SEGMENTS] = cuda.atomic.add(out.counters, _SEGMENTS, segments)
    cuda.syncthreads()
    if count:
        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            if place[_FOUND] + i < len(out.found):
                out.found[place[_FOUND] + i] = areas[i]
        for i in range(cuda.threadIdx.x, segments, cuda.blockDim.x):
            end = count
            if i + 1 < segments:
                end = firsts[i + 1]
            size = end - firsts[i]
            at = place[_SEGMENTS] + i
            if at < len(out.messages):
                out.messages[at] = messages[i]
                out.firsts[at] = place[_FOUND] + firsts[i]
                out.sizes[at] = size
            if size:
                cuda.atomic.add(out.counts, messages[i], size)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        staged[_FOUND] = 0
        staged[_SEGMENTS] = 0
    cuda.syncthreads()


@kernel
def clear_answers(messages, out):
    """One thread a message."""
    i = cuda.grid(1)
    if i == 0:
        out.counters[_FOUND] = 0
        out.counters[_SEGMENTS] = 0
    if i < messages:
        out.counts[i] = 0


@kernel
def order_answers(segments, found, ends, out):
    """A block copies a few segments to their messages' lists, from the back; `counts` say how many are to come."""
    place = cuda.shared.array(1, np.int64)
    thread = cuda.threadIdx.x
    begin = np.int64(cuda.blockIdx.x) * _EACH
    for segment in range(begin, min(begin + _EACH, segments)):
        size = found.sizes[segment]
        if thread == 0 and size:
            message = found.messages[segment]
            place[0] = ends[message] + cuda.atomic.sub(found.counts, message, size) - size
        cuda.syncthreads()
        for i in range(thread, size, cuda.blockDim.x):
            out[place[0] + i] = found.found[found.firsts[segment] + i]
        cuda.syncthreads()


@kernel
def find_areas(askings, asked, tree, plane, boxes, out):
    """Append the areas of each asking's group that have the place of its message, its owner; a block has a few askings.

    Places are also points, for which circles are sought; the bounds of boxes have two axes also on the sphere.
    """
    stack = cuda.shared.array(_STACK, np.int64)
    taken = cuda.shared.array(_AT_ONCE, np.int64)
    state = cuda.shared.array(2, np.int32)
    staged = cuda.shared.array(2, np.int32)
    areas = cuda.shared.array(_HITS, np.uint32)
    messages = cuda.shared.array(_EACH, np.int64)
    firsts = cuda.shared.array(_EACH, np.int32)
    place = cuda.shared.array(2, np.int64)
    waiting = staged, areas, messages, firsts, place
    words, bounds = tree.words, tree.bounds
    thread = cuda.threadIdx.x
    axes = 2 if plane or boxes else 3
    if thread == 0:
        staged[_FOUND] = 0
        staged[_SEGMENTS] = 0
    begin = np.int64(cuda.blockIdx.x) * _EACH
    for asking in range(begin, min(begin + _EACH, askings)):
        message, group = np.int64(asked.owners[asking]), np.int64(asked.groups[asking])
        at_lon, at_lat = asked.lon[message], asked.lat[message]
        first, last = tree.slots[group], tree.slots[group + 1]
        if first == last or math.isnan(at_lon) or math.isnan(at_lat):
            continue
        px, py, pz = asked.x[message], asked.y[message], 0.0
        if axes == 3:
            pz = asked.z[message]
        across, up = px, py
        if boxes:
            across, up = at_lon, at_lat
        if thread == 0:
            state[_WAITING] = _begin(stack, first, last)
            _open(staged[_SEGMENTS], waiting, message)
        while True:
            if thread == 0:
                state[_TAKEN] = min(state[_WAITING], _AT_ONCE)
                state[_WAITING] -= state[_TAKEN]
                for i in range(state[_TAKEN]):
                    taken[i] = stack[state[_WAITING] + i]
            cuda.syncthreads()
            count = state[_TAKEN]
            if count == 0:
                break
            for lane in range(thread, count * SLOTS, cuda.blockDim.x):
                word, slot = taken[lane // SLOTS], lane % SLOTS
                level, number = word >> _LEVEL, word & ((1 << _LEVEL) - 1)
                child = number * SLOTS + slot
                if level == 0:
                    if first <= child and child < last:
                        at = number * WORDS + slot
                        a, b, c, d = words[at], words[at + SLOTS], words[at + 2 * SLOTS], words[at + 3 * SLOTS]
                        if boxes:
                            has = is_in_box(a, b, c, d, at_lon, at_lat, plane)
                        else:
                            has = _is_near(a, b, c, d, px, py, pz, plane)
                        if has:
                            areas[cuda.atomic.add(staged, _FOUND, 1)] = tree.numbers[at + number * WORDS + NUMBERS]
                else:
                    shift = _FAN_OUT * (level - 1)
                    at = (tree.levels[level - 1] + number) * axes * _AXIS + slot
                    if (
                        child >= (first // SLOTS) >> shift
                        and child <= ((last - 1) // SLOTS) >> shift
                        and _spans(bounds, at, across)
                        and _spans(bounds, at + _AXIS, up)
                        and (axes == 2 or _spans(bounds, at + 2 * _AXIS, pz))
                    ):
                        stack[cuda.atomic.add(state, _WAITING, 1)] = ((level - 1) << _LEVEL) | child
            cuda.syncthreads()
            if staged[_FOUND] > _HITS - _AT_ONCE * SLOTS:
                _write_all(waiting, out)
                if thread == 0:
                    _open(0, waiting, message)
        cuda.syncthreads()  # all have seen that nothing was taken
    _write_all(waiting, out)


class Askings(NamedTuple):
    """Messages' places on the device, and the groups to seek each in."""

    workspace: Workspace
    messages: int
    askings: int
    arrays: AskingArrays


class Searches:
    """What finds areas in some trees on a device, with as much room as earlier packets needed.

    Any number of threads may share it: as many as there are streams search at a time.
    """

    def __init__(self, device: int, streams: int, *, plane: bool, of_points: bool) -> None:
        self._device, self._plane, self._of_points = device, plane, of_points
        self.trees: list[tuple[AreaTree, bool]] = []  # of circles, and of boxes
        self._room, self._pool = Room(_FIRST_ROOM), PinnedPool(device)
        self._free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        with on_device(device):
            for _ in range(streams):
                self._free.put(Workspace())

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, except for what packets take on their way."""
        return sum(bytes_of(tree.slots, tree.words, tree.bounds, tree.levels) for tree, _ in self.trees)

    def sent(self, places: Places, groups: Lists, workspace: Workspace) -> Askings:
        """Copy messages to the device; the CPU makes points of places, as the device's sines and cosines are others."""
        first, last = int(groups.offsets[0]), int(groups.offsets[-1])
        count = last - first
        offsets = workspace.send("group offsets", groups.offsets.astype(np.int64) - first)
        owners = workspace.device("owners", np.uint32, count)
        spread_owners[(*grid(len(groups), _BLOCK), workspace.stream)](len(groups), offsets, owners)
        asked = workspace.send("groups", groups.values[first:last])
        lon, lat = workspace.send("lon", places.lon), workspace.send("lat", places.lat)
        point = lon, lat, lon
        if self._of_points and not self._plane:
            numbers = points(places.lon, places.lat, plane=False)
            x, y, z = (workspace.send(name, axis) for name, axis in zip("xyz", numbers, strict=True))
            point = x, y, z
        return Askings(workspace, len(groups), count, typed(AskingArrays(owners, asked, lon, lat, *point)))

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """A workspace for a packet; its arrays are given back if memory was short."""
        workspace = self._free.get()
        try:
            with on_device(self._device):
                workspace.stream.synchronize()  # a call that failed may have left something behind
                yield workspace
        except DeviceMemoryError:
            self._room.forget()
            with on_device(self._device):
                workspace.clear()
            raise
        finally:
            self._free.put(workspace)

    def ready(self, workspace: Workspace) -> None:
        """Prepare for a packet."""

    def compile(self) -> None:
        """Compile all kernels in this thread, before others want them."""
        self.find(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))

    def find(self, places: Places, groups: Lists) -> Lists:
        """Areas, or entries, of the groups of each message that have its place, in no order."""
        if not self.trees or not len(groups.values):
            return Lists(np.zeros(len(groups) + 1, np.int64), np.zeros(0, np.uint32))
        with self.workspace() as workspace:
            self.ready(workspace)
            return self._lists(self.sent(places, groups, workspace))

    def launch(self, askings: Askings) -> SegmentArrays:
        """Launch the kernels that find areas, and nothing more; the arrays that they write to."""
        workspace, count = askings.workspace, askings.askings
        found = workspace.device("found", np.uint32, self._room.pairs)
        # One for each asking, and one more for each time that a block had many answers
        segments = count * len(self.trees) + 2 * len(found) // _HITS + 1
        out = typed(SegmentArrays(
            found,
            workspace.device("messages of segments", np.uint32, segments),
            workspace.device("firsts of segments", np.int64, segments),
            workspace.device("sizes of segments", np.int32, segments),
            workspace.device("counts of answers", np.int32, askings.messages),
            workspace.device("counters of answers", np.int64, 2),
        ))  # fmt: skip
        clear_answers[(*grid(askings.messages, _BLOCK), workspace.stream)](askings.messages, out)
        blocks = grid(count, _EACH)[0], _THREADS, workspace.stream
        for tree, boxes in self.trees if count else []:
            find_areas[blocks](count, askings.arrays, tree, self._plane, boxes, out)
        return out

    def _lists(self, askings: Askings) -> Lists:
        """Areas that are found in all trees, of each message; with too little room, once more."""
        workspace, messages = askings.workspace, askings.messages
        while True:
            found = self.launch(askings)
            counted = workspace.download("counted answers", found.counters, 2)
            ends = prefix_sums("ends of answers", found.counts, messages, workspace)
            host_ends = workspace.download("host ends", ends, messages + 1)
            workspace.stream.synchronize()
            total, used = (int(counted[place]) for place in (_FOUND, _SEGMENTS))
            if total <= len(found.found):
                break
            self._room.ask(total)
        out = workspace.device("answers", np.uint32, total)
        if used:
            order_answers[grid(used, _EACH)[0], _THREADS, workspace.stream](used, found, ends, out)
        offsets = kept(host_ends, narrow_offsets(host_ends[-1:]).dtype)
        lent = self._pool.lend(-(-total // 2))  # many answers go where callers keep them
        if lent is not None:
            values = lent.view(np.uint32)[:total]
            workspace.stream.download(values, out)
            workspace.stream.synchronize()
            return Lists(offsets, values)
        host_values = workspace.download("host answers", out, total)
        workspace.stream.synchronize()
        return Lists(offsets, kept(host_values, np.uint32))


class CudaFixedAreas(Searches):
    """Areas in groups (see `FixedAreas`), on a device."""

    def __init__(self, areas: FixedAreas, device: int = 0, streams: int = 1) -> None:
        super().__init__(device, streams, plane=areas.plane, of_points=len(areas.circles.numbers) > 0)
        with on_device(device):
            for kind, boxes in ((areas.circles, False), (areas.boxes, True)):
                if len(kind.numbers):
                    self.trees.append((_tree_of(kind, boxes=boxes, plane=areas.plane), boxes))
        self.compile()


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
    """What does not change of entries, from those of the CPU."""

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
            cell = cell_of(tree, space, (at.x[client], at.y[client], at.z[client]))
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
    """One thread a child of the lowest records: the bounds of its chunk, which meet nothing if it has no clients."""
    i = np.int64(cuda.grid(1))
    if i < children:
        for axis in range(axes):
            lowest, highest = math.inf, -math.inf
            for slot in range(min(SLOTS, entries - i * SLOTS)):
                at = i * WORDS + slot
                if not math.isnan(words[at]):
                    low, high = around(words[at + axis * SLOTS], reach_of(words[at + 3 * SLOTS], axes == 2))
                    lowest, highest = min(lowest, low), max(highest, high)
            at = (i // SLOTS * axes + axis) * _AXIS + i % SLOTS
            bounds[at], bounds[at + SLOTS] = lowest, highest


@kernel
def bound_records(first_below, below, first, children, axes, bounds):
    """One thread a child of a level's records: the bounds of a record below it, or of none."""
    i = np.int64(cuda.grid(1))
    if i < children:
        for axis in range(axes):
            lowest, highest = math.inf, -math.inf
            if i < below:
                of_child = ((first_below + i) * axes + axis) * _AXIS
                for slot in range(SLOTS):
                    lowest = min(lowest, bounds[of_child + slot])
                    highest = max(highest, bounds[of_child + SLOTS + slot])
            at = ((first + i // SLOTS) * axes + axis) * _AXIS + i % SLOTS
            bounds[at], bounds[at + SLOTS] = lowest, highest


class CudaClients(Searches):
    """Entries of clients that move (see `ClientCells`), on a device, with one stream for packets and moves."""

    def __init__(self, cells: ClientCells, device: int = 0) -> None:
        super().__init__(device, 1, plane=cells.plane, of_points=True)
        entries = cells.entries
        self._cells, self._count, self._axes = cells, len(entries.spaces), 2 if cells.plane else 3
        clients = len(entries.client_offsets) - 1
        self._log = MoveLog(clients)
        # How many moves there were, and the tree of cuts that the device has a copy of
        self._moves = 0
        self._of_tree: CellTree | None = None
        chunks = -(-self._count // SLOTS)
        self._levels = _levels_over(chunks)
        sizes = np.bincount(entries.spaces, minlength=int(entries.group_spaces[-1]))
        with on_device(device):
            self._entries = sent(_Entries(*entries[:3]))
            self._at = typed(PointArrays(*(device_array(np.float64, clients) for _ in range(3))))
            self._last = to_device(np.full(clients, -1))
            words = device_array(np.float64, chunks * WORDS)
            bounds = device_array(np.float64, int(self._levels[-1]) * self._axes * _AXIS)
            starts = to_device(offsets_of(sizes)[entries.group_spaces])
            self._tree = typed(AreaTree(starts, words, words.view(np.uint32), bounds, to_device(self._levels)))
        if self._count:
            self.trees.append((self._tree, False))
        cells.tell(self._log)
        self.compile()
        with self.workspace() as workspace:
            self._make([], workspace)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, except for what packets take on their way."""
        return super().nbytes + bytes_of(self._entries, self._at, self._last)

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
            moves, tree = self._log.take(), self._cells.now.search.tree
            if moves is None:
                lon, lat = self._cells.copied(self._log)
                point = points(lon, lat, plane=self._plane)
                point[0][np.isnan(lon) | np.isnan(lat)] = np.nan
                for there, here in zip(self._at, point, strict=True):
                    there.copy_to_device(here)
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

    def _make(self, moves: Sequence[Points], workspace: Workspace) -> None:
        """Move clients: of several moves of one, the last counts."""
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
