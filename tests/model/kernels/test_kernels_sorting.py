"""Hashes are sorted as Python sorts them, stably: also those that are not spread evenly."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tagmatch.model.kernels.sorting import sort_hashes

LARGEST = 2**64 - 1
EVEN = st.lists(st.integers(0, LARGEST), max_size=300)
# Hashes with one beginning, or one end, more of them than are sorted one by one
MADE = st.lists(st.sampled_from([0, 1, 7 << 40, 3 << 62, LARGEST]) | st.integers(0, 9), min_size=30, max_size=300)


@given(EVEN | MADE)
@example([5] * 40 + [3] * 40)
@example([LARGEST - i for i in range(100)])
def test_places_are_those_of_a_stable_sort(hashes: list[int]) -> None:
    expected = sorted(range(len(hashes)), key=hashes.__getitem__)
    assert sort_hashes(np.array(hashes, np.uint64)).tolist() == expected
