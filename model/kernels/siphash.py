"""SipHash-2-4: a hash with a secret key, for tags that were made to have one XXH64.

Written from J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (INDOCRYPT 2012), §2. Nobody who does
not know the key can make strings that collide.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.xxh64 import read64, rotl

_U = np.uint64


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
    # The last word has what is left of the data and, in its last byte, the length modulo 256
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
