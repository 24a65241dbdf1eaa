"""From ranks in one segment to ranks in another: what was looked up in one need not be looked up in all others."""

from __future__ import annotations

import threading

import numpy as np

from tagmatch.model.arrays import TagLists, U32Array, U64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.pipeline.cpu.preprocess import TagIndex
from tagmatch.pipeline.matcher import QueryBatch

_U = np.uint64
_FREE = _U(0xFFFFFFFFFFFFFFFF)
# The golden ratio's bits spread consecutive ranks (Knuth, The Art of Computer Programming, 6.4)
_GOLDEN = _U(0x9E3779B97F4A7C15)
# A slot has a rank of the one segment above that of the other
_HALF = _U(32)


@inlined
def _home(rank, shift):
    return (_U(rank) * _GOLDEN) >> shift


@kernel
def _place(ranks, slots, shift):
    """Enter where tag `i` of one segment has the rank `ranks[i]` in the other, if it has one."""
    last = _U(len(slots) - 1)
    for i in range(len(ranks)):
        if ranks[i] != UNKNOWN:
            place = _home(ranks[i], shift)
            while slots[place] != _FREE:
                place = (place + _U(1)) & last
            slots[place] = (_U(ranks[i]) << _HALF) | _U(i)


@kernel
def _translate(ranks, slots, shift, out):
    """Write what ranks are in the other segment; UNKNOWN, which a free slot has, where they are none."""
    last = _U(len(slots) - 1)
    # Most are settled by the first slot, in a loop without a branch on what is read
    unsettled = np.empty(len(ranks), np.uint32)
    used = _U(0)
    for i in range(_U(len(ranks))):
        slot = slots[_home(ranks[i], shift)]
        found = slot >> _HALF == _U(ranks[i])
        out[i] = np.uint32(slot) if found else UNKNOWN
        unsettled[used] = i
        used += _U((not found) & (slot != _FREE))
    for k in range(used):
        i = unsettled[k]
        place = (_home(ranks[i], shift) + _U(1)) & last
        while slots[place] != _FREE and slots[place] >> _HALF != _U(ranks[i]):
            place = (place + _U(1)) & last
        out[i] = np.uint32(slots[place])


class Translation:
    """From ranks in a large segment to those in one with fewer tags; is as large as that one's vocabulary is long.

    Parameters
    ----------
    source, target : TagIndex
        Of the large segment, and of the other.
    """

    def __init__(self, source: TagIndex, target: TagIndex) -> None:
        self.source = source
        self._target = target
        ranks = source.looked_up(target.vocabulary.tags)
        in_both = int(np.count_nonzero(ranks != UNKNOWN))
        self._has_more = in_both < len(ranks)
        bits = max(1, (4 * in_both).bit_length())
        self._shift = _U(64 - bits)
        self._slots: U64Array = np.full(1 << bits, _FREE)
        _place(ranks, self._slots, self._shift)

    def ranks(self, queries: TagLists, first: int, last: int, numbers: U32Array) -> QueryBatch:
        """Queries `first` to `last`, whose tags have the ranks `numbers` in the large segment, as ranks of the other.

        Parameters
        ----------
        queries : TagLists
            Without a dictionary.
        numbers : uint32 array
            As of `TagIndex.numbers`.
        """
        own = np.empty(len(numbers), np.uint32)
        _translate(numbers, self._slots, self._shift, own)
        if self._has_more and len(new := np.flatnonzero(numbers == UNKNOWN).astype(np.uint64)):
            tags = gather_strings(queries.tags, np.uint64(queries.offsets[first]) + new)
            own[new] = self._target.looked_up(tags)
        return self._target.batch(queries, first, last, own)


class Translations:
    """The translation to a segment from the large one beside it, made when it is first needed, and kept.

    Parameters
    ----------
    target : TagIndex
    """

    def __init__(self, target: TagIndex) -> None:
        self._target = target
        self._making = threading.Lock()
        self._made: Translation | None = None

    def of(self, source: TagIndex) -> Translation:
        """Return that from this large segment."""
        with self._making:
            if self._made is None or self._made.source is not source:
                self._made = Translation(source, self._target)
            return self._made
