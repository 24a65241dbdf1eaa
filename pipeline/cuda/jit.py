"""How CUDA kernels are compiled: once for a machine, as those of the CPU are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import numba
import numba.cuda

from tagmatch.model.kernels.jit import cache_folder

cuda: Any = numba.cuda


def _config() -> Any:
    """Return the settings that CUDA's compiler reads: the package numba-cuda has its own."""
    try:
        return import_module("numba.cuda.core.config")
    except ImportError:
        return numba.config


# Small packets make small grids on purpose
_config().CUDA_LOW_OCCUPANCY_WARNINGS = 0


def _one_thread_loads() -> None:
    """Have kernels loaded to a device under a lock: numba-cuda has none, and fails where two threads load the same one.

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


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, and cache on disk; any number of threads may be the first."""
    config, folder = _config(), cache_folder()
    configured = config.CACHE_DIR
    config.CACHE_DIR = folder or ""
    try:
        return cuda.jit(cache=folder is not None)(function)
    finally:
        config.CACHE_DIR = configured


def inlined(function: Callable[..., Any]) -> Any:
    """A helper, compiled only as part of the kernels that call it."""
    return cuda.jit(device=True)(function)
