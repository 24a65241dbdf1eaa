"""Who finds areas and clients for a packet of messages: the CPU, or a device beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tagmatch.model.arrays import Lists
from tagmatch.model.errors import DeviceError, DeviceMemoryError
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.areas.shapes import Places

_log = logging.getLogger(__name__)


class Finder(Protocol):
    """What finds the areas and the clients of an index by where messages are. Any number of threads may share it."""

    def holding(self, places: Places, groups: Lists) -> Lists:
        """As of `FixedAreas`."""

    def near(self, places: Places, groups: Lists) -> Lists:
        """As of `ClientCells`."""


class DeviceFinder(Finder, Protocol):
    """One that is on a device, and raises `DeviceError` when it can do no more.

    It sees all moves of clients that were made before it is asked.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory."""


class OnCpu:
    """A finder that asks the structures themselves."""

    def __init__(self, index: AreaIndex) -> None:
        self._index = index

    def holding(self, places: Places, groups: Lists) -> Lists:
        """As of `Finder`."""
        return self._index.fixed.holding(places, groups)

    def near(self, places: Places, groups: Lists) -> Lists:
        """As of `Finder`."""
        assert self._index.followers is not None
        return self._index.followers.cells.near(places, groups)


class Finders:
    """The CPU's finder of an index, and perhaps a device's: small packets are the CPU's, and all once the device fails.

    A packet that a device cannot answer, is answered by the CPU.

    Parameters
    ----------
    index : AreaIndex
    device : DeviceFinder, optional
    fewest : int
        Packets of fewer messages are the CPU's.
    notes : tuple of str
        Why there is no device.
    """

    def __init__(
        self, index: AreaIndex, device: DeviceFinder | None = None, fewest: int = 0, notes: tuple[str, ...] = ()
    ) -> None:
        self.cpu: Finder = OnCpu(index)
        self.device, self.fewest_messages = device, fewest
        self.notes = notes
        if device is not None and fewest > 1:
            few = f"areas are matched on the CPU for packets of fewer than {fewest} messages, which is faster for few"
            self.notes = (*notes, few)
        self._counting = threading.Lock()
        self._matched_by = {} if device is None else {"cuda": 0, "cpu": 0}

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory."""
        device = self.device
        return 0 if device is None else device.nbytes

    @property
    def matched_by(self) -> dict[str, int]:
        """How many messages went to the device and how many to the CPU; empty where there was no device."""
        with self._counting:
            return dict(self._matched_by)

    def of_packet(self, messages: int) -> Finder:
        """Who finds what a packet of so many messages asks for."""
        device = self.device if messages >= self.fewest_messages else None
        with self._counting:
            if self._matched_by:
                self._matched_by["cpu" if device is None else "cuda"] += messages
        return self.cpu if device is None else _Guarded(self, device)

    def failed(self, device: DeviceFinder, error: DeviceError) -> None:
        """Have the CPU go on, with a packet or, if the device has failed, with all."""
        if isinstance(error, DeviceMemoryError):
            _log.warning("%s; the CPU matches the areas of a packet", error)
        elif self.device is device:
            self.device = None
            _log.error("%s; the CPU goes on with areas", error)


class _Guarded:
    """A device's finder that may fail."""

    def __init__(self, finders: Finders, device: DeviceFinder) -> None:
        self._finders, self._device = finders, device

    def holding(self, places: Places, groups: Lists) -> Lists:
        """As of `Finder`."""
        return self._ask(self._device.holding, self._finders.cpu.holding, places, groups)

    def near(self, places: Places, groups: Lists) -> Lists:
        """As of `Finder`."""
        return self._ask(self._device.near, self._finders.cpu.near, places, groups)

    def _ask(
        self,
        device: Callable[[Places, Lists], Lists],
        cpu: Callable[[Places, Lists], Lists],
        places: Places,
        groups: Lists,
    ) -> Lists:
        try:
            return device(places, groups)
        except DeviceError as error:
            self._finders.failed(self._device, error)
            return cpu(places, groups)
