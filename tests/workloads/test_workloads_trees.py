"""The trees over signatures: navigation against a test of every signature, answers against oracle and scan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.strategies import BOUNDARY_KEYS
from support.tables import table_of, tag_rows

from tagmatch.model.arrays import U64Array
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.systems.icn_tree import IcnTree
from tagmatch.workloads.systems.matcher import answers_to_pylist
from tagmatch.workloads.systems.numpy_scan import SignatureScan
from tagmatch.workloads.systems.prefix_tree import PrefixTree
from tagmatch.workloads.systems.signatures import SignatureMatcher
from tagmatch.workloads.systems.trees import build_tree

BITS = 192
ALL_ONES = 2**BITS - 1
TREES = [PrefixTree, IcnTree]
LEAF_ROWS = [1, 3, 512]

# Few tags, so that sets repeat and contain each other; a list may repeat a set with the same key or another.
TAG_SETS = st.lists(st.sampled_from([*"abcdefgh", "", "é"]), max_size=5, unique=True)
KEYS = st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)
ROWS = st.lists(st.tuples(TAG_SETS, KEYS), max_size=30)
QUERIES = st.lists(st.lists(st.sampled_from([*"abcdefghij", "", "é"]), max_size=12), max_size=6)

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


def counted(matcher: SignatureMatcher, queries: U64Array, **options: Any) -> list[Counter[int]]:
    return [Counter(keys) for keys in answers_to_pylist(matcher.match_many(queries, **options))]


def check_matcher(tree: SignatureMatcher, sets: pa.Table, queries: pa.ListArray) -> None:
    """The tree gives all right keys and, in every way to ask, exactly those whose signatures match."""
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    scan = SignatureScan(sets)
    expected = counted(scan, scan.prepare(queries))
    prepared = tree.prepare(queries)
    assert len(prepared) == len(queries)
    found = counted(tree, prepared)
    assert found == expected
    assert all(Counter(oracle.match(tags)) <= keys for tags, keys in zip(queries.to_pylist(), found, strict=True))
    assert tree.match_many(prepared, unique=True).to_pylist() == [sorted(keys) for keys in expected]
    assert counted(tree, prepared[1:]) == expected[1:]
    assert counted(tree, prepared[:0]) == []


@pytest.mark.parametrize("limit_ones", [False, True])
@given(stored=st.lists(NUMBERS, max_size=60), asked=st.lists(NUMBERS, max_size=10), leaf_rows=st.integers(1, 8))
def test_any_signatures(limit_ones: bool, stored: list[int], asked: list[int], leaf_rows: int) -> None:
    queries = signatures_of_numbers([*asked, *stored[:5], ALL_ONES, 0])
    check_tree(signatures_of_numbers(stored), queries, leaf_rows=leaf_rows, limit_ones=limit_ones)


@pytest.mark.parametrize("limit_ones", [False, True])
@pytest.mark.parametrize("leaf_rows", [1, 2, 31, 33, 64, 512, 10_000])
def test_thousands_of_random_signatures(leaf_rows: int, limit_ones: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sparse = rng.random((4_000, BITS)) < rng.choice([0.02, 0.05, 0.2], (4_000, 1))
    dense = rng.random((100, BITS)) < rng.choice([0.3, 0.6, 0.95], (100, 1))
    stored, asked = (np.packbits(bits, axis=1).view(">u8").astype(np.uint64) for bits in (sparse, dense))
    check_tree(stored, np.concatenate([asked, stored[:50]]), leaf_rows=leaf_rows, limit_ones=limit_ones)


@pytest.mark.parametrize("limit_ones", [False, True])
@pytest.mark.parametrize("leaf_rows", LEAF_ROWS)
def test_deepest_tree(leaf_rows: int, limit_ones: bool) -> None:
    """Each signature has one leading bit more than the one before: one path with a split at every bit."""
    chain = signatures_of_numbers([ALL_ONES - ((1 << bit) - 1) for bit in range(BITS + 1)])
    check_tree(chain, chain, leaf_rows=leaf_rows, limit_ones=limit_ones)


def test_more_than_one_block_of_answers_at_once() -> None:
    everything = signatures_of_numbers(list(range(5_000)))
    check_tree(everything, signatures_of_numbers([ALL_ONES, 2**12 - 1, 0, ALL_ONES]), leaf_rows=4_999)


def test_leaves_of_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="leaf_rows must be at least 1, not 0"):
        build_tree(signatures_of_numbers([1]), leaf_rows=0)


@pytest.mark.parametrize("matcher", TREES)
@given(rows=ROWS, asked=QUERIES, leaf_rows=st.sampled_from(LEAF_ROWS), threads=st.sampled_from([1, 3]))
def test_small_tables(
    matcher: type[PrefixTree | IcnTree],
    rows: list[tuple[list[str], int]],
    asked: list[list[str]],
    leaf_rows: int,
    threads: int,
) -> None:
    sets = table_of(rows)
    check_matcher(matcher(sets, threads=threads, leaf_rows=leaf_rows), sets, tag_rows(asked))


@pytest.mark.parametrize("matcher", TREES)
@pytest.mark.parametrize("threads", [1, 3])
def test_twitter_like_sets(matcher: type[PrefixTree | IcnTree], threads: int) -> None:
    workload = make_workload(5_000, 120, 1, 1)
    for leaf_rows in LEAF_ROWS:
        tree = matcher(workload.sets, threads=threads, leaf_rows=leaf_rows)
        check_matcher(tree, workload.sets, workload.queries.slice(11, 100))
        assert not tree.exact


@pytest.mark.parametrize("matcher", TREES)
def test_equal_signatures(matcher: type[PrefixTree | IcnTree]) -> None:
    """Sets of more and more tags until all bits are one: from there on all signatures are equal."""
    tags = [f"tag{i}" for i in range(300)]
    sets = table_of([(tags[:size], key) for size in range(0, 301, 10) for key in (size, size, 7)])
    queries = tag_rows([tags, tags[:150], tags[100:], []])
    check_matcher(matcher(sets, leaf_rows=1), sets, queries)


@pytest.mark.parametrize("matcher", TREES)
def test_nothing_stored(matcher: type[PrefixTree | IcnTree]) -> None:
    sets = table_of([])
    check_matcher(matcher(sets), sets, tag_rows([["a"], []]))


@pytest.mark.parametrize("matcher", TREES)
def test_bytes_grow_with_sets(matcher: type[PrefixTree | IcnTree]) -> None:
    few, many = (table_of([([f"tag{i}"], i) for i in range(count)]) for count in (1_000, 4_000))
    small, large = matcher(few).nbytes(), matcher(many).nbytes()
    assert small is not None
    assert large is not None
    assert large > small > 1_000 * 24
