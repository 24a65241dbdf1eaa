"""Makes Numba's simulator fit for this project's kernels, which many threads launch and which call the CPU's rules."""

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial, wraps
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
from hypothesis import settings
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.np.numpy_support import as_dtype

SIMULATED = bool(numba.config.ENABLE_CUDASIM)

#: Whether all tests run, with more examples
AT_NIGHT = "SIMULATED_EXAMPLES" in os.environ

#: How many examples a test has: few, where each of them takes long
EXAMPLES = settings(max_examples=int(os.environ.get("SIMULATED_EXAMPLES", 2)) if SIMULATED else 100, deadline=None)

#: Threads of a block: the simulator has a thread of Python for each. Room for few results, so
#: that it is too little.
_SMALL = {"_BLOCK": 2, "_THREADS": 2, "_EACH": 2, "_TILE": 4, "_BLOCK_ROWS": 2, "_MOST_BLOCKS": 2}
_SMALL |= {"_FIRST_ROOM": 2, "_FEWEST_ITEMS": 1, "_STAGE": 2, "_RUN_BLOCKS": 2}
_SMALL |= {"_ORDERING": 2, "_MOST_ORDERED": 8, "_LINE_BLOCK": 2, "_TRIE_BLOCK": 2, "_ROUTING_BLOCK": 2}
_SMALL |= {"ITEM_THREADS": 2, "ITEM_QUERIES": 8, "BLOCK_ROWS": 4, "SCAN_ROWS": 2}


def set_up(modules: Iterable[ModuleType]) -> None:
    _launch_one_after_another()
    _wait_without_polling()
    _share_arrays_safely()
    sys.setswitchinterval(1e-4)  # a block's threads take turns
    for module in modules:
        members = vars(module)
        for name, member in list(members.items()):
            if isinstance(member, Dispatcher):
                members[name] = _as_in_a_kernel(member)
            elif name in _SMALL:
                members[name] = _SMALL[name]


def _launch_one_after_another() -> None:
    """A launch is configured in the kernel itself and swaps what `cuda` is in its module; so do device functions.

    Other threads find the swapped one, too, and ask it for what only the module has.
    """
    from numba.cuda.simulator.kernel import FakeCUDAKernel, _get_kernel_context
    from numba.cuda.simulator.kernelapi import FakeCUDAModule

    FakeCUDAModule.__getattr__ = lambda _, name: getattr(numba.cuda, name)

    launching = threading.RLock()
    configure, launch = FakeCUDAKernel.__getitem__, FakeCUDAKernel.__call__

    class InKernels:
        def __getattr__(self, name: str) -> Any:
            return getattr(_get_kernel_context(), name)

    def configured(kernel: Any, configuration: Any) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            assert all(each is not None for each in arguments), "a device takes no None"
            with launching:
                launch(configure(kernel, configuration), *arguments)

        return call

    def call(kernel: Any, *arguments: Any) -> Any:
        assert kernel._device, "kernels are launched with a grid"
        return _in_kernels(kernel.fn)(*arguments)

    functions: dict[Any, Callable[..., Any]] = {}

    def _in_kernels(function: Any) -> Callable[..., Any]:
        if function not in functions:
            names = function.__globals__ | {"cuda": InKernels()}
            functions[function] = type(function)(function.__code__, names, closure=function.__closure__)
        return functions[function]

    FakeCUDAKernel.__getitem__, FakeCUDAKernel.__call__ = configured, call


class _Place(NamedTuple):
    x: int
    y: int = 0
    z: int = 0


class _Block:
    """Threads that wait for each other; those that have ended wait with the others, until all have."""

    def __init__(self, threads: int) -> None:
        self._lock, self._barrier = threading.Lock(), threading.Barrier(threads, self._look)
        self._running, self._is_over, self.error = threads, False, None

    def _look(self) -> None:
        self._is_over = not self._running

    def run(self, place: tuple[int, ...], number: int, work: Callable[[], None]) -> None:
        """Be one of the threads."""
        asked = {"blockIdx": _Place(*place), "threadIdx": _Place(number), "syncthreads": self._barrier.wait}
        vars(threading.current_thread()).update(asked)
        try:
            with np.errstate(over="ignore"):
                work()
            with self._lock:
                self._running -= 1
            while not self._is_over:
                self._barrier.wait()
        except BaseException as error:
            with self._lock:
                self.error = self.error or error
            self._barrier.abort()


def _wait_without_polling() -> None:
    """A block's threads tell each other their states; else the simulator looks at them all the time.

    One is the thread that launches, the others are threads that stay: to start one takes longer than most kernels.
    """
    from numba.cuda.simulator.kernel import BlockManager

    helpers: list[SimpleQueue[Callable[[], None]]] = []

    def help_others(queue: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            queue.get()()

    def run_block(manager: Any, place: tuple[int, ...], *arguments: Any) -> None:
        threads = math.prod(manager._block_dim)
        assert manager._block_dim == (threads, 1, 1)
        while len(helpers) < threads - 1:
            helpers.append(SimpleQueue())
            threading.Thread(target=help_others, args=helpers[-1:], daemon=True).start()
        block, work = _Block(threads), partial(manager._f, *arguments)
        for number, helper in enumerate(helpers[: threads - 1], 1):
            helper.put(partial(block.run, place, number, work))
        block.run(place, 0, work)
        if block.error:
            raise block.error

    BlockManager.run = run_block


def _share_arrays_safely() -> None:
    """Two threads of a block that come first at the same time must not get two arrays. Nothing is in them at first."""
    from numba.cuda.simulator.kernelapi import FakeCUDALocal, FakeCUDAShared

    allocating, rng = threading.Lock(), np.random.default_rng(0)

    def undefined(shape: Any, dtype: Any) -> Any:
        made = np.empty(shape, as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
        made.view(np.uint8)[:] = rng.integers(0, 256, made.view(np.uint8).shape, np.uint8)
        return made

    def array(shared: Any, shape: Any, dtype: Any) -> Any:
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lineno
        with allocating:
            if place not in shared._allocations:
                shared._allocations[place] = undefined(shape, dtype)
            return shared._allocations[place]

    FakeCUDAShared.array = array
    FakeCUDALocal.array = lambda _, shape, dtype: undefined(shape, dtype)


def _plain(argument: Any) -> Any:
    """Return the arrays behind those of the simulator; integers in the widest type, so that less is compiled."""
    if isinstance(argument, tuple):
        plain = map(_plain, argument)
        return type(argument)(*plain) if hasattr(argument, "_fields") else tuple(plain)
    if isinstance(argument, np.integer):
        return np.uint64(argument) if argument.dtype.kind == "u" else int(argument)
    wrapped = getattr(argument, "_item", argument)
    return getattr(wrapped, "_ary", wrapped)


def _typed(value: Any, kind: types.Type) -> Any:
    """Return an integer, or a tuple of some, in the type that it was compiled to have."""
    if isinstance(kind, types.BaseTuple):
        return tuple(itertools.starmap(_typed, zip(value, kind, strict=True)))
    return as_dtype(kind).type(value) if isinstance(kind, types.Integer) else value


def _as_in_a_kernel(function: Dispatcher) -> Callable[..., Any]:
    """Call it with arrays and get integers as kernels have them, where calls from Python give and want others."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        plain = tuple(map(_plain, arguments))
        value = function(*plain)
        compiled = function.overloads[tuple(map(numba.typeof, plain))]
        return _typed(value, compiled.signature.return_type)

    return call
