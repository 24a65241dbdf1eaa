import random

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.arrays import Strings
from tagmatch.model.kernels.xxh64 import hash_strings


def as_strings(values: list[bytes], width: type = np.int32) -> Strings:
    offsets = np.cumsum([0, *map(len, values)]).astype(width)
    return Strings(offsets, np.frombuffer(b"".join(values), np.uint8))


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_every_length_up_to_200_and_some_beyond_is_as_the_reference(seed):
    values = [random.Random(length).randbytes(length) for length in [*range(201), 255, 1000, 4096, 100_003]]
    expected = [xxhash.xxh64_intdigest(value, seed) for value in values]
    assert hash_strings(as_strings(values), seed=seed).tolist() == expected


@given(st.lists(st.binary(max_size=100)), st.integers(0, 2**64 - 1), st.sampled_from([np.int32, np.int64]))
def test_any_bytes_are_as_the_reference(values, seed, width):
    expected = [xxhash.xxh64_intdigest(value, seed) for value in values]
    assert hash_strings(as_strings(values, width), seed=seed).tolist() == expected


def test_a_range_of_many_strings_on_several_threads():
    values = [b"tag%d" % i for i in range(100_000)]
    got = hash_strings(as_strings(values), threads=4, first=17, last=99_990)
    assert got.tolist() == [xxhash.xxh64_intdigest(value) for value in values[17:99_990]]
