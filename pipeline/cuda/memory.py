"""Memory of one packet on its way: a stream, device arrays and pinned host arrays, kept for the next packet."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt

# Copies of arrays, and views of them, ask for the context again and again, and give up the interpreter lock each time
from numba.cuda.cudadrv import driver

cuda: Any = numba.cuda

# Elements of an array
_FEWEST = 1024


class Workspace:
    """Arrays by name, which grow and are given back only all at once."""

    def __init__(self) -> None:
        self.stream = cuda.stream()
        self._device: dict[str, Any] = {}
        self._pinned: dict[str, npt.NDArray[Any]] = {}

    def device(self, name: str, dtype: npt.DTypeLike, count: int) -> Any:
        """Return a device array of at least `count` elements; what it holds is lost when it has to grow."""
        array = self._device.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = None
            self._device.pop(name, None)
            array = self._device[name] = cuda.device_array(_roomy(count), dtype, stream=self.stream)
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
        if len(values):
            driver.host_to_device(array, values, values.nbytes, stream=self.stream)
        return array

    def send(self, name: str, values: npt.NDArray[Any]) -> Any:
        """Copy any array to the device array of that name, by way of the pinned one."""
        pinned = self.pinned(name, values.dtype, len(values))
        pinned[:] = values
        return self.upload(name, pinned)

    def download(self, name: str, array: Any, count: int) -> npt.NDArray[Any]:
        """Begin to copy the first elements of a device array to the pinned array of that name."""
        values = self.pinned(name, array.dtype, count)
        self.download_into(values, array)
        return values

    def download_into(self, values: npt.NDArray[Any], array: Any) -> None:
        """Begin to copy the first elements of a device array of the same type to all of a pinned one."""
        if len(values):
            driver.device_to_host(values, array, values.nbytes, stream=self.stream)

    def clear(self) -> None:
        """Give all arrays back, when what is on the stream is done."""
        self.stream.synchronize()
        self._device.clear()
        self._pinned.clear()


def _roomy(count: int) -> int:
    """Some more than asked for, so that growing stays rare."""
    return int(max(_FEWEST, count + count // 4))


def device_array(dtype: npt.DTypeLike, count: int) -> Any:
    """Make a device array of its own, not initialized, of at least one element, as the device has no empty arrays."""
    return cuda.device_array(max(1, count), dtype)


def to_device(table: npt.NDArray[Any]) -> Any:
    """Copy a table to the device, which has no empty arrays: one row of zeros stands for them."""
    return cuda.to_device(table if len(table) else np.zeros((1, *table.shape[1:]), table.dtype))


def grid(work: int, block: int) -> tuple[int, int]:
    """Blocks and threads for `count` pieces of work, at least one."""
    return max(1, -(-work // block)), block
