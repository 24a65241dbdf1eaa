"""A hash table from tag strings to numbers, shared by staging (insert) and queries (look up).

Open addressing with linear probing. A slot is `fingerprint << 32 | (number + 1)`, 0 when free; the fingerprint is
the upper half of the tag's hash, the slot's place comes from the lower half. Equal fingerprints are settled on the
strings' bytes, so that tags are told apart even if their hashes are equal.
"""

from __future__ import annotations

import numpy as np

from tagmatch.arrays import I64Array, Strings, U8Array, U32Array, U64Array
from tagmatch.errors import TagMatchError
from tagmatch.kernels.jit import inlined, kernel
from tagmatch.kernels.xxh64 import read64

MAX_TAGS = 2**32 - 2
#: The number that stands for a tag that is not in the table
UNKNOWN = np.uint32(0xFFFFFFFF)

_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)


def capacity_for(tags: int) -> int:
    """Slots, a power of two, that keep a table of `tags` tags at most two thirds full."""
    if tags > MAX_TAGS:
        raise TagMatchError(f"{tags} different tags are more than an index can hold ({MAX_TAGS})")
    return max(16, 1 << (tags * 3 // 2).bit_length())


@inlined
def _same_bytes(data, start, stop, other, other_start, other_stop):
    length = stop - start
    if length != other_stop - other_start:
        return False
    # Unsigned indices save the test for a negative one
    a, b = _U(start), _U(other_start)
    while length >= 8:
        if read64(data, a) != read64(other, b):
            return False
        a, b, length = a + _U(8), b + _U(8), length - 8
    while length > 0:
        if data[a] != other[b]:
            return False
        a, b, length = a + _U(1), b + _U(1), length - 1
    return True


@kernel
def find(tag_hash, data, start, stop, slots, offsets, heap):
    """`(slot, number)` of the tag `data[start:stop]`; the number is UNKNOWN when the slot found is free."""
    mask = _U(len(slots) - 1)
    place = tag_hash & mask
    while True:
        slot = slots[place]
        if slot == _U(0):
            return place, UNKNOWN
        if (slot ^ tag_hash) & _HIGH32 == _U(0):
            number = np.uint32((slot & _LOW32) - _U(1))
            at = _U(number)
            if _same_bytes(data, start, stop, heap, offsets[at], offsets[at + _U(1)]):
                return place, number
        place = (place + _U(1)) & mask


@kernel
def _place(slots, hashes, first, last):
    mask = _U(len(slots) - 1)
    for number in range(first, last):
        place = hashes[number] & mask
        while slots[place] != _U(0):
            place = (place + _U(1)) & mask
        slots[place] = (hashes[number] & _HIGH32) | _U(number + 1)


def build_slots(hashes: U64Array) -> U64Array:
    """The slots of a table in which tag `i`, with hash `hashes[i]`, has number `i`; the tags must differ."""
    slots = np.zeros(capacity_for(len(hashes)), np.uint64)
    _place(slots, hashes, 0, len(hashes))
    return slots


@kernel
def find_all(hashes, offsets, data, first, slots, known_offsets, known_data, out):
    """Write to `out` the number of each tag, UNKNOWN for those not in the table; tag `first + i` has `hashes[i]`."""
    for i in range(len(hashes)):
        start, stop = offsets[first + i], offsets[first + i + 1]
        out[i] = find(hashes[i], data, start, stop, slots, known_offsets, known_data)[1]


@kernel
def _intern(hashes, offsets, data, first, slots, known, known_offsets, known_data, known_hashes, limit, out):
    """Number tags, adding the new ones, until all are done or there is no room; returns (done, known)."""
    used = known_offsets[known]
    for i in range(len(hashes)):
        start, stop = offsets[first + i], offsets[first + i + 1]
        place, number = find(hashes[i], data, start, stop, slots, known_offsets, known_data)
        if number == UNKNOWN:
            if known >= limit or used + (stop - start) > len(known_data):
                return i, known
            number = np.uint32(known)
            slots[place] = (hashes[i] & _HIGH32) | _U(known + 1)
            known_data[used : used + (stop - start)] = data[start:stop]
            known_hashes[known] = hashes[i]
            used += stop - start
            known += 1
            known_offsets[known] = used
        out[i] = number
    return len(hashes), known


class TagInterner:
    """Numbers different tags 0, 1, 2, ... in the order in which they are first seen, and keeps their strings."""

    def __init__(self) -> None:
        self._known = 0
        self._slots = np.zeros(64, np.uint64)
        self._limit = 32
        self._offsets = np.zeros(self._limit + 1, np.int64)
        self._hashes = np.empty(self._limit, np.uint64)
        self._data: U8Array = np.empty(1024, np.uint8)

    def __len__(self) -> int:
        return self._known

    def intern(self, tags: Strings, hashes: U64Array, first: int = 0) -> U32Array:
        """Numbers, uint32, of the tags from `first` on; `hashes[i]` is the XXH64 (seed 0) of tag `first + i`."""
        out = np.empty(len(hashes), np.uint32)
        done = 0
        while True:
            more, self._known = _intern(
                hashes[done:], tags.offsets, tags.data, first + done,
                self._slots, self._known, self._offsets, self._data, self._hashes, self._limit, out[done:],
            )  # fmt: skip
            done += more
            if done == len(hashes):
                return out
            self._grow(int(tags.offsets[first + done + 1] - tags.offsets[first + done]))

    def strings(self) -> Strings:
        """The tags by number (a copy)."""
        offsets: I64Array = self._offsets[: self._known + 1].copy()
        return Strings(offsets, self._data[: offsets[-1]].copy())

    def _grow(self, length: int) -> None:
        """Make room for one more tag of `length` bytes and, so that growing stays rare, for as many as there are."""
        if self._known == self._limit:
            self._limit *= 2
            self._slots = np.zeros(capacity_for(self._limit), np.uint64)
            _place(self._slots, self._hashes, 0, self._known)
            self._hashes = np.concatenate([self._hashes, np.empty_like(self._hashes)])
            self._offsets = np.concatenate([self._offsets, np.empty(self._limit // 2, np.int64)])
        used = int(self._offsets[self._known])
        if used + length > len(self._data):
            bigger = np.empty(max(2 * len(self._data), used + length), np.uint8)
            bigger[:used] = self._data[:used]
            self._data = bigger
