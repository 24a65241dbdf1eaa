"""ASCII strings with one XXH64 under nearly every seed, as many as are wanted.

A lane of XXH64 takes two words, one of each 32-byte stripe: `x = rotl(lane + word * P2, 31) * P1`, then again with `x`
for the lane. Let the first word grow so that `lane + word * P2` grows by a small `k`. Unless a carry leaves its low 33
bits, which happens once in `2**33 / k` seeds, `x` then grows by `k * 2**31 * P1`, and the second word can take that
back. Nothing of it depends on the seed.

A block of two stripes has four lanes, each with a choice of two; so `n` blocks give `2**(4 * n)` strings.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import count

import xxhash

P1, P2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
LIMIT = 2**64
LANES = 4

#: Printable ASCII
LOW, HIGH = 0x21, 0x7E

Digits = Sequence[int]


def colliding_tags(tags: int, salt: int = 0) -> list[str]:
    """So many different strings, of 64 characters for every 16 of them, whose XXH64 is the same under any seed."""
    rng = random.Random(salt)
    blocks = 1
    while 2 ** (LANES * blocks) < tags:
        blocks += 1
    lanes = [_pair_of_lanes(rng) for _ in range(LANES * blocks)]
    found = []
    for number in range(tags):
        chosen = [pair[number >> place & 1] for place, pair in enumerate(lanes)]
        stripes = [
            b"".join(lane[stripe] for lane in chosen[block : block + LANES])
            for block in range(0, len(chosen), LANES)
            for stripe in range(2)
        ]
        found.append(b"".join(stripes).decode())
    for seed in (0, 1, rng.randrange(LIMIT)):
        assert len({xxhash.xxh64_intdigest(tag.encode(), seed) for tag in found}) == 1
    return found


def _pair_of_lanes(rng: random.Random) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """Two choices of the two words of a lane."""
    grown, taken_back = _differences()
    first, second = _word(rng, grown), _word(rng, taken_back)
    return (first, second), (_sum(first, grown), _sum(second, taken_back))


def _word(rng: random.Random, difference: Digits) -> bytes:
    """Eight characters which, after the difference is added, are characters still."""
    return bytes(rng.randint(max(LOW, LOW - digit), min(HIGH, HIGH - digit)) for digit in difference)


def _sum(word: bytes, difference: Digits) -> bytes:
    return bytes(byte + digit for byte, digit in zip(word, difference, strict=True))


@cache
def _differences() -> tuple[Digits, Digits]:
    """What the first word of a lane grows by, and then the second."""
    inverse = pow(P2, -1, LIMIT)
    for k in count(1):
        grown, taken_back = _digits(k * inverse), _digits(-k * 2**31 * P1 * inverse)
        if grown and taken_back:
            return grown, taken_back
    raise AssertionError("unreachable")


def _digits(number: int) -> Digits | None:
    """The number modulo 2**64 in eight digits to the base 256, by none of which a character leaves ASCII; or none."""
    digits, number = [], number % LIMIT
    for _ in range(8):
        digit = (number + 128) % 256 - 128
        if abs(digit) > HIGH - LOW:
            return None
        digits.append(digit)
        number = (number - digit) // 256
    return digits
