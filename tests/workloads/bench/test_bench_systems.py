"""Every compared system that needs neither a GPU nor a server, held to one oracle; trees over signatures to a scan."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dictionaries import LISTS, dictionary_array
from support.strategies import BOUNDARY_KEYS
from support.tables import answers, right_answers, table_of, tag_rows

from tagmatch.model.arrays import U64Array
from tagmatch.model.options import Layout
from tagmatch.workloads import twitter
from tagmatch.workloads.bench.harness import reference
from tagmatch.workloads.bench.harness.data import extend
from tagmatch.workloads.draws import mix
from tagmatch.workloads.queries import StoredSets
from tagmatch.workloads.systems.catalogue import PYTHON_DICT, SYSTEMS, Build
from tagmatch.workloads.systems.icn_tree import IcnTree
from tagmatch.workloads.systems.kept import kept
from tagmatch.workloads.systems.kernels import Kernels
from tagmatch.workloads.systems.matcher import wrong_and_missing
from tagmatch.workloads.systems.numpy_scan import SignatureScan
from tagmatch.workloads.systems.prefix_tree import PrefixTree
from tagmatch.workloads.systems.signatures import SignatureMatcher, signatures
from tagmatch.workloads.systems.subset_enumeration import SubsetEnumeration
from tagmatch.workloads.systems.tagmatch import Tagmatch
from tagmatch.workloads.systems.trees import build_tree
from tagmatch.workloads.twitter import TwitterOptions

pytestmark = pytest.mark.nightly


class BruteForce:
    """What the benchmarks compare answers with, in the manner of a matcher."""

    exact = True

    def __init__(self, sets: pa.Table, threads: int) -> None:
        self._sets, self._threads = sets, threads

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> list[list[int]]:
        return reference.right_answers(self._sets, queries, unique=unique, threads=self._threads)

    def nbytes(self) -> None: ...

    def close(self) -> None: ...


def kernels(layout: Layout) -> Build:
    return lambda sets, threads: Kernels(sets, layout=layout, threads=threads)


def by_name(system: Any, **options: Any) -> Build:
    return lambda sets, threads: system(sets, threads=threads, **options)


BUILDS: dict[str, Build] = {
    # those that need a GPU: see tests/pipeline/cuda
    **{name: system for name, system in SYSTEMS.items() if not system.needs},
    "brute force": BruteForce,
    "NumPy scan": by_name(SignatureScan),
    "kernels of rarest": kernels("rarest"),
    "kernels of balanced": kernels("balanced"),
    **{f"{tree.__name__}, leaves of {n}": by_name(tree, leaf_rows=n) for tree in (PrefixTree, IcnTree) for n in (1, 3)},
}

TAGS = st.sampled_from([*"abcdefgh", "", "é", "e\u0301"]) | st.text("abé", max_size=2)
KEYS = st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)
ROWS = st.lists(st.tuples(st.lists(TAGS, max_size=5), KEYS), max_size=25)
QUERIES = st.lists(st.lists(TAGS | st.text("xyz", min_size=1, max_size=2), max_size=12), max_size=6)


@pytest.fixture(params=BUILDS, scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def check(build: Build, sets: pa.Table, queries: pa.ListArray, threads: int = 1) -> int:
    """Exact systems give the oracle's answers; the others more, as signatures match; returns how many there are."""
    right, scan = right_answers(sets, queries), SignatureScan(sets)
    by_signature = answers(scan, scan.prepare(queries))
    assert all(due <= keys for due, keys in zip(right, by_signature, strict=True))
    matcher = build(sets, threads)
    try:
        prepared = matcher.prepare(queries)
        due = right if matcher.exact else by_signature
        if not matcher.exact and not isinstance(matcher, SignatureMatcher):  # which knows unknown tags
            due = answers(matcher, prepared)
            assert all(low <= keys <= high for low, keys, high in zip(right, due, by_signature, strict=True))
        assert answers(matcher, prepared) == due
        for part in (slice(1, None), slice(0, 2), slice(0, 0)):
            assert answers(matcher, prepared[part]) == due[part]
        assert answers(matcher, prepared, unique=True) == [Counter(keys.keys()) for keys in due]
        taken = matcher.nbytes()
        assert taken is None or taken >= 0
    finally:
        matcher.close()
    return sum(map(len, due))


@given(rows=ROWS, asked=QUERIES, threads=st.sampled_from([1, 3]))
def test_small_tables(build: Build, rows: list[tuple[list[str], int]], asked: list[list[str]], threads: int) -> None:
    check(build, table_of(rows), tag_rows(asked), threads)


def test_twitter_like_sets(build: Build) -> None:
    """Also in slices and chunks; and of tables without rows, and no queries."""
    sets = twitter.sets(TwitterOptions(hashtags=200), 0, 100).slice(0, 3000)
    queries = extend(sets, 100, 2, 4, seed=1)
    assert check(build, sets, queries, threads=2) > 100
    check(build, pa.concat_tables([sets.slice(7, 200), sets.slice(300, 300)]), queries.slice(11, 60))
    check(build, table_of([]), tag_rows([["a"], []]))
    check(build, table_of([(["a"], 1)]), tag_rows([]))


@pytest.mark.parametrize("tree", [PrefixTree, IcnTree])
def test_equal_signatures(tree: Any) -> None:
    """Sets of more and more tags until all bits are one: from there on all signatures are equal."""
    tags = [f"tag{i}" for i in range(300)]
    sets = table_of([(tags[:size], key) for size in range(0, 301, 10) for key in (size, size, 7)])
    check(by_name(tree, leaf_rows=1), sets, tag_rows([tags, tags[:150], tags[100:], []]))


def test_signatures_give_wrong_keys_too() -> None:
    sets = twitter.sets(TwitterOptions(), 0, 1000)
    queries = extend(sets, 50, 2, 4, seed=1)
    assert check(by_name(SignatureScan), sets, queries) > check(SYSTEMS[PYTHON_DICT], sets, queries) > 0


# -- trees over signatures -------------------------------------------------------------------------------------------

BITS = 192
ALL_ONES = 2**BITS - 1
# Signatures as numbers of 192 bits: none, all, a single one, all up to or from some bit, and those that differ from
# another in one bit, often the last one
SIMPLE = (
    st.sampled_from([0, 1, 3, ALL_ONES, ALL_ONES - 1, 1 << (BITS - 1)])
    | st.builds(lambda bit: 1 << bit, st.integers(0, BITS - 1))
    | st.builds(lambda bit: (1 << bit) - 1, st.integers(0, BITS))
    | st.builds(lambda bit: ALL_ONES - ((1 << bit) - 1), st.integers(0, BITS))
)
NUMBERS = (
    SIMPLE | st.integers(0, ALL_ONES) | st.builds(lambda number, bit: number ^ (1 << bit), SIMPLE, st.integers(0, 2))
)


def signatures_of_numbers(numbers: list[int]) -> U64Array:
    data = b"".join(number.to_bytes(BITS // 8, "big") for number in numbers)
    return np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 3)


def check_tree(signatures: U64Array, queries: U64Array, **options: Any) -> None:
    """The tree over distinct signatures finds what a test of each finds, no row twice."""
    signatures = np.unique(signatures, axis=0)  # lexicographic
    found = build_tree(signatures, **options).contained_rows(queries)
    assert len(found) == len(queries)
    for i, query in enumerate(queries):
        rows = found.values[found.offsets[i] : found.offsets[i + 1]]
        assert sorted(rows.tolist()) == np.flatnonzero(~(signatures & ~query).any(axis=1)).tolist()


@pytest.mark.parametrize("limit_ones", [False, True])
@given(stored=st.lists(NUMBERS, max_size=60), asked=st.lists(NUMBERS, max_size=10), leaf_rows=st.integers(1, 8))
def test_any_signatures(limit_ones: bool, stored: list[int], asked: list[int], leaf_rows: int) -> None:
    queries = signatures_of_numbers([*asked, *stored[:5], ALL_ONES, 0])
    check_tree(signatures_of_numbers(stored), queries, leaf_rows=leaf_rows, limit_ones=limit_ones)


@pytest.mark.parametrize("limit_ones", [False, True])
@pytest.mark.parametrize("leaf_rows", [1, 31, 64, 10_000])
def test_many_signatures(leaf_rows: int, limit_ones: bool, seed: int) -> None:
    """Random ones; and a chain of which each has one leading bit more than the one before: a split at every bit."""
    rng = np.random.default_rng(seed)
    sparse = rng.random((4_000, BITS)) < rng.choice([0.02, 0.05, 0.2], (4_000, 1))
    dense = rng.random((100, BITS)) < rng.choice([0.3, 0.6, 0.95], (100, 1))
    stored, asked = (np.packbits(bits, axis=1).view(">u8").astype(np.uint64) for bits in (sparse, dense))
    check_tree(stored, np.concatenate([asked, stored[:50]]), leaf_rows=leaf_rows, limit_ones=limit_ones)
    chain = signatures_of_numbers([ALL_ONES - ((1 << bit) - 1) for bit in range(BITS + 1)])
    check_tree(chain, chain, leaf_rows=leaf_rows, limit_ones=limit_ones)


def test_more_than_one_block_of_answers_at_once() -> None:
    everything = signatures_of_numbers(list(range(5_000)))
    check_tree(everything, signatures_of_numbers([ALL_ONES, 2**12 - 1, 0, ALL_ONES]), leaf_rows=4_999)
    with pytest.raises(ValueError, match="leaf_rows must be at least 1, not 0"):
        build_tree(everything, leaf_rows=0)


# -- look-up of every subset -----------------------------------------------------------------------------------------


def test_all_subsets_of_a_set() -> None:
    """Every subset is stored, so that every look-up finds one and the results outgrow their first array."""
    tags = list("abcdefghijkl")
    sets = table_of([([tag for i, tag in enumerate(tags) if key >> i & 1], key) for key in range(2**12)])
    check(by_name(SubsetEnumeration), sets, tag_rows([tags, tags[3:], [], ["z", "l"]]))


def test_sets_with_one_hash_are_told_apart() -> None:
    """Of the pairs of many tags, two whose hashes agree in all bits that a table of few sets looks at."""
    hashes = np.array([mix(number) for number in range(3_000)], np.uint64)
    lefts, rights = np.triu_indices(len(hashes), 1)
    seen = (hashes[lefts] + hashes[rights]) & np.uint64(0xFFFFFFFF_000000FF)
    order = np.argsort(seen)
    twins = np.flatnonzero(seen[order[1:]] == seen[order[:-1]])[:5]
    assert len(twins) == 5
    tags = [f"t{number}" for number in range(len(hashes))]
    for stored, other in zip(order[twins], order[twins + 1], strict=True):
        pairs = [[tags[lefts[pair]], tags[rights[pair]]] for pair in (stored, other)]
        for few in ([(pairs[0], 2)], [(pairs[0], 2), (pairs[1], 3)]):
            check(by_name(SubsetEnumeration), table_of([(tags, 1), *few]), tag_rows(pairs))


def test_queries_with_too_many_subsets_are_refused() -> None:
    """Unknown tags cost nothing."""
    sets = table_of([([f"t{i}", f"t{i + 1}"], i) for i in range(40)])
    tags = [f"t{i}" for i in range(41)]
    queries = tag_rows([["t1", "t2"], [*tags, *tags, *map(str, range(10_000))]])
    # None, one or two of 41 tags
    check(by_name(SubsetEnumeration, max_subsets=862), sets, queries)
    message = r"query 1 has 41 known tags and so more than 861 \(max_subsets\) subsets of up to 2 tags"
    with pytest.raises(ValueError, match=message):
        SubsetEnumeration(sets, max_subsets=861).prepare(queries)
    tags = [f"t{number}" for number in range(20_000)]
    with pytest.raises(ValueError, match="query 0 has 20000 known tags and so more than 4,194,304"):
        SubsetEnumeration(table_of([(tags, 1)])).prepare(tag_rows([tags]))


# -- what systems share ----------------------------------------------------------------------------------------------


def test_tags_in_dictionaries_change_nothing() -> None:
    rng = random.Random(5)
    rows = [rng.sample([f"t{i}" for i in range(30)], rng.randint(1, 6)) for _ in range(200)]
    encode = partial(dictionary_array, rng)
    encoded = LISTS["list"]([["before"], *rows], lambda tags: encode(tags, ["unused"], pa.int16(), pa.string())).slice(
        1
    )
    assert np.array_equal(signatures(encoded, threads=2), signatures(pa.array(rows)))
    plain, learnt = (StoredSets.learn([some], sample=50) for some in (pa.array(rows), encoded))
    assert learnt.tags.equals(plain.tags)
    for name in ("frequencies", "offsets", "numbers"):
        assert np.array_equal(getattr(learnt, name), getattr(plain, name))


def test_indexes_of_the_same_sets_are_built_once() -> None:
    sets, same = (table_of([(["a"], 1), (["a", "b"], 2)]) for _ in range(2))
    systems = [
        Tagmatch(sets, threads=threads, exact=exact, layout="balanced", max_partition_size=size, device="cpu")
        for size in (1, 2)
        for threads, exact in ((1, True), (2, False))
    ]
    other = Tagmatch(same, layout="balanced", max_partition_size=1, device="cpu")
    snapshots = [each.index.snapshot for each in (*systems, other)]
    numbers = list(map(id, snapshots))
    assert list(map(numbers.index, numbers)) == [0, 0, 2, 2, 4]
    assert [each.only.options.max_partition_size for each in snapshots] == [1, 1, 2, 2, 1]
    for each in systems:
        each.close()
    assert sorted(other.match(["a", "b"])) == [1, 2]
    other.close()


_FEW_KEYS = st.lists(st.integers(0, 3) | st.just(2**64 - 1), max_size=5)


@given(rows=st.lists(st.tuples(_FEW_KEYS, _FEW_KEYS), max_size=5), first=st.integers(0, 2), as_arrow=st.booleans())
def test_wrong_and_missing_keys_are_counted(rows: Any, first: int, as_arrow: bool) -> None:
    """Of keys that are given, and of those that are due."""
    given_keys, due = [keys for keys, _ in rows], [keys for _, keys in rows]
    given_ones = pa.array(given_keys, pa.list_(pa.uint64())) if as_arrow else given_keys
    pairs = [(Counter(keys), Counter(others)) for keys, others in rows][first:]
    expected = sum((a - b).total() for a, b in pairs), sum((b - a).total() for a, b in pairs)
    assert wrong_and_missing(given_ones[first:], due[first:]) == expected


def test_only_the_last_tables_are_kept() -> None:
    made: list[int] = []

    @kept
    def make(sets: pa.Table, name: str, *, threads: int = 1) -> tuple[int, str, int]:
        made.append(len(sets))
        return len(sets), name, threads

    tables = [table_of([(["a"], key) for key in range(rows)]) for rows in range(9)]
    assert make(tables[0], "a", threads=1) is make(tables[0], "a", threads=2)
    assert make(tables[0], "b")[1] == "b"
    made.clear()
    for table in (*tables[1:], tables[8], tables[0]):
        make(table, "a")
    assert made == [*range(1, 9), 0]
