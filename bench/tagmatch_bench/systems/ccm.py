"""CCM on a CUDA device, of 2014 and of 2011, and what it shares with CLCB there. Imports `numba.cuda`."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numba.cuda
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba.cuda.cudadrv.driver import device_memset  # not public: Numba has no function of `cuda` for it

from tagmatch.model.arrays import I64Array, U8Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import inlined, with_room
from tagmatch.model.kernels.jit import kernel as host_kernel
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.device import Workspace, device_array, grid, kernel, to_device, typed
from tagmatch.pipeline.cuda.streams import Stream, check
from tagmatch_bench.systems.content_matcher import ContentMatcher, Filters, Messages, holds
from tagmatch_bench.systems.launched import Columns, changing, give_with, recorded
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.ocm import Input, Tables, input_lines, tables_of, write_lines

cuda: Any = numba.cuda

_DEVICE = 0
#: Blocks that a grid can have in its second dimension
MOST_ROWS = 65_535


class DeviceMatcher(ContentMatcher):
    """A matcher with one stream of the first CUDA device, for which threads wait in turn.

    On the device, there is a mark for each interface, a byte, which is 1 if the message is for it. Where keys are asked
    for once a filter, which the papers do not do, there is a mark for each filter.
    """

    def __init__(self, subscriptions: pa.Table, *, at_once: int, threads: int) -> None:
        if not cuda.is_available():
            raise UnavailableError("needs an NVIDIA GPU that numba.cuda can use")
        super().__init__(subscriptions, threads=threads)
        self._at_once = at_once
        self._lock = threading.Lock()
        #: Where the mark of a filter that matches is: at its interface, or if keys are not unique, at itself
        self._places = {True: self._tables.interfaces, False: np.arange(len(self._tables.sizes), dtype=np.uint32)}
        self._marks = {True: len(self._keys), False: len(self._tables.sizes)}
        with on_device(_DEVICE):
            self._workspace = Workspace()
            self._on_device: dict[str, Any] = {
                name: to_device(column) for name, column in self._columns(self._tables).items()
            }
            self._on_device |= {f"places {unique}": to_device(places) for unique, places in self._places.items()}
            self._begin_anew()

    def _table(self, kind: Any) -> Any:
        """A named tuple of columns that the device has, by their names."""
        return typed(kind(*(self._on_device[name] for name in kind._fields)))

    @abstractmethod
    def _columns(self, tables: Any) -> Mapping[str, npt.NDArray[Any]]:
        """Columns that the device gets."""

    @abstractmethod
    def _begin_anew(self) -> None:
        """Forget the device's counters and marks, whose state is unknown."""

    @contextmanager
    def _device_alone(self) -> Iterator[None]:
        """Keep other threads from the device; after an error it begins anew."""
        with self._lock, on_device(_DEVICE):
            try:
                yield
            except BaseException:
                self._begin_anew()
                raise

    @abstractmethod
    def _launched(self, messages: Any, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        """Match messages from the first on by compiled code; returns marks, and how many messages were matched."""

    @abstractmethod
    def _simulated(self, messages: Any, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        """The same, where Python launches kernels itself, for Numba's simulator."""

    def _find(self, messages: Any, *, unique: bool, ends: I64Array) -> U32Array:
        found, first = [np.zeros(0, np.uint32)], 0
        match = self._launched if isinstance(self._workspace.stream, Stream) else self._simulated
        with self._device_alone():
            while first < len(messages):
                some, first = match(messages, first, unique, ends)
                found.append(some)
        np.cumsum(ends, out=ends)
        marked: U32Array = np.concatenate(found)
        return marked if unique else self._tables.interfaces[marked]

    #: Of a message's way, in this order, where each can be timed; what begins each one when the next is asked for
    parts: tuple[str, ...] = ()
    _parts: Callable[..., Iterator[Any]]

    def seconds_of_parts(self, messages: Messages) -> dict[str, float]:
        """Seconds a message of each of `parts`, in the mean, when each part is waited for; each key once."""
        taken = np.zeros(len(self.parts))
        with self._device_alone():
            for i in range(len(messages)):
                parts = self._parts(messages[i : i + 1], unique=True)
                for part in range(len(self.parts)):
                    start = time.perf_counter()
                    next(parts, None)
                    self._workspace.stream.synchronize()
                    taken[part] += time.perf_counter() - start
                self._end_parts()
        return dict(zip(self.parts, (taken / max(len(messages), 1)).tolist(), strict=True))

    def _end_parts(self) -> None:
        """Do the rest of a message, which is not timed."""

    def nbytes(self) -> int | None:
        """Bytes of host and device memory, without counters and marks."""
        return (super().nbytes() or 0) + sum(int(column.nbytes) for column in self._on_device.values())


#: Recorded commands of a message, or of some together, and of what clears; what these bring and take; and the places of
#: filters without constraints
_Way = namedtuple("_Way", "given cleared sent marks always")


class MarkingMatcher(DeviceMatcher):
    """One that gets all marks from the device, of at most `at_once` messages at a time.

    Compiled code gives the driver the commands; with Numba's simulator, Python launches kernels itself.
    """

    @abstractmethod
    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        """Return what the device has marked for each of at most `at_once` messages; an array that is used again."""

    def _simulated(self, messages: Messages, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        some = messages[first : first + self._at_once]
        marks = self._mark(some, unique=unique).reshape(len(some), -1)
        marks[:, self._places[unique][self._tables.always]] = 1
        of, places = np.nonzero(marks)
        ends[first + 1 : first + 1 + len(some)] = np.bincount(of, minlength=len(some))
        return places.astype(np.uint32), first + len(some)

    def _pinned_marks(self, name: str, marked: Any, count: int) -> U8Array:
        """Add a copy of marks to the stream; returns the array that it goes to, with some zeros at its end."""
        marks = self._workspace.pinned(name, np.uint8, -(-count // 8) * 8)
        marks[:] = 0
        self._workspace.stream.download(marks[:count], marked)
        return marks


@inlined
def take_marked(way, each, first, count, found, used, ends):
    """Append the marked filters of messages from the first on, `each` marks a message, and count them in `ends`."""
    for message in range(count):
        for place in way.always:
            way.marks[message * each + place] = 1
    words = way.marks.view(np.uint64)
    for word in range(len(words)):
        if words[word] == 0:
            continue
        for place in range(8 * word, 8 * word + 8):
            if way.marks[place]:
                message = place // each
                found = with_room(found, used, 1)
                found[used] = place - message * each
                used += 1
                ends[first + message + 1] += 1
    return found, used


#: On the device: counters, where the mark of a filter is, how many marks a message has, and these
_Out = namedtuple("_Out", "counts places marks marked")
#: Columns of constraints on the device, and how many each filter has
_Stored = namedtuple("_Stored", "operators values uppers blooms filters sizes")

_BLOCK = 256
_BITS = 32

_COLUMNS = _Stored._fields
# Of table Input, the column with how many constraints a line has
_LENGTHS = 2


def bits_of_counters(largest: int, at_least: int) -> int:
    """The bits of counters that can hold this number."""
    return next(bits for bits in (4, 8, 16, 32) if bits >= at_least and largest < 1 << bits)


class Ccm(MarkingMatcher):
    """CCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", §3.3. Exact.

    The CPU makes table Input, a line for each row of constraints, as OCM would evaluate them: the row, and the
    attribute's value. On the device, a thread evaluates one constraint, and counts for its filter in one step. One
    kernel has several messages, each with its own counters and marks (§4.2). Copies and kernels are on one stream,
    and the CPU waits once, for the marks, while the device goes on to clear them for the next messages by a kernel.

    Counters are half-bytes of 32 bits, and every message uses the next one: they are cleared for every eighth. The
    paper does not treat filters with more than 15 constraints. Here all counters then have 8 bits, of
    which there are four in 32, or 16, or 32.

    Simplified: Input is in global memory, not in constant memory, in which Numba only puts compiled constants, and
    which would hold too few lines for several messages. A line has a row's number, not five pointers, and no type, as
    an attribute has one type. An attribute is a number in the tables' maps.

    `counter_bits` is the least size of counters: with 32 they are cleared for every message.
    """

    def __init__(self, subscriptions: pa.Table, *, at_once: int = 64, counter_bits: int = 4, threads: int = 1) -> None:
        super().__init__(subscriptions, at_once=at_once, threads=threads)
        self._bits = bits_of_counters(int(self._tables.sizes.max(initial=0)), counter_bits)
        # Only the maps stay on the host, and what answers need
        self._tables = self._tables._replace(**{name: getattr(self._tables, name)[:0] for name in _COLUMNS[:-1]})
        self._stored = self._table(_Stored)

    def _build(self, filters: Filters) -> Tables:
        return tables_of(filters, filters.sizes.astype(np.uint32))

    def _columns(self, tables: Tables) -> Mapping[str, npt.NDArray[Any]]:
        return {name: getattr(tables, name) for name in _COLUMNS}

    def _begin_anew(self) -> None:
        self._counts = device_array(np.uint32, self._at_once * len(self._tables.sizes))
        self._outs: dict[bool, Any] = {}
        self._ways: dict[bool, _Way] = {}
        self._kept: list[Columns] = []
        self._stage, self._room = 0, 64

    def _cleared(self, unique: bool) -> Any:
        """Return counters, and marks that are not set; all counters are cleared before the first stage."""
        if unique not in self._outs:
            marks = self._marks[unique]
            marked = device_array(np.uint8, self._at_once * marks)
            self._outs[unique] = typed(_Out(self._counts, self._on_device[f"places {unique}"], marks, marked))
            self._clear(marked, 0 if self._stage else len(self._counts))
        return self._outs[unique]

    def _clear(self, marked: Any, counts: int) -> None:
        launch = _clear[(*grid(max(counts, len(marked)), _BLOCK), self._workspace.stream)]
        launch(counts, self._counts, len(marked), marked)

    def _launched(self, messages: Messages, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        if unique not in self._ways:
            self._ways[unique] = self._recorded(unique, messages.values.dtype)
        numbers = self._at_once, self._marks[unique], len(self._counts), self._bits, self._stage
        found, first, self._stage, lines, *given = _launch(
            messages.columns, self._tables, self._ways[unique], numbers, first, ends
        )
        check(*given)
        if lines > self._room:
            self._room = 2 * lines
            self._ways.clear()
        return found, first

    def _recorded(self, unique: bool, kind: Any) -> _Way:
        stream, out, marks = self._workspace.stream, self._cleared(unique), self._at_once * self._marks[unique]
        stream.flush()
        lines = [(kind, self._room), (np.int64, self._room), (np.int64, self._room), (np.uint32, self._room)]
        columns = Columns([*lines, (np.uint64, self._at_once)])
        columns.upload(stream)
        count, shift, blocks, rows, counts, blocks_to_clear = map(changing, range(6))
        _evaluate[(blocks, rows), _BLOCK, stream](*columns.there, (count, shift), self._stored, out)
        found = self._pinned_marks(f"marks {unique}", out.marked, marks)
        given = recorded(stream, waits=True)
        _clear[blocks_to_clear, _BLOCK, stream](counts, self._counts, marks, out.marked)
        always = self._places[unique][self._tables.always]
        self._kept.append(columns)
        return _Way(given, recorded(stream), Input(*columns.here), found, always)

    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        workspace, out, marks = self._workspace, self._cleared(unique), len(messages) * self._marks[unique]
        count, lines = input_lines(messages.columns, self._tables)
        if not count:
            return np.zeros(marks, np.uint8)
        sent = [workspace.send(name, column) for name, column in zip(Input._fields, lines, strict=True)]
        blocks, threads = grid(int(Input(*lines).lengths[:count].max()), _BLOCK)
        _evaluate[(blocks, min(count, MOST_ROWS)), threads, workspace.stream](
            *sent, (count, self._stage * self._bits), self._stored, out
        )
        found = workspace.download("marks", out.marked, marks)
        self._stage = (self._stage + 1) % (_BITS // self._bits)
        self._clear(out.marked, 0 if self._stage else len(self._counts))
        return found.copy()


@host_kernel
def _launch(columns, tables, way, numbers, first, ends):
    """Match messages from the first on, some in each kernel, until one needs more lines than there is room for.

    Returns places of marks, the next message, the next stage, the lines it needs, and what `give` returns.
    """
    at_once, marks, counters, bits, stage = numbers
    found, used, lines, error, function = np.empty(1024, np.uint32), 0, 0, np.int32(0), np.int64(0)
    chosen, changes = np.empty(len(tables.vectors), np.int64), np.empty(6, np.uint64)
    while first < len(ends) - 1 and error == 0:
        count = min(at_once, len(ends) - 1 - first)
        lines = write_lines(columns, first, first + count, tables, chosen, way.sent)
        if lines > len(way.sent.xs):
            break
        if lines:
            longest = np.int64(0)
            for line in range(lines):
                longest = max(longest, way.sent.lengths[line])
            changes[0], changes[1] = lines, stage * bits
            changes[2], changes[3] = -(-longest // _BLOCK), min(lines, MOST_ROWS)
            error, function = give_with(way.given, changes)
            stage = (stage + 1) % (_BITS // bits)
            changes[4] = 0 if stage else counters
            changes[5] = -(-max(np.int64(changes[4]), at_once * marks) // _BLOCK)
            if error == 0:
                error, function = give_with(way.cleared, changes)
        else:
            way.marks[:] = 0
        found, used = take_marked(way, marks, first, count, found, used, ends)
        first += count
    return found[:used], first, stage, lines, error, function


@kernel
def _evaluate(xs, starts, lengths, owners, input_blooms, lines_and_shift, stored, out):
    """Algorithm 1: evaluate constraint `x` of each line, with a block's second dimension over lines."""
    x, lines, shift = cuda.grid(1), lines_and_shift[0], np.uint32(lines_and_shift[1])
    for y in range(cuda.blockIdx.y, lines, cuda.gridDim.y):
        if x >= lengths[y]:
            continue
        owner, at = np.int64(owners[y]), starts[y] + x
        if stored.blooms[at] & ~input_blooms[owner] != 0:
            continue
        if not holds(stored.operators[at], xs[y], stored.values[at], stored.uppers[at]):
            continue
        of = stored.filters[at]
        before = cuda.atomic.add(out.counts, owner * len(stored.sizes) + of, np.uint32(1) << shift)
        if (before >> shift) + 1 == stored.sizes[of]:  # those of later stages are 0
            out.marked[owner * out.marks + out.places[of]] = 1


@kernel
def _clear(count, counts, marks, marked):
    """Clear the first counters, and marks."""
    i = cuda.grid(1)
    if i < count:
        counts[i] = 0
    if i < marks:
        marked[i] = 0


class _Tables2011(NamedTuple):
    """The paper's tables.

    Row `i` of table Constraints has those on attribute `i`, from `starts[i]` on, `lengths[i]` of them (SizeC);
    `constraints` has them as structs of `value`, `upper`, `filter` and `operator`. Table Filters is `sizes` (SizeF) and
    `interfaces`. `always` are the filters without constraints.
    """

    starts: I64Array
    lengths: I64Array
    constraints: npt.NDArray[np.void]
    sizes: U32Array
    interfaces: U32Array
    always: U32Array


#: The device's parts of these tables, without the constraints
_Stored2011 = namedtuple("_Stored2011", "starts lengths sizes")


class Ccm2011(MarkingMatcher):
    """CCM: A. Margara, G. Cugola, "High Performance Content-Based Matching Using GPUs", DEBS 2011, §4. Exact.

    The CPU makes table Input, a line for each attribute of a message: its row of constraints, and its value. On the
    device, a thread evaluates one constraint, and counts for its filter in one step. Each message has a kernel.

    Simplified: rows of constraints follow one another, where the paper has a table as wide as its longest row; a line
    of Input has no type, as an attribute has one, and is an attribute's number, not a name to be looked up in a map.
    Constraints of a row are in any order: by operator and value, which the paper tried, too, it found no faster.

    Without `in_shared_memory`, each thread reads its line of Input from global memory.
    """

    #: Of the paper's Figure 5; what clears by memset is in the first one
    parts = ("copy in", "kernel", "copy back")

    def __init__(
        self,
        subscriptions: pa.Table,
        *,
        reset: Literal["kernel", "memset"] = "kernel",
        in_shared_memory: bool = True,
        threads: int = 1,
    ) -> None:
        self._copies = 2 if reset == "kernel" else 1
        self._in_shared_memory = in_shared_memory
        super().__init__(subscriptions, at_once=1, threads=threads)
        self._tables = self._tables._replace(constraints=self._tables.constraints[:0])
        self._stored = self._table(_Stored2011)

    def _build(self, filters: Filters) -> _Tables2011:
        kind = filters.values.dtype
        fields = [("value", kind), ("upper", kind), ("filter", np.uint32), ("operator", np.uint8)]
        constraints = np.zeros(len(filters.values), np.dtype(fields, align=True))
        order = np.argsort(filters.attributes, kind="stable")
        columns: list[npt.NDArray[Any]] = [filters.values, filters.uppers, filters.filters, filters.operators]
        for (name, _), column in zip(fields, columns, strict=True):
            constraints[name] = column[order]
        lengths = np.bincount(filters.attributes, minlength=len(filters.names))
        return _Tables2011(
            offsets_of(lengths)[:-1],
            lengths,
            constraints,
            filters.sizes.astype(np.uint32),
            filters.interfaces,
            np.flatnonzero(filters.sizes == 0).astype(np.uint32),
        )

    def _columns(self, tables: _Tables2011) -> Mapping[str, npt.NDArray[Any]]:
        return {name: getattr(tables, name) for name in (*_Stored2011._fields, "constraints")}

    def _begin_anew(self) -> None:
        #: Counters and marks; the first are for the next message
        self._outs: dict[bool, list[Any]] = {}
        self._ways: dict[bool, list[_Way]] = {}
        self._kept: list[Columns] = []
        self._room = 16

    def _cleared(self, unique: bool) -> list[Any]:
        if unique not in self._outs:
            counts, marked = np.zeros(len(self._tables.sizes), np.uint32), np.zeros(self._marks[unique], np.uint8)
            places = self._on_device[f"places {unique}"]
            self._outs[unique] = [
                typed(_Out(to_device(counts), places, len(marked), to_device(marked))) for _ in range(self._copies)
            ]
        return self._outs[unique]

    def _launched(self, messages: Messages, first: int, unique: bool, ends: I64Array) -> tuple[U32Array, int]:
        if self._copies == 1:  # whose memset is a function of the driver that no command calls
            return self._simulated(messages, first, unique, ends)
        if unique not in self._ways:
            self._ways[unique] = [self._recorded(unique, messages.values.dtype) for _ in range(self._copies)]
        ways = self._ways[unique]
        found, done, kernels, rows, *given = _launch_2011(
            messages.columns, self._tables.lengths, *ways, self._marks[unique], first, ends
        )
        check(*given)
        if kernels % 2:
            ways.reverse()
        if rows > self._room:
            self._room = 2 * rows
            self._ways.clear()
        return found, done

    def _recorded(self, unique: bool, kind: Any) -> _Way:
        """The commands for a message that uses the first counters and marks; then they are the last."""
        stream, outs = self._workspace.stream, self._cleared(unique)
        stream.flush()
        columns = Columns([(np.uint32, self._room), (kind, self._room)])
        columns.upload(stream)
        self._evaluate((changing(0), changing(1)), columns.there, outs)
        found = self._pinned_marks(f"marks {unique} {len(self._kept)}", outs[0].marked, self._marks[unique])
        self._kept.append(columns)
        outs.reverse()
        always = self._places[unique][self._tables.always]
        return _Way(recorded(stream, waits=True), None, tuple(columns.here), found, always)

    def _evaluate(self, blocks: tuple[int, int], sent: Sequence[Any], outs: list[Any]) -> None:
        how, other = (self._in_shared_memory, self._copies > 1), outs[-1]
        _evaluate_2011[blocks, _BLOCK, self._workspace.stream](
            *sent, self._on_device["constraints"], self._stored, outs[0], how, other.counts, other.marked
        )

    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        found = np.zeros(self._marks[unique], np.uint8)
        for found in self._parts(messages, unique=unique):  # noqa: B007
            pass
        self._workspace.stream.synchronize()
        return found

    def _parts(self, messages: Messages, *, unique: bool) -> Iterator[U8Array]:
        """Begin each of `parts`, one when the next is asked for; the last gives the marks. None if nothing is asked."""
        workspace = self._workspace
        begin, end = messages.offsets
        if begin == end:
            return
        rows, values = messages.attributes[begin:end], messages.values[begin:end]
        sent = workspace.send("rows", rows), workspace.send("values", values)
        outs = self._cleared(unique)
        out = outs[0]
        if self._copies == 1:
            for array in (out.counts, out.marked):
                device_memset(array, 0, array.nbytes, stream=workspace.stream.flush())
        nothing = np.zeros(0, np.uint8)
        yield nothing
        blocks, _ = grid(int(self._tables.lengths[rows].max()), _BLOCK)
        self._evaluate((blocks, len(rows)), sent, outs)
        yield nothing
        outs.reverse()
        yield workspace.download("marks", out.marked, self._marks[unique])


@host_kernel
def _launch_2011(columns, lengths, way, next_way, marks, first, ends):
    """Match messages from the first on, one in each kernel, until one has more attributes than there is room for.

    Returns places of marks, the next message, how many kernels ran, the attributes it has, and what `give` returns.
    """
    offsets, attributes, values = columns
    kernels = 0
    found, used, rows, error, function = np.empty(1024, np.uint32), 0, np.int64(0), np.int32(0), np.int64(0)
    changes = np.empty(2, np.uint64)
    while first < len(ends) - 1 and error == 0:
        begin, rows = offsets[first], offsets[first + 1] - offsets[first]
        if rows > len(way.sent[0]):
            break
        longest = np.int64(0)
        for row in range(rows):
            way.sent[0][row], way.sent[1][row] = attributes[begin + row], values[begin + row]
            longest = max(longest, lengths[attributes[begin + row]])
        if rows:
            changes[0], changes[1] = -(-longest // _BLOCK), rows
            error, function = give_with(way.given, changes)
        else:
            way.marks[:] = 0
        found, used = take_marked(way, marks, first, 1, found, used, ends)
        if rows:
            way, next_way = next_way, way
            kernels += 1
        first += 1
    return found[:used], first, kernels, rows, error, function


@kernel
def _evaluate_2011(rows, xs, constraints, stored, out, how, other_counts, other_marked):
    """Algorithm 1: evaluate constraint `x` of a block's line, its second number; clear what the next kernel uses."""
    in_shared_memory, clears = how
    row_and_length = cuda.shared.array(2, np.int64)
    if in_shared_memory:
        if cuda.threadIdx.x == 0:
            row = rows[cuda.blockIdx.y]
            row_and_length[0], row_and_length[1] = stored.starts[row], stored.lengths[row]
        cuda.syncthreads()
        start, length = row_and_length[0], row_and_length[1]
    else:
        row = rows[cuda.blockIdx.y]
        start, length = stored.starts[row], stored.lengths[row]
    x = cuda.grid(1)
    if clears:
        all_threads = cuda.gridDim.x * cuda.gridDim.y * cuda.blockDim.x
        first = cuda.blockIdx.y * cuda.gridDim.x * cuda.blockDim.x + x
        for i in range(first, len(other_counts), all_threads):
            other_counts[i] = 0
        for i in range(first, len(other_marked), all_threads):
            other_marked[i] = 0
    if x >= length:
        return
    constraint = constraints[start + x]
    if not holds(constraint.operator, xs[cuda.blockIdx.y], constraint.value, constraint.upper):
        return
    of = constraint.filter
    if cuda.atomic.add(out.counts, of, np.uint32(1)) + 1 == stored.sizes[of]:
        out.marked[out.places[of]] = 1
