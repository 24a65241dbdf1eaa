"""A snapshot of several segments answers as one index of all their sets does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle

from tagmatch.contents import every_set, is_among, pairs, schema_of, sets_at
from tagmatch.model.columns import one_row, tag_lists
from tagmatch.model.options import LayoutOptions, MatchOptions
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.partitioner.local import build_segment
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.devices import matcher_of, parts_for
from tagmatch.pipeline.service import Pipeline

TIMEOUT = 60
SETS = st.lists(st.sampled_from("abcd"), max_size=3)
QUERIES = st.lists(st.lists(st.sampled_from("abcdx"), max_size=5), max_size=4)

#: Sets of one segment; keys are given later, so that no two segments have the same set with the same key
Parts = list[list[list[str]]]


def segment_of(sets: list[list[str]], keys: range, options: LayoutOptions) -> Segment:
    staged = StagedChanges(1)
    staged.extend(tag_lists(sets, "tags", stored=True), np.array(keys, dtype=np.uint64), removed=False)
    return build_segment([], staged.changes(), options)


def snapshot_of(parts: Parts, layout: Any) -> tuple[Snapshot, Oracle]:
    options, oracle, segments, first = LayoutOptions(layout, max_partition_size=2), Oracle(), [], 0
    for sets in parts:
        keys = range(first, first + len(sets))
        segments.append(segment_of(sets, keys, options))
        oracle.add_sets(sets, keys)
        first = keys.stop
    oracle.consolidate()
    return Snapshot(tuple(segments)), oracle


def in_order(pair: tuple[frozenset[str], int]) -> tuple[list[str], int]:
    return sorted(pair[0]), pair[1]


@given(parts=st.lists(st.lists(SETS, max_size=4), min_size=1, max_size=4), queries=QUERIES)
def test_answers_are_those_of_all_sets(layout: str, parts: Parts, queries: list[list[str]]) -> None:
    snapshot, oracle = snapshot_of(parts, layout)
    options = MatchOptions(device="cpu")
    matcher, pipeline = matcher_of(parts_for(snapshot, options)), Pipeline(options)
    try:
        for unique in (False, True):
            found = pipeline.match_many(matcher, tag_lists(queries, "queries"), unique=unique)
            keys = [found.values[a:b].tolist() for a, b in pairwise(found.offsets)]
            expected = [sorted(set(oracle.match(q)) if unique else oracle.match(q)) for q in queries]
            assert list(map(sorted, keys)) == expected
            futures = [pipeline.submit(matcher, query, unique=unique, timeout=None) for query in queries]
            assert [sorted(future.result(TIMEOUT)) for future in futures] == expected
        for query in queries:
            ids = matcher.set_ids(one_row(query), 0, 1).values
            explained = [(tags, key) for tags, keys in sets_at(snapshot, ids) for key in keys]
            assert sorted(explained, key=in_order) == sorted(
                ((tags, key) for tags, keys in every_set(snapshot) if tags <= set(query) for key in keys), key=in_order
            )
            assert is_among(snapshot, ids, frozenset(query)) == any(set(query) == set(s) for p in parts for s in p)
    finally:
        pipeline.close()


@given(parts=st.lists(st.lists(SETS, max_size=4), min_size=1, max_size=4))
def test_contents_are_those_of_all_segments(layout: str, parts: Parts) -> None:
    snapshot, _ = snapshot_of(parts, layout)
    stored = [(frozenset(tags), key) for key, tags in enumerate(tags for sets in parts for tags in sets)]
    assert len(snapshot) == sum(len({frozenset(tags) for tags in sets}) for sets in parts)
    assert sorted(((tags, key) for tags, keys in every_set(snapshot) for key in keys), key=in_order) == sorted(
        stored, key=in_order
    )
    rows = [row for batch in pairs(snapshot) for row in batch.to_pylist()]
    assert sorted(((frozenset(row["tags"]), row["key"]) for row in rows), key=in_order) == sorted(stored, key=in_order)
    assert schema_of(snapshot).names == ["tags", "key"]


@given(seed=st.integers(0, 2**32), tags=st.integers(1, 3000), shared=st.floats(0, 1))
@settings(max_examples=10)
def test_ranks_in_a_large_segment_become_those_in_small_ones(layout: str, seed: int, tags: int, shared: float) -> None:
    """Small segments have some tags of the large one and some of their own; queries have others besides."""
    rng = np.random.default_rng(seed)
    names = [f"tag {i}" for i in range(3 * tags)]

    def some(count: int, first: int, last: int, most: int) -> list[list[str]]:
        return [[names[i] for i in rng.integers(first, last, rng.integers(0, most))] for _ in range(count)]

    own = round(tags * (1 - shared))
    parts = [some(50, 0 + own, tags + own, 3), some(500, 0, tags, 3), some(100, tags // 2, tags + own + 1, 3)]
    queries = some(100, 0, 3 * tags, 40) + [part[0] + part[-1] for part in parts]
    snapshot, oracle = snapshot_of(parts, layout)
    options = MatchOptions(device="cpu")
    matcher, pipeline = matcher_of(parts_for(snapshot, options)), Pipeline(options)
    try:
        found = pipeline.match_many(matcher, tag_lists(queries, "queries"), unique=False)
        keys = [sorted(found.values[a:b].tolist()) for a, b in pairwise(found.offsets)]
        assert keys == [oracle.match(query) for query in queries]
    finally:
        pipeline.close()
