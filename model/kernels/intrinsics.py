"""What kernels do that Python cannot say.

They read and write words while others write them, count bits, get arrays by address, and give a device's driver
commands: compiled code does so, many at once, without the interpreter lock. Each command is some words: which one it
is, and its addresses and numbers. The driver's functions are called by address, as C has them; all return 0, or the
number of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj

from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.jit import kernel


def _atomic(kind: Literal["load", "store", "add"], ordering: str) -> Any:
    """Reads, writes or adds to a word, in one step."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = signature.args[0]
        at = builder.gep(context.make_array(words)(context, builder, arguments[0]).data, [arguments[1]])
        if kind == "load":
            return builder.load_atomic(at, ordering, words.dtype.bitwidth // 8)
        if kind == "add":
            return builder.atomic_rmw("add", at, arguments[2], ordering)
        builder.store_atomic(arguments[2], at, ordering, words.dtype.bitwidth // 8)
        return context.get_dummy_value()

    def read(typing: Any, words: Any, place: Any) -> Any:  # noqa: ARG001
        return words.dtype(words, types.intp), generate

    def changed(typing: Any, words: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
        result = words.dtype if kind == "add" else types.void
        return result(words, types.intp, words.dtype), generate

    return intrinsic(read if kind == "load" else changed)


def _fence(ordering: str) -> Any:
    def typed(typing: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), generate

    return intrinsic(typed)


def _line_past_caches(typing: Any, to: Any, source: Any) -> Any:  # noqa: ARG001
    """Copies 64 bytes, past the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        line = ir.VectorType(ir.IntType(64), 8).as_pointer()
        there, here = (builder.inttoptr(address, line) for address in arguments)
        written = builder.store(builder.load(here, align=1), there, align=64)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


def _into_caches(typing: Any, array: Any, place: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, data = ir.IntType(32), context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [at.type, number, number, number])
        # To read, for all caches, and data
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [at.type], kind), [at, *map(number, (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp if place.signed else types.uint64), generate


def _of_bits(count: Callable[[Any, Any, Any], Any]) -> Any:
    """What LLVM counts in a word; it wants to know that this is not 0, where that has no answer."""

    def typed(typing: Any, word: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            return count(builder, arguments[0], context.get_constant(types.boolean, True))

        return types.uint64(types.uint64), generate

    return intrinsic(typed)


#: In a kernel, `load_relaxed(words, place)`: a word as it is at some moment, of integers
load_relaxed: Any = _atomic("load", "monotonic")
#: As `load_relaxed`; what is read after it is not read before it
load_acquire: Any = _atomic("load", "acquire")
#: In a kernel, `store_relaxed(words, place, value)`: write a word as a whole
store_relaxed: Any = _atomic("store", "monotonic")
#: As `store_relaxed`; what is written before it is not written after it
store_release: Any = _atomic("store", "release")
#: In a kernel, `add(words, place, more)`: add to a word in one step; returns what it was
add: Any = _atomic("add", "seq_cst")
#: In a kernel, `fence_acquire()`: what was read before it is not read after what is read after it
fence_acquire: Any = _fence("acquire")
#: In a kernel, `fence_release()`: what is written after it is not written before what was written before it
fence_release: Any = _fence("release")
#: In a kernel, `copy_line(to, source)`: copy 64 bytes between addresses, of which the first is a multiple of 64
copy_line: Any = intrinsic(_line_past_caches)
#: In a kernel, `prefetch(array, place)`: fetch the cache line of an element, which need not be in the array, without
#: waiting for it
prefetch: Any = intrinsic(_into_caches)
#: In a kernel, `trailing_zeros(word)`: the place of the lowest bit that is set in a uint64 other than 0
trailing_zeros: Any = _of_bits(lambda builder, word, is_some: builder.cttz(word, is_some))
#: In a kernel, `leading_zeros(word)`: how many bits of a uint64 other than 0 are above the highest that is set
leading_zeros: Any = _of_bits(lambda builder, word, is_some: builder.ctlz(word, is_some))
#: In a kernel, `ones(word)`: how many bits of a uint64 are set
ones: Any = _of_bits(lambda builder, word, _: builder.ctpop(word))
#: In a kernel, `give_way()`: let other threads run, if some wait for this core
give_way: Any = types.ExternalFunction("sched_yield", types.int32())


class Prepared:
    """Arrays whose addresses are handed over, and which stay as long as this object."""

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        self.arrays = arrays
        # `ctypes.data` and `__array_interface__` say the same, and take eight times as long
        places = [(pa.py_buffer(array).address, array.size) for array in arrays]
        self.addresses: U64Array = np.array(places, np.uint64).ravel()


def _array_of(context: Any, builder: Any, result: Any, data: Any, shape: list[Any]) -> Any:
    """An array in memory that belongs to others, of this type and shape."""
    array = context.make_array(result)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(result.dtype)))
    strides = [size]
    for each in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], each))
    arrayobj.populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()


def _at(addresses: Any, dtype: Any, *, readonly: bool) -> Any:
    """The type of what makes an address and a size an array again, and what generates its code."""
    result = types.Array(dtype.dtype, 1, "C", readonly=readonly)
    signature = result(addresses, types.intp, dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = builder.shl(arguments[1], arguments[1].type(1))
        address, size = (builder.load(builder.gep(table.data, [builder.add(at, at.type(i))])) for i in range(2))
        data = builder.inttoptr(address, context.get_data_type(result.dtype).as_pointer())
        return _array_of(context, builder, result, data, [size])

    return signature, generate


def _one_array(*, readonly: bool) -> Any:
    def typed(typing: Any, addresses: Any, place: Any, dtype: Any) -> Any:  # noqa: ARG001
        return _at(addresses, dtype, readonly=readonly)

    return intrinsic(typed)


def _arrays_at(typing: Any, addresses: Any, place: Any, dtypes: Any) -> Any:
    """A tuple as that of types, which may have tuples in it: named ones become such of arrays."""
    parts = [
        (_arrays_at(typing, addresses, place, each), _count(each))
        if isinstance(each, types.BaseTuple)
        else (_at(addresses, each, readonly=True), 1)
        for each in dtypes
    ]
    arrays = [signature.return_type for (signature, _), _ in parts]
    named = isinstance(dtypes, types.BaseNamedTuple)
    result = types.NamedTuple(arrays, dtypes.instance_class) if named else types.Tuple(arrays)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, at, _ = arguments
        made = []
        for (part, one), count in parts:
            made.append(one(context, builder, part, (table, at, None)))
            at = builder.add(at, at.type(count))
        return context.make_tuple(builder, signature.return_type, made)

    return result(addresses, types.intp, dtypes), generate


def _count(dtypes: Any) -> int:
    """How many arrays there are in a tuple of types."""
    return sum(_count(each) if isinstance(each, types.BaseTuple) else 1 for each in dtypes)


#: In a kernel, `array_at(addresses, place, dtype)`: array `place` of `Prepared`, read-only; `dtype` is its elements'
array_at: Any = _one_array(readonly=True)
#: In a kernel, `arrays_at(addresses, place, dtypes)`: as many arrays from this place on, as a tuple like that of types
arrays_at: Any = intrinsic(_arrays_at)
#: As `array_at`, of an array that the kernel may write to
own_array_at: Any = _one_array(readonly=False)


#: Commands, and the places of functions among the driver's: `cuLaunchKernel`, `cuMemcpyHtoDAsync`,
#: `cuMemcpyDtoHAsync` and `cuStreamSynchronize` of CUDA
LAUNCH, UPLOAD, DOWNLOAD, WAIT = range(4)
#: Copies within the host's memory, which need no driver: of bytes, and of int64 numbers to int32
COPY, NARROW = 4, 5

_U = np.uint64
_WORD = _U(8)

# Bytes
_LINE = _U(64)
_MANY = _U(1 << 18)

# A kernel takes no more parameters than this
_MOST_PARAMETERS = 512

_copy_memory: Any = types.ExternalFunction("memcpy", types.uint64(types.uint64, types.uint64, types.uint64))


def _call(typing: Any, address: Any, arguments: Any) -> Any:  # noqa: ARG001
    """The C function at an address returns an int32."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        count = len(arguments)
        values = [builder.extract_value(given[1], place) for place in range(count)]
        function = ir.FunctionType(ir.IntType(32), [value.type for value in values])
        return builder.call(builder.inttoptr(given[0], function.as_pointer()), values)

    return types.int32(types.uint64, arguments), generate


#: In a kernel, `_called(address, arguments)`: call a C function with a tuple of arguments
_called: Any = intrinsic(_call)


@kernel
def _copy(to, source, size):
    """Copy bytes between addresses; many of them go past the caches, as the device reads them next."""
    head = (_U(0) - to) & (_LINE - _U(1)) if size >= _MANY else size
    _copy_memory(to, source, head)
    lines = (size - head) // _LINE * _LINE
    for at in range(head, head + lines, _LINE):
        copy_line(to + at, source + at)
    done = head + lines
    _copy_memory(to + done, source + done, size - done)


@kernel
def give(words, driver, stream):
    """Give the driver all commands, in order; returns the first error's number, or 0, and the place of its function."""
    pointers = np.empty(_MOST_PARAMETERS, np.uint64)
    to_pointers, to_words = _U(pointers.ctypes.data), _U(words.ctypes.data)
    at = 0
    while at < len(words):
        command, error = words[at], np.int32(0)
        if command == _U(LAUNCH):
            function, x, y, threads, count = words[at + 1], words[at + 2], words[at + 3], words[at + 4], words[at + 5]
            at += 6
            for i in range(count):
                pointers[i] = to_words + _U(at + i) * _WORD
            at += int(count)
            one, none = np.uint32(1), _U(0)
            blocks, shape = (np.uint32(x), np.uint32(y), one), (np.uint32(threads), one, one)
            error = _called(driver[LAUNCH], (function, *blocks, *shape, np.uint32(0), stream, to_pointers, none))
        elif command == _U(WAIT):
            error = _called(driver[WAIT], (stream,))
            at += 1
        else:
            to, size, source = words[at + 1], words[at + 2], words[at + 3]
            arrays = words[at + 1 : at + 5]
            at += 5
            if command == _U(COPY):
                _copy(to, source, size)
            elif command == _U(NARROW):
                narrow, wide = own_array_at(arrays, 0, np.int32), array_at(arrays, 1, np.int64)
                for i in range(len(wide)):
                    narrow[i] = wide[i]
            else:
                error = _called(driver[command], (to, source, size, stream))
        if error != 0:
            return error, np.int64(command)
    return np.int32(0), np.int64(0)


def _on_stack(typing: Any, dtype: Any, count: Any) -> Any:  # noqa: ARG001
    return _array_on_stack(dtype, count)


def _rows_on_stack(typing: Any, dtype: Any, count: Any, columns: Any) -> Any:  # noqa: ARG001
    return _array_on_stack(dtype, count, columns)


def _array_on_stack(dtype: Any, *shape: Any) -> Any:
    if not all(isinstance(each, types.IntegerLiteral) for each in shape):
        return None
    sizes = [each.literal_value for each in shape]
    result = types.Array(dtype.dtype, len(sizes), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        item = context.get_data_type(result.dtype)
        with builder.goto_entry_block():
            memory = builder.alloca(item, ir.Constant(ir.IntType(64), int(np.prod(sizes))))
            memory.align = 8
        return _array_of(context, builder, result, memory, [context.get_constant(types.intp, each) for each in sizes])

    return result(dtype, *shape), generate


#: In a kernel, `on_stack(dtype, count)`: an array, not initialized, in no time. `count` is a constant of the module. It
#: is there until the kernel returns, so it must not be what that returns.
on_stack: Any = intrinsic(prefer_literal=True)(_on_stack)
#: As `on_stack`, of rows with so many columns
rows_on_stack: Any = intrinsic(prefer_literal=True)(_rows_on_stack)
