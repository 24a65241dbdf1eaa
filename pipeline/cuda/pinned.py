"""Pinned memory for answers: a device writes there what callers then keep, without a copy in between."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import U64Array
from tagmatch.model.errors import DeviceError
from tagmatch.pipeline.cuda.support import on_device

cuda: Any = numba.cuda

_log = logging.getLogger(__name__)

# Bytes. Blocks are used again, as to pin memory takes longer than to write it; few keys are soon copied
_BLOCK = 16 << 20
_FEWEST = 4 << 20
_MOST = 16 << 30
# Pinned memory is lost to all others: at most an eighth of what the machine has
_SHARE = 8


class PinnedPool:
    """Lends memory that comes back when nothing refers to the keys in it any more. Any number of threads may ask.

    Callers may keep their answers, so that there is a limit to what is lent.

    Parameters
    ----------
    device : int
        All devices can write the memory; this one pins it.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._free: list[U64Array] = []
        self._returned: list[U64Array] = []
        self._bytes = 0
        self._most = min(_MOST, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _SHARE)

    def lend(self, count: int) -> U64Array | None:
        """Memory for `count` keys, not initialized; `None` if they are few, or where there is no more."""
        if count * 8 < _FEWEST:
            return None
        size = _BLOCK * max(1, -(-count * 8 // _BLOCK))
        with self._lock:
            while self._returned:
                self._free.append(self._returned.pop())
            block = self._fitting(size)
            if block is None:
                block = self._new(size)
        if block is None:
            return None
        return np.asarray(_Lent(block, self._returned))[:count]

    def _fitting(self, size: int) -> U64Array | None:
        """The smallest free block of this size, unless all are far too large."""
        best = min((block for block in self._free if block.nbytes >= size), key=len, default=None)
        if best is None or best.nbytes > 2 * size:
            return None
        self._free = [block for block in self._free if block is not best]
        return best

    def _new(self, size: int) -> U64Array | None:
        if self._bytes + size > self._most:  # those that are free do not fit
            self._bytes -= sum(block.nbytes for block in self._free)
            self._free.clear()
        if self._bytes + size > self._most:
            return None
        try:
            with on_device(self._device):
                block: U64Array = cuda.pinned_array(size // 8, np.uint64)
        except DeviceError as error:
            _log.debug("answers go to memory that is not pinned: %s", error)
            return None
        self._bytes += size
        return block


class _Lent:
    """An array's memory on loan: what NumPy and Arrow make of it refers to this."""

    def __init__(self, block: U64Array, returned: list[U64Array]) -> None:
        self.__array_interface__ = block.__array_interface__
        self._block, self._returned = block, returned

    def __del__(self) -> None:
        # The garbage collector may call this from any thread, also one that has the pool's lock
        self._returned.append(self._block)
