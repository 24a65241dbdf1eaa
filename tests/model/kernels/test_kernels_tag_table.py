"""The table of tags, also of such as share a hash, and their order by hash and bytes."""

import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from support.agreement import assert_agree, loaded
from support.hashes import colliding_tags
from test_kernels_shared import as_strings

from tagmatch import TagMatch
from tagmatch.model.arrays import Strings
from tagmatch.model.arrow import to_strings
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.known_tags import known_tags, look_up
from tagmatch.model.kernels.tag_table import UNKNOWN, TagInterner, build_slots, find_all
from tagmatch.model.options import Layout
from tagmatch.model.tables import grouped_by_hash


def intern(interner: TagInterner, tags: list[bytes]) -> list[int]:
    strings = as_strings(tags)
    return interner.intern(strings, hash_strings(strings)).tolist()


@given(st.lists(st.lists(st.binary(max_size=20), max_size=200)))
def test_tags_are_numbered_as_first_seen(batches):
    interner, numbers = TagInterner(), {}
    for batch in batches:
        expected = [numbers.setdefault(tag, len(numbers)) for tag in batch]
        assert intern(interner, batch) == expected
    assert as_text(interner.strings()) == list(numbers)


def test_the_table_grows_and_a_flood_of_tags_with_one_hash_takes_no_longer_than_others():
    """A look-up goes from slot to slot as long as they are taken; of one hash alone, all would be in one row."""
    flood = [tag.encode() for tag in colliding_tags(20_000)]
    for tags in ([b"%d" % i for i in range(50_000)] + [b"x" * 100_000, b"y" * 3_000_000], flood):
        interner = TagInterner()
        assert intern(interner, tags) == list(range(len(tags)))
        assert intern(interner, tags[::-1]) == list(range(len(tags)))[::-1]
    strings = as_strings(flood)
    for slots in (interner.slots, build_slots(strings, hash_strings(strings))):
        assert np.diff(np.flatnonzero(slots == 0)).max() < 1_000


def found_in(slots: np.ndarray, strings: Strings, asked: list[bytes]) -> list[int]:
    queries, out = as_strings(asked), np.empty(len(asked), np.uint32)
    find_all(hash_strings(queries), queries.offsets, queries.data, 0, slots, strings.offsets, strings.data, out)
    return out.tolist()


@given(st.sets(st.binary(max_size=20)), st.lists(st.binary(max_size=20)))
def test_look_up_finds_what_is_there_and_nothing_else(stored, asked):
    known = sorted(stored)
    strings = as_strings(known)
    found = found_in(build_slots(strings, hash_strings(strings)), strings, asked + known)
    assert found == [known.index(tag) if tag in stored else int(UNKNOWN) for tag in asked + known]


def known_in(strings: Strings, numbers: list[int], asked: list[bytes], first: int = 0) -> list[int]:
    queries, out = as_strings(asked), np.empty(len(asked) - first, np.uint32)
    known = tuple(known_tags(strings, np.array(numbers, np.uint32)))
    look_up(queries.offsets, queries.data, first, known, strings.offsets, strings.data, out)
    return out.tolist()


@given(st.sets(st.binary(max_size=20)), st.lists(st.binary(max_size=20)), st.data())
def test_queries_find_the_tags_of_a_table_and_nothing_else(stored, asked, data):
    """Of up to 15 bytes, and longer ones; the last ones have few bytes behind them."""
    known = sorted(stored)
    numbers = data.draw(st.sets(st.sampled_from(range(len(known)))) if known else st.just(set()))
    asked += known
    right = [known.index(tag) if tag in stored else -1 for tag in asked]
    first = data.draw(st.integers(0, len(asked)))
    found = known_in(as_strings(known), sorted(numbers), asked, first)
    assert found == [number if number in numbers else int(UNKNOWN) for number in right[first:]]


@pytest.mark.parametrize("count", [0, 1, 7, 20_000])
def test_queries_find_tags_of_any_length_in_tables_of_any_size(count):
    tags = [b"x" * (i % 40) + b"%d" % i for i in range(2 * count)]
    found = known_in(as_strings(tags), list(range(count)), tags[::-1])
    assert found == [int(UNKNOWN)] * count + list(range(count))[::-1]


def test_long_tags_are_compared_byte_by_byte():
    """Whose keys are equal, differ nevertheless: here, a table has other bytes under their numbers."""
    tags, others = [b"a" * 16, b"b" * 40, b"c"], [b"a" * 15 + b"b", b"b" * 41, b"d"]
    strings, other, out = as_strings(tags), as_strings(others), np.empty(3, np.uint32)
    known = tuple(known_tags(strings, np.arange(3, dtype=np.uint32)))
    look_up(strings.offsets, strings.data, 0, known, other.offsets, other.data, out)
    assert out.tolist() == [int(UNKNOWN), int(UNKNOWN), 2]


def test_no_tags_can_be_made_that_crowd_into_few_buckets():
    """Each table has another secret, and so the same tags lie elsewhere in each."""
    tags = as_strings([b"%d" % i for i in range(1000)])
    tables = [known_tags(tags, np.arange(1000, dtype=np.uint32)).buckets for _ in range(2)]
    assert not np.array_equal(*tables)


def as_text(strings: Strings) -> list[bytes]:
    text = strings.data.tobytes()
    return [text[a:b] for a, b in pairwise(strings.offsets.tolist())]


@given(st.integers(0, 60), st.lists(st.integers(0, 99)), st.booleans())
def test_any_number_of_tags_with_one_hash(known, asked, interned):
    tags = [*(tag.encode() for tag in colliding_tags(70)), *(b"other %d" % i for i in range(30))]
    random.Random(known).shuffle(tags)
    strings = as_strings(tags[:known])
    slots = build_slots(strings, hash_strings(strings))
    if interned:
        interner = TagInterner()
        for tag in tags[:known]:  # grows several times
            intern(interner, [tag])
        assert as_text(interner.strings()) == tags[:known]
        slots = interner.slots
    assert found_in(slots, strings, [tags[i] for i in asked]) == [i if i < known else int(UNKNOWN) for i in asked]


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("count", [2, 3, pytest.param(5_000, marks=pytest.mark.slow)])
def test_stored_tags_with_one_hash_under_any_seed(layout, count):
    *tags, foreign = colliding_tags(count + 1)
    sets = [*([tag] for tag in tags), *(["x", *tags[i : i + 3]] for i in range(0, count, 7))]
    tm, oracle = loaded(zip(sets, range(len(sets)), strict=True), layout=layout, max_partition_size=100)
    some = (*([tag] for tag in tags[:5]), *(["x", *tags[i : i + 5]] for i in range(0, 70, 5)))
    queries = [[], tags, [*tags, "x"], [foreign], [*tags[:2], foreign], *some]
    assert_agree(tm, oracle, queries)
    for database in (tm, oracle):
        database.remove_sets(sets[1:], range(1, len(sets)))
        database.add_sets([[tags[1], "new"], tags[:2]], [7, 8])
        database.consolidate()
    assert_agree(tm, oracle, [*queries, [*tags, "new"]])
    tm.check()


# These two tags have one hash under seed 0
ONE = "cosovozpvtkgnkuhmpxnhtqgxzvxisxrplpkoheemclpxzmwguoaskvramwgiweo"
TWO = "wrslurgkvtkgnkuhmpxnhtqgxzvxisxraUq2Q=w+mclpxzmwguoaskvramwgiweo"
QUERIES = [[], [ONE], [TWO], ["x"], [ONE, "x"], [TWO, "x"], [ONE, TWO], [ONE, TWO, "x"]]


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("segments", [1, 2])
def test_an_index_with_another_seed_opens(layout, segments, tmp_path, request):
    """Versions before took the first seed under which all hashes differ; segments with two answer together."""
    index = shutil.copytree(Path(__file__).parent / "data" / f"seed-{layout}.index", tmp_path / "index")
    _, oracle = loaded([([ONE], 1), ([TWO], 2), ([ONE, TWO, "x"], 3), (["x"], 4), ([], 5)])
    if segments == 2:
        request.getfixturevalue("segments_stay")
    with TagMatch.open(index) as tm:
        assert tm.stats()["seed"] != 0
        assert_agree(tm, oracle, QUERIES)
        for database in (tm, oracle):
            database.add_set([TWO, "x"], 6)
            database.consolidate()
        assert tm.stats()["segments"] == segments
        assert segments == 2 or tm.stats()["seed"] == 0
        assert_agree(tm, oracle, QUERIES)


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
