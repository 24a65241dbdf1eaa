"""Areas and places in chunks of 16, which are tested at once against one point or box, and a tree of chunks' bounds.

A chunk has four lanes of float64 and one of 32-bit numbers, which say whose the slots are: 576 bytes, nine cache lines.
Circles: x, y, z, limit; boxes: west, east, south, north. Half as many bytes would do for lanes of 32 bits, but then a
test leaves some slots open, which has to be asked of numbers that lie elsewhere; these lanes decide everything, by the
same arithmetic as `tagmatch.model.kernels.sphere`.

There are two ways to test a chunk: vector code with a compressed store, for x86-64, and loops, for every processor.
Kernels take the way as an argument, `None` for loops: Numba compiles what is behind `way is None` for one of them only.
With `True`, vector code asks each chunk which of its circles are marked (see `tagmatch.model.kernels.sphere`), with
`False` none is.

Areas are ordered group by group, and within a group by halves: along the axis on which they differ most, of their
middles' and of their size, the lesser half comes first. Places of the order at which it is cut are multiples of powers
of two, so that 16 chunks in a row, as well as 16 times as many, are such a part. A record of the tree has the bounds of
16 chunks, or of 16 records of the level below it. Thus hot spots have smaller parts, and large areas parts of their
own; and as bounds are boxes in space, nothing is special about poles and the anti-meridian. All groups share chunks and
records, so that many small ones take no more memory than a large one.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Lists, U8Array, U32Array, frozen, offsets_of, pooled
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.lists import leading_zeros, trailing_zeros
from tagmatch.model.kernels.sphere import (
    is_in_box,
    is_marked,
    is_near,
    limit_of,
    limits,
    near_by_mark,
    near_by_squares,
    point_of,
    points,
    reach_of,
    reaches,
)

Table = TypeVar("Table", bound=tuple[Any, ...])

#: Slots of a chunk; float64 words of it; and where its lane of numbers begins, in words of 32 bits
SLOTS, WORDS, NUMBERS = 16, 72, 128
#: All slots of a chunk, as bits
ALL_SLOTS = (1 << SLOTS) - 1
LINE = 64
# Numbers per message for which there is room at first
_FIRST_ROOM = 16

_VECTOR_CODE = platform.machine().lower() in ("x86_64", "amd64")


def way(*, marked: bool = True) -> bool | None:
    """How chunks are tested on this processor, some of whose circles may be marked, or none."""
    return marked if _VECTOR_CODE else None


def aligned(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array, not initialized, that begins with a cache line."""
    size = count * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + size].view(dtype)


def chunks_of(count: int) -> tuple[F64Array, U32Array]:
    """Memory for so many chunks, as its lanes and as its numbers."""
    words = aligned(count * WORDS, np.float64)
    return words, words.view(np.uint32)


_BIT, _BYTE, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_DOUBLES, _FLOATS = ir.VectorType(ir.DoubleType(), SLOTS), ir.VectorType(ir.FloatType(), SLOTS)
_WORDS32, _BITS = ir.VectorType(_I32, SLOTS), ir.VectorType(_BIT, SLOTS)


def _splat(builder: Any, value: Any) -> Any:
    vector = ir.VectorType(value.type, SLOTS)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_WORDS32, [0] * SLOTS))


class _Lanes:
    """Loads lanes of 16 from somewhere in an array."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, first: Any) -> None:
        self._builder = builder
        data = context.make_array(kind)(context, builder, array).data
        self._start = builder.bitcast(builder.gep(data, [first]), _BYTE.as_pointer())

    def __call__(self, offset: int, lane: Any) -> Any:
        at = self._builder.gep(self._start, [ir.Constant(_I64, offset)])
        load = self._builder.load(self._builder.bitcast(at, lane.as_pointer()))
        load.align = 4
        return load


def _bits(builder: Any, passed: Any) -> Any:
    return builder.zext(builder.bitcast(passed, _I16), _I64)


def _keep_vector(typing: Any, numbers: Any, first: Any, slots: Any, out: Any, used: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, first, slots, out, used = arguments
        lane = _Lanes(context, builder, signature.args[0], numbers, first)(0, _WORDS32)
        mask = builder.bitcast(builder.trunc(slots, _I16), _BITS)
        target = builder.gep(context.make_array(signature.args[3])(context, builder, out).data, [used])
        function = ir.FunctionType(ir.VoidType(), [_WORDS32, target.type, _BITS])
        store = cgutils.get_or_insert_function(builder.module, function, "llvm.masked.compressstore.v16i32")
        builder.call(store, [lane, target, mask])
        return builder.add(used, builder.ctpop(slots))

    return types.int64(numbers, types.int64, types.int64, out, types.int64), generate


def _near_vector(typing: Any, words: Any, first: Any, point: Any, limit: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, first, point, limit = arguments
        lanes = _Lanes(context, builder, signature.args[0], words, first)
        total = None
        for axis in range(signature.args[2].count):
            middle = _splat(builder, builder.extract_value(point, axis))
            difference = builder.fsub(lanes(128 * axis, _DOUBLES), middle)
            square = builder.fmul(difference, difference)
            total = square if total is None else builder.fadd(total, square)
        own = isinstance(signature.args[3], types.NoneType)
        most = lanes(384, _DOUBLES) if own else _splat(builder, limit)
        return _bits(builder, builder.fcmp_ordered("<=", total, most))

    return types.int64(words, types.int64, point, limit), generate


def _marked_vector(typing: Any, words: Any, first: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, first = arguments
        integers = ir.VectorType(_I64, SLOTS)
        limits = _Lanes(context, builder, signature.args[0], words, first)(384, integers)
        return _bits(builder, builder.icmp_signed("<", limits, ir.Constant(integers, [0] * SLOTS)))

    return types.int64(words, types.int64), generate


def _boxes_vector(
    typing: Any, words: Any, first: Any, lon: Any, other: Any, lat: Any, matters: Any  # noqa: ARG001
) -> Any:  # fmt: skip
    f, i = types.float64, types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, first, lon, other, lat, matters = arguments
        lanes = _Lanes(context, builder, signature.args[0], words, first)
        west, east, south, north = (lanes(128 * lane, _DOUBLES) for lane in range(4))
        lat = _splat(builder, lat)
        straight = builder.fcmp_ordered("<=", west, east)
        passed = _splat(builder, builder.icmp_signed("==", matters, ir.Constant(_I64, 0)))
        for each in (lon, other):
            at = _splat(builder, each)
            behind, before = builder.fcmp_ordered("<=", west, at), builder.fcmp_ordered("<=", at, east)
            spans = builder.select(straight, builder.and_(behind, before), builder.or_(behind, before))
            passed = builder.or_(passed, spans)
        passed = builder.and_(passed, builder.fcmp_ordered("<=", south, lat))
        passed = builder.and_(passed, builder.fcmp_ordered("<=", lat, north))
        return _bits(builder, passed)

    return i(words, i, f, f, f, i), generate


def _hits_vector(typing: Any, bounds: Any, first: Any, down: Any, up: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bounds, first, down, up = arguments
        lanes = _Lanes(context, builder, signature.args[0], bounds, first)
        passed = None
        for axis in range(signature.args[2].count):
            low, high = (_splat(builder, builder.extract_value(side, axis)) for side in (down, up))
            spans = builder.and_(
                builder.fcmp_ordered("<=", lanes(128 * axis, _FLOATS), high),
                builder.fcmp_ordered(">=", lanes(128 * axis + 64, _FLOATS), low),
            )
            passed = spans if passed is None else builder.and_(passed, spans)
        return _bits(builder, passed)

    return types.int64(bounds, types.int64, down, up), generate


def _prefetch(typing: Any, array: Any, place: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte = builder.bitcast(builder.gep(data, [arguments[1]]), _BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [byte.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte.type], kind)
        builder.call(function, [byte, *(ir.Constant(_I32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_keep_by_vector: Any = intrinsic(_keep_vector)
_near_by_vector: Any = intrinsic(_near_vector)
_marked_by_vector: Any = intrinsic(_marked_vector)
_boxes_by_vector: Any = intrinsic(_boxes_vector)
_hits_by_vector: Any = intrinsic(_hits_vector)

#: In a kernel, `prefetch(array, place)`: have the cache line of an element fetched; it need not be in the array
prefetch: Any = intrinsic(_prefetch)


@lent
def _near_by_loop(words, first, x, y, z, limit):
    found = 0
    for slot in range(SLOTS):
        at = first + slot
        most = words[at + 48] if limit is None else limit
        found |= int(near_by_squares(words[at], words[at + 16], words[at + 32], most, x, y, z)) << slot
    return found


@lent
def _marked(way, words, first, limit):
    """Which slots of a chunk have a limit that is marked, or all if another one counts, which is; as bits."""
    if limit is not None:
        return ALL_SLOTS if is_marked(limit) else 0
    if way is not None:
        return _marked_by_vector(words, first) if way else 0
    marked = 0
    for slot in range(SLOTS):
        marked |= int(is_marked(words[first + slot + 48])) << slot
    return marked


@lent
def near(way, words, chunk, point, limit):
    """Which slots of a chunk have a point in their circle, as bits; with a limit, which are in a circle around a point.

    The point has two numbers on the plane, else three.
    """
    first, plane = chunk * WORDS, len(point) == 2
    x, y, z = point[0], point[1], 0.0 if len(point) == 2 else point[len(point) - 1]
    found = _near_by_loop(words, first, x, y, z, limit) if way is None else _near_by_vector(words, first, point, limit)
    marked = _marked(way, words, first, limit)
    found &= ~marked
    while marked:
        slot = np.int64(trailing_zeros(np.uint64(marked)))
        marked &= marked - 1
        at = first + slot
        most = words[at + 48] if limit is None else limit
        found |= int(near_by_mark(words[at], words[at + 16], words[at + 32], most, x, y, z, plane)) << slot
    return found


@lent
def boxes_with(way, words, chunk, lon, other, lat, matters):
    """Which slots of a chunk have a place in their box, as bits; the place as `longitudes` gives it."""
    first = chunk * WORDS
    if way is None:
        found = 0
        for slot in range(SLOTS):
            at = first + slot
            west, east = words[at], words[at + 16]
            if west <= east:
                spans = (west <= lon and lon <= east) or (west <= other and other <= east)
            else:
                spans = west <= lon or lon <= east or west <= other or other <= east
            has = (spans or not matters) and words[at + 32] <= lat and lat <= words[at + 48]
            found |= int(has) << slot
        return found
    return _boxes_by_vector(words, first, lon, other, lat, np.int64(matters))


@lent
def keep(way, numbers, chunk, slots, out, used):
    """Append the numbers of some slots of a chunk; how many numbers there are then. There is room for 16."""
    first = 2 * chunk * WORDS + NUMBERS
    if way is None:
        for slot in range(SLOTS):
            if slots >> slot & 1:
                out[used] = numbers[first + slot]
                used += 1
        return used
    return _keep_by_vector(numbers, first, slots, out, used)


@lent
def spans(bounds, at, down, up):
    """Whether bounds on one axis, whose low is at a place, meet what lies from one number to another."""
    return bounds[at] <= up and bounds[at + SLOTS] >= down


@lent
def hits(way, bounds, first, down, up):
    """Which of 16 bounds in space meet a small one, as bits: 16 lows and 16 highs for each axis, float32."""
    if way is None:
        found = 0
        for slot in range(SLOTS):
            meets = True
            for axis in range(len(down)):
                meets &= spans(bounds, first + 2 * SLOTS * axis + slot, down[axis], up[axis])
            found |= int(meets) << slot
        return found
    return _hits_by_vector(bounds, first, down, up)


@lent
def fetch_chunk(words, chunk, lanes):
    """Have the first lanes of a chunk fetched into the cache, and its last one, and its numbers."""
    first = chunk * WORDS
    for line in range(0, lanes * SLOTS, 8):
        prefetch(words, first + line)
    for line in range(3 * SLOTS, WORDS, 8):
        prefetch(words, first + line)


#: Kinds of areas
CIRCLE, BOX = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Areas; `tagmatch.model.kernels.sphere` says which places each has."""

    kinds: U8Array  # uint8 array, length n: `CIRCLE` or `BOX`
    # Of a circle its middle and radius: lon, lat, metres, 0. Of a box: west, south, east, north. Degrees and metres; on
    # the plane, x, y and their unit.
    values: F64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", frozen(self.kinds))
        object.__setattr__(self, "values", frozen(np.ascontiguousarray(self.values)))

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """A place for each message."""

    lon: F64Array  # float64 arrays, length n: degrees, or x and y on the plane; NaN for a message that has no place
    lat: F64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "lon", frozen(np.ascontiguousarray(self.lon)))
        object.__setattr__(self, "lat", frozen(np.ascontiguousarray(self.lat)))

    def __len__(self) -> int:
        return len(self.lon)


#: float32 words of a record for each axis: 16 lows and 16 highs
AXIS = 32
#: Of how many times this are a record's children, as a power of two
FAN_OUT = 4
# Much more than the tests' rounding, and their underflow
_MORE, _MORE_OF_MIDDLE, _LEAST = 1 + 1e-9, 1e-15, 1e-150
_AXES = 4


@lent
def rounded_down(value):
    """The greatest float32 that is not greater."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(-np.inf)) if near > value else near


@lent
def rounded_up(value):
    """The smallest float32 that is not smaller."""
    near = np.float32(value)
    return np.nextafter(near, np.float32(np.inf)) if near < value else near


@lent
def _swap(keys, order, i, j):
    for axis in range(_AXES):
        keys[i, axis], keys[j, axis] = keys[j, axis], keys[i, axis]
    order[i], order[j] = order[j], order[i]


@lent
def select(keys, order, first, last, middle, axis, state):
    """Have no key before `middle` that is greater than one after it."""
    low, high = first, last - 1
    while low < high:
        # a place by chance, so that no order of areas makes this slow
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        pivot = keys[low + np.int64((state >> np.uint64(33)) % np.uint64(high - low + 1)), axis]
        i, j = low, high
        while i <= j:
            while keys[i, axis] < pivot:
                i += 1
            while keys[j, axis] > pivot:
                j -= 1
            if i <= j:
                _swap(keys, order, i, j)
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            break
    return state


@lent
def widest_axis(keys, first, last):
    """The axis on which keys differ most; -1 if all are the same."""
    widest, most = -1, 0.0
    for axis in range(_AXES):
        low = high = keys[first, axis]
        for i in range(first + 1, last):
            low, high = min(low, keys[i, axis]), max(high, keys[i, axis])
        if high - low > most:
            widest, most = axis, high - low
    return widest


@kernel
def _arrange(keys, order, group_offsets):
    """Order the keys within each group."""
    stack, state = np.empty((128, 2), np.int64), np.uint64(1)
    for group in range(len(group_offsets) - 1):
        stack[0, 0], stack[0, 1] = group_offsets[group], group_offsets[group + 1]
        depth = 1
        while depth > 0:
            depth -= 1
            first, last = stack[depth, 0], stack[depth, 1]
            if last - first < 2 or first // SLOTS == (last - 1) // SLOTS:
                continue
            axis = widest_axis(keys, first, last)
            if axis < 0:
                continue
            bit = 63 - np.int64(leading_zeros(np.uint64(first ^ (last - 1))))
            middle = ((last - 1) >> bit) << bit
            state = select(keys, order, first, last, middle, axis, state)
            stack[depth, 0], stack[depth, 1] = first, middle
            stack[depth + 1, 0], stack[depth + 1, 1] = middle, last
            depth += 2


@lent
def _bound(bounds, at, low, high):
    """Have the bounds of a child on an axis reach from a low to a high at least."""
    bounds[at] = min(bounds[at], low)
    bounds[at + SLOTS] = max(bounds[at + SLOTS], high)


@lent
def around(middle, reach):
    """Bounds of a circle on one axis."""
    reach = reach * _MORE + abs(middle) * _MORE_OF_MIDDLE + _LEAST
    return middle - reach, middle + reach


@kernel
def _fill(tree, lanes, ids, axes):
    """Write chunks and the tree above them, of circles in a space of so many axes or, without, of boxes."""
    words, numbers, bounds, levels = tree.words, tree.numbers, tree.bounds, tree.levels
    everywhere = np.float32(np.inf)
    bounds.reshape(-1, 2, SLOTS)[:, 0] = everywhere
    bounds.reshape(-1, 2, SLOTS)[:, 1] = -everywhere
    size = (axes if axes else 2) * AXIS
    for i in range(len(lanes)):
        chunk, slot = i // SLOTS, i % SLOTS
        for lane in range(4):
            words[chunk * WORDS + lane * SLOTS + slot] = lanes[i, lane]
        numbers[2 * chunk * WORDS + NUMBERS + slot] = ids[i]
        at = chunk // SLOTS * size + chunk % SLOTS
        if axes:
            reach = reach_of(lanes[i, 3], axes == 2)
            for axis in range(axes):
                low, high = around(lanes[i, axis], reach)
                _bound(bounds, at + axis * AXIS, rounded_down(low), rounded_up(high))
        else:
            west, east, south, north = lanes[i, 0], lanes[i, 1], lanes[i, 2], lanes[i, 3]
            if west <= east:
                _bound(bounds, at, rounded_down(west), rounded_up(east))
            else:
                _bound(bounds, at, -everywhere, everywhere)
            _bound(bounds, at + AXIS, rounded_down(south), rounded_up(north))
    for level in range(len(levels) - 2):
        for record in range(levels[level + 1] - levels[level]):
            parent = (levels[level + 1] + record // SLOTS) * size + record % SLOTS
            of_record = (levels[level] + record) * size
            for axis in range(0, size, AXIS):
                lows, highs = of_record + axis, of_record + axis + SLOTS
                _bound(bounds, parent + axis, bounds[lows:highs].min(), bounds[highs : highs + SLOTS].max())


def all_frozen(table: Table) -> Table:
    """A named tuple of read-only arrays."""
    arrays: Any = table
    made: Table = type(arrays)(*map(frozen, arrays))
    return made


class AreaTree(NamedTuple):
    """Areas of one kind in chunks, and the tree of their bounds; kernels of the CPU and of CUDA take it."""

    slots: I64Array  # Areas of group `g` are in slots `slots[g]` to `slots[g + 1]`
    words: F64Array  # Chunks: slot `s` is in chunk `s // 16`. Its number is the area's.
    numbers: U32Array
    bounds: npt.NDArray[np.float32]  # Records, `AXIS` words for each axis of space
    # Of each level its first record, from the level above the chunks on; at last how many records there are
    levels: I64Array

    @property
    def nbytes(self) -> int:
        """Bytes of memory; `numbers` are in `words`."""
        return sum(array.nbytes for array in self if array is not self.numbers)

    def some_slots(self, count: int) -> I64Array:
        """So many slots from all over; none if there is none."""
        slots = int(self.slots[-1])
        return np.linspace(0, max(slots - 1, 0), count if slots else 0).astype(np.int64)

    def lanes_of(self, slots: I64Array) -> F64Array:
        """What some slots have in each lane, shape (4, n)."""
        at = slots // SLOTS * WORDS + slots % SLOTS
        return np.stack([self.words[at + lane * SLOTS] for lane in range(4)])

    def groups_of(self, slots: I64Array) -> U32Array:
        """The groups of some slots."""
        return (np.searchsorted(self.slots, slots, side="right") - 1).astype(np.uint32)


def levels_over(chunk_count: int) -> I64Array:
    """The levels of a tree over so many chunks (see `AreaTree`)."""
    records = [-(-chunk_count // SLOTS)]
    while records[-1] > 1:
        records.append(-(-records[-1] // SLOTS))
    levels: I64Array = offsets_of(np.array(records))
    return levels


def _tree(groups: I64Array, group_count: int, ids: U32Array, lanes: F64Array, keys: F64Array, axes: int) -> AreaTree:
    """Pack areas: the lanes of each, its middle and size as `keys`, both float64[n, 4], and axes of space; 0: boxes."""
    order = np.argsort(groups, kind="stable")
    keys = keys[order]
    slots = offsets_of(np.bincount(groups, minlength=group_count))
    _arrange(keys, order, slots)
    chunk_count = -(-len(groups) // SLOTS)
    words, numbers = chunks_of(chunk_count)
    words[(chunk_count - 1) * WORDS :] = 0.0  # not all slots of the last chunk are used
    levels = levels_over(chunk_count)
    bounds = aligned(int(levels[-1]) * (axes or 2) * AXIS, np.float32)
    tree = AreaTree(slots, words, numbers, bounds, levels)
    _fill(tree, lanes[order], ids[order], axes)
    return all_frozen(tree)


def packed_circles(groups: I64Array, group_count: int, ids: U32Array, values: F64Array, *, plane: bool) -> AreaTree:
    """Pack circles, whose values are lon, lat, metres."""
    lon, lat, metres = (np.ascontiguousarray(values[:, column]) for column in range(3))
    point, limit = points(lon, lat, plane=plane), limits(metres, plane=plane)
    lanes = np.stack([*point, limit], axis=1)
    with np.errstate(over="ignore"):  # infinity, too, tells them apart
        keys = np.stack([*point, 2 * reaches(limit, plane=plane)], axis=1)
    return _tree(groups, group_count, ids, lanes, keys, 2 if plane else 3)


def packed_boxes(groups: I64Array, group_count: int, ids: U32Array, values: F64Array) -> AreaTree:
    """Pack boxes, whose values are west, south, east, north."""
    west, south, east, north = values.T
    with np.errstate(over="ignore"):
        width, height = np.where(west <= east, east - west, np.inf), north - south
    keys = np.stack([west / 2 + east / 2, south / 2 + north / 2, width, height], axis=1)
    return _tree(groups, group_count, ids, np.stack([west, east, south, north], axis=1), keys, 0)


class Visits(NamedTuple):
    """Where messages are, and the groups that are looked for there, message by message, as kernels take them."""

    lon: F64Array
    lat: F64Array
    offsets: I64Array
    groups: U32Array


class Hits(NamedTuple):
    """What kernels write: what is found, and where each message's end, of which the first is 0."""

    values: U32Array
    ends: I64Array


class Candidates(NamedTuple):
    """What was found of each message, and the row of each of these."""

    offsets: I64Array
    values: U32Array
    rows: U32Array


class ShapeTests(NamedTuple):
    """What is left to be tested of sets that have several areas, or one that must not have the message's place."""

    of_rows: I64Array  # Of each row of the segment, its number here; -1 for most
    offsets: I64Array  # Row number `i` has the tests from `offsets[i]` to `offsets[i + 1]`
    kinds: U8Array
    values: F64Array  # float64, shape (n, 4); both (see `Shapes`)
    negated: BoolArray


def visits_of(places: Places | None, groups: Lists) -> Visits:
    """Groups of messages, and where these are; without places, they have none."""
    at = _NO_PLACES if places is None else places
    return Visits(at.lon, at.lat, frozen(groups.offsets.astype(np.int64, copy=False)), groups.values)


_NO_PLACES = Places(np.empty(0), np.empty(0))


def room_for(messages: int) -> Hits:
    """Room for what messages may find; with too little, kernels go on with `longer`."""
    return Hits(pooled(_FIRST_ROOM * (messages + SLOTS), np.uint32), np.zeros(messages + 1, np.int64))


def longer(out: Hits, done: int, more: int) -> Hits:
    """What the first messages have found, with room for more, and for what the rest of them will probably have."""
    values, ends = out
    used, part = int(ends[done]), done / (len(ends) - 1)
    expected = min(1.2 * used / part if part else 0, 16 * len(values))
    copy = pooled(max(int(expected), 2 * len(values), used + more), np.uint32)
    copy[:used] = values[:used]
    return Hits(copy, ends)


def found_in(out: Hits) -> Lists:
    """What kernels have written."""
    return Lists(out.ends, out.values[: out.ends[-1]])


@kernel
def spread_rows(offsets, values, visits, out):
    """Write the rows of all groups of each message, if there is room, and where each message's end; how many."""
    (_, _, group_offsets, groups), (found, ends), used = visits, out, 0
    for message in range(len(ends) - 1):
        for i in range(group_offsets[message], group_offsets[message + 1]):
            group = np.int64(groups[i])
            for place in range(offsets[group], offsets[group + 1]):
                if len(found):
                    found[used] = values[place]
                used += 1
        ends[message + 1] = used
    return used


@lent
def _has(is_box, shape, lon, lat, plane):
    """Whether an area, which is a row of `Shapes`, has a place that is somewhere."""
    if is_box:
        return is_in_box(shape[0], shape[2], shape[1], shape[3], lon, lat, plane)
    x, y, z = point_of(shape[0], shape[1], plane)
    px, py, pz = point_of(lon, lat, plane)
    return is_near(x, y, z, limit_of(shape[2], plane), px, py, pz, plane)


@kernel
def keep_tested(found, tests, lon, lat, plane, out):
    """Write what was found of each message for which all tests of its row hold; how many."""
    (offsets, values, rows), (kept, ends), used = found, out, 0
    of_rows, test_offsets, kinds, shapes, negated = tests
    for message in range(len(ends) - 1):
        somewhere = not np.isnan(lon[message])
        for i in range(offsets[message], offsets[message + 1]):
            number, holds = of_rows[np.int64(rows[i])], True
            if number >= 0:
                for test in range(test_offsets[number], test_offsets[number + 1]):
                    has = somewhere and _has(kinds[test] == BOX, shapes[test], lon[message], lat[message], plane)
                    holds &= has != negated[test]
            if holds:
                kept[used] = values[i]
                used += 1
        ends[message + 1] = used
    return used
