"""A hash table from tag strings to numbers, shared by staging (insert) and queries (look up).

Slots come in buckets of eight, one line of the cache. A slot is `fingerprint << 32 | (number + 1)`, 0 when free; the
fingerprint is the upper half of the tag's hash, the tag's bucket is the lower half scaled to the number of buckets. A
bucket fills from its front and, once full, flows over into the next.

A tag's hash is its XXH64, and equal fingerprints are settled on the strings' bytes. Anybody can make any number of tags
with one XXH64; so a tag that meets another one with its fingerprint goes, from then on, by its SipHash, whose key is
the table's own. The key follows the last bucket.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U8Array, U32Array, U64Array, frozen
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.hashing import hash_strings, read64, siphash
from tagmatch.model.kernels.jit import copy, inlined, kernel
from tagmatch.model.parallel import run_evenly

MAX_TAGS = 2**32 - 2
#: The number of a tag that is not in the table
UNKNOWN = np.uint32(0xFFFFFFFF)

_U = np.uint64
_BUCKET = 8

# Reads that are made ahead, and tags that are looked up before the unknown ones among them are added
_TOUCHED = 256
_BLOCK_TAGS = 32_768

# Room that a table has at first
_FIRST_TAGS, _FIRST_BYTES = 32, 1024

# In the place of the numbers of some tags
_ALL = frozen(np.zeros(0, np.uint32))

_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)


def _free_slots(tags: int, key: U64Array) -> U64Array:
    """Free slots for a table of `tags` tags, two thirds full with these; its buckets begin where cache lines do."""
    if tags > MAX_TAGS:
        raise TagMatchError(f"{tags} different tags are more than an index can hold ({MAX_TAGS})")
    buckets = 1 + (tags + tags // 2) // _BUCKET
    raw = np.zeros((buckets + 2) * _BUCKET, np.uint64)
    skip = -(raw.ctypes.data // raw.itemsize) % _BUCKET
    slots = raw[skip : skip + (buckets + 1) * _BUCKET]
    slots[-_BUCKET : -_BUCKET + len(key)] = key
    return slots


@inlined
def _end(slots):
    """The place behind the last bucket."""
    return _U(len(slots) - _BUCKET)


@inlined
def _home(tag_hash, slots):
    """First slot of the tag's bucket."""
    return (((tag_hash & _LOW32) * (_end(slots) // _U(_BUCKET))) >> _U(32)) * _U(_BUCKET)


@inlined
def _after(place, slots):
    place += _U(1)
    return place if place < _end(slots) else _U(0)


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
    # of shorter tags the same eight twice, less the bytes behind the tag
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
    """The slot of the bucket with the tag's fingerprint, the last of several; 0 without one. Without a branch."""
    found = _U(0)
    for i in range(_BUCKET):
        slot = slots[home + _U(i)]
        found = slot if (slot ^ tag_hash) & _HIGH32 == _U(0) else found
    return found


@kernel
def find(tag_hash, data, start, stop, slots, offsets, heap):
    """Find the tag `data[start:stop]`, whose XXH64 is `tag_hash`."""
    secret = False
    place = _home(tag_hash, slots)
    while slots[place] != _U(0):
        if (slots[place] ^ tag_hash) & _HIGH32 == _U(0):
            number = (slots[place] & _LOW32) - _U(1)
            if _same_bytes(data, start, stop, heap, offsets[number], offsets[number + _U(1)]):
                return place, tag_hash, np.uint32(number)
            if not secret:
                key = _end(slots)
                tag_hash = siphash(data, start, stop, slots[key], slots[key + _U(1)])
                secret = True
                place = _home(tag_hash, slots)
                continue
        place = _after(place, slots)
    return place, tag_hash, UNKNOWN


@kernel
def _place(slots, numbers, hashes, offsets, data):
    """Put the tags with these numbers, and these hashes, into free slots; without numbers, all tags."""
    touched = _U(0)
    count = len(hashes)
    for begin in range(0, count, _TOUCHED):
        end = min(begin + _TOUCHED, count)
        for i in range(begin, end):
            touched ^= slots[_home(hashes[i], slots)]
        for i in range(begin, end):
            number = np.int64(numbers[i]) if len(numbers) else i
            tag_hash = hashes[i]
            place = _home(tag_hash, slots)
            while slots[place] != _U(0) and (slots[place] ^ tag_hash) & _HIGH32 != _U(0):
                place = _after(place, slots)
            if slots[place] != _U(0):
                place, tag_hash, _ = find(tag_hash, data, offsets[number], offsets[number + 1], slots, offsets, data)
            slots[place] = (tag_hash & _HIGH32) | _U(number + 1)
    return touched


def new_key() -> U64Array:
    """A key for a table, uint64[2], which no attacker can guess."""
    return np.frombuffer(secrets.token_bytes(16), np.uint64)


def build_slots(
    tags: Strings, hashes: U64Array, key: U64Array | None = None, numbers: U32Array | None = None
) -> U64Array:
    """The slots of a table in which tag `i`, with the XXH64 `hashes[i]`, has number `i`; the tags must differ.

    With numbers it has only the tags with these, whose hashes are given. The slots depend on the tags and the key;
    without a key they get a new one.
    """
    slots = _free_slots(len(hashes), new_key() if key is None else key)
    _place(slots, _ALL if numbers is None else frozen(numbers), frozen(hashes), tags.offsets, tags.data)
    return slots


@kernel
def find_all(hashes, offsets, data, first, slots, known_offsets, known_data, out):
    """Write to `out` the number of each tag, UNKNOWN for those not in the table; tag `first + i` has `hashes[i]`."""
    # Each miss of the cache gets its own loop, without a branch on the data: the processor then waits for many
    # misses at once instead of for one after the other. Branches come in the loop after it, when the data is at hand,
    # in the nearest cache, as a block has few tags.
    if len(known_offsets) == 1:
        out[:] = UNKNOWN
        return np.uint64(0)
    block = min(_TOUCHED, len(hashes))
    found = np.empty(block, np.uint64)
    ends = np.empty((block, 2), known_offsets.dtype)
    touched = np.uint64(0)
    for begin in range(0, len(hashes), _TOUCHED):
        count = min(_TOUCHED, len(hashes) - begin)
        for i in range(count):
            touched ^= slots[_home(hashes[begin + i], slots)]
        for i in range(count):
            found[i] = _in_bucket(hashes[begin + i], _home(hashes[begin + i], slots), slots)
        for i in range(count):
            number = max(found[i] & _LOW32, _U(1)) - _U(1)
            ends[i, 0], ends[i, 1] = known_offsets[number], known_offsets[number + _U(1)]
        for i in range(count):
            touched ^= _U(known_data[min(ends[i, 0], len(known_data) - 1)])
        for i in range(count):
            tag = begin + i
            start, stop = offsets[first + tag], offsets[first + tag + 1]
            if found[i] != _U(0) and _same_bytes(data, start, stop, known_data, ends[i, 0], ends[i, 1]):
                out[tag] = np.uint32((found[i] & _LOW32) - _U(1))
            elif found[i] == _U(0) and slots[_home(hashes[tag], slots) + _U(_BUCKET - 1)] == _U(0):
                out[tag] = UNKNOWN
            else:
                # The bucket is full, so that the tag may be in the next, or holds another tag with its fingerprint.
                out[tag] = find(hashes[tag], data, start, stop, slots, known_offsets, known_data)[2]
    return touched


class _Table(NamedTuple):
    """A table that grows: the tags added so far, and room for more."""

    slots: U64Array
    offsets: I64Array  # Strings and hashes of the tags, by number
    hashes: U64Array
    data: U8Array
    # int64[1] array: how many tags there are. Kernels write it, so that a call of a kernel adds a tag wholly or not at
    # all.
    known: I64Array


@kernel
def _add_unknown(hashes, offsets, data, first, done, table, out):
    """Number the UNKNOWN tags from tag `done` on, as far as there is room; returns the end of those numbered."""
    slots, known_offsets, known_hashes, known_data, known = table
    count = known[0]
    used = known_offsets[count]
    for i in range(done, len(hashes)):
        if out[i] != UNKNOWN:
            continue
        start, stop = offsets[first + i], offsets[first + i + 1]
        place, tag_hash, number = find(hashes[i], data, start, stop, slots, known_offsets, known_data)
        if number == UNKNOWN:
            if count >= len(known_hashes) or used + (stop - start) > len(known_data):
                known[0] = count
                return i
            number = np.uint32(count)
            slots[place] = (tag_hash & _HIGH32) | _U(count + 1)
            known_hashes[count] = hashes[i]
            used = copy(data, start, stop, known_data, used)
            count += 1
            known_offsets[count] = used
        out[i] = number
    known[0] = count
    return len(hashes)


def _grown(table: _Table, length: int) -> _Table:
    """The table with room for one more tag of `length` bytes and, so that growing stays rare, as many as there are."""
    slots, offsets, hashes, data, known = table
    count = int(known[0])
    if count == len(hashes):
        slots = _free_slots(2 * count, slots[-_BUCKET : -_BUCKET + 2])
        _place(slots, _ALL, frozen(hashes), frozen(offsets), frozen(data))
        offsets, hashes = _longer(offsets, 2 * count + 1), _longer(hashes, 2 * count)
    used = int(offsets[count])
    if used + length > len(data):
        data = _longer(data, max(2 * len(data), used + length))
    return _Table(slots, offsets, hashes, data, known)


def _longer(array: Any, length: int) -> Any:
    longer = np.empty(length, array.dtype)
    longer[: len(array)] = array
    return longer


class TagInterner:
    """Numbers different tags 0, 1, 2, ... in the order in which they are first seen, and keeps their strings.

    A call that fails or is interrupted may have added some of its tags, which then have their numbers.
    """

    def __init__(self) -> None:
        self._table = _Table(
            _free_slots(_FIRST_TAGS, new_key()),
            np.zeros(_FIRST_TAGS + 1, np.int64),
            np.empty(_FIRST_TAGS, np.uint64),
            np.empty(_FIRST_BYTES, np.uint8),
            np.zeros(1, np.int64),
        )

    def __len__(self) -> int:
        return int(self._table.known[0])

    def intern(self, tags: Strings, hashes: U64Array, first: int = 0, *, threads: int = 1) -> U32Array:
        """Numbers, uint32, of the tags from `first` on; `hashes[i]` is the XXH64 (seed 0) of tag `first + i`."""
        out = np.empty(len(hashes), np.uint32)
        for begin in range(0, len(hashes), _BLOCK_TAGS):
            end = min(begin + _BLOCK_TAGS, len(hashes))
            self._intern_block(tags, hashes[begin:end], first + begin, out[begin:end], threads)
        return out

    def intern_tags(self, rows: TagLists, first: int, last: int, *, threads: int = 1) -> U32Array:
        """Numbers, uint32, of the tags at places `first` to `last` of rows.

        All strings of a dictionary get numbers, once for all rows that share it.
        """
        if rows.indices is None:
            hashes = hash_strings(rows.tags, first=first, last=last, threads=threads)
            return self.intern(rows.tags, hashes, first, threads=threads)

        def intern_all() -> U32Array:
            return self.intern(rows.tags, hash_strings(rows.tags, threads=threads), threads=threads)

        numbers: U32Array = rows.memo.of(self, intern_all)[rows.indices[first:last]]
        return numbers

    def _intern_block(self, tags: Strings, hashes: U64Array, first: int, out: U32Array, threads: int) -> None:
        """Look up all tags, by several threads, and add the unknown ones, by this thread alone."""
        slots, offsets, _, data, _ = self._table

        def look_up(begin: int, end: int) -> None:
            find_all(hashes[begin:end], tags.offsets, tags.data, first + begin, slots, offsets, data, out[begin:end])

        run_evenly(look_up, len(hashes), threads)
        done = 0
        while (done := _add_unknown(hashes, tags.offsets, tags.data, first, done, tuple(self._table), out)) < len(
            hashes
        ):
            length = int(tags.offsets[first + done + 1] - tags.offsets[first + done])
            # In one step, once there is enough memory: without it, the table stays as it is
            self._table = _grown(self._table, length)

    @property
    def slots(self) -> U64Array:
        """Where `find_all` looks the tags up that are interned so far (see `build_slots`)."""
        return self._table.slots

    def strings(self) -> Strings:
        """The tags by number; they stay as they are when more are interned."""
        known = len(self)
        offsets = self._table.offsets[: known + 1]
        return Strings(offsets, self._table.data[: offsets[-1]])


_SIGNS = tuple(b"+-=")
_AREA = ord("a")
# What strings may be by how they begin, each a special case of the one before
_PLAIN, _RESERVED, _CONSTRAINT, _AREAS = range(4)


@inlined
def _kind_of(data, start, stop):
    length = stop - start
    if length < 2 or data[start] != 0:
        return _PLAIN
    sign = data[start + 1]
    if sign != _SIGNS[0] and sign != _SIGNS[1]:
        return _RESERVED if sign == _SIGNS[2] else _PLAIN
    if length > 4 and data[start + 2] == _AREA and data[start + 3] == 0:
        return _AREAS
    return _CONSTRAINT if length > 3 else _RESERVED


@kernel
def _first_reserved(offsets, data):
    for i in range(len(offsets) - 1):
        if _kind_of(data, offsets[i], offsets[i + 1]) != _PLAIN:
            return i
    return -1


@kernel
def _are(kind, offsets, data, out):
    for i in range(len(out)):
        out[i] = _kind_of(data, offsets[i], offsets[i + 1]) >= kind


def _among(strings: Strings, kind: int) -> BoolArray:
    out = np.zeros(len(strings), np.bool_)
    _are(kind, strings.offsets, strings.data, out)
    return out


def has_reserved(strings: Strings) -> bool:
    """Whether one of them is reserved."""
    return bool(_first_reserved(strings.offsets, strings.data) >= 0)


def row_with_reserved(rows: TagLists) -> int | None:
    """The first row that has a tag that is reserved; `None` without one.

    A dictionary may have one that is in no row.
    """
    place = int(_first_reserved(rows.tags.offsets, rows.tags.data))
    if place >= 0 and rows.indices is not None:
        used = reserved_among(rows.tags)[rows.indices[rows.offsets[0] : rows.offsets[-1]]]
        place = int(rows.offsets[0]) + int(np.argmax(used)) if used.any() else -1
    if not rows.offsets[0] <= place < rows.offsets[-1]:
        return None
    return int(np.searchsorted(rows.offsets, place, side="right")) - 1


def reserved_among(strings: Strings) -> BoolArray:
    """Of each string, whether it is reserved."""
    return _among(strings, _RESERVED)


def constraints_among(strings: Strings) -> BoolArray:
    """For each string, whether it is the tag of a constraint, by how it begins."""
    return _among(strings, _CONSTRAINT)


def areas_among(strings: Strings) -> BoolArray:
    """For each string, whether it is the tag of a constraint on an area, by how it begins."""
    return _among(strings, _AREAS)
