from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.kernels.siphash import siphash

MASK = 2**64 - 1
words = st.integers(0, MASK)

# From the paper (appendix A) and from its authors' test vectors: of the bytes 0, 1, 2, ... with the key 0, 1, ..., 15
VECTORS = {
    0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 2: "5a4fa9d909806c0d", 3: "2d7efbd796666785",
    7: "37d1018bf50002ab", 8: "6224939a79f5f593", 15: "e545be4961ca29a1", 63: "724506eb4c328a95",
}  # fmt: skip


def hashed(data: bytes, key0: int, key1: int) -> int:
    # As a part of a column
    column = np.frombuffer(b"before" + data + b"behind", np.uint8)
    return int(siphash(column, 6, 6 + len(data), np.uint64(key0), np.uint64(key1)))


def expected(data: bytes, key0: int, key1: int) -> int:
    """The definition, in plain Python."""

    def rotl(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & MASK

    def rounds(count: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        for _ in range(count):
            a, c = (a + b) & MASK, (c + d) & MASK
            b, d = rotl(b, 13) ^ a, rotl(d, 16) ^ c
            a = rotl(a, 32)
            c, a = (c + b) & MASK, (a + d) & MASK
            b, d = rotl(b, 17) ^ c, rotl(d, 21) ^ a
            c = rotl(c, 32)
        return a, b, c, d

    a, b, c, d = (
        half ^ int.from_bytes(text, "big")
        for half, text in zip((key0, key1) * 2, (b"somepseu", b"dorandom", b"lygenera", b"tedbytes"), strict=True)
    )
    whole = len(data) // 8 * 8
    blocks = [data[at : at + 8] for at in range(0, whole, 8)]
    blocks.append(data[whole:].ljust(7, b"\0") + bytes([len(data) % 256]))
    for word in map(partial(int.from_bytes, byteorder="little"), blocks):
        a, b, c, d = rounds(2, a, b, c, d ^ word)
        a ^= word
    a, b, c, d = rounds(4, a, b, c ^ 0xFF, d)
    return a ^ b ^ c ^ d


@pytest.mark.parametrize("length", VECTORS)
def test_vectors_of_the_authors(length):
    key0, key1 = np.frombuffer(bytes(range(16)), np.uint64).tolist()
    data = bytes(range(length))
    vector = int.from_bytes(bytes.fromhex(VECTORS[length]), "little")
    assert hashed(data, key0, key1) == expected(data, key0, key1) == vector


@given(st.binary(max_size=300), words, words)
def test_any_string_and_key(data, key0, key1):
    assert hashed(data, key0, key1) == expected(data, key0, key1)
