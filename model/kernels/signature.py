"""Signatures: 192-bit Bloom filters of tag sets with 7 hash functions (§3).

Definition
----------
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

from tagmatch.model.arrays import Lists, U64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_work, run_rows

SIGNATURE_BITS = 192
SIGNATURE_WORDS = 3
HASH_FUNCTIONS = 7

# Rows whose cache misses are waited for together: a quarter of the time where the vocabulary is larger than the cache
_BATCH_ROWS = 64

_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)


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
        # A loop of its own, so that many cache misses are waited for at once
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
