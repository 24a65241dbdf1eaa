"""Chunks of 16 areas, or of 16 clients, which are tested at once; and messages and answers as kernels have them.

A chunk has four lanes of float64 and one of 32-bit numbers, which say whose the slots are: 576 bytes, nine cache lines.
Circles: x, y, z, limit; boxes: west, east, south, north. Half as many bytes would do for lanes of 32 bits, but then a
test leaves some slots open, which has to be asked of numbers that lie elsewhere; these lanes decide everything, by the
same arithmetic as `tagmatch.model.kernels.sphere`. Tests are vectors of LLVM, from which it makes what a processor has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import llvm_version_info
from numba.core import cgutils, types
from numba.extending import intrinsic

from tagmatch.model.arrays import F64Array, I64Array, Lists, U8Array, U32Array, frozen, pooled
from tagmatch.model.kernels.interpreted import instead
from tagmatch.model.kernels.intrinsics import prefetch, trailing_zeros
from tagmatch.model.kernels.jit import lent
from tagmatch.model.kernels.sphere import is_marked, near_by_mark

Table = TypeVar("Table", bound=tuple[Any, ...])

#: Slots of a chunk; float64 words of it; and where its lane of numbers begins, in words of 32 bits
SLOTS, WORDS, NUMBERS = 16, 72, 128
#: All slots of a chunk, as bits
ALL_SLOTS = (1 << SLOTS) - 1
_LINE = 64
# The first LLVM that has vectors compressed
_COMPRESSES = (20,)
# Numbers per message for which there is room at first
_FIRST_ROOM = 16


def aligned(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array, not initialized, that begins with a cache line."""
    size = count * np.dtype(dtype).itemsize
    raw = np.empty(size + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + size].view(dtype)


def chunks_of(count: int) -> tuple[F64Array, U32Array]:
    """Memory for a number of chunks, as its lanes and as its numbers."""
    words = aligned(count * WORDS, np.float64)
    return words, words.view(np.uint32)


# -- vectors -----------------------------------------------------------------------------------------------------------

_BIT, _BYTE, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_DOUBLES, _FLOATS = ir.VectorType(ir.DoubleType(), SLOTS), ir.VectorType(ir.FloatType(), SLOTS)
_INTEGERS, _NUMBERS, _HALVES, _BITS = (ir.VectorType(kind, SLOTS) for kind in (_I64, _I32, _I16, _BIT))
_int, _float = types.int64, types.float64
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic


def _splat(builder, value):
    vector = ir.VectorType(value.type, SLOTS)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_NUMBERS, [0] * SLOTS))


def _address(context, builder, kind, array, place):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


def _lanes(context, builder, kind, array, first):
    """Loads lanes of 16, by how many bytes each lies behind an element of an array."""
    start = builder.bitcast(_address(context, builder, kind, array, first), _BYTE.as_pointer())

    def lane(offset, vector=_DOUBLES, align=4):
        at = builder.gep(start, [ir.Constant(_I64, offset) if isinstance(offset, int) else offset])
        load = builder.load(builder.bitcast(at, vector.as_pointer()))
        load.align = align
        return load

    return lane


def _bits(builder, passed):
    return builder.zext(builder.bitcast(passed, _I16), _I64)


@_intrinsic
def keep_from(typing, numbers, first, slots, out, used):  # noqa: ARG001
    """Append some of 16 numbers; how many there are then. There is room for 16."""

    def generate(context, builder, signature, arguments):
        numbers, first, slots, out, used = arguments
        lane = _lanes(context, builder, signature.args[0], numbers, first)(0, _NUMBERS)
        mask = builder.bitcast(builder.trunc(slots, _I16), _BITS)
        target = _address(context, builder, signature.args[3], out, used)
        if llvm_version_info < _COMPRESSES:
            function = ir.FunctionType(ir.VoidType(), [_NUMBERS, target.type, _BITS])
            store = cgutils.get_or_insert_function(builder.module, function, "llvm.masked.compressstore.v16i32")
            builder.call(store, [lane, target, mask])
        else:  # in a register, and all 16 are stored: some processors take 100 cycles to do both at once
            function = ir.FunctionType(_NUMBERS, [_NUMBERS, _BITS, _NUMBERS])
            name = "llvm.experimental.vector.compress.v16i32"
            compress = cgutils.get_or_insert_function(builder.module, function, name)
            kept = builder.call(compress, [lane, mask, ir.Constant(_NUMBERS, ir.Undefined)])
            store = builder.store(kept, builder.bitcast(target, _NUMBERS.as_pointer()))
            store.align = 4
        return builder.add(used, builder.ctpop(slots))

    return _int(numbers, _int, _int, out, _int), generate


@_intrinsic
def _near_by_squares(typing, words, first, point, limit):  # noqa: ARG001
    def generate(context, builder, signature, arguments):
        words, first, point, limit = arguments
        lane = _lanes(context, builder, signature.args[0], words, first)
        total = None
        for axis in range(signature.args[2].count):
            middle = _splat(builder, builder.extract_value(point, axis))
            difference = builder.fsub(lane(128 * axis), middle)
            square = builder.fmul(difference, difference)
            total = square if total is None else builder.fadd(total, square)
        own = isinstance(signature.args[3], types.NoneType)
        most = lane(384) if own else _splat(builder, limit)
        return _bits(builder, builder.fcmp_ordered("<=", total, most))

    return _int(words, _int, point, limit), generate


@_intrinsic
def _marked(typing, words, first):  # noqa: ARG001
    def generate(context, builder, signature, arguments):
        limits = _lanes(context, builder, signature.args[0], *arguments)(384, _INTEGERS)
        return _bits(builder, builder.icmp_signed("<", limits, ir.Constant(_INTEGERS, [0] * SLOTS)))

    return _int(words, _int), generate


@_intrinsic
def _boxes_with(typing, words, first, lon, other, lat, matters):  # noqa: ARG001
    def generate(context, builder, signature, arguments):
        words, first, lon, other, lat, matters = arguments
        lane = _lanes(context, builder, signature.args[0], words, first)
        west, east, south, north = (lane(128 * each) for each in range(4))
        lat = _splat(builder, lat)
        straight = builder.fcmp_ordered("<=", west, east)
        passed = _splat(builder, builder.icmp_signed("==", matters, ir.Constant(_I64, 0)))
        for each in (lon, other):
            at = _splat(builder, each)
            behind, before = builder.fcmp_ordered("<=", west, at), builder.fcmp_ordered("<=", at, east)
            spans = builder.select(straight, builder.and_(behind, before), builder.or_(behind, before))
            passed = builder.or_(passed, spans)
        passed = builder.and_(passed, builder.fcmp_ordered("<=", south, lat))
        return _bits(builder, builder.and_(passed, builder.fcmp_ordered("<=", lat, north)))

    return _int(words, _int, _float, _float, _float, _int), generate


@_intrinsic
def hits(typing, bounds, first, point):  # noqa: ARG001
    """Which of 16 bounds in space have a point, as bits: 16 lows and 16 highs for each axis, float32."""

    def generate(context, builder, signature, arguments):
        bounds, first, point = arguments
        lane = _lanes(context, builder, signature.args[0], bounds, first)
        passed = None
        for axis in range(signature.args[2].count):
            at = _splat(builder, builder.extract_value(point, axis))
            spans = builder.and_(
                builder.fcmp_ordered("<=", lane(128 * axis, _FLOATS), at),
                builder.fcmp_ordered(">=", lane(128 * axis + 64, _FLOATS), at),
            )
            passed = spans if passed is None else builder.and_(passed, spans)
        return _bits(builder, passed)

    return _int(bounds, _int, point), generate


@_intrinsic
def decided(typing, halves, first, count, point):  # noqa: ARG001
    """Which of 16 circles, in 16 bits, have a point, as bits; and above these, those that are not decided.

    `count` is how many circles have their numbers one after the other, before those of the next axis, and radii.
    """

    def generate(context, builder, signature, arguments):
        halves, first, count, point = arguments
        lane = _lanes(context, builder, signature.args[0], halves, first)
        axes, total, after = signature.args[3].count, None, ir.Constant(_I64, 0)
        for axis in range(axes):
            middle = builder.sitofp(lane(after, _HALVES, 2), _FLOATS)
            difference = builder.fsub(middle, _splat(builder, builder.extract_value(point, axis)))
            square = builder.fmul(difference, difference)
            total = square if total is None else builder.fadd(total, square)
            after = builder.add(after, builder.shl(count, ir.Constant(_I64, 1)))
        radius, two = builder.uitofp(lane(after, _HALVES, 2), _FLOATS), ir.Constant(_FLOATS, [2.0] * SLOTS)
        less, more = builder.fsub(radius, two), builder.fadd(radius, two)
        inside = builder.fcmp_ordered("<=", total, builder.fmul(less, less))
        inside = builder.and_(inside, builder.fcmp_ordered(">", radius, two))
        unsure = builder.fcmp_unordered("<=", total, builder.fmul(more, more))
        unsure = builder.and_(unsure, builder.not_(inside))
        return builder.or_(_bits(builder, inside), builder.shl(_bits(builder, unsure), ir.Constant(_I64, SLOTS)))

    return _int(halves, _int, _int, point), generate


# -- the same, by Python -----------------------------------------------------------------------------------------------


def _lane(array: Any, first: int, offset: int, dtype: Any = np.float64) -> npt.NDArray[Any]:
    behind = np.asarray(array)[first:].view(np.uint8)
    return behind[offset : offset + SLOTS * np.dtype(dtype).itemsize].view(dtype)


def _slots(passed: npt.NDArray[np.bool_]) -> int:
    return int(np.packbits(passed, bitorder="little").view(np.uint16)[0])


def _keep(numbers: Any, first: int, slots: int, out: Any, used: int) -> int:
    kept = _lane(numbers, first, 0, np.uint32)[[slot for slot in range(SLOTS) if slots >> slot & 1]]
    out[used : used + len(kept)] = kept
    return used + len(kept)


def _squares(lanes: list[Any], point: tuple[float, ...]) -> Any:
    differences = [lane - middle for lane, middle in zip(lanes, point, strict=True)]
    return reduce(operator.add, [difference * difference for difference in differences])


def _near(words: Any, first: int, point: tuple[float, ...], limit: float | None) -> int:
    squares = _squares([_lane(words, first, 128 * axis) for axis in range(len(point))], point)
    return _slots(squares <= (_lane(words, first, 384) if limit is None else limit))


def _have(words: Any, first: int, lon: float, other: float, lat: float, matters: int) -> int:
    west, east, south, north = (_lane(words, first, 128 * each) for each in range(4))
    passed = np.full(SLOTS, matters == 0)
    for at in (lon, other):
        passed |= np.where(west <= east, (west <= at) & (at <= east), (west <= at) | (at <= east))
    return _slots(passed & (south <= lat) & (lat <= north))


def _hit(bounds: Any, first: int, point: tuple[Any, ...]) -> int:
    passed = np.full(SLOTS, True)
    for axis, at in enumerate(point):
        low, high = (_lane(bounds, first, 128 * axis + half, np.float32) for half in (0, 64))
        passed &= (low <= at) & (at <= high)
    return _slots(passed)


def _decide(halves: Any, first: int, count: int, point: tuple[Any, ...]) -> int:
    lanes = [_lane(halves, first, 2 * count * axis, np.int16).astype(np.float32) for axis in range(len(point))]
    squares = _squares(lanes, point)
    radius, two = _lane(halves, first, 2 * count * len(point), np.uint16).astype(np.float32), np.float32(2)
    less, more = radius - two, radius + two
    inside = (squares <= less * less) & (radius > two)
    return _slots(inside) | _slots(~(squares > more * more) & ~inside) << SLOTS


instead(keep_from, _keep)
instead(_near_by_squares, _near)
instead(_marked, lambda words, first: _slots(_lane(words, first, 384, np.int64) < 0))
instead(_boxes_with, _have)
instead(hits, _hit)
instead(decided, _decide)


# -- tests -------------------------------------------------------------------------------------------------------------


@lent
def near(marked, words, chunk, point, limit):
    """Which slots of a chunk have a point in their circle, as bits; with a limit, which are in a circle around a point.

    The point has two numbers on the plane, else three. Without `marked`, no circle is (see `sphere`).
    """
    first, plane = chunk * WORDS, len(point) == 2
    found, unsure = _near_by_squares(words, first, point, limit), 0
    if limit is not None:
        unsure = ALL_SLOTS if is_marked(limit) else 0
    elif marked:
        unsure = _marked(words, first)
    found &= ~unsure
    while unsure:
        slot = np.int64(trailing_zeros(np.uint64(unsure)))
        unsure &= unsure - 1
        at = first + slot
        most = words[at + 48] if limit is None else limit
        z = 0.0 if plane else point[len(point) - 1]
        has = near_by_mark(words[at], words[at + 16], words[at + 32], most, point[0], point[1], z, plane)
        found |= int(has) << slot
    return found


@lent
def boxes_with(words, chunk, lon, other, lat, matters):
    """Which slots of a chunk have a place in their box, as bits; the place as `longitudes` gives it."""
    return _boxes_with(words, chunk * WORDS, lon, other, lat, np.int64(matters))


@lent
def keep(numbers, chunk, slots, out, used):
    """Append the numbers of some slots of a chunk; how many numbers there are then. There is room for 16."""
    return keep_from(numbers, 2 * chunk * WORDS + NUMBERS, slots, out, used)


@lent
def fetch_chunk(words, chunk, has_third):
    """Fetch a chunk into the cache, with the third lane if it is asked for."""
    for word in range(0, WORDS, 8):
        if has_third or word < 2 * SLOTS or word >= 3 * SLOTS:
            prefetch(words, chunk * WORDS + word)


@lent
def tuple_at(array, row, like):
    """A row of as many numbers as a tuple has: two or three."""
    if len(like) == 2:
        return array[row, 0], array[row, 1]
    return array[row, 0], array[row, 1], array[row, 2]


# -- halves ------------------------------------------------------------------------------------------------------------

_AXES = 4


@lent
def _swap(keys, order, i, j):
    for axis in range(_AXES):
        keys[i, axis], keys[j, axis] = keys[j, axis], keys[i, axis]
    order[i], order[j] = order[j], order[i]


@lent
def select(keys, order, first, last, middle, axis, state):
    """Part keys at `middle`: no key before it is greater than one after it."""
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


# Much more than the tests' rounding, and their underflow
_MORE, _MORE_OF_MIDDLE, _LEAST = 1 + 1e-9, 1e-15, 1e-150


@lent
def around(middle, reach):
    """Bounds of a circle on one axis."""
    reach = reach * _MORE + abs(middle) * _MORE_OF_MIDDLE + _LEAST
    return middle - reach, middle + reach


# -- messages and answers ----------------------------------------------------------------------------------------------


class Shapes(NamedTuple):
    """Areas; `tagmatch.model.kernels.sphere` says which places each has."""

    kinds: U8Array  # `CIRCLE` or `BOX`, also on the plane
    # [n, 4]: of a circle lon, lat, metres, 0; of a box west, south, east, north; on the plane, x, y and their unit
    values: F64Array


class Places(NamedTuple):
    """A place for each message."""

    lon: F64Array  # degrees, or x and y on the plane; NaN for a message that has no place
    lat: F64Array


class Visits(NamedTuple):
    """Where messages are, and the groups that are looked for there, message by message, as kernels take them."""

    lon: F64Array
    lat: F64Array
    offsets: I64Array
    groups: U32Array


class Hits(NamedTuple):
    """What kernels write: what is found, and where each message's end; the first is 0."""

    values: U32Array
    ends: I64Array


def all_frozen(table: Table) -> Table:
    """A named tuple of read-only arrays, in one piece each."""
    each = [array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in table]
    made: Table = type(table)(*map(frozen, each))
    return made


def all_found(find: Callable[[Visits, int, Hits], int], places: Places, groups: Lists) -> Lists:
    """What a kernel finds for messages, in room that grows: it goes on from a message while there is room."""
    visits = all_frozen(Visits(*places, groups.offsets.astype(np.int64, copy=False), groups.values))
    messages, done = len(groups), 0
    out = Hits(pooled(_FIRST_ROOM * (messages + SLOTS), np.uint32), np.zeros(messages + 1, np.int64))
    while messages:
        done = find(visits, done, out)
        if done == messages:
            break
        values, used = out.values, int(out.ends[done])
        # What the rest of the messages will probably have
        expected = min(1.2 * used * messages / done if done else 0, 16 * len(values))
        longer = pooled(max(int(expected), 2 * len(values)), np.uint32)
        longer[:used] = values[:used]
        out = Hits(longer, out.ends)
    return Lists(out.ends, out.values[: out.ends[-1]])
