"""Micro-benchmarks of the single kernels, on one thread: `pytest tests/benchmarks --benchmark-only`."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.agreement import index_of

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.columns import tag_lists
from tagmatch.model.kernels.hashing import hash_strings, signatures_of
from tagmatch.model.options import Layout
from tagmatch.model.tables import PartitionTable, Segment
from tagmatch.pipeline.balanced import BalancedSubsetMatch, PartitionIndex
from tagmatch.pipeline.rarest import RarestSubsetMatch
from tagmatch.pipeline.tags import QueryBatch, TagIndex, look_up_keys
from tagmatch.pipeline.unique import merge_unique
from tagmatch_bench.harness.data import Workload, make_workload


@pytest.fixture(scope="session")
def workload() -> Workload:
    """200,000 sets and 2,048 queries."""
    return make_workload(200_000, 2048, seed=1, threads=1)


@pytest.fixture(scope="session")
def stored(workload: Workload) -> TagLists:
    """The tags of all stored sets."""
    (chunk,) = tag_lists(workload.sets["tags"].combine_chunks(), "tags")
    return chunk


@pytest.fixture(scope="session")
def queries(workload: Workload) -> TagLists:
    (chunk,) = tag_lists(workload.queries, "queries")
    return chunk


def segment_of(workload: Workload, layout: Layout) -> Segment:
    with index_of(workload.sets["tags"], workload.sets["key"], layout=layout) as tm:
        return tm.snapshot.only


rarest = pytest.fixture(scope="session")(lambda workload: segment_of(workload, "rarest"))
balanced = pytest.fixture(scope="session")(lambda workload: segment_of(workload, "balanced"))


@pytest.fixture(scope="session")
def query_ranks(rarest: Segment, queries: TagLists) -> QueryBatch:
    """The queries as ranks, which are the same in both layouts."""
    return TagIndex(rarest.vocabulary).ranks(queries, 0, len(queries))


def test_hashing(benchmark: BenchmarkFixture, stored: TagLists) -> None:
    """All tags of all stored sets."""
    assert len(benchmark(hash_strings, stored.tags)) == len(stored.tags)


def test_signatures(benchmark: BenchmarkFixture, rarest: Segment) -> None:
    """All stored sets."""
    assert len(benchmark(signatures_of, rarest.tagsets.ranks, rarest.vocabulary.hashes)) == len(rarest)


def test_tag_look_up(benchmark: BenchmarkFixture, rarest: Segment, queries: TagLists) -> None:
    """One task of queries, strings to ranks."""
    assert len(benchmark(TagIndex(rarest.vocabulary).ranks, queries, 0, len(queries))) == len(queries)


def test_partition_table(benchmark: BenchmarkFixture, balanced: Segment, query_ranks: QueryBatch) -> None:
    """One task of queries: Algorithm 2."""
    assert isinstance(balanced.partitions, PartitionTable)
    signatures = signatures_of(Lists(query_ranks.offsets, query_ranks.ranks), balanced.vocabulary.hashes)
    offsets, _ = benchmark(PartitionIndex(balanced.partitions).relevant, signatures)
    assert offsets[-1] > 0


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "by-signature"])
def test_subset_check(benchmark: BenchmarkFixture, balanced: Segment, query_ranks: QueryBatch, exact: bool) -> None:
    """One task of queries: Algorithms 2 and 3."""
    matches = benchmark(BalancedSubsetMatch(balanced, exact=exact, batch_size=256).find, query_ranks)
    assert len(matches.rows.values) >= len(query_ranks)


def test_cluster_look_up(benchmark: BenchmarkFixture, rarest: Segment, query_ranks: QueryBatch) -> None:
    """One task of queries."""
    matches = benchmark(RarestSubsetMatch(rarest).find, query_ranks)
    assert len(matches.rows.values) >= len(query_ranks)


def test_key_lookup(benchmark: BenchmarkFixture, rarest: Segment, query_ranks: QueryBatch) -> None:
    """The matches of one task of queries."""
    matches = RarestSubsetMatch(rarest).find(query_ranks).rows
    assert len(benchmark(look_up_keys, matches, rarest.keys)) == len(query_ranks)


@pytest.mark.parametrize("keys", [10, 100, 3_500, 100_000])
def test_merge_of_answers(benchmark: BenchmarkFixture, keys: int) -> None:
    """A million keys of 20 bits, in answers of some length."""
    answers = 1_000_000 // keys
    drawn = np.random.default_rng(1).integers(0, 1 << 20, answers * keys).astype(np.uint64)
    found = Lists(np.arange(answers + 1) * keys, drawn)
    unique = benchmark(merge_unique, found, np.ones(answers, np.bool_))
    assert len(unique.values) <= len(drawn)
