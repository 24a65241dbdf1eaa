"""What CCM's two versions and CLCB share: a device that marks interfaces, by message. Imports `numba.cuda`."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.device import Workspace, to_device
from tagmatch.pipeline.cuda.support import on_device
from tagmatch_bench.systems.content_matcher import ContentMatcher, Messages
from tagmatch_bench.systems.matcher import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from tagmatch.model.arrays import I64Array, U8Array, U32Array

cuda: Any = numba.cuda

_DEVICE = 0
#: Blocks that a grid can have in its second dimension
MOST_ROWS = 65_535


class DeviceMatcher(ContentMatcher):
    """A matcher with one stream of the first CUDA device, for which threads wait in turn.

    On the device, there is a mark for each interface, a byte, which is 1 if the message is for it. Where keys are asked
    for once a filter, which the papers do not do, there is a mark for each filter.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    at_once : int
        Messages that the device has at once.
    threads : int
        All but one wait for the device, or look keys up.

    Raises
    ------
    UnavailableError
        There is no CUDA device.
    """

    def __init__(self, subscriptions: pa.Table, *, at_once: int, threads: int) -> None:
        if not cuda.is_available():
            raise UnavailableError("needs an NVIDIA GPU that numba.cuda can use")
        super().__init__(subscriptions, threads=threads)
        self._at_once = at_once
        self._lock = threading.Lock()
        #: Where the mark of a filter that matches is: at its interface, or if keys are not unique, at itself
        self._places = {True: self._tables.interfaces, False: np.arange(len(self._tables.sizes), dtype=np.uint32)}
        self._marks = {True: len(self._keys), False: len(self._tables.sizes)}
        with on_device(_DEVICE):
            self._workspace = Workspace()
            self._on_device: dict[str, Any] = {
                name: to_device(column) for name, column in self._columns(self._tables).items()
            }
            self._on_device |= {f"places {unique}": to_device(places) for unique, places in self._places.items()}
            self._begin_anew()

    @abstractmethod
    def _columns(self, tables: Any) -> Mapping[str, npt.NDArray[Any]]:
        """Columns that the device gets."""

    @abstractmethod
    def _begin_anew(self) -> None:
        """Forget what the device has counted and marked, of which nothing is known."""

    @contextmanager
    def _device_alone(self) -> Iterator[None]:
        """Keep other threads from the device; after an error it begins anew."""
        with self._lock, on_device(_DEVICE):
            try:
                yield
            except BaseException:
                self._begin_anew()
                raise

    def nbytes(self) -> int | None:
        """Bytes of host and device memory, without counters and marks."""
        return (super().nbytes() or 0) + sum(int(column.nbytes) for column in self._on_device.values())


class MarkingMatcher(DeviceMatcher):
    """One that gets all marks from the device."""

    @abstractmethod
    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        """Return what the device has marked for each of at most `at_once` messages; an array that is used again."""

    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        found = [np.zeros(0, np.uint32)]
        with self._device_alone():
            for first in range(0, len(messages), self._at_once):
                some = messages[first : first + self._at_once]
                marks = self._mark(some, unique=unique).reshape(len(some), -1)
                marks[:, self._places[unique][self._tables.always]] = 1
                of, places = np.nonzero(marks)
                found.append(places.astype(np.uint32))
                ends[first + 1 : first + 1 + len(some)] = np.bincount(of, minlength=len(some))
        np.cumsum(ends, out=ends)
        marked: U32Array = np.concatenate(found)
        return marked if unique else self._tables.interfaces[marked]
