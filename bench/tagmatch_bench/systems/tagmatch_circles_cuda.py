"""tagmatch's two structures of areas on a CUDA device, seen as systems that match areas alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.errors import DeviceError
from tagmatch.pipeline.areas.packing import Places
from tagmatch.pipeline.cuda.support import devices, on_device
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.tagmatch_circles import ClientCircles, FixedCircles, only_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import F64Array, Lists, U32Array

_DEVICE = 0


def _need_device() -> None:
    try:
        devices()
    except DeviceError as error:
        raise UnavailableError(str(error)) from error


def kernel_seconds(there: Any, places: Places, groups: Lists) -> float:
    """Seconds that the kernels take which find areas or clients, once messages are on the device and room is made.

    Parameters
    ----------
    there : CudaFixedAreas or CudaClients
        Which has answered these messages before.
    places : Places
    groups : Lists
    """
    from tagmatch.pipeline.cuda.device import Workspace

    with on_device(_DEVICE):
        workspace = Workspace()
        askings = there.sent(places, groups, workspace)
        seconds = []
        for _ in range(2):  # the first one warms up
            workspace.stream.synchronize()
            start = time.perf_counter()
            there.launch(askings)
            workspace.stream.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds[-1]


class _OnGpu:
    """What both have in common: what finds circles is on a device."""

    _there: Any
    _find: Callable[[Places, Lists], Lists]

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        found = self._find(Places(x, y), only_group(len(x)))
        return Found(found.offsets.astype(np.int64, copy=False), found.values)

    def kernel_seconds(self, x: F64Array, y: F64Array) -> float:
        """Seconds of `stab` without copies to the device and from it, nor what orders answers."""
        self.stab(x, y)
        return kernel_seconds(self._there, Places(x, y), only_group(len(x)))

    def nbytes(self) -> int:
        """Bytes of the device's memory."""
        return int(self._there.nbytes)

    def close(self) -> None:
        """Free the device's memory."""
        del self._there, self._find


class FixedCirclesOnGpu(_OnGpu, FixedCircles):
    """`CudaFixedAreas` with all circles in one group, on the plane. Exact; takes no moves.

    Parameters
    ----------
    circles : Circles
    threads : int
        Not used.

    Raises
    ------
    UnavailableError
        There is no CUDA device.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        _need_device()
        super().__init__(circles, threads=threads)
        from tagmatch.pipeline.cuda.areas import CudaFixedAreas

        self._there = CudaFixedAreas(self.areas, _DEVICE)
        self._find = self._there.holding


class ClientCirclesOnGpu(_OnGpu, ClientCircles):
    """`CudaClients` with a client in the middle of each circle, all in one group, on the plane. Exact.

    Parameters and errors are those of `FixedCirclesOnGpu`.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        _need_device()
        super().__init__(circles, threads=threads)
        from tagmatch.pipeline.cuda.areas import CudaClients

        self._there = CudaClients(self.cells, _DEVICE)
        self._find = self._there.near

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, on the CPU and on the device, which otherwise waits for the next packet."""
        super().move(ids, x, y)
        self._there.update()
