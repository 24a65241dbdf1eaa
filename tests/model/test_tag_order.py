"""The order of tags by hash and bytes, against Python's own sort; tags may come more than once, and share a hash."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from support.collisions import colliding_tags

from tagmatch.model.arrow import to_strings
from tagmatch.model.tag_order import by_hash, grouped_by_hash

ONE_HASH = colliding_tags(5)
TAGS = st.lists(st.sampled_from([*ONE_HASH, "", "a", "b", "ab"]) | st.text(max_size=3), max_size=40)


def xxh64(tag: str) -> int:
    return xxhash.xxh64_intdigest(tag.encode())


def weak(tag: str) -> int:
    """A hash that tags of different lengths share."""
    return len(tag) % 2


@given(TAGS, st.sampled_from([xxh64, weak]))
@example([ONE_HASH[0], ONE_HASH[1], ONE_HASH[0]], xxh64)
@example([ONE_HASH[1], ONE_HASH[1], "a", ONE_HASH[0]], xxh64)
@example(["a", "abc", "a"], weak)
def test_tags_come_by_hash_and_bytes(tags: list[str], hashed: Callable[[str], int]) -> None:
    strings = to_strings(pa.array(tags, pa.string()))
    hashes = np.array([hashed(tag) for tag in tags], np.uint64)
    expected = sorted(tags, key=lambda tag: (hashed(tag), tag.encode()))
    order, repeated = grouped_by_hash(strings, hashes)
    assert sorted(order.tolist()) == [*range(len(tags))]
    assert [tags[place] for place in order] == expected
    assert repeated.tolist() == [i > 0 and expected[i - 1] == tag for i, tag in enumerate(expected)]
    assert by_hash(strings, hashes).tolist() == order.tolist()
