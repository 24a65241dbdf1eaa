"""Signatures as integers of 192 bits, the first word highest, and as the library has them; and tags that collide.

A lane of XXH64 takes two words, one of each 32-byte stripe: `x = rotl(lane + word * P2, 31) * P1`, then again with `x`
for the lane. Let the first word grow so that `lane + word * P2` grows by a small `k`. Unless a carry leaves its low 33
bits, which happens once in `2**33 / k` seeds, `x` then grows by `k * 2**31 * P1`, and the second word can take that
back. Nothing of it depends on the seed.

A block of two stripes has four lanes, each with a choice of two; so `n` blocks give `2**(4 * n)` strings.
"""

import random
from collections.abc import Sequence

import numpy as np
import xxhash
from hypothesis import strategies as st

from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS

_SHIFTS = (128, 64, 0)

# Around the ends of words, where a mistake of one bit shows
signatures = st.lists(st.sampled_from([0, 1, 62, 63, 64, 65, 127, 128, 190, 191]), max_size=6).map(
    lambda bits: sum({1 << bit for bit in bits})
) | st.integers(0, 2**192 - 1)


def words_of(values: Sequence[int]) -> U64Array:
    rows = [[value >> shift & 2**64 - 1 for shift in _SHIFTS] for value in values]
    return np.array(rows, np.uint64).reshape(-1, SIGNATURE_WORDS)


def integers_of(rows: U64Array) -> list[int]:
    return [sum(int(word) << shift for word, shift in zip(row, _SHIFTS, strict=True)) for row in rows]


# What the first word of a lane grows by, and the second, as digits to the base 256: `k / P2`, `-k * 2**31 * P1 / P2`,
# for the least `k` by which no character leaves ASCII
_GROWN, _TAKEN_BACK = (20, 2, 73, -32, -92, -43, -51, 1), (0, 0, 0, 0, -70, 16, -64, -23)
_LANES, _LOW, _HIGH = 4, 0x21, 0x7E


def colliding_tags(tags: int, salt: int = 0) -> list[str]:
    """So many different strings, of 64 characters for every 16 of them, whose XXH64 is the same under any seed."""
    rng = random.Random(salt)
    blocks = max(1, -(-(tags - 1).bit_length() // _LANES))
    lanes = [[_two_words(rng, digits) for digits in (_GROWN, _TAKEN_BACK)] for _ in range(_LANES * blocks)]
    found = []
    for number in range(tags):
        stripes = [
            lanes[lane][stripe][number >> lane & 1]
            for block in range(0, len(lanes), _LANES)
            for stripe in range(2)
            for lane in range(block, block + _LANES)
        ]
        found.append(b"".join(stripes).decode())
    for seed in (0, 1, rng.randrange(2**64)):
        assert len({xxhash.xxh64_intdigest(tag.encode(), seed) for tag in found}) == 1
    return found


def _two_words(rng: random.Random, difference: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Eight characters which, after the difference is added, are characters still; and what they are then."""
    word = bytes(rng.randint(max(_LOW, _LOW - digit), min(_HIGH, _HIGH - digit)) for digit in difference)
    return word, bytes(byte + digit for byte, digit in zip(word, difference, strict=True))
