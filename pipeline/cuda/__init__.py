"""Matching on CUDA: which devices can be used, or why none can.

This needs nothing of CUDA. The modules import `numba.cuda`; nothing else in the package does.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numba

from tagmatch.model.errors import DeviceError, DeviceMemoryError

_config: Any = numba.config
_DRIVER = "libcuda.so.1"
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

_at_exit = ExitStack()


def devices() -> int:
    """Count the devices that can be used."""
    if not (_has_driver() or _config.ENABLE_CUDASIM):
        raise DeviceError(f"no CUDA device can be used: there is no NVIDIA driver ({_DRIVER})")
    try:
        from numba import cuda
    except ImportError as error:
        raise DeviceError(
            f"numba.cuda cannot be imported ({error}); install it with: pip install 'tagmatch[cuda]'"
        ) from error
    try:
        count = len(cuda.gpus)
    except Exception as error:  # a driver that is missing, too old, or out of order
        raise DeviceError(f"no CUDA device can be used: {_in_a_line(error)}") from error
    if not count:
        raise DeviceError("no CUDA device can be used: the driver lists none")
    return count


def _has_driver() -> bool:
    """Look for it, which takes less than importing what needs it."""
    try:
        driver_library()
    except OSError:
        return False
    return True


@functools.cache
def driver_library() -> ctypes.PyDLL:
    """The driver, whose functions keep the interpreter lock."""
    return ctypes.PyDLL(os.environ.get("NUMBA_CUDA_DRIVER") or _DRIVER)


@contextmanager
def on_device(number: int) -> Iterator[None]:
    """Use a device in this thread, within it; its errors become `DeviceError`, or `DeviceMemoryError`."""
    from numba import cuda

    gpus: Any = cuda.gpus
    try:
        context = _context(number)
        if context is None:
            with gpus[number]:
                yield
        else:
            # Numba gives the interpreter lock up for each of these
            _checked(driver_library().cuCtxPushCurrent_v2(context))
            try:
                yield
            finally:
                _checked(driver_library().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
    except Exception as error:
        # Both numba.cuda and the CUDA bindings beneath it raise their own errors
        if type(error).__module__.partition(".")[0] not in ("cuda", "numba"):
            raise
        if getattr(error, "code", None) == _OUT_OF_MEMORY or "OUT_OF_MEMORY" in str(error):
            raise DeviceMemoryError(
                f"CUDA device {number} is out of memory; use fewer streams, placement='split' or device='cpu'"
            ) from error
        raise DeviceError(f"CUDA device {number} has failed: {_in_a_line(error)}") from error


def _checked(error: int) -> None:
    if error:
        from numba.cuda.cudadrv.driver import CudaAPIError

        raise CudaAPIError(error, "its context cannot be used")


@functools.cache
def _context(number: int) -> ctypes.c_void_p | None:
    """The driver's name of a device's context, which Numba has made; none in the simulator."""
    from numba import cuda

    if _config.ENABLE_CUDASIM:
        return None
    gpus: Any = cuda.gpus
    with gpus[number]:
        _leave_kernels_at_exit(number)
        handle = cuda.current_context().handle
    return ctypes.c_void_p(int(getattr(handle, "value", handle)))


def _leave_kernels_at_exit(number: int) -> None:
    """Leave a used device's kernels and memory loaded when the process ends, which frees them anyway.

    Else Numba would unload each kernel once for every device that has run it; but all of them share one library, and
    to unload that again is a crash (numba-cuda 0.30, `_module_finalizer`).
    """
    from numba import cuda

    device: Any = cuda.gpus[number]
    atexit.register(_at_exit.enter_context, device.get_primary_context().defer_cleanup())


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(":. ") or type(error).__name__
