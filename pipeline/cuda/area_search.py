"""Which areas have messages' places, on the device: a warp goes down a tree for a message and a group at a time.

The tree and its chunks are those of `tagmatch.pipeline.areas.fixed`, and so are all rules: bounds only say where to
look, and float64 decides, by products and sums that are rounded as on the CPU. A warp, which is a block, has a stack of
what is to be looked at in shared memory: chunks, and records of the tree by level. It takes two at once, so that each
lane has a slot: of a chunk it tests the area, of a record the bounds of a child, which then goes on the stack. From the
top of a group, a level adds 32 at most.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.model.arrays import Lists, narrow_offsets
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.model.kernels.sphere import is_in_box, near_rules, points
from tagmatch.pipeline.areas.chunks import NUMBERS, SLOTS, WORDS, Places
from tagmatch.pipeline.areas.fixed import AXIS, FAN_OUT, FLAT, AreaTree, meridians, spans
from tagmatch.pipeline.cuda.device import PinnedPool, Workspace, grid, inlined, kernel, plus, prefix_sums, times, typed
from tagmatch.pipeline.cuda.pairs import Room, kept
from tagmatch.pipeline.cuda.support import on_device

cuda: Any = numba.cuda

_BLOCK = 128
# Answers of the first packet for which there is room
_FIRST_ROOM = 1 << 16
#: Threads of a block, a warp; what it takes from its stack at once; and messages with a group each that it has in turn
_THREADS = 32
_AT_ONCE = 2
_EACH = 4
# Room of the stack: 2**32 areas have seven levels of records, each of which adds 32, to at most three at the top
_STACK = 256
# Where a word of the stack has the level: 0 for chunks, of which there are at most 2**28
_LEVEL = 28
# Answers of a block that wait to be written together; with room for less than what one step adds, they are written
_HITS = 256
# Places in `state`: how many are on the stack, and how many of these were taken
_WAITING, _TAKEN = 0, 1
# Places in `staged`: answers that wait, and segments of these; and in counters, how many of both were written
_FOUND, _SEGMENTS = 0, 1

_, _, _is_near = near_rules(times, plus, inlined)


class AskingArrays(NamedTuple):
    """Groups to be sought in messages' places: an asking is one group of a message."""

    owners: Any  # The message of each asking, and its group
    groups: Any
    lon: Any  # Of each message; on the plane, `z` is not used, nor are `x` to `z` where nobody asks for points
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
    if high - low >= FLAT:
        level = 1
        while (high >> (FAN_OUT * level)) - (low >> (FAN_OUT * level)) > 1:
            level += 1
    low, high = low >> (FAN_OUT * level), high >> (FAN_OUT * level)
    for number in range(low, high + 1):
        stack[number - low] = (np.int64(level) << _LEVEL) | number
    return high + 1 - low


@inlined
def _take(stack, taken, state):
    """Take words from the stack."""
    count = min(state[_WAITING], _AT_ONCE)
    state[_WAITING] -= count
    state[_TAKEN] = count
    for i in range(count):
        taken[i] = stack[state[_WAITING] + i]


@inlined
def _open(segments, waiting, message):
    """Have what is found from now on be a message's; one thread."""
    staged, _, messages, firsts, _ = waiting
    messages[segments] = message
    firsts[segments] = staged[_FOUND]
    staged[_SEGMENTS] = segments + 1


@inlined
def _write_all(waiting, out):
    """Append what waits, and whose each part of it is, as far as there is room; all threads."""
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
            if at < len(out.messages) and at < len(out.firsts) and at < len(out.sizes):
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

    Places are also points, of which circles are asked; of boxes, bounds have two axes also on the sphere.
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
        west, east, south = px, px, py
        if boxes:
            west, east = meridians(at_lon, at_lat, plane)
            south = at_lat
        if thread == 0:
            state[_WAITING] = _begin(stack, first, last)
            _open(staged[_SEGMENTS], waiting, message)
        while True:
            if thread == 0:
                _take(stack, taken, state)
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
                    shift = FAN_OUT * (level - 1)
                    at = (tree.levels[level - 1] + number) * axes * AXIS + slot
                    if (
                        child >= (first // SLOTS) >> shift
                        and child <= ((last - 1) // SLOTS) >> shift
                        and spans(bounds, at, west, east)
                        and spans(bounds, at + AXIS, south, south)
                        and (axes == 2 or spans(bounds, at + 2 * AXIS, pz, pz))
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

    #: Trees of circles, and of boxes
    trees: list[tuple[AreaTree, bool]]

    def __init__(self, device: int, streams: int, *, plane: bool, of_points: bool) -> None:
        self._device, self._plane, self._of_points = device, plane, of_points
        self.trees = []
        self._room, self._pool = Room(_FIRST_ROOM), PinnedPool(device)
        self._free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        with on_device(device):
            for _ in range(streams):
                self._free.put(Workspace())

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets take on their way."""
        return sum(tree.nbytes for tree, _ in self.trees)

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
        """A workspace for a packet; its arrays are given back where there was no memory for all that was asked."""
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
        """Do what is to be done before a packet."""

    def find(self, places: Places, groups: Lists) -> Lists:
        """Areas of the groups of each message that have its place, in no order."""
        if not self.trees or not len(groups.values):
            return Lists(np.zeros(len(groups) + 1, np.int64), np.zeros(0, np.uint32))
        with self.workspace() as workspace:
            self.ready(workspace)
            return self._lists(self.sent(places, groups, workspace))

    def launch(self, askings: Askings) -> SegmentArrays:
        """Have kernels find what is asked for, and nothing more; the arrays that they write to."""
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
            workspace.download_into(values, out)
            workspace.stream.synchronize()
            return Lists(offsets, values)
        host_values = workspace.download("host answers", out, total)
        workspace.stream.synchronize()
        return Lists(offsets, kept(host_values, np.uint32))
