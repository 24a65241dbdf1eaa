"""CLCB on the CPU: its tables, which `clcb_cuda.py` has on a device, and what its CUDA kernels do, as loops.

G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012, §4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import F64Array, I64Array, U8Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.workloads.numbers import mix
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.content_matcher import ContentMatcher, Filters, Messages, holds, narrow_sizes

#: CLCB has 32-bit floats (§4.3, FPos)
F32Array = npt.NDArray[np.float32]

_U32, _U64 = np.uint32, np.uint64
# Of a 64-bit hash, the five highest bits, and the next five, are two hashes of 32 values
_HASH_SHIFTS, _HASH_MASK = (_U64(59), _U64(54)), _U64(31)


class Tables(NamedTuple):
    """The paper's vectors, and CCM's constraints by name.

    `centres` is FPos, [filters, 2]; `squares` SqDist, the squares of radii; `blooms` BF, the Bloom filter of the names
    of each filter's constraints. The constraints on attribute `i` are from `starts[i]` on, `lengths[i]` of them:
    `operators`, `values`, `uppers` and `filters`. `sizes` is how many constraints a filter has, `always` are the
    filters that have none, and `name_blooms` has the bits of each attribute.

    A Bloom filter has two bits a name. The paper does not say so, but that 32 bits are enough for 10 % of false
    positives with six names: with two bits, (1 - exp(-2 * 6 / 32)) ** 2 is 9.8 %; with one it is 17 %, with three 8 %.
    """

    centres: F32Array
    squares: F32Array
    blooms: U32Array
    starts: I64Array
    lengths: I64Array
    operators: U8Array
    values: npt.NDArray[Any]
    uppers: npt.NDArray[Any]
    filters: U32Array
    sizes: U32Array
    interfaces: U32Array
    always: U32Array
    name_blooms: U32Array


def name_blooms(count: int) -> U32Array:
    """The bits of attributes by number."""
    hashes = np.array([mix(_U64(number)) for number in range(count)], _U64)
    first, second = (_U32(1) << ((hashes >> shift) & _HASH_MASK).astype(_U32) for shift in _HASH_SHIFTS)
    blooms: U32Array = first | second
    return blooms


def tables_of(filters: Filters, circles: Circles) -> Tables:
    """Lay filters out, each with its circle."""
    of_names = name_blooms(len(filters.names))
    blooms = np.zeros(len(filters.sizes), _U32)
    starts = offsets_of(filters.sizes)[:-1][filters.sizes > 0]
    if len(starts):
        blooms[filters.sizes > 0] = np.bitwise_or.reduceat(of_names[filters.attributes], starts)
    order = np.argsort(filters.attributes, kind="stable")
    lengths = np.bincount(filters.attributes, minlength=len(filters.names))
    return Tables(
        _centres(circles.x, circles.y),
        (circles.radius.astype(np.float32) ** 2).astype(np.float32),
        blooms,
        offsets_of(lengths)[:-1],
        lengths,
        filters.operators[order],
        filters.values[order],
        filters.uppers[order],
        filters.filters[order],
        filters.sizes.astype(_U32),
        filters.interfaces,
        np.flatnonzero(filters.sizes == 0).astype(_U32),
        of_names,
    )


def _centres(x: F64Array, y: F64Array) -> F32Array:
    return np.stack([x, y], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class LocatedMessages(Messages):
    """Messages with positions, `places`, [messages, 2]."""

    places: F32Array

    def __getitem__(self, rows: slice) -> LocatedMessages:
        first, last, _ = rows.indices(len(self))
        some = self.offsets[first : max(first, last) + 1]
        return LocatedMessages(some, self.attributes, self.values, self.places[first : max(first, last)])


class LocatedMatcher(ContentMatcher):
    """A matcher of filters with an area and constraints, and of messages with a position.

    Subscriptions have a column `area`, a struct of `x`, `y` and `radius`, and messages `location`, of `x` and `y`.
    """

    def __init__(self, subscriptions: pa.Table, **options: Any) -> None:
        self._circles: Circles | None = Circles.of(subscriptions)
        super().__init__(subscriptions, **options)
        self._circles = None

    def _build(self, filters: Filters) -> Tables:
        assert self._circles is not None
        return tables_of(filters, self._circles)

    def prepare(self, messages: pa.Table | pa.RecordBatch) -> LocatedMessages:
        """Convert messages, a column for each attribute, null where a message does not have it, and `location`."""
        content = super().prepare(messages)
        location = pa.chunked_array(pa.table([messages["location"]], ["location"])["location"]).combine_chunks()
        parts = dict(zip((field.name for field in location.type), location.flatten(), strict=True))
        if parts["x"].null_count or parts["y"].null_count:
            raise ValueError("a message has no position")
        places = _centres(parts["x"].to_numpy(), parts["y"].to_numpy())
        return LocatedMessages(content.offsets, content.attributes, content.values, places)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give filters, by their rows, new centres, each filter once; not while messages are matched."""
        self._tables.centres[ids] = _centres(x, y)


class AreasAlone:
    """A `LocatedMatcher` of filters without constraints, as a `CircleSystem`."""

    def __init__(self, matcher: LocatedMatcher) -> None:
        self._matcher = matcher
        self.move = matcher.move
        self.nbytes = matcher.nbytes
        self.close = matcher.close

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point, all in single precision."""
        nothing = np.zeros(0, np.uint32)
        messages = LocatedMessages(np.zeros(len(x) + 1, np.int64), nothing, nothing.astype(np.int64), _centres(x, y))
        return Found.of(self._matcher.match_many(messages))


def without_constraints(circles: Circles) -> pa.Table:
    """Subscriptions of nothing but a circle each, whose row is the key."""
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    columns = (pa.array(column) for column in (circles.x, circles.y, circles.radius))
    area = pa.StructArray.from_arrays(list(columns), ["x", "y", "radius"])
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros(len(circles) + 1, np.int32)), pa.array([], struct))
    return pa.table({"key": np.arange(len(circles), dtype=np.uint64), "constraints": nothing, "area": area})


class _Space(NamedTuple):
    """Counts that are due, and those of a message; what a filter that matches marks, marks, and those that are set."""

    due: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    marks: U32Array
    marked: U8Array
    subs: U32Array


class Clcb(LocatedMatcher):
    """CLCB: G. Cugola, A. Margara, Middleware 2012, §4, on the CPU. Exact, except for the rounding of single precision.

    Kernels Loc, Cont and Zip are loops over what each has a CUDA thread for: filters, constraints on attributes that a
    message has, and subscriptions. The paper has CLCB on CUDA only, as `clcb_cuda.py` has it, with the notes there;
    here threads share out messages, each with its own counters and marks. As a CPU counts in bytes where a filter
    has fewer than 255 constraints, Loc sets all counters for each message, not once in four.
    """

    def __init__(self, subscriptions, *, threads: int = 1) -> None:
        super().__init__(subscriptions, threads=threads)
        # Loc counts, too
        self._due = narrow_sizes(self._tables.sizes.astype(np.int64) + 1)

    def _find(self, messages: LocatedMessages, *, unique: bool, ends: I64Array) -> U32Array:  # type: ignore[override]
        tables = self._tables
        marks = tables.interfaces if unique else np.arange(len(tables.sizes), dtype=np.uint32)
        # Written to, as pages that never were make masked stores, which Zip has, take twenty times as long
        marked = np.full(len(self._keys) if unique else len(tables.sizes), 0, np.uint8)
        space = _Space(self._due, np.zeros_like(self._due), marks, marked, np.empty(len(marked), np.uint32))
        found: U32Array = _match(messages.columns, messages.places, tables, space, ends)
        return found if unique else tables.interfaces[found]


def areas_alone(circles: Circles, *, threads: int = 1) -> AreasAlone:
    """CLCB on the CPU, of areas without constraints: only its kernels Loc and Zip do anything."""
    return AreasAlone(Clcb(without_constraints(circles), threads=threads))


@kernel
def _loc(missing, x, y, blooms, centres, squares, counts):
    """S1a and S1b: 1 for each filter whose names a message may all have, and whose area has it."""
    # Without branches, and as its own kernel, so that it becomes vector instructions
    for i in range(len(counts)):
        across, up = x - centres[i, 0], y - centres[i, 1]
        counts[i] = (blooms[i] & missing == 0) & (across * across + up * up <= squares[i])


@kernel
def _mark_always(always, counts, marks, marked):
    """Mark filters without constraints that Loc has not ruled out."""
    for i in range(len(always)):
        if counts[always[i]]:
            marked[marks[always[i]]] = 1


@inlined
def _cont(attribute, value, tables, due, counts, marks, marked):
    """S2: evaluate the constraints on an attribute, of filters that Loc has not ruled out."""
    for i in range(tables.starts[attribute], tables.starts[attribute] + tables.lengths[attribute]):
        of = tables.filters[i]
        if counts[of] and holds(tables.operators[i], value, tables.values[i], tables.uppers[i]):
            counts[of] += 1
            if counts[of] == due[of]:
                marked[marks[of]] = 1


@kernel
def _zip(marked, subs):
    """S2a: write the marked numbers, ascending, and clear the marks; returns the count."""
    count = 0
    for i in range(len(marked)):
        if marked[i]:
            marked[i] = 0
            subs[count] = i
            count += 1
    return count


@kernel
def _match(messages, places, tables, space, ends):
    """What each message marks, ascending; in `ends` where each message's end."""
    (offsets, attributes, values), (due, counts, marks, marked, subs) = messages, space
    found, used = np.empty(1024, np.uint32), 0
    for message in range(len(offsets) - 1):
        bloom = np.uint32(0)
        for i in range(offsets[message], offsets[message + 1]):
            bloom |= tables.name_blooms[attributes[i]]
        missing, x, y = np.uint32(~bloom), places[message, 0], places[message, 1]
        _loc(missing, x, y, tables.blooms, tables.centres, tables.squares, counts)
        _mark_always(tables.always, counts, marks, marked)
        for i in range(offsets[message], offsets[message + 1]):
            _cont(attributes[i], values[i], tables, due, counts, marks, marked)
        count = _zip(marked, subs)
        while used + count > len(found):
            found = np.concatenate((found, found))
        found[used : used + count] = subs[:count]
        used += count
        ends[message + 1] = used
    return found[:used]
