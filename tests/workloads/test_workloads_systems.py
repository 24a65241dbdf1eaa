"""Every compared system that needs neither a GPU nor a server, held to one oracle."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.tables import table_of, tag_rows

from tagmatch.model.options import Layout
from tagmatch.workloads import twitter
from tagmatch.workloads.bench.harness.data import extend
from tagmatch.workloads.bench.harness.reference import right_answers
from tagmatch.workloads.systems.catalogue import SYSTEMS, Build
from tagmatch.workloads.systems.kept import kept
from tagmatch.workloads.systems.kernels import Kernels
from tagmatch.workloads.systems.matcher import answers_to_pylist, wrong_and_missing
from tagmatch.workloads.systems.numpy_scan import SignatureScan
from tagmatch.workloads.systems.python import RarestTagDict
from tagmatch.workloads.systems.tagmatch import Tagmatch
from tagmatch.workloads.twitter import TwitterOptions


def numpy_scan(sets: pa.Table, threads: int) -> SignatureScan:
    return SignatureScan(sets, threads=threads)


def kernels(layout: Layout) -> Build:
    return lambda sets, threads: Kernels(sets, layout=layout, threads=threads)


_FEW_KEYS = st.lists(st.integers(0, 3) | st.just(2**64 - 1), max_size=5)
#: Keys that are given, and those that are due
Pairs = list[tuple[list[int], list[int]]]


class BruteForce:
    """What the benchmarks compare answers with, in the manner of a matcher."""

    exact = True

    def __init__(self, sets: pa.Table, threads: int) -> None:
        self._sets, self._threads = sets, threads

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> list[list[int]]:
        return right_answers(self._sets, queries, unique=unique, threads=self._threads)

    def nbytes(self) -> None: ...

    def close(self) -> None: ...


BUILDS: dict[str, Build] = {
    # those that need a GPU: see tests/cuda
    **{name: system for name, system in SYSTEMS.items() if not system.needs},
    "brute force": BruteForce,
    "NumPy scan": numpy_scan,
    "kernels of rarest": kernels("rarest"),
    "kernels of balanced": kernels("balanced"),
}

TAGS = st.text("abcdé", max_size=2)
SETS = st.lists(st.tuples(st.lists(TAGS, max_size=4), st.integers(0, 5) | st.integers(0, 2**64 - 1)), max_size=20)
QUERIES = st.lists(st.lists(TAGS, max_size=8), max_size=5)


@pytest.fixture(params=BUILDS, scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def check(build: Build, sets: pa.Table, queries: pa.ListArray, threads: int = 1) -> None:
    """Exact systems give the oracle's answers; the others give these and wrong keys."""
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    matcher = build(sets, threads)
    try:
        prepared = matcher.prepare(queries)
        for unique in (False, True):
            given = list(map(Counter, answers_to_pylist(matcher.match_many(prepared, unique=unique))))
            right = [Counter(oracle.match(query)) for query in queries.to_pylist()]
            if unique:
                right = [Counter(keys.keys()) for keys in right]
            assert len(given) == len(right)
            for keys, due in zip(given, right, strict=True):
                assert keys == due if matcher.exact else due <= keys
                assert not unique or all(count == 1 for count in keys.values())
        taken = matcher.nbytes()
        assert taken is None or taken >= 0
    finally:
        matcher.close()


@given(rows=SETS, asked=QUERIES, threads=st.sampled_from([1, 3]))
def test_small_tables(build: Build, rows: list[tuple[list[str], int]], asked: list[list[str]], threads: int) -> None:
    check(build, table_of(rows), tag_rows(asked), threads)


def test_twitter_like_sets(build: Build) -> None:
    sets = twitter.sets(TwitterOptions(hashtags=200), 0, 100).slice(0, 3000)
    check(build, sets, extend(sets, 100, 2, 4, seed=1), threads=2)


def test_slices_and_chunks(build: Build) -> None:
    whole = twitter.sets(TwitterOptions(), 0, 100).slice(0, 600)
    queries = extend(whole, 90, 2, 4, seed=1)
    check(build, pa.concat_tables([whole.slice(7, 200), whole.slice(300)]), queries.slice(11, 60))


def test_nothing_stored_or_asked(build: Build) -> None:
    nothing, some = table_of([]), table_of([(["a"], 1)])
    check(build, nothing, tag_rows([["a"], []]))
    check(build, some, tag_rows([]))


def test_slices_of_prepared_queries(build: Build) -> None:
    sets = table_of([(["a"], 1), (["b"], 2), ([], 3)])
    matcher = build(sets, 1)
    prepared = matcher.prepare(tag_rows([["a"], ["b"], ["a", "b"], []]))
    expected = answers_to_pylist(matcher.match_many(prepared))
    assert answers_to_pylist(matcher.match_many(prepared[:2])) == expected[:2]
    assert answers_to_pylist(matcher.match_many(prepared[1:3])) == expected[1:3]
    matcher.close()


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


def test_only_the_last_tables_are_kept() -> None:
    made: list[int] = []

    @kept
    def make(sets: pa.Table, name: str, *, threads: int = 1) -> tuple[int, str, int]:
        made.append(len(sets))
        return len(sets), name, threads

    tables = [table_of([(["a"], key) for key in range(rows)]) for rows in range(9)]
    assert make(tables[0], "a", threads=1) is make(tables[0], "a", threads=2)
    assert make(tables[0], "b")[1] == "b"
    same, other = pa.array([1]), pa.array([1])
    assert make(tables[0], same) is make(tables[0], same) is not make(tables[0], other)
    made.clear()
    for table in (*tables[1:], tables[8], tables[0]):
        make(table, "a")
    assert made == [*range(1, 9), 0]


def test_signatures_give_wrong_keys_too() -> None:
    sets = twitter.sets(TwitterOptions(), 0, 1000)
    queries = extend(sets, 50, 2, 4, seed=1)
    exact, scanned = (
        sum(map(len, m.match_many(m.prepare(queries)))) for m in (RarestTagDict(sets), SignatureScan(sets))
    )
    assert scanned > exact > 0


@given(rows=st.lists(st.tuples(_FEW_KEYS, _FEW_KEYS), max_size=5), first=st.integers(0, 2), as_arrow=st.booleans())
def test_wrong_and_missing_keys_are_counted(rows: Pairs, first: int, as_arrow: bool) -> None:
    given_keys, due = [keys for keys, _ in rows], [keys for _, keys in rows]
    answers = pa.array(given_keys, pa.list_(pa.uint64())) if as_arrow else given_keys
    pairs = [(Counter(keys), Counter(others)) for keys, others in rows][first:]
    expected = sum((a - b).total() for a, b in pairs), sum((b - a).total() for a, b in pairs)
    assert wrong_and_missing(answers[first:], due[first:]) == expected
