"""How CUDA kernels are compiled: once for a machine, as those of the CPU are."""

from __future__ import annotations

from collections.abc import Callable
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


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, and cache on disk."""
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
