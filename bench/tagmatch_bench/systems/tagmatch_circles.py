"""tagmatch itself, seen as systems that match areas alone: its two structures, on a device too, and whole indexes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch import DeviceError, Near, TagMatch
from tagmatch.model.arrays import F64Array, Lists, U32Array
from tagmatch.model.kernels.sphere import CIRCLE
from tagmatch.pipeline.areas.chunks import Places, Shapes
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.cuda import devices, on_device
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.matcher import Plain, UnavailableError
from tagmatch_bench.systems.tagmatch import Indexed


class _Structure(Plain):
    """One of our structures, with all circles in one group, on the plane; `_find` gets places and groups."""

    _there: Any
    _find: Callable[[Places, Lists], Lists]

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        found = self._find(Places(x, y), only_group(len(x)))
        return Found(found.offsets.astype(np.int64, copy=False), found.values)

    def nbytes(self) -> int:
        """Bytes of memory, of the device's if it is on one."""
        return int(self._there.nbytes)


class FixedCircles(_Structure):
    """`FixedAreas` on one thread. Exact; takes no moves."""

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        count = len(circles)
        values = np.column_stack([circles.x, circles.y, circles.radius, np.zeros(count)])
        shapes = Shapes(np.full(count, CIRCLE, np.uint8), values)
        self._there = FixedAreas.of(np.zeros(count, np.int64), 1, shapes, plane=True)
        self._find = self._there.find


class ClientCircles(_Structure):
    """`ClientCells` on one thread, with a client in the middle of each circle. Exact."""

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        count = len(circles)
        at = circles.x, circles.y
        self._cells = ClientCells(np.zeros(count, np.int64), 1, np.arange(count), circles.radius, at, plane=True)
        self._there, self._find = self._cells, self._cells.find

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres."""
        self._cells.move(ids.astype(np.int64), x, y)


class CirclesInIndex(Indexed):
    """A `TagMatch` of sets without tags, each with a circle on the plane, whose number is the key. Exact.

    Points come as an Arrow table, and answers are Arrow keys.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        self.index = TagMatch(threads=threads, device="cpu", plane=True)
        self._add(circles)
        self.index.consolidate()

    def _add(self, circles: Circles) -> None:
        columns = [pa.array(column) for column in (circles.x, circles.y, circles.radius)]
        area = pa.StructArray.from_arrays(columns, ["lon", "lat", "metres"])
        self.index.add_subscriptions(pa.table({"key": np.arange(len(circles), dtype=np.uint64), "area": area}))

    def prepare(self, x: F64Array, y: F64Array) -> pa.Table:  # type: ignore[override]
        """Points as messages."""
        return pa.table({"location": pa.StructArray.from_arrays([pa.array(x), pa.array(y)], ["x", "y"])})

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        return Found.of(self.match_many(self.prepare(x, y)))


class ClientsInIndex(CirclesInIndex):
    """The same with clients that are near: a set for each radius, whose clients are in the middle of the circles."""

    def _add(self, circles: Circles) -> None:
        keys = np.arange(len(circles), dtype=np.uint64)
        radii, which = np.unique(circles.radius, return_inverse=True)
        near = [Near(radius) for radius in radii.tolist()]
        for number, area in enumerate(near):
            some = keys[which == number]
            self.index.add_sets([()] * len(some), some, area=area)
        self.index.move(keys, circles.x, circles.y)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres: `TagMatch.move`."""
        self.index.move(ids.astype(np.uint64), x, y)


def only_group(messages: int) -> Lists:
    """The group of each message, which all areas are in."""
    return Lists(np.arange(messages + 1), np.zeros(messages, np.uint32))


_DEVICE = 0


def _need_device() -> None:
    try:
        devices()
    except DeviceError as error:
        raise UnavailableError(str(error)) from error


def kernel_seconds(there: Any, places: Places, groups: Lists) -> float:
    """Seconds that the kernels take which find areas or clients, once messages are on the device and room is made."""
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


class _OnGpu(_Structure):
    """What both have in common: what finds circles is on a device."""

    def kernel_seconds(self, x: F64Array, y: F64Array) -> float:
        """Seconds of `stab` without copies to the device and from it, nor what orders answers."""
        self.stab(x, y)
        return kernel_seconds(self._there, Places(x, y), only_group(len(x)))

    def close(self) -> None:
        """Free the device's memory."""
        del self._there, self._find


class FixedCirclesOnGpu(_OnGpu, FixedCircles):
    """`CudaFixedAreas` with all circles in one group, on the plane. Exact; takes no moves."""

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        _need_device()
        super().__init__(circles, threads=threads)
        from tagmatch.pipeline.cuda.areas import CudaFixedAreas

        self._there = CudaFixedAreas(self._there, _DEVICE)
        self._find = self._there.find


class ClientCirclesOnGpu(_OnGpu, ClientCircles):
    """`CudaClients` with a client in the middle of each circle, all in one group, on the plane. Exact.

    Parameters and errors are those of `FixedCirclesOnGpu`.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        _need_device()
        super().__init__(circles, threads=threads)
        from tagmatch.pipeline.cuda.areas import CudaClients

        self._there = CudaClients(self._cells, _DEVICE)
        self._find = self._there.find

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, on the CPU and on the device, which otherwise waits for the next packet."""
        super().move(ids, x, y)
        self._there.update()
