"""Every compared system that needs neither a GPU nor a server, held to one oracle; inexact ones to a scan, too."""

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import BOUNDARY_KEYS
from support.tables import answers, right_answers, table_of, tag_rows

from tagmatch.model.options import Layout
from tagmatch.workloads import twitter
from tagmatch.workloads.bench.harness import reference
from tagmatch.workloads.bench.harness.data import extend
from tagmatch.workloads.systems.catalogue import SYSTEMS, Build
from tagmatch.workloads.systems.icn_tree import IcnTree
from tagmatch.workloads.systems.kernels import Kernels
from tagmatch.workloads.systems.numpy_scan import SignatureScan
from tagmatch.workloads.systems.prefix_tree import PrefixTree
from tagmatch.workloads.systems.signatures import SignatureMatcher
from tagmatch.workloads.systems.subset_enumeration import SubsetEnumeration
from tagmatch.workloads.twitter import TwitterOptions


def brute_force(sets: pa.Table, threads: int) -> Any:
    """What the benchmarks compare answers with, in the manner of a matcher."""
    right = partial(reference.right_answers, sets, threads=threads)
    return SimpleNamespace(exact=True, prepare=lambda x: x, match_many=right, nbytes=lambda: None, close=lambda: None)


def by_name(system: Any, **options: Any) -> Build:
    return lambda sets, threads: system(sets, threads=threads, **options)


BUILDS: dict[str, Build] = {
    # those that need a GPU: see tests/pipeline/cuda
    **{name: system for name, system in SYSTEMS.items() if not system.needs},
    "brute force": brute_force,
    "NumPy scan": by_name(SignatureScan),
    **{f"kernels of {each}": by_name(Kernels, layout=each) for each in get_args(Layout)},
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
    """Also in slices and chunks; and of tables without rows, and no queries. Inexact systems give wrong keys, too."""
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


def test_all_subsets_of_a_set() -> None:
    """Every subset is stored, so that every look-up finds one and the results outgrow their first array."""
    tags = list("abcdefghijkl")
    sets = table_of([([tag for i, tag in enumerate(tags) if key >> i & 1], key) for key in range(2**12)])
    check(by_name(SubsetEnumeration), sets, tag_rows([tags, tags[3:], [], ["z", "l"]]))


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
