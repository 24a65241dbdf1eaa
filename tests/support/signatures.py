"""Signatures as integers of 192 bits, the first word highest, and as the library has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.signature import SIGNATURE_WORDS

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
