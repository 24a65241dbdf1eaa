import numpy as np
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.signature import signatures_of


def bits_of(tag_hash: int) -> set[int]:
    """The published definition, in plain integers."""
    lo, hi = tag_hash % 2**32, (tag_hash >> 32) | 1
    return {((lo + i * hi) % 2**32) * 192 >> 32 for i in range(7)}


def words_of(bits: set[int]) -> list[int]:
    text = "".join("1" if bit in bits else "0" for bit in range(192))
    return [int(text[start : start + 64], 2) for start in (0, 64, 128)]


@given(st.lists(st.lists(st.integers(0, 19), unique=True)), st.integers(0, 5))
@example([[row % 20, (row + 1) % 20] for row in range(300)], 0)  # rows of several batches
@example([[], [*range(20)] * 40, [3], *[[4]] * 80, [*range(20)] * 90], 0)  # rows that are longer than those before
def test_signatures_are_as_published(rows, salt):
    hashes = np.array([xxhash.xxh64_intdigest(f"{salt}-{rank}".encode()) for rank in range(20)], np.uint64)
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.array([rank for row in rows for rank in row], np.uint32)
    expected = [words_of(set().union(*(bits_of(int(hashes[rank])) for rank in row))) for row in rows]
    for threads in (1, 4):
        assert signatures_of(Lists(offsets, values), hashes, threads=threads).tolist() == expected


def test_positions_spread_over_all_192_bits():
    counts = np.zeros(192, int)
    for number in range(20_000):
        for bit in bits_of(xxhash.xxh64_intdigest(str(number).encode())):
            counts[bit] += 1
    assert counts.min() > 0.8 * counts.mean()
    assert counts.max() < 1.2 * counts.mean()
