"""CLCB on a CUDA device, a message at a time. Imports `numba.cuda`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import F64Array, I64Array, U32Array
from tagmatch.model.kernels.jit import copy, with_room
from tagmatch.model.kernels.jit import kernel as host_kernel
from tagmatch.pipeline.cuda.device import device_array, grid, kernel, typed
from tagmatch.pipeline.cuda.streams import Stream, check
from tagmatch_bench.systems.ccm import DeviceMatcher, bits_of_counters
from tagmatch_bench.systems.circles import Circles
from tagmatch_bench.systems.clcb import AreasAlone, LocatedMatcher, LocatedMessages, Tables, without_constraints
from tagmatch_bench.systems.content_matcher import holds
from tagmatch_bench.systems.launched import Columns, Commands, changing, changing_float, give_with, recorded, upload_row

cuda: Any = numba.cuda

_BLOCK = 256
_BITS = 32
#: Answers that are copied with their number; of more, the rest is copied after that
_COPIED = 4096

#: What Loc asks of filters
_Areas = namedtuple("_Areas", "centres squares blooms sizes")
#: What Cont asks of constraints and their filters
_Constraints = namedtuple("_Constraints", "starts lengths operators values uppers filters sizes")
#: The mark of each filter is at its place
_Marks = namedtuple("_Marks", "places marked")

#: Recorded commands of a message with constraints on its attributes, and of one without; those that copy the rest of
#: many answers; the input of a message, and its outcome
_Way = namedtuple("_Way", "given without rest rows values found all_found")

# What the device has of the tables
_COLUMNS = tuple(dict.fromkeys(_Areas._fields + _Constraints._fields))
# Of these, what stays on the host, too
_OF_HOST = ("lengths", "sizes")


class ClcbCuda(LocatedMatcher, DeviceMatcher):
    """CLCB: G. Cugola, A. Margara, Middleware 2012, §4. Exact, except for the rounding of single precision.

    A message has three kernels, which with all copies are on one stream, and the CPU waits once. Loc has a thread for
    each filter: it compares the Bloom filters of names, then the distance from the area's centre, and sets the filter's
    counter. Cont has a thread for each constraint on an attribute of the message, which ends at once where Loc has
    ruled the filter out. Zip has a thread for each subscription, and makes a list of those that are marked. Counters
    are bytes of 32 bits, and each message uses the next one: every fourth message clears all (§4.3, Reducing
    memory accesses). A move copies two floats to the device, which compiled code asks the driver for.

    The paper leaves open how many answers are copied before their number is known: 4096 here, and if there are more,
    the rest after that, for which the CPU waits once more. Nor does it treat filters without constraints,
    which Loc marks here, or with more than 254, for which counters have 16 bits or 32.

    Simplified: the position and the Bloom filter of a message are arguments of Loc, not memory; an attribute is a
    number, and those that no filter has a constraint on are not in the Bloom filter; marks are bytes, not bits.

    `counter_bits` is the least size of counters: with 32 they are cleared for every message.
    """

    parts = ("copy in", "Loc", "Cont", "Zip", "copy back")  # of the paper's Figure 6

    def __init__(self, subscriptions: pa.Table, *, counter_bits: int = 8, threads: int = 1) -> None:
        super().__init__(subscriptions, at_once=1, threads=threads)
        self._bits = bits_of_counters(int(self._tables.sizes.max(initial=0)) + 1, counter_bits)
        alone = {name: getattr(self._tables, name)[:0] for name in _COLUMNS if name not in _OF_HOST}
        self._tables = self._tables._replace(**alone)
        self._areas, self._constraints = self._table(_Areas), self._table(_Constraints)

    def _columns(self, tables: Tables) -> Mapping[str, npt.NDArray[Any]]:
        return {name: getattr(tables, name) for name in _COLUMNS}

    def _begin_anew(self) -> None:
        self._counts = device_array(np.uint32, len(self._tables.sizes))
        self._stage, self._room = 0, 16
        self._ways: dict[bool, _Way] = {}
        self._kept: list[Columns] = []
        #: Marks that are not set, and as a list their number and the marked ones
        self._lists: dict[bool, tuple[Any, Any]] = {}

    def _marked_and_found(self, unique: bool) -> tuple[Any, Any]:
        if unique not in self._lists:
            marks = max(1, self._marks[unique])
            marked = cuda.to_device(np.zeros(marks, np.uint8))
            self._lists[unique] = (
                typed(_Marks(self._on_device[f"places {unique}"], marked)),
                device_array(np.uint32, 1 + marks),
            )
        return self._lists[unique]

    def _simulated(self, messages: LocatedMessages, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        for _ in self._parts(messages[first : first + 1], unique=unique):
            pass
        found = self._copied(unique)
        ends[first + 1] = len(found)
        return found, first + 1

    def _launched(self, messages: LocatedMessages, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        """Match messages from the first on by compiled code; returns marks, and how many messages were matched."""
        if unique not in self._ways:
            self._ways[unique] = self._recorded(unique, messages.values.dtype)
        tables = self._tables.name_blooms, self._tables.lengths
        places = messages.places.view(np.uint32)
        numbers = self._bits, self._stage
        found, first, self._stage, rows, *given = _launch(
            (*messages.columns, places), tables, self._ways[unique], numbers, first, ends
        )
        check(*given)
        if rows > self._room:
            self._room = 2 * rows
            self._ways.clear()
        return found, first

    def _recorded(self, unique: bool, kind: Any) -> _Way:
        workspace, (marks, found) = self._workspace, self._marked_and_found(unique)
        stream, count = workspace.stream, len(self._tables.sizes)
        stream.flush()
        columns = Columns([(np.uint32, self._room), (kind, self._room)])
        bloom, shift = changing(0, np.uint32), changing(1, np.uint32)
        place, ones = (changing_float(2), changing_float(3)), np.uint32((1 << self._bits) - 1)
        answers = workspace.pinned(f"all found {unique}", np.uint32, 1 + self._marks[unique])
        some = answers[: 1 + _COPIED]

        def commands(*, constrained: bool) -> Commands:
            columns.upload(stream)
            _loc[(*grid(count, _BLOCK), stream)](count, bloom, place, self._areas, shift, self._counts, marks, found)
            if constrained:
                blocks = changing(4), changing(5)
                _cont[blocks, _BLOCK, stream](*columns.there, self._constraints, shift, ones, self._counts, marks)
            _zip[(*grid(self._marks[unique], _BLOCK), stream)](self._marks[unique], marks.marked, found)
            stream.download(some, found)
            return recorded(stream, waits=True)

        given, without = commands(constrained=True), commands(constrained=False)
        stream.download(answers, found)
        self._kept.append(columns)
        rows, values = columns.here
        return _Way(given, without, recorded(stream, waits=True), rows, values, some, answers)

    def _copied(self, unique: bool) -> U32Array:
        """Wait for what the last of a message's parts copies, and get the rest."""
        stream = self._workspace.stream
        stream.synchronize()
        _, found = self._marked_and_found(unique)
        count = int(self._workspace.pinned("found", np.uint32, 1)[0])
        if count > _COPIED:
            self._workspace.download("found", found, 1 + count)
            stream.synchronize()
        return self._workspace.pinned("found", np.uint32, 1 + count)[1:].copy()

    def _end_parts(self) -> None:
        """Get what the message has found."""
        self._copied(True)

    def _parts(self, messages: LocatedMessages, *, unique: bool) -> Iterator[None]:
        """Begin each of `parts` of a message, one when the next is asked for."""
        workspace, tables = self._workspace, self._tables
        marks, found = self._marked_and_found(unique)
        begin, end = messages.offsets
        rows, values = messages.attributes[begin:end], messages.values[begin:end]
        bloom = np.bitwise_or.reduce(tables.name_blooms[rows], initial=np.uint32(0))
        sent = workspace.send("rows", rows), workspace.send("values", values)
        yield
        count = len(tables.sizes)
        shift, ones = np.uint32(self._stage * self._bits), np.uint32((1 << self._bits) - 1)
        _loc[(*grid(count, _BLOCK), workspace.stream)](
            count, bloom, tuple(messages.places[0]), self._areas, shift, self._counts, marks, found
        )
        self._stage = (self._stage + 1) % (_BITS // self._bits)
        yield
        longest = int(tables.lengths[rows].max(initial=0))
        if longest:
            blocks, threads = grid(longest, _BLOCK)
            _cont[(blocks, len(rows)), threads, workspace.stream](
                *sent, self._constraints, shift, ones, self._counts, marks
            )
        yield
        _zip[(*grid(self._marks[unique], _BLOCK), workspace.stream)](self._marks[unique], marks.marked, found)
        yield
        workspace.download("found", found, min(1 + self._marks[unique], 1 + _COPIED))
        yield

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give filters, by their rows, new centres, each filter once; a copy of two floats each."""
        centres = self._areas.centres
        with self._device_alone():
            moved = self._workspace.pinned("moved", np.float32, 2 * len(ids)).reshape(-1, 2)
            moved[:, 0], moved[:, 1] = x, y
            stream = self._workspace.stream
            if not isinstance(stream, Stream):
                for place, number in enumerate(ids.tolist()):
                    stream.upload(centres[number], moved[place])
            elif len(ids):
                stream.flush()
                first = np.array(upload_row(stream, centres, moved, 0, 1), np.uint64)
                check(*give_rows(recorded(stream), first, ids, moved.strides[0]))
            stream.synchronize()

    def device_nbytes(self) -> int:
        """Bytes of device memory, with counters, marks and room for answers; each key once (the paper's Figure 7)."""
        with self._device_alone():
            marks, found = self._marked_and_found(True)
        kept = [array for name, array in self._on_device.items() if name != "places False"]
        return sum(int(array.nbytes) for array in (*kept, self._counts, marks.marked, found))


@host_kernel
def give_rows(commands, first, ids, row_bytes):
    """Give the commands of each move: its row, which follows the one before, to the place of a number; as `give`."""
    changes, error, function = np.empty(2, np.uint64), np.int32(0), np.int64(0)
    for i in range(len(ids)):
        if error == 0:
            changes[0] = first[0] + np.uint64(ids[i]) * np.uint64(row_bytes)
            changes[1] = first[1] + np.uint64(i) * np.uint64(row_bytes)
            error, function = give_with(commands, changes)
    return error, function


@host_kernel
def _launch(columns, tables, way, numbers, first, ends):
    """Match messages from the first on, until one has more attributes than there is room for.

    Returns places of marks, the next message, the next stage, the attributes it has, and what `give` returns.
    """
    offsets, attributes, values, places = columns
    name_blooms, lengths = tables
    bits, stage = numbers
    found, used, rows, error, function = np.empty(1024, np.uint32), 0, np.int64(0), np.int32(0), np.int64(0)
    changes = np.empty(6, np.uint64)
    while first < len(ends) - 1 and error == 0:
        begin, rows = offsets[first], offsets[first + 1] - offsets[first]
        if rows > len(way.rows):
            break
        bloom, longest = np.uint32(0), np.int64(0)
        for row in range(rows):
            attribute = attributes[begin + row]
            way.rows[row], way.values[row] = attribute, values[begin + row]
            bloom |= name_blooms[attribute]
            longest = max(longest, lengths[attribute])
        changes[0], changes[1] = bloom, stage * bits
        changes[2], changes[3] = places[first, 0], places[first, 1]
        changes[4], changes[5] = -(-longest // _BLOCK), rows
        error, function = give_with(way.given if longest else way.without, changes)
        stage = (stage + 1) % (_BITS // bits)
        count: Any = np.int64(way.found[0])
        if error == 0 and 1 + count > len(way.found):
            error, function = give_with(way.rest, changes)
        found = with_room(found, used, count)
        used = copy(way.all_found, 1, 1 + count, found, used)
        ends[first + 1] = count
        first += 1
    return found[:used], first, stage, rows, error, function


def areas_alone(circles: Circles, *, threads: int = 1) -> AreasAlone:
    """CLCB on a CUDA device, of areas without constraints: only its kernels Loc and Zip do anything."""
    return AreasAlone(ClcbCuda(without_constraints(circles), threads=threads))


@kernel
def _loc(count, input_bloom, place, areas, shift, counts, marks, found):
    """Algorithm 1, Loc: whether a filter may have its names in the message, and has it in its area."""
    i = cuda.grid(1)
    if i == 0:  # also without filters
        found[0] = 0
    if i >= count:
        return
    near = False
    if areas.blooms[i] & ~input_bloom == 0:
        across, up = place[0] - areas.centres[i, 0], place[1] - areas.centres[i, 1]
        near = across * across + up * up <= areas.squares[i]
    if shift == 0:
        counts[i] = 1 if near else 0
    elif near:
        counts[i] |= np.uint32(1) << shift  # the byte is 0 since the first stage
    if near and areas.sizes[i] == 0:
        marks.marked[marks.places[i]] = 1


@kernel
def _cont(rows, xs, stored, shift, ones, counts, marks):
    """Kernel Cont: evaluate constraint `x` of a block's attribute, its second number."""
    row = rows[cuda.blockIdx.y]
    x = cuda.grid(1)
    if x >= stored.lengths[row]:
        return
    at = stored.starts[row] + x
    of = stored.filters[at]
    if (counts[of] >> shift) & ones == 0:
        return
    if not holds(stored.operators[at], xs[cuda.blockIdx.y], stored.values[at], stored.uppers[at]):
        return
    before = cuda.atomic.add(counts, of, np.uint32(1) << shift)
    if ((before >> shift) & ones) == stored.sizes[of]:
        marks.marked[marks.places[of]] = 1


@kernel
def _zip(count, marked, found):
    """Algorithm 1, Zip: append the marked numbers to a list, whose first element is their count."""
    i = cuda.grid(1)
    if i >= count or marked[i] == 0:
        return
    marked[i] = 0
    found[1 + cuda.atomic.add(found, 0, np.uint32(1))] = i
