"""Areas that stay where they are, and clients that move, in the memory of one device."""

from __future__ import annotations

import queue
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.areas.packing import Packed
from tagmatch.pipeline.areas.shapes import Places
from tagmatch.pipeline.cuda.area_search import Answers, Askings, no_lists
from tagmatch.pipeline.cuda.clients import CudaClients
from tagmatch.pipeline.cuda.memory import Workspace, to_device
from tagmatch.pipeline.cuda.support import on_device

cuda: Any = numba.cuda

# Answers of the first packet for which there is room
_FIRST_ROOM = 1 << 16


def _sent(packed: Packed) -> tuple[Any, ...]:
    """The arrays of areas of one kind on the device, where numbers are in the words, too."""
    words = to_device(packed.words)
    return (
        to_device(packed.group_offsets),
        words,
        words.view(np.uint32),
        to_device(packed.bounds),
        to_device(packed.levels),
    )


class CudaFixedAreas:
    """Areas in groups, as of `FixedAreas`, on a device. Any number of threads may share it.

    Parameters
    ----------
    areas : FixedAreas
    device : int
    streams : int
        Packets that are matched at once.

    Raises
    ------
    DeviceError
        From all methods, when the device has failed; `DeviceMemoryError` when its memory is too small for the areas, or
        for what a packet finds.
    """

    def __init__(self, areas: FixedAreas, device: int = 0, streams: int = 1) -> None:
        self._device, self._plane = device, areas.plane
        self._has_circles = len(areas.circles.numbers) > 0
        self._free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        with on_device(device):
            kinds = ((areas.circles, False), (areas.boxes, True))
            self._trees = [(_sent(packed), boxes) for packed, boxes in kinds if len(packed.numbers)]
            self._answers = Answers(self._trees, _FIRST_ROOM, device)
            for _ in range(streams):
                self._free.put(Workspace())
        # `numbers` are in `words`
        self.nbytes = sum(int(array.nbytes) for tree, _ in self._trees for array in (*tree[:2], *tree[3:]))
        # All kernels are compiled by this thread, before others want them
        self.holding(Places(np.zeros(1), np.zeros(1)), Lists(np.array([0, 1]), np.zeros(1, np.uint32)))

    def holding(self, places: Places, groups: Lists) -> Lists:
        """As of `FixedAreas`."""
        if not self._trees or not len(groups.values):
            return no_lists(len(places))
        workspace = self._free.get()
        try:
            with on_device(self._device):
                workspace.stream.synchronize()  # a call that failed may have left something behind
                askings = self.sent(places, groups, workspace)
                return self._answers.lists(askings)
        except DeviceMemoryError:
            self._answers.forget()
            with on_device(self._device):
                workspace.clear()
            raise
        finally:
            self._free.put(workspace)

    def sent(self, places: Places, groups: Lists, workspace: Workspace) -> Askings:
        """Copy messages' places and groups to the device."""
        return Askings.sent(places, groups, workspace, plane=self._plane, of_points=self._has_circles)

    def launch(self, askings: Askings) -> None:
        """Have kernels find what they ask for, and nothing more."""
        self._answers.search(askings)


class CudaAreas:
    """What finds areas and clients of an index on a device, as of `DeviceFinder`.

    Parameters
    ----------
    index : AreaIndex
    device : int
    streams : int
        Packets that are matched at once; of clients that move, one.

    Raises
    ------
    DeviceError
        As of `CudaFixedAreas`.
    """

    def __init__(self, index: AreaIndex, device: int = 0, streams: int = 1) -> None:
        self._fixed = CudaFixedAreas(index.fixed, device, streams) if len(index.fixed_rows) else None
        self._clients = None if index.followers is None else CudaClients(index.followers.cells, device)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, but for what packets take on their way."""
        return sum(part.nbytes for part in (self._fixed, self._clients) if part is not None)

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that stay, which have each message's place."""
        return no_lists(len(places)) if self._fixed is None else self._fixed.holding(places, groups)

    def near(self, places: Places, groups: Lists) -> Lists:
        """Entries of clients near each message's place."""
        return no_lists(len(places)) if self._clients is None else self._clients.near(places, groups)
