"""Makes Numba's simulator fit for this project's kernels, which many threads launch and which call the CPU's rules."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.np.numpy_support import as_dtype

SIMULATED = bool(numba.config.ENABLE_CUDASIM)

#: Threads of a block, and what is made of them: the simulator has a thread of Python for each. Room for so few results
#: that there is too little.
_SMALL = {"_BLOCK": 2, "_THREADS": 2, "_EACH": 2, "_TILE": 4, "_BLOCK_ROWS": 2, "_MOST_BLOCKS": 2}
_SMALL |= {"_FIRST_ROOM": 2, "_FEWEST": 1, "_STAGE": 2, "_RUN_BLOCKS": 2}
_SMALL |= {"ITEM_THREADS": 2, "ITEM_QUERIES": 8, "BLOCK_ROWS": 4, "SCAN_ROWS": 2}


#: As many as a block may have
_MOST_THREADS = 1024

#: What kernels ask the thread that runs them
_ASKED = ("blockIdx", "threadIdx", "thread_id", "syncthreads")


def set_up(modules: Iterable[ModuleType]) -> None:
    """Prepare the simulator and the modules with kernels."""
    _launch_one_after_another()
    _wait_without_polling()
    _share_arrays_safely()
    np.seterr(over="ignore")
    sys.setswitchinterval(1e-4)  # a block's threads take turns
    for module in modules:
        members = vars(module)
        for name, member in list(members.items()):
            if isinstance(member, Dispatcher):
                members[name] = _as_in_a_kernel(member)
            elif name in _SMALL:
                members[name] = _SMALL[name]


def _launch_one_after_another() -> None:
    """A launch is configured in the kernel itself and swaps what `cuda` is in its module; so do device functions."""
    from numba.cuda.simulator.kernel import FakeCUDAKernel, _get_kernel_context

    launching = threading.RLock()
    configure, launch = FakeCUDAKernel.__getitem__, FakeCUDAKernel.__call__

    class InKernels:
        def __getattr__(self, name: str) -> Any:
            return getattr(_get_kernel_context(), name)

    def configured(kernel: Any, configuration: Any) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
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


def _wait_without_polling() -> None:
    """A block's threads tell when they wait for each other and when they end; else it looks at them all the time.

    They are run by threads that stay.
    """
    from numba.cuda.simulator.kernel import BlockManager, BlockThread

    pool = ThreadPoolExecutor(_MOST_THREADS, initializer=lambda: np.seterr(over="ignore"))  # which is for a thread

    def run_and_tell(thread: Any) -> None:
        vars(threading.current_thread()).update({name: getattr(thread, name) for name in _ASKED})
        thread.run()
        thread._manager.told.release()

    def tell_and_wait(thread: Any) -> None:
        thread.syncthreads_blocked = True
        thread._manager.told.release()
        thread.syncthreads_event.wait()
        thread.syncthreads_event.clear()
        if thread.abort:
            raise RuntimeError("another thread of the block has failed")

    def run_block(block: Any, place: tuple[int, ...], *arguments: Any) -> None:
        block.told = threading.Semaphore(0)
        work = partial(block._f, *arguments)
        threads = [BlockThread(work, block, place, each, block._debug) for each in np.ndindex(*block._block_dim)]
        for thread in threads:
            pool.submit(run_and_tell, thread)
        running = threads
        while running:
            for _ in running:
                block.told.acquire()
            running = [thread for thread in running if thread.syncthreads_blocked]
            failed = [thread.exception for thread in threads if thread.exception]
            for thread in running:
                thread.abort = bool(failed)
                thread.syncthreads_blocked = False
                thread.syncthreads_event.set()
            if failed:
                error, trace = failed[0]
                raise error.with_traceback(trace)

    BlockThread.syncthreads, BlockManager.run = tell_and_wait, run_block


def _share_arrays_safely() -> None:
    """Two threads of a block that come first at the same time must not get two arrays."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    allocating = threading.Lock()

    def array(shared: Any, shape: Any, dtype: Any) -> Any:
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lineno
        with allocating:
            if place not in shared._allocations:
                shared._allocations[place] = np.empty(shape, dtype)
            return shared._allocations[place]

    FakeCUDAShared.array = array


def _plain(argument: Any) -> Any:
    """Return what stands behind an array of the simulator; integers in the widest type, so that less is compiled."""
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
