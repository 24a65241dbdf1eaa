"""Hashes of tags, and signatures: 192-bit Bloom filters of tag sets with 7 hash functions (§3).

XXH64 is written from the xxHash specification (Yann Collet, "XXH64 algorithm description", v0.1.1), over Arrow string
buffers. SipHash-2-4, for tags that were made to have one XXH64, is written from J.-P. Aumasson and D. J. Bernstein,
"SipHash: a fast short-input PRF" (INDOCRYPT 2012), §2: who does not know its key cannot make strings that collide.

Let `h` be the 64-bit hash of a tag (XXH64 of its UTF-8 bytes with the vocabulary's seed), `lo = h mod 2**32` and
`hi = (h >> 32) | 1`. The tag sets the seven bit positions ::

    position(i) = ((lo + i * hi) mod 2**32) * 192 >> 32        for i = 0 ... 6

(double hashing, reduced to 0 ... 191 by multiplication). Bit position 0 is the *leftmost* bit: position `p` is bit
`63 - p % 64` of word `p // 64`, so comparing the words `(w0, w1, w2)` as unsigned integers compares the bit strings
lexicographically. The signature of a set is the OR of its tags' signatures; the empty set's is zero.

`A` subset of `B` implies `signature(A) & ~signature(B) == 0`; the converse holds only with high probability.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists, Strings, TagLists, U64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_work, run_evenly, run_rows

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)


@inlined
def rotl(x, bits):
    """The uint64 `x`, its bits rotated to the left."""
    return (x << _U(bits)) | (x >> _U(64 - bits))


@inlined
def read64(data, at):
    """Bytes `at` to `at + 8`, little-endian."""
    # The compiler joins the eight byte loads into one. `at` is unsigned: no test for a negative index.
    value = _U(0)
    for byte in range(8):
        value |= _U(data[at + _U(byte)]) << _U(8 * byte)
    return value


@inlined
def read32(data, at):
    """Bytes `at` to `at + 4`, little-endian."""
    value = _U(0)
    for byte in range(4):
        value |= _U(data[at + _U(byte)]) << _U(8 * byte)
    return value


@inlined
def _round(lane, word):
    return rotl(lane + word * _P2, 31) * _P1


@inlined
def _merge(h, lane):
    return (h ^ _round(_U(0), lane)) * _P1 + _P4


@inlined
def _avalanche(h):
    h = (h ^ (h >> _U(33))) * _P2
    h = (h ^ (h >> _U(29))) * _P3
    return h ^ (h >> _U(32))


@kernel
def xxh64(data, start, stop, seed):
    """XXH64, uint64, of the bytes `data[start:stop]`; the seed is uint64."""
    at, end = _U(start), _U(stop)
    length = end - at
    if length >= _U(32):
        lane1, lane2, lane3, lane4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + _U(32) <= end:
            lane1 = _round(lane1, read64(data, at))
            lane2 = _round(lane2, read64(data, at + _U(8)))
            lane3 = _round(lane3, read64(data, at + _U(16)))
            lane4 = _round(lane4, read64(data, at + _U(24)))
            at += _U(32)
        h = rotl(lane1, 1) + rotl(lane2, 7) + rotl(lane3, 12) + rotl(lane4, 18)
        h = _merge(_merge(_merge(_merge(h, lane1), lane2), lane3), lane4)
    else:
        h = seed + _P5
    h += length
    while at + _U(8) <= end:
        h = rotl(h ^ _round(_U(0), read64(data, at)), 27) * _P1 + _P4
        at += _U(8)
    if at + _U(4) <= end:
        h = rotl(h ^ (read32(data, at) * _P1), 23) * _P2 + _P3
        at += _U(4)
    while at < end:
        h = rotl(h ^ (_U(data[at]) * _P5), 11) * _P1
        at += _U(1)
    return _avalanche(h)


# Strings of fewer bytes are hashed without a branch, which would be foretold wrongly where lengths differ
_SHORT = _U(16)


@inlined
def _either(first, second, is_first):
    """The first of two uint64, or the second. Without a branch: compilers make one of a condition."""
    return second ^ ((first ^ second) & (_U(0) - _U(is_first)))


@inlined
def _xxh64_of_short(data, at, length, seed):
    """XXH64, uint64, of fewer than 16 bytes from `at` on, behind which there are some more."""
    h, long = seed + _P5 + length, length & _U(8)
    h = _either(rotl(h ^ _round(_U(0), read64(data, at)), 27) * _P1 + _P4, h, long >> _U(3))
    rest, some = read64(data, at + long), length & _U(4)
    h = _either(rotl(h ^ ((rest & _LOW32) * _P1), 23) * _P2 + _P3, h, some >> _U(2))
    rest >>= some << _U(3)
    for i in range(3):
        h = _either(rotl(h ^ ((rest & _U(255)) * _P5), 11) * _P1, h, length & _U(3) > _U(i))
        rest >>= _U(8)
    return _avalanche(h)


@kernel
def _hash_range(offsets, data, seed, first, last, out):
    begin, room = _U(first), _U(len(data))
    for i in range(begin, _U(last)):
        at, end = _U(offsets[i]), _U(offsets[i + _U(1)])
        if end - at < _SHORT and at + _SHORT <= room:
            out[i - begin] = _xxh64_of_short(data, at, end - at, seed)
        else:
            out[i - begin] = xxh64(data, at, end, seed)


def hash_strings(
    strings: Strings, *, seed: int = 0, threads: int = 1, first: int = 0, last: int | None = None
) -> U64Array:
    """XXH64 of strings `first` to `last` (default: all), uint64."""
    last = len(strings) if last is None else last
    out = np.empty(last - first, np.uint64)

    def work(begin: int, end: int) -> None:
        _hash_range(strings.offsets, strings.data, _U(seed), first + begin, first + end, out[begin:end])

    run_evenly(work, last - first, threads)
    return out


def hash_tags(rows: TagLists, *, threads: int = 1) -> U64Array:
    """XXH64 of the tag at each place of rows, uint64; each string of a dictionary is hashed once."""
    hashes = hash_strings(rows.tags, threads=threads)
    return hashes if rows.indices is None else hashes[rows.indices]


@inlined
def _rounds(count, v0, v1, v2, v3):
    for _ in range(count):
        v0 += v1
        v2 += v3
        v1 = rotl(v1, 13) ^ v0
        v3 = rotl(v3, 16) ^ v2
        v0 = rotl(v0, 32)
        v2 += v1
        v0 += v3
        v1 = rotl(v1, 17) ^ v2
        v3 = rotl(v3, 21) ^ v0
        v2 = rotl(v2, 32)
    return v0, v1, v2, v3


@kernel
def siphash(data, start, stop, key0, key1):
    """SipHash-2-4, uint64, of the bytes `data[start:stop]`; the two halves of the key are uint64, little-endian."""
    v0, v1 = key0 ^ _U(0x736F6D6570736575), key1 ^ _U(0x646F72616E646F6D)
    v2, v3 = key0 ^ _U(0x6C7967656E657261), key1 ^ _U(0x7465646279746573)
    at, end = _U(start), _U(stop)
    # The last word has the rest of the data and, in its last byte, the length modulo 256
    last = (end - at) << _U(56)
    while at + _U(8) <= end:
        word = read64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _rounds(2, v0, v1, v2, v3)
        v0 ^= word
        at += _U(8)
    for i in range(end - at):
        last |= _U(data[at + _U(i)]) << _U(8 * i)
    v3 ^= last
    v0, v1, v2, v3 = _rounds(2, v0, v1, v2, v3)
    v0 ^= last
    v2 ^= _U(0xFF)
    v0, v1, v2, v3 = _rounds(4, v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


SIGNATURE_BITS = 192
SIGNATURE_WORDS = 3
HASH_FUNCTIONS = 7

# Rows whose cache misses are waited for together: a quarter of the time where the vocabulary is larger than the cache
_BATCH_ROWS = 64


@inlined
def _position(tag_hash, i):
    lo = tag_hash & _LOW32
    hi = (tag_hash >> _U(32)) | _U(1)
    return (((lo + _U(i) * hi) & _LOW32) * _U(SIGNATURE_BITS)) >> _U(32)


@kernel
def add_tag(tag_hash: np.uint64, signature: U64Array) -> None:
    """Set the bits of one tag in `signature`, uint64[3]."""
    for i in range(HASH_FUNCTIONS):
        position = _position(tag_hash, i)
        signature[position >> _U(6)] |= _U(1) << (_U(63) - (position & _U(63)))


@inlined
def contains(big, small):
    """Whether every bit of the signature `small` is set in `big` (the subset check of Algorithm 3)."""
    return (small[0] & ~big[0]) | (small[1] & ~big[1]) | (small[2] & ~big[2]) == _U(0)


@kernel
def _signatures(offsets, ranks, hashes, first, last, out):
    of_batch = np.empty(0, np.uint64)
    for begin in range(first, last, _BATCH_ROWS):
        end = min(begin + _BATCH_ROWS, last)
        base, tags = offsets[begin], offsets[end] - offsets[begin]
        if tags > len(of_batch):
            of_batch = np.empty(2 * tags, np.uint64)
        # A separate loop, so that the processor waits for many cache misses at once
        for i in range(tags):
            of_batch[i] = hashes[ranks[base + i]]
        for row in range(begin, end):
            out[row, :] = _U(0)
            for i in range(offsets[row], offsets[row + 1]):
                add_tag(of_batch[i - base], out[row])


def signatures_of(rows: Lists, hashes: U64Array, *, threads: int = 1) -> U64Array:
    """Signatures, uint64[n, 3], of rows of ranks; `hashes[rank]` is the hash of the tag with that rank."""
    out = np.empty((len(rows), SIGNATURE_WORDS), np.uint64)

    def work(first: int, last: int) -> None:
        _signatures(rows.offsets, rows.values, hashes, first, last, out)

    run_rows(work, even_work(rows.offsets, threads), threads)
    return out
