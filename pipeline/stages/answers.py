"""The answers of a call, whose packets write their keys at the same time, each where they belong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, U64Array, offsets_of, pooled
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import run
from tagmatch.pipeline.matcher import Space

_log = logging.getLogger(__name__)

# More memory than the first packet lets expect, in parts of it
_SPARE = 4

# Keys of a list array, of which there can be no more; where a call has more all the same, its packets are joined
_MOST = 2**31 - 1

# Of keys: where memory is so small, none of it is given back that the keys did not take
_FEW = 1 << 17

# What it takes to copy a key into memory that is not in use yet
_COPY_S = 10e-9


class Answers:
    """Keys of all packets of a call, in memory that is allocated once, as the first packet lets expect.

    A packet's place is known when those before it have said how many keys they have. Where that takes too long, or
    the memory is too small, the packet has memory of its own, which is copied later. Any number of threads may write.

    Parameters
    ----------
    queries : sequence of int
        How many each packet has.
    memory : Space
        Makes memory that packets write into best; where it has none, they have their own, which is copied.
    """

    def __init__(self, queries: Sequence[int], memory: Space) -> None:
        self._rows: list[int] = offsets_of(np.array(queries, np.int64)).tolist()
        self._memory = memory
        self._counted = threading.Condition()
        self._counts: list[int | None] = [None] * len(queries)
        #: Of the packets whose place is known, and the end of the last
        self._starts = [0]
        self._allocated = self._shared = False
        self._offsets: IntArray = np.zeros(1, np.int32)
        self._values: U64Array | None = None
        self._in_place: set[int] = set()
        self._kept: dict[int, Lists] = {}

    def space(self, packet: int, count: int) -> U64Array | None:
        """The place of a packet's keys; the caller then writes all `count` there.

        Waits for the packets before it, no longer than it takes to copy the keys: these may never come. `None` where
        the place is not known then.
        """
        with self._counted:
            place = self._place(packet, count)
            self._counted.notify_all()
            if self._shared and packet >= len(self._starts):
                self._counted.wait_for(lambda: packet < len(self._starts), count * _COPY_S)
                place = self._place(packet, count)
            if place is None or not self._shared:
                return None
            self._in_place.add(packet)
            return place

    def put(self, packet: int, keys: Lists) -> None:
        """Take the keys of each of a packet's queries."""
        with self._counted:
            place = self._place(packet, len(keys.values))
            self._counted.notify_all()
        if place is None:
            self._kept[packet] = keys
        else:
            self._write(packet, place, keys)

    def lists(self, threads: int) -> Lists:
        """Keys, uint64, of each query, when all packets have been put; can be asked for once."""
        count, values = self._starts[-1], self._values
        if values is not None and count <= len(values) <= max(2 * count, _FEW):
            run(self._write_kept, list(self._kept), threads)
            return Lists(self._offsets, values[:count])
        parts = [self._kept.pop(i) if i in self._kept else self._written(i) for i in range(len(self._counts))]
        return join_lists(parts, np.dtype(np.uint64), threads)

    # -- inside, where the lock is taken -----------------------------------------------------------------------------

    def _place(self, packet: int, count: int) -> U64Array | None:
        self._counts[packet] = count
        while len(self._starts) <= len(self._counts):
            next_count = self._counts[len(self._starts) - 1]
            if next_count is None:
                break
            self._starts.append(self._starts[-1] + next_count)
        if not self._allocated:
            self._allocate(packet, count)
        if self._values is None or packet >= len(self._starts):
            return None
        start = self._starts[packet]
        return self._values[start : start + count] if start + count <= len(self._values) else None

    def _allocate(self, packet: int, count: int) -> None:
        """Have memory for all keys if other packets have as many as this one, for its queries, and some more."""
        self._allocated = True
        queries, of_packet = self._rows[-1], self._rows[packet + 1] - self._rows[packet]
        expected = count if queries == of_packet else (count * queries // of_packet) * (_SPARE + 1) // _SPARE
        wanted = min(expected, _MOST)
        try:
            self._offsets = pooled(queries + 1, np.int32)
            self._offsets[0] = 0
            values = self._memory(wanted)
            self._shared = values is not None
            self._values = pooled(wanted, np.uint64) if values is None else values
        except MemoryError:
            _log.debug("no memory for the %d keys that are expected; there may be for those that come", wanted)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _write(self, packet: int, place: U64Array, keys: Lists) -> None:
        ends = self._offsets[self._rows[packet] + 1 : self._rows[packet + 1] + 1]
        np.add(keys.offsets[1:], np.int32(self._starts[packet]), out=ends, casting="same_kind")
        if packet not in self._in_place:
            place[:] = keys.values

    def _write_kept(self, packet: int) -> None:
        self._write(packet, self._places(packet), self._kept.pop(packet))

    def _written(self, packet: int) -> Lists:
        ends = self._offsets[self._rows[packet] : self._rows[packet + 1] + 1]
        offsets = ends - np.int32(self._starts[packet])
        offsets[0] = 0  # the packet before may have been kept
        return Lists(offsets, self._places(packet))

    def _places(self, packet: int) -> U64Array:
        assert self._values is not None
        return self._values[self._starts[packet] : self._starts[packet + 1]]
