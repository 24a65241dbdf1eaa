"""Commands to a device's driver, which compiled code gives it, many at once, without the interpreter lock.

Each is some words: a command, and its addresses and numbers. The driver's functions are called by
address, as C has them; all return 0, or the number of an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tagmatch.model.kernels.intrinsics import array_at, copy_line, own_array_at
from tagmatch.model.kernels.jit import kernel

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
