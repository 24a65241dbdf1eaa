"""A table of a segment's tags, in which those of queries are looked up on the CPU.

A bucket, which is one line of the cache, has three slots: a slot has the key of a tag, which is two words, and its
number. The key of a tag of up to 15 bytes is these bytes and how many they are: a look-up reads one line, and not the
tag's bytes elsewhere. The key of a longer tag is a hash and a mark; equal ones are settled on the bytes. Hashes and
buckets depend on the table's secret, so that those who do not know it cannot make tags that crowd into few buckets. A
tag whose bucket is full goes to the next, and the full one says so.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import Strings, U32Array, U64Array, frozen
from tagmatch.model.kernels.hashing import read64
from tagmatch.model.kernels.jit import kernel, lent

_U = np.uint64
_ONE = _U(1)

# Words of a bucket: three keys, and behind them four halves of words, the numbers and what there is for other keys:
# UNKNOWN, or this if the bucket was full when a tag came
_BUCKET, _SLOTS, _NUMBERS = _U(8), 3, _U(6)
_HALF, _LOW = _U(32), _U(0xFFFFFFFF)
_ELSEWHERE = _LOW - _ONE
# Buckets for each 32 tags
_BUCKETS_FOR_32 = 15
# Tags that are looked up together, so that their cache misses are waited for at once
_BLOCK = 256

#: Tags of fewer bytes are their keys; they are read at once if the array has this number of bytes from their begin on
SHORT = 16
_SHORT = _U(SHORT)
# The last byte of a key: the tag's length, or one of these
_LENGTH = _U(56)
_LONG, _FREE = _U(0xFF) << _LENGTH, _U(0x7F) << _LENGTH


class KnownTags(NamedTuple):
    """The table; kernels take it."""

    buckets: U64Array
    secret: U64Array  # uint64[4]: two factors, which are odd, and with what the hash of a long tag begins


@lent
def _first_bytes(word, count):
    """The first bytes of a word, which has eight, and zeros."""
    half = _U(4) * count  # as no word is shifted by 64
    return word & (((_ONE << half) << half) - _ONE)


@lent
def _mixed(a, b, word, secret):
    a, b = (a ^ word) * secret[0], (b + word) * secret[1]
    return a ^ (a >> _U(32)), b ^ (b >> _U(29))


@lent
def _hash(data, at, length, secret):
    """The key of a long tag. Words in which one half stays as it is, for any secret, leave traces in the other."""
    a, b = secret[2] ^ length, secret[3]
    for i in range(_U(0), length - _U(8), _U(8)):
        a, b = _mixed(a, b, read64(data, at + i), secret)
    a, b = _mixed(a, b, read64(data, at + length - _U(8)), secret)
    return a, _LONG | (b >> _U(8))


@lent
def _key(data, at, length, secret):
    if length < _SHORT and at + _SHORT <= _U(len(data)):
        below = min(length, _U(8))
        first, second = _first_bytes(read64(data, at), below), _first_bytes(read64(data, at + _U(8)), length - below)
        return first, second | length << _LENGTH
    if length < _SHORT:
        first = second = _U(0)
        for i in range(min(length, _U(8))):
            first |= _U(data[at + i]) << (_U(8) * i)
        for i in range(_U(8), length):
            second |= _U(data[at + i]) << (_U(8) * (i & _U(7)))
        return first, second | length << _LENGTH
    return _hash(data, at, length, secret)


@lent
def _home(first, second, secret, buckets):
    """Where the bucket of a key begins."""
    a, b = first * secret[0], second * secret[1]
    mixed = ((a ^ (a >> _U(32))) + (b ^ (b >> _U(29)))) * secret[0]
    return _BUCKET * (((mixed >> _U(32)) * (_U(len(buckets)) // _BUCKET)) >> _U(32))


@lent
def _after(place, buckets):
    place += _BUCKET
    return place if place < _U(len(buckets)) else _U(0)


@lent
def _has(buckets, key, first, second):
    return (buckets[key] ^ first) | (buckets[key + _ONE] ^ second) == _U(0)


@lent
def _in_slot(buckets, place, slot):
    """The number in a slot of a bucket, or, for the slot behind the last, what the bucket has for other keys."""
    return (buckets[place + _NUMBERS + (slot >> _ONE)] >> (_HALF * (slot & _ONE))) & _LOW


@lent
def _number(buckets, place, first, second):
    """The number that a bucket has for a key; if it has none, UNKNOWN, or `_ELSEWHERE`. Without branches."""
    slot = _U(2) if _has(buckets, place + _U(4), first, second) else _U(_SLOTS)
    slot = _U(1) if _has(buckets, place + _U(2), first, second) else slot
    slot = _U(0) if _has(buckets, place, first, second) else slot
    return _in_slot(buckets, place, slot)


@kernel
def _enter(offsets, data, numbers, known):
    """Put the tags with these numbers into free slots."""
    buckets, secret = known
    keys, homes, touched = np.empty((_BLOCK, 2), np.uint64), np.empty(_BLOCK, np.uint64), _U(0)
    for begin in range(0, len(numbers), _BLOCK):
        count = min(_BLOCK, len(numbers) - begin)
        for i in range(count):
            at = _U(offsets[numbers[begin + i]])
            length = _U(offsets[numbers[begin + i] + np.uint32(1)]) - at
            keys[i, 0], keys[i, 1] = _key(data, at, length, secret)
            homes[i] = _home(keys[i, 0], keys[i, 1], secret, buckets)
        for i in range(count):
            touched ^= buckets[homes[i]]
        for i in range(count):
            place = homes[i]
            while buckets[place + _U(5)] != _FREE:
                buckets[place + _U(7)] &= ~(_ONE << _HALF)
                place = _after(place, buckets)
            slot = _U(0)
            while buckets[place + _U(2) * slot + _ONE] != _FREE:
                slot += _ONE
            buckets[place + _U(2) * slot], buckets[place + _U(2) * slot + _ONE] = keys[i, 0], keys[i, 1]
            buckets[place + _NUMBERS + (slot >> _ONE)] ^= (_U(numbers[begin + i]) ^ _LOW) << (_HALF * (slot & _ONE))
    return touched


@lent
def _is_same(tag, number, known):
    """Whether a long tag is the one with a number."""
    (data, at, length), (offsets, heap) = tag, known
    begin = _U(offsets[number])
    if _U(offsets[number + _ONE]) - begin != length:
        return False
    differs = read64(data, at + length - _U(8)) ^ read64(heap, begin + length - _U(8))
    for i in range(_U(0), length - _U(8), _U(8)):
        differs |= read64(data, at + i) ^ read64(heap, begin + i)
    return differs == _U(0)


@lent
def _settled(buckets, place, key, number, strings, which, known):
    """The number of a tag whose bucket has this number for its key, if that is not all there is to look at."""
    (first, second), (offsets, data) = key, strings
    if second < _LONG:
        while number == _ELSEWHERE:
            place = _after(place, buckets)
            number = _number(buckets, place, first, second)
        return number
    tag = data, _U(offsets[which]), _U(offsets[which + _ONE]) - _U(offsets[which])
    if number == _LOW or (number < _ELSEWHERE and _is_same(tag, number, known)):
        return number
    while True:
        for slot in range(_U(_SLOTS)):
            if _has(buckets, place + _U(2) * slot, first, second):
                number = _in_slot(buckets, place, slot)
                if _is_same(tag, number, known):
                    return number
        if _in_slot(buckets, place, _U(_SLOTS)) == _LOW:
            return _LOW
        place = _after(place, buckets)


@kernel
def look_up(offsets, data, first, known, known_offsets, known_data, out):
    """Write to `out` the number of each tag from `first` on, UNKNOWN for those that are not in the table."""
    (buckets, secret), strings, known_strings = known, (offsets, data), (known_offsets, known_data)
    block = min(_BLOCK, len(out))
    keys, homes, unsettled = np.empty((block, 2), np.uint64), np.empty(block, np.uint64), np.empty(block, np.uint32)
    touched = _U(0)
    # A loop for each miss of the cache, without a branch on the word that is read: the processor then waits for many
    # misses at once instead of for one after the other.
    for begin in range(_U(0), _U(len(out)), _U(_BLOCK)):
        count = min(_U(_BLOCK), _U(len(out)) - begin)
        for i in range(count):
            at = _U(offsets[_U(first) + begin + i])
            length = _U(offsets[_U(first) + begin + i + _ONE]) - at
            keys[i, 0], keys[i, 1] = _key(data, at, length, secret)
            homes[i] = _home(keys[i, 0], keys[i, 1], secret, buckets)
        for i in range(count):
            touched ^= buckets[homes[i]]
        left = _U(0)
        for i in range(count):
            number = _number(buckets, homes[i], keys[i, 0], keys[i, 1])
            out[begin + i] = np.uint32(number)
            unsettled[left] = i
            left += _U(number == _ELSEWHERE) | (keys[i, 1] >> _U(63))
        for k in range(left):
            j = _U(unsettled[k])
            key, found = (keys[j, 0], keys[j, 1]), _U(out[begin + j])
            out[begin + j] = np.uint32(
                _settled(buckets, homes[j], key, found, strings, _U(first) + begin + j, known_strings)
            )
    return touched


def known_tags(tags: Strings, numbers: U32Array) -> KnownTags:
    """A table in which the tags with these numbers are, which must differ."""
    count, width = 1 + len(numbers) * _BUCKETS_FOR_32 // 32, int(_BUCKET)
    raw = np.empty((count + 1) * width, np.uint64)
    skip = -(raw.ctypes.data // raw.itemsize) % width
    buckets = raw[skip : skip + count * width]
    buckets.reshape(count, width)[:] = [_U(0), _FREE] * _SLOTS + [~_U(0)] * 2
    secret = np.frombuffer(secrets.token_bytes(32), np.uint64) | np.array([1, 1, 0, 0], np.uint64)
    _enter(tags.offsets, tags.data, frozen(numbers), (buckets, frozen(secret)))
    return KnownTags(frozen(buckets), frozen(secret))
