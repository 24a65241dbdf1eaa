"""A hash table from tag strings to numbers, shared by staging (insert) and queries (look up).

Slots come in buckets of eight, one line of the cache. A slot is `fingerprint << 32 | (number + 1)`, 0 when free; the
fingerprint is the upper half of the tag's hash, the tag's bucket is the lower half scaled to the number of buckets. A
bucket fills from its front and, once full, flows over into the next. Equal fingerprints are settled on the strings'
bytes, so that tags are told apart even if their hashes are equal.
"""

from __future__ import annotations

import numpy as np

from tagmatch.arrays import I64Array, Strings, U8Array, U32Array, U64Array
from tagmatch.errors import TagMatchError
from tagmatch.kernels.jit import inlined, kernel
from tagmatch.kernels.xxh64 import read64
from tagmatch.parallel import even_ranges, run_rows

MAX_TAGS = 2**32 - 2
#: The number that stands for a tag that is not in the table
UNKNOWN = np.uint32(0xFFFFFFFF)

_U = np.uint64
_BUCKET = 8

# Reads that are made ahead, and tags that are looked up before the unknown ones among them are added
_TOUCHED = 256
_BLOCK_TAGS = 32_768
_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)


def _free_slots(tags: int) -> U64Array:
    """Free slots for a table of `tags` tags, two thirds full with these; its buckets begin where cache lines do."""
    if tags > MAX_TAGS:
        raise TagMatchError(f"{tags} different tags are more than an index can hold ({MAX_TAGS})")
    buckets = 1 + (tags + tags // 2) // _BUCKET
    raw = np.zeros((buckets + 1) * _BUCKET, np.uint64)
    skip = -(raw.ctypes.data // raw.itemsize) % _BUCKET
    return raw[skip : skip + buckets * _BUCKET]


@inlined
def _home(tag_hash, slots):
    """First slot of the tag's bucket."""
    return (((tag_hash & _LOW32) * _U(len(slots) // _BUCKET)) >> _U(32)) * _U(_BUCKET)


@inlined
def _after(place, slots):
    place += _U(1)
    return place if place < _U(len(slots)) else _U(0)


@inlined
def _same_bytes(data, start, stop, other, other_start, other_stop):
    length = stop - start
    if length != other_stop - other_start:
        return False
    # Unsigned indices save the test for a negative one
    a, b = _U(start), _U(other_start)
    if a + _U(8) > _U(len(data)) or b + _U(8) > _U(len(other)):
        for i in range(_U(length)):
            if data[a + i] != other[b + i]:
                return False
        return True
    # Tags of up to 16 bytes, which most are, without a branch: the first eight bytes and the last eight, which overlap;
    # of shorter tags the same eight twice, less what is behind the tag
    short = length < 8
    keep = (_U(1) << _U(8 * (length & 7))) - _U(1) if short else ~_U(0)
    to_last = _U(0) if short else _U(length - 8)
    if (((read64(data, a) ^ read64(other, b)) | (read64(data, a + to_last) ^ read64(other, b + to_last))) & keep) != _U(
        0
    ):
        return False
    for i in range(_U(8), to_last, _U(8)):
        if read64(data, a + i) != read64(other, b + i):
            return False
    return True


@inlined
def _in_bucket(tag_hash, home, slots):
    """The slot of the bucket with the tag's fingerprint, the last of several; 0 if there is none. Without a branch."""
    found = _U(0)
    for i in range(_BUCKET):
        slot = slots[home + _U(i)]
        found = slot if (slot ^ tag_hash) & _HIGH32 == _U(0) else found
    return found


@kernel
def find(tag_hash, data, start, stop, slots, offsets, heap):
    """`(slot, number)` of the tag `data[start:stop]`; the number is UNKNOWN when the slot found is free."""
    place = _home(tag_hash, slots)
    while slots[place] != _U(0):
        number = (slots[place] & _LOW32) - _U(1)
        if (slots[place] ^ tag_hash) & _HIGH32 == _U(0) and _same_bytes(
            data, start, stop, heap, offsets[number], offsets[number + _U(1)]
        ):
            return place, np.uint32(number)
        place = _after(place, slots)
    return place, UNKNOWN


@kernel
def _place(slots, hashes, first, last):
    touched = _U(0)
    for begin in range(first, last, _TOUCHED):
        end = min(begin + _TOUCHED, last)
        for number in range(begin, end):
            touched ^= slots[_home(hashes[number], slots)]
        for number in range(begin, end):
            place = _home(hashes[number], slots)
            while slots[place] != _U(0):
                place = _after(place, slots)
            slots[place] = (hashes[number] & _HIGH32) | _U(number + 1)
    return touched


def build_slots(hashes: U64Array) -> U64Array:
    """The slots of a table in which tag `i`, with hash `hashes[i]`, has number `i`; the tags must differ."""
    slots = _free_slots(len(hashes))
    _place(slots, hashes, 0, len(hashes))
    return slots


@kernel
def find_all(hashes, offsets, data, first, slots, known_offsets, known_data, out):
    """Write to `out` the number of each tag, UNKNOWN for those not in the table; tag `first + i` has `hashes[i]`."""
    # Each miss of the cache gets a loop of its own, without a branch on what is read: the processor then waits for many
    # misses at once instead of for one after the other. Branches come in the loop after it, when the data is at hand.
    count = len(hashes)
    if len(known_offsets) == 1:
        out[:] = UNKNOWN
        return np.uint64(0)
    found = np.empty(count, np.uint64)
    starts = np.empty(count, known_offsets.dtype)
    stops = np.empty(count, known_offsets.dtype)
    touched = np.uint64(0)
    for i in range(count):
        touched ^= slots[_home(hashes[i], slots)]
    for i in range(count):
        found[i] = _in_bucket(hashes[i], _home(hashes[i], slots), slots)
    for i in range(count):
        number = max(found[i] & _LOW32, _U(1)) - _U(1)
        starts[i], stops[i] = known_offsets[number], known_offsets[number + _U(1)]
    for i in range(count):
        touched ^= _U(known_data[min(starts[i], len(known_data) - 1)])
    for i in range(count):
        start, stop = offsets[first + i], offsets[first + i + 1]
        if found[i] != _U(0) and _same_bytes(data, start, stop, known_data, starts[i], stops[i]):
            out[i] = np.uint32((found[i] & _LOW32) - _U(1))
        elif found[i] == _U(0) and slots[_home(hashes[i], slots) + _U(_BUCKET - 1)] == _U(0):
            out[i] = UNKNOWN
        else:
            # The bucket is full, so that the tag may be in the next, or holds another tag with its fingerprint.
            out[i] = find(hashes[i], data, start, stop, slots, known_offsets, known_data)[1]
    return touched


@kernel
def _add_unknown(hashes, offsets, data, first, done, slots, known, known_offsets, known_data, known_hashes, limit, out):
    """Number, from tag `done` on, those that are UNKNOWN, until all are or there is no room; returns (done, known)."""
    used = known_offsets[known]
    for i in range(done, len(hashes)):
        if out[i] != UNKNOWN:
            continue
        start, stop = offsets[first + i], offsets[first + i + 1]
        place, number = find(hashes[i], data, start, stop, slots, known_offsets, known_data)
        if number == UNKNOWN:
            if known >= limit or used + (stop - start) > len(known_data):
                return i, known
            number = np.uint32(known)
            slots[place] = (hashes[i] & _HIGH32) | _U(known + 1)
            known_hashes[known] = hashes[i]
            for at in range(start, stop):
                known_data[used] = data[at]
                used += 1
            known += 1
            known_offsets[known] = used
        out[i] = number
    return len(hashes), known


class TagInterner:
    """Numbers different tags 0, 1, 2, ... in the order in which they are first seen, and keeps their strings."""

    def __init__(self) -> None:
        self._known = 0
        self._limit = 32
        self._slots = _free_slots(self._limit)
        self._offsets = np.zeros(self._limit + 1, np.int64)
        self._hashes = np.empty(self._limit, np.uint64)
        self._data: U8Array = np.empty(1024, np.uint8)

    def __len__(self) -> int:
        return self._known

    def intern(self, tags: Strings, hashes: U64Array, first: int = 0, *, threads: int = 1) -> U32Array:
        """Numbers, uint32, of the tags from `first` on; `hashes[i]` is the XXH64 (seed 0) of tag `first + i`."""
        out = np.empty(len(hashes), np.uint32)
        for begin in range(0, len(hashes), _BLOCK_TAGS):
            end = min(begin + _BLOCK_TAGS, len(hashes))
            self._intern_block(tags, hashes[begin:end], first + begin, out[begin:end], threads)
        return out

    def _intern_block(self, tags: Strings, hashes: U64Array, first: int, out: U32Array, threads: int) -> None:
        """Look up all tags, by several threads, and add the unknown ones, by this thread alone."""

        def look_up(begin: int, end: int) -> None:
            known = (self._slots, self._offsets, self._data)
            find_all(hashes[begin:end], tags.offsets, tags.data, first + begin, *known, out[begin:end])

        run_rows(look_up, even_ranges(len(hashes), threads), threads)
        done = 0
        while True:
            done, self._known = _add_unknown(
                hashes, tags.offsets, tags.data, first, done,
                self._slots, self._known, self._offsets, self._data, self._hashes, self._limit, out,
            )  # fmt: skip
            if done == len(hashes):
                return
            self._grow(int(tags.offsets[first + done + 1] - tags.offsets[first + done]))

    def strings(self) -> Strings:
        """The tags by number; valid until more are interned."""
        offsets: I64Array = self._offsets[: self._known + 1]
        return Strings(offsets, self._data[: offsets[-1]])

    def _grow(self, length: int) -> None:
        """Make room for one more tag of `length` bytes and, so that growing stays rare, for as many as there are."""
        if self._known == self._limit:
            self._limit *= 2
            self._slots = _free_slots(self._limit)
            _place(self._slots, self._hashes, 0, self._known)
            self._hashes = np.concatenate([self._hashes, np.empty_like(self._hashes)])
            self._offsets = np.concatenate([self._offsets, np.empty(self._limit // 2, np.int64)])
        used = int(self._offsets[self._known])
        if used + length > len(self._data):
            bigger = np.empty(max(2 * len(self._data), used + length), np.uint8)
            bigger[:used] = self._data[:used]
            self._data = bigger
