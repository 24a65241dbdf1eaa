"""Look-up of every subset, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.strategies import BOUNDARY_KEYS
from support.tables import table_of, tag_rows

from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.draws import mix
from tagmatch.workloads.systems.subset_enumeration import SubsetEnumeration

TAGS = st.sampled_from([*"abcdefgh", "", "é", "e\u0301"])
UNKNOWN = st.text("xyz", min_size=1, max_size=2)
# Few tags, so that sets repeat and contain each other; a list may repeat a set with the same key or another, and a set
# a tag.
ROWS = st.lists(st.tuples(st.lists(TAGS, max_size=6), st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)), max_size=30)
QUERIES = st.lists(st.lists(TAGS | UNKNOWN, max_size=15), max_size=6)


def right_answers(sets: pa.Table, queries: pa.ListArray) -> list[list[int]]:
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    return [oracle.match(query) for query in queries.to_pylist()]


def asked(matcher: SubsetEnumeration, queries: Any) -> list[list[int]]:
    return [sorted(keys) for keys in matcher.match_many(queries).to_pylist()]


def check(matcher: SubsetEnumeration, sets: pa.Table, queries: pa.ListArray) -> None:
    right = right_answers(sets, queries)
    prepared = matcher.prepare(queries)
    assert asked(matcher, prepared) == right
    assert matcher.match_many(prepared, unique=True).to_pylist() == [sorted(set(keys)) for keys in right]
    assert asked(matcher, prepared[1:]) == right[1:]
    assert asked(matcher, prepared[:2]) == right[:2]
    assert asked(matcher, prepared[:0]) == []


@given(rows=ROWS, queries=QUERIES, threads=st.sampled_from([1, 3]))
def test_small_tables(rows: list[tuple[list[str], int]], queries: list[list[str]], threads: int) -> None:
    sets = table_of(rows)
    check(SubsetEnumeration(sets, threads=threads), sets, tag_rows(queries))


@pytest.mark.parametrize("threads", [1, 3])
def test_twitter_like_sets(threads: int) -> None:
    workload = make_workload(5_000, 80, 1, 1)
    chunks = pa.concat_tables([workload.sets.slice(7, 2_000), workload.sets.slice(3_000)])
    matcher = SubsetEnumeration(chunks, threads=threads)
    check(matcher, chunks, workload.queries.slice(11, 60))
    assert matcher.exact
    assert (matcher.nbytes() or 0) > len(chunks) * 8


def test_all_subsets_of_a_set() -> None:
    """Every subset is stored, so that every look-up finds one and the results outgrow their first array."""
    tags = list("abcdefghijkl")
    sets = table_of([([tag for i, tag in enumerate(tags) if key >> i & 1], key) for key in range(2**12)])
    check(SubsetEnumeration(sets), sets, tag_rows([tags, tags[3:], [], ["z", "l"]]))


def test_nothing_stored() -> None:
    sets = table_of([])
    check(SubsetEnumeration(sets), sets, tag_rows([["a"], []]))


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
        sets = table_of([(tags, 1), (pairs[0], 2)])
        check(SubsetEnumeration(sets), sets, tag_rows(pairs))
        both = table_of([(tags, 1), (pairs[0], 2), (pairs[1], 3)])
        check(SubsetEnumeration(both), both, tag_rows(pairs))


def test_queries_with_too_many_subsets_are_refused() -> None:
    sets = table_of([([f"t{i}", f"t{i + 1}"], i) for i in range(40)])
    tags = [f"t{i}" for i in range(41)]
    queries = tag_rows([["t1", "t2"], [*tags, *tags, "unknown"]])
    # None, one or two of 41 tags
    assert asked(SubsetEnumeration(sets, max_subsets=862), SubsetEnumeration(sets).prepare(queries))[1] == list(
        range(40)
    )
    check(SubsetEnumeration(sets, max_subsets=862), sets, queries)
    message = r"query 1 has 41 known tags and so more than 861 \(max_subsets\) subsets of up to 2 tags"
    with pytest.raises(ValueError, match=message):
        SubsetEnumeration(sets, max_subsets=861).prepare(queries)


def test_astronomic_numbers_of_subsets_are_refused_too() -> None:
    tags = [f"t{number}" for number in range(20_000)]
    with pytest.raises(ValueError, match="query 0 has 20000 known tags and so more than 4,194,304"):
        SubsetEnumeration(table_of([(tags, 1)])).prepare(tag_rows([tags]))


def test_unknown_tags_cost_nothing() -> None:
    sets = table_of([(["a"], 1), ([], 2)])
    queries = tag_rows([["a", *map(str, range(10_000))]])
    check(SubsetEnumeration(sets, max_subsets=2), sets, queries)
