"""Chunks of 16 areas or places, tested at once against one point or box.

A chunk has four lanes of float64 and one of 32-bit numbers, which say whose the slots are: 576 bytes, nine cache lines.
Circles: x, y, z, limit; boxes: west, east, south, north. Half as many bytes would do for lanes of 32 bits, but then a
test leaves some slots open, which has to be asked of numbers that lie elsewhere; these lanes decide everything, by the
same arithmetic as `tagmatch.model.kernels.sphere`.

There are two ways to test a chunk: vector code with a compressed store, for x86-64, and loops, for every processor.
Kernels take the way as an argument, `None` for loops: Numba compiles what is behind `way is None` for one of them only.
With `True`, vector code asks each chunk which of its circles are marked (see `tagmatch.model.kernels.sphere`), with
`False` none is.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tagmatch.model.arrays import F64Array, U32Array
from tagmatch.model.kernels.bits import trailing_zeros
from tagmatch.model.kernels.jit import lent
from tagmatch.model.kernels.sphere import is_marked, near_by_mark, near_by_squares

#: Slots of a chunk; float64 words of it; and where its lane of numbers begins, in words of 32 bits
SLOTS, WORDS, NUMBERS = 16, 72, 128
#: All slots of a chunk, as bits
ALL_SLOTS = (1 << SLOTS) - 1
LINE = 64

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
            reaches = builder.and_(
                builder.fcmp_ordered("<=", lanes(128 * axis, _FLOATS), high),
                builder.fcmp_ordered(">=", lanes(128 * axis + 64, _FLOATS), low),
            )
            passed = reaches if passed is None else builder.and_(passed, reaches)
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
def reaches(bounds, at, down, up):
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
                meets &= reaches(bounds, first + 2 * SLOTS * axis + slot, down[axis], up[axis])
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
