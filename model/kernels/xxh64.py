"""XXH64 over Arrow string buffers.

Written from the xxHash specification (Yann Collet, "XXH64 algorithm description", v0.1.1): 32-byte stripes in four
lanes, then 8-, 4- and 1-byte remainders, then the avalanche. Bit-identical to `xxhash.xxh64_intdigest`.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Strings, TagLists, U64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_ranges, run_rows

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_U = np.uint64

# Too little work to be worth handing to another thread
_STRINGS_PER_TASK = 16_384


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
    h = (h ^ (h >> _U(33))) * _P2
    h = (h ^ (h >> _U(29))) * _P3
    return h ^ (h >> _U(32))


@kernel
def _hash_range(offsets, data, seed, first, last, out):
    for i in range(first, last):
        out[i - first] = xxh64(data, offsets[i], offsets[i + 1], seed)


def hash_strings(
    strings: Strings, *, seed: int = 0, threads: int = 1, first: int = 0, last: int | None = None
) -> U64Array:
    """XXH64 of strings `first` to `last` (default: all), uint64."""
    last = len(strings) if last is None else last
    out = np.empty(last - first, np.uint64)

    def work(begin: int, end: int) -> None:
        _hash_range(strings.offsets, strings.data, _U(seed), first + begin, first + end, out[begin:end])

    run_rows(work, even_ranges(last - first, min(threads, 1 + (last - first) // _STRINGS_PER_TASK)), threads)
    return out


def hash_tags(rows: TagLists, *, threads: int = 1) -> U64Array:
    """XXH64 of the tag at each place of rows, uint64; each string of a dictionary is hashed once."""
    hashes = hash_strings(rows.tags, threads=threads)
    return hashes if rows.indices is None else hashes[rows.indices]
