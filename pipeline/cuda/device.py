"""What all CUDA code has from here: compiled kernels, memory, arithmetic that rounds as the CPU's, and prefix sums."""

from __future__ import annotations

import logging
import operator
import os
import threading
from collections.abc import Callable
from functools import cache, cached_property, wraps
from importlib import import_module
from typing import Any, TypeVar

import numba
import numba.cuda
import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import U64Array
from tagmatch.model.errors import DeviceError
from tagmatch.model.kernels.kept import KeptByCode, NamedPlace, cache_folder
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.streams import Kernel, SimulatedStream, Stream

cuda: Any = numba.cuda
Table = TypeVar("Table", bound=tuple[Any, ...])
_numba_config: Any = numba.config


def _config() -> Any:
    """Return the settings that CUDA's compiler reads: the package numba-cuda has its own."""
    try:
        return import_module("numba.cuda.core.config")
    except ImportError:
        return numba.config


# Small packets make small grids on purpose
_config().CUDA_LOW_OCCUPANCY_WARNINGS = 0


def _one_thread_loads() -> None:
    """Load kernels to a device under a lock: numba-cuda has none, and fails where two threads load the same one.

    https://github.com/NVIDIA/numba-cuda/issues/180
    """
    try:
        library = import_module("numba.cuda.codegen").CUDACodeLibrary
    except ImportError:  # the simulator loads nothing
        return
    load, lock = library.get_cufunc, threading.RLock()

    @wraps(load)
    def loaded(self: Any) -> Any:
        with lock:
            return load(self)

    library.get_cufunc = loaded


_one_thread_loads()


@cache
def _cache_class() -> Any:
    """The class of Numba's caches for CUDA, which finds machine code as the CPU's does."""
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    files = type("Files", (dispatcher.CUDACacheImpl,), {"_locator_classes": [NamedPlace]})
    return type("Cache", (KeptByCode, dispatcher.CUDACache), {"_impl_class": files})


def kernel(function: Callable[..., Any], **options: int) -> Any:
    """Compile on first use, with Numba's options, and cache on disk; any number of threads may be the first."""
    if _numba_config.ENABLE_CUDASIM:  # which knows no options
        return cuda.jit(function)
    compiled = cuda.jit(**options)(function)
    if cache_folder() is not None:
        compiled._cache = _cache_class()(function)
    return Kernel(compiled)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper, compiled only as part of the kernels that call it."""
    return cuda.jit(device=True)(function)


class _Typed:
    """A tuple of arrays whose type is found once: a launch would find it anew, which takes it 4 us an array.

    Its type is that of the tuple that has no such class.
    """

    @cached_property
    def _numba_type_(self) -> Any:
        typeof: Any = import_module("numba.cuda.typing.typeof")
        arrays: Any = self
        plain: Any = type(self).__mro__[2]
        return typeof.typeof(plain(*arrays), typeof.Purpose.argument)


@cache
def _typed(kind: Any) -> Any:
    return type(kind.__name__, (_Typed, kind), {})


def typed(arrays: Table) -> Table:
    """A named tuple of the device's arrays as one argument of many launches."""
    made: Table = arrays if _numba_config.ENABLE_CUDASIM else _typed(type(arrays))(*arrays)
    return made


def sent(tables: Table) -> Table:
    """Copy the arrays of a named tuple, and of tuples in it, to the device; numbers stay as they are."""
    here: Any = tables
    there: Table = typed(type(here)(*map(_sent, here)))
    return there


def _sent(value: Any) -> Any:
    if isinstance(value, tuple):
        return sent(value) if hasattr(value, "_fields") else tuple(map(_sent, value))
    return to_device(value) if isinstance(value, np.ndarray) else value


def _type_once() -> None:
    """Let the compiler of a kernel find the types of typed tuples where its launches find them."""
    try:
        typeof: Any = import_module("numba.cuda.typing.typeof")
    except ImportError:  # the simulator types nothing
        return
    typeof.typeof_impl.register(_Typed)(lambda value, _: value._numba_type_)


_type_once()


# Elements of an array
_FEWEST_ITEMS = 1024


class Workspace:
    """Memory of one packet on its way: a stream, and arrays by name, which grow and are given back all at once."""

    def __init__(self) -> None:
        self.stream: Any = SimulatedStream() if _numba_config.ENABLE_CUDASIM else Stream()
        self._device: dict[str, Any] = {}
        self._pinned: dict[str, npt.NDArray[Any]] = {}
        self._tables: dict[type, Any] = {}

    def table(self, kind: type[Table], *arrays: Any) -> Table:
        """A `typed` tuple of the workspace's arrays, which is made anew when one of them is another."""
        found = self._tables.get(kind)
        if found is None or any(one is not other for one, other in zip(found, arrays, strict=True)):
            found = self._tables[kind] = typed(kind(*arrays))
        table: Table = found
        return table

    def device(self, name: str, dtype: npt.DTypeLike, count: int) -> Any:
        """Return a device array of at least `count` elements; what it holds is lost when it has to grow."""
        array = self._device.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = None
            self._device.pop(name, None)
            array = self._device[name] = cuda.device_array(_roomy(count), dtype)
        return array

    def pinned(self, name: str, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """Return a pinned host array of exactly `count` elements."""
        array = self._pinned.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = None
            self._pinned.pop(name, None)
            array = self._pinned[name] = cuda.pinned_array(_roomy(count), dtype)
        return array[:count]

    def upload(self, name: str, values: npt.NDArray[Any]) -> Any:
        """Copy a pinned array to the device array of that name."""
        array = self.device(name, values.dtype, len(values))
        self.stream.upload(array, values)
        return array

    def send(self, name: str, values: npt.NDArray[Any]) -> Any:
        """Copy any array to the device array of that name, by way of the pinned one."""
        pinned = self.pinned(name, values.dtype, len(values))
        self.stream.copy(pinned, values)
        return self.upload(name, pinned)

    def download(self, name: str, array: Any, count: int, first: int = 0) -> npt.NDArray[Any]:
        """Copy elements of a device array to the pinned array of that name, which can be read when that is done."""
        values = self.pinned(name, array.dtype, count)
        self.stream.download(values, array, first)
        return values

    def clear(self) -> None:
        """Give all arrays back, when the stream's work is done."""
        self.stream.synchronize()
        self._device.clear()
        self._pinned.clear()
        self._tables.clear()


def _roomy(count: int) -> int:
    """Some more than asked for, so that growing stays rare."""
    return int(max(_FEWEST_ITEMS, count + count // 4))


def device_array(dtype: npt.DTypeLike, count: int) -> Any:
    """Make a device array, not initialized, of at least one element, as the device has no empty arrays."""
    return cuda.device_array(max(1, count), dtype)


def to_device(table: npt.NDArray[Any]) -> Any:
    """Copy a table to the device, which has no empty arrays: they become one row of zeros."""
    return cuda.to_device(table if len(table) else np.zeros((1, *table.shape[1:]), table.dtype))


def grid(work: int, block: int) -> tuple[int, int]:
    """Blocks and threads for `count` pieces of work, at least one."""
    return max(1, -(-work // block)), block


_log = logging.getLogger(__name__)

# Bytes. Blocks are used again, as to pin memory takes longer than to write it; few keys are soon copied
_BLOCK_BYTES = 16 << 20
_FEWEST_BYTES = 4 << 20
_MOST = 16 << 30
# Pinned memory is lost to all others: at most an eighth of what the machine has
_SHARE = 8


class PinnedPool:
    """Lends memory that comes back when nothing refers to the keys in it any more. Any number of threads may ask.

    A device writes answers there, which callers then keep without a copy; so the pool lends no more than a limit.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._free: list[U64Array] = []
        self._returned: list[U64Array] = []
        self._bytes = 0
        self._most = min(_MOST, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _SHARE)

    def lend(self, count: int) -> U64Array | None:
        """Memory for `count` keys, not initialized; `None` if they are few, or if there is no more."""
        if count * 8 < _FEWEST_BYTES:
            return None
        size = _BLOCK_BYTES * max(1, -(-count * 8 // _BLOCK_BYTES))
        with self._lock:
            while self._returned:
                self._free.append(self._returned.pop())
            block = min((block for block in self._free if size <= block.nbytes <= 2 * size), key=len, default=None)
            if block is None:
                block = self._new(size)
            else:
                self._free = [other for other in self._free if other is not block]
        return None if block is None else np.asarray(_Lent(block, self._returned))[:count]

    def _new(self, size: int) -> U64Array | None:
        if self._bytes + size > self._most:  # those that are free do not fit
            self._bytes -= sum(block.nbytes for block in self._free)
            self._free.clear()
        if self._bytes + size > self._most:
            return None
        try:
            with on_device(self._device):
                block: U64Array = cuda.pinned_array(size // 8, np.uint64)
        except DeviceError as error:
            _log.debug("answers go to memory that is not pinned: %s", error)
            return None
        self._bytes += size
        return block


class _Lent:
    """An array's memory on loan: what NumPy and Arrow make of it refers to this."""

    def __init__(self, block: U64Array, returned: list[U64Array]) -> None:
        self.__array_interface__ = block.__array_interface__
        self._block, self._returned = block, returned

    def __del__(self) -> None:
        # The garbage collector may call this from any thread, also one that has the pool's lock
        self._returned.append(self._block)


# Products and sums that are rounded one by one, as the CPU's are: CUDA's compiler makes one step of others
times: Callable[..., Any]
plus: Callable[..., Any]
if _numba_config.ENABLE_CUDASIM:  # which fuses nothing, and has no functions for that
    times, plus = operator.mul, operator.add
else:
    from numba.cuda.libdevice import dadd_rn, dmul_rn

    times, plus = dmul_rn, dadd_rn


_THREADS = 256
_EACH = 8
_TILE = _THREADS * _EACH


@kernel
def _clear(count, values):
    i = cuda.grid(1)
    if i < count:
        values[i] = 0


def clear(values: Any, count: int, stream: Any) -> None:
    """Make the first elements of an int32 device array zero."""
    _clear[(*grid(count, _THREADS), stream)](count, values)


@kernel
def _scan_tiles(count, values, ends, totals):
    """Sums within each tile: every thread adds up its own, the threads' sums are added up in shared memory."""
    sums = cuda.shared.array(_THREADS, np.int64)
    thread = cuda.threadIdx.x
    first = cuda.blockIdx.x * _TILE + thread * _EACH
    mine = np.int64(0)
    for i in range(first, min(first + _EACH, count)):
        mine += values[i]
    sums[thread] = mine
    cuda.syncthreads()
    step = 1
    while step < _THREADS:
        before = sums[thread - step] if thread >= step else np.int64(0)
        cuda.syncthreads()
        sums[thread] += before
        cuda.syncthreads()
        step *= 2
    total = sums[thread] - mine
    for i in range(first, min(first + _EACH, count)):
        total += values[i]
        ends[i + 1] = total
    if thread == _THREADS - 1:
        totals[cuda.blockIdx.x] = sums[thread]


@kernel
def _scan_totals(count, totals):
    total = np.int64(0)
    for i in range(count):
        total += totals[i]
        totals[i] = total


@kernel
def _add_totals(count, ends, totals):
    i = cuda.grid(1)
    if i == 0:
        ends[0] = 0
    if i < count and i >= _TILE:
        ends[i + 1] += totals[i // _TILE - 1]


def prefix_sums(name: str, values: Any, count: int, workspace: Workspace) -> Any:
    """Ends, the int64 device array `name` of at least `count + 1`, of lists with these lengths; the first is 0."""
    ends = workspace.device(name, np.int64, count + 1)
    tiles, threads = grid(count, _TILE)[0], _THREADS
    totals = workspace.device("totals", np.int64, tiles)
    _scan_tiles[tiles, threads, workspace.stream](count, values, ends, totals)
    _scan_totals[1, 1, workspace.stream](tiles, totals)
    _add_totals[(*grid(count, _THREADS), workspace.stream)](count, ends, totals)
    return ends
