"""Pairs of ASCII strings with one XXH64, made by solving its first lane for the second of two stripes."""

import random
from itertools import count

import xxhash

P1, P2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
LIMIT = 2**64


def _round(lane: int, word: int) -> int:
    mixed = (lane + word * P2) % LIMIT
    return ((mixed << 31 | mixed >> 33) % LIMIT) * P1 % LIMIT


def colliding_pair(seed: int, salt: int = 0) -> tuple[str, str]:
    """Two different strings of 64 characters whose XXH64 under `seed` is the same."""
    start = (seed + P1 + P2) % LIMIT
    inverse = pow(P2, -1, LIMIT)
    rng = random.Random(salt)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    stripe = bytes(rng.choices(letters, k=56))
    first, second = (bytes(rng.choices(letters, k=8)) for _ in range(2))
    for _ in count():
        other = bytes(rng.choices(letters, k=8))
        gap = _round(start, int.from_bytes(first, "little")) - _round(start, int.from_bytes(other, "little"))
        solved = ((int.from_bytes(second, "little") + gap * inverse) % LIMIT).to_bytes(8, "little")
        if other != first and all(0x20 <= byte < 0x7F for byte in solved):
            break
    pair = first + stripe[:24] + second + stripe[24:48], other + stripe[:24] + solved + stripe[24:48]
    assert xxhash.xxh64_intdigest(pair[0], seed) == xxhash.xxh64_intdigest(pair[1], seed)
    return pair[0].decode(), pair[1].decode()
