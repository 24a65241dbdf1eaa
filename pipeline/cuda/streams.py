"""Streams of a device, to which kernels and copies go without the interpreter lock.

Numba takes tens of microseconds to launch a kernel, most of them with the lock, and gives it up at each call of the
driver: threads that share a device then wait for each other, and not for it. Here a stream gathers what it is to do,
and compiled code gives all of it to the driver at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt
from numba.cuda.cudadrv import driver

from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.intrinsics import COPY, DOWNLOAD, LAUNCH, NARROW, UPLOAD, WAIT, give
from tagmatch.pipeline.cuda import driver_library

cuda: Any = numba.cuda

_WORD = 2**64 - 1
#: Types of the numbers that kernels get
_NUMBERS: dict[type, Any] = {
    kind: numba.typeof(kind(0)) for kind in (int, bool, np.int32, np.int64, np.uint32, np.uint64)
}
# In the order of the commands
_FUNCTIONS = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize")


class Kernel:
    """A kernel that a `Stream` is launched on, for as many types of arguments as come; else as Numba's own."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self._lock = threading.Lock()
        #: Handles, by device and types; these are told apart by their addresses, as to hash them takes longer
        self._handles: dict[tuple[int, ...], tuple[int, list[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatcher, name)

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """What launches the kernel with these blocks, threads and, if not the default one, stream."""
        blocks, threads, *stream = configuration
        if not stream:
            launch: Callable[..., None] = self.dispatcher[configuration]
            return launch
        return partial(stream[0].launch, self, blocks, threads)

    def handle(self, device: int, types: list[Any]) -> int:
        """The driver's name of the kernel for these types; it is compiled, and loaded to the device, once."""
        of_types = (device, *map(id, types))
        found = self._handles.get(of_types)
        if found is None:
            with self._lock:
                loaded = self.dispatcher.compile(tuple(types))._codelibrary.get_cufunc()
            found = self._handles[of_types] = _number(loaded.handle), types
        return found[0]


class Stream:
    """A stream of the device in use; one thread at a time may use it."""

    def __init__(self) -> None:
        self._stream = cuda.stream()
        self._handle = np.uint64(_number(self._stream.handle))
        self._device: int = cuda.current_context().device.id
        self._words: list[int] = []
        #: Words of copies for the moment when the device is done
        self._last: list[int] = []
        #: Arrays that the words name
        self._kept: list[Any] = []

    def launch(self, kernel: Kernel, blocks: int | tuple[int, int], threads: int, *arguments: Any) -> None:
        """Run a kernel when all that came before is done."""
        words: list[int] = []
        kinds = []
        for argument in arguments:
            kind = _NUMBERS.get(type(argument))
            if kind is None:
                kind, more = _packed(argument)
                words += more
            else:
                words.append(int(argument) & _WORD)
            kinds.append(kind)
        x, y = blocks if isinstance(blocks, tuple) else (blocks, 1)
        self._words += (LAUNCH, kernel.handle(self._device, kinds), x, y, threads, len(words), *words)
        self._kept.append(arguments)

    def copy(self, to: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Copy an array of the host to another of its type."""
        values = np.ascontiguousarray(values)
        self._add(COPY, (_host(to), _host(values)), values.nbytes, to, values)

    def upload(self, there: Any, values: npt.NDArray[Any]) -> None:
        """Copy a pinned array to the first elements of a device array of its type."""
        self._add(UPLOAD, (_place(there), _host(values)), values.nbytes, there, values)

    def download(self, values: npt.NDArray[Any], there: Any, first: int = 0) -> None:
        """Copy elements of a device array, from the first on, to all of a pinned one of its type."""
        self._add(DOWNLOAD, (_host(values), _place(there) + first * values.itemsize), values.nbytes, values, there)

    def keep(self, to: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """As `copy`, or from int64 to int32, when `synchronize` has waited for the device."""
        before, self._words = self._words, self._last
        if to.dtype == values.dtype:
            self.copy(to, values)
        else:
            self._add(NARROW, (_host(to), _host(values)), len(values), to, values)
        self._words = before

    def flush(self) -> Any:
        """Give the driver all commands; returns Numba's stream, which later ones may use."""
        if self._words:
            check(*give(*self.taken()))
        return self._stream

    def taken(self) -> tuple[U64Array, U64Array, np.uint64]:
        """All commands, which are then forgotten, as `give` takes them, with the driver and the stream."""
        words, self._words = np.array(self._words, np.uint64), []
        return words, _driver(), self._handle

    def synchronize(self) -> None:
        """Wait until all that has come is done."""
        self._words += (WAIT, *self._last)
        self._last = []
        self.flush()
        self._kept.clear()

    def _add(self, command: int, places: tuple[int, int], size: int, *kept: Any) -> None:
        to, source = places
        if size:
            self._words += (command, to, size, source, size)
            self._kept.append(kept)


def check(error: int, function: int) -> None:
    """Raise CudaAPIError if `give` returned one."""
    if error:
        raise driver.CudaAPIError(int(error), f"Call to {_FUNCTIONS[function]} results in {_name(error)}")


class SimulatedStream:
    """As `Stream`, for Numba's simulator, which copies at once, and launches kernels itself."""

    def copy(self, to: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """See `Stream`."""
        to[:] = values

    def upload(self, there: Any, values: npt.NDArray[Any]) -> None:
        """See `Stream`."""
        driver.host_to_device(there, values, values.nbytes)

    def download(self, values: npt.NDArray[Any], there: Any, first: int = 0) -> None:
        """See `Stream`."""
        driver.device_to_host(values, there[first:], values.nbytes)

    def flush(self) -> int:
        """See `Stream`."""
        return 0

    def keep(self, to: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """See `Stream`."""
        to[:] = values

    def synchronize(self) -> None:
        """See `Stream`."""


def _packed(argument: Any) -> tuple[Any, list[int]]:
    """A kernel's argument as Numba passes it: its type and its words, found once for each array and `typed` tuple."""
    try:
        found: tuple[Any, list[int]] = argument.packed_words
    except AttributeError:
        typeof: Any = import_module("numba.cuda.typing.typeof")
        words: list[Any] = []
        kind = typeof.typeof(argument, typeof.Purpose.argument)
        _packer()._prepare_args(kind, argument, 0, [], words)
        found = kind, list(map(_word, words))
        if hasattr(argument, "__dict__"):
            argument.packed_words = found
    return found


@cache
def _packer() -> Any:
    """What Numba flattens arguments with: a kernel without code."""
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    made = object.__new__(dispatcher._Kernel)
    made.extensions = []
    return made


def _word(value: Any) -> int:
    """An integer, or one of C's numbers, as a word; the kernel reads as many of its bytes as it needs."""
    return value & _WORD if isinstance(value, int) else int.from_bytes(bytes(value), "little")


def _number(handle: Any) -> int:
    """A handle of the driver's, for which Numba's bindings have different classes."""
    return int(getattr(handle, "value", handle) or 0)


def _host(values: npt.NDArray[Any]) -> int:
    address: int = values.__array_interface__["data"][0]
    return address


def _place(there: Any) -> int:
    place: int = there.device_ctypes_pointer.value
    return place


@cache
def _driver() -> U64Array:
    """Addresses of the driver's functions."""
    library = driver_library()
    return np.array([ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS], np.uint64)


def _name(error: int) -> str:
    name = ctypes.c_char_p()
    driver_library().cuGetErrorName(int(error), ctypes.byref(name))
    return (name.value or b"an unknown error").decode()
