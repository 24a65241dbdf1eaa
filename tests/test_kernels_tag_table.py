from itertools import islice

import numpy as np
import pytest
import xxhash
from collisions import colliding_pair
from hypothesis import given
from hypothesis import strategies as st
from test_kernels_xxh64 import as_strings

from tagmatch import TagMatch
from tagmatch.kernels.tag_table import UNKNOWN, TagInterner, build_slots, find_all
from tagmatch.kernels.xxh64 import hash_strings, tag_seeds


def intern(interner: TagInterner, tags: list[bytes]) -> list[int]:
    strings = as_strings(tags)
    return interner.intern(strings, hash_strings(strings)).tolist()


@given(st.lists(st.lists(st.binary(max_size=20), max_size=200)))
def test_tags_are_numbered_as_first_seen(batches):
    interner, numbers = TagInterner(), {}
    for batch in batches:
        expected = [numbers.setdefault(tag, len(numbers)) for tag in batch]
        assert intern(interner, batch) == expected
    kept = interner.strings()
    text = kept.data.tobytes()
    assert [text[a:b] for a, b in zip(kept.offsets[:-1], kept.offsets[1:], strict=True)] == list(numbers)


def test_the_table_grows_in_tags_and_in_bytes():
    interner = TagInterner()
    tags = [b"%d" % i for i in range(50_000)] + [b"x" * 100_000, b"y" * 3_000_000]
    assert intern(interner, tags) == list(range(len(tags)))
    assert intern(interner, tags[::-1]) == list(range(len(tags)))[::-1]


@given(st.sets(st.binary(max_size=20)), st.lists(st.binary(max_size=20)))
def test_look_up_finds_what_is_there_and_nothing_else(stored, asked):
    known = sorted(stored)
    strings, queries = as_strings(known), as_strings(asked + known)
    out = np.empty(len(queries), np.uint32)
    slots = build_slots(hash_strings(strings))
    find_all(hash_strings(queries), queries.offsets, queries.data, 0, slots, strings.offsets, strings.data, out)
    assert out.tolist() == [known.index(tag) if tag in stored else int(UNKNOWN) for tag in asked + known]


def first_good_seed(tags: list[str]) -> int:
    return next(
        seed for seed in tag_seeds() if len({xxhash.xxh64_intdigest(tag.encode(), seed) for tag in tags}) == len(tags)
    )


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
def test_stored_tags_with_one_hash_are_told_apart_by_the_next_seed(layout):
    one, other = colliding_pair(seed=0)
    tm = TagMatch(layout=layout)
    tm.add_sets([[one], [other], [one, other, "x"]], [1, 2, 3])
    tm.consolidate()
    tm.check()
    assert tm.stats()["seed"] == first_good_seed([one, other, "x"]) != 0
    assert [tm.match([one]), tm.match([other]), sorted(tm.match([one, other, "x"]))] == [[1], [2], [1, 2, 3]]
    tm.remove_sets([[other], [one, other, "x"]], [2, 3])
    tm.consolidate()
    tm.check()
    assert tm.stats()["seed"] == 0
    assert tm.match([one]) == [1]


def test_two_collisions_take_the_seed_after_both():
    pairs = [colliding_pair(seed, salt=seed) for seed in islice(tag_seeds(), 2)]
    tm = TagMatch()
    tm.add_sets([[tag] for pair in pairs for tag in pair], range(4))
    tm.consolidate()
    tm.check()
    assert tm.stats()["seed"] == first_good_seed([tag for pair in pairs for tag in pair])
    assert [tm.match([tag]) for pair in pairs for tag in pair] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
def test_a_query_tag_with_the_hash_of_a_stored_tag_is_not_that_tag(layout):
    stored, foreign = colliding_pair(seed=0)
    tm = TagMatch(layout=layout)
    tm.add_set([stored], 1)
    tm.consolidate()
    assert tm.stats()["seed"] == 0
    assert tm.match([foreign]) == []
