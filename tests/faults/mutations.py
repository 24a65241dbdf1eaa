"""Bytes with a few mistakes, as an attacker or a broken disk makes them: what reads such bytes is tried with these."""

import random
import struct

_EDGES = (0, 1, 2, 3, 4, 8, 127, 128, 255, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, -1, -8, 1 << 40, (1 << 63) - 1)


def mutated(rnd: random.Random, data: bytes) -> bytes:
    """The data with one to six mistakes: a byte, an aligned number, a cut, some bytes more, or a part twice."""
    changed = bytearray(data)
    for _ in range(rnd.choice((1, 1, 1, 2, 3, 6))):
        if changed:
            _spoil(rnd, changed)
    return bytes(changed)


def _spoil(rnd: random.Random, data: bytearray) -> None:
    place, kind = rnd.randrange(len(data)), rnd.random()
    if kind < 0.4:
        data[place] = rnd.choice((0, 1, 127, 128, 255, rnd.randrange(256)))
    elif kind < 0.65:
        _write(data, place, "<I", rnd.choice(_EDGES) & 0xFFFFFFFF)
    elif kind < 0.85:
        _write(data, place, "<Q", rnd.choice(_EDGES) & 0xFFFFFFFFFFFFFFFF)
    elif kind < 0.9:
        del data[place:]
    elif kind < 0.95:
        data[place:place] = rnd.randbytes(rnd.choice((1, 4, 8)))
    else:
        data[place:place] = data[place : place + rnd.randrange(1, 64)]


def _write(data: bytearray, place: int, form: str, number: int) -> None:
    """Write a number over the one at its aligned place; at the end of the data, over its present part."""
    size = struct.calcsize(form)
    place -= place % size
    data[place : place + size] = struct.pack(form, number)[: len(data) - place]
